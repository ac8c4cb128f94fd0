"""Compiled draws of the topics of tokens, the proportions integrated out: Gibbs sweeps, and particle filters with a
look ahead. Import inside functions only: it loads the compiler.

Topics of P tokens stand one document after the other. A draw weighs (c_k + alpha_k) b_kw in two parts, the topics that
a document has and alpha alone, whose cumulative sums stand ready (Yao, Mimno & McCallum, KDD 2009).
"""

from __future__ import annotations

import math

import numpy as np

from custom_inference.families.common.compiled import Ints, Reals, Words, bare, entry, inlined, part
from custom_inference.families.common.intrinsics import allocate, larger, smaller
from custom_inference.families.common.random import draw_next, draw_place

#: Turns in which what is known about tokens to come is taken back.
_TURNS = 64


@inlined
def _find(sums: Reals, left: float):
    """The first place whose cumulative sum is above a number."""
    low, high = 0, len(sums) - 1
    while low < high:
        middle = (low + high) // 2
        if sums[middle] <= left:
            low = middle + 1
        else:
            high = middle
    return low


@entry
def sweep_topics(topic: Ints, length: Ints, word: Reals, alpha: Reals, often: Reals, rng: Words):
    """Draw the topic of every token in turn given those of all others of its document, in place.

    topic: (C, P) of every chain. length: (N,). word: (P, K) b_kw of the tokens. alpha: (N, K). often: (P, K), to which
    the topics that are drawn are added, or (0, K).
    """
    size, longest, start = alpha.shape[1], larger(1, length.max()), 0
    sums, count = allocate((longest, size)), allocate(size, np.int64)
    present, place = allocate(size, np.int64), allocate(size, np.int64)
    for n in range(len(length)):
        end = start + length[n]
        for t in range(start, end):
            total = 0.0
            for k in range(size):
                total += alpha[n, k] * word[t, k]
                sums[t - start, k] = total
        for c in range(len(topic)):
            count[:] = 0
            for t in range(start, end):
                count[topic[c, t]] += 1
            here = 0
            for k in range(size):
                if count[k] > 0:
                    present[here], place[k] = k, here
                    here += 1
            for t in range(start, end):
                old = topic[c, t]
                count[old] -= 1
                if count[old] == 0:
                    here -= 1
                    present[place[old]], place[present[here]] = present[here], place[old]
                own = 0.0
                for at in range(here):
                    own += count[present[at]] * word[t, present[at]]
                left = draw_next(rng) * (own + sums[t - start, size - 1])
                new = old
                if left < own:
                    for at in range(here):
                        new = present[at]
                        left -= count[new] * word[t, new]
                        if left < 0.0:
                            break
                elif own + sums[t - start, size - 1] > 0.0:
                    new = _find(sums[t - start], left - own)
                topic[c, t] = new
                if count[new] == 0:
                    present[here], place[new] = new, here
                    here += 1
                count[new] += 1
                if len(often):
                    often[t, new] += 1.0
        start = end


@part
def _resample(weight: Reals, number: int, total: float, draws: int, chosen: Ints, rng: Words):
    """Choose so many of the particles by weight, systematically."""
    offset, at, above = draw_next(rng), 0, weight[0]
    for d in range(draws):
        while above < (d + offset) * total / draws and at < number - 1:
            at += 1
            above += weight[at]
        chosen[d] = at


@part
def _resample_others(weight: Reals, number: int, total: float, chosen: Ints, rng: Words):
    """Keep the first particle and choose the others by weight, independently: sorted uniform numbers from above."""
    highest, at, below = 1.0, number - 1, total - weight[number - 1]
    for m in range(number - 1, 0, -1):
        highest *= draw_next(rng) ** (1.0 / m)
        while highest * total < below and at > 0:
            at -= 1
            below -= weight[at]
        chosen[m] = at
    chosen[0] = 0


