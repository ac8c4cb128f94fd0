"""Moves between optima: one block's nodes go to the other blocks, and its label to a half of another block.

A half is the nodes on one side of a direction of what is not explained: as the model has it, the dyads of a block's
nodes with any others differ by chance alone. Directions are those in which nodes of the block have many edges with
each other, or few, or are alike in whom they have edges with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from custom_inference.compiled.graphs.rows import DyadRows, Floats
from custom_inference.core.states import PointsWithLocals
from custom_inference.families.blocks.mean_field import RESPONSIBILITY

#: What a move gains at least, as a part of the objective.
_GAIN = 1e-7
#: Nodes of a block from which on it may be halved.
_LEAST = 4
#: Directions that a block is halved along: the highest and the lowest of its own dyads, and the highest of all.
WAYS = ("LA", "SA", "all")


def move_blocks(
    settle: Callable[[Tensor], tuple[float, PointsWithLocals]], rows: DyadRows, state: PointsWithLocals, value: float,
    generator: torch.Generator, patience: int,
) -> PointsWithLocals:  # fmt: skip
    """Try moves until so many in a row gain nothing, those first that halve large blocks for small ones; return the
    best state.

    settle: gives the objective and the state after some iterations from responsibilities. value: the objective at the
    state.
    """
    order = _list_moves(state, rows, generator)
    stalled = 0
    while stalled < patience and order:
        share = _halve(rows, state.locals[RESPONSIBILITY].double().numpy(), order.pop(0), generator)
        if share is None:
            continue
        stalled += 1
        other, moved = settle(torch.as_tensor(share))
        if other > value + _GAIN * abs(value):
            value, state, stalled = other, moved, 0
            order = _list_moves(state, rows, generator)
    return state


def _list_moves(state: PointsWithLocals, rows: DyadRows, generator: torch.Generator) -> list[tuple[int, int, str, int]]:
    """List which block is given up, which is halved, in what way, and by which of the features that change."""
    size = state.locals[RESPONSIBILITY].sum(0).double().numpy()
    each = [(a, b) for a in range(len(size)) for b in range(len(size)) if a != b]
    each.sort(key=lambda pair: (size[pair[0]] + 1) / (size[pair[1]] + 1))
    chosen = torch.randint(max(1, len(rows.moving)), (len(each) * len(WAYS),), generator=generator).tolist()
    every = [(a, b, way) for a, b in each for way in WAYS]
    return [(*one, feature) for one, feature in zip(every, chosen, strict=True)]


def _halve(rows: DyadRows, phi: Floats, move: tuple[int, int, str, int], generator: torch.Generator) -> Floats | None:
    """Give the nodes of one block to the others, and its label to a half of another; None where that is too small."""
    given, halved, way, feature = move
    own = _choose_mode(rows, generator)
    inside = np.flatnonzero((phi.argmax(1) == halved) & own)
    if len(inside) < _LEAST or not len(rows.moving):
        return None
    side = _find_direction(rows, inside, way, feature)
    if side is None:
        return None
    noise = torch.rand(phi.shape, generator=generator, dtype=torch.float64).numpy()
    found = phi + 1e-12 * noise
    found[own, given] = 0.0
    found /= found.sum(1, keepdims=True)
    found[inside[side > np.median(side)]] = np.eye(phi.shape[1])[given]
    return found


def _choose_mode(rows: DyadRows, generator: torch.Generator) -> NDArray[np.bool_]:
    """Return which nodes (N,) a move is of: of two-mode graphs those of one of both, else all."""
    first, place = rows.structure.model.first_nodes, np.arange(len(rows))
    if first is None:
        return place >= 0
    return (place < first) == bool(torch.randint(2, (), generator=generator))


def _find_direction(rows: DyadRows, inside: NDArray[np.int64], way: str, feature: int) -> Floats | None:
    """Return a direction (M,) over the nodes of a block, in which a feature of their dyads varies most."""
    matrix = rows.matrices[feature]
    if way == "all" or rows.structure.model.first_nodes is not None:
        wide = [matrix[inside], matrix.T.tocsr()[inside]]
        table = scipy.sparse.hstack(wide if rows.directed else [wide[0] + wide[1]]).tocsr()
        turned = table.T.tocsr()
    else:
        own = matrix[inside][:, inside]
        table, turned = (own + own.T).tocsr(), None

    def times(vector: Floats) -> Floats:
        vector = vector.ravel() - vector.mean()
        found = table @ (vector if turned is None else turned @ vector)
        return found - found.mean()

    shape: Any = (len(inside), len(inside))
    made: Any = LinearOperator
    solve: Any = eigsh
    operator: Any = made(shape, matvec=times, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(len(inside))
    try:
        return solve(operator, k=1, which="LA" if turned is not None else way, v0=start, tol=1e-2)[1][:, 0]
    except ArpackNoConvergence:
        return None
