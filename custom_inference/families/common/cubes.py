"""Truncated posteriors over binary codes: the exact posterior restricted to a *cube* of likely codes per row.

Row n keeps a base code and H free sources; its codes are the base with the free sources taking all 2^H values. They
are distinct by construction, so

    B_n = log sum_{s in cube_n} p(x_n, s)  <=  log p(x_n),

with equality when the cube holds every code (H = K), and q_n in proportion to p(x_n, s) on the cube. The free sources
are those whose flip costs the base code least. The base then moves to the best code of the cube. A new cube replaces
the old one where it has more mass, so that B never falls.

Truncated posteriors: Luecke & Eggert, JMLR 11 (2010).
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from custom_inference.core.engine import Engine, EStep, Params, Warm
from custom_inference.core.posteriors import CodePosterior, LocalPosterior
from custom_inference.families.rows.matrix import MatrixRows
from ppl_models import Model
from ppl_models.core.likelihood import softmax_and_log_sum
from ppl_models.distributions import all_codes


class Cubes(NamedTuple):
    """base (N, K) codes, free (N, H) indices of the free sources, mean (N, K) marginals, age (N,) in E steps."""

    base: Tensor
    free: Tensor
    mean: Tensor
    age: Tensor

    @classmethod
    def empty(cls, rows: MatrixRows, num_bits: int) -> Cubes:
        return cls.at(rows.like.new_zeros(len(rows), num_bits))

    @classmethod
    def at(cls, base: Tensor, mean: Tensor | None = None) -> Cubes:
        """Base codes whose free sources have yet to be chosen."""
        empty = torch.zeros(len(base), 0, dtype=torch.long, device=base.device)
        age = torch.zeros(len(base), dtype=torch.long, device=base.device)
        return cls(base, empty, base if mean is None else mean, age)


class CubeScores(Protocol):
    """The log joint of codes on a block of rows."""

    def cheapest_flips(self, base: Tensor, number: int) -> Tensor:
        """Return the sources whose flip, alone, leaves the base code's log joint highest, (B, number)."""
        ...

    def cube(self, base: Tensor, free: Tensor, subsets: Tensor) -> Any:
        """Tabulate the cubes; subsets (2^H, H) are the values that the free sources take.

        Has ``joint`` (B, 2^H), the log joints up to a constant of the row; ``fixed`` (B, K), the base codes with the
        free sources off; and ``where(keep, other)``, this table where ``keep`` (B,), the other elsewhere.
        """


class CubeModel(abc.ABC):
    """What a model brings to an E step on cubes; made anew for each."""

    #: The constant of each row that its table leaves out, (N,).
    constant: Tensor

    @abc.abstractmethod
    def blocks(self) -> Iterator[tuple[Tensor | slice, CubeScores]]:
        """Yield the rows in blocks."""

    @abc.abstractmethod
    def count(self, scores: Any, table: Any, weight: Tensor, free: Tensor, subsets: Tensor, mean: Tensor) -> None:
        """Add a block to the expected statistics: weight (B, 2^H) on the cube's codes, mean (B, K)."""

    @abc.abstractmethod
    def statistics(self, mean: Tensor) -> dict[str, Tensor]:
        """Return the statistics of all rows; mean (N, K)."""


_Matrix = TypeVar("_Matrix", bound=MatrixRows)
#: Free bits that rows get at least when they are inferred at given globals.
_LOCAL_BITS = 6


