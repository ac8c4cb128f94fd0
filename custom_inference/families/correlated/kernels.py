"""Compiled sweeps of the correlated topic model's sampler. Import inside functions only: it loads the compiler.

Given the logits z_n of a document the topics of its tokens are independent of each other but for the words' topics,
which are integrated out (counts without the token itself; 002, eqs. 27.52-27.55):

    p(q_il = k | rest) ~ exp(z_ik) (c_vk + gamma_v) / (c_k + sum_v' gamma_v')

Given the counts n_ik of its topics a document's logits have the likelihood exp(n_i' z_i) / (sum_k exp z_ik)^{L_i} under
a Gaussian prior: elliptical slice moves (Murray, Adams & MacKay, *Elliptical slice sampling*, AISTATS 2010), which have
no step size and never refuse. Blocks of topics as in ``topics.gibbs_kernels``.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from custom_inference.families.topics.gibbs_kernels import LANES, _block_find, _block_sum, _uniform


@njit(nogil=True, cache=True, fastmath=True, error_model="numpy")
def sweep_tokens(word, topic, start, share, gamma, word_topic, total, rng):
    """One pass over all tokens, in place. A topic of -1 is a token not yet assigned.

    share: (N, padded K) float32, exp z_ik up to a factor of each document, 0 in the padding. The rest as in
    ``topics.gibbs_kernels.sweep``.
    """
    padded = share.shape[1]
    mass, state = np.float32(gamma.sum()), rng[0]
    weight, inverse = np.empty(padded, np.float32), np.empty(padded, np.float32)
    cumulative = np.empty(padded // LANES, np.float32)
    for k in range(padded):
        inverse[k] = np.float32(1) / (np.float32(total[k]) + mass)
    for i in range(start.shape[0] - 1):
        own = share[i]
        for k in range(padded):
            weight[k] = own[k] * inverse[k]
        for t in range(start[i], start[i + 1]):
            counts, prior, old = word_topic[word[t]], gamma[word[t]], topic[t]
            if old >= 0:
                counts[old] -= 1
                total[old] -= 1
                inverse[old] = np.float32(1) / (np.float32(total[old]) + mass)
                weight[old] = own[old] * inverse[old]
            summed = np.float32(0)
            for b in range(padded // LANES):
                summed += _block_sum(counts, weight, prior, b * LANES)  # pyright: ignore[reportCallIssue]
                cumulative[b] = summed
            uniform, state = _uniform(state)  # pyright: ignore[reportGeneralTypeIssues]
            left, block = uniform * summed, 0
            for b in range(padded // LANES - 1):
                block += cumulative[b] <= left
            if block > 0:
                left -= cumulative[block - 1]
            found = _block_find(counts, weight, prior, block * LANES, left)  # pyright: ignore[reportCallIssue]
            new = block * LANES + min(found, LANES - 1)
            while weight[new] == 0 and new > 0:  # rounding led into the padding
                new -= 1
            counts[new] += 1
            total[new] += 1
            inverse[new] = np.float32(1) / (np.float32(total[new]) + mass)
            weight[new] = own[new] * inverse[new]
            topic[t] = new
    rng[0] = state


@njit(nogil=True, cache=True, error_model="numpy")
def move_logits(logit, mean, noise, count, length, rng):
    """One elliptical slice move of every document, in place.

    logit, mean (N, K): z and its prior mean; noise (N, K): a draw of z - mean from the prior; count (N, K), length
    (N,): the tokens of every topic, and in all.
    """
    size, state = logit.shape[1], rng[0]
    centred, proposed = np.empty(size), np.empty(size)
    for i in range(logit.shape[0]):
        for k in range(size):
            centred[k] = logit[i, k] - mean[i, k]
        uniform, state = _uniform(state)  # pyright: ignore[reportGeneralTypeIssues]
        level = _log_likelihood(logit[i], count[i], length[i]) + math.log(uniform + 2.0**-25)
        uniform, state = _uniform(state)  # pyright: ignore[reportGeneralTypeIssues]
        angle = 2 * math.pi * uniform
        low, high = angle - 2 * math.pi, angle
        while high - low > 1e-12:
            cosine, sine = math.cos(angle), math.sin(angle)
            for k in range(size):
                proposed[k] = mean[i, k] + centred[k] * cosine + noise[i, k] * sine
            if _log_likelihood(proposed, count[i], length[i]) >= level:
                for k in range(size):  # assigning arrays to slices compiles the message of its error: a second
                    logit[i, k] = proposed[k]
                break
            if angle < 0:
                low = angle
            else:
                high = angle
            uniform, state = _uniform(state)  # pyright: ignore[reportGeneralTypeIssues]
            angle = low + (high - low) * uniform
    rng[0] = state


@njit(inline="always", error_model="numpy")
def _log_likelihood(logit, count, length):
    """n'z - L log sum_k exp z_k."""
    top, linear, total = logit[0], 0.0, 0.0
    for k in range(logit.shape[0]):
        top = max(top, logit[k])
    for k in range(logit.shape[0]):
        linear += count[k] * (logit[k] - top)
        total += math.exp(logit[k] - top)
    return linear - length * math.log(total)


@njit(nogil=True, cache=True, fastmath=True, error_model="numpy")
def expectation_pass(crow, column, count, topic, alpha, share, words):
    """A pass of EM for LDA with the proportions' posterior means (CVB0's), in place; returns the log-likelihood before.

    topic (V, K), share (N, K), normalised: float32. words (V, K), zeros: the expected tokens of the words.
    """
    size = topic.shape[1]
    joint, after, total = np.empty(size, np.float32), np.empty(size, np.float32), 0.0
    for i in range(len(crow) - 1):
        own = share[i]
        after[:] = alpha
        for j in range(crow[i], crow[i + 1]):
            of_word, into = topic[column[j]], words[column[j]]
            summed = np.float32(0)
            for k in range(size):
                joint[k] = own[k] * of_word[k]
                summed += joint[k]
            ratio = count[j] / summed
            for k in range(size):
                part = joint[k] * ratio
                after[k] += part
                into[k] += part
            total += count[j] * math.log(summed)
        summed = np.float32(0)
        for k in range(size):
            summed += after[k]
        for k in range(size):
            own[k] = after[k] / summed
    return total
