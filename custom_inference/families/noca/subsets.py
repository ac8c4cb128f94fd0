"""Exact sums over a row's sources by the subsets of its ones, at any number of sources: K M 2^M for M ones.

Singliar & Hauskrecht (2006) has 2^K codes; the recursion over what is on so far is that of ``subset_kernels``. Equal
rows are taken once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.engine import Params
from custom_inference.families.conjugate.beta import interior
from custom_inference.families.noca.common import thetas
from custom_inference.families.noca.subset_logs import LogSubsets
from custom_inference.families.rows.matrix import BinaryRows


@dataclass(frozen=True)
class Expected:
    """log p(x) (N,) and E[s_i | x] (N, K); summed over the rows E[s_i z_ij | x] (K, D) and E[z_0j | x] (D,)."""

    log_evidence: Tensor
    mean: Tensor
    sent: Tensor
    sent_leak: Tensor


@dataclass(frozen=True)
class Subsets:
    """Different rows (R, D) at given globals, in double precision; ``place`` (N,): which of them each row is.

    log_absent, log_present: log a_i and log b_i (R, K), but for factors with which they sum to 1; log_factor: these,
    and log prod_{zeros} (1 - p_0j), (R,). loading: p (K, D), leak: p_0 (D,), off 0 and 1 by rounding, as the program
    has them.
    """

    ones: Tensor
    place: Tensor
    log_absent: Tensor
    log_present: Tensor
    log_factor: Tensor
    loading: Tensor
    leak: Tensor

    @classmethod
    def of(cls, params: Params, rows: BinaryRows, tilt: Tensor | None = None) -> Subsets:
        """Read rows; tilt (N, K): what is added to the log odds of each source in each row, which are then all kept
        apart."""
        params = {site: value.detach().double().cpu() for site, value in params.items()}
        (theta, theta0), prior = thetas(params), interior(params["source_prior"])
        every = torch.arange(len(rows))
        first, place = find_distinct(rows) if tilt is None else (every, every)
        some = BinaryRows(rows.ones[first], None if rows.mask is None else rows.mask[first])
        zeros = some.zeros.double().cpu()
        tiny = torch.finfo(torch.float64).tiny  # a leak of 0 is as the program's log1mexp has it
        present = prior.log() - zeros @ theta.T + (0.0 if tilt is None else tilt.double().cpu())
        absent = torch.log1p(-prior)
        factor = torch.logaddexp(absent, present)
        chances = (-torch.expm1(-theta), (-torch.expm1(-theta0)).clamp(min=tiny))
        both = (absent - factor, present - factor)
        return cls(some.ones.cpu(), place, *both, factor.sum(1) - zeros @ theta0, *chances)

    @cached_property
    def _kernel_rows(self) -> Any:
        """The rows as the loops take them: start (R + 1,), columns of the ones (E,), a and b (R, K)."""
        row, column = self.ones.nonzero(as_tuple=True)
        start = torch.searchsorted(row, torch.arange(len(self.ones) + 1))
        return start.numpy(), column.numpy(), self.log_absent.exp().numpy(), self.log_present.exp().numpy()

    @property
    def _tables(self) -> Any:
        return tuple(part.contiguous().numpy() for part in (self.loading, self.leak))

    @property
    def weight(self) -> Tensor:
        """How many rows each is, (R,)."""
        return torch.bincount(self.place, minlength=len(self.ones)).double()

    def log_evidence(self) -> Tensor:
        """Compute log p(x_n), (N,)."""
        from custom_inference.families.noca.subset_kernels import SMALLEST, sum_evidence

        evidence = np.empty(len(self.ones))
        sum_evidence(self._kernel_rows, self._tables, evidence)
        with np.errstate(divide="ignore"):
            found = np.log(evidence)
        for r in np.flatnonzero(~(evidence >= SMALLEST)).tolist():
            found[r] = self._in_logs(r).forward()[-1, -1]
        return (torch.from_numpy(found) + self.log_factor)[self.place]

    def expect(self) -> Expected:
        """Compute what is expected given every row."""
        from custom_inference.families.noca.subset_kernels import SMALLEST, expect_sources

        weight, (number, features) = self.weight, self.loading.shape
        evidence, mean = np.empty(len(self.ones)), np.empty((len(self.ones), number))
        sent, leak = np.zeros((number, features)), np.zeros(features)
        expect_sources(self._kernel_rows, self._tables, weight.numpy(), evidence, (mean, sent, leak))
        with np.errstate(divide="ignore"):
            found = np.log(evidence)
        for r in np.flatnonzero(~(evidence >= SMALLEST)).tolist():
            found[r], mean[r], each, each_leak = self._in_logs(r).expect()
            on = self.ones[r].numpy() > 0
            sent[:, on] += float(weight[r]) * each
            leak[on] += float(weight[r]) * each_leak
        log_evidence = torch.from_numpy(found) + self.log_factor
        of_rows = log_evidence[self.place], torch.from_numpy(mean)[self.place]
        return Expected(*of_rows, torch.from_numpy(sent), torch.from_numpy(leak))

    def draw(self, num_samples: int, seed: int) -> Tensor:
        """Draw codes from p(s_n | x_n), (S, N, K): rows independently, equal ones too."""
        from custom_inference.families.noca.subset_kernels import SMALLEST, draw_sources

        start, column, absent, present = self._kernel_rows
        every, number = len(self.place), self.loading.shape[0]
        drawn = np.zeros((num_samples, every, number), np.float32)
        states = np.random.default_rng(seed).integers(0, 2**64, size=every, dtype=np.uint64)
        evidence, length = np.empty(every), np.diff(start)[self.place.numpy()]
        own = np.concatenate([[0], np.cumsum(length)])
        inside = np.arange(own[-1]) - np.repeat(own[:-1], length) + np.repeat(start[self.place.numpy()], length)
        rows = (own, column[inside], *(part[self.place.numpy()] for part in (absent, present)))
        draw_sources(rows, self._tables, states, drawn, evidence)
        for n in np.flatnonzero(~(evidence >= SMALLEST)).tolist():
            drawn[:, n] = self._in_logs(int(self.place[n])).draw(num_samples, np.random.default_rng(states[n]))
        return torch.from_numpy(drawn)

    def _in_logs(self, r: int) -> LogSubsets:
        on = self.ones[r] > 0
        parts = (self.log_absent[r], self.log_present[r], self.loading[:, on], self.leak[on])
        return LogSubsets(*(part.numpy() for part in parts))


def find_distinct(rows: BinaryRows) -> tuple[Tensor, Tensor]:
    """Return the places (R,) of rows that are all different, and which of them each row is, (N,)."""
    bits = [rows.ones.cpu().numpy() > 0] + ([] if rows.mask is None else [rows.mask.cpu().numpy()])
    packed = np.ascontiguousarray(np.packbits(np.concatenate(bits, axis=1), axis=1))
    if not packed.size:
        return torch.arange(len(rows)), torch.arange(len(rows))
    words = packed.view(np.dtype((np.void, packed.shape[1]))).ravel()
    _, first, place = np.unique(words, return_index=True, return_inverse=True)
    return torch.from_numpy(first), torch.from_numpy(place.reshape(-1))
