"""Compiled moves of the topics of tokens at tempered densities. Import inside functions only: it loads the compiler."""

from __future__ import annotations

import math

from custom_inference.families.common.compiled import Ints, Reals, Words, bare, inlined
from custom_inference.families.common.random import draw_uniform


@inlined
def _power(base: float, power: float):
    return math.exp(power * math.log(base)) if base > 0 else (1.0 if power == 0 else 0.0)


@inlined
def _count(topic: Ints, length: int, size: int, count: Reals):
    for k in range(size):
        count[k] = 0.0
    for t in range(length):
        count[topic[t]] += 1.0


@bare
def score_tokens(topic: Ints, length: Ints, word: Reals, begun: Reals, alpha: Reals, count: Reals, both: Reals):
    """Set both (N, M, 2): log p(z, w), the proportions integrated out, and the log density that paths begin at.

    topic: (N, M, T). length: (N,). word, begun (N, T, K): log b_kw of the tokens, and log-probabilities of their topics
    where paths begin. alpha: (N, K).
    """
    size = alpha.shape[1]
    for n in range(topic.shape[0]):
        mass = 0.0
        for k in range(size):
            mass += alpha[n, k]
        constant = math.lgamma(mass) - math.lgamma(mass + length[n]) if length[n] > 0 else 0.0
        for m in range(topic.shape[1]):
            joint, base = constant, 0.0
            for t in range(length[n]):
                joint += word[n, t, topic[n, m, t]]
                base += begun[n, t, topic[n, m, t]]
            _count(topic[n, m], length[n], size, count)
            for k in range(size):
                if count[k] > 0:
                    joint += math.lgamma(alpha[n, k] + count[k]) - math.lgamma(alpha[n, k])
            both[n, m, 0], both[n, m, 1] = joint, base


@bare
def draw_tokens(
    topic: Ints, length: Ints, word: Reals, begun: Reals, alpha: Reals, power: Reals, count: Reals, own: Reals,
    table: Reals, weight: Reals, rng: Words,
):  # fmt: skip
    """Draw the topic of every token in turn given those of all others, in place:

        p(z_t = k | rest) ~ q_tk^(1 - b) [(c_k + alpha_k) b_kw]^b

    power: b (N,). count, own, weight (K,), table (T, K): room. The others are those of :func:`score_tokens`.
    """
    size, state = alpha.shape[1], rng[0]
    for n in range(topic.shape[0]):
        heat = power[n]
        for t in range(length[n]):
            for k in range(size):
                value = heat * word[n, t, k] + ((1.0 - heat) * begun[n, t, k] if heat < 1.0 else 0.0)
                table[t, k] = math.exp(value)
        for m in range(topic.shape[1]):
            _count(topic[n, m], length[n], size, count)
            for k in range(size):
                own[k] = _power(count[k] + alpha[n, k], heat)
            for t in range(length[n]):
                old = topic[n, m, t]
                count[old] -= 1.0
                own[old] = _power(count[old] + alpha[n, old], heat)
                total = 0.0
                for k in range(size):
                    total += own[k] * table[t, k]
                    weight[k] = total
                uniform, state = draw_uniform(state)
                left, new = uniform * total, 0
                while new < size - 1 and weight[new] <= left:
                    new += 1
                topic[n, m, t] = new
                count[new] += 1.0
                own[new] = _power(count[new] + alpha[n, new], heat)
    rng[0] = state
