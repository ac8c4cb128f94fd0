"""Exact sums over a row's sources by the subsets of its ones, at any number of sources: K M 2^M for M ones.

Singliar & Hauskrecht (2006) has 2^K codes; the recursion over what is on so far is that of ``subset_kernels``. Equal
rows are taken once. For rows whose probability is next to nothing the same recursion is made with log f and log h, in
NumPy: tens of times slower, and exact however small p(x).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_inference.core.engine import Params
from custom_inference.families.conjugate.beta import interior
from custom_inference.families.noca.common import thetas
from custom_inference.families.rows.matrix import BinaryRows

#: Numbers in double precision.
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class LogSubsets:
    """log a (K,), log b (K,), p (K, M) and p_0 (M,) of the M ones of one row."""

    absent: Reals
    present: Reals
    chance: Reals
    leak: Reals

    def forward(self) -> Reals:
        """Compute log f_i(T), (K + 1, 2^M)."""
        start = np.zeros(1)
        with np.errstate(divide="ignore"):
            for p in self.leak:  # the last one is the highest bit
                start = np.concatenate([start + np.log1p(-p), start + np.log(p)])
        found = [start]
        for absent, present, chance in zip(self.absent, self.present, self.chance, strict=True):
            found.append(np.logaddexp(absent + found[-1], present + self._transmit(found[-1], chance)))
        return np.stack(found)

    def backward(self) -> tuple[Reals, list[Reals]]:
        """Compute log h_i(T), (K + 1, 2^M), and of every source the stages (M + 1, 2^M) of log A' h_i: of the ones
        from j on, as ``subset_kernels`` has them."""
        last = np.full(1 << len(self.leak), -np.inf)
        last[-1] = 0.0
        found, stages = [last], []
        for absent, present, chance in zip(self.absent[::-1], self.present[::-1], self.chance[::-1], strict=True):
            stages.append(self._collect(found[-1], chance))
            found.append(np.logaddexp(absent + found[-1], present + stages[-1][0]))
        return np.stack(found[::-1]), stages[::-1]

    def expect(self) -> tuple[float, Reals, Reals, Reals]:
        """Compute log f_K(J), E[s_i | x] (K,), E[s_i z_ij | x] (K, M) and E[z_0j | x] (M,)."""
        forward, (backward, stages) = self.forward(), self.backward()
        evidence = float(forward[-1, -1])
        if evidence == -np.inf:
            nothing = np.full_like(self.chance, np.nan)
            return evidence, nothing.sum(1) + np.full(len(nothing), np.nan), nothing, np.full_like(self.leak, np.nan)
        weight = [self.present[i] + stages[i][0] - evidence for i in range(len(stages))]
        mean = np.array([np.exp(v + f).sum() for v, f in zip(weight, forward, strict=False)])
        sent = np.zeros_like(self.chance)
        for i, v in enumerate(weight):
            for j in range(len(self.leak)):
                without, inside = self._halves(forward[i], j)
                sent[i, j] = self.chance[i, j] * np.exp(self._halves(v, j)[1] + np.logaddexp(without, inside)).sum()
        first = forward[0] + backward[0] - evidence
        return evidence, mean, sent, np.array([np.exp(self._halves(first, j)[1]).sum() for j in range(len(self.leak))])

    def draw(self, number: int, rng: np.random.Generator) -> Reals:
        """Draw codes (S, K) from p(s | x), as ``subset_kernels.draw_sources`` does."""
        backward, stages = self.backward()
        joint = self.forward()[0] + backward[0]
        chance = np.exp(joint - joint.max())
        on = rng.choice(len(chance), size=number, p=chance / chance.sum())
        drawn = np.zeros((number, len(self.absent)))
        for i, stage in enumerate(stages):
            present = np.log(rng.random(number)) < self.present[i] + stage[0][on] - backward[i][on]
            drawn[:, i] = present
            for j, p in enumerate(self.chance[i]):
                with_j = on | (1 << j)
                fires = np.log(rng.random(number)) < np.log(max(p, 1e-300)) + stage[j + 1][with_j] - stage[j][on]
                on = np.where(present & fires, with_j, on)
        return drawn

    @staticmethod
    def _halves(values: Reals, j: int) -> tuple[Reals, Reals]:
        """Return views of what is without j and with j."""
        cut = values.reshape(-1, 2, 1 << j)
        return cut[:, 0], cut[:, 1]

    def _transmit(self, values: Reals, chance: Reals) -> Reals:
        values = values.copy()
        with np.errstate(divide="ignore"):
            for j, p in enumerate(chance):
                without, inside = self._halves(values, j)
                np.logaddexp(inside, np.log(p) + without, out=inside)
                without += np.log1p(-p)
        return values

    def _collect(self, values: Reals, chance: Reals) -> Reals:
        found = [values]
        with np.errstate(divide="ignore"):
            for j in range(len(chance) - 1, -1, -1):
                values = values.copy()
                without, inside = self._halves(values, j)
                without[:] = np.logaddexp(np.log1p(-chance[j]) + without, np.log(chance[j]) + inside)
                found.append(values)
        return np.stack(found[::-1])


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
