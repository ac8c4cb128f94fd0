"""Graphs with planted groups, and what is known of them from the truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.optimize import linear_sum_assignment

from custom_inference.core.registry import engine_for
from ppl_models import SBM
from ppl_models.data.sparse import to_scipy
from ppl_models.datasets import sample_sbm


def drawn(nodes: int, groups: int, degree: float, ratio: float, seed: int) -> Any:
    within = groups * degree / (1 + (groups - 1) * ratio) / nodes
    rate = within * (ratio + (1 - ratio) * np.eye(groups))
    return sample_sbm(rate, sizes=np.full(groups, nodes // groups), directed=False, seed=seed)


def overlap(found: Any, truth: Any, groups: int) -> float:
    table = np.zeros((groups, groups))
    np.add.at(table, (np.asarray(found), np.asarray(truth)), 1)
    right = table[linear_sum_assignment(-table)].sum() / table.sum()
    return float((right - 1 / groups) / (1 - 1 / groups))


def propagated(x: Any, rate: Any, truth: Any, iterations: int = 300) -> Any:
    """The most probable group of each node by belief propagation at known rates (q, q) and equal groups."""
    i, j = (part.astype(np.int64) for part in sp.coo_array(x).coords)
    order = np.lexsort((j, i))
    i, j = i[order], j[order]
    reverse, nodes = np.lexsort((i, j)), x.shape[0]  # of the message from i to j, the one from j to i
    into = sp.csr_array((np.ones(len(i)), (i, np.arange(len(i)))), shape=(nodes, len(i)))
    marginal = np.eye(len(rate))[truth]
    message = marginal[i]
    for _ in range(iterations):
        heard = np.log(message[reverse] @ rate * nodes)
        total = into @ heard - rate @ marginal.sum(0)
        before, message, marginal = message, _normalised(total[i] - heard), _normalised(total)
        if np.abs(message - before).max() < 1e-4:
            break
    return marginal.argmax(1)


def _normalised(log: Any) -> Any:
    share = np.exp(log - log.max(1, keepdims=True))
    return share / share.sum(1, keepdims=True)


def limit_of(generated: Any, groups: int) -> float:
    truth = generated.truth["block"].numpy()
    labels = propagated(to_scipy(generated.graph.x), generated.truth["edge_probability"].numpy(), truth)
    return overlap(labels, truth, groups)


def learned_from_truth(generated: Any, groups: int) -> float:
    """Overlap of EM that starts from the true groups: below the limit by what learning the parameters costs."""
    truth = generated.truth["block"]
    model = SBM(num_blocks=groups, num_nodes=len(truth), directed=False)
    return overlap(from_truth(model, model.prepare(generated.graph), truth)[1], truth, groups)


def from_truth(model: Any, data: Any, truth: Any, rounds: int = 150) -> tuple[float, Any]:
    """log Z and labels where EM ends that starts from the true groups."""
    engine: Any = engine_for(model, "bethe")
    rows = engine.rows(model, data)
    codes = torch.nn.functional.one_hot(truth.long(), model.num_blocks).double()
    state, value, step = engine.from_responsibilities(model, codes, rows), -np.inf, None
    for _ in range(rounds):
        step = engine.e_step(model, state, rows)
        before, value = value, engine.objective_at(model, state, step.bound)
        state = engine.m_step(model, state, step, rows)
        if abs(value - before) < 0.002:
            break
    assert step is not None
    return value, step.locals["responsibility"].numpy().argmax(1)
