"""Memberships of the aspect Bernoulli model at fixed aspects, by EM or by Newton steps; see ``aspect_map``."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from custom_inference.families.common.counts import Tiles, margin
from custom_inference.families.common.newton import box_newton, pair_index, unpacked


class _Sums(NamedTuple):
    """Of every row, the derivatives of log p(x_n | s_n, a) = sum_t ones log p1 + zeros log p0 by s_n.

    slope: (B, K). With Newton steps also the log-likelihood (B,), and the packed pairs of minus the second derivative,
    sum_t [rise / p] a a' + [fall / (1 - p)] (1 - a) (1 - a)'.
    """

    slope: Tensor
    likelihood: Tensor
    curvature: Tensor


class MembershipUpdate:
    """Raises log p(x_n | s_n, a) + sum_k prior_k log s_nk for every row of a block; ``prior`` is alpha - 1, (K,).

    ``statistics`` adds up over the blocks given to ``last`` what the M step needs: expected counts of ones and zeros
    of every aspect, "on" and "off" (K, D); for Newton steps also the "curvature" by the columns of a, its pairs
    (K (K + 1) / 2, D), and the "column" log-likelihoods (D,).
    """

    def __init__(self, aspect: Tensor, prior: Tensor, *, newton: bool):
        self.aspect, self.prior, self.newton = aspect, prior, newton
        self.informative = bool((prior > 0).any())
        self.statistics = {"on": torch.zeros_like(aspect), "off": torch.zeros_like(aspect)}
        first, second, _ = pair_index(len(aspect))
        self.first, self.second = first.to(aspect.device), second.to(aspect.device)
        if newton:
            self.products = self._pairs(aspect).T.contiguous()
            self.statistics |= {"curvature": torch.zeros_like(self.products.T), "column": torch.zeros_like(aspect[0])}

    def __call__(self, block: Tiles, membership: Tensor) -> Tensor:
        """The new memberships (B, K)."""
        plain, trial, before = self._proposals(block, membership)
        if trial is None:
            return plain
        value = sum((tile.likelihood(trial @ self.aspect[:, at]).sum(1) for at, tile in block.tiles), before * 0)
        return self._safe(block, plain, trial, before, value)

    def last(self, block: Tiles, membership: Tensor) -> tuple[Tensor, Tensor]:
        """The new memberships and their log-likelihoods (B,); adds to the statistics."""
        plain, trial, before = self._proposals(block, membership)
        chosen = plain if trial is None else trial
        value, found = self._evaluated(block, chosen)
        if trial is not None:
            chosen = self._safe(block, plain, trial, before, value)
            if chosen is not trial:
                value, found = self._evaluated(block, chosen)
        for at, parts in found:
            for name, part in parts.items():
                self.statistics[name][..., at] += part
        return chosen, value

    def _safe(self, block: Tiles, plain: Tensor, trial: Tensor, before: Tensor, value: Tensor) -> Tensor:
        """The Newton step where it raised the objective, elsewhere the EM step; ``trial`` itself if everywhere."""
        rises = (value + self._log_prior(trial) >= before) & (block.draws > 0)
        return trial if bool(rises.all()) else torch.where(rises.unsqueeze(1), trial, plain)

    def _proposals(self, block: Tiles, membership: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """The EM step, the Newton step, and the objective before."""
        sums = self._sums(block, membership)
        total = (block.draws + self.prior.sum()).unsqueeze(1)
        plain = (membership * sums.slope + self.prior) / total
        # A row without any information goes to the prior's mode, which for the flat prior is its mean.
        plain = torch.where(total > 0, plain, torch.full_like(plain, 1 / plain.shape[1]))
        plain = plain / plain.sum(1, keepdim=True)
        trial = self._newton(membership, sums.slope - total, sums.curvature) if self.newton else None
        return plain, trial, sums.likelihood + self._log_prior(membership)

    def _sums(self, block: Tiles, membership: Tensor) -> _Sums:
        slope, likelihood = torch.zeros_like(membership), torch.zeros_like(membership[:, 0])
        curvature = membership.new_zeros(len(membership), len(self.first))
        falling, constant = torch.zeros_like(membership), membership.new_zeros(len(membership), 1)
        for at, tile in block.tiles:
            aspect = self.aspect[:, at]
            p = membership @ aspect
            if self.newton:
                likelihood += tile.likelihood(p.clone()).sum(1)
            slopes = tile.slopes(p, curvature=self.newton)
            slope.addmm_(slopes.slope, aspect.T).add_(slopes.fall.sum(1, keepdim=True))
            if self.newton:
                curvature.addmm_(slopes.curvature, self.products[at])
                falling.addmm_(slopes.curvature_of_zeros, aspect.T)
                constant += slopes.curvature_of_zeros.sum(1, keepdim=True)
        if self.newton:
            # (1 - a_k)(1 - a_l) = 1 - a_k - a_l + a_k a_l
            curvature += constant - falling[:, self.first] - falling[:, self.second]
        return _Sums(slope, likelihood, curvature)

    def _newton(self, membership: Tensor, gradient: Tensor, packed: Tensor) -> Tensor:
        curvature = unpacked(packed)
        if self.informative:
            gradient = gradient + self.prior / membership
            curvature.diagonal(dim1=1, dim2=2).add_(self.prior / membership.square())
        edge = margin(membership.dtype) ** 2 if self.informative else 0.0
        trial = box_newton(membership, gradient, curvature, edge, torch.inf)
        return trial / trial.sum(1, keepdim=True).clamp(min=torch.finfo(trial.dtype).tiny)

    def _evaluated(self, block: Tiles, membership: Tensor) -> tuple[Tensor, list[tuple[slice, dict[str, Tensor]]]]:
        """The log-likelihood of the rows, and the statistics of every tile."""
        value, found, turned = torch.zeros_like(membership[:, 0]), [], membership.T.contiguous()
        pairs = self._pairs(turned) if self.newton else turned
        for at, tile in block.tiles:
            aspect = self.aspect[:, at]
            p = membership @ aspect
            likelihood = tile.likelihood(p.clone())
            value += likelihood.sum(1)
            slopes = tile.slopes(p, curvature=self.newton)
            off = turned @ slopes.fall
            parts = {"on": aspect * (turned @ slopes.slope + off), "off": (1 - aspect) * off}
            if self.newton:
                parts |= {"curvature": pairs @ slopes.curvature, "column": likelihood.sum(0)}
            found.append((at, parts))
        return value, found

    def _pairs(self, values: Tensor) -> Tensor:
        """(K, M) -> products of every pair of rows, (K (K + 1) / 2, M)."""
        return values[self.first] * values[self.second]

    def _log_prior(self, membership: Tensor) -> Tensor:
        return torch.xlogy(self.prior, membership).sum(1) if self.informative else torch.zeros_like(membership[:, 0])
