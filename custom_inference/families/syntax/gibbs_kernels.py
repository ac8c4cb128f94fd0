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
from numba import njit

from custom_inference.families.mixtures.gibbs_kernels import _uniform


@njit(nogil=True, cache=True, error_model="numpy")
def sweep(words, state, topic, counts, priors, sums, rng):
    """One pass over all sentences, in place; returns how many draws were accepted.

    words: word (T,), start (M + 1,), document (M,) of sentences. state, topic: (T,) int32; topic -1 where the state is
    not 0, state -1 where a token has none yet (whole sentences).
    counts, float64: word_topic (V, K), topic_total (K,), document_topic (N, K), document_total (N,), word_class (V, S),
    class_total (S,), moves (S, S), move_total (S,), first (S,), sentences (1,).
    priors: alpha (K,), gamma (V, K), beta (V, S), tau (S, S), iota (S,); sums: their sums, gamma (K,), beta (S,),
    tau (S,), and [alpha, iota] (2,). rng: (1,) uint64.
    """
    word, start, document = words
    size, topics, longest, accepted = priors[4].shape[0], priors[0].shape[0], 0, 0
    for m in range(document.shape[0]):
        longest = max(longest, start[m + 1] - start[m])
    emission, filtered = np.empty((longest, size)), np.empty((longest, size))
    moves, chance = np.empty((size, size)), np.empty(max(size, topics))
    new_state, new_topic = np.empty(longest, np.int32), np.empty(longest, np.int32)
    for m in range(document.shape[0]):
        i, begin, end = document[m], start[m], start[m + 1]
        length = end - begin
        old_state, old_topic = state[begin:end].copy(), topic[begin:end].copy()
        known, log_old = old_state[0] >= 0, 0.0
        if known:
            log_old = _counted(word[begin:end], i, old_state, old_topic, -1.0, counts, priors, sums)
        _tables(word[begin:end], i, counts, priors, sums, emission, moves)
        for t in range(length):
            total = 0.0
            for c in range(size):
                value = 0.0
                if t == 0:
                    value = (counts[8][c] + priors[4][c]) / (counts[9][0] + sums[3][1])
                else:
                    for d in range(size):
                        value += filtered[t - 1, d] * moves[d, c]
                filtered[t, c] = value * emission[t, c]
                total += filtered[t, c]
            for c in range(size):
                filtered[t, c] /= max(total, 1e-300)
        for t in range(length - 1, -1, -1):
            for c in range(size):
                chance[c] = filtered[t, c] if t == length - 1 else filtered[t, c] * moves[c, new_state[t + 1]]
            new_state[t] = _drawn(chance, size, rng)
            new_topic[t] = -1
            if new_state[t] == 0:
                v = word[begin + t]
                for k in range(topics):
                    chance[k] = (counts[2][i, k] + priors[0][k]) * (counts[0][v, k] + priors[1][v, k])
                    chance[k] /= counts[1][k] + sums[0][k]
                new_topic[t] = _drawn(chance, topics, rng)
        sentence, proposed, asked = word[begin:end], new_state[:length], new_topic[:length]
        log_new = -_held(sentence, i, proposed, asked, counts, priors, sums, emission, moves)
        if known:
            log_old -= _held(sentence, i, old_state, old_topic, counts, priors, sums, emission, moves)
        log_new += _counted(sentence, i, proposed, asked, 1.0, counts, priors, sums)
        uniform, rng[0] = _uniform(rng[0])
        if not known or np.log(max(uniform, 1e-12)) < log_new - log_old:
            for t in range(length):  # assigning arrays to slices compiles the message of its error: a second
                state[begin + t], topic[begin + t] = new_state[t], new_topic[t]
            accepted += 1
        else:
            _counted(sentence, i, proposed, asked, -1.0, counts, priors, sums)
            _counted(sentence, i, old_state, old_topic, 1.0, counts, priors, sums)
    return accepted


