"""A graph as models take it: a sparse adjacency matrix, the dyads that were not observed, names of the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import psutil
import torch
from torch import Tensor

from ppl_models.core.errors import DataError, require_room, unknown_name
from ppl_models.data import sparse
from ppl_models.data.displays import of_graph
from ppl_models.data.graphs.edges import Array, dyad_key, sorted_dyads
from ppl_models.data.matrix import Data


@dataclass(frozen=True, kw_only=True, repr=False)
class GraphData(Data):
    """One graph of N nodes, which is one observation.

    x: (N, N) in torch's CSR layout: x[i, j], not 0, is the value of the edge from i to j, and nothing else is stored;
        symmetric if undirected; empty on the diagonal unless ``self_loops``.
    hidden: (2, M) unobserved dyads in lexicographic order, i < j if undirected, or None; x stores nothing there.
    directed: dyads are the ordered pairs i != j; otherwise the pairs i < j.
    self_loops: the pairs i = i are dyads too.
    coords: "row" and "feature" both hold the names of the nodes, where they have any.
    """

    hidden: Tensor | None = None
    directed: bool = True
    self_loops: bool = False

    container: ClassVar[str] = "graph"
    _display = of_graph

    @property
    def is_complete(self) -> bool:
        return self.hidden is None and self.mask is None

    @property
    def num_nodes(self) -> int:
        return self.x.shape[0]

    @property
    def num_hidden(self) -> int:
        """Unobserved dyads."""
        return 0 if self.hidden is None else self.hidden.shape[1]

    @property
    def num_dyads(self) -> int:
        """Observed dyads."""
        size = len(self)
        pairs = size * (size - 1) // (1 if self.directed else 2)
        return pairs + size * self.self_loops - self.num_hidden

    @property
    def num_edges(self) -> int:
        """Dyads with an edge; an undirected edge counts once."""
        return self.edges().shape[1]

    @property
    def nodes(self) -> list[Any]:
        """The names of the nodes; their numbers where they have none."""
        return self.coords.get("row", list(range(len(self))))

    def edges(self) -> Tensor:
        """(2, E): where each edge goes from and to, in lexicographic order; i < j if undirected."""
        return self._entries()[0]

    def edge_values(self) -> Tensor:
        """(E,): the values of :meth:`edges`, 1 for every edge of a 0/1 graph."""
        return self._entries()[1]

    def _entries(self) -> tuple[Tensor, Tensor]:
        row, column, value = sparse.triplets(self.x)
        if not self.directed:
            kept = row <= column
            row, column, value = row[kept], column[kept], value[kept]
        return torch.stack([row, column]), value

    def degrees(self, kind: str = "total") -> Tensor:
        """Number of edges of every node, (N,) whole numbers.

        kind: "out", "in", or "total", which of a directed graph is their sum; the three agree if undirected.
        """
        if kind not in ("out", "in", "total"):
            raise DataError(unknown_name("kind of degree", kind, ("out", "in", "total")), axis="node")
        out = self.x.crow_indices().diff()
        if kind == "out" or not self.directed:
            return out
        into = torch.bincount(self.x.col_indices(), minlength=len(self))
        return into if kind == "in" else out + into

    def observed_value(self, i: Tensor, j: Tensor) -> Tensor:
        """x[i, j] of the dyads, in the shape of ``i``; 0 where there is no edge, and where the dyad is hidden."""
        return sparse.look_up(self._key, i * len(self) + j, self.x.values())

    @cached_property
    def _key(self) -> Tensor:
        """One number for every stored entry, in increasing order."""
        row, column, _ = sparse.triplets(self.x)
        return row * len(self) + column

    def is_observed(self, i: Tensor, j: Tensor) -> Tensor:
        """Whether the dyads are observed, bool in the shape of ``i``; what is no dyad (i = j) is not."""
        loops = torch.zeros_like(i, dtype=torch.bool) if self.self_loops else i == j
        if self.hidden is None:
            return ~loops
        low, high = (i, j) if self.directed else (torch.minimum(i, j), torch.maximum(i, j))
        key = self.hidden[0] * len(self) + self.hidden[1]
        return ~(loops | sparse.look_up(key, low * len(self) + high, torch.ones_like(key, dtype=torch.bool)))

    def dense(self, *, max_bytes: float | None = None) -> Data:
        """Dense x (N, N), with the mask (N, N) where dyads are hidden; on the diagonal, which is no dyad, it is True.

        Raises CapacityError where that takes more than ``max_bytes``, by default half of the free memory.
        """
        self._check_room(self.x.values().element_size() + (self.hidden is not None), max_bytes)
        return Data(x=self.x.to_dense(), mask=self.observed_mask(), coords=dict(self.coords))

    def observed_mask(self, *, max_bytes: float | None = None) -> Tensor | None:
        """(N, N) bool, True where observed and on the diagonal; None where no dyad is hidden. Raises CapacityError."""
        if self.hidden is None:
            return None
        self._check_room(1, max_bytes)
        mask = torch.ones(len(self), len(self), dtype=torch.bool, device=self.x.device)
        mask[self.hidden[0], self.hidden[1]] = False
        if not self.directed:
            mask[self.hidden[1], self.hidden[0]] = False
        return mask

    def _check_room(self, bytes_a_dyad: int, max_bytes: float | None) -> None:
        size = len(self)
        needed = size * size * bytes_a_dyad
        allowed = max_bytes if max_bytes is not None else 0.5 * psutil.virtual_memory().available
        hint = "methods that read edges need no dense matrix"
        require_room(f"the entries of a dense adjacency matrix of {size} nodes", needed, allowed, hint)

    def to(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> GraphData:
        moved = super().to(dtype=dtype, device=device)
        return moved if self.hidden is None else replace(moved, hidden=self.hidden.to(device=moved.x.device))

    def rows(self, index: Tensor | slice) -> Data:
        """Refused: nodes are not rows that could be told apart from the others."""
        found = "rows of a graph were asked for, but every node is bound to the others by its dyads"
        raise DataError(found, axis="node", expected="subgraph(index), or without(dyads) to hold dyads out")

    def permuted(self, order: Tensor | Sequence[int]) -> GraphData:
        """Return the graph with its nodes reordered: node n is what was node ``order[n]``."""
        index = torch.as_tensor(order)
        if sorted(index.tolist()) != list(range(len(self))):
            found = f"an order of {len(index)} nodes, not all of them once"
            raise DataError(found, axis="node", expected=f"a permutation of 0, ..., {len(self) - 1}")
        return self.subgraph(index)

    def subgraph(self, index: Tensor | Sequence[int] | slice) -> GraphData:
        """The chosen nodes with the dyads among them, in the order of ``index`` (numbers, or True for each kept)."""
        chosen = sparse.places(len(self), index)
        if len(set(chosen.tolist())) < len(chosen) or not len(chosen):
            raise DataError(f"{len(chosen)} chosen nodes, none or some of them twice", axis="node", expected="a subset")
        matrix = sparse.to_scipy(self.x)[chosen][:, chosen]
        x = sparse.from_scipy(matrix, dtype=self.x.dtype, device=self.x.device)
        hidden = None
        if self.hidden is not None:
            place = np.full(len(self), -1)
            place[chosen] = np.arange(len(chosen))
            moved = place[self.hidden.cpu().numpy()]
            moved = sorted_dyads(moved[:, (moved >= 0).all(0)], len(chosen), self.directed)
            hidden = torch.as_tensor(moved, device=self.x.device) if moved.size else None
        names = self.nodes
        return replace(self, x=x, hidden=hidden, coords=name_coords([names[n] for n in chosen.tolist()]))

    def without(self, dyads: Tensor | Array) -> GraphData:
        """The graph with further dyads hidden, (2, M) numbers of nodes, in either direction if undirected."""
        added = torch.as_tensor(dyads).cpu().numpy().astype(np.int64)
        if added.ndim != 2 or added.shape[0] != 2 or (added.size and not (0 <= added.min() <= added.max() < len(self))):
            expected = f"(2, M) numbers of nodes below {len(self)}"
            raise DataError(f"dyads of shape {added.shape}", axis="dyad", expected=expected)
        if not self.self_loops and (added[0] == added[1]).any():
            raise DataError("dyads of a node with itself", axis="dyad", expected="self_loops=True, or other dyads")
        before = np.empty((2, 0), np.int64) if self.hidden is None else self.hidden.cpu().numpy()
        together = np.concatenate([before, added], axis=1)
        if not together.size:
            return self
        hidden = torch.as_tensor(sorted_dyads(together, len(self), self.directed), device=self.x.device)
        both = together if self.directed else np.concatenate([together, together[::-1]], axis=1)
        gone = np.isin(self._key.cpu().numpy(), dyad_key(both[0], both[1], len(self)))
        kept = sparse.with_values(self.x, self.x.values() * torch.as_tensor(~gone).to(self.x))
        x = sparse.from_scipy(sparse.to_scipy(kept), dtype=self.x.dtype, device=self.x.device)  # without the zeros
        return replace(self, x=x, hidden=hidden)

    def to_networkx(self) -> Any:
        """A networkx Graph or DiGraph with the names as nodes and the values as "weight"; hidden dyads have no edge."""
        import networkx

        graph, names = networkx.DiGraph() if self.directed else networkx.Graph(), self.nodes
        graph.add_nodes_from(names)
        ends = zip(*self.edges().tolist(), self.edge_values().tolist(), strict=True)
        graph.add_weighted_edges_from((names[i], names[j], value) for i, j, value in ends)
        return graph


def name_coords(names: Sequence[Any] | None) -> dict[str, list[Any]]:
    if names is None or list(names) == list(range(len(names))):
        return {}
    return {"row": list(names), "feature": list(names)}
