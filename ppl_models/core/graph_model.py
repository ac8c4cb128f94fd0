"""Base class of the models of graphs: nodes with latent blocks, and dyads that are independent given them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import DataError
from ppl_models.core.model import Example, Model
from ppl_models.core.plates import Graph
from ppl_models.core.sites import Site
from ppl_models.data import sparse as _sparse
from ppl_models.data.graphs.data import GraphData
from ppl_models.data.graphs.door import as_graph, check_graph_for_fitting
from ppl_models.data.held import Reading, Source
from ppl_models.data.matrix import Data
from ppl_models.distributions.labellings import Symmetric


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphModel(Model):
    """A model of a graph of N nodes, observed as its adjacency matrix x (N, N).

    directed: every ordered pair (i, j) is a dyad; otherwise every i < j, x is symmetric, and so is every site over
        pairs of blocks (its prior is then that of the entries a <= b, mirrored).
    self_loops: whether (i, i) is a dyad too.

    A graph is one observation: log p(x | globals) does not split over its nodes, and has shape (1,) wherever models of
    rows have (N,). The program's one point of subsampling is its plate "data" of dyads, numbered as in :meth:`dyads`;
    its site x is the vector of the dyads. Fits, samples and figures hold x as (N, N).
    """

    num_blocks: int
    num_nodes: int
    directed: bool = True
    self_loops: bool = False

    wide_reason: ClassVar[str | None] = "a block without nodes cannot be learned"
    #: "binary", "counts" or None (at least 0): what an entry of x is, unless the support of its site has negative
    #: numbers: then whatever that support has.
    edge_kind: ClassVar[str] = "binary"
    #: Global sites over pairs of blocks, (K, K, ...).
    pair_sites: ClassVar[tuple[str, ...]] = ("edge_probability",)

    axes: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("component", "to_component"), "num_blocks"),
        **dict.fromkeys(("node", "to_node"), "num_nodes"),
    }
    sites: ClassVar[Mapping[str, Site]] = {
        "x": Site("observed", ("to_node",), ("node",), constraints.nonnegative_integer, sparse=True)
    }

    @property
    def first_nodes(self) -> int | None:
        """How many nodes are of the first of two modes; None where all are of one kind."""
        return None

    @property
    def data_kind(self) -> str:
        return ("multi" if self.edge_kind == "counts" else "") + ("digraph" if self.directed else "graph")

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """The model whose nodes are the graph's, directed as it is, of self loops if the graph has kept its own."""
        if isinstance(data, GraphData):
            settings = {"directed": data.directed, "self_loops": data.self_loops, **settings}
        return cls(num_blocks=num_components, num_nodes=len(data), **settings)

    def num_dyads(self, num_nodes: int | None = None) -> int:
        """E: pairs of nodes that the model says something of."""
        size = self.num_nodes if num_nodes is None else num_nodes
        pairs = size * (size - 1)
        return (pairs if self.directed else pairs // 2) + (size if self.self_loops else 0)

    def dyads(self, index: Tensor, num_nodes: int | None = None) -> tuple[Tensor, Tensor]:
        """The nodes (i, j) of dyads by their numbers, 0 to E - 1: row by row; of undirected graphs those right of the
        diagonal (or on it)."""
        size = self.num_nodes if num_nodes is None else num_nodes
        if self.directed:
            width = size if self.self_loops else size - 1
            i, j = index // width, index % width
            return i, j if self.self_loops else j + (j >= i)
        shift = 0 if self.self_loops else 1
        width = size - shift  # entries of the first row

        def before(row: Tensor) -> Tensor:
            return row * width - row * (row - 1) // 2

        root = torch.sqrt((2 * width + 1.0) ** 2 - 8.0 * index.double())
        i = ((2 * width + 1 - root) / 2).long().clamp(0, max(width - 1, 0))
        i = torch.where(before(i) > index, i - 1, i)  # the square root is rounded
        i = torch.where(before(i + 1) <= index, i + 1, i)
        return i, i + shift + index - before(i)

    def as_data(self, value: Tensor) -> Tensor:
        """The dyads (..., E) as adjacency matrices (..., N, N); 0 where there is no dyad."""
        dyads = value.shape[-1]
        guess = int((dyads if self.directed else 2 * dyads) ** 0.5)
        size = next(n for n in range(max(guess - 1, 1), guess + 3) if self.num_dyads(n) == dyads)
        i, j = self.dyads(torch.arange(dyads, device=value.device), size)
        matrix = value.new_zeros(*value.shape[:-1], size, size)
        matrix[..., i, j] = value
        if not self.directed:
            matrix[..., j, i] = value
        return matrix

    def graph(
        self, x: Tensor | None, mask: Tensor | None = None, batch_size: int | None = None, num_rows: int | None = None
    ) -> Graph:
        """Return the graph that a program states: its number of nodes, and the plate of its dyads.

        x: (N, N), dense or CSR, or ``None`` to generate a graph of ``num_rows`` nodes, by default as many as the
        model has. mask: (N, N), True where observed. batch_size: dyads of a minibatch.
        """
        size = x.shape[0] if x is not None else num_rows or self.num_nodes
        return Graph(self, x, mask, batch_size, size)

    def local_value(self, local: Tensor) -> Tensor:
        """The blocks (..., N) of one-hot rows (..., N, K), where nodes choose one each."""
        return local if self.sites[self.local_site].choice is None else local.argmax(-1)

    def prior(self, site: str, *, like: Tensor | None = None, values: Mapping[str, Tensor] | None = None) -> Any:
        prior = super().prior(site, like=like, values=values)
        if self.directed or site not in self.pair_sites:
            return prior
        return Symmetric(prior.base_dist)

    def prepare(self, data: Source, **reading: Unpack[Reading]) -> GraphData:
        """Validate a graph of ``num_nodes`` nodes, in any of the forms that :func:`ppl_models.graph` takes."""
        return self._as_graph(data, self.num_nodes, **reading)

    def prepare_new(self, data: Source, like: Data, **reading: Unpack[Reading]) -> GraphData:
        """Validate another graph, of any number of nodes where no site belongs to single nodes; where one does, of the
        same nodes, by their names. Raises DataError for unknown ones."""
        fixed = any("node" in axes for site, axes in self.dims.items() if site in self.shapes)
        nodes = like.coords.get("row") if fixed else None
        return self._as_graph(data, self.num_nodes if fixed else None, nodes=nodes, **reading)

    def _as_graph(self, data: Source, num_nodes: int | None, **settings: Any) -> GraphData:
        support = self.sites[self.observed_site].support
        signed = support is constraints.real or getattr(support, "lower_bound", 0) < 0
        kind = "real" if signed else self.edge_kind
        settings |= {"directed": self.directed, "self_loops": self.self_loops, "kind": kind}
        found = as_graph(data, num_nodes=num_nodes, site=self.observed_site, **settings)
        wrong = ~support.check(found.x.values()) if signed else torch.zeros(0)
        if bool(wrong.any()):
            value = float(found.x.values()[wrong][0])
            raise DataError(f"an edge of value {value:g}", site=self.observed_site, axis="edge", expected=f"{support}")
        return found

    def as_read(self, data: Data) -> Data:
        """The graph with a dense mask where dyads are hidden: what the program takes beside a sparse x."""
        if not isinstance(data, GraphData) or data.hidden is None or data.mask is not None:
            return data
        return replace(data, mask=data.observed_mask())

    def check_for_fitting(self, data: Data) -> None:
        if not isinstance(data, GraphData):
            raise DataError("not a graph", site=self.observed_site, expected="what ppl_models.graph returns")
        check_graph_for_fitting(data)

    def num_unseen(self, num_rows: int) -> int:
        """Count the entries above the diagonal of symmetric sites of an undirected model."""
        del num_rows
        above = 0 if self.directed else self.num_blocks * (self.num_blocks - 1) // 2
        return sum(above * math.prod(self.shapes[s][2:]) for s in self.pair_sites if s in self.unknown_sites)


def graph_example(model: GraphModel, x: np.ndarray, truth: Mapping[str, Any]) -> Example:
    """The example of a graph model from its adjacency matrix (N, N)."""
    dense = torch.as_tensor(x).to(torch.get_default_dtype())
    return Example.of(model, GraphData(x=_sparse.from_dense(dense), directed=model.directed), truth)
