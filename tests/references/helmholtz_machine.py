"""Brute-force references for the Helmholtz machine with binary units (source 004). No project code.

    p(h_0) = prod Bern(sigmoid(b_0)),    p(h_l | h_{l-1}) = prod Bern(sigmoid(b_l + h_{l-1}'W_l)),    x = h_L

    params["bias_l"] = b_l (n_l,),  params["weight_l"] = W_l (n_{l-1}, n_l)

x is (N, n_L), hidden (N, n_0 + ... + n_{L-1}), from the top layer on. ``mask`` (N, n_L) is True where an entry was
observed; the others drop out, for given the hidden layers the visible units are independent.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from tests.references._shared import Array, Maybe, Params, Priors, all_codes, filled, log_priors, observed, summed_out


def depth(params: Params) -> int:
    """L, the number of layers below the top one."""
    return sum(site.startswith("weight_") for site in params)


def layers_of(params: Params, hidden: ArrayLike) -> list[Array]:
    """The hidden layers (..., n_l) from the top."""
    sizes = [len(np.asarray(params[f"bias_{layer}"])) for layer in range(depth(params))]
    return np.split(np.asarray(hidden, dtype=np.float64), np.cumsum(sizes)[:-1], axis=-1)


def _log_bernoulli(p: Array, value: Array) -> Array:
    return np.where(value > 0.5, np.log(p), np.log1p(-p))


def log_hidden(params: Params, hidden: ArrayLike) -> Array:
    """log p(h) of codes (..., H)."""
    parts = layers_of(params, hidden)
    total = _log_bernoulli(expit(np.asarray(params["bias_0"])), parts[0]).sum(-1)
    for layer in range(1, len(parts)):
        p = expit(np.asarray(params[f"bias_{layer}"]) + parts[layer - 1] @ np.asarray(params[f"weight_{layer}"]))
        total = total + _log_bernoulli(p, parts[layer]).sum(-1)
    return total


def visible_probability(params: Params, hidden: ArrayLike) -> Array:
    """P(x_j = 1 | h), (..., D)."""
    last = depth(params)
    above = layers_of(params, hidden)[-1]
    return expit(np.asarray(params[f"bias_{last}"]) + above @ np.asarray(params[f"weight_{last}"]))


def log_joint_table(params: Params, x: ArrayLike, mask: Maybe = None) -> Array:
    """log p(x_n observed, h) for every row and every code, (N, 2^H)."""
    codes = all_codes(sum(len(np.asarray(params[f"bias_{layer}"])) for layer in range(depth(params))))
    p, x, seen = visible_probability(params, codes), filled(x, mask), observed(x, mask)
    each = np.where(x[:, None, :] > 0.5, np.log(p)[None], np.log1p(-p)[None])
    return np.where(seen[:, None, :], each, 0.0).sum(-1) + log_hidden(params, codes)


def log_joint(params: Params, x: ArrayLike, hidden: ArrayLike, mask: Maybe = None, priors: Priors = None) -> float:
    """log p(globals) + sum_n log p(x_n, h_n); a site that ``priors`` leaves out adds 0."""
    p, seen = visible_probability(params, hidden), observed(x, mask)
    rows = np.where(seen, _log_bernoulli(p, filled(x, mask)), 0.0).sum(-1) + log_hidden(params, hidden)
    return float(rows.sum()) + log_priors(params, priors)


log_evidence, posterior = summed_out(log_joint_table)


def posterior_mean(params: Params, x: ArrayLike, mask: Maybe = None) -> Array:
    """E[h | x_n], (N, H)."""
    table = posterior(params, x, mask)
    hidden = sum(len(np.asarray(params[f"bias_{layer}"])) for layer in range(depth(params)))
    return table @ all_codes(hidden)
