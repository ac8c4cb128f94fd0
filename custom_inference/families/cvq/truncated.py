"""CVQ with truncated posteriors: the exact posterior restricted to a cube of likely codes per row (``common.cubes``).

With the quadratic form of ``common`` the codes of a cube need h and G at the free sources only: with b the base
code without them and f_i = h_i - sum_j G_ij b_j,

    log p(x, s) = c + sum_i b_i (h_i + f_i) / 2 + sum_{i free} s_i f_i - sum_{i < j free} s_i s_j G_ij.

Cost per row: K^2 + H^2 2^H, whatever 2^K is. The M step is that of ``common``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.families.common.cubes import CubeEngine, CubeModel
from custom_inference.families.common.rows import RealRows
from custom_inference.families.cvq.common import CvqEngine, Quadratic, added, moments, quadratics
from ppl_models import Model

#: Rows a block: its (rows, 2^H) table stays in cache.
_BLOCK_ROWS = 1024


class _Table(NamedTuple):
    """Log joints (B, 2^H) up to the row's constant, and the base codes with the free sources off (B, K)."""

    joint: Tensor
    fixed: Tensor

    def where(self, keep: Tensor, other: _Table) -> _Table:
        return _Table(*(torch.where(keep[:, None], mine, its) for mine, its in zip(self, other, strict=True)))


class _Scores(NamedTuple):
    """A block of rows and its quadratic form."""

    rows: RealRows
    form: Quadratic

    def cheapest_flips(self, base: Tensor, number: int) -> Tensor:
        score = (1 - 2 * base) * (self.form.linear - self.form.pull(base))
        return score.topk(number, 1).indices

    def cube(self, base: Tensor, free: Tensor, subsets: Tensor) -> _Table:
        fixed = base.scatter(1, free, 0.0)
        field = self.form.linear - self.form.pull(fixed)
        first, second = torch.triu_indices(free.shape[1], free.shape[1], 1, device=free.device)
        position = free[:, first] * base.shape[1] + free[:, second]
        coupling = self.form.coupling
        shared = coupling.ndim == 2
        among = coupling.reshape(-1)[position] if shared else coupling.flatten(1).gather(1, position)
        joint = field.gather(1, free) @ subsets.T - among @ (subsets[:, first] * subsets[:, second]).T
        return _Table(joint + 0.5 * (fixed * (self.form.linear + field)).sum(1, keepdim=True), fixed)


class _Moments(CubeModel):
    """The quadratic log joint on cubes, counting first and second moments of the codes."""

    def __init__(self, params: Params, rows: RealRows):
        self.forms = list(quadratics(params, rows, block_rows=_BLOCK_ROWS))
        self.constant = torch.cat([form.constant for _, _, form in self.forms])
        self.total: dict[str, Tensor] = {}

    def blocks(self) -> Iterator[tuple[slice, _Scores]]:
        for block, part, form in self.forms:
            yield block, _Scores(part, form)

    def count(
        self, scores: _Scores, table: _Table, weight: Tensor, free: Tensor, subsets: Tensor, mean: Tensor
    ) -> None:
        """<ss'> = <s><s'> but for the free sources, whose covariance is added."""
        first, second = torch.triu_indices(free.shape[1], free.shape[1], 1, device=free.device)
        on = mean.gather(1, free)
        extra = weight @ (subsets[:, first] * subsets[:, second]) - on[:, first] * on[:, second]
        num_bits = mean.shape[1]
        position = free[:, first] * num_bits + free[:, second]
        if scores.rows.observed is None:
            covariance = mean.new_zeros(num_bits**2).index_add_(0, position.flatten(), extra.flatten())
            pairs = mean.T @ mean
        else:
            covariance = mean.new_zeros(len(mean), num_bits**2).scatter_add_(1, position, extra)
            pairs = mean[:, :, None] * mean[:, None, :]
        covariance = covariance.view_as(pairs)
        self.total = added(self.total, moments(scores.rows, mean, pairs + covariance + covariance.mT))

    def statistics(self, mean: Tensor) -> dict[str, Tensor]:
        return self.total


@dataclass(frozen=True, kw_only=True)
class CvqTruncated(CvqEngine, CubeEngine):
    """E step on cubes of 2^H codes (see :class:`CubeEngine` for the settings); closed-form M step.

    Choosing a cube costs no more than using it, so it is done at every E step.
    """

    refresh_every: int = 1

    def e_step(
        self, model: Model, params: Params, rows: RealRows, warm: Warm = None, *, temperature=1.0, generator=None
    ) -> EStep:
        return self.cube_step(_Moments(params, rows), params, rows, warm, temperature)


def likely_codes(model: Model, params: Params, rows: RealRows, *, free: int = 4, iterations: int = 3) -> Tensor:
    """Marginals of a few quick truncated E steps from the empty code, (N, K): a start for other families."""
    engine, warm = CvqTruncated(free=free), None
    for _ in range(iterations):
        warm = engine.e_step(model, params, rows, warm).locals
    assert warm is not None
    return warm["mean"]
