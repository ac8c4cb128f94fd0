"""Statistics of sparse arrays: of graphs and of documents.

Graphs are adjacency matrices x (N, N); hidden dyads count as being without edge. Apart from those of counts statistics
look at which dyads have an edge, not at its value, and leave self loops out. Those that have no direction (triangles,
components, distances, spectrum) join two nodes by an edge in either direction.

Documents are word counts n (N, V); their lengths are given, not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse import csgraph
from scipy.special import xlogy

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


def _symmetrise(x: Any) -> Any:
    simple = _simple(x)
    return ((simple + simple.T) > 0).astype(float).tocsr()


def _degrees(x: Any, axis: int = 1) -> Array:
    return np.asarray(_simple(x).sum(axis)).ravel()


#: Statistics of one expression: name -> function, and what it is.
SIMPLE: dict[str, tuple[Callable[[Any], Any], str]] = {
    # of graphs
    "density": (
        lambda x: _degrees(x).sum() / max(x.shape[0] * (x.shape[0] - 1), 1),
        "The share of pairs of nodes that have an edge.",
    ),
    "degree_variance": (
        lambda x: _degrees(x).var(),
        "The variance of the nodes' degrees; of a directed graph of those of outgoing edges.",
    ),
    "in_degree_variance": (lambda x: _degrees(x, 0).var(), "The variance of the nodes' numbers of incoming edges."),
    "degree_max": (lambda x: _degrees(x).max(), "The largest degree; of a directed graph of outgoing edges."),
    "in_degree_max": (lambda x: _degrees(x, 0).max(), "The largest number of incoming edges."),
    "isolated_nodes": (lambda x: (_degrees(_symmetrise(x)) == 0).mean(), "The share of nodes without any edge."),
    "components": (
        lambda x: csgraph.connected_components(x, connection="weak")[0],
        "The number of (weakly) connected components.",
    ),
    "largest_component": (
        lambda x: np.bincount(csgraph.connected_components(x, connection="weak")[1]).max() / x.shape[0],
        "The share of nodes in the largest (weakly) connected component.",
    ),
    # of graphs of counts
    "edge_total": (lambda x: x.sum(), "The sum of the values of all dyads; an undirected edge counts twice."),
    "edge_max": (lambda x: x.data.max(initial=0), "The largest value of a dyad."),
    # of documents
    "distinct_words": (
        lambda x: np.diff(x.indptr).mean(),
        "The mean number of distinct words of a document: fewer than copies have where words come in bursts.",
    ),
    "distinct_words_variance": (
        lambda x: np.diff(x.indptr).var(),
        "The variance over the documents of their numbers of distinct words.",
    ),
    "vocabulary": (lambda x: len(np.unique(x.indices)), "The number of words that occur in some document."),
    "max_count": (lambda x: x.data.max(initial=0), "The largest count of a word in a document."),
    "word_total": (lambda x: np.bincount(x.indices, x.data, x.shape[1]), "The number of tokens of each word, (V,)."),
    "document_frequency": (
        lambda x: np.bincount(x.indices, minlength=x.shape[1]),
        "The number of documents with each word, (V,).",
    ),
}


def reciprocity(x: Any) -> float:
    """The share of edges that have their reverse; 0 without edges (Wasserman & Faust, *Social network analysis*, 1994,
    chapter 13)."""
    simple = _simple(x)
    return float(simple.multiply(simple.T).sum() / simple.nnz) if simple.nnz else 0.0


def transitivity(x: Any) -> float:
    """3 (triangles) / (pairs of edges that meet), the share of friends of friends that are friends; 0 without such
    pairs (Wasserman & Faust 1994, eq. 6.4)."""
    graph = _symmetrise(x)
    degree = np.asarray(graph.sum(1)).ravel()
    pairs = (degree * (degree - 1)).sum()
    return float((graph @ graph).multiply(graph).sum() / pairs) if pairs else 0.0


def efficiency(x: Any) -> float:
    """The mean of 1 / distance over pairs of nodes, 0 where there is no path (Latora & Marchiori, *Efficient behavior
    of small-world networks*, Phys. Rev. Lett. 87, 2001). From at most 256 nodes, evenly over their numbers."""
    graph, size = _symmetrise(x), x.shape[0]
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
    graph, size = _symmetrise(x), x.shape[0]
    if size < 2:
        return 0.0
    if size <= _DENSE:
        low, high = np.linalg.eigvalsh(graph.toarray())[-2:]
    else:
        # Started from a fixed vector: the same graph has the same gap.
        start = np.random.default_rng(0).random(size)
        low, high = np.sort(scipy.sparse.linalg.eigsh(graph, k=2, which="LA", v0=start, return_eigenvectors=False))
    return float(high - low)


def edge_dispersion(x: Any) -> float:
    """Variance / mean of the values of all pairs of nodes: 1 of equal Poisson rates."""
    simple, size = x.tocoo(), x.shape[0]
    value = simple.data[simple.row != simple.col]
    total = max(size * (size - 1), 1)
    mean = value.sum() / total
    return float(((value**2).sum() / total - mean**2) / mean) if mean else 0.0


def burstiness(x: Any) -> float:
    """E[n_dv | n_dv > 0] over all documents and words: how often a word returns once it is there (Church & Gale,
    *Poisson mixtures*, Natural Language Engineering 1, 1995)."""
    return float(x.data.mean()) if x.nnz else 0.0


def dispersion(x: Any) -> float:
    """The index of dispersion Var_d(n_dv) / E_d(n_dv) of the words, weighted by how often they occur."""
    size = x.shape[0]
    mean = np.bincount(x.indices, x.data, x.shape[1]) / size
    square = np.bincount(x.indices, x.data**2, x.shape[1]) / size
    # Weighted by the means, which cancel.
    return float((square - mean**2).sum() / mean.sum()) if x.nnz else 0.0


def word_document_information(x: Any, local: Array, params: Mapping[str, Array]) -> float:
    """Mutual information of word and document given the topic, in nats a token, 0 under the model but for chance:

        I(W; D | K) = sum_k N_k / N sum_dv N_dvk / N_k log(N_dvk N_k / (N_dk N_vk))

    (Mimno & Blei, *Bayesian checking for topic models*, EMNLP 2011, section 4), with the expected counts
    N_dvk = n_dv pi_dk b_kv / sum_l pi_dl b_lv in place of sampled topics of the tokens. A realised discrepancy:
    local = pi (N, K) and params["topic"] = b (K, V) are those of a draw.
    """
    counts, topic = x.tocoo(), params["topic"]
    joint = local[counts.row] * topic.T[counts.col]
    joint *= (counts.data / joint.sum(1).clip(min=np.finfo(float).tiny))[:, None]  # N_dvk of what occurs
    total = joint.sum(0)
    by_document, by_word = _sum_by_index(joint, counts.row, x.shape[0]), _sum_by_index(joint, counts.col, x.shape[1])
    within, across = (sum(float(xlogy(n, n).sum()) for n in pair) for pair in ((joint, total), (by_document, by_word)))
    return (within - across) / max(float(total.sum()), 1.0)


def _sum_by_index(values: Array, index: Array, size: int) -> Array:
    places = (np.ones(len(index)), (index, np.arange(len(index))))
    return scipy.sparse.csr_array(places, shape=(size, len(index))) @ values
