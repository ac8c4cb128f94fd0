"""Users or items of a factorisation: their ratings, rows, noise and prior, and the half sweep over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import scipy.sparse as sp

from custom_inference.core.threads import map_in_threads
from custom_inference.families.ratings.features import Design
from custom_inference.families.ratings.hyper import PriorSettings, RowPrior, prior_given_rows
from custom_inference.families.ratings.incidence import Array, ByRow, Incidence
from ppl_models.core.errors import MethodError

#: Into so many parts rows are cut to be drawn, or to be shared among threads.
_PARTS = 32
Part = TypeVar("Part")
#: Blocks of features, each (N, D).
Blocks = Sequence["Array | sp.sparray"]


@dataclass(frozen=True)
class Settings:
    """The model beside its number of factors, the same for variational Bayes and Gibbs.

    noise_shape, noise_rate: Gamma prior of tau. unit_shape: g, h ~ Gamma(unit_shape, unit_shape); None: all are 1.
    rank: how many principal coordinates of each block of features are used. ridge_after: sweeps until their ridges are
    learned: earlier, rows say little and ridges would grow until features are off. noise_after: sweeps until g and h
    are learned: before there are factors, what these are to explain is taken for noise of some rows. centre: mean and
    precision of the Normal prior of the overall mean, which chains draw; None: it is held.
    """

    user: PriorSettings = field(default_factory=PriorSettings)
    item: PriorSettings = field(default_factory=PriorSettings)
    noise_shape: float = 1.0
    noise_rate: float = 1.0
    unit_shape: float | None = 20.0
    rank: int = 50
    ridge_after: int = 15
    noise_after: int = 0
    centre: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        positive = [self.noise_shape, self.noise_rate, *([] if self.unit_shape is None else [self.unit_shape])]
        positive += [one for side in (self.user, self.item) for one in (side.strength, side.degrees, *side.scale(2))]
        if not all(value > 0 for value in positive):
            raise MethodError(f"settings of a factorisation must be positive, found {min(positive)}")


@dataclass
class FactorSide:
    """mean (N, d), covariance (N, d (d + 1) / 2), gain (N,): of q or the draw; error, table: see ``kernels``;
    products (d + 1, d + 1): see ``draw_kernel``, after a draw."""

    ratings: ByRow
    mean: Array
    covariance: Array
    gain: Array
    half_log_det: Array
    error: Array
    table: Array
    prior_mean: Array
    precision: Array
    prior: RowPrior | None = None
    design: Design | None = None
    settings: PriorSettings = field(default_factory=PriorSettings)
    products: Array = field(default_factory=lambda: np.zeros((0, 0)))

    @classmethod
    def empty(
        cls, ratings: ByRow, d: int, design: Design | None = None, settings: PriorSettings | None = None,
        dtype: type[np.floating] = np.float64,
    ) -> FactorSide:  # fmt: skip
        """Rows at 0, with the prior's own expectation of L. dtype: of the table; sums are in double precision."""
        from custom_inference.families.ratings.kernels import table_width

        settings = settings or PriorSettings()
        size, half = len(ratings.start) - 1, d * (d + 1) // 2
        rows, one = np.zeros((size, d)), np.ones(size)
        return cls(
            ratings, rows, np.zeros((size, half)), one, np.zeros(size), np.zeros(size),
            np.zeros((size, table_width(d)), dtype), np.zeros((size, d)),
            np.diag((settings.degrees + d - 1) / settings.scale(d)), None, design, settings,
        )  # fmt: skip

    def lend(self) -> None:
        """Write the table from rows, covariances and gains."""
        from custom_inference.families.ratings.kernels import lend_all

        lend_all(self.mean, self.covariance, self.gain, self.table)

    def update(
        self, other: FactorSide, tau: float, unit_shape: float | None, pool: Pool, beside: Array | None = None
    ) -> None:
        """Update the posteriors of all rows and gains given those of the other side. beside (N,): what else there is of
        the rows' expected squared errors."""
        from custom_inference.families.ratings.kernels import update_rows

        update: Any = update_rows
        shape = unit_shape or 0.0
        rest: Any = (
            self.ratings.start, self.ratings.index, self.ratings.value, self.ratings.weight, other.table, self.table,
            self.prior_mean, self.precision, tau, self.gain, shape, shape, self.mean, self.covariance,
            self.half_log_det, self.error,
        )  # fmt: skip
        pool.run(lambda part: update(*part, *rest), self.ratings.parts(_PARTS))
        if beside is not None:
            self.error += beside
            if unit_shape:
                self.gain = (shape + 0.5 * self.ratings.counts) / (shape + 0.5 * tau * self.error)
            self.lend()

    def draw(
        self, other: FactorSide, tau: float, unit_shape: float | None, pool: Pool, generator: np.random.Generator
    ) -> None:
        """Draw all rows and gains given those of the other side, and ``products``; the number of threads does not
        matter to them."""
        from custom_inference.families.ratings.draw_kernel import draw_rows

        draw: Any = draw_rows
        shape, size = unit_shape or 0.0, self.mean.shape[1] + 1
        noise, kind = generator.standard_normal(self.mean.shape), self.table.dtype
        gammas = generator.standard_gamma(shape + 0.5 * self.ratings.counts) if unit_shape else np.zeros(0)
        rest: Any = (
            self.ratings.start, self.ratings.index, self.ratings.value, self.ratings.weight,
            other.mean.astype(kind), np.sqrt(other.gain).astype(kind), self.prior_mean @ self.precision,
            self.precision.astype(kind), tau, self.gain, shape, shape, noise, gammas, self.mean,
        )  # fmt: skip
        parts = self.ratings.parts(_PARTS)
        found = np.zeros((len(parts), size, size))
        pool.run(lambda n: draw(*parts[n], *rest, found[n]), range(len(parts)))
        total = found.sum(0)
        self.products = total + np.tril(total, -1).T

    def move(self, turn: Array, shift: Array) -> None:
        """Move draws w' to w' T + shift, and their prior to that of such rows. turn: T (d, d), or (d,) its diagonal."""
        self.move_prior(turn, shift)
        self.mean, self.prior_mean = apply_turn(self.mean, turn) + shift, apply_turn(self.prior_mean, turn) + shift

    def move_prior(self, turn: Array, shift: Array) -> None:
        """Apply the rotation and the shift of ``move`` to the prior."""
        assert self.prior is not None
        back = np.diag(1 / turn) if turn.ndim == 1 else np.linalg.inv(turn)
        coefficient = apply_turn(self.prior.coefficient, turn)
        coefficient[0] += shift
        self.precision = back @ self.prior.precision @ back.T
        self.prior = replace(self.prior, precision=self.precision, coefficient=coefficient)

    def of_draws(self, ratings: ByRow, mean: Array, gain: Array) -> FactorSide:
        """Return a side that holds draws: rows and gains, which are copied, and no covariances. Sums over ratings stay
        in the precision of the table."""
        none = {"covariance": self.covariance[:0], "table": self.table[:0], "error": self.error[:0]}
        rows = {"mean": np.array(mean, np.float64), "gain": np.array(gain, np.float64)}
        return replace(self, ratings=ratings, half_log_det=self.half_log_det[:0], **none, **rows)

    def set_prior(self, prior: RowPrior) -> None:
        """Set the prior of the rows that are drawn, or updated, next."""
        self.prior, self.precision = prior, prior.precision
        self.prior_mean = prior.means(self.design.columns if self.design else None, len(self.mean))

    def prior_given_rows(self, learn: bool = False, generator: np.random.Generator | None = None) -> RowPrior:
        """Update q(m, beta, L) given the rows; of draws, what the next draw is from. learn: ridges too; generator:
        drawn."""
        total = np.zeros_like(self.precision)
        if len(self.covariance):
            total = unpack_symmetric(self.covariance.sum(0), len(self.precision))
        ridges = None if self.prior is None else self.prior.ridges
        return prior_given_rows(self.mean, total, self.design, self.settings, ridges, learn, generator)


