"""Random corpora for the tests of the topic models, small enough for the brute-force references."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from custom_inference.core.registry import engine_for
from custom_inference.core.states import tensors_of
from ppl_models import Data
from ppl_models.data import sparse as _sparse
from tests.references import _topics

#: Shapes and concentrations of corpora, for hypothesis.
SHAPES = {
    "seed": st.integers(0, 10**6),
    "num_documents": st.integers(1, 9),
    "vocabulary_size": st.integers(2, 8),
    "num_topics": st.integers(1, 5),
    "alpha": st.sampled_from([1e-3, 0.3, 1.0, 1000.0]),
    "gamma": st.sampled_from([0.01, 1.0, 2.0]),
}


def corpus(seed, kind="sparse", num_documents=6, vocabulary_size=7, num_topics=3, length=12):
    """(topics (K, V), counts (N, V), mask, data): where there are several, the first document is empty and the last
    word never occurs. kind: "dense", "sparse", "masked" (what is hidden holds 9), "zeros" (stored among the counts)."""
    rng = np.random.default_rng(seed)
    topic = rng.dirichlet(np.full(vocabulary_size, 0.5), num_topics) + 1e-3
    topic /= topic.sum(1, keepdims=True)
    words = rng.dirichlet(np.full(num_topics, 0.5), num_documents) @ topic
    lengths = rng.integers(1, length + 1, num_documents)
    x = np.array([rng.multinomial(n, p) for n, p in zip(lengths, words, strict=True)], dtype=float)
    if num_documents > 1:
        x[0] = 0
    if vocabulary_size > 1:
        x[:, -1] = 0
    mask = rng.random(x.shape) > 0.3 if kind == "masked" else None
    if kind == "sparse":
        data = Data(x=_sparse.from_dense(torch.tensor(x)))
    elif kind == "zeros":
        filled = _sparse.from_dense(torch.tensor(x + 1))
        layout = filled.crow_indices(), filled.col_indices(), filled.values() - 1
        data = Data(x=torch.sparse_csr_tensor(*layout, size=x.shape, check_invariants=True))
    else:
        filled = x if mask is None else np.where(mask, x, 9.0)
        data = Data(x=torch.tensor(filled), mask=None if mask is None else torch.tensor(mask))
    return topic, x, mask, data


def made(kind_of_model, topic, alpha=None, gamma=None):
    """A model of these sizes and concentrations."""
    model = kind_of_model(num_topics=len(topic), vocabulary_size=topic.shape[1])
    return model.with_concentration(alpha=alpha, gamma=gamma)


def steps_of(name, model, data, **changed):
    """(steps, rows), checked as a fit does."""
    steps = engine_for(model, name, **changed)
    rows = steps.rows(model, data)
    steps.check(model, rows)
    return steps, rows


def by_cell(array, x, mask):
    """(N, V, K) read at the words that occur, in the order of CSR, (cells, K)."""
    return array[_topics.counts_of(x, mask) > 0]


def at_words(shares, rows):
    """Shares of the stored cells (nnz, K), without those that store a 0."""
    return shares[rows.counts.values() > 0]


def trace_of(name, model, data, params, iterations=8):
    """The objective of plain iterations; everything that they make must be finite."""
    steps, rows = steps_of(name, model, data)
    params, locals_, trace = steps.start_from(model, params, rows), None, []
    for _ in range(iterations):
        step = steps.e_step(model, params, rows, locals_)
        assert all(
            torch.isfinite(value).all() for value in (step.bound, *tensors_of(params).values(), *step.locals.values())
        )
        trace.append(steps.objective_at(model, params, step.bound))
        params, locals_ = steps.m_step(model, params, step, rows), step.locals
    return np.array(trace)


def climbs(trace) -> bool:
    return bool(np.diff(trace).min() >= -1e-9 * max(1.0, np.abs(trace).max()))
