"""Bars, digits and documents of the benchmark of machines, and how completions and retrieval are scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pyro.distributions as dist
import scipy.sparse as sp
import torch

import custom_inference as ci
from benchmarks.quality._correlated_data import split, under_dirichlet
from ppl_models import LDA

Array = np.ndarray


def bars(size: int = 4) -> Array:
    """The distinct patterns of horizontal or vertical bars, (30, 16) of size 4."""
    code = (np.arange(2**size)[:, None] >> np.arange(size)) & 1
    return np.unique(np.concatenate([np.repeat(code, size, 1), np.tile(code, size)]), axis=0).astype(float)


def digits() -> tuple[Array, Array]:
    """Training and test rows, (1437, 64) and (360, 64)."""
    from sklearn.datasets import load_digits

    rows: Any = load_digits()
    on = (rows.data > 7).astype(float)
    order = np.random.default_rng(0).permutation(len(on))
    return on[order[:1437]], on[order[1437:]]


def priors_of_pixels(size: int) -> dict[str, Any]:
    """Weights of a unit that are alike at neighbouring pixels, and wide biases."""
    pixels = torch.as_tensor(nx.laplacian_matrix(nx.grid_2d_graph(size, size)).toarray(), dtype=torch.float64)
    precision = 0.05 * torch.eye(size**2, dtype=torch.float64) + 0.3 * pixels
    alike = dist.MultivariateNormal(precision.new_zeros(size**2), precision_matrix=precision)
    wide = dist.Normal(0.0, 10.0)
    return {"weight": alike, "visible_bias": wide, "hidden_bias": wide}


def documents(folder: Path, *, groups: bool = False) -> Any:
    """Training counts, and the observed and the other tokens of the test documents; or the groups of both."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    path = folder / "newsgroups4" / "newsgroups4.npz"
    counts = sp.load_npz(path).astype(np.int64)
    with np.load(path, allow_pickle=False) as archive:
        test, words, group = archive["is_test"].astype(bool), archive["words"], archive["y"]
    number = np.asarray((counts[~test] > 0).sum(0)).ravel()
    known = np.array([len(word) >= 3 and word not in ENGLISH_STOP_WORDS for word in words])
    counts = counts[:, known & (number >= 10) & (number <= 0.25 * (~test).sum())]
    long = np.asarray(counts.sum(1)).ravel() >= 10
    total = np.asarray(counts[~test & long].sum(0)).ravel()
    counts = counts[:, np.sort(np.argsort(-total)[:1000])]
    long &= np.asarray(counts.sum(1)).ravel() >= 10
    if groups:
        return group[~test & long], group[test & long]
    seen, held = split(counts[test & long], 0.5, most=None)
    return counts[~test & long], seen, held


def perplexity(share: Array, held: sp.csr_matrix) -> float:
    """Of tokens under probabilities of the words (N, V)."""
    cells = held.tocoo()
    chance = np.maximum(share[cells.row, cells.col], 1e-12)
    return float(np.exp(-(cells.data * np.log(chance)).sum() / cells.data.sum()))


def completed_by_lda(train: Any, seen: Any, topics: int, *, proportions: bool = False) -> Any:
    """Probabilities of the words of documents; or proportions of training documents and of these."""
    model = LDA(num_topics=topics, vocabulary_size=train.shape[1])
    fit = ci.fit(model, train, progress=False)
    topic, alpha = fit.params["topic"].numpy(), np.full(topics, 0.1)
    if proportions:
        return tuple(under_dirichlet(topic, alpha, part) for part in (train, seen))
    return under_dirichlet(topic, alpha, seen) @ topic


def retrieval_precision(known: Array, asked: Array, group: Array, of_asked: Array) -> list[float]:
    """Mean precision where 1, 10 and 50 % of the training documents of the query's group have been found."""
    one, other = (part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12) for part in (known, asked))
    order = np.argsort(-(other @ one.T), axis=1, kind="stable")
    hit = group[order] == of_asked[:, None]
    found = hit.cumsum(1)
    precision = found / np.arange(1, hit.shape[1] + 1)
    share = found / found[:, -1:]
    return [float(np.mean(np.take_along_axis(precision, (share >= recall).argmax(1)[:, None], 1)))
            for recall in (0.01, 0.1, 0.5)]  # fmt: skip
