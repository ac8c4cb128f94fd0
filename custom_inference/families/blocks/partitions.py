"""Good partitions of a graph's nodes, to start from: by integrated likelihood, so that no values of globals matter.

Coordinate-wise methods end in the basin they start in, and on graphs most of these are bad. A partition is sought in
three ways, of which every attempt takes another:

* spectral: k-means of the singular vectors of the regularised adjacency (D_out + tau)^-1/2 A (D_in + tau)^-1/2, tau
  the mean degree (Qin & Rohe, NIPS 2013; both sides of directed graphs, as in Rohe, Qin & Yu, PNAS 113, 2016), rows of
  norm 1 where degrees are corrected for;
* agglomerative: more blocks than asked for, whose pairs are then merged where log p(x, z) loses least, nodes moving
  between merges (Peixoto, Phys. Rev. E 89, 2014);
* both, the first division being spectral.

Each is then improved by moves of single nodes and new divisions of blocks, moves of many nodes at once that only
climb. Import inside functions only: it loads the compiler.

Two blocks merged change their size and the cells of their rows and columns; what all pairs would gain is found at once
from the sums over blocks. A division is sought by sweeps restricted to the nodes and the labels of two blocks, after
fair coins: first of Gibbs sampling, then such as climb.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from custom_inference.families.blocks import gibbs_kernels as kernels
from custom_inference.families.blocks import gibbs_sparse as sparse
from custom_inference.families.blocks.cells import cell_scores, degree_scores, fill, total
from custom_inference.families.blocks.rows import (
    BERNOULLI,
    DEGREES,
    POISSON,
    Floats,
    Graph,
    PartitionState,
    SbmRows,
    graph_of,
)
from custom_inference.families.rows.graph import GraphRows

Labels = NDArray[np.int64]

KINDS = {"bernoulli": BERNOULLI, "poisson": POISSON, "degree_corrected": DEGREES}
#: Blocks to begin with, as a multiple of those asked for, and at least so many more.
_SPARE, _LEAST_SPARE = 2.0, 6
#: Share of the blocks in excess that go in one round of merges.
_ROUND = 0.5
#: Sweeps of Gibbs sampling after every round, with the power rising to 1; sweeps that only climb, at most.
_WARM, _CLIMB = 4, 50
#: Below so many nodes all singular vectors are computed at once.
_DENSE = 400
#: Edges and K N nodes, times K, up to which divisions are sought by integrated likelihood: about ten seconds each.
_AFFORDED = 10**6
#: Rows among which K different ones are looked for first, as a multiple of K.
_SORTED = 100


def propose_partition(rows: GraphRows, num_blocks: int, likelihood: str, seed: int, attempt: int) -> Labels:
    """Find a partition (N,) of high integrated likelihood log p(x, z) under flat priors.

    likelihood: "bernoulli", "poisson" or "degree_corrected". attempt: counts the proposals of one search; each begins
    in another way.
    """
    return search_partition(flat_graph(rows, num_blocks, likelihood), seed, attempt)[0]


def best_partition(rows: GraphRows, num_blocks: int, likelihood: str, seed: int, attempts: int) -> Labels:
    """Return the best of some attempts; the first differs by seed."""
    graph = flat_graph(rows, num_blocks, likelihood)
    found = [search_partition(graph, seed, seed % 3 + attempt) for attempt in range(attempts)]
    return max(found, key=lambda one: one[1])[0]


def propose_labels(rows: SbmRows, blocks: int, likelihood: str, seed: int, attempt: int) -> Labels:
    """Divide the nodes into at most K blocks so that the division is likely whatever the globals, (N,).

    By integrated likelihood; of big graphs, where that takes minutes, spectral alone.
    """
    if blocks == 1:
        return np.zeros(len(rows), dtype=np.int64)
    if (rows.edges.nnz + len(rows) * blocks) * blocks <= _AFFORDED:
        return propose_partition(rows, min(blocks, len(rows)), likelihood, seed, attempt)
    return spectral_labels(rows, blocks, likelihood, seed, attempt)


def spectral_labels(rows: SbmRows, blocks: int, likelihood: str, seed: int, attempt: int) -> Labels:
    """Divide the nodes into K blocks by spectral clustering alone, (N,)."""
    number = min(blocks, len(rows))
    return spectral_partition(flat_graph(rows, number, likelihood), number, np.random.default_rng([seed, attempt]))


def flat_graph(rows: GraphRows, num_blocks: int, likelihood: str) -> Graph:
    """Return the graph under flat priors."""
    return graph_of(rows, kind=KINDS[likelihood], alpha=np.ones(num_blocks), first=1.0, second=1.0)


def search_partition(graph: Graph, seed: int, attempt: int = 0) -> tuple[Labels, float]:
    """Search for labels (N,); return them, and log p(x, z) up to what does not depend on z. The priors' entries must
    all be the same."""
    blocks, size = graph.num_blocks, graph.num_nodes
    generator = np.random.default_rng([seed % 2**64, attempt])
    start = ("spectral", "both", "agglomerative")[attempt % 3]
    many = min(max(blocks + _LEAST_SPARE, math.ceil(_SPARE * blocks)), max(size, blocks))
    number = blocks if start == "spectral" else many
    random = start == "agglomerative"
    label = generator.integers(number, size=size) if random else spectral_partition(graph, number, generator)
    state = _anneal(graph, label, number, generator)
    while number > blocks:
        following = max(blocks, blocks + math.floor((number - blocks) * _ROUND))
        label = _merge(_resize(graph, number), state, following)
        number = following
        state = _anneal(graph, label, number, generator)
    for _ in range(3):
        if not improve(graph, state, 2 * blocks, 0.02 * graph.links.count[0].sum() / blocks, generator):
            break
    _climb(graph, state)
    return state.label.copy(), total(graph, state)


def _resize(graph: Graph, blocks: int) -> Graph:
    """Return this graph with another number of blocks, under the priors of its first block."""
    first, second = (np.full((blocks, blocks), prior[0, 0]) for prior in (graph.first, graph.second))
    return graph._replace(alpha=np.full(blocks, graph.alpha[0]), first=first, second=second)


def _anneal(graph: Graph, label: Labels, blocks: int, generator: np.random.Generator) -> PartitionState:
    """Run sweeps of Gibbs sampling with rising power, then climb to a local optimum."""
    sized = _resize(graph, blocks)
    state = PartitionState.empty(sized, int(generator.integers(2**63)))
    state.label[:] = label
    fill(sized, state)
    for power in np.linspace(0.25, 1.0, _WARM):
        sparse.sweep(sized, state, float(power))
    _climb(sized, state)
    return state


def _climb(graph: Graph, state: PartitionState) -> None:
    for _ in range(_CLIMB):
        if not sparse.sweep(graph, state, math.inf):
            return


def _merge(graph: Graph, state: PartitionState, wanted: int) -> Labels:
    """Merge the pairs of blocks that lose least until labels are below ``wanted``."""
    into = np.arange(graph.num_blocks)
    for a, b in disjoint_pairs(merge_gains(graph, state), len(into) - wanted):
        into[b] = a
    return np.unique(into, return_inverse=True)[1][state.label]


def disjoint_pairs(gain: NDArray[np.float64], most: int) -> list[tuple[int, int]]:
    """Return the pairs a < b of the highest gains above the diagonal, each block in one of them at most."""
    pairs: list[tuple[int, int]] = []
    busy: set[int] = set()
    gain[np.tril_indices(len(gain))] = -np.inf
    for flat in np.argsort(-gain, axis=None):
        a, b = divmod(int(flat), len(gain))
        if len(pairs) == most or not np.isfinite(gain[a, b]):
            break
        if not busy & {a, b}:
            pairs.append((a, b))
            busy |= {a, b}
    return pairs


def spectral_partition(graph: Graph, blocks: int, generator: np.random.Generator) -> Labels:
    """Cluster the leading singular vectors of the regularised adjacency by k-means."""
    found = _singular_vectors(graph, blocks, generator)
    if graph.kind == DEGREES:
        norm = np.linalg.norm(found, axis=1, keepdims=True)
        found = found / np.where(norm > 0, norm, 1.0)
    return cluster_rows(found, blocks, generator)


def cluster_rows(rows: NDArray[np.float64], blocks: int, generator: np.random.Generator) -> Labels:
    """Cluster rows (N, D) into at most K blocks by k-means, (N,)."""
    from sklearn.cluster import KMeans

    number = len(np.unique(rows[: _SORTED * blocks], axis=0))
    if number < blocks:
        number = len(np.unique(rows, axis=0))
    number, random = min(blocks, number), int(generator.integers(2**31))
    means: Any = KMeans(number, n_init=5, random_state=random)  # pyright: ignore[reportArgumentType]
    return means.fit_predict(rows).astype(np.int64)


def _singular_vectors(graph: Graph, blocks: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """Compute the singular vectors (N, K), or (N, 2 K) of directed graphs."""
    from scipy.sparse import csr_matrix, diags_array
    from scipy.sparse.linalg import svds

    size, links = graph.num_nodes, graph.links
    adjacency = csr_matrix((links.count[0], links.node[0], links.start[0]), (size, size))
    tau = max(links.degree[0].mean(), 1e-12)
    left, right = (diags_array(1 / np.sqrt(links.degree[side] + tau)) for side in (0, -1))
    scaled: Any = left @ adjacency @ right
    if size <= max(_DENSE, 3 * blocks):
        u, _, vh = np.linalg.svd(scaled.toarray())
        both = [u[:, :blocks], vh[:blocks].T]
    else:
        found: Any = svds(scaled, blocks, v0=generator.random(size))
        both = [found[0], found[2].T]
    return np.hstack(both) if graph.directed else both[0]


#: Sweeps of Gibbs sampling before the ones that climb, and at most so many of those.
_SCANS, _MOST = 4, 20
#: Cells of rows of merged blocks that are scored at a time.
_AT_ONCE = 2**20


def merge_gains(graph: Graph, state: PartitionState) -> Floats:
    """Compute what log p(x, z) gains by moving the nodes of b to a, but for the cells of a label that becomes empty.

    Of all pairs (K, K), above the diagonal; minus infinity elsewhere.
    """
    blocks = graph.num_blocks
    a, b = np.triu_indices(blocks, 1)
    step = max(1, _AT_ONCE // blocks)
    parts = [_gains(graph, state, a[at : at + step], b[at : at + step]) for at in range(0, len(a), step)]
    found = np.full((blocks, blocks), -np.inf)
    found[a, b] = np.concatenate(parts) if parts else 0.0
    return found


def _gains(graph: Graph, state: PartitionState, a: np.ndarray, b: np.ndarray) -> Floats:
    size, alpha, cell = state.size, graph.alpha, state.cell
    gain = gammaln(size[a] + size[b] + alpha[a]) - gammaln(size[a] + alpha[a]) - gammaln(size[b] + alpha[b])
    inner = [(a, a), (b, b), (a, b), *([(b, a)] if graph.directed else [])]
    m, t, before = (np.sum([part[at] for at in inner], 0) for part in (state.edges, state.exposure, cell))
    gain += cell_scores(graph.kind, graph.first[a, a], graph.second[a, a], m, t) - before
    others = np.ones((len(a), len(size)), dtype=bool)
    others[np.arange(len(a)), a] = others[np.arange(len(a)), b] = False
    sums = [graph.first, graph.second, state.edges, state.exposure, cell]
    for first, second, edges, exposure, old in [sums, [part.T for part in sums]][: 1 + graph.directed]:
        new = cell_scores(graph.kind, first[a], second[a], edges[a] + edges[b], exposure[a] + exposure[b])
        gain += np.where(others, new - old[a] - old[b], 0.0).sum(1)
    for degree in state.degree if graph.kind == DEGREES else ():
        together = degree_scores(size[a] + size[b], degree[a] + degree[b])
        gain += together - degree_scores(size[a], degree[a]) - degree_scores(size[b], degree[b])
    return gain


def improve(graph: Graph, state: PartitionState, tries: int, spread: float, generator: np.random.Generator) -> int:
    """Divide two blocks anew, or merge two and divide a third, and keep what is better; return how many changes were
    kept.

    spread: how much worse than the best, in log p(x, z), the merges are that are tried.
    """
    better, gain, before = 0, None, total(graph, state)
    for _ in range(tries if graph.num_blocks > 1 else 0):
        gain = merge_gains(graph, state) if gain is None else gain
        old = [part.copy() for part in state]
        noisy = gain + spread * generator.gumbel(size=gain.shape)
        _divide(graph, state, *divmod(int(noisy.argmax()), graph.num_blocks), generator)
        sparse.sweep(graph, state, math.inf)
        after = total(graph, state)
        if after > before + kernels.TIE:
            better, gain, before = better + 1, None, after
        else:
            for part, kept in zip(state[:-1], old[:-1], strict=True):  # the random numbers go on
                part[:] = kept
    return better


def _divide(graph: Graph, state: PartitionState, a: int, b: int, generator: np.random.Generator) -> None:
    """Divide the nodes of a and b anew; or let b join a, and divide another block between b and itself."""
    label = state.label
    c = int(label[generator.integers(len(label))])  # the block of a random node: large blocks more often
    if c not in (a, b):
        label[label == b] = a
        a = c
    nodes, pair = np.flatnonzero((label == a) | (label == b)), np.array([a, b])
    label[nodes] = pair[generator.integers(2, size=len(nodes))]
    fill(graph, state)
    for _ in range(_SCANS):
        sparse.sweep(graph, state, 1.0, nodes, pair)
    for _ in range(_MOST):
        if not sparse.sweep(graph, state, math.inf, nodes, pair):
            return