@dataclass(frozen=True, kw_only=True)
class CubeEngine(Engine[_Matrix, Params]):
    """free: H, free sources per row (2^H codes). guard: keep the old cube where it has more mass.

    refresh_every: choose cubes anew at every so many E steps; in between the old ones are used, at a lower cost.
    """

    free: int = 4
    guard: bool = True
    refresh_every: int = 3
    name: ClassVar[str] = "truncated"

    @property
    def patience(self) -> int:
        """The E steps between two choices of cubes, in which the bound may stand still without having converged."""
        return self.refresh_every

    def local(self) -> Engine:
        """New rows start from the empty code, from which few free bits do not lead far."""
        return replace(self, free=max(self.free, _LOCAL_BITS)) if self.free < _LOCAL_BITS else self

    def cube_step(
        self, scored: CubeModel, params: Params, rows: _Matrix, warm: dict[str, Tensor] | None, temperature: float
    ) -> EStep:
        """Make the E step, once the model's scores are known."""
        num_bits = len(params["source_prior"])
        size, like = min(self.free, num_bits), scored.constant
        cubes = Cubes.empty(rows, num_bits) if not warm else Cubes(*(warm[f] for f in Cubes._fields))
        refresh = int(cubes.age[0]) % self.refresh_every == 0
        subsets = all_codes(size, dtype=like.dtype, device=like.device)
        base, mean = like.new_empty(len(rows), num_bits), like.new_empty(len(rows), num_bits)
        free, weights = cubes.free.new_empty(len(rows), size), like.new_empty(len(rows), 2**size)
        bound = scored.constant.clone()
        for block, scores in scored.blocks():
            chosen, table = self._choose(scores, cubes.base[block], cubes.free[block], subsets, refresh)
            r, log_sum = softmax_and_log_sum(table.joint)
            bound[block] += log_sum
            base[block] = table.fixed.scatter(1, chosen, subsets[table.joint.argmax(1)])
            free[block], weights[block] = chosen, table.joint - log_sum[:, None]
            if temperature != 1.0:  # the prior of the codes is not tempered; within a cube only the free bits differ
                odds = torch.logit(params["source_prior"], eps=torch.finfo(like.dtype).eps)[chosen]
                r = torch.softmax(temperature * table.joint + (1 - temperature) * (odds @ subsets.T), 1)
            mean[block] = found = table.fixed.scatter(1, chosen, r @ subsets)
            scored.count(scores, table, r, chosen, subsets, found)
        found_locals = Cubes(base, free, mean, cubes.age + 1)._asdict() | {"log_weight": weights}
        return EStep(scored.statistics(mean), found_locals, bound)

    def infer_means(self, model: Model, params: Params, rows: _Matrix, steps: int) -> Tensor:
        """Return the marginals (N, K) after some quick E steps from the empty code: a start for other posteriors."""
        warm: Warm = None
        for _ in range(steps):
            warm = self.e_step(model, params, rows, warm).locals
        assert warm is not None
        return warm["mean"]

    def _choose(
        self, scores: CubeScores, base: Tensor, free: Tensor, subsets: Tensor, refresh: bool
    ) -> tuple[Tensor, Any]:
        """Choose the cube of each row of the block: new, old, or (guarded) the one with more mass."""
        has_old = free.shape[1] == subsets.shape[1]
        if has_old and not refresh:
            return free, scores.cube(base, free, subsets)
        new = scores.cheapest_flips(base, subsets.shape[1])
        table = scores.cube(base, new, subsets)
        if not (has_old and self.guard):
            return new, table
        old = scores.cube(base, free, subsets)
        keep = old.joint.logsumexp(1) >= table.joint.logsumexp(1)
        return torch.where(keep[:, None], free, new), old.where(keep, table)

    def posterior(self, model: Model, params: Params, rows: _Matrix, step: EStep) -> LocalPosterior:
        """Return the codes of every row's cube, (N, 2^H, K), and their weights."""
        free, base = step.locals["free"], step.locals["base"]
        subsets = all_codes(free.shape[1], dtype=base.dtype, device=base.device)
        codes = base[:, None, :].expand(-1, len(subsets), -1).clone()
        codes.scatter_(2, free[:, None, :].expand(-1, len(subsets), -1), subsets.expand(len(base), -1, -1))
        return CodePosterior(codes.to(torch.uint8), step.locals["log_weight"])
