"""The compiled sweep of the sampler of topics and syntax. Import inside functions only: it loads the compiler.

Everything continuous is integrated out. A sentence's states and topics (z, q) are drawn together: with its own counts
taken away, the predictive tables

    e(v | 0) = sum_k (n_ik + alpha_k) / (n_i + alpha.) (n_kv + gamma_kv) / (n_k + gamma_k.),
    e(v | c) = (m_cv + beta_cv) / (m_c + beta_c.),      A_dc = (n_dc + tau_dc) / (n_d + tau_d.)

are held for the whole sentence; forward filtering and backward sampling draws z, and each q given its z. That is the
conditional but for words and moves that occur in the sentence more than once, whose counts would rise on the way: the
draw w is a proposal, accepted with probability min(1, r(z', q') / r(z, q)), r the product over the sentence of the
factors with rising counts over those with held ones (Metropolis and Hastings), which makes it exact.
"""

from __future__ import annotations

import numpy as np

from custom_inference.families.common.compiled import Ints, Reals, Words, entry, inner
from custom_inference.families.common.intrinsics import allocate, larger
from custom_inference.families.common.random import draw_next, draw_place


@entry
def sweep(words: tuple[Ints, Ints, Ints], state: Ints, topic: Ints, tables: tuple[Reals, ...], rng: Words):
    """One pass over all sentences, in place; returns how many draws were accepted.

    words: word (T,), start (M + 1,), document (M,) of sentences. state, topic: (T,) int32; topic -1 where the state is
    not 0, state -1 where a token has none yet (whole sentences).
    tables: n_kv + gamma_kv (V + 1, K), n_ik + alpha_k (N, K + 1), m_cv + beta_cv (V + 1, S), n_dc + tau_dc (S + 1, S +
    1), float64. The last row or column has the sums; row S of the last table is of the sentences' first states.
    rng: (1,) uint64.
    """
    word, start, document = words
    size, topics, longest, accepted = tables[2].shape[1], tables[0].shape[1], 0, 0
    for m in range(document.shape[0]):
        longest = larger(longest, start[m + 1] - start[m])
    emission, filtered = allocate((longest, size)), allocate((longest, size))
    moves, chance = allocate((size + 1, size)), allocate(larger(size, topics))
    new_state, new_topic = allocate(longest, np.int32), allocate(longest, np.int32)
    for m in range(document.shape[0]):
        i, sentence, length = document[m], word[start[m] : start[m + 1]], start[m + 1] - start[m]
        old_state, old_topic = state[start[m] : start[m + 1]], topic[start[m] : start[m + 1]]
        known, log_old = old_state[0] >= 0, 0.0
        if known:
            log_old = _count_sentence(sentence, i, old_state, old_topic, -1.0, tables)
        _predictive(sentence, i, tables, emission, moves)
        for t in range(length):
            total = 0.0
            for c in range(size):
                value = moves[size, c] if t == 0 else 0.0
                if t > 0:
                    for d in range(size):
                        value += filtered[t - 1, d] * moves[d, c]
                filtered[t, c] = value * emission[t, c]
                total += filtered[t, c]
            for c in range(size):
                filtered[t, c] /= larger(total, 1e-300)
        for t in range(length - 1, -1, -1):
            for c in range(size):
                chance[c] = filtered[t, c] if t == length - 1 else filtered[t, c] * moves[c, new_state[t + 1]]
            new_state[t] = _draw(chance, size, rng)
            new_topic[t] = -1
            if new_state[t] == 0:
                for k in range(topics):
                    chance[k] = _of_word(sentence[t], i, np.int32(0), np.int32(k), tables)
                new_topic[t] = _draw(chance, topics, rng)
        proposed, asked = new_state[:length], new_topic[:length]
        log_new = -_score_sentence(sentence, i, proposed, asked, tables, emission, moves)
        if known:
            log_old -= _score_sentence(sentence, i, old_state, old_topic, tables, emission, moves)
        log_new += _count_sentence(sentence, i, proposed, asked, 1.0, tables)
        if not known or np.log(larger(draw_next(rng), 1e-12)) < log_new - log_old:
            for t in range(length):  # assigning arrays to slices compiles the message of its error: a second
                old_state[t], old_topic[t] = new_state[t], new_topic[t]
            accepted += 1
        else:
            _count_sentence(sentence, i, proposed, asked, -1.0, tables)
            _count_sentence(sentence, i, old_state, old_topic, 1.0, tables)
    return accepted


@inner
def _draw(chance: Reals, size: int, rng: Words):
    """Draw a place by weights that need not add up to 1."""
    total = 0.0
    for c in range(size):
        total += chance[c]
    return draw_place(chance, size, total, rng)


@inner
def _predictive(word: Ints, i: int, tables: tuple[Reals, ...], emission: Reals, moves: Reals):
    """The predictive tables of a sentence without its own counts; row S of the moves is of its first state."""
    of_topic, of_class, transition = tables[0], tables[2], tables[3]
    size, topics, last = of_class.shape[1], of_topic.shape[1], of_topic.shape[0] - 1
    for d in range(size + 1):
        for c in range(size):
            moves[d, c] = transition[d, c] / transition[d, size]
    for t in range(word.shape[0]):
        value = 0.0
        for k in range(topics):
            value += _of_word(word[t], i, np.int32(0), np.int32(k), tables)
        emission[t, 0] = value
        for c in range(1, size):
            emission[t, c] = of_class[word[t], c] / of_class[last, c]


@inner
def _of_word(v: int, i: int, z: np.integer, q: np.integer, tables: tuple[Reals, ...]):
    """The predictive probability of a word's topic and of the word in its state, at the present counts."""
    of_topic, share, of_class = tables[0], tables[1], tables[2]
    if z > 0:
        return of_class[v, z] / of_class[of_class.shape[0] - 1, z]
    part = share[i, q] / share[i, share.shape[1] - 1]
    return part * of_topic[v, q] / of_topic[of_topic.shape[0] - 1, q]


@inner
def _count_sentence(word: Ints, i: int, state: Ints, topic: Ints, change: float, tables: tuple[Reals, ...]):
    """Add a sentence, first token first (change 1), or take it away, last token first (-1); return the log of its
    factors with rising counts."""
    of_topic, share, of_class, transition = tables
    last, topics, size = of_topic.shape[0] - 1, of_topic.shape[1], of_class.shape[1]
    found, length = 0.0, word.shape[0]
    for place in range(length):
        t = place if change > 0 else length - 1 - place
        v, z, q, before = word[t], int(state[t]), int(topic[t]), state[t - 1] if t > 0 else size
        for adding in range(2):
            if (change > 0) == (adding == 0):  # the factor is of the counts without the token
                found += np.log(_of_word(v, i, z, q, tables) * transition[before, z] / transition[before, size])
                continue
            transition[before, z] += change
            transition[before, size] += change
            if z > 0:
                of_class[v, z] += change
                of_class[last, z] += change
            else:
                of_topic[v, q] += change
                of_topic[last, q] += change
                share[i, q] += change
                share[i, topics] += change
    return found


@inner
def _score_sentence(
    word: Ints, i: int, state: Ints, topic: Ints, tables: tuple[Reals, ...], emission: Reals, moves: Reals
):
    """Compute the log of a sentence's factors with the counts held as they are without it."""
    found = 0.0
    for t in range(word.shape[0]):
        z, before = state[t], state[t - 1] if t > 0 else moves.shape[0] - 1
        of_word = emission[t, z] if z > 0 else _of_word(word[t], i, np.int32(0), topic[t], tables)
        found += np.log(of_word * moves[before, z])
    return found
