"""How much of the posterior a mode of the labels holds: what divisions of the nodes are compared by.

    log sum over z in the mode of p(x, z) = E[log p(x, z)] + H(z),         z distributed as in the mode

Neither the log joint of one division nor mean field's bound will do near the limit of what can be found. All nodes in
one block are a single labelling, H = 0, of a higher log joint than any labelling of a mode whose H is a third of N; and
mean field takes sum_i H(phi_i) for H(z), but pays for it in E[log p] what the correlations of neighbours are worth.
Both ends of an edge correlate through it (Yedidia, Freeman & Weiss, IEEE Trans. Inf. Theory 51, 2005, eq. 37; for
block models Decelle et al., Phys. Rev. E 84, 2011): with the nodes' probabilities phi in the mode,

    H(z) = sum_i H(phi_i) - sum over pairs i < j with an edge of I_ij,
    I_ij = KL(b_ij from phi_i phi_j),    b_ij(a, b) = u_a W_ab v_b with row and column sums phi_i and phi_j,
    log W_ab = x_ij A_ab + w_i w'_j B_ab   (and the same of an edge from j to i),

which is exact where the edges form trees and dyads without edges say nothing of the pair. E[log p] counts an edge by
b_ij. It is an estimate, not a bound. The chain of draws that phi comes from is exact, other than sweeps of mean field,
which are too sure of the nodes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch

from custom_inference.core.engine import Params
from custom_inference.core.states import State
from custom_inference.families.blocks.labels_given import start_from_labels, sweep_given
from custom_inference.families.blocks.mean_field import BlockEngine, division_of
from custom_inference.families.blocks.rows import BlockCounts, Floats, SbmRows
from custom_inference.families.blocks.sweep import BlockExpectations, bound_at
from ppl_models.block_models import BlockModel

#: A node is sure of its block from this probability on, and certain where the others have less than that.
SURE, CERTAIN = 0.95, 1e-3
#: Where fewer nodes are not sure, their correlations are worth nothing to speak of.
_FEW = 0.01
#: Sweeps of Gibbs sampling at globals that are then drawn anew by their labels, how often, and those that count.
_SETTLE, _ROUNDS, _COUNTED = 20, 3, 80
#: Rounds of globals that suit the pairs and pairs that suit the globals.
_PAIRS = 4


class PairCorrelations(NamedTuple):
    """What the correlations of neighbours add to edges (K, K) and exposure (K, K) of ``BlockCounts``; and the sum of
    the mutual informations I_ij."""

    edges: Floats
    exposure: Floats
    information: float


def correlate_pairs(rows: SbmRows, phi: Floats, at: BlockExpectations) -> PairCorrelations:
    """Sum the correlations of the pairs of nodes with an edge and neither certain, at probabilities (N, K) and
    expectations of the globals."""
    from custom_inference.families.blocks.kernel import correlate

    open_ = phi.max(1) < 1 - CERTAIN
    first, second, there, back = _pairs(rows)
    kept = open_[first] & open_[second]
    first, second, there, back = (part[kept] for part in (first, second, there, back))
    more, longer = np.zeros((2, phi.shape[1], phi.shape[1]))
    arrays = (first, second, there, back, at.weights.ends, at.lift, at.base, phi, more, longer)
    total = float(correlate(*arrays, np.empty((2, *more.shape)), np.empty((2, len(more)))))
    if rows.directed:
        return PairCorrelations(more, longer, total)
    # As in ``BlockCounts``: both orders of two blocks, each dyad of one block once.
    edges, exposure = ((part + part.T) * (1 - 0.5 * np.eye(len(part))) for part in (more, longer))
    return PairCorrelations(edges, exposure, total)


def _pairs(rows: SbmRows) -> tuple[Any, Any, Any, Any]:
    """Return nodes i < j with an edge, x_ij, and x_ji of directed graphs (0 otherwise)."""
    ahead = scipy.sparse.triu(rows.edges, 1, format="csr")
    if not rows.directed:
        found = ahead.tocoo()
        return found.row, found.col, found.data, np.zeros(found.nnz)
    behind = scipy.sparse.triu(rows.edges.T, 1, format="csr")
    found = (ahead + behind).tocoo()
    there, back = (np.asarray(part[found.row, found.col], dtype=float).ravel() for part in (ahead, behind))
    return found.row, found.col, there, back


def mode_evidence(
    engine: BlockEngine, model: BlockModel, state: State | Params, rows: SbmRows, objective: float, seed: int
) -> float:
    """Compute the engine's objective with the labels' joint distribution in place of independent ones, in the state's
    mode.

    Where mean field is sure of all but a few nodes it is the objective itself; it is nowhere taken for less.
    """
    division = division_of(state)
    if division is None or unsure(division) < _FEW:
        return objective
    phi, state = _sample_probabilities(engine, model, state, rows, division.double().numpy(), seed)
    nodes, value = engine.node_params(model, state), objective
    counts = rows.counts(phi, engine.nodes(model).weights(nodes, rows))
    for _ in range(_PAIRS):
        at = engine.compute_expectations(model, state, rows)
        pairs = correlate_pairs(rows, phi, at)
        whole = BlockCounts(counts.edges + pairs.edges, counts.exposure + pairs.exposure, counts.size)
        state = engine.best(model, nodes, whole, torch.as_tensor(phi))
        at = engine.compute_expectations(model, state, rows)
        bound = bound_at(at, rows, phi, whole) - pairs.information
        value = engine.objective_at(model, state, torch.tensor([bound], dtype=torch.float64))
    return max(objective, float(value))


def unsure(division: torch.Tensor) -> float:
    """Return the share of the nodes that are not sure of their block."""
    return float((division.max(-1).values < SURE).double().mean())


def trivial(phi: Floats) -> str:
    """Describe a mode that divides nothing; return nothing for others."""
    blocks = phi.shape[1]
    return f"a trivial mode: all nodes in one of {blocks} blocks" if len(np.unique(phi.argmax(1))) == 1 < blocks else ""


def _sample_probabilities(
    engine: BlockEngine, model: BlockModel, state: State | Params, rows: SbmRows, phi: Floats, seed: int
) -> tuple[Floats, Any]:
    """Run Gibbs sampling from the state's division on; return the nodes' probabilities, and the state that it has moved
    to."""
    at, nodes = engine.compute_expectations(model, state, rows), engine.node_params(model, state)
    graph, drawn = start_from_labels(rows, at.weights.ends, phi.shape[1], phi.argmax(1), seed)
    for _ in range(_ROUNDS):
        sweep_given(graph, drawn, at, _SETTLE)
        codes = np.eye(phi.shape[1])[drawn.label]
        state = engine.best(model, nodes, rows.counts(codes, at.weights), torch.as_tensor(codes))
        at = engine.compute_expectations(model, state, rows)
    return sweep_given(graph, drawn, at, _COUNTED), state
