"""What the brute-force references share: data tables and log prior densities. Imports no project code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.special import gammaln, xlogy

Array = NDArray[np.float64]
Params = Mapping[str, Array]
#: ("beta", a, b), ("normal", mean, sd), ("lognormal", mean of log, sd of log), ("inverse_gamma", shape, scale),
#: ("gamma", shape, rate),
#: ("dirichlet", concentration), or a bare (a, b) for Beta.
Prior = Sequence


def observed(x: ArrayLike, mask: ArrayLike | None) -> NDArray[np.bool_]:
    """Boolean (N, D): which entries were observed."""
    return np.ones(np.shape(x), dtype=bool) if mask is None else np.asarray(mask, dtype=bool)


def log_density(value: ArrayLike, prior: Prior) -> float:
    """Sum of the log prior density of every element (of every row, for a Dirichlet)."""
    name, *arguments = prior if isinstance(prior[0], str) else ("beta", *prior)
    value = np.asarray(value, dtype=np.float64)
    if name == "dirichlet":
        alpha = np.broadcast_to(np.asarray(arguments[0], dtype=np.float64), value.shape[-1:])
        normaliser = gammaln(alpha.sum()) - gammaln(alpha).sum()
        return float((normaliser + xlogy(alpha - 1.0, value).sum(-1)).sum())
    densities = {
        "beta": lambda a, b: stats.beta.logpdf(value, a, b),
        "normal": lambda m, s: stats.norm.logpdf(value, m, s),
        "lognormal": lambda m, s: stats.lognorm.logpdf(value, s=s, scale=np.exp(m)),
        "inverse_gamma": lambda a, b: stats.invgamma.logpdf(value, a, scale=b),
        "gamma": lambda a, b: stats.gamma.logpdf(value, a, scale=1.0 / np.asarray(b, dtype=np.float64)),
    }
    return float(densities[name](*arguments).sum())


def log_priors(params: Params, priors: Mapping[str, Prior] | None) -> float:
    """Sum over the sites of ``params`` that ``priors`` names; a site left out is flat, adding 0."""
    return sum(log_density(params[site], prior) for site, prior in (priors or {}).items() if site in params)