@inlined
def _lower(t: int, end: int, alpha: Reals, ahead: Reals, most: Ints, level: Reals, ratio: Reals):
    """Let gamma, level (K,), go on from that before token t to that before token ``end``, which may be alpha.

    Sets ratio (K, T + 1) to B(gamma + c) / B(gamma) over what it was, in the part of a topic that occurs c times; what
    all of these have in common is returned as a logarithm.
    """
    mass, new_mass = 0.0, 0.0
    for k in range(len(level)):
        old = level[k]
        for s in range(t, end):
            level[k] -= ahead[s, k]
        level[k] = alpha[k] if end == len(ahead) else larger(alpha[k], level[k])
        mass, new_mass = mass + old, new_mass + level[k]
        ratio[k, 0] = 1.0
        for c in range(most[k]):
            ratio[k, c + 1] = ratio[k, c] * (level[k] + c) / (old + c)
    return math.lgamma(new_mass) - math.lgamma(new_mass + t) - math.lgamma(mass) + math.lgamma(mass + t), new_mass


@inlined
def _take(
    m: int, word: Reals, sums: Reals, own: float, count: Ints, present: Ints, here: Ints, most: Ints, kept: int,
    rng: Words,
):  # fmt: skip
    """Draw the topic of a token for particle m, or take the kept one, and count it."""
    last = sums[len(sums) - 1]
    left, new = draw_next(rng) * (own + last), 0
    if left < own:
        for at in range(here[m]):
            new = present[m, at]
            left -= count[m, new] * word[new]
            if left < 0.0:
                break
    else:
        new = _find(sums, left - own)
    new = kept if kept >= 0 else new
    if count[m, new] == 0:
        present[m, here[m]] = new
        here[m] += 1
    count[m, new] += 1
    most[new] = larger(most[new], count[m, new])
    return new


@inlined
def _choose(number: int, chosen: Ints, count: Ints, present: Ints, here: Ints, room: Ints):
    """Let the particles be the chosen ones."""
    for m in range(number):
        room[0, m, 0] = here[chosen[m]]
        for at in range(here[chosen[m]]):
            k = present[chosen[m], at]
            room[1, m, at], room[2, m, at] = k, count[chosen[m], k]
    for m in range(number):
        for at in range(here[m]):
            count[m, present[m, at]] = 0
        here[m] = room[0, m, 0]
        for at in range(here[m]):
            present[m, at] = room[1, m, at]
            count[m, room[1, m, at]] = room[2, m, at]


@inlined
def _renew(
    weight: Reals, number: int, total: float, kept: bool, chosen: Ints, count: Ints, present: Ints, here: Ints,
    room: Ints, rng: Words,
):  # fmt: skip
    """Choose particles by weight, whose weights are alike from there on."""
    if kept:
        _resample_others(weight, number, total, chosen, rng)
    else:
        _resample(weight, number, total, number, chosen, rng)
    _choose(number, chosen, count, present, here, room)
    for m in range(number):
        weight[m] = 1.0


@part
def _filter_document(
    word: Reals, alpha: Reals, ahead: Reals, number: int, kept: Ints, drawn: Ints, count: Ints, present: Ints,
    here: Ints, room: Ints, weight: Reals, chosen: Ints, trace: Ints, ratio: Reals, level: Reals, sums: Reals,
    most: Ints, rng: Words,
):  # fmt: skip
    """Return the estimate of log p(w) of a document; the arguments are those of :func:`filter_tokens`, of its tokens.

    Particles have topics that are present (M, K), so many (M,), with their counts (M, K). most: (K,) counts at most.
    """
    tokens, size, evidence, before = len(word), len(alpha), 0.0, float(number)
    weight[:number], here[:number], count[:number], most[:] = 1.0, 0, 0, 0
    for k in range(size):
        level[k] = alpha[k]
        for t in range(tokens):
            level[k] += ahead[t, k]
    step, mass = 1 + tokens // _TURNS, 0.0
    for t in range(tokens):
        if t % step == 0:
            change, mass = _lower(t, smaller(tokens, t + step), alpha, ahead, most, level, ratio)
            evidence += change
            for m in range(number):
                for at in range(here[m]):
                    weight[m] *= ratio[present[m, at], count[m, present[m, at]]]
        evidence -= math.log(mass + t)
        total, square, prior = 0.0, 0.0, 0.0
        for k in range(size):
            prior += level[k] * word[t, k]
            sums[k] = prior
        for m in range(number):
            own = 0.0
            for at in range(here[m]):
                own += count[m, present[m, at]] * word[t, present[m, at]]
            weight[m] *= own + prior
            total += weight[m]
            square += weight[m] * weight[m]
            forced = kept[t] if m == 0 and len(kept) else -1
            new = _take(m, word[t], sums, own, count, present, here, most, forced, rng)
            if len(drawn):
                trace[t, m, 0], trace[t, m, 1] = new, m
        if total == 0.0:
            return -math.inf
        evidence += math.log(total / before)
        before = total
        if total * total < 0.5 * number * square and t < tokens - 1:
            _renew(weight, number, total, len(kept) > 0, chosen, count, present, here, room, rng)
            before = float(number)
            for m in range(number if len(drawn) else 0):
                trace[t, m, 1] = chosen[m]
        elif not 1e-200 < total < 1e200:
            for m in range(number):
                weight[m] *= number / total
            before = float(number)
    if len(drawn) and tokens > 0:
        _resample(weight, number, before, len(drawn), chosen, rng)
        _trace_back(chosen, trace, drawn)
    return evidence


