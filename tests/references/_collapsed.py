"""LDA with proportions and topics integrated out (source 002, section 27.3.4; eqs. 27.36 and 27.37 as mended): the law
of the tokens' topics, all K^T values of it, the Gibbs conditional, CVB0, what maximises over alpha. No project code.

The corpus is a list of documents, each the words of its tokens; q is the same shape with topics for words.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.special import digamma, gammaln, logsumexp

from tests.references._shared import Array, assignments, concentration_of, log_dirichlet_moment

Documents = Sequence[NDArray[np.int_]]


def split(flat: ArrayLike, documents: Documents) -> list[NDArray]:
    """One value for every token of the corpus, document by document."""
    return np.split(np.asarray(flat), np.cumsum([len(words) for words in documents])[:-1])


def tables(documents: Documents, shares: Sequence[ArrayLike], vocabulary_size: int) -> tuple[Array, Array]:
    """(c_ik (N, K), c_kv (K, V)) of soft or one-hot topics (L_i, K) of every token."""
    size = np.shape(shares[0])[1]
    document, word = np.zeros((len(documents), size)), np.zeros((size, vocabulary_size))
    for i, (words, share) in enumerate(zip(documents, shares, strict=True)):
        for v, one in zip(words, np.asarray(share, dtype=np.float64), strict=True):
            document[i] += one
            word[:, v] += one
    return document, word


def one_hot(q: Sequence[ArrayLike], num_topics: int) -> list[Array]:
    return [np.eye(num_topics)[np.asarray(topics, dtype=int)].reshape(-1, num_topics) for topics in q]


def log_joint(
    documents: Documents, q: Sequence[ArrayLike], num_topics: int, vocabulary_size: int, alpha, gamma
) -> float:
    """log p(y, q | alpha, gamma) = log p(q | alpha) + log p(y | q, gamma), eqs. 27.34 and 27.36 with gamma for beta and
    concentrations of any shape."""
    document, word = tables(documents, one_hot(q, num_topics), vocabulary_size)
    return float(log_dirichlet_moment(document, alpha).sum() + log_dirichlet_moment(word, gamma).sum())


def table(documents: Documents, num_topics: int, vocabulary_size: int, alpha, gamma) -> tuple[NDArray, Array]:
    """(q (M, T), log p(y, q) (M,)) over all M = K^T topics of the whole corpus."""
    every = assignments(num_topics, sum(len(words) for words in documents))
    values = [log_joint(documents, split(q, documents), num_topics, vocabulary_size, alpha, gamma) for q in every]
    return every, np.array(values)


def log_evidence(documents: Documents, num_topics: int, vocabulary_size: int, alpha, gamma) -> float:
    """log p(y | alpha, gamma) of the corpus, everything latent summed or integrated out."""
    return float(logsumexp(table(documents, num_topics, vocabulary_size, alpha, gamma)[1]))


def same_topic(q: NDArray, weight: Array) -> Array:
    """P(q_s = q_t | y), (T, T), from a table and its probabilities: the labels of the topics do not matter."""
    return np.einsum("m,mst->st", weight, (q[:, :, None] == q[:, None, :]).astype(float))


def posterior_means(documents: Documents, num_topics: int, vocabulary_size: int, alpha, gamma) -> tuple[Array, Array]:
    """(E[pi_i | y] (N, K), E[b_k | y] (K, V)): eqs. 27.31 and 27.32 averaged over the exact law of q. Under
    exchangeable priors every topic has the same mean, so use an alpha that tells them apart."""
    every, log_weight = table(documents, num_topics, vocabulary_size, alpha, gamma)
    weight = np.exp(log_weight - logsumexp(log_weight))
    proportion, topic = np.zeros((len(documents), num_topics)), np.zeros((num_topics, vocabulary_size))
    for w, q in zip(weight, every, strict=True):
        document, word = tables(documents, one_hot(split(q, documents), num_topics), vocabulary_size)
        document, word = document + np.asarray(alpha), word + np.asarray(gamma)
        proportion += w * document / document.sum(1, keepdims=True)
        topic += w * word / word.sum(1, keepdims=True)
    return proportion, topic


def gibbs_conditional(
    documents: Documents,
    q: Sequence[ArrayLike],
    i: int,
    place: int,
    num_topics: int,
    vocabulary_size: int,
    alpha,
    gamma,
) -> Array:
    """p(q_il = k | all others, y), (K,), by eq. 27.37 with counts that leave this token out::

    (c-_vk + gamma_v) / (c-_k + sum gamma) * (c-_ik + alpha_k) / (L_i - 1 + sum alpha)
    """
    document, word = tables(documents, one_hot(q, num_topics), vocabulary_size)
    k, v = int(np.asarray(q[i])[place]), int(documents[i][place])
    document[i, k] -= 1
    word[k, v] -= 1
    alpha, gamma = concentration_of(alpha, num_topics), concentration_of(gamma, vocabulary_size)
    weight = (word[:, v] + gamma[v]) / (word.sum(1) + gamma.sum())
    weight *= (document[i] + alpha) / (len(documents[i]) - 1 + alpha.sum())
    return weight / weight.sum()


def cvb0_sweep(documents: Documents, shares: Sequence[ArrayLike], vocabulary_size: int, alpha, gamma) -> list[Array]:
    """One sweep of CVB0 (Asuncion, Welling, Smyth & Teh, UAI 2009), token by token: eq. 27.37 with expected counts that
    leave the token's own share out, each token seeing the new shares of those before it."""
    shares = [np.array(share, dtype=np.float64) for share in shares]
    document, word = tables(documents, shares, vocabulary_size)
    alpha = concentration_of(alpha, document.shape[1])
    gamma = concentration_of(gamma, vocabulary_size)
    for i, words in enumerate(documents):
        for place, v in enumerate(words):
            document[i] -= shares[i][place]
            word[:, v] -= shares[i][place]
            new = (word[:, v] + gamma[v]) / (word.sum(1) + gamma.sum()) * (document[i] + alpha)
            shares[i][place] = new / new.sum()
            document[i] += shares[i][place]
            word[:, v] += shares[i][place]
    return shares


