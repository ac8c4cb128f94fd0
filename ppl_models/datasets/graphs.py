"""Graphs with known blocks: stochastic block models of any size, and the examples of Murphy (2012), section 27.5."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ppl_models.core import displays
from ppl_models.core.errors import ModelError
from ppl_models.data.graphs.data import GraphData
from ppl_models.data.graphs.door import read_graph_data
from ppl_models.data.graphs.edges import Array
from ppl_models.data.held import Source


@dataclass(frozen=True)
class GeneratedGraph:
    """A graph, and what it was drawn from: site -> value; ``block`` (N,) or ``membership`` (N, K) among them."""

    graph: GraphData
    truth: dict[str, Tensor]

    @property
    def data(self) -> GraphData:
        return self.graph

    def _repr_html_(self) -> str:
        return displays.with_truth("Generated", self.truth, self.graph._repr_html_())

    @classmethod
    def of(cls, truth: dict[str, Any], source: Source | None = None, **settings: Any) -> GeneratedGraph:
        """The graph that :func:`ppl_models.graph` reads with these settings."""
        values = {site: torch.as_tensor(value) for site, value in truth.items()}
        kinds = {site: torch.get_default_dtype() if v.is_floating_point() else v.dtype for site, v in values.items()}
        return cls(read_graph_data(source, **settings), {site: v.to(kinds[site]) for site, v in values.items()})


def sample_sbm(
    edge_probability: ArrayLike,
    num_nodes: int | None = None,
    *,
    block_proportion: ArrayLike | None = None,
    sizes: ArrayLike | None = None,
    directed: bool = True,
    degrees: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
    poisson: bool = False,
    names: list[Any] | None = None,
    seed: int = 0,
) -> GeneratedGraph:
    """Draw a graph from a stochastic block model (Murphy 2012, eq. 27.75); the cost is linear in its edges, plus K^2.

    Parameters
    ----------
    edge_probability: (K, K), from the block of the row to that of the column; symmetric if undirected. Rates where
        ``poisson`` or ``degrees`` is given.
    sizes: nodes in each block (K,), which then lie together. Otherwise each of ``num_nodes`` nodes draws its block from
        ``block_proportion`` (K,), by default uniform.
    poisson: x_ij ~ Poisson(rate), a number of edges. Otherwise x_ij is 0 or 1.
    degrees: propensities theta (N,), or a pair of those to send and to receive: x_ij ~ Poisson(theta_i theta_j rate)
        (Karrer & Newman, *Stochastic blockmodels and community structure*, 2011, eq. 1); where ``poisson`` is False,
        whether that is above 0.

    ``truth`` has ``block``, ``block_proportion`` and ``edge_probability`` (``edge_rate`` with ``poisson`` or
    ``degrees``), and ``propensity`` or ``out_propensity`` and ``in_propensity``.
    """
    rng, counts = np.random.default_rng(seed), poisson or degrees is not None
    eta = _edge_probability(edge_probability, directed, at_most=np.inf if counts else 1.0)
    block, proportion = _blocks(rng, len(eta), num_nodes, block_proportion, sizes)
    theta = None if degrees is None else _propensities(degrees, len(block))
    members = [np.flatnonzero(block == k) for k in range(len(eta))]
    between = partial(_poisson_between, theta=theta) if counts else _dyads_between
    ends = [(a, b) for a in range(len(eta)) for b in range(len(eta)) if directed or a <= b]
    pairs = np.concatenate([between(rng, members[a], members[b], eta[a, b], directed, a == b) for a, b in ends])
    settings: dict[str, Any] = {"directed": directed, "nodes": len(block) if names is None else names}
    settings["edges"] = pairs if names is None else [(names[i], names[j]) for i, j in pairs.tolist()]
    truth = {"block": block, "block_proportion": proportion, "edge_rate" if counts else "edge_probability": eta}
    if theta is not None:
        sites = ("out_propensity", "in_propensity") if directed else ("propensity",)
        truth |= dict(zip(sites, theta, strict=False))
    return GeneratedGraph.of(truth, weight=None if poisson else False, kind="counts", **settings)


def _edge_probability(given: ArrayLike, directed: bool, *, at_most: float) -> Array:
    eta = np.asarray(given, dtype=np.float64)
    if eta.ndim != 2 or eta.shape[0] != eta.shape[1] or not ((eta >= 0) & (eta <= at_most) & np.isfinite(eta)).all():
        what = "probabilities" if at_most == 1 else "rates of at least 0"
        raise ModelError(f"edge_probability of shape {eta.shape}, {eta.tolist()}; expected {what}, (K, K)")
    if not directed and not np.allclose(eta, eta.T):
        raise ModelError("edge_probability is not symmetric; expected a symmetric matrix where directed=False")
    return eta


def _blocks(
    rng: np.random.Generator,
    num_blocks: int,
    num_nodes: int | None,
    proportion: ArrayLike | None,
    sizes: ArrayLike | None,
) -> tuple[Array, Array]:
    """The block of every node, and the proportions (K,) that it was drawn from."""
    if (sizes is None) == (num_nodes is None) or (sizes is not None and proportion is not None):
        raise ModelError("expected sizes of the blocks, or num_nodes with block_proportion")
    if sizes is not None:
        number = np.asarray(sizes, dtype=np.int64)
        if number.shape != (num_blocks,) or (number < 0).any() or number.sum() < 2:
            raise ModelError(f"sizes = {number.tolist()}, expected ({num_blocks},) numbers of nodes, 2 or more in all")
        return np.repeat(np.arange(num_blocks), number), number / number.sum()
    assert num_nodes is not None
    pi = np.full(num_blocks, 1 / num_blocks) if proportion is None else np.asarray(proportion, dtype=np.float64)
    if pi.shape != (num_blocks,) or (pi < 0).any() or not np.isclose(pi.sum(), 1, atol=1e-4) or num_nodes < 2:
        raise ModelError(
            f"block_proportion = {pi.tolist()} and num_nodes = {num_nodes}; expected {num_blocks} probabilities that "
            "sum to 1, and at least 2 nodes"
        )
    pi = pi / pi.sum()
    return rng.choice(num_blocks, num_nodes, p=pi), pi


def _propensities(degrees: ArrayLike | tuple[ArrayLike, ArrayLike], size: int) -> tuple[Array, Array]:
    both = degrees if isinstance(degrees, tuple) else (degrees, degrees)
    found = tuple(np.asarray(theta, dtype=np.float64) for theta in both)
    if len(found) != 2 or any(t.shape != (size,) or not (np.isfinite(t) & (t >= 0)).all() for t in found):
        raise ModelError(f"degrees of shape {[t.shape for t in found]}, expected ({size},) numbers of at least 0")
    return found[0], found[1]


def _dyads_between(
    rng: np.random.Generator, one: Array, other: Array, probability: float, directed: bool, same: bool
) -> Array:
    """Dyads with an edge (E, 2) between two blocks: how many is binomial, and then any are as likely as others."""
    total = len(one) * (len(other) - same) // (2 if same and not directed else 1)
    number = rng.binomial(total, probability) if total else 0
    chosen = np.empty(0, np.int64)
    if number:
        chosen = rng.choice(total, number, replace=False, shuffle=False).astype(np.int64)
    i, j = dyads_at(chosen, len(other), directed) if same else (chosen // len(other), chosen % len(other))
    return np.stack([one[i], other[j]], axis=1)


def dyads_at(number: Array, size: int, directed: bool) -> tuple[Array, Array]:
    """The ordered pairs i != j of ``size`` nodes, or the pairs i < j, by their place in lexicographic order."""
    if directed:
        i, j = number // (size - 1), number % (size - 1)
        return i, j + (j >= i)
    # Counted from the last dyad, row i begins at a triangular number.
    back = size * (size - 1) // 2 - 1 - number
    row = ((np.sqrt(8.0 * back + 1) - 1) // 2).astype(np.int64)
    row += (row + 1) * (row + 2) // 2 <= back  # the root was rounded down
    row -= row * (row + 1) // 2 > back  # or up
    return size - 2 - row, size - 1 - (back - row * (row + 1) // 2)


def _poisson_between(
    rng: np.random.Generator,
    one: Array,
    other: Array,
    rate: float,
    directed: bool,
    same: bool,
    theta: tuple[Array, Array] | None,
) -> Array:
    """Edges (E, 2), some of them parallel: a Poisson number in all, whose ends are then independent."""
    out, into = (np.ones(len(one)), np.ones(len(other))) if theta is None else (theta[0][one], theta[1][other])
    total = rate * out.sum() * into.sum() / (2 if same and not directed else 1)
    number = rng.poisson(total)
    if not number:
        return np.empty((0, 2), dtype=np.int64)
    i = one[rng.choice(len(one), number, p=out / out.sum())]
    j = other[rng.choice(len(other), number, p=into / into.sum())]
    kept = i != j  # what would fall on a node itself is no dyad, and is independent of the others
    i, j = i[kept], j[kept]
    pairs = (i, j) if directed else (np.minimum(i, j), np.maximum(i, j))
    return np.stack(pairs, axis=1)


def sample_mmsb(
    edge_probability: ArrayLike,
    num_nodes: int | None = None,
    *,
    alpha: float | Any = 0.1,
    membership: ArrayLike | None = None,
    sparsity: float = 0.0,
    directed: bool = True,
    seed: int = 0,
) -> GeneratedGraph:
    """Draw a graph from the mixed-membership block model (Murphy 2012, eqs. 27.77-27.79).

    p(x_ij = 1) = (1 - sparsity) sum_ab pi_ia eta_ab pi_jb with pi_i ~ Dirichlet(alpha), or ``membership`` (N, K) as
    given. The cost is that of the edges of a graph with the largest probability everywhere, which is thinned out.

    ``truth`` has ``membership``, ``edge_probability`` and ``sparsity``.
    """
    rng = np.random.default_rng(seed)
    eta = _edge_probability(edge_probability, directed, at_most=1.0)
    if (num_nodes is None) == (membership is None) or not 0 <= sparsity <= 1:
        raise ModelError(f"expected num_nodes or membership, and a sparsity in [0, 1] (found {sparsity})")
    if membership is None:
        assert num_nodes is not None
        membership = rng.dirichlet(np.broadcast_to(np.asarray(alpha, dtype=float), (len(eta),)), num_nodes)
    mix = np.asarray(membership, dtype=np.float64)
    if mix.ndim != 2 or mix.shape[1] != len(eta) or len(mix) < 2 or not np.allclose(mix.sum(1), 1):
        raise ModelError(f"membership of shape {mix.shape}, expected (N, {len(eta)}) rows that sum to 1, N >= 2")
    nodes, highest = np.arange(len(mix)), (1 - sparsity) * eta.max()
    pairs = _dyads_between(rng, nodes, nodes, highest, directed, True)
    chance = (1 - sparsity) * np.einsum("ea,ab,eb->e", mix[pairs[:, 0]], eta, mix[pairs[:, 1]], optimize=True)
    pairs = pairs[rng.random(len(pairs)) * highest < chance]
    truth = {"membership": mix, "edge_probability": eta, "sparsity": float(sparsity)}
    return GeneratedGraph.of(truth, edges=pairs, nodes=len(mix), directed=directed, kind="binary")


def ring_graph(num_nodes: int = 60, num_blocks: int = 4, **settings: Any) -> GeneratedGraph:
    """A ring (Murphy 2012, Fig. 27.20; Kemp et al. 2010, Fig. 4): each block sends edges to the next, the last to the
    first.

    settings: ``high`` and ``low``, the probabilities of an edge where the abstract graph has one and elsewhere;
    ``within`` blocks, by default ``low``; ``seed``.
    """
    return _kind_of_graph(num_nodes, np.roll(np.eye(num_blocks), 1, axis=1), **settings)


def hierarchy_graph(num_nodes: int = 60, num_blocks: int = 4, **settings: Any) -> GeneratedGraph:
    """A dominance hierarchy (Murphy, Fig. 27.20): each block sends edges to all below it; settings of ring_graph."""
    return _kind_of_graph(num_nodes, np.triu(np.ones((num_blocks, num_blocks)), 1), **settings)


def common_cause_graph(num_nodes: int = 60, num_blocks: int = 4, **settings: Any) -> GeneratedGraph:
    """A common cause (Murphy 2012, Fig. 27.20): the first block sends edges to all others; settings of ring_graph.

    The others do the same to the rest of the graph: what tells them apart is that there are edges ``within`` them, with
    the probability ``high`` by default.
    """
    abstract = np.zeros((num_blocks, num_blocks))
    abstract[0, 1:] = 1
    return _kind_of_graph(num_nodes, abstract, **{"within": settings.get("high", _HIGH), **settings})


def common_effect_graph(num_nodes: int = 60, num_blocks: int = 4, **settings: Any) -> GeneratedGraph:
    """A common effect (Murphy, Fig. 27.20): all other blocks send edges to the last; settings of common_cause_graph."""
    abstract = np.zeros((num_blocks, num_blocks))
    abstract[:-1, -1] = 1
    return _kind_of_graph(num_nodes, abstract, **{"within": settings.get("high", _HIGH), **settings})


_HIGH = 0.8


def _kind_of_graph(
    num_nodes: int, links: Array, *, high: float = _HIGH, low: float = 0.05, within: float | None = None, seed: int = 0
) -> GeneratedGraph:
    """Blocks of (nearly) one size, with edges by the abstract graph ``links`` (K, K) between them."""
    size = len(links)
    if size < 2 or num_nodes < 2 * size:
        raise ModelError(f"{num_nodes} nodes in {size} blocks, expected at least 2 blocks of 2 nodes")
    eta = np.where(links > 0, high, low)
    np.fill_diagonal(eta, low if within is None else within)
    sizes = [len(part) for part in np.array_split(np.arange(num_nodes), size)]
    return sample_sbm(eta, sizes=sizes, seed=seed)


_NINE = {1: (1, 4, 6), 2: (2, 3, 5, 8), 3: (7, 9)}


def nine_nodes() -> GeneratedGraph:
    """A directed graph on nine nodes in three blocks, as in Murphy (2012), Figs. 27.18-27.19 (Kemp et al. 2006, Fig.
    1).

    B1 = {1, 4, 6}, B2 = {2, 3, 5, 8}, B3 = {7, 9}, with most edges from B1 to B2, from B2 to B3 and from B3 to B1. The
    source says no more of the edges than that: here all of these 26 are there but three, and one other, 6 -> 1.
    """
    block = {node: label - 1 for label, nodes in _NINE.items() for node in nodes}
    pairs = [(i, j) for a, b in ((1, 2), (2, 3), (3, 1)) for i in _NINE[a] for j in _NINE[b]]
    pairs = [pair for pair in pairs if pair not in ((1, 8), (5, 7), (9, 4))] + [(6, 1)]
    truth = {"block": [block[node] for node in sorted(block)]}
    return GeneratedGraph.of(truth, edges=pairs, nodes=sorted(block), directed=True, kind="binary")


def karate() -> GeneratedGraph:
    """Zachary's karate club (1977), 34 members and 78 friendships, as networkx has it; undirected, 0/1.

    ``truth["block"]``: 0 for the members who went with Mr. Hi, 1 for those who went with the officer.
    """
    import networkx

    club = networkx.karate_club_graph()
    side = [int(club.nodes[n]["club"] == "Officer") for n in range(len(club))]
    return GeneratedGraph.of({"block": side}, club, weight=False, kind="binary")
