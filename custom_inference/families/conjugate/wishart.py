"""Inverse Wishart priors of covariances; statistics are a number of rows and their scatter about known means."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.special import multigammaln  # pyright: ignore[reportAttributeAccessIssue]
from torch import Tensor

from custom_inference.families.conjugate.pair import conjugate_prior
from ppl_models import Model
from ppl_models import distributions as dist

Array = NDArray[np.float64]


@dataclass(frozen=True)
class InverseWishart:
    """InverseWishart(df, scale) of S (K, K): density proportional to |S|^-(df + K + 1)/2 exp(-tr(scale S^-1) / 2).

    df, scale: tensors, or a number and an array; ``log_density`` and ``draw`` take the latter.
    """

    df: Any
    scale: Any

    @classmethod
    def of(cls, model: Model, site: str, like: Tensor) -> Self:
        """Read the prior. Raises PriorError for any other prior."""
        prior = conjugate_prior(model, site, dist.InverseWishart)
        return cls(prior.df.to(like), prior.scale.to(like))

    def update(self, rows: Any, scatter: Any) -> Self:
        """Return the posterior."""
        return type(self)(self.df + rows, self.scale + scatter)

    @property
    def mode(self) -> Any:
        return self.scale / (self.df + len(self.scale) + 1)

    @property
    def mean(self) -> Any:
        """The mean, or the mode where there is none."""
        freedom = self.df - len(self.scale) - 1
        return self.scale / freedom if freedom > 0 else self.mode

    def log_density(self, value: Array) -> float:
        size, half = len(self.scale), self.df / 2
        log_det, own = np.linalg.slogdet(value)[1], np.linalg.slogdet(self.scale)[1]
        trace = np.trace(np.linalg.solve(value, self.scale))
        normaliser = half * (size * math.log(2) - own) + multigammaln(half, size)
        return float(-normaliser - (half + (size + 1) / 2) * log_det - trace / 2)

    def draw(self, generator: np.random.Generator) -> Array:
        """Draw C W^-1 C', W ~ Wishart(df, I) and scale = C C'."""
        lower = draw_wishart_factor(self.df, len(self.scale), generator)
        half = solve_triangular(lower, np.linalg.cholesky(self.scale).T, lower=True)
        return half.T @ half


def draw_wishart_factor(df: float, size: int, generator: np.random.Generator) -> Array:
    """Draw lower triangular A with A A' ~ Wishart(df, I), by Bartlett's decomposition."""
    lower = np.tril(generator.standard_normal((size, size)), -1)
    return lower + np.diag(np.sqrt(generator.chisquare(df - np.arange(size))))
