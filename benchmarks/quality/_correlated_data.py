"""Documents whose topics go together, generated and real, and how fits of them are scored.

Generated: six topics Dirichlet(.1) over 300 words, 1000 documents of 60 tokens; logits of standard deviation 1.5 and
correlations .8, .8, -.6 and -.3. Real: four newsgroups by date; words of at least three letters, no English stop words,
in at least 10 and at most a quarter of the training documents; documents of at least 10 tokens.

Completion: of every test document a share of the tokens, in random order, is observed; the proportions are inferred of
them, and the others are scored by their perplexity. Under Gaussian logits the proportions are the mean over 200 draws
from Laplace's approximation, weighted by importance.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Array = NDArray[np.float64]
Counts = Any  # scipy.sparse.csr_matrix

#: Pairs of topics and their correlations; the logits' standard deviation.
_PAIRS = ((0, 1, 0.8), (2, 3, 0.8), (4, 5, -0.6), (0, 2, -0.3), (1, 3, -0.3), (0, 3, -0.3), (1, 2, -0.3))
_SPREAD = 1.5
#: Test documents that are completed, and draws of each one's logits.
_TESTED, _DRAWS = 400, 200
_LEAST_TOKENS = 10


def correlated_corpus(seed: int, num_documents: int = 1000) -> tuple[Counts, Array, Array]:
    """Counts (N, 300), topics (6, 300) and the covariance of the logits (6, 6)."""
    rng = np.random.default_rng(seed)
    topic, correlation = rng.dirichlet(np.full(300, 0.1), 6), np.eye(6)
    for i, j, value in _PAIRS:
        correlation[i, j] = correlation[j, i] = value
    covariance = _SPREAD**2 * correlation
    logit = rng.multivariate_normal(np.zeros(6), covariance, num_documents)
    share = _softmax(logit)
    return sp.csr_matrix(np.stack([rng.multinomial(60, one @ topic) for one in share])), topic, covariance


def recovery(topic: Array, covariance: Array, truth: tuple[Array, Array]) -> tuple[float, float, float]:
    """Mean total variation of matched topics; correlation of the off-diagonals and relative Frobenius distance of the
    doubly centred covariances."""
    distance = 0.5 * np.abs(truth[0][:, None] - topic[None]).sum(-1)
    row, order = linear_sum_assignment(distance)
    one, other = _centred(truth[1]), _centred(covariance[np.ix_(order, order)])
    above = np.triu_indices(len(one), 1)
    alike = float(np.corrcoef(one[above], other[above])[0, 1])
    return float(distance[row, order].mean()), alike, float(np.linalg.norm(one - other) / np.linalg.norm(one))


def _centred(value: Array) -> Array:
    centre = np.eye(len(value)) - 1 / len(value)
    return centre @ value @ centre


def newsgroups(folder: Path) -> tuple[Counts, Counts]:
    """Training and test counts."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    path = folder / "newsgroups4" / "newsgroups4.npz"
    counts = sp.load_npz(path).astype(np.int64)
    with np.load(path, allow_pickle=False) as archive:
        test, words = archive["is_test"].astype(bool), archive["words"]
    documents = np.asarray((counts[~test] > 0).sum(0)).ravel()
    known = np.array([len(word) >= 3 and word not in ENGLISH_STOP_WORDS for word in words])
    counts = counts[:, known & (documents >= 10) & (documents <= 0.25 * (~test).sum())]
    parts = counts[~test], counts[test]
    train, held = (part[np.asarray(part.sum(1)).ravel() >= _LEAST_TOKENS].tocsr() for part in parts)
    return train, held


def split(counts: Counts, share: float, seed: int = 0, *, first: int | None = _TESTED) -> tuple[Counts, Counts]:
    """Observed and held-out tokens of the first test documents; of all where ``first`` is None."""
    rng, seen, held = np.random.default_rng(seed), counts.tocsr().copy(), counts.tocsr().copy()
    for i in range(counts.shape[0]):
        place = slice(counts.indptr[i], counts.indptr[i + 1])
        own = counts.data[place]
        token = rng.permutation(np.repeat(np.arange(len(own)), own))
        seen.data[place] = np.bincount(token[: int(np.ceil(share * len(token)))], minlength=len(own))
        held.data[place] = own - seen.data[place]
    seen.eliminate_zeros()
    held.eliminate_zeros()
    return seen[:first], held[:first]


def perplexity(share: Array, topic: Array, held: Counts) -> float:
    cells = held.tocoo()
    chance = np.einsum("nk,nk->n", share[cells.row], _floored(topic).T[cells.col])
    return float(np.exp(-(cells.data * np.log(chance)).sum() / cells.data.sum()))


def _floored(topic: Array) -> Array:
    topic = np.maximum(topic, 1e-10)
    return topic / topic.sum(1, keepdims=True)


def under_dirichlet(topic: Array, alpha: Array, seen: Counts, rounds: int = 100) -> Array:
    """Posterior means of the proportions by CVB0's fixed point."""
    cells, topic = seen.tocoo(), _floored(topic)
    words, concentration = topic.T[cells.col], np.ones((seen.shape[0], len(topic)))
    for _ in range(rounds):
        ratio = cells.data / np.maximum((concentration[cells.row] * words).sum(1), 1e-300)
        concentration = alpha + concentration * (sp.csr_matrix((ratio, (cells.row, cells.col)), seen.shape) @ topic.T)
    return concentration / concentration.sum(1, keepdims=True)


def under_gaussian(topic: Array, mean: Array, covariance: Array, seen: Counts) -> Array:
    """Posterior means of the proportions under Gaussian logits."""
    rng, size, topic = np.random.default_rng(0), len(mean), _floored(topic)
    precision = np.linalg.inv(covariance + 1e-6 * np.eye(size))
    found = np.empty((seen.shape[0], size))
    for i in range(seen.shape[0]):
        place = slice(seen.indptr[i], seen.indptr[i + 1])
        found[i] = _completed(topic[:, seen.indices[place]], seen.data[place], mean, precision, rng)
    return found


def _completed(words: Array, count: Array, mean: Array, precision: Array, rng: np.random.Generator) -> Array:
    total = count.sum()

    def height(z: Array) -> Array:
        off = z - mean
        inside = np.log(np.maximum(_softmax(z) @ words, 1e-300))
        return inside @ count - 0.5 * np.einsum("...i,ij,...j", off, precision, off)

    z, value = mean.copy(), height(mean)
    for _ in range(60):
        share = _softmax(z)
        taken = share[:, None] * words
        slope = (taken / taken.sum(0)) @ count - total * share - precision @ (z - mean)
        matrix = total * (np.diag(share) - np.outer(share, share)) + precision
        move, step = np.linalg.solve(matrix, slope), 1.0
        while step > 1e-4 and height(z + step * move) < value:
            step *= 0.5
        z = z + step * move
        before, value = value, height(z)
        if abs(value - before) < 1e-6:
            break
    share = _softmax(z)
    root = np.linalg.cholesky(np.linalg.inv(total * (np.diag(share) - np.outer(share, share)) + precision))
    noise = rng.standard_normal((_DRAWS, len(mean)))
    drawn = z + noise @ root.T
    log = height(drawn) + 0.5 * (noise**2).sum(1)
    weight = np.exp(log - log.max())
    return (weight / weight.sum()) @ _softmax(drawn)


def _softmax(value: Array) -> Array:
    value = np.exp(value - value.max(-1, keepdims=True))
    return value / value.sum(-1, keepdims=True)
