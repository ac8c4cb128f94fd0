"""NOCA with truncated posteriors: the exact posterior restricted to a cube of likely codes per row (``common.cubes``).

log p(x, s) = sum_{x_j=1} log(1 - e^{-a_j(s)}) - sum_{x_j=0} a_j(s) + log p(s). All K flips of a base code are scored at
once, for the ones only (the zeros are linear in s). Cost per row: (number of ones) x (K + 2^H), whatever 2^K is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.families.common.cubes import CubeEngine, CubeModel
from custom_inference.families.conjugate.beta import FLOOR, interior
from custom_inference.families.noca.common import NocaEngine, thetas, transmission_statistics
from custom_inference.families.rows.matrix import BinaryRows
from ppl_models import Model

#: Activation of the padding column of a block of ones: P(x = 1) = 1 there, so it adds nothing.
_ALWAYS_ON = 60.0


class _SourceTable(NamedTuple):
    """Log joints (B, 2^H) up to a row constant, P(x_j = 1 | s) of the ones (B, M, 2^H), the base without free."""

    joint: Tensor
    on: Tensor
    fixed: Tensor

    def where(self, keep: Tensor, other: _SourceTable) -> _SourceTable:
        row = keep[:, None]
        on = torch.where(row[..., None], self.on, other.on)
        return _SourceTable(torch.where(row, self.joint, other.joint), on, torch.where(row, self.fixed, other.fixed))


class _SourceScores(NamedTuple):
    """A block of rows: columns of their ones (B, M), and the log joint per source beside the ones (B, K).

    theta (D + 1, K), theta_0 (D + 1,): with the neutral padding feature last.
    """

    theta: Tensor
    theta0: Tensor
    ones: Tensor
    linear: Tensor

    def activation(self, codes: Tensor) -> Tensor:
        """Compute a_j of the rows' ones (B, M) under codes (B, K): all features by one product, which beats gathering
        theta."""
        return torch.addmm(self.theta0, codes, self.theta.T).gather(1, self.ones)

    def cube(self, base: Tensor, free: Tensor, subsets: Tensor) -> _SourceTable:
        fixed = base.scatter(1, free, 0.0)
        index = (self.ones * self.theta.shape[1])[..., None] + free[:, None, :]
        part = self.theta.view(-1).index_select(0, index.view(-1)).view(index.shape)
        silent = torch.matmul(part, -subsets.T).sub_(self.activation(fixed)[..., None])  # log P(x_j = 0 | s)
        on = silent.expm1_().neg_()
        linear = (self.linear * fixed).sum(1, keepdim=True) + torch.gather(self.linear, 1, free) @ subsets.T
        return _SourceTable(on.log().sum(1) + linear, on, fixed)

    def cheapest_flips(self, base: Tensor, number: int) -> Tensor:
        sign = 1 - 2 * base
        theta = self.theta.index_select(0, self.ones.view(-1)).view(*self.ones.shape, -1)
        flipped = torch.addcmul(self.activation(base)[..., None], theta, sign[:, None, :]).clamp_min_(FLOOR)
        score = flipped.neg_().expm1_().neg_().log_().sum(1) + sign * self.linear
        return score.topk(number, 1).indices


class Transmission(CubeModel):
    """The noisy-or on cubes, counting transmissions; forbid (N,): a source held off in each row."""

    def __init__(self, params: Params, rows: BinaryRows, forbid: Tensor | None = None):
        (theta, theta0), prior = thetas(params), interior(params["source_prior"])
        self.params, self.rows = params, rows
        self.theta = torch.cat([theta.T, theta.new_zeros(1, len(theta))])
        self.theta0 = torch.cat([theta0, theta0.new_full((1,), _ALWAYS_ON)])
        self.linear = torch.logit(prior) - rows.zeros @ theta.T
        if forbid is not None:
            self.linear = self.linear.scatter(1, forbid[:, None], -1e4)
        self.constant = torch.log1p(-prior).sum() - rows.zeros @ theta0
        self.sent, self.sent_leak = theta.new_zeros(self.theta.numel()), torch.zeros_like(self.theta0)

    def blocks(self) -> Iterator[tuple[Tensor, _SourceScores]]:
        for block, ones in self.rows.blocks:
            yield block, _SourceScores(self.theta, self.theta0, ones, self.linear[block])

    def count(
        self, scores: _SourceScores, table: _SourceTable, weight: Tensor, free: Tensor, subsets: Tensor, mean: Tensor
    ) -> None:
        ones, num_bits = scores.ones, mean.shape[1]
        share = weight[:, None, :] / table.on
        position = (ones[..., None] * num_bits + free[:, None, :]).flatten()
        self.sent.index_add_(0, position, (share @ subsets).flatten())
        total = weight.new_zeros(len(ones), len(self.sent_leak)).scatter_add_(1, ones, share.sum(2))
        self.sent.view(-1, num_bits).addmm_(total.T, table.fixed)
        self.sent_leak += total.sum(0)

    def statistics(self, mean: Tensor) -> dict[str, Tensor]:
        sent, sent_leak = self.sent.view(-1, mean.shape[1])[:-1].T, self.sent_leak[:-1]
        return transmission_statistics(self.params, self.rows, mean, sent, sent_leak)


@dataclass(frozen=True, kw_only=True)
class NocaTruncated(NocaEngine, CubeEngine):
    """E step on cubes of 2^H codes (see :class:`CubeEngine` for the settings); M step: cause transmission."""

    def e_step(
        self, model: Model, params: Params, rows: BinaryRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        return self.cube_step(Transmission(params, rows), params, rows, warm, temperature)


#: Finds the means that other families begin with, in four E steps.
QUICK = NocaTruncated(free=4, refresh_every=1)
