"""Brute-force references for the replicated softmax (source 002, eq. 27.129). No project code.

A document y_1 ... y_L of L tokens, of which n_v are word v:

    p(y, h | L) = exp(b'n + L c'h + h'W n) / Z_L,    Z_L the sum over all h and all V^L documents of L tokens
                                                         = sum_h exp(L c'h) (sum_v exp(b_v + (W'h)_v))^L

params["weight"] = W (K, V), params["visible_bias"] = b (V,), params["hidden_bias"] = c (K,). x (N, V) holds the counts
n, hidden is (N, K). Tokens of masked entries are left out of their documents.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logsumexp

from tests.references._shared import Array, Maybe, Params, Priors, all_codes, filled, log_priors, summed_out


def log_partition(params: Params, length: int) -> float:
    """log Z_L, the words summed out first."""
    codes = all_codes(len(params["hidden_bias"]))
    words = logsumexp(np.asarray(params["visible_bias"]) + codes @ np.asarray(params["weight"]), axis=1)
    return float(logsumexp(length * (codes @ np.asarray(params["hidden_bias"]) + words)))


def log_partition_token_by_token(params: Params, length: int) -> float:
    """The same by all V^L documents and all h."""
    weight, bias, own = (np.asarray(params[site]) for site in ("weight", "visible_bias", "hidden_bias"))
    terms = []
    for tokens in itertools.product(range(len(bias)), repeat=length):
        n = np.bincount(np.array(tokens, dtype=int), minlength=len(bias))
        terms += [bias @ n + length * own @ h + h @ weight @ n for h in all_codes(len(own))]
    return float(logsumexp(terms))


def log_joint_table(params: Params, x: ArrayLike, mask: Maybe = None) -> Array:
    """log p(y_n, h) for every document and every code, (N, 2^K)."""
    n, codes = filled(x, mask), all_codes(len(params["hidden_bias"]))
    length = n.sum(1)
    table = (n @ np.asarray(params["visible_bias"]))[:, None] + n @ np.asarray(params["weight"]).T @ codes.T
    table = table + length[:, None] * (codes @ np.asarray(params["hidden_bias"]))
    return table - np.array([log_partition(params, int(size)) for size in length])[:, None]


def log_joint(params: Params, x: ArrayLike, hidden: ArrayLike, mask: Maybe = None, priors: Priors = None) -> float:
    """log p(globals) + sum_n log p(y_n, h_n); a site that ``priors`` leaves out adds 0."""
    table = log_joint_table(params, x, mask)
    place = np.asarray(hidden, dtype=int) @ (2 ** np.arange(np.shape(hidden)[1])[::-1])
    return float(table[np.arange(len(table)), place].sum()) + log_priors(params, priors)


log_evidence, posterior = summed_out(log_joint_table)


def posterior_mean(params: Params, x: ArrayLike, mask: Maybe = None) -> Array:
    """E[h | y_n] = sigmoid(L c + W n), (N, K)."""
    n = filled(x, mask)
    return expit(n.sum(1)[:, None] * np.asarray(params["hidden_bias"]) + n @ np.asarray(params["weight"]).T)
