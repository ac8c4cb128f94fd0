"""Brute-force references for the binary restricted Boltzmann machine (source 002, section 27.7). No project code.

    p(v, h) = exp(v'b + h'c + h'W v) / Z          v in {0,1}^D, h in {0,1}^K            (eqs. 27.97-27.100)

    params["weight"] = W (K, D),  params["visible_bias"] = b (D,),  params["hidden_bias"] = c (K,)

The source's W is the transpose. x is (N, D) and hidden (N, K). ``mask`` (N, D) is True where an entry was observed;
the others are summed over, for in an undirected model an unobserved entry does not simply drop out. Everything is a sum
over states.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logsumexp

from tests.references._shared import Array, Params, Prior, log_priors, observed


def all_codes(num_bits: int) -> Array:
    """All binary codes, (2^K, K), in counting order: the last bit varies fastest."""
    return np.array(list(itertools.product((0.0, 1.0), repeat=num_bits))).reshape(2**num_bits, num_bits)


def _sites(params: Params) -> tuple[Array, Array, Array]:
    return tuple(np.asarray(params[site], dtype=np.float64) for site in ("weight", "visible_bias", "hidden_bias"))


def energy(params: Params, x: ArrayLike, hidden: ArrayLike) -> Array:
    """E(v, h) = -(h'W v + v'b + h'c) (eq. 27.99), over the last axes of v (..., D) and h (..., K)."""
    weight, visible_bias, hidden_bias = _sites(params)
    x, hidden = np.asarray(x, dtype=np.float64), np.asarray(hidden, dtype=np.float64)
    return -(np.einsum("...k,kd,...d->...", hidden, weight, x) + x @ visible_bias + hidden @ hidden_bias)


def free_energy(params: Params, x: ArrayLike) -> Array:
    """F(v) = -log sum_h exp(-E(v, h)), (...,), by the sum itself (eq. 27.114 with its logarithm)."""
    codes = all_codes(len(params["hidden_bias"]))
    return -logsumexp(-energy(params, np.asarray(x, dtype=np.float64)[..., None, :], codes), axis=-1)


def free_energy_formula(params: Params, x: ArrayLike) -> Array:
    """F(v) = -v'b - sum_k log(1 + exp(c_k + sum_r W_kr v_r)) (eq. 27.117 with its logarithm, sign and biases)."""
    weight, visible_bias, hidden_bias = _sites(params)
    x = np.asarray(x, dtype=np.float64)
    return -(x @ visible_bias) - np.logaddexp(0.0, hidden_bias + x @ weight.T).sum(-1)


# ----- the normaliser, three ways -------------------------------------------------------------------------------------


def log_partition(params: Params) -> float:
    """log Z = log sum_v sum_h exp(-E(v, h)) (eq. 27.100), by 2^(K + D) terms."""
    weight = np.asarray(params["weight"])
    v, h = all_codes(weight.shape[1]), all_codes(weight.shape[0])
    return float(logsumexp(-energy(params, v[:, None, :], h[None, :, :])))


def log_partition_visible(params: Params) -> float:
    """The same as log sum_v exp(-F(v)), 2^D terms."""
    return float(logsumexp(-free_energy_formula(params, all_codes(np.shape(params["weight"])[1]))))


def log_partition_hidden(params: Params) -> float:
    """The same with the visible units summed out, 2^K terms: log sum_h exp(c'h + sum_r log(1 + exp(b_r + W_r'h)))."""
    return float(logsumexp(log_hidden_weight(params)))


def log_hidden_weight(params: Params) -> Array:
    """log Z p(h) of every code, (2^K,)."""
    weight, visible_bias, hidden_bias = _sites(params)
    codes = all_codes(len(hidden_bias))
    return codes @ hidden_bias + np.logaddexp(0.0, visible_bias + codes @ weight).sum(1)


# ----- joint, evidence, posterior -------------------------------------------------------------------------------------


def _completions(row: Array, seen: NDArray[np.bool_]) -> Array:
    """Every v that agrees with the observed entries of one row, (2^missing, D)."""
    every = np.repeat(np.where(seen, row, 0.0)[None], 2 ** int((~seen).sum()), axis=0)
    every[:, ~seen] = all_codes(int((~seen).sum()))
    return every


def log_joint_table(params: Params, x: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """log p(v_n observed, h) for every row and every code, (N, 2^K): the unobserved entries summed over."""
    seen, x = observed(x, mask), np.asarray(x, dtype=np.float64)
    codes = all_codes(len(params["hidden_bias"]))
    rows = [_completions(row, s) for row, s in zip(x, seen, strict=True)]
    table = [logsumexp(-energy(params, row[:, None, :], codes[None]), axis=0) for row in rows]
    return np.array(table).reshape(len(x), len(codes)) - log_partition_hidden(params)


def log_joint(
    params: Params,
    x: ArrayLike,
    hidden: ArrayLike,
    mask: ArrayLike | None = None,
    priors: Mapping[str, Prior] | None = None,
) -> float:
    """log p(globals) + sum_n log p(v_n, h_n); a site that ``priors`` leaves out adds 0."""
    table = log_joint_table(params, x, mask)
    place = np.asarray(hidden, dtype=int) @ (2 ** np.arange(np.shape(hidden)[1])[::-1])
    return float(table[np.arange(len(table)), place].sum()) + log_priors(params, priors)


def log_evidence(params: Params, x: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """log p(v_n), (N,)."""
    return np.asarray(logsumexp(log_joint_table(params, x, mask), axis=1))


def posterior(params: Params, x: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """P(h | v_n), (N, 2^K), columns in the order of ``all_codes``."""
    table = log_joint_table(params, x, mask)
    return np.exp(table - np.asarray(logsumexp(table, axis=1, keepdims=True)))


def posterior_mean(params: Params, x: ArrayLike, mask: ArrayLike | None = None) -> Array:
    """E[h | v_n], (N, K); sigmoid(c + W v_n) where all of v_n was observed (eq. 27.111)."""
    return posterior(params, x, mask) @ all_codes(len(params["hidden_bias"]))


def hidden_probability(params: Params, x: ArrayLike) -> Array:
    """sigmoid(c + W v), (N, K) (eqs. 27.101 and 27.111)."""
    weight, _, hidden_bias = _sites(params)
    return expit(hidden_bias + np.asarray(x, dtype=np.float64) @ weight.T)


def visible_probability(params: Params, hidden: ArrayLike) -> Array:
    """sigmoid(b + W'h), (N, D) (eq. 27.102)."""
    weight, visible_bias, _ = _sites(params)
    return expit(visible_bias + np.asarray(hidden, dtype=np.float64) @ weight)


def log_visible(params: Params) -> Array:
    """log p(v) of every v, (2^D,)."""
    every = -free_energy_formula(params, all_codes(np.shape(params["weight"])[1]))
    return every - logsumexp(every)


# ----- learning -------------------------------------------------------------------------------------------------------


def mean_log_likelihood(params: Params, x: ArrayLike) -> float:
    """1/N sum_n log p(v_n) (eq. 27.118)."""
    return float(-free_energy_formula(params, x).mean() - log_partition_visible(params))


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
    """The slope of :func:`mean_log_likelihood` in every site (eqs. 27.112-27.113 and 27.123)."""
    clamped, free = data_moments(params, x), model_moments(params)
    return {site: clamped[site] - free[site] for site in clamped}
