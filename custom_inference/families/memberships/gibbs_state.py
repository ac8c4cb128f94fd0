"""What the compiled sweeps of ``gibbs_kernels`` read, and the blocks of all dyads that they change."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from custom_inference.core.capacity import memory_limit, require
from custom_inference.families.memberships.common import beta_prior, membership_prior
from custom_inference.families.rows.graph import GraphRows, Neighbours
from ppl_models import MMSB

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

#: Rows and columns of a tile: of two matrices of bytes, 8 kB.
TILE = 64


class Fixed(NamedTuple):
    """start (N + 1,), index: the edges, in CSR; of undirected graphs those on and right of the diagonal.

    alpha (K,), mass: the prior of memberships, and its sum. prior (2, K, K): (h, g) of f(0) and f(1). sparsity (2,):
    (d, c) of rho, or (1 - rho, rho). learns_rate, learns_background: whether those are integrated out, or given.
    layers: 1 where a node's blocks all lie in its row of ``State.sender``. hidden, none, background: marks there of a
    dyad that is none or was not observed, that has no blocks yet, and that takes none.
    """

    start: Whole
    index: Whole
    alpha: Floats
    mass: float
    prior: Floats
    sparsity: Floats
    learns_rate: bool
    learns_background: bool
    directed: bool
    layers: int
    hidden: int
    none: int
    background: int


class MembershipState(NamedTuple):
    """The blocks, and what they add up to.

    sender, receiver (N, N): s of dyad (i, j) at [i, j], and r at [j, i]: row i of both holds what node i takes. One
        and the same matrix for undirected graphs without self loops.
    member (N, K), taken (N,): c_ik, and its sum over k. kind (2,): dyads with blocks, and background ones.
    cells (2, K, K): dyads without an edge and with one, by their blocks, symmetric if undirected. rate (2, K, K): f.
    rng (1,): SplitMix64.
    """

    sender: NDArray[Any]
    receiver: NDArray[Any]
    member: Whole
    taken: Whole
    kind: Whole
    cells: Whole
    rate: Floats
    rng: NDArray[np.uint64]


def arrays_of(model: MMSB, rows: GraphRows) -> Fixed:
    """Return the arrays of a graph under the priors of a model."""
    like, learned, rho = torch.zeros((), dtype=torch.float64), model.sparsity is None, float(model.sparsity or 0.0)
    alpha = membership_prior(model, like).numpy().copy()
    edge = beta_prior(model, "edge_probability", like)
    prior = np.stack([edge.off.numpy(), edge.on.numpy()])
    c, d = beta_prior(model, "sparsity", like) if learned else (rho, 1 - rho)
    upper: Any = scipy.sparse.triu(rows.outgoing.matrix, format="csr")
    edges = rows.outgoing if model.directed else Neighbours.of(upper)
    top = int(np.iinfo(number_type(model.num_blocks)).max)
    return Fixed(
        edges.start, edges.index, alpha, float(alpha.sum()), prior, np.array([float(d), float(c)]), True, learned,
        model.directed, 2 if model.directed or model.self_loops else 1, top, top - 1, top - 2,
    )  # fmt: skip


def rates(probability: NDArray[np.floating]) -> Floats:
    """Return f (2, K, K) of eta, off 0 and 1 by rounding."""
    edge = np.finfo(np.float64).eps
    eta = np.asarray(probability, dtype=np.float64).clip(edge, 1 - edge)
    return np.stack([1 - eta, eta])


def empty_state(fixed: Fixed, rows: GraphRows, seed: int) -> MembershipState:
    """Return a state where no dyad has blocks. Raises CapacityError where the blocks of all dyads do not fit into
    memory."""
    size, blocks = len(rows), len(fixed.alpha)
    kind = number_type(blocks)
    require_memory(size, fixed.layers, np.dtype(kind).itemsize)
    sender = np.full((size, size), fixed.none, kind)
    receiver = sender if fixed.layers == 1 else np.full((size, size), fixed.none, kind)
    if not rows.self_loops:
        np.fill_diagonal(sender, fixed.hidden)
    hidden = rows.hidden_out.matrix.tocoo()
    sender[hidden.row, hidden.col] = fixed.hidden
    receiver[hidden.col, hidden.row] = fixed.hidden
    return MembershipState(
        sender, receiver, np.zeros((size, blocks), np.int64), np.zeros(size, np.int64), np.zeros(2, np.int64),
        np.zeros((2, blocks, blocks), np.int64), fixed.prior / fixed.prior.sum(0), np.array([seed % 2**64], np.uint64),
    )  # fmt: skip


def number_type(blocks: int) -> Any:
    """Return the smallest type of whole numbers that holds a block and three marks."""
    return np.uint8 if blocks <= 253 else np.uint16


def require_memory(size: int, layers: int, itemsize: int) -> None:
    """Raise CapacityError where the blocks of all dyads take more than half of what is free."""
    allowed, each = memory_limit(), layers * itemsize
    most = int((allowed / each) ** 0.5)
    fits = f"graphs of up to {most} nodes would fit; use VariationalEM, whose cost grows with the edges"
    require(f"a chain over all dyads of {size} nodes", float(each) * size**2, allowed=allowed, fits=fits)
