"""Compiled passes over sentences, of variational Bayes and of the sampler. Import inside functions only: it loads the
compiler.

With e_c(v) the (expected) probability of word v in state c, that of state 0 the mixture sum_k s_ik b_vk of document i,
the forward pass of a sentence keeps the filtered f_t(c) = p(z_t = c | y_1..t) and the scales r_t = p(y_t | y_1..t-1):

    f_t(c) = e_c(y_t) sum_d f_t-1(d) A_dc / r_t,          log p(y) = sum_t log r_t

and the backward pass g_t(d) = sum_c A_dc e_c(y_t+1) g_t+1(c) / r_t+1, g = 1 at the end, gives what is expected:

    p(z_t = c | y) = f_t(c) g_t(c),    p(z_t = d, z_t+1 = c | y) = f_t(d) A_dc e_c(y_t+1) g_t+1(c) / r_t+1.

The tables need not be normalised: those of variational Bayes are exp E[log .].

The sampler integrates everything continuous out. A sentence's states and topics (z, q) are drawn together: with its own
counts taken away, the predictive tables

    e(v | 0) = sum_k (n_ik + alpha_k) / (n_i + alpha.) (n_kv + gamma_kv) / (n_k + gamma_k.),
    e(v | c) = (m_cv + beta_cv) / (m_c + beta_c.),      A_dc = (n_dc + tau_dc) / (n_d + tau_d.)

are held for the whole sentence; forward filtering and backward sampling draws z, and each q given its z. That is the
conditional but for words and moves that occur in the sentence more than once, whose counts would rise on the way: the
draw w is a proposal, accepted with probability min(1, r(z', q') / r(z, q)), r the product over the sentence of the
factors with rising counts over those with held ones (Metropolis and Hastings), which makes it exact.
"""

from __future__ import annotations

import numpy as np

from custom_inference.families.common.compiled import Flags, Ints, Reals, Words, entry, inner
from custom_inference.families.common.intrinsics import allocate, larger
from custom_inference.families.common.random import draw_next, draw_place


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


@entry
def sweep(
    words: tuple[Ints, Ints, Ints], state: Ints, topic: Ints, tables: tuple[Reals, ...], steps: Reals, rng: Words
):
    """One pass over all sentences, in place; returns how many draws were accepted.

    words: word (T,), start (M + 1,), document (M,) of sentences. state, topic: (T,) int32; topic -1 where the state is
    not 0, state -1 where a token has none yet (whole sentences).
    tables: n_kv + gamma_kv (V + 1, K), n_ik + alpha_k (N, K + 1), m_cv + beta_cv (V + 1, S), n_dc + tau_dc (S + 1, S +
    1), float64. The last row or column has the sums; row S of the last table is of the sentences' first states.
    steps: (4,), what a token adds to the tables of words in topics, of words in classes, of moves and of first states:
    1, or 0 where a table has values that the state holds.
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
            log_old = _count_sentence(sentence, i, old_state, old_topic, -1.0, tables, steps)
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
        log_new += _count_sentence(sentence, i, proposed, asked, 1.0, tables, steps)
        if not known or np.log(larger(draw_next(rng), 1e-12)) < log_new - log_old:
            for t in range(length):  # assigning arrays to slices compiles the message of its error: a second
                old_state[t], old_topic[t] = new_state[t], new_topic[t]
            accepted += 1
        else:
            _count_sentence(sentence, i, proposed, asked, -1.0, tables, steps)
            _count_sentence(sentence, i, old_state, old_topic, 1.0, tables, steps)
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
def _count_sentence(
    word: Ints, i: int, state: Ints, topic: Ints, change: float, tables: tuple[Reals, ...], steps: Reals
):
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
            move, of_word = change * steps[3 if before == size else 2], change * steps[1 if z > 0 else 0]
            transition[before, z] += move
            transition[before, size] += move
            if z > 0:
                of_class[v, z] += of_word
                of_class[last, z] += of_word
            else:
                of_topic[v, q] += of_word
                of_topic[last, q] += of_word
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
