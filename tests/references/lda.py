"""Brute-force references for latent Dirichlet allocation (source 002, section 27.3). No project code.

    params["topic"] = b (K, V), the local is pi (N, K); see ``_topics`` for the notation and for what is exact.

Here: the log joint, and the mean field posteriors token by token (eqs. 27.38-27.42), in counts (27.43-27.46) and with
the topics integrated too (27.47-27.49), each with its bound written out as E_q[log p] - E_q[log q].
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from scipy.special import gammaln, xlogy

from tests.references import _shared, _topics
from tests.references._shared import Array, Maybe

#: With the topics of the tokens summed out (eqs. 27.18, 27.20 and 27.22).
log_joint = _topics.log_joint
expected_log = _shared.expected_log_dirichlet


def expected_log_density(weight: ArrayLike, concentration: ArrayLike) -> Array:
    """E[log Dirichlet(p; a)] where p ~ Dirichlet(w), over the last axis: with a = w the negative entropy."""
    weight = np.asarray(weight, dtype=np.float64)
    alpha = np.broadcast_to(np.asarray(concentration, dtype=np.float64), weight.shape)
    normaliser = gammaln(alpha.sum(-1)) - gammaln(alpha).sum(-1)
    return normaliser + ((alpha - 1) * expected_log(weight)).sum(-1)


# ----- sequence version, eqs. 27.38-27.42: b given, one document ------------------------------------------------------


def token_update(topic: ArrayLike, words: ArrayLike, weight: ArrayLike) -> Array:
    """q~_lk proportional to b_{k y_l} exp(E[log pi_k]) (eq. 27.39), (L, K), from pi~ (K,)."""
    share = np.asarray(topic, dtype=np.float64)[:, np.asarray(words, dtype=int)].T * np.exp(expected_log(weight))
    return share / share.sum(1, keepdims=True)


def token_bound(topic: ArrayLike, words: ArrayLike, weight: ArrayLike, q: ArrayLike, alpha: ArrayLike) -> float:
    """E_q[log p(pi, q, y | b)] - E_q[log q(pi, q)] under eq. 27.38, for any pi~ (K,) and q~ (L, K)."""
    topic, q = np.asarray(topic, dtype=np.float64), np.asarray(q, dtype=np.float64)
    expected = float(expected_log_density(weight, alpha)) - float(expected_log_density(weight, weight))
    log_pi = expected_log(weight)
    for place, v in enumerate(np.asarray(words, dtype=int)):
        for k in range(len(topic)):
            expected += q[place, k] * log_pi[k] + float(xlogy(q[place, k], topic[k, v]))
            expected -= float(xlogy(q[place, k], q[place, k]))
    return expected


def token_mean_field(
    topic: ArrayLike, words: ArrayLike, alpha: ArrayLike, start: Maybe = None, sweeps: int = 500
) -> tuple[Array, Array]:
    """(pi~ (K,), q~ (L, K)) after sweeps of eqs. 27.39 and 27.41; pi~ starts at ``start``, by default alpha + L / K."""
    size = len(np.asarray(topic))
    alpha = _shared.concentration_of(alpha, size)
    weight = alpha + len(np.asarray(words)) / size if start is None else np.asarray(start, dtype=np.float64)
    q = token_update(topic, words, weight)
    for _ in range(sweeps):
        weight = alpha + q.sum(0)
        q = token_update(topic, words, weight)
    return alpha + q.sum(0), q


def token_topic_counts(x: ArrayLike, q: list[Array], mask: Maybe = None) -> Array:
    """sum_i sum_l q~_ilk [y_il = v], (K, V): what the M step (eq. 27.42) adds to gamma."""
    counts = np.zeros((q[0].shape[1], np.shape(x)[1]))
    for words, shares in zip(_topics.tokens_of(x, mask), q, strict=True):
        for v, share in zip(words, shares, strict=True):
            counts[:, v] += share
    return counts


# ----- count version, eqs. 27.43-27.46: b given -----------------------------------------------------------------------


def count_update(log_topic: ArrayLike, weight: ArrayLike) -> Array:
    """c~_ivk proportional to b_kv exp(E[log pi_ik]) (eq. 27.45), (N, V, K), from pi~ (N, K); eq. 27.48 is the same with
    E[log b_kv] for log b_kv."""
    log_share = np.asarray(log_topic, dtype=np.float64).T[None] + expected_log(weight)[:, None, :]
    share = np.exp(log_share - log_share.max(-1, keepdims=True))
    return share / share.sum(-1, keepdims=True)


def weight_update(x: ArrayLike, c: ArrayLike, alpha: ArrayLike, mask: Maybe = None) -> Array:
    """pi~_ik = alpha_k + sum_v n_iv c~_ivk (eq. 27.44), (N, K)."""
    return np.asarray(alpha, dtype=np.float64) + np.einsum("iv,ivk->ik", _topics.counts_of(x, mask), np.asarray(c))


def topic_counts(x: ArrayLike, c: ArrayLike, mask: Maybe = None) -> Array:
    """sum_i n_iv c~_ivk, (K, V): what eqs. 27.46 and 27.49 (with the n_iv that its print lacks) add to gamma."""
    return np.einsum("iv,ivk->kv", _topics.counts_of(x, mask), np.asarray(c))


def count_mean_field(
    log_topic: ArrayLike, x: ArrayLike, alpha: ArrayLike, start: Maybe = None, mask=None, sweeps: int = 500
) -> tuple[Array, Array]:
    """(pi~ (N, K), c~ (N, V, K)) after sweeps of eqs. 27.44 and 27.45 (or 27.48)."""
    size = len(np.asarray(log_topic))
    length = _topics.counts_of(x, mask).sum(1, keepdims=True)
    weight = _shared.concentration_of(alpha, size) + length / size if start is None else np.asarray(start)
    c = count_update(log_topic, weight)
    for _ in range(sweeps):
        weight = weight_update(x, c, alpha, mask)
        c = count_update(log_topic, weight)
    return weight_update(x, c, alpha, mask), c


def _compositions(total: int, parts: int) -> Array:
    """All ways to write ``total`` as an ordered sum of ``parts`` whole numbers, (M, parts)."""
    if parts == 1:
        return np.array([[total]])
    bars = itertools.combinations(range(total + parts - 1), parts - 1)
    return np.array([np.diff([-1, *b, total + parts - 1]) - 1 for b in bars])


def count_bound(
    log_topic: ArrayLike, x: ArrayLike, weight: ArrayLike, c: ArrayLike, alpha: ArrayLike, mask: Maybe = None
) -> Array:
    """E_q[log p(pi_i, c_i, n_i | b)] - E_q[log q(pi_i, c_i)] under eq. 27.43, (N,), of multinomial PCA::

        p(c_i | pi_i, b) = L_i! / prod_vk c_ivk! prod_vk (pi_ik b_kv)^c_ivk,      q(c_iv) = Mu(n_iv, c~_iv)

    by a sum over every value of the counts c_iv, so the factorials are not cancelled by hand. ``log_topic`` is log b,
    or E[log b] where the topics have a posterior.
    """
    n, log_topic, c = _topics.counts_of(x, mask), np.asarray(log_topic), np.asarray(c)
    total = expected_log_density(weight, alpha) - expected_log_density(weight, weight)
    log_pi = expected_log(weight)
    for i in range(len(n)):
        total[i] += gammaln(n[i].sum() + 1)
        for v in np.flatnonzero(n[i]):
            values = _compositions(int(n[i, v]), len(log_topic))
            log_q = stats.multinomial.logpmf(values, int(n[i, v]), c[i, v])
            log_p = values @ (log_pi[i] + log_topic[:, v]) - gammaln(values + 1).sum(1)
            total[i] += float(np.exp(log_q) @ np.where(log_q > -np.inf, log_p - log_q, 0.0))
    return total


# ----- the topics too, eqs. 27.47-27.49 -------------------------------------------------------------------------------


def vb_terms(
    x: ArrayLike,
    weight: ArrayLike,
    c: ArrayLike,
    topic_weight: ArrayLike,
    alpha: ArrayLike,
    gamma: ArrayLike,
    mask: Maybe = None,
) -> dict[str, float]:
    """Every term of E_q[log p(y, q, pi, b)] - E_q[log q(q, pi, b)] under eq. 27.47, for any pi~ (N, K), c~ (N, V, K)
    and b~ (K, V); tokens in their order. Signs included: the bound on log p(y) is the sum."""
    n, c = _topics.counts_of(x, mask), np.asarray(c, dtype=np.float64)
    log_pi, log_b = expected_log(weight), expected_log(topic_weight)
    return {
        "topics": float(expected_log_density(topic_weight, gamma).sum()),
        "proportions": float(expected_log_density(weight, alpha).sum()),
        "indicators": float(np.einsum("iv,ivk,ik->", n, c, log_pi)),
        "words": float(np.einsum("iv,ivk,kv->", n, c, log_b)),
        "entropy of topics": -float(expected_log_density(topic_weight, topic_weight).sum()),
        "entropy of proportions": -float(expected_log_density(weight, weight).sum()),
        "entropy of indicators": -float((n[:, :, None] * xlogy(c, c)).sum()),
    }


def vb_bound(x, weight, c, topic_weight, alpha, gamma, mask=None) -> float:
    """The sum of ``vb_terms``: at most log p(y | alpha, gamma)."""
    return sum(vb_terms(x, weight, c, topic_weight, alpha, gamma, mask).values())


def vb_iteration(
    x: ArrayLike, topic_weight: ArrayLike, alpha: ArrayLike, gamma: ArrayLike, start=None, mask=None, sweeps: int = 500
) -> tuple[Array, Array, Array]:
    """(pi~, c~, b~) after an E step of that many sweeps and the M step of algorithm 27.1, line 12."""
    weight, c = count_mean_field(expected_log(topic_weight), x, alpha, start, mask, sweeps)
    return weight, c, np.asarray(gamma, dtype=np.float64) + topic_counts(x, c, mask)


def online_update(
    batch: ArrayLike, topic_weight: ArrayLike, alpha, gamma, rate: float, num_documents: int, sweeps: int = 500
) -> Array:
    """b~ after one step of algorithm 27.2 on a minibatch: (1 - rho) b~ + rho (gamma + N / B sum_{i in batch} n c~)."""
    batch = np.asarray(batch, dtype=np.float64)
    _, c = count_mean_field(expected_log(topic_weight), batch, alpha, sweeps=sweeps)
    new = np.asarray(gamma, dtype=np.float64) + num_documents / len(batch) * topic_counts(batch, c)
    return (1 - rate) * np.asarray(topic_weight, dtype=np.float64) + rate * new