class Factorisation(Protocol):
    """What a variational fit and a chain have alike: the ratings, both sides, and tau."""

    ratings: Incidence
    user: FactorSide
    item: FactorSide
    settings: Settings

    @property
    def tau(self) -> float: ...


def apply_turn(rows: Array, turn: Array) -> Array:
    """Compute w' T, T (d, d) or (d,) its diagonal."""
    return rows * turn if turn.ndim == 1 else rows @ turn


def unpack_symmetric(packed: Array, d: int) -> Array:
    """Return (..., d, d) from lower halves (..., d (d + 1) / 2), column by column."""
    full = np.zeros((*packed.shape[:-1], d, d))
    column, row = np.triu_indices(d)
    full[..., row, column] = packed
    full[..., column, row] = packed
    return full


def design_of(blocks: Blocks | Design, rows: int, rank: int, site: str) -> Design | None:
    """Build the design of features; None where there are none. A design passes: several fits may share one."""
    if isinstance(blocks, Design):
        return blocks
    return Design.of(blocks, rows, rank, site) if blocks else None


class Pool:
    """So many threads for ranges of rows."""

    def __init__(self, threads: int):
        if threads < 1:
            raise MethodError(f"threads must be 1 or more, found {threads}")
        self.threads = threads

    def run(self, work: Callable[[Part], None], parts: Iterable[Part]) -> None:
        map_in_threads(work, parts, self.threads)
