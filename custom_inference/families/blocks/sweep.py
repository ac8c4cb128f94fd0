"""Shares of the nodes' blocks at given expectations over the globals: coordinate ascent, the bound, cold starts.

The bound is that of ``sbm_common``. At given globals too it has many optima; where nothing tells which, sweeps start
from several divisions of the nodes, each found without the globals, its blocks then named by them: in a division with
edges m, exposures n and sizes s block a is called sigma(a), where that is best,

    sum_ab [m_ab A_(sigma(a) sigma(b)) + n_ab B_(sigma(a) sigma(b))] + sum_a s_a log pi_sigma(a).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import xlogy

from custom_inference.families.blocks.nodes import NodeTerms
from custom_inference.families.blocks.rows import Counts, Floats, SbmRows

#: A share that moves by less ends the sweeps.
_STILL = 1e-10
#: Divisions that a cold start tries, and the sweeps after which these are judged.
_TRIES, _JUDGED = 3, 30
#: Edges and K N nodes, times K, up to which divisions are sought by integrated likelihood: about ten seconds each.
_AFFORDED = 10**6
#: Up to so many blocks all ways of naming them are tried.
_ALL_ORDERS = 6


@dataclass(frozen=True)
class Expected:
    """Expectations over the globals: log pi (K,), A and B (K, K), and what the nodes bring.

    likelihood: its name, "bernoulli", "poisson" or "degree_corrected".
    """

    log_proportion: Floats
    lift: Floats
    base: Floats
    nodes: NodeTerms
    likelihood: str


def sweep(at: Expected, rows: SbmRows, share: Floats, sweeps: int, temperature: float = 1.0) -> float:
    """Coordinate ascent over the nodes, ``share`` (N, K) in place; returns the last change of a share."""
    from custom_inference.families.blocks.kernel import sweep_nodes

    out, into, hidden_out, hidden_in = rows.outgoing, rows.incoming, rows.hidden_out, rows.hidden_in
    weights = at.nodes.weights
    return sweep_nodes(
        out.start, out.index, out.value, into.start, into.index, into.value,
        hidden_out.start, hidden_out.index, hidden_in.start, hidden_in.index, rows.directed,
        weights.out, weights.into, rows.loops, rows.loop_seen * weights.own, at.log_proportion,
        temperature * at.lift, temperature * at.base, np.arange(len(rows)), share, sweeps, _STILL,
    )  # fmt: skip


def bound_at(at: Expected, rows: SbmRows, share: Floats, counts: Counts, temperature: float = 1.0) -> float:
    """The bound without the divergence of the globals; the likelihood raised to the temperature."""
    likelihood = float(_pairs(rows, counts.edges * at.lift + counts.exposure * at.base).sum()) + at.nodes.log_power
    if at.likelihood != "bernoulli":
        likelihood -= rows.log_factorials
    return temperature * likelihood + float(counts.size @ at.log_proportion) - float(xlogy(share, share).sum())


def cold_start(at: Expected, rows: SbmRows, generator: torch.Generator | None) -> Floats:
    """The best shares (N, K) that sweeps find from the proportions alone, and from some divisions of the nodes."""
    blocks = len(at.log_proportion)
    share = np.tile(np.exp(at.log_proportion - np.logaddexp.reduce(at.log_proportion)), (len(rows), 1))
    if blocks == 1:
        return share
    seed = 0 if generator is None else int(torch.randint(2**31, (), generator=generator))
    starts = [share] + [
        _named(at, rows, np.eye(blocks)[propose_labels(rows, blocks, at.likelihood, seed, attempt)])
        for attempt in range(_TRIES)
    ]
    scores = []
    for one in starts:
        sweep(at, rows, one, _JUDGED)
        scores.append(bound_at(at, rows, one, rows.counts(one, at.nodes.weights)))
    return starts[int(np.argmax(scores))]


def _named(at: Expected, rows: SbmRows, share: Floats) -> Floats:
    """The same division with its blocks called by the names of the globals."""
    counts = rows.counts(share, at.nodes.weights)
    counts = counts._replace(edges=_pairs(rows, counts.edges), exposure=_pairs(rows, counts.exposure))
    blocks = len(counts.size)
    if blocks <= _ALL_ORDERS:
        orders = np.array(list(permutations(range(blocks))))
        best = orders[_scores(at, counts, orders).argmax()]
    else:
        best = _swapped(at, counts)
    return share[:, np.argsort(best)]


def _scores(at: Expected, counts: Counts, orders: NDArray[np.int64]) -> Floats:
    """What naming block a of the division ``orders[..., a]`` scores, (...)."""
    pair = orders[..., :, None], orders[..., None, :]
    each = counts.edges * at.lift[pair] + counts.exposure * at.base[pair]
    return each.sum((-2, -1)) + (counts.size * at.log_proportion[orders]).sum(-1)


def _swapped(at: Expected, counts: Counts) -> NDArray[np.int64]:
    """Names by sizes and edges within blocks alone, then improved by swaps of two."""
    lift, base = np.diag(at.lift), np.diag(at.base)
    alone = np.outer(counts.size, at.log_proportion)
    alone += np.outer(np.diag(counts.edges), lift) + np.outer(np.diag(counts.exposure), base)
    order = linear_sum_assignment(-alone)[1]
    blocks, value = len(order), -np.inf
    for _ in range(blocks):
        for a in range(blocks):
            others = np.tile(order, (blocks, 1))
            others[np.arange(blocks), a], others[np.arange(blocks), np.arange(blocks)] = order, order[a]
            others[a] = order
            order = others[_scores(at, counts, others).argmax()]
        before, value = value, float(_scores(at, counts, order))
        if value <= before + 1e-9 * abs(value):
            break
    return order


def _pairs(rows: SbmRows, value: Floats) -> Floats:
    """Entries (K, K) of which each pair of blocks counts once."""
    return value if rows.directed else np.triu(value)


def propose_labels(rows: SbmRows, blocks: int, likelihood: str, seed: int, attempt: int) -> NDArray[np.int64]:
    """A division of the nodes into at most K blocks that is likely whatever the globals, (N,).

    By integrated likelihood; of big graphs, where that takes minutes, spectral alone.
    """
    from custom_inference.families.blocks import partitions

    if blocks == 1:
        return np.zeros(len(rows), dtype=np.int64)
    number = min(blocks, len(rows))
    if (rows.edges.nnz + len(rows) * blocks) * blocks <= _AFFORDED:
        return partitions.propose_partition(rows, number, likelihood, seed, attempt)
    return spectral_labels(rows, blocks, likelihood, seed, attempt)


def spectral_labels(rows: SbmRows, blocks: int, likelihood: str, seed: int, attempt: int) -> NDArray[np.int64]:
    """A division of the nodes into K blocks by spectral clustering alone, (N,)."""
    from custom_inference.families.blocks import partitions

    number = min(blocks, len(rows))
    graph = partitions.flat_graph(rows, number, likelihood)
    return partitions.spectral_partition(graph, number, np.random.default_rng([seed, attempt]))