@njit(cache=True, error_model="numpy")
def _drawn(chance, size, rng):
    """A place by weights that need not add up to 1."""
    total = 0.0
    for c in range(size):
        total += chance[c]
    uniform, rng[0] = _uniform(rng[0])
    left, place = uniform * total, 0
    while place < size - 1 and chance[place] <= left:
        left -= chance[place]
        place += 1
    return place


@njit(cache=True, error_model="numpy")
def _tables(word, i, counts, priors, sums, emission, moves):
    """The predictive tables of a sentence without its own counts."""
    size, topics = moves.shape[0], priors[0].shape[0]
    for d in range(size):
        for c in range(size):
            moves[d, c] = (counts[6][d, c] + priors[3][d, c]) / (counts[7][d] + sums[2][d])
    for t in range(word.shape[0]):
        v, value = word[t], 0.0
        for k in range(topics):
            mixed = (counts[2][i, k] + priors[0][k]) * (counts[0][v, k] + priors[1][v, k])
            value += mixed / (counts[1][k] + sums[0][k])
        emission[t, 0] = value / (counts[3][i] + sums[3][0])
        for c in range(1, size):
            emission[t, c] = (counts[4][v, c] + priors[2][v, c]) / (counts[5][c] + sums[1][c])


@njit(cache=True, error_model="numpy")
def _of_word(v, i, z, q, counts, priors, sums):
    """The predictive probability of a word's topic and of the word in its state, at the present counts."""
    if z > 0:
        return (counts[4][v, z] + priors[2][v, z]) / (counts[5][z] + sums[1][z])
    share = (counts[2][i, q] + priors[0][q]) / (counts[3][i] + sums[3][0])
    return share * (counts[0][v, q] + priors[1][v, q]) / (counts[1][q] + sums[0][q])


@njit(cache=True, error_model="numpy")
def _of_move(before, z, counts, priors, sums):
    """The predictive probability of a state behind another, or of a sentence's first (before = -1)."""
    if before < 0:
        return (counts[8][z] + priors[4][z]) / (counts[9][0] + sums[3][1])
    return (counts[6][before, z] + priors[3][before, z]) / (counts[7][before] + sums[2][before])


@njit(cache=True, error_model="numpy")
def _count(v, i, before, z, q, change, counts):
    """Add a token to the counts, or take it away."""
    if z > 0:
        counts[4][v, z] += change
        counts[5][z] += change
    else:
        counts[0][v, q] += change
        counts[1][q] += change
        counts[2][i, q] += change
        counts[3][i] += change
    if before < 0:
        counts[8][z] += change
        counts[9][0] += change
    else:
        counts[6][before, z] += change
        counts[7][before] += change


@njit(cache=True, error_model="numpy")
def _counted(word, i, state, topic, change, counts, priors, sums):
    """Add a sentence, first token first (change 1), or take it away, last token first (-1): log of its factors with
    rising counts."""
    found, length = 0.0, word.shape[0]
    for place in range(length):
        t = place if change > 0 else length - 1 - place
        before = state[t - 1] if t > 0 else -1
        if change < 0:
            _count(word[t], i, before, state[t], topic[t], change, counts)
        of_word = _of_word(word[t], i, state[t], topic[t], counts, priors, sums)
        found += np.log(of_word * _of_move(before, state[t], counts, priors, sums))
        if change > 0:
            _count(word[t], i, before, state[t], topic[t], change, counts)
    return found


@njit(cache=True, error_model="numpy")
def _held(word, i, state, topic, counts, priors, sums, emission, moves):
    """log of a sentence's factors with the counts held as they are without it."""
    found = 0.0
    for t in range(word.shape[0]):
        of_word = emission[t, state[t]]
        if state[t] == 0:
            of_word = _of_word(word[t], i, state[t], topic[t], counts, priors, sums)
        before = state[t - 1] if t > 0 else -1
        of_move = moves[before, state[t]] if t > 0 else _of_move(before, state[t], counts, priors, sums)
        found += np.log(of_word * of_move)
    return found
