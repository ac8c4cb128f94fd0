"""Brute-force references for topics and syntax (LDA-HMM; source 002, section 27.4.3). No project code.

    z_1 ~ params["initial"] (S,),  z_l | z_l-1 ~ params["transition"] (S, S)      in each sentence          (eq. 27.63)
    y_l | z_l = 0 ~ sum_k pi_k params["topic"] (K, V),  y_l | z_l = c ~ params["emission"][c - 1] (C, V)    (eq. 27.64)

x (N, L) holds 1 + the number of the word; what is 0, or masked, ends a sentence. The local is pi (N, K). Without
``emission`` there is the state of content alone. All sums are over all S^L sequences of states, or all (C + K)^L of
states and topics.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp, softmax

from tests.references import _shared
from tests.references._shared import Array, Labels, Maybe, Params


def sentences(row: ArrayLike, mask: Maybe = None) -> list[list[int]]:
    """The words' numbers of every sentence of one document."""
    values = _shared.filled(row, mask)
    return [
        [int(value) - 1 for value in run] for there, run in itertools.groupby(values, lambda value: value > 0) if there
    ]


def chain(params: Params) -> tuple[Array, Array]:
    """a (S,) and A (S, S)."""
    if "emission" not in params:
        return np.ones(1), np.ones((1, 1))
    return np.asarray(params["initial"], dtype=np.float64), np.asarray(params["transition"], dtype=np.float64)


def path_terms(params: Params, paths: Labels) -> Array:
    """log p(z) of sequences of states (M, L)."""
    initial, transition = chain(params)
    with np.errstate(divide="ignore"):
        return np.log(initial)[paths[:, 0]] + np.log(transition)[paths[:, :-1], paths[:, 1:]].sum(1)


def sentence_table(params: Params, proportion: ArrayLike, words: list[int]) -> tuple[Labels, Array]:
    """(z (M, L), log p(y, z | pi) (M,)) over all M = S^L sequences of states of one sentence."""
    content = np.asarray(proportion, dtype=np.float64) @ np.asarray(params["topic"], dtype=np.float64)
    tables = np.vstack([content, *np.asarray(params["emission"])]) if "emission" in params else content[None]
    paths = _shared.assignments(len(tables), len(words))
    with np.errstate(divide="ignore"):
        return paths, path_terms(params, paths) + np.log(tables)[paths, words].sum(1)


def log_likelihood(params: Params, x: ArrayLike, local: ArrayLike, mask: Maybe = None) -> Array:
    """log p(y_i | pi_i, globals), (N,)."""
    rows = zip(np.asarray(x), np.asarray(local), _shared.observed(x, mask), strict=True)
    return np.array([
        sum(float(logsumexp(sentence_table(params, pi, words)[1])) for words in sentences(row, keep))
        for row, pi, keep in rows
    ])  # fmt: skip


log_joint = _shared.log_joint_of(log_likelihood, "topic_proportion")


def state_posterior(params: Params, proportion: ArrayLike, words: list[int]) -> Array:
    """P(z_l = c | y, pi) of one sentence, (L, S)."""
    paths, table = sentence_table(params, proportion, words)
    weight, size = softmax(table), len(chain(params)[0])
    return np.stack([weight @ (paths == c) for c in range(size)], axis=1)


def expected_transitions(params: Params, proportion: ArrayLike, words: list[int]) -> Array:
    """E[how often state d follows c | y, pi] in one sentence, (S, S)."""
    paths, table = sentence_table(params, proportion, words)
    weight, size = softmax(table), len(chain(params)[0])
    found = np.zeros((size, size))
    for path, each in zip(paths, weight, strict=True):
        np.add.at(found, (path[:-1], path[1:]), each)
    return found


def log_evidence(params: Params, x: ArrayLike, alpha: ArrayLike, mask: Maybe = None) -> Array:
    """log int p(y_i | pi) Dirichlet(pi | alpha) dpi, (N,), by quadrature; K = 2 only."""
    found = []
    for row, keep in zip(np.asarray(x), _shared.observed(x, mask), strict=True):
        parts = sentences(row, keep)

        def height(s: Array, parts: list[list[int]] = parts) -> Array:
            mixes = np.stack([s, 1 - s], axis=1)
            each = [sum(float(logsumexp(sentence_table(params, p, w)[1])) for w in parts) for p in mixes]
            return np.array(each, dtype=float)

        found.append(_shared.log_beta_integral(height, alpha) if parts else 0.0)
    return np.array(found)


# ----- everything integrated out: what a collapsed sampler draws from -------------------------------------------------


def collapsed_log_joint(
    x: ArrayLike, state: Labels, topic: Labels, sizes: tuple[int, int, int], priors: dict[str, float]
) -> float:
    """log p(y, z, q) with pi, b, B, a and A integrated out, from counts. state, topic: (T,) of all tokens in their
    order, topic ignored where the state is not 0. sizes: K, S, V; priors: symmetric concentrations by site."""
    num_topics, num_states, num_words = sizes
    content, words = np.zeros((len(np.asarray(x)), num_topics)), np.zeros((num_topics, num_words))
    classes, moves = np.zeros((max(num_states - 1, 0), num_words)), np.zeros((num_states, num_states))
    first, place = np.zeros(num_states), 0
    for document, row in enumerate(np.asarray(x)):
        for sentence in sentences(row):
            for position, word in enumerate(sentence):
                z, q = int(state[place]), int(topic[place])
                if z == 0:
                    content[document, q] += 1
                    words[q, word] += 1
                else:
                    classes[z - 1, word] += 1
                if position == 0:
                    first[z] += 1
                else:
                    moves[int(state[place - 1]), z] += 1
                place += 1
    found = {"topic_proportion": content, "topic": words}
    if num_states > 1:
        found |= {"emission": classes, "transition": moves, "initial": first[None]}
    return float(sum(_shared.log_dirichlet_moment(table, priors[site]).sum() for site, table in found.items()))
