"""Compiled sweeps of topic models with responses. Import inside functions only: it loads the compiler."""

from __future__ import annotations

import numpy as np

from custom_inference.families.common.compiled import Ints, Reals, Words, entry, inlined, part
from custom_inference.families.common.intrinsics import add_up, allocate, find_largest, larger
from custom_inference.families.common.random import find_place
from custom_inference.families.topics.gibbs_kernels import LANES, _document


@entry(fastmath=True)
def sweep_weighted(
    word: Ints,
    topic: Ints,
    start: Ints,
    alpha: Reals,
    factor: Reals,
    gamma: Reals,
    word_topic: Ints,
    total: Ints,
    rng: Words,
):
    """Run one sweep as ``gibbs_kernels.sweep`` does, with a factor of its own for every topic in every document:

        p(q_il = k | rest) ~ factor_ik (c_vk + gamma_v) (c_ik + alpha_k) / (c_k + sum_v' gamma_v')

    factor: (N, padded K) float32.
    """
    padded = alpha.shape[0]
    mass = np.float32(add_up(gamma))
    here = allocate(padded, np.int32)
    weight, inverse = allocate(padded, np.float32), allocate(padded, np.float32)
    cumulative = allocate(1 + padded // LANES, np.float32)
    cumulative[0] = 0
    for i in range(start.shape[0] - 1):
        here[:] = 0
        for t in range(start[i], start[i + 1]):
            if topic[t] >= 0:
                here[topic[t]] += 1
        for k in range(padded):
            inverse[k] = factor[i, k] / (np.float32(total[k]) + mass)
            weight[k] = (np.float32(here[k]) + alpha[k]) * inverse[k]
        words, topics = word[start[i] : start[i + 1]], topic[start[i] : start[i + 1]]
        prior = (alpha, alpha, factor[i], gamma, mass)
        _document(words, topics, prior, word_topic, total, rng, here, weight, inverse, cumulative)


@entry(fastmath=True)
def fold_in(
    crow: Ints, column: Ints, count: Reals, topic: Reals, alpha: Reals, found: Reals, steps: int, tolerance: float
):
    """Proportions of documents at given topics, in place: so many steps of g <- alpha + sum_v n_v c_v, where c_vk is
    proportional to b_vk g_k; a document is done when its largest change is below tolerance times its tokens.

    crow, column, count: the documents' words, CSR. topic: b (V, K). found: g (N, K), where to start from.
    """
    size = alpha.shape[0]
    new = allocate(size, topic.dtype)
    for i in range(crow.shape[0] - 1):
        tokens = np.float32(0)
        for at in range(crow[i], crow[i + 1]):
            tokens += count[at]
        for _ in range(steps):
            new[:] = 0
            for at in range(crow[i], crow[i + 1]):
                b = topic[column[at]]
                total = np.float32(0)
                for k in range(size):
                    total += b[k] * found[i, k]
                ratio = count[at] / larger(total, np.float32(1e-30))
                for k in range(size):
                    new[k] += ratio * b[k]
            change = np.float32(0)
            for k in range(size):
                after = alpha[k] + found[i, k] * new[k]
                change = larger(change, abs(after - found[i, k]))
                found[i, k] = after
            if change <= tolerance * tokens:
                break


#: Kinds of responses, as ``sweep_responses`` counts them.
KINDS = ("binary", "real", "counts", "categorical")


@inlined
def _log_response(kind: int, y: Reals, eta: Reals, scale: Reals):
    """Compute sum_r log p(y_r | eta_r), up to what does not depend on eta; NaN is unknown. y: (R,). eta: (D,)."""
    total = 0.0
    if kind == 3:
        if y[0] != y[0]:
            return 0.0
        most = find_largest(eta)
        norm = 0.0
        for c in range(eta.shape[0]):
            norm += np.exp(eta[c] - most)
        return eta[int(y[0])] - most - np.log(norm)
    for r in range(y.shape[0]):
        if y[r] != y[r]:
            continue
        if kind == 0:
            s = eta[r] if y[r] > 0.5 else -eta[r]
            total -= np.log1p(np.exp(-s)) if s > -30 else -s
        elif kind == 1:
            total -= 0.5 * ((y[r] - eta[r]) / scale[r]) ** 2
        else:
            total += y[r] * eta[r] - np.exp(eta[r])
    return total


@part
def _count_topics(topics: Ints, weight: Reals, length: int, here: Reals, eta: Reals):
    """Count the tokens of a document in every topic, here (K,), and compute eta = W qbar (D,), in place."""
    here[:] = 0
    eta[:] = 0
    for t in range(topics.shape[0]):
        if topics[t] >= 0:
            here[topics[t]] += 1
            for r in range(eta.shape[0]):
                eta[r] += weight[r, topics[t]] / length


@part
def _put(
    k: int,
    v: int,
    by: int,
    counted: bool,
    here: Reals,
    word_topic: Ints,
    total: Ints,
    eta: Reals,
    weight: Reals,
    length: int,
):
    """Add a token, by = 1, or take one away, by = -1, of word v in topic k, in place; words only where they are
    counted."""
    here[k] += by
    if counted:
        word_topic[v, k] += by
        total[k] += by
    for r in range(eta.shape[0]):
        eta[r] += by * weight[r, k] / length


@part
def _score_responses(
    kind: int, y: Reals, eta: Reals, weight: Reals, length: int, scale: Reals, moved: Reals, log_mass: Reals
):
    """Compute log p(y | eta with one token more in topic k) of every k, in place (K,), and return the largest of
    them."""
    most = -np.inf
    for k in range(log_mass.shape[0]):
        for r in range(eta.shape[0]):
            moved[r] = eta[r] + weight[r, k] / length
        log_mass[k] = _log_response(kind, y, moved, scale)
        most = larger(most, log_mass[k])
    return most


@entry
def sweep_responses(
    word: Ints,
    topic: Ints,
    start: Ints,
    alpha: Reals,
    gamma: Reals,
    word_topic: Ints,
    total: Ints,
    given: Reals,
    kind: int,
    response: Reals,
    weight: Reals,
    scale: Reals,
    rng: Words,
):
    """One pass over all tokens of supervised LDA, in place; the conditional is LDA's times the response's likelihood:

        p(q_il = k | rest) ~ (c_vk + gamma_v) (c_ik + alpha_k) / (c_k + sum gamma) p(y_i | W qbar_i with q_il = k)

    The first factor is b_kv where topics are ``given`` (V, K); with no rows it is as above. response: (N, R), NaN where
    unknown. weight: (D, K). scale: (R,). word_topic: (V, padded K), total: (padded K,), as in ``gibbs_kernels.sweep``.
    A topic of -1 is a token not yet assigned.
    """
    size, state, mass, fixed = alpha.shape[0], rng[0], add_up(gamma), given.shape[0] > 0
    here, cumulative, log_mass = allocate(size), allocate(size), allocate(size)
    eta, moved, most = allocate(weight.shape[0]), allocate(weight.shape[0]), 0.0
    for i in range(start.shape[0] - 1):
        length = larger(start[i + 1] - start[i], 1)
        _count_topics(topic[start[i] : start[i + 1]], weight, length, here, eta)
        known = not np.isnan(response[i]).all()
        for t in range(start[i], start[i + 1]):
            v = word[t]
            if topic[t] >= 0:
                _put(topic[t], v, -1, not fixed, here, word_topic, total, eta, weight, length)
            if known:
                most = _score_responses(kind, response[i], eta, weight, length, scale, moved, log_mass)
            summed = 0.0
            for k in range(size):
                of_word = given[v, k] if fixed else (word_topic[v, k] + gamma[v]) / (total[k] + mass)
                each = of_word * (here[k] + alpha[k])
                summed += each * np.exp(log_mass[k] - most) if known else each
                cumulative[k] = summed
            new, state = find_place(cumulative, size, state)
            _put(new, v, 1, not fixed, here, word_topic, total, eta, weight, length)
            topic[t] = new
    rng[0] = state
