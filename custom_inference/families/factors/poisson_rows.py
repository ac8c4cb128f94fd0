"""What Poisson PCA's engines read and iterate on: rows of counts with offsets, states with turns, starting axes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import pyro.distributions as dist
import torch
from torch import Tensor

from custom_inference.core.states import Params, PointsWithLocals
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.factors.poisson_updates import Globals, PoissonCounts, PoissonScores, Turn
from custom_inference.families.rows.matrix import MatrixRows
from ppl_models import Data, Model
from ppl_models.data import sparse

#: Entries of a block of rows.
_BLOCK_ENTRIES = 2**19


@dataclass(frozen=True)
class PoissonRows(MatrixRows):
    """Counts (N, D), sparse ones as they are, with the rows' offsets (N,)."""

    offset: Tensor = field(default=None)  # pyright: ignore[reportAssignmentType]

    @classmethod
    def of(cls, data: Data) -> Self:
        offset = data.others.get("offset")
        x = data.x if data.mask is None else data.dense().x.masked_fill(~data.mask, 0.0)
        values = sparse.row_sums(x)
        return cls(x, data.mask, torch.zeros_like(values) if offset is None else offset.to(values))

    @cached_property
    def counts(self) -> PoissonCounts:
        x = self.like.to_dense() if sparse.is_sparse(self.like) else self.like
        return PoissonCounts(x, self.offset, self.observed)

    @cached_property
    def log_factorials(self) -> Tensor:
        """sum_j log x_nj!, (N,)."""
        return torch.lgamma(self.counts.x + 1).sum(-1)

    @cached_property
    def observed(self) -> Tensor | None:
        return None if self.mask is None else self.mask.to(self.offset)

    def blocks(self) -> list[tuple[slice, Self]]:
        """Blocks of rows whose dense arrays are small; they are kept where the counts are dense anyway."""
        return self._dense_blocks() if sparse.is_sparse(self.like) else self._kept_blocks

    def _dense_blocks(self) -> list[tuple[slice, Self]]:
        return self._cut(max(64, _BLOCK_ENTRIES // self.like.shape[1]))

    @cached_property
    def _kept_blocks(self) -> list[tuple[slice, Self]]:
        return self._dense_blocks()


@dataclass(frozen=True)
class PoissonState(PointsWithLocals):
    """Values of the sites; in ``locals`` what else there is: "matrix" and "shift", by which scores are turned that an
    earlier E step left, with its "number" (1,); the "spread" of the columns and the "precision" of the weights' prior,
    where these are learned."""

    @classmethod
    def read(cls, state: PoissonState | Params) -> PoissonState:
        """Read a state; values of the sites alone are taken too."""
        return state if isinstance(state, PoissonState) else cls(state)

    def with_fitted_priors(self, model: Model) -> Model:
        if "precision" not in self.locals:
            return model
        mean, precision = Normal.of(model, "weight", model.shapes["weight"], self.sites["weight"])
        learned = torch.where((mean == 0).all(1), self.locals["precision"], precision[:, 0])
        return model.with_priors(weight=dist.Normal(mean, learned.rsqrt()[:, None].expand_as(mean)))

    @property
    def at(self) -> Globals:
        return Globals(self.sites["weight"], self.sites["bias"], self.locals.get("spread"))


def warm_scores(warm: dict[str, Tensor], place: slice, state: PoissonState) -> PoissonScores:
    """Return the scores that the last E step found, rotated as the weights were since."""
    q = PoissonScores(warm["score"][place], warm["covariance"][place])
    if "matrix" not in state.locals:
        return q
    later = (warm["number"][place] < state.locals["number"]).nonzero().flatten()
    if not len(later):
        return q
    turn = Turn(state.locals["matrix"], state.locals["shift"])
    if len(later) == len(q.mean):
        return turn.scores(q)
    mean, covariance = q.mean.clone(), q.covariance.clone()
    mean[later], covariance[later] = turn.scores(PoissonScores(mean[later], covariance[later]))
    return PoissonScores(mean, covariance)


def leading_axes(matrix: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Compute W (K, D) with W'W about the best rank-K approximation of M'M / N, by subspace iteration."""
    size = min(count + 8, *matrix.shape)
    basis = torch.randn(matrix.shape[1], size, generator=generator, dtype=torch.float64).to(matrix)
    for _ in range(3):
        basis = torch.linalg.qr(matrix.T @ (matrix @ basis))[0]
    _, value, vector = torch.linalg.svd(matrix @ basis, full_matrices=False)
    axes = (vector @ basis.T)[:count] * value[:count, None] / math.sqrt(len(matrix))
    # More components than rows or columns: a component of length 0 would stay there for ever.
    short = count - len(axes)
    return axes if short <= 0 else torch.cat([axes, 1e-2 * torch.eye(matrix.shape[1]).to(axes)[:short]])