# ----- learned concentrations -----------------------------------------------------------------------------------------


def moment_gradient(counts: ArrayLike, alpha: ArrayLike) -> Array:
    """d/d alpha of sum_i log E[prod_k pi_k^c_ik | alpha] (eq. 27.34), (K,): zero where Minka's fixed point stands still
    (Minka, *Estimating a Dirichlet distribution*, 2000, eqs. 55 and 65)::

        g_k = sum_i Psi(a.) - Psi(a. + c_i.) + Psi(a_k + c_ik) - Psi(a_k)
    """
    counts = np.asarray(counts, dtype=np.float64)
    alpha = concentration_of(alpha, counts.shape[1])
    shared = digamma(alpha.sum()) - digamma(alpha.sum() + counts.sum(1))
    return (shared[:, None] + digamma(alpha + counts) - digamma(alpha)).sum(0)


def density_gradient(expected_log: ArrayLike, alpha: ArrayLike) -> Array:
    """d/d alpha of sum_i E[log Dirichlet(pi_i; alpha)] given E[log pi_ik] (N, K): what VB's bound depends on, (K,)."""
    expected_log = np.asarray(expected_log, dtype=np.float64)
    alpha = concentration_of(alpha, expected_log.shape[1])
    return len(expected_log) * (digamma(alpha.sum()) - digamma(alpha)) + expected_log.sum(0)


def best_alpha(objective, start: ArrayLike) -> Array:
    """The alpha > 0 that maximises ``objective``, by a search that knows no gradient."""
    found = minimize(
        lambda log_alpha: -objective(np.exp(log_alpha)),
        np.log(np.asarray(start, dtype=np.float64)),
        method="Nelder-Mead",
        options={"xatol": 1e-10, "fatol": 1e-13, "maxiter": 20000, "maxfev": 20000, "adaptive": True},
    )
    return np.exp(found.x)


def log_moment_of_corpus(counts: ArrayLike, alpha: ArrayLike) -> float:
    """sum_i log E[prod_k pi_k^c_ik | alpha], the objective of ``moment_gradient``."""
    return float(log_dirichlet_moment(counts, alpha).sum())


def log_density_of_corpus(expected_log: ArrayLike, alpha: ArrayLike) -> float:
    """sum_i E[log Dirichlet(pi_i; alpha)], the objective of ``density_gradient``."""
    expected_log = np.asarray(expected_log, dtype=np.float64)
    alpha = concentration_of(alpha, expected_log.shape[1])
    normaliser = gammaln(alpha.sum()) - gammaln(alpha).sum()
    return float(len(expected_log) * normaliser + ((alpha - 1) * expected_log).sum())
