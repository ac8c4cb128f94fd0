"""Statistics of graphs: the adjacency matrix x (N, N) as a sparse array; hidden dyads count as being without edge.

Apart from those of counts they look at which dyads have an edge, not at its value, and leave self loops out. Those that
have no direction (triangles, components, distances, spectrum) join two nodes by an edge in either direction.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse import csgraph

Array = NDArray[Any]

#: Distances are taken from at most so many nodes, evenly over their numbers.
_SOURCES = 256
#: Spectra of graphs of up to so many nodes are found by dense algebra.
_DENSE = 200


def _simple(x: Any) -> Any:
    """1 where there is an edge, without self loops."""
    entries = x.tocoo()
    kept = (entries.row != entries.col) & (entries.data != 0)
    places = (np.ones(int(kept.sum())), (entries.row[kept], entries.col[kept]))
    return scipy.sparse.csr_array(places, shape=x.shape)


def _undirected(x: Any) -> Any:
    simple = _simple(x)
    return ((simple + simple.T) > 0).astype(float).tocsr()


def _degrees(x: Any, axis: int = 1) -> Array:
    return np.asarray(_simple(x).sum(axis)).ravel()


def density(x: Any) -> float:
    """The share of pairs of nodes that have an edge."""
    size = x.shape[0]
    return float(_simple(x).nnz / max(size * (size - 1), 1))


def degree_variance(x: Any) -> float:
    """The variance of the nodes' degrees; of a directed graph of those of outgoing edges."""
    return float(_degrees(x).var())


def in_degree_variance(x: Any) -> float:
    """The variance of the nodes' numbers of incoming edges."""
    return float(_degrees(x, 0).var())


def degree_max(x: Any) -> float:
    """The largest degree; of a directed graph of outgoing edges."""
    return float(_degrees(x).max())


def in_degree_max(x: Any) -> float:
    """The largest number of incoming edges."""
    return float(_degrees(x, 0).max())


def isolated_nodes(x: Any) -> float:
    """The share of nodes without any edge."""
    return float((_degrees(_undirected(x)) == 0).mean())


def reciprocity(x: Any) -> float:
    """The share of edges that have their reverse; 0 without edges (Wasserman & Faust, *Social network analysis*, 1994,
    chapter 13)."""
    simple = _simple(x)
    return float(simple.multiply(simple.T).sum() / simple.nnz) if simple.nnz else 0.0


def transitivity(x: Any) -> float:
    """3 (triangles) / (pairs of edges that meet), the share of friends of friends that are friends; 0 without such
    pairs (Wasserman & Faust 1994, eq. 6.4)."""
    graph = _undirected(x)
    degree = np.asarray(graph.sum(1)).ravel()
    pairs = (degree * (degree - 1)).sum()
    return float((graph @ graph).multiply(graph).sum() / pairs) if pairs else 0.0


def largest_component(x: Any) -> float:
    """The share of nodes in the largest (weakly) connected component."""
    _, label = csgraph.connected_components(x, directed=True, connection="weak")
    return float(np.bincount(label).max() / x.shape[0])


def components(x: Any) -> float:
    """The number of (weakly) connected components."""
    return float(csgraph.connected_components(x, directed=True, connection="weak", return_labels=False))


def efficiency(x: Any) -> float:
    """The mean of 1 / distance over pairs of nodes, 0 where there is no path (Latora & Marchiori, *Efficient behavior
    of small-world networks*, Phys. Rev. Lett. 87, 2001). From at most 256 nodes, evenly over their numbers."""
    graph, size = _undirected(x), x.shape[0]
    if size < 2:
        return 0.0
    start = np.unique(np.linspace(0, size - 1, min(size, _SOURCES)).astype(int))
    distance = csgraph.dijkstra(graph, unweighted=True, indices=start)
    with np.errstate(divide="ignore"):
        inverse = np.where(distance > 0, 1 / distance, 0.0)
    return float(inverse.sum() / (len(start) * (size - 1)))


def assortativity(x: Any) -> float:
    """The correlation of the degrees at the two ends of an edge (Newman, *Assortative mixing in networks*, Phys. Rev.
    Lett. 89, 2002); of a directed graph of the out-degree of its source and the in-degree of its target; 0 where either
    is the same for all edges."""
    simple = _simple(x).tocoo()
    if simple.nnz < 2:
        return 0.0
    source, target = _degrees(x)[simple.row], _degrees(x, 0)[simple.col]
    spread = source.std() * target.std()
    return float(((source - source.mean()) * (target - target.mean())).mean() / spread) if spread > 1e-12 else 0.0


def spectral_gap(x: Any) -> float:
    """The difference of the two largest eigenvalues of the adjacency matrix: small where a graph falls into parts
    (Cvetkovic, Rowlinson & Simic, *An introduction to the theory of graph spectra*, 2010, chapter 3)."""
    graph, size = _undirected(x), x.shape[0]
    if size < 2:
        return 0.0
    if size <= _DENSE:
        low, high = np.linalg.eigvalsh(graph.toarray())[-2:]
    else:
        # Started from a fixed vector: the same graph has the same gap.
        start = np.random.default_rng(0).random(size)
        low, high = np.sort(scipy.sparse.linalg.eigsh(graph, k=2, which="LA", v0=start, return_eigenvectors=False))
    return float(high - low)


# ----- of counts ------------------------------------------------------------------------------------------


def edge_total(x: Any) -> float:
    """The sum of the values of all dyads; an undirected edge counts twice."""
    return float(x.sum())


def edge_dispersion(x: Any) -> float:
    """Variance / mean of the values of all pairs of nodes: 1 of equal Poisson rates."""
    simple, size = x.tocoo(), x.shape[0]
    value = simple.data[simple.row != simple.col]
    total = max(size * (size - 1), 1)
    mean = value.sum() / total
    return float(((value**2).sum() / total - mean**2) / mean) if mean else 0.0


def edge_max(x: Any) -> float:
    """The largest value of a dyad."""
    return float(x.data.max(initial=0))
