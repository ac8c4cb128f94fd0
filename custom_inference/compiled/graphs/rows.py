"""A graph as the steps of a compiled program read it, at a cost linear in edges and hidden dyads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_inference.compiled.blocks import Block
from custom_inference.compiled.graphs.structure import GraphStructure, structure_of
from custom_inference.compiled.graphs.views import views_of
from custom_inference.compiled.reading import NotCompiled
from custom_inference.core.capacity import memory_limit, require
from custom_inference.families.blocks.rows import SbmRows
from ppl_models import Data, GraphData, GraphModel, MethodError

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


class Links(NamedTuple):
    """The dyads of a graph as compiled code reads them, self loops apart, by their first nodes and by their second.

    start (2, N + 1), node (2, E): in CSR who a stored edge is with. change (2, E, F): features of its value less those
    of 0, of those features that change. hidden_start (2, N + 1), hidden_node (2, M): unobserved dyads. directed:
    whether all others are seconds of a node, else only those of larger numbers.
    """

    start: Whole
    node: Whole
    change: Floats
    hidden_start: Whole
    hidden_node: Whole
    directed: bool


@dataclass(frozen=True)
class DyadRows:
    """The nodes of a graph with what its dyads have.

    i, j (E,): stored edges, once each, without self loops; change (E, F): their features less those of 0. zero (F,):
    the features of 0. hidden (2, M): unobserved dyads without self loops. loops (N, F), loop_seen (N,): the same of
    self loops, whose change is 0 where there is none. offset: what log p has that no parameter changes.
    """

    structure: GraphStructure
    data: GraphData
    i: Whole
    j: Whole
    change: Floats
    zero: Floats
    hidden: Whole
    loops: Floats
    loop_seen: Floats
    offset: float
    like: Tensor

    @classmethod
    def of(cls, model: GraphModel, data: Data) -> DyadRows:
        """Read a graph. Raises NotCompiled where its program is no product of laws of nodes and dyads."""
        structure = structure_of(model, data)  # which refuses what is no graph
        data = cast(GraphData, data.to(device="cpu"))
        law, size = structure.dyads.law, data.num_nodes
        ends, value = data.edges(), data.edge_values().double()
        nothing = value.new_zeros(1)
        if bool(law.find_unknown(value).any()):
            raise NotCompiled(f"{type(model).__name__} is not compiled: {law.kind.__name__} has further values here")
        zero = law.features(nothing)[0]
        needed, fits = (
            8.0 * len(value) * (4 + 8 * len(zero)),
            "SVI(batch_size=...) takes a sample of the dyads in each step",
        )
        require(f"a graph of {len(value)} dyads other than 0", needed, allowed=memory_limit(), fits=fits)
        change = (law.features(value) - zero).numpy()
        hidden = np.empty((2, 0), np.int64) if data.hidden is None else data.hidden.numpy()
        seen = model.num_dyads(size) - hidden.shape[1]
        offset = float((law.base(value) - law.base(nothing)).sum()) + seen * float(law.base(nothing))
        i, j = ends.numpy()
        loop, unseen = i == j, hidden[0] == hidden[1]
        loops, loop_seen = np.zeros((size, len(zero))), np.full(size, float(model.self_loops))
        loops[i[loop]] = change[loop]
        loop_seen[hidden[0, unseen]] = 0.0
        like = data.x.values().new_zeros(())
        apart = i[~loop], j[~loop], change[~loop], zero.numpy(), hidden[:, ~unseen]
        return cls(structure, data, *apart, loops, loop_seen, offset, like)

    def __len__(self) -> int:
        return self.data.num_nodes

    @property
    def num_labels(self) -> int:
        return self.structure.program.num_labels

    @property
    def directed(self) -> bool:
        return self.structure.model.directed

    def select(self, index: Tensor | slice) -> DyadRows:
        raise MethodError("the nodes of a graph are one observation; steps of a graph take all of them")

    def to(self, dtype: torch.dtype) -> DyadRows:
        """Return the rows with results of another type; sums over a graph are in double precision whatever that is."""
        return self if self.like.dtype == dtype else replace(self, like=self.like.to(dtype))

    @property
    def blocks(self) -> tuple[Block, Block]:
        """The laws of the nodes and of the dyads."""
        return self.structure.nodes, self.structure.dyads

    #: What laws read of data beside their features.
    parts: ClassVar[tuple[None, None]] = (None, None)

    def statistics(self, labelled: Tensor, counted: Tensor) -> list[Tensor]:
        """Return what both laws count, from probabilities (N, K) of labels and expected features (K, K, F) of dyads."""
        nodes = labelled.sum(0) if self.structure.alike_nodes else labelled
        return [nodes.reshape(1, 1, -1, labelled.shape[1]), counted.flatten(0, 1)[None, :, None]]

    def partners(self, phi: Floats, rates: Floats, number: Floats, side: int) -> Floats:
        """Return the sums (N,) over the observed dyads of nodes on a side of the others' numbers (N,) times E[rates]
        between labels, (K, K), at responsibilities (N, K)."""
        others = (self.firsts if side else self.seconds)(number[:, None] * phi)
        return (phi * (others @ (rates if side else rates.T))).sum(1)

    @cached_property
    def degrees(self) -> Floats:
        """The sums (2, N) of the edges of which nodes are first, and second, self loops apart."""
        value = self.change[:, 0]
        return np.stack([np.bincount(end, value, len(self)) for end in (self.i, self.j)]).astype(np.float64)

    @cached_property
    def views(self) -> list[tuple[SbmRows, str]]:
        """The graph as block models see it, with the names of their likelihoods: what starts divide."""
        return views_of(self.structure.model, self.data, by_degree=bool(self.structure.propensities.ends))

    @cached_property
    def moving(self) -> Whole:
        """Which features change with the values that there are."""
        return np.flatnonzero((self.change != 0).any(0) | (self.loops != 0).any(0))

    @cached_property
    def links(self) -> Links:
        """The graph as arrays for compiled code."""
        size = len(self)
        sides = [_lists(self.i, self.j, size), _lists(self.j, self.i, size)]
        unseen = [_lists(self.hidden[0], self.hidden[1], size), _lists(self.hidden[1], self.hidden[0], size)]
        change = np.stack([self.change[order][:, self.moving] for _, _, order in sides])
        start, node = (np.stack([one[part] for one in sides]) for part in (0, 1))
        hidden_start, hidden_node = (np.stack([one[part] for one in unseen]) for part in (0, 1))
        return Links(start, node, np.ascontiguousarray(change), hidden_start, hidden_node, self.directed)

    @cached_property
    def matrices(self) -> list[Any]:
        """The changes of every moving feature, CSR (N, N)."""
        shape = (len(self), len(self))
        return [scipy.sparse.csr_matrix((self.change[:, f], (self.i, self.j)), shape=shape) for f in self.moving]

    @cached_property
    def _unseen(self) -> Any:
        ones = np.ones(self.hidden.shape[1])
        return scipy.sparse.csr_matrix((ones, (self.hidden[0], self.hidden[1])), shape=(len(self), len(self)))

    @cached_property
    def dense(self) -> Tensor:
        """The features (N, N, F) of the observed dyads of a small graph, once each; 0 elsewhere."""
        size = len(self)
        found = np.zeros((size, size, len(self.zero)))
        seen = 1.0 - np.eye(size) if self.directed else np.triu(np.ones((size, size)), 1)
        first = self.structure.model.first_nodes
        if first is not None:
            seen[first:] = seen[:, :first] = 0.0
        seen[self.hidden[0], self.hidden[1]] = 0.0
        found += seen[:, :, None] * self.zero
        found[self.i, self.j] += self.change
        loop = np.arange(size)
        found[loop, loop] += self.loops + self.loop_seen[:, None] * self.zero
        return torch.as_tensor(found)

    def seconds(self, weighted: Floats) -> Floats:
        """Sum (N, K) numbers of nodes over those that are second in an observed dyad with each, self loops apart."""
        total = weighted.sum(0) - weighted if self.directed else weighted.sum(0) - np.cumsum(weighted, 0)
        return total - self._unseen @ weighted if self.hidden.size else total

    def firsts(self, weighted: Floats) -> Floats:
        """Sum (N, K) numbers of nodes over those that are first in an observed dyad with each, self loops apart."""
        total = weighted.sum(0) - weighted if self.directed else np.cumsum(weighted, 0) - weighted
        return total - self._unseen.T @ weighted if self.hidden.size else total

    def exposures(self, phi: Floats, weight: Floats) -> Floats:
        """Return how many observed dyads are expected between labels, (K, K), those of nodes i and j as w_i w'_j."""
        found = (weight[0, :, None] * phi).T @ self.seconds(weight[1, :, None] * phi)
        return found + np.diag((self.loop_seen * weight[0] * weight[1]) @ phi)

    def count(self, phi: Floats, weight: Floats) -> Floats:
        """Return the expected features (K, K, F) of the observed dyads between labels, at responsibilities (N, K)."""
        found = self.exposures(phi, weight)[:, :, None] * self.zero
        for f, matrix in zip(self.moving, self.matrices, strict=True):
            found[:, :, f] += phi.T @ (matrix @ phi) + np.diag(self.loops[:, f] @ phi)
        return found


def _lists(first: Whole, second: Whole, size: int) -> tuple[Whole, Whole, Whole]:
    """Return where the list of each node begins, (N + 1,), the others in it, and the order of all pairs."""
    order = np.lexsort((second, first))
    start = np.concatenate([[0], np.cumsum(np.bincount(first, minlength=size))]).astype(np.int64)
    return start, second[order].astype(np.int64), order
