"""Responsibilities phi (N, K) at given expectations over the globals: coordinate ascent, the bound, cold starts.

The bound is that of ``common``. At given globals too it has many optima; where nothing tells which, sweeps start
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
from scipy.special import softmax, xlogy

from custom_inference.families.blocks.rows import BlockCounts, Floats, NodeWeights, SbmRows

#: Sweeps end when no responsibility moves by more.
_TOLERANCE = 1e-10
#: Divisions that a cold start tries, and the sweeps after which they are compared.
_TRIES, _COLD_SWEEPS = 3, 30
#: Up to so many blocks all ways of naming them are tried.
_ALL_ORDERS = 6


@dataclass(frozen=True)
class BlockExpectations:
    """Expectations over the globals: log pi (K,), A and B (K, K), and the weights of the nodes.

    likelihood: its name, "bernoulli", "poisson" or "degree_corrected".
    """

    log_proportion: Floats
    lift: Floats
    base: Floats
    weights: NodeWeights
    likelihood: str


def sweep(at: BlockExpectations, rows: SbmRows, phi: Floats, sweeps: int, temperature: float = 1.0) -> None:
    """Run coordinate ascent over the nodes, changing ``phi`` in place."""
    from custom_inference.families.blocks.kernel import sweep_nodes

    weights, lift, base = at.weights, temperature * at.lift, temperature * at.base
    loops = rows.loop_seen * weights.own
    both = [np.stack([one.T, one]) for one in (lift, base)]
    total, work = weights.ends @ phi, np.empty((3, phi.shape[1]))
    sweep_nodes(rows.links, weights.ends, loops, at.log_proportion, *both, phi, total, work, sweeps, _TOLERANCE)


def bound_at(at: BlockExpectations, rows: SbmRows, phi: Floats, counts: BlockCounts, temperature: float = 1.0) -> float:
    """Compute the bound without the divergence of the globals; the likelihood raised to the temperature."""
    edges, exposure, size = counts.once(rows.directed)
    likelihood = float((edges * at.lift + exposure * at.base).sum()) + at.weights.log_power
    if at.likelihood != "bernoulli":
        likelihood -= rows.log_factorials
    return temperature * likelihood + float(size @ at.log_proportion) - float(xlogy(phi, phi).sum())


def cold_start(at: BlockExpectations, rows: SbmRows, generator: torch.Generator | None) -> Floats:
    """Return the best phi that sweeps find from the proportions alone, and from some divisions of the nodes."""
    blocks = len(at.log_proportion)
    phi = np.tile(softmax(at.log_proportion), (len(rows), 1))
    if blocks == 1:
        return phi
    from custom_inference.families.blocks.partitions import propose_labels

    seed = 0 if generator is None else int(torch.randint(2**31, (), generator=generator))
    labels = [propose_labels(rows, blocks, at.likelihood, seed, attempt) for attempt in range(_TRIES)]
    starts = [phi, *(_align_blocks(at, rows, np.eye(blocks)[label]) for label in labels)]
    scores = []
    for one in starts:
        sweep(at, rows, one, _COLD_SWEEPS)
        scores.append(bound_at(at, rows, one, rows.counts(one, at.weights)))
    return starts[int(np.argmax(scores))]


def _align_blocks(at: BlockExpectations, rows: SbmRows, phi: Floats) -> Floats:
    """Reorder the blocks of a division so that they match the globals."""
    counts = rows.counts(phi, at.weights).once(rows.directed)
    blocks = len(counts.size)
    if blocks <= _ALL_ORDERS:
        orders = np.array(list(permutations(range(blocks))))
        best = orders[score_names(at, counts, orders).argmax()]
    else:
        best = _match_by_swaps(at, counts)
    return phi[:, np.argsort(best)]


def score_names(at: BlockExpectations, counts: BlockCounts, orders: NDArray[np.int64]) -> Floats:
    """Score naming block a of the division ``orders[..., a]``, (...); counts of a pair of blocks once."""
    pair = orders[..., :, None], orders[..., None, :]
    each = counts.edges * at.lift[pair] + counts.exposure * at.base[pair]
    return each.sum((-2, -1)) + (counts.size * at.log_proportion[orders]).sum(-1)


def _match_by_swaps(at: BlockExpectations, counts: BlockCounts) -> NDArray[np.int64]:
    """Name the blocks by sizes and edges within blocks alone, then improve the names by swaps of two."""
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
            order = others[score_names(at, counts, others).argmax()]
        before, value = value, float(score_names(at, counts, order))
        if value <= before + 1e-9 * abs(value):
            break
    return order
