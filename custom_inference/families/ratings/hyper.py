"""The adaptive prior of the rows of one side: a multivariate regression on their features.

    w_n ~ N(m + F_n, L^-1),   F = X beta,   beta_j ~ N(0, (ridge_j L)^-1) by rows,
    m | L ~ N(0, (strength L)^-1),   L ~ Wishart(nu, (nu diag(spread))^-1),   nu = d - 1 + degrees

(Murphy 2012, 27.90 with learned mean and covariance; features as in Macau, Simm et al. 2017), X the centred columns
(N, P) of a ``Design``. Given the rows' moments the posterior is conjugate: with G = X'X + diag(ridge) and
k = strength + N,

    m | L ~ N(sum_n w_n / k, (k L)^-1),   beta | L ~ N(B, G^-1 x L^-1),   B = G^-1 X'w,
    L ~ Wishart(nu + N, S^-1),   S = nu diag(spread) + E[w'w] - sum_n w_n sum_n w_n' / k - (X'w)' B.

Ridges, one a block of features, are Gamma(ridge_shape, ridge_rate). Their logarithms are points to variational Bayes.
``evidence`` is the log of what the prior of the rows integrates to over m, beta and L, at expected moments, and the log
density of those points: all of the evidence lower bound that has the rows' prior in it, at the best q(m, beta, L).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg
from scipy.special import gammaln, multigammaln  # pyright: ignore[reportAttributeAccessIssue]

from custom_inference.families.conjugate.wishart import draw_wishart_factor
from custom_inference.families.ratings.features import Design
from custom_inference.families.ratings.incidence import Array

#: The logarithm of the evidence, S, the factor of G and B.
Solved = tuple[float, Array, Array, Array]
#: Ridges move on a grid of this ratio, between these ends.
STEP, LEAST, MOST = 10**0.25, 1e-4, 1e6
#: Standard deviation of a step of Metropolis of the logarithm of a ridge.
REACH = 0.3


@dataclass(frozen=True)
class PriorSettings:
    """strength, degrees (above d - 1), spread: of the prior of m and L; spread is one number for all entries of a row,
    or one for the first and one for all others. ridge: where the blocks' ridges start."""

    strength: float = 1.0
    degrees: float = 1.0
    spread: float | tuple[float, float] = 0.35
    ridge: float = 3.0
    ridge_shape: float = 1.0
    ridge_rate: float = 0.01

    def scale(self, d: int) -> Array:
        """Return nu spread (d,): the diagonal of the inverse of the Wishart's matrix, for rows of d entries."""
        first, rest = np.broadcast_to(self.spread, 2)
        return (self.degrees + d - 1) * np.append(first, np.full(d - 1, rest))


@dataclass(frozen=True)
class RowPrior:
    """q(m, beta, L), or a draw from it.

    degrees, scale (d, d): L ~ Wishart(degrees, scale^-1); precision: E[L], or the draw. coefficient (P + 1, d): m and
    B, or their draws; strength: k; factor (P, P): lower Cholesky factor of G; ridges: one a block; evidence: see above.
    """

    degrees: float
    scale: Array
    precision: Array
    coefficient: Array
    strength: float
    factor: Array
    ridges: Array
    evidence: float

    def means(self, columns: Array | None, rows: int) -> Array:
        """Compute m + F (rows, d) for columns of features (rows, P), those of training or of ``Design.of_new``."""
        mean = np.tile(self.coefficient[0], (rows, 1))
        return mean if columns is None else mean + columns @ self.coefficient[1:]


def prior_given_rows(
    mean: Array, covariance: Array, design: Design | None, settings: PriorSettings, ridges: Array | None = None,
    learn: bool = True, generator: np.random.Generator | None = None,
) -> RowPrior:  # fmt: skip
    """Update q(m, beta, L) given the rows' means (N, d) and the sum of their covariances (d, d).

    ridges: where they stand. learn: whether they move, up or down the grid, to more evidence. generator: of a step of
    Metropolis for each of them in place of that: of draws, m, beta and L integrated out.
    """
    size, d = mean.shape
    degrees, total = settings.degrees + d - 1, mean.sum(0)
    start, strength = settings.scale(d), settings.strength + size
    moments = mean.T @ mean + covariance + np.diag(start) - np.outer(total, total) / strength
    common = multigammaln((degrees + size) / 2, d) - multigammaln(degrees / 2, d) - 0.5 * size * d * np.log(np.pi)
    common += 0.5 * degrees * np.log(start).sum() + 0.5 * d * np.log(settings.strength / strength)
    projected = design.columns.T @ mean if design is not None else np.zeros((0, d))

    def value(ridges: Array) -> Solved:
        scale, factor, solved, found = moments, np.zeros((0, 0)), projected, 0.0
        if design is not None:
            each = ridges[design.block]
            factor = np.linalg.cholesky(design.gram + np.diag(each))
            solved = scipy.linalg.cho_solve((factor, True), projected, check_finite=False)
            scale = moments - projected.T @ solved
            found = 0.5 * d * (np.log(each).sum() - 2 * np.log(np.diag(factor)).sum())
            found += log_prior_of_ridges(ridges, settings)
        return found - 0.5 * (degrees + size) * np.linalg.slogdet(scale)[1], scale, factor, solved

    blocks = len(design.backs) if design is not None else 0
    ridges = np.full(blocks, settings.ridge) if ridges is None else ridges
    best = value(ridges)
    for b in range(blocks) if learn or generator is not None else ():
        if generator is None:
            ridges, best = _climb_ridge(ridges, b, best, value)
        else:
            ridges, best = _walk_ridge(ridges, b, best, value, generator)
    found, scale, factor, solved = best
    scale = 0.5 * (scale + scale.T)
    precision = (degrees + size) * np.linalg.inv(scale)
    coefficient = np.concatenate([total[None] / strength, solved])
    return RowPrior(degrees + size, scale, precision, coefficient, strength, factor, ridges, float(common + found))


