"""Corpora of the benchmark of dynamic topics, and what their topics are measured by.

synthetic: V 200, K 5, T 10, 100 documents of 80 tokens a slice; logits b_1 ~ N(0, 4), steps N(0, .09), proportions
Dirichlet(.2). The total variation of the topics, mean over slices after one matching of their means.
sotu: addresses on the state of the union 1790-2020 in blocks of about 80 tokens, 23 decades; 90 % of the blocks are
fitted, words in at least 15 of these; the others are completed: proportions are folded in from one half of a block's
tokens under its slice's topics, Dirichlet(.1), and score the other half.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Array = NDArray[Any]

#: The drift variance of the synthetic corpora.
DRIFT = 0.09
#: Of proportions that are folded in, and the iterations of that.
_ALPHA, _ITERATIONS = 0.1, 100


class Dated(NamedTuple):
    """Counts (N, V) and the slices (N,) of the documents; T."""

    counts: Any
    time: Array
    num_times: int


class Speeches(NamedTuple):
    """What is fitted; the observed and the held-out tokens of the others, and their slices."""

    train: Dated
    observed: Any
    held_out: Any
    time: Array


def synthetic(seed: int) -> tuple[Dated, Array]:
    """A corpus and its topics (T, K, V)."""
    rng, (words, topics, slices, documents) = np.random.default_rng(seed), (200, 5, 10, 100)
    logit = [rng.normal(0, 2, (topics, words))]
    for _ in range(slices - 1):
        logit.append(logit[-1] + rng.normal(0, DRIFT**0.5, (topics, words)))
    topic = np.exp(logit) / np.exp(logit).sum(-1, keepdims=True)
    time = np.repeat(np.arange(slices), documents)
    mix = rng.dirichlet(np.full(topics, 0.2), len(time))
    x = np.stack([rng.multinomial(80, p @ topic[t]) for p, t in zip(mix, time, strict=True)])
    return Dated(sp.csr_matrix(x), time, slices), topic


def variation(topic: Array, found: Array) -> float:
    """Mean total variation of topics (T, K, V) from the true ones."""
    cost = np.abs(topic.mean(0)[:, None] - found.mean(0)[None]).sum(-1)
    return float(np.abs(topic - found[:, linear_sum_assignment(cost)[1]]).sum(-1).mean() / 2)


def speeches(folder: Path) -> Speeches:
    with np.load(folder / "sotu" / "sotu.npz", allow_pickle=False) as file:
        parts, year = (file["data"].astype(np.int64), file["indices"], file["indptr"]), file["year"].astype(int)
        x: Any = sp.csr_matrix(parts, tuple(file["shape"]))
    time = np.minimum((year - 1790) // 10, 22)
    order, left_out = np.random.default_rng(0).permutation(x.shape[0]), x.shape[0] // 10
    test, train = np.sort(order[:left_out]), np.sort(order[left_out:])
    x = x[:, np.asarray((x[train] > 0).sum(0)).ravel() >= 15]
    observed, held_out = _halves(x[test])
    return Speeches(Dated(x[train], time[train], 23), observed, held_out, time[test])


def _halves(x: Any) -> tuple[Any, Any]:
    rng, observed, held_out = np.random.default_rng(0), x.copy(), x.copy()
    for i in range(x.shape[0]):
        own = slice(x.indptr[i], x.indptr[i + 1])
        count = x.data[own]
        tokens = rng.permutation(np.repeat(np.arange(len(count)), count))
        observed.data[own] = np.bincount(tokens[: -(-len(tokens) // 2)], minlength=len(count))
        held_out.data[own] = count - observed.data[own]
    observed.eliminate_zeros()
    held_out.eliminate_zeros()
    return observed, held_out


def completion(data: Speeches, topics: Array) -> float:
    """Perplexity of the held-out tokens under topics (T, K, V)."""
    total = 0.0
    for t, topic in enumerate(topics):
        own = np.flatnonzero(data.time == t)
        topic = np.maximum(topic, 1e-8)
        topic = topic / topic.sum(-1, keepdims=True)
        cells, scored = data.observed[own].tocoo(), data.held_out[own].tocoo()
        mix = np.ones((len(own), len(topic)))
        for _ in range(_ITERATIONS):
            ratio = cells.data / (mix[cells.row] * topic.T[cells.col]).sum(1)
            mix = _ALPHA + mix * (sp.csr_matrix((ratio, (cells.row, cells.col)), cells.shape) @ topic.T)
        mix /= mix.sum(1, keepdims=True)
        total += float(scored.data @ np.log((mix[scored.row] * topic.T[scored.col]).sum(1)))
    return float(np.exp(-total / data.held_out.sum()))
