"""Held-out dyads of a graph, what scores them without a model, and how good scores of edges are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from benchmarks.quality._graph_data import Array, KnownGraph, Labels, dyads


class Split(NamedTuple):
    """hidden (2, M): held-out dyads, with x (M,) their true values; train: adjacency without their edges."""

    hidden: Labels
    x: Array
    train: sp.csr_array

    @property
    def density(self) -> float:
        """Of edges among the dyads that are left."""
        size = self.train.shape[0]
        return self.train.nnz / (size * (size - 1) - self.hidden.shape[1] * (1 if self.is_directed else 2))

    @property
    def is_directed(self) -> bool:
        return bool((self.train != self.train.T).nnz)


def held_out(known: KnownGraph, share: float, seed: int) -> Split:
    """A share of all dyads, edges or not, drawn at random."""
    i, j = dyads(known.num_nodes, known.directed)
    chosen = np.random.default_rng(seed).random(len(i)) < share
    i, j, x = i[chosen], j[chosen], sp.lil_array(known.adjacency)
    truth = np.asarray(known.adjacency[i, j]).ravel()
    on = truth > 0
    x[i[on], j[on]] = 0
    if not known.directed:
        x[j[on], i[on]] = 0
    train = sp.csr_array(x)
    train.eliminate_zeros()
    return Split(np.stack([i, j]), truth, train)


def quality(x: Array, probability: Array) -> dict[str, float]:
    """AUC, average precision, and minus the mean log-probability of the dyads, in nats."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    p = np.clip(probability, 1e-12, 1 - 1e-12)
    loss = -float(np.mean(np.where(x > 0, np.log(p), np.log1p(-p))))
    return {"AUC": roc_auc_score(x, probability), "AP": average_precision_score(x, probability), "log-loss": loss}


# ----- without a model ------------------------------------------------------------------------------------------------


def _degrees(split: Split) -> tuple[Array, Array]:
    out, into = np.asarray(split.train.sum(1)).ravel(), np.asarray(split.train.sum(0)).ravel()
    i, j = split.hidden
    return out[i], into[j]


def constant(split: Split) -> Array:
    return np.full(split.hidden.shape[1], split.density)


def degree_product(split: Split) -> Array:
    """d_i d_j / sum d, the expected number of edges of a random graph with these degrees."""
    out, into = _degrees(split)
    return np.clip(out * into / split.train.sum(), 0, 1)


def _shared(split: Split, weight: Array) -> Array:
    """sum_n w_n x_in x_nj of the held-out dyads."""
    i, j = split.hidden
    weighted = split.train @ sp.diags_array(weight)
    return np.asarray((sp.csr_array(weighted) @ split.train)[i, j]).ravel()


def common_neighbours(split: Split) -> Array:
    return _shared(split, np.ones(split.train.shape[0]))


def adamic_adar(split: Split) -> Array:
    degree = np.asarray(split.train.sum(1)).ravel()
    return _shared(split, 1 / np.log(np.maximum(degree, 2)))


def singular_vectors(split: Split, rank: int = 8) -> Array:
    """The adjacency matrix of that rank which is nearest."""
    from scipy.sparse.linalg import svds

    u, s, v = svds(split.train.astype(float), k=rank, random_state=0)
    i, j = split.hidden
    return ((u[i] * s) * v.T[j]).sum(1)


#: Name -> (score of the held-out dyads, whether it is a probability).
BASELINES: dict[str, tuple[Callable[[Split], Array], bool]] = {
    "density": (constant, True),
    "product of degrees": (degree_product, True),
    "common neighbours": (common_neighbours, False),
    "Adamic-Adar": (adamic_adar, False),
    "rank-8 SVD": (singular_vectors, False),
}


def baseline_rows(split: Split) -> list[list[Any]]:
    rows = []
    for name, (call, is_probability) in BASELINES.items():
        found = quality(split.x, call(split))
        loss = f"{found['log-loss']:.4f}" if is_probability else ""
        rows.append([name, "", f"{found['AUC']:.3f}", f"{found['AP']:.3f}", loss, ""])
    return rows
