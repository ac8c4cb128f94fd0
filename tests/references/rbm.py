"""Brute-force references for the binary restricted Boltzmann machine (source 002, section 27.7). No project code.

    p(v, h) = exp(v'b + h'c + h'W v) / Z          v in {0,1}^D, h in {0,1}^K            (eqs. 27.97-27.100)

    params["weight"] = W (K, D),  params["visible_bias"] = b (D,),  params["hidden_bias"] = c (K,)

The source's W is the transpose. x is (N, D) and hidden (N, K). ``mask`` (N, D) is True where an entry was observed;
the others are summed over, for in an undirected model an unobserved entry does not simply drop out. Everything is a sum
over states.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logsumexp

from tests.references._shared import Array, Maybe, Params, Priors, all_codes, log_priors, observed, summed_out


def _sites(params: Params) -> tuple[Array, Array, Array]:
    return tuple(np.asarray(params[site], dtype=np.float64) for site in ("weight", "visible_bias", "hidden_bias"))


def energy(params: Params, x: ArrayLike, hidden: ArrayLike) -> Array:
    """E(v, h) = -(h'W v + v'b + h'c) (eq. 27.99), over the last axes of v (..., D) and h (..., K)."""
    weight, visible_bias, hidden_bias = _sites(params)
    x, hidden = np.asarray(x, dtype=np.float64), np.asarray(hidden, dtype=np.float64)
    return -(np.einsum("...k,kd,...d->...", hidden, weight, x) + x @ visible_bias + hidden @ hidden_bias)


def log_partition(params: Params) -> float:
    """log Z (eq. 27.100) with the visible units summed out: log sum_h exp(c'h + sum_r log(1 + exp(b_r + W_r'h)))."""
    weight, visible_bias, hidden_bias = _sites(params)
    codes = all_codes(len(hidden_bias))
    return float(logsumexp(codes @ hidden_bias + np.logaddexp(0.0, visible_bias + codes @ weight).sum(1)))


# ----- joint, evidence, posterior -------------------------------------------------------------------------------------


def _completions(row: Array, seen: NDArray[np.bool_]) -> Array:
    """Every v that agrees with the observed entries of one row, (2^missing, D)."""
    every = np.repeat(np.where(seen, row, 0.0)[None], 2 ** int((~seen).sum()), axis=0)
    every[:, ~seen] = all_codes(int((~seen).sum()))
    return every


def log_joint_table(params: Params, x: ArrayLike, mask: Maybe = None) -> Array:
    """log p(v_n observed, h) for every row and every code, (N, 2^K): the unobserved entries summed over."""
    seen, x = observed(x, mask), np.asarray(x, dtype=np.float64)
    codes = all_codes(len(params["hidden_bias"]))
    rows = [_completions(row, s) for row, s in zip(x, seen, strict=True)]
    table = [logsumexp(-energy(params, row[:, None, :], codes[None]), axis=0) for row in rows]
    return np.array(table).reshape(len(x), len(codes)) - log_partition(params)


def log_joint(params: Params, x: ArrayLike, hidden: ArrayLike, mask: Maybe = None, priors: Priors = None) -> float:
    """log p(globals) + sum_n log p(v_n, h_n); a site that ``priors`` leaves out adds 0."""
    table = log_joint_table(params, x, mask)
    place = np.asarray(hidden, dtype=int) @ (2 ** np.arange(np.shape(hidden)[1])[::-1])
    return float(table[np.arange(len(table)), place].sum()) + log_priors(params, priors)


log_evidence, posterior = summed_out(log_joint_table)


def posterior_mean(params: Params, x: ArrayLike, mask: Maybe = None) -> Array:
    """E[h | v_n], (N, K); sigmoid(c + W v_n) where all of v_n was observed (eq. 27.111)."""
    return posterior(params, x, mask) @ all_codes(len(params["hidden_bias"]))


def hidden_probability(params: Params, x: ArrayLike) -> Array:
    """sigmoid(c + W v), (N, K) (eqs. 27.101 and 27.111)."""
    weight, _, hidden_bias = _sites(params)
    return expit(hidden_bias + np.asarray(x, dtype=np.float64) @ weight.T)


# ----- learning -------------------------------------------------------------------------------------------------------


def model_moments(params: Params) -> dict[str, Array]:
    """E[h v'] (K, D), E[v] (D,), E[h] (K,) under the model, by 2^(K + D) terms: the unclamped phase."""
    weight = np.asarray(params["weight"])
    v, h = all_codes(weight.shape[1]), all_codes(weight.shape[0])
    table = -energy(params, v[:, None, :], h[None, :, :])
    p = np.exp(table - logsumexp(table))
    return {"weight": h.T @ p.T @ v, "visible_bias": p.sum(1) @ v, "hidden_bias": p.sum(0) @ h}


def data_moments(params: Params, x: ArrayLike) -> dict[str, Array]:
    """The same with v clamped to the rows: 1/N sum_n E[h | v_n] v_n' and so on."""
    x, h = np.asarray(x, dtype=np.float64), hidden_probability(params, x)
    return {"weight": h.T @ x / len(x), "visible_bias": x.mean(0), "hidden_bias": h.mean(0)}


def gradient(params: Params, x: ArrayLike) -> dict[str, Array]:
    """The slope of 1/N sum_n log p(v_n) (eq. 27.118) in every site (eqs. 27.112-27.113 and 27.123)."""
    clamped, free = data_moments(params, x), model_moments(params)
    return {site: clamped[site] - free[site] for site in clamped}
