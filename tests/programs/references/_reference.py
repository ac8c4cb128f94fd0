"""From log p(x_n, latents_n | globals) to evidence and posterior means, by sums over finite values and even grids.

An even grid with equal weights (the trapezoidal rule) converges faster than any power of its step for integrands that
are smooth and vanish at both ends, which densities of positive numbers, of probabilities and of points of the simplex
do in the coordinates log v, logit v and log-ratios.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.special import gammaln, logsumexp, xlogy

Array = NDArray[np.float64]
Arrays = Mapping[str, Array]
#: A name of ``_DENSITIES`` and its numbers.
Prior = Sequence[Any]


# ----- densities of priors --------------------------------------------------------------------------------------------


def _dirichlet(value: Array, concentration: ArrayLike) -> Array:
    alpha = np.broadcast_to(np.asarray(concentration, dtype=np.float64), value.shape)
    return (xlogy(alpha - 1, value) - gammaln(alpha)).sum(-1, keepdims=True) + gammaln(alpha.sum(-1, keepdims=True))


_DENSITIES: dict[str, Callable[..., Array]] = {
    "normal": stats.norm.logpdf,
    "beta": stats.beta.logpdf,
    "gamma": lambda value, shape, rate: stats.gamma.logpdf(value, shape, scale=1 / rate),
    "lognormal": lambda value, mean, sd: stats.lognorm.logpdf(value, s=sd, scale=np.exp(mean)),
    "dirichlet": _dirichlet,
    "student": stats.t.logpdf,
    "kumaraswamy": lambda v, a, b: np.log(a * b) + xlogy(a - 1, v) + xlogy(b - 1, 1 - v**a),
}


def log_density(value: Array, prior: Prior, event_axes: int) -> Array:
    """Sum over the last axes of the log prior density of each element (of a Dirichlet of each last axis)."""
    each = _DENSITIES[prior[0]](np.asarray(value, dtype=np.float64), *prior[1:])
    return each.sum(tuple(range(each.ndim - event_axes, each.ndim)))


# ----- the values of latents ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Space:
    """The values (M, ...) that a latent of a row may have, and the logarithm of the weight of each in sums, (M,).

    reported: what posterior means are taken of, (M, K): the values themselves, of a choice its indicators; (M, L, K) of
    L choices.
    grid: of what is integrated over, the axes of its even grid; () of finite values.
    """

    values: Array
    log_weight: Array
    reported: Array
    grid: tuple[int, ...] = ()

    @classmethod
    def finite(cls, values: ArrayLike, reported: ArrayLike | None = None) -> Space:
        values = np.asarray(values, dtype=np.float64)
        shown = values if reported is None else np.asarray(reported, dtype=np.float64)
        return cls(values, np.zeros(len(values)), shown if shown.ndim > 1 else shown[:, None])

    @classmethod
    def continuous(cls, values: Array, log_weight: Array, axes: int = 1) -> Space:
        nodes = round(len(values) ** (1 / axes))
        return cls(values, log_weight, values.reshape(len(values), -1), (nodes,) * axes)

    @property
    def is_finite(self) -> bool:
        return not self.grid

    def coarser(self) -> Space:
        """Every other node of each axis of the grid."""
        if self.is_finite:
            return self
        places = np.arange(len(self.values)).reshape(self.grid)[(slice(None, None, 2),) * len(self.grid)].ravel()
        weight = self.log_weight[places] + len(self.grid) * np.log(2.0)
        return Space.continuous(self.values[places], weight, len(self.grid))


def bit() -> Space:
    return Space.finite([0.0, 1.0])


def bits(number: int) -> Space:
    return Space.finite(list(itertools.product((0.0, 1.0), repeat=number)))


def one_hot(size: int) -> Space:
    return Space.finite(np.eye(size))


def choice(size: int) -> Space:
    """Whole numbers 0..size - 1 that choose one of as many places."""
    return Space.finite(np.arange(size), np.eye(size))


def whole(largest: int) -> Space:
    return Space.finite(np.arange(largest + 1))


def _even(low: float, high: float, nodes: int) -> tuple[Array, float]:
    grid = np.linspace(low, high, nodes)
    return grid, float(np.log(grid[1] - grid[0]))


def real(low: float = -10.0, high: float = 10.0, nodes: int = 401) -> Space:
    grid, step = _even(low, high, nodes)
    return Space.continuous(grid, np.full(nodes, step))


def reals(number: int, low: float = -8.0, high: float = 8.0, nodes: int = 97) -> Space:
    grid, step = _even(low, high, nodes)
    places = np.stack(np.meshgrid(*[grid] * number, indexing="ij"), -1).reshape(-1, number)
    return Space.continuous(places, np.full(len(places), number * step), number)


def positive(low: float = -14.0, high: float = 6.0, nodes: int = 601, *, vector: bool = False) -> Space:
    """On a grid of log v; a number, or a vector of one."""
    grid, step = _even(low, high, nodes)
    return Space.continuous(np.exp(grid)[:, None] if vector else np.exp(grid), grid + step)


def probability(width: float = 40.0, nodes: int = 801) -> Space:
    """On a grid of logit v; dv / du = v (1 - v)."""
    grid, step = _even(-width, width, nodes)
    return Space.continuous(1 / (1 + np.exp(-grid)), step - np.logaddexp(0, grid) - np.logaddexp(0, -grid))


def simplex(size: int, low: float = -26.0, high: float = 26.0, nodes: int = 193) -> Space:
    """On a grid of the log-ratios to the last part; the volume is prod_k v_k."""
    grid, step = _even(low, high, nodes)
    free = np.stack(np.meshgrid(*[grid] * (size - 1), indexing="ij"), -1).reshape(-1, size - 1)
    logits = np.concatenate([free, np.zeros((len(free), 1))], 1)
    logs = logits - logsumexp(logits, axis=1, keepdims=True)
    return Space.continuous(np.exp(logs), logs.sum(1) + (size - 1) * step, size - 1)


# ----- sums over them -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Marginals:
    """Posterior means (N, ...) of every latent, of choices the probabilities of their values; standard deviations."""

    mean: dict[str, Array]
    spread: dict[str, Array]


@dataclass(frozen=True)
class Reference:
    """A program in NumPy.

    rows: log p(x_n, latents_n | globals) from (globals, latents, data), without what ``latents`` holds. The latents are
        arrays (C, N or 1, ...), the data ``x`` (N, D), ``mask`` (N, D) of what is observed, and what is beside them;
        the result broadcasts to (C, N).
    spaces: the values of the latents from (globals, data).
    priors: of the globals, by default. latents: of the latents whose priors are free.
    summed: of finite latents that are too many to enumerate, log p(x_n | globals) (N,) and by latent the posterior
        probabilities (N, M) of its values, from (globals, data), by a recursion.
    """

    rows: Callable[[Arrays, Arrays, Arrays], Array]
    spaces: Callable[[Arrays, Arrays], dict[str, Space]]
    priors: Mapping[str, Prior]
    latents: Mapping[str, Prior] = field(default_factory=dict)
    summed: Callable[[Arrays, Arrays], tuple[Array, dict[str, Array]]] | None = None

    def with_priors(self, priors: Mapping[str, Prior]) -> Reference:
        """The same with other priors of some globals or free latents."""
        here, rows = ({s: p for s, p in priors.items() if s in of} for of in (self.priors, self.latents))
        return replace(self, priors={**self.priors, **here}, latents={**self.latents, **rows})

    def is_finite(self, params: Arrays, data: Arrays) -> bool:
        return all(space.is_finite for space in self.spaces(params, data).values())

    def coarser(self) -> Reference:
        """The same by half the nodes of every integral."""

        def spaces(params: Arrays, data: Arrays) -> dict[str, Space]:
            return {site: space.coarser() for site, space in self.spaces(params, data).items()}

        return replace(self, spaces=spaces)

    def _rows(self, params: Arrays, latents: Arrays, data: Arrays) -> Array:
        """log p(x_n, latents_n | globals), (C, N)."""
        total = self.rows(params, latents, data)
        for site, prior in self.latents.items():
            total = total + log_density(latents[site], prior, latents[site].ndim - 2)
        return np.broadcast_to(total, (total.shape[0], len(data["x"])))

    def log_joint(self, params: Arrays, latents: Arrays, data: Arrays) -> float:
        """log p(globals) + sum_n log p(x_n, latents_n | globals)."""
        rows = self._rows(params, {site: value[None] for site, value in latents.items()}, data)
        return self.log_prior(params) + float(rows.sum())

    def log_prior(self, params: Arrays) -> float:
        """log p(globals)."""
        return sum(float(log_density(params[site], one, np.ndim(params[site]))) for site, one in self.priors.items())

    def table(self, params: Arrays, data: Arrays) -> tuple[dict[str, Array], Array]:
        """What is reported of every latent in every configuration (C, K), and log p(x_n, c) and its weight (C, N)."""
        spaces = self.spaces(params, data)
        index = np.indices([len(space.values) for space in spaces.values()]).reshape(len(spaces), -1)
        chosen = dict(zip(spaces, index, strict=True))
        weight = sum(spaces[site].log_weight[at] for site, at in chosen.items())
        values = {site: spaces[site].values[at][:, None] for site, at in chosen.items()}
        reported = {site: spaces[site].reported[at] for site, at in chosen.items()}
        return reported, self._rows(params, values, data) + np.asarray(weight)[:, None]

    def evidence(self, params: Arrays, data: Arrays) -> Array:
        """log p(x_n | globals), (N,)."""
        if self.summed is not None:
            return self.summed(params, data)[0]
        return logsumexp(self.table(params, data)[1], axis=0)

    def marginals(self, params: Arrays, data: Arrays) -> Marginals:
        if self.summed is not None:
            reported = {site: space.reported for site, space in self.spaces(params, data).items()}
            weight = self.summed(params, data)[1]
        else:
            reported, table = self.table(params, data)
            weight = dict.fromkeys(reported, np.exp(table - logsumexp(table, axis=0)).T)
        mean = {site: np.tensordot(weight[site], value, 1) for site, value in reported.items()}
        square = {site: np.tensordot(weight[site], value**2, 1) for site, value in reported.items()}
        return Marginals(mean, {site: np.sqrt(np.maximum(square[site] - mean[site] ** 2, 0)) for site in reported})


def seen(each: Array, data: Arrays) -> Array:
    """Sum over the entries of each row that are observed, (..., N, D) -> (..., N)."""
    return np.where(data["mask"], each, 0.0).sum(-1)


def chosen(log_probability: Array, x: Array) -> Array:
    """log p of category x (N, D) from log-probabilities (..., N or 1, D, C)."""
    shape = np.broadcast_shapes(log_probability.shape[:-1], x.shape)
    wide = np.broadcast_to(log_probability, (*shape, log_probability.shape[-1]))
    index = np.broadcast_to(x.astype(int), shape)[..., None]
    return np.take_along_axis(wide, index, -1)[..., 0]
