"""Graphs with known groups for the benchmarks, and how well a division of their nodes agrees with these groups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class KnownGraph:
    """edges (E, 2): each once, nodes from 0; groups: their name -> label of each node.

    communities (N, C): sets of nodes that may overlap.
    """

    name: str
    edges: Labels
    num_nodes: int
    directed: bool
    groups: dict[str, NDArray[Any]]
    names: tuple[str, ...] = ()
    communities: NDArray[np.bool_] | None = None

    @property
    def adjacency(self) -> sp.csr_array:
        """(N, N), symmetric where the graph is undirected."""
        i, j = self.edges.T
        x = sp.coo_array((np.ones(len(i)), (i, j)), shape=(self.num_nodes, self.num_nodes)).tocsr()
        return x if self.directed else sp.csr_array(x + x.T)


def sampson(folder: Path, relation: str = "SAMPLK3") -> KnownGraph:
    """Who likes whom among 18 novices: ``SAMPLK3``, the third wave, or ``liking_any``, the union of the three."""
    with np.load(folder / "sampson" / "sampson.npz", allow_pickle=False) as archive:
        parts = {name: archive[name] for name in archive.files}
    if relation in parts:
        x = parts[relation]
    else:
        x = parts["relations"][parts["relation_names"].tolist().index(relation)]
    groups = {name: parts[name] for name in ("group3", "group4")}
    edges = np.argwhere(x > 0)
    return KnownGraph(relation, edges, len(x), True, groups, tuple(map(str, parts["names"])))


def polblogs(folder: Path) -> KnownGraph:
    """The largest component of the political blogs (1222 nodes), links as undirected edges; groups: the two sides."""
    with np.load(folder / "polblogs" / "polblogs.npz", allow_pickle=False) as archive:
        edges, number, value = archive["edges"].astype(np.int64), int(archive["n"]), archive["value"]
    edges = np.unique(np.sort(edges[edges[:, 0] != edges[:, 1]], axis=1), axis=0)
    i, j = edges.T
    label = connected_components(sp.coo_array((np.ones(len(i)), (i, j)), shape=(number, number)), directed=False)[1]
    kept = np.flatnonzero(label == np.bincount(label).argmax())
    place = np.full(number, -1)
    place[kept] = np.arange(len(kept))
    inside = place[edges][(place[edges] >= 0).all(1)]
    return KnownGraph("polblogs", inside, len(kept), False, {"side": value[kept]})


def lfr(folder: Path) -> KnownGraph:
    """1000 nodes, 28 overlapping communities: 500 nodes belong to one, 500 to four."""
    with np.load(folder / "lfr_mmsb" / "lfr_n1000_k28.npz", allow_pickle=False) as archive:
        edges, member = archive["edges"].astype(np.int64), archive["membership"].astype(bool)
    return KnownGraph("LFR", edges, len(member), False, {}, communities=member)


# ----- agreement ------------------------------------------------------------------------------------------------------


def agreement(block: Any, truth: Any) -> dict[str, float]:
    """NMI (by the arithmetic mean of the entropies) and adjusted Rand index."""
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    chosen, known = np.asarray(block), np.unique(np.asarray(truth), return_inverse=True)[1]
    return {"NMI": float(normalized_mutual_info_score(known, chosen)), "ARI": float(adjusted_rand_score(known, chosen))}


def best_match_f1(found: NDArray[np.bool_], truth: NDArray[np.bool_]) -> float:
    """Mean of the best F1 of each true community among those found, and of each found among the true.

    found (N, K), truth (N, C): sets of nodes; empty ones among those found are left out (Yang & Leskovec 2013).
    """
    found = found[:, found.any(0)]
    if not found.shape[1]:
        return 0.0
    both = truth.T.astype(float) @ found
    f1 = 2 * both / (truth.sum(0)[:, None] + found.sum(0))
    return float((f1.max(1).mean() + f1.max(0).mean()) / 2)


def entropy(membership: Any) -> Array:
    """Of each node's memberships, in nats: (N,)."""
    p = np.asarray(membership, dtype=float)
    p = p / p.sum(1, keepdims=True)
    return -(p * np.log(np.maximum(p, 1e-300))).sum(1)


def dyads(num_nodes: int, directed: bool) -> tuple[Labels, Labels]:
    """All dyads without self loops: (i, j), i != j, or i < j."""
    if not directed:
        return np.triu_indices(num_nodes, 1)
    i, j = np.divmod(np.arange(num_nodes**2), num_nodes)
    return i[i != j], j[i != j]


def in_sample_auc(graph: KnownGraph, probability: Any) -> float:
    """Of the probabilities (N, N) of edges over all dyads that the model was fitted to."""
    from sklearn.metrics import roc_auc_score

    i, j = dyads(graph.num_nodes, graph.directed)
    return float(roc_auc_score(graph.adjacency.toarray()[i, j] > 0, np.asarray(probability)[i, j]))
