"""Compiled sweeps of the correlated topic model's sampler. Import inside functions only: it loads the compiler.

Given the logits z_n of a document the topics of its tokens are independent of each other but for the words' topics,
which are integrated out (counts without the token itself; Murphy 2012, eqs. 27.52-27.55):

    p(q_il = k | rest) ~ exp(z_ik) (c_vk + gamma_v) / (c_k + sum_v' gamma_v')

Given the counts n_ik of its topics a document's logits have the likelihood exp(n_i' z_i) / (sum_k exp z_ik)^{L_i} under
a Gaussian prior. Each is changed by t given the others, with p_ik = softmax(z_i)_k, P the prior's precision and m_i its
mean:

    log p(t | rest) = n_ik t - L_i log(1 + p_ik (e^t - 1)) - P_kk t^2 / 2 - (P (z_i - m_i))_k t + const

by slice sampling from a bracket that shrinks (Neal, *Slice sampling*, Annals of Statistics 2003): a topic that has no
token in the document moves as far as its prior lets it, whatever the other counts hold fast, and the spread of the
logits settles in few sweeps. Blocks of topics as in ``topics.gibbs_kernels``.
"""

from __future__ import annotations

import math

import numpy as np

from custom_inference.families.common.compiled import Ints, Reals, Words, entry, inlined
from custom_inference.families.common.intrinsics import add_up, allocate, larger
from custom_inference.families.common.random import draw_single
from custom_inference.families.topics.gibbs_kernels import LANES, draw_topic

#: Width of a slice's first bracket, in standard deviations.
_WIDTH = 3.0


@entry(fastmath=True)
def sweep_tokens(
    word: Ints, topic: Ints, start: Ints, share: Reals, gamma: Reals, word_topic: Ints, total: Ints, rng: Words
):
    """One pass over all tokens, in place. A topic of -1 is a token not yet assigned.

    share: (N, padded K) float32, exp z_ik up to a factor of each document, 0 in the padding. The rest as in
    ``topics.gibbs_kernels.sweep``.
    """
    padded = share.shape[1]
    mass, state = np.float32(add_up(gamma)), rng[0]
    weight, inverse = allocate(padded, np.float32), allocate(padded, np.float32)
    cumulative = allocate(1 + padded // LANES, np.float32)
    cumulative[0] = 0
    for k in range(padded):
        inverse[k] = np.float32(1) / (np.float32(total[k]) + mass)
    for i in range(start.shape[0] - 1):
        own = share[i]
        for k in range(padded):
            weight[k] = own[k] * inverse[k]
        for t in range(start[i], start[i + 1]):
            counts, prior, old, left = word_topic[word[t]], gamma[word[t]], np.intp(topic[t]), np.float32(0)
            if old >= 0:
                left = own[old] / (np.float32(total[old] - 1) + mass) * (np.float32(counts[old] - 1) + prior)
            new, state = draw_topic(counts, weight, prior, old, left, cumulative, state)  # pyright: ignore
            if new == old:
                continue
            for place, step in ((old, -1), (new, 1)):
                if place >= 0:
                    counts[place] += step
                    total[place] += step
                    inverse[place] = np.float32(1) / (np.float32(total[place]) + mass)
                    weight[place] = own[place] * inverse[place]
            topic[t] = new
    rng[0] = state


@entry
def move_logits(logit: Reals, mean: Reals, precision: Reals, scale: Reals, count: Reals, length: Reals, rng: Words):
    """One slice move of every logit of every document, in place; what is left has sum 0 in each document.

    logit, mean (N, K): z and its prior mean; precision (K, K), scale (N,): of z under its prior, precision / scale_i,
    0 along equal changes of all logits; count (N, K), length (N,): the tokens of every topic, and in all. A bracket is
    as wide as the conditional would be at the shares n_i / L_i, which the logits do not change.
    """
    size, state = logit.shape[1], rng[0]
    part, slope = allocate(size), allocate(size)
    for i in range(logit.shape[0]):
        own, inverse = logit[i], 1 / scale[i]
        total = _fill_terms(own, mean[i], precision, inverse, part, slope)
        for k in range(size):
            curve, number, share = precision[k, k] * inverse, count[i, k], part[k] / total
            width = _WIDTH / math.sqrt(curve + number * (1 - number / larger(length[i], 1.0)))
            uniform, state = draw_single(state)  # pyright: ignore[reportGeneralTypeIssues]
            level = math.log(uniform + 2.0**-25)
            uniform, state = draw_single(state)  # pyright: ignore[reportGeneralTypeIssues]
            low, step, ratio = -uniform * width, 0.0, 1.0
            high = low + width
            while high - low > 1e-12:
                uniform, state = draw_single(state)  # pyright: ignore[reportGeneralTypeIssues]
                step = low + (high - low) * uniform
                ratio = math.exp(step)
                normal = (number - slope[k] - 0.5 * curve * step) * step
                if normal - length[i] * math.log(1 + share * (ratio - 1)) >= level:
                    break
                if step < 0:
                    low = step
                else:
                    high = step
                step, ratio = 0.0, 1.0
            own[k] += step
            total += part[k] * (ratio - 1)
            part[k] *= ratio
            for j in range(size):
                slope[j] += precision[k, j] * step * inverse
        middle = own.sum() / size
        for k in range(size):
            own[k] -= middle
    rng[0] = state


@inlined
def _fill_terms(own: Reals, mean, precision: Reals, inverse, part, slope):
    """Fill exp z_k, up to a factor, and the slopes of the prior; return the sum of the former."""
    top, total = own[0], 0.0
    for k in range(own.shape[0]):
        top = larger(top, own[k])
    for k in range(own.shape[0]):
        part[k], slope[k] = math.exp(own[k] - top), 0.0
        total += part[k]
        for j in range(own.shape[0]):
            slope[k] += precision[k, j] * (own[j] - mean[j]) * inverse
    return total


@entry(fastmath=True)
def expectation_pass(crow: Ints, column: Ints, count: Reals, topic: Reals, alpha: float, share: Reals, words: Reals):
    """A pass of EM for LDA with the proportions' posterior means (CVB0's), in place; returns the log-likelihood before.

    topic (V, K), share (N, K), normalised: float32. words (V, K), zeros: the expected tokens of the words.
    """
    size = topic.shape[1]
    joint, after, total = allocate(size, np.float32), allocate(size, np.float32), 0.0
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