def log_prior_of_ridges(ridges: Array, settings: PriorSettings) -> float:
    """Compute the log prior density of the logarithms of the ridges."""
    shape, rate = settings.ridge_shape, settings.ridge_rate
    return float((shape * np.log(rate * ridges) - rate * ridges - gammaln(shape)).sum())


def _climb_ridge(
    ridges: Array, block: int, best: Solved, value: Callable[[Array], Solved], most: int = 4
) -> tuple[Array, Solved]:
    """Move the ridge of one block up or down the grid while the value rises, ``most`` steps."""
    for ratio in (STEP, 1 / STEP):
        gained = False
        for _ in range(most):
            there = ridges.copy()
            there[block] = min(max(there[block] * ratio, LEAST), MOST)
            found = value(there)
            if found[0] <= best[0]:
                break
            ridges, best, gained = there, found, True
        if gained:
            break
    return ridges, best


def _walk_ridge(
    ridges: Array, block: int, best: Solved, value: Callable[[Array], Solved], generator: np.random.Generator
) -> tuple[Array, Solved]:
    """Propose a Normal step of the logarithm of the ridge of one block, accepted as Metropolis does."""
    there = ridges.copy()
    there[block] *= np.exp(REACH * generator.standard_normal())
    found = value(there)
    return (there, found) if np.log(generator.random()) < found[0] - best[0] else (ridges, best)


def draw_prior(
    prior: RowPrior, design: Design | None, settings: PriorSettings, generator: np.random.Generator
) -> RowPrior:
    """Draw L (Bartlett's decomposition), m and beta given L, and the ridges given all of them."""
    d = len(prior.scale)
    root = np.linalg.cholesky(np.linalg.inv(prior.scale)) @ draw_wishart_factor(prior.degrees, d, generator)
    noise = generator.standard_normal(prior.coefficient.shape)
    noise[0] /= np.sqrt(prior.strength)
    if len(prior.factor):
        noise[1:] = scipy.linalg.solve_triangular(prior.factor, noise[1:], lower=True, trans=1, check_finite=False)
    coefficient = prior.coefficient + np.linalg.solve(root.T, noise.T).T
    ridges = prior.ridges
    if design is not None:
        square = np.square(coefficient[1:] @ root).sum(1)
        size, square = (np.bincount(design.block, w, len(ridges)) for w in (np.ones(len(square)), square))
        ridges = generator.gamma(settings.ridge_shape + 0.5 * d * size) / (settings.ridge_rate + 0.5 * square)
    return replace(prior, precision=root @ root.T, coefficient=coefficient, ridges=ridges)


def log_density(prior: RowPrior, design: Design | None, settings: PriorSettings) -> float:
    """Compute log p(m, beta, L, ridges) of a draw."""
    precision, d = prior.precision, len(prior.precision)
    degrees, start = settings.degrees + d - 1, settings.scale(d)
    found = 0.5 * (degrees - d - 1) * np.linalg.slogdet(precision)[1] - 0.5 * start @ np.diag(precision)
    found += 0.5 * degrees * np.log(0.5 * start).sum() - multigammaln(degrees / 2, d)
    found += log_density_of_rows(prior.coefficient[:1], settings.strength * precision)
    if design is not None:
        each = prior.ridges[design.block]
        found += log_density_of_rows(np.sqrt(each)[:, None] * prior.coefficient[1:], precision)
        found += 0.5 * d * np.log(each).sum() + log_prior_of_ridges(prior.ridges, settings)
    return float(found)


def log_density_of_rows(rows: Array, precision: Array) -> float:
    """Compute the log density of rows (N, d) under Normal(0, precision^-1)."""
    size, d = rows.shape
    half = 0.5 * size * (np.linalg.slogdet(precision)[1] - d * np.log(2 * np.pi))
    return float(half - 0.5 * np.sum((rows @ precision) * rows))
