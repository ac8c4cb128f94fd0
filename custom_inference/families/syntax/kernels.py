"""Compiled passes over sentences. Import inside functions only: it loads the compiler.

With e_c(v) the (expected) probability of word v in state c, that of state 0 the mixture sum_k s_ik b_vk of document i,
the forward pass of a sentence keeps the filtered f_t(c) = p(z_t = c | y_1..t) and the scales r_t = p(y_t | y_1..t-1):

    f_t(c) = e_c(y_t) sum_d f_t-1(d) A_dc / r_t,          log p(y) = sum_t log r_t

and the backward pass g_t(d) = sum_c A_dc e_c(y_t+1) g_t+1(c) / r_t+1, g = 1 at the end, gives what is expected:

    p(z_t = c | y) = f_t(c) g_t(c),    p(z_t = d, z_t+1 = c | y) = f_t(d) A_dc e_c(y_t+1) g_t+1(c) / r_t+1.

The tables need not be normalised: those of variational Bayes are exp E[log .].
"""

from __future__ import annotations

import numpy as np

from custom_inference.families.common.compiled import Flags, Ints, Reals, entry, inner
from custom_inference.families.common.intrinsics import allocate, larger


@entry(fastmath=True)
def expected_counts(
    words: tuple[Ints, Ints, Ints],
    tables: tuple[Reals, Reals, Reals, Reals, Reals],
    active: Flags,
    found: tuple[Reals, Reals, Reals, Reals, Reals, Reals],
    state: Reals,
):
    """Add what is expected in every sentence of the documents in ``active`` (N,) to ``found``.

    words: word (T,), start (M + 1,) of sentences, document (M,) of sentences.
    tables: share s (N, K), topic b (V, K), classes (V, S) with e_c(v), of which column 0 counts only where K = 0,
    transition A (S, S), initial (S,).
    found: topic (V, K), class (V, S), moves (S, S), first (S,), usage (N, K), log p (N,): all but the last expected
    numbers of tokens, topics and moves yet to be multiplied by b and A.
    state: (T, S), set to p(z_t = c | y); of no rows where that is not wanted.
    """
    word, start, document = words
    share, topic, _, transition, initial = tables
    size, longest = initial.shape[0], 0
    for m in range(document.shape[0]):
        longest = larger(longest, start[m + 1] - start[m])
    emission, filtered = allocate((longest, size)), allocate((longest, size))
    scale, mixture, back, ahead = allocate(longest), allocate(longest), allocate(size), allocate(size)
    for m in range(document.shape[0]):
        i, sentence, chances = document[m], word[start[m] : start[m + 1]], state[start[m] : start[m + 1]]
        if active[i]:
            found[5][i] += _filter(sentence, share[i], tables, emission, filtered, scale, mixture)
            passed = (emission, filtered, scale, mixture)
            _expect(sentence, share[i], topic, transition, passed, back, ahead, i, found, chances)


@inner(fastmath=True)
def _filter(
    word: Ints, share: Reals, tables: tuple[Reals, Reals, Reals, Reals, Reals], emission: Reals, filtered: Reals,
    scale: Reals, mixture: Reals,
):  # fmt: skip
    """Fill e_c(y_t), f_t, r_t and the mixtures of topics of one sentence; return log p(y)."""
    _, topic, classes, transition, initial = tables
    size, topics, value = initial.shape[0], share.shape[0], 0.0
    for t in range(word.shape[0]):
        for c in range(size):
            emission[t, c] = classes[word[t], c]
            filtered[t, c] = initial[c] if t == 0 else 0.0
        if topics > 0:
            mixed = 0.0
            for k in range(topics):
                mixed += share[k] * topic[word[t], k]
            emission[t, 0] = mixed
            mixture[t] = larger(mixed, 1e-300)
        if t > 0:
            for d in range(size):
                before = filtered[t - 1, d]
                for c in range(size):
                    filtered[t, c] += before * transition[d, c]
        total = 0.0
        for c in range(size):
            filtered[t, c] *= emission[t, c]
            total += filtered[t, c]
        scale[t] = larger(total, 1e-300)
        value += np.log(scale[t])
        for c in range(size):
            filtered[t, c] /= scale[t]
    return value


@inner(fastmath=True)
def _expect(
    word: Ints, share: Reals, topic: Reals, transition: Reals, passed: tuple[Reals, Reals, Reals, Reals], back: Reals,
    ahead: Reals, i: int, found: tuple[Reals, Reals, Reals, Reals, Reals, Reals], state: Reals,
):  # fmt: skip
    """Add what is expected in one sentence of document i, going backward from its end."""
    emission, filtered, scale, mixture = passed
    of_topic, of_class, moves, first, usage, _ = found
    size, topics = back.shape[0], share.shape[0]
    for c in range(size):
        back[c] = 1.0
    for t in range(word.shape[0] - 1, -1, -1):
        v = word[t]
        for c in range(size):
            here = filtered[t, c] * back[c]
            of_class[v, c] += here
            if state.shape[0] > 0:
                state[t, c] = here
        if topics > 0:
            part = filtered[t, 0] * back[0] / mixture[t]
            for k in range(topics):
                each = part * share[k]
                of_topic[v, k] += each
                usage[i, k] += each * topic[v, k]
        if t == 0:
            for c in range(size):
                first[c] += filtered[0, c] * back[c]
            break
        for c in range(size):
            ahead[c] = emission[t, c] * back[c] / scale[t]
        for d in range(size):
            before, total = filtered[t - 1, d], 0.0
            for c in range(size):
                moves[d, c] += before * ahead[c]
                total += transition[d, c] * ahead[c]
            back[d] = total