@part
def _trace_back(chosen: Ints, trace: Ints, drawn: Ints):
    """Set the topics of all tokens (D, T) that the chosen particles had."""
    for d in range(len(drawn)):
        last = chosen[d]
        for t in range(drawn.shape[1] - 1, -1, -1):
            drawn[d, t] = trace[t, last, 0]
            last = trace[t - 1, last, 1] if t > 0 else last


@bare
def filter_tokens(
    word: Reals, length: Ints, alpha: Reals, ahead: Reals, particles: Ints, kept: Ints, evidence: Reals, drawn: Ints,
    count: Ints, present: Ints, here: Ints, room: Ints, weight: Reals, chosen: Ints, trace: Ints, ratio: Reals,
    level: Reals, sums: Reals, most: Ints, rng: Words,
):  # fmt: skip
    """Set evidence (N,) to unbiased estimates of p(w), as logarithms, by particles that take one token after the other.

    Before token t the particles stand for

        prod_{s < t} b_{z_s w_s}  B(gamma_t + c) / B(gamma_t),    gamma_t = alpha + sum_{s >= t} ahead_s

    c the counts of the topics of what was taken, so that what is to come is known about as if so much of it had been
    seen; at the end gamma is alpha. Gamma goes on in turns, of several tokens in documents of more than ``_TURNS``.
    Particles are resampled where their weights are worth less than half of them.

    word: (P, K) b_kw of the tokens of N documents, alpha (N, K), ahead (P, K), particles (N,), M at most. kept: the
    topics (P,) of a particle that is kept throughout, or (0,). drawn: (D, P), set to the topics of particles drawn at
    the end. Room, of T tokens at most: count, present (M, K), here (M,), room (3, M, K), weight (M,), chosen (M or D,),
    trace (T, M, 2) where there are draws, ratio (K, T + 1), level, sums, most (K,).
    """
    start = 0
    for n in range(len(length)):
        end = start + length[n]
        evidence[n] = _filter_document(
            word[start:end], alpha[n], ahead[start:end], particles[n], kept[start:end], drawn[:, start:end], count,
            present, here, room, weight, chosen, trace, ratio, level, sums, most, rng,
        )  # fmt: skip
        start = end


@entry
def draw_numbers(topic: Ints, length: Ints, word: Reals, alpha: Reals, before: int, seed: Words, found: Reals):
    """Draw the topics of tokens by Gibbs sampling in place, the proportions integrated out; set found (D, N, K) to the
    numbers of tokens of the topics after each of the last D sweeps, of ``before`` + D.

    topic: (P,), -1 of tokens that have none yet. length: (N,). word: (P, K) b_kw of the tokens. alpha: (N, K). The
    random numbers of every document begin at ``seed`` (1,).
    """
    size, start = alpha.shape[1], 0
    mass, count, rng = allocate(size), allocate(size), allocate(1, np.uint64)
    for n in range(len(length)):
        end = start + length[n]
        rng[0] = seed[0]
        count[:] = 0
        for t in range(start, end):
            if topic[t] >= 0:
                count[topic[t]] += 1
        for sweep in range(before + len(found)):
            for t in range(start, end):
                if topic[t] >= 0:
                    count[topic[t]] -= 1
                total = 0.0
                for k in range(size):
                    mass[k] = (count[k] + alpha[n, k]) * word[t, k]
                    total += mass[k]
                topic[t] = draw_place(mass, size, total, rng)
                count[topic[t]] += 1
            if sweep >= before:
                found[sweep - before, n] = count
        start = end
