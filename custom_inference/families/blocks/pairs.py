"""The pairs of nodes with an edge, as belief propagation reads them (``bethe``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from custom_inference.core.threads import map_in_threads

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
#: Graphs of so many nodes are gone through in runs of so many.
_LARGE, _RUN = 20_000, 16
#: Rows of messages that are made at once.
PART = 2**16


class PairSlots(NamedTuple):
    """Every pair i, j with an edge in either direction has two slots, one at i and one at j, in CSR.

    start (N + 1,), node (E,): of node i the slots start[i] to start[i + 1], with j in ``node``. reverse (E,): of the
    slot of j at i, that of i at j. kind (E,): which of T kinds of pairs it is, seen from i. order (N,): of the nodes in
    a sweep. hidden_start (S, N + 1), hidden_node (S, M): unobserved dyads of nodes without an edge between them.

    counts (T, 2), seen (T, 2): x_ij and x_ji of a kind, and 1 where these dyads were observed; of undirected graphs
    the second entries are 0.
    """

    start: Whole
    node: Whole
    reverse: Whole
    kind: Whole
    order: Whole
    hidden_start: Whole
    hidden_node: Whole
    counts: Floats
    seen: Floats

    @property
    def owner(self) -> Whole:
        """The node that every slot belongs to, (E,)."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))


class BetheFactors(NamedTuple):
    """What the kernel reads of globals. table (T, K, K): W of the kinds of pairs over its largest entry, the
    neighbour's block first; shift (T,): the logarithms of these; own (N, K): log prior and self loop; bases (S, K, K):
    B transposed, and B; whole: whether exposures count for all pairs."""

    table: Floats
    shift: Floats
    own: Floats
    bases: Floats
    whole: bool


class Beliefs(NamedTuple):
    """Messages (E, K), of a slot what its node tells its owner, so that what is read lies together; and beliefs (N, K).
    Sweeps change both."""

    message: Floats
    belief: Floats

    @classmethod
    def of(cls, pairs: PairSlots, belief: Floats) -> Beliefs:
        """Return beliefs where every node tells all its neighbours the same."""
        message = make_in_parts((len(pairs.node), belief.shape[1]), lambda part: belief[pairs.node[part]])
        return cls(message, belief.copy())


def make_in_parts(shape: tuple[int, ...], rows_of: Callable[[slice], Floats]) -> Floats:
    """Make an array of the rows that a function gives of every part. Threads share them: of large graphs new memory
    takes as long as what is put there."""
    made = np.empty(shape)

    def put(first: int) -> None:
        part = slice(first, min(first + PART, len(made)))
        made[part] = rows_of(part)

    map_in_threads(put, range(0, len(made), PART))
    return made


def pairs_of(edges: Any, hidden: Any, *, directed: bool) -> PairSlots:
    """Build the slots from CSR matrices (N, N) without diagonals, ``edges`` and ``hidden``; symmetric for undirected
    graphs."""
    present = _ones(edges)
    pattern = _ones(present + present.T) if directed else present
    pattern.sort_indices()
    slots = pattern.tocoo()
    row, column = slots.row.astype(np.int64), slots.col.astype(np.int64)
    numbered = scipy.sparse.csr_array((np.arange(len(row)), pattern.indices, pattern.indptr), shape=pattern.shape)
    reverse = numbered.T.tocsr().data
    there, unseen = _at(edges, row, column), _at(hidden, row, column)
    if directed:
        each = np.stack([there, there[reverse], 1 - unseen, 1 - unseen[reverse]], -1)
        kinds, kind = np.unique(each, axis=0, return_inverse=True)
    else:
        alike = len(there) > 0 and bool((there == there[0]).all())  # as in most graphs: nothing to sort
        values, kind = (there[:1], np.zeros(len(there), int)) if alike else np.unique(there, return_inverse=True)
        kinds = np.stack([values, 0 * values, 1 + 0 * values, 0 * values], -1)
    rest = _ones(hidden - hidden.multiply(pattern))
    sides = [rest, rest.T.tocsr()] if directed else [rest]
    return PairSlots(
        pattern.indptr.astype(np.int64), column, reverse, kind.ravel().astype(np.int64),
        _shuffle(pattern.shape[0]),
        np.stack([side.indptr for side in sides]).astype(np.int64),
        np.stack([side.indices for side in sides]).astype(np.int64),
        np.ascontiguousarray(kinds[:, :2]), np.ascontiguousarray(kinds[:, 2:]),
    )  # fmt: skip


def _shuffle(size: int) -> Whole:
    """Return the nodes in random order; of large graphs short runs of them, whose slots lie together."""
    run = 1 if size < _LARGE else _RUN
    first = np.random.default_rng(0).permutation(-(-size // run)) * run
    order = (first[:, None] + np.arange(run)).ravel()
    return order[order < size]


def _ones(matrix: Any) -> Any:
    """Return 1 where an entry is not 0, in CSR."""
    found = scipy.sparse.csr_matrix(matrix, copy=True)
    found.eliminate_zeros()
    found.data = np.ones_like(found.data)
    return found


def _at(matrix: Any, row: Whole, column: Whole) -> Floats:
    if not matrix.nnz:
        return np.zeros(len(row))
    return np.asarray(matrix[row, column], np.float64).ravel()
