"""Programs of graphs as one writes them: 0/1 edges, counts, signs, weights, and nodes that differ in their degrees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch.distributions import constraints

from ppl_models import GraphModel, Site, TwoModeModel
from ppl_models.distributions import Hurdle, Labelling, Signs

PAIR = ("component", "to_component")
NODES: Mapping[str, Site] = {
    "size": Site("global", ("component",), support=constraints.simplex),
    "block": Site("latent", (), ("node",), choice="component"),
    **GraphModel.sites,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class _Blocks(GraphModel):
    """Nodes of one block each, and what is stated of a dyad at the blocks of its ends."""

    def __call__(self, x=None, **plate):
        values = self.sample_globals()
        graph = self.graph(x, **plate)
        z = pyro.sample("block", Labelling(values["size"].expand(graph.num_nodes, -1)))
        with graph as (i, j):
            return graph.observe("x", self.law(values, z[..., i], z[..., j], i, j))

    def law(self, values: Mapping[str, Any], a: Any, b: Any, i: Any, j: Any) -> Any:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, eq=False)
class Blocks(_Blocks):
    """P(edge) by the blocks of its ends."""

    pair_sites: ClassVar[tuple[str, ...]] = ("p",)
    sites: ClassVar[Mapping[str, Site]] = {**NODES, "p": Site("global", PAIR, support=constraints.unit_interval)}

    def law(self, values, a, b, i, j):
        return dist.Bernoulli(values["p"][a, b])


@dataclass(frozen=True, kw_only=True, eq=False)
class Ordered(Blocks):
    """The same, with a matrix that is not symmetric in undirected graphs: nodes are in an order."""

    pair_sites: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Rates(_Blocks):
    """Counts of edges."""

    edge_kind: ClassVar[str] = "counts"
    pair_sites: ClassVar[tuple[str, ...]] = ("rate",)
    sites: ClassVar[Mapping[str, Site]] = {**NODES, "rate": Site("global", PAIR, support=constraints.positive)}

    def default_priors(self):
        return {**super().default_priors(), "rate": dist.Gamma(1.0, 1.0)}

    def law(self, values, a, b, i, j):
        return dist.Poisson(values["rate"][a, b])


@dataclass(frozen=True, kw_only=True, eq=False)
class Signed(_Blocks):
    """No edge, a friend (1) or a foe (2)."""

    num_signs: int = 3

    edge_kind: ClassVar[str] = "counts"
    pair_sites: ClassVar[tuple[str, ...]] = ("sign",)
    axes: ClassVar[Mapping[str, str]] = {**GraphModel.axes, "sign_kind": "num_signs"}
    sites: ClassVar[Mapping[str, Site]] = {
        **NODES,
        "sign": Site("global", (*PAIR, "sign_kind"), support=constraints.simplex),
    }

    def law(self, values, a, b, i, j):
        return dist.Categorical(values["sign"][a, b])


@dataclass(frozen=True, kw_only=True, eq=False)
class Foes(Signed):
    """A foe (-1), no edge, or a friend (1)."""

    sites: ClassVar[Mapping[str, Site]] = {
        **Signed.sites,
        "x": Site("observed", ("to_node",), ("node",), constraints.integer_interval(-1, 1), sparse=True),
    }

    def law(self, values, a, b, i, j):
        return Signs(values["sign"][a, b])


@dataclass(frozen=True, kw_only=True, eq=False)
class Weighted(_Blocks):
    """Every dyad has a weight, any number, about a mean of the blocks."""

    pair_sites: ClassVar[tuple[str, ...]] = ("mean",)
    sites: ClassVar[Mapping[str, Site]] = {
        **NODES,
        "x": Site("observed", ("to_node",), ("node",), constraints.real, sparse=True),
        "mean": Site("global", PAIR, support=constraints.real),
        "spread": Site("global", (), support=constraints.positive),
    }

    def default_priors(self):
        return {**super().default_priors(), "mean": dist.Normal(0.0, 5.0), "spread": dist.LogNormal(0.0, 1.0)}

    def law(self, values, a, b, i, j):
        return dist.Normal(values["mean"][a, b], values["spread"])


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoPart(Weighted):
    """Edges by the blocks of their ends, and a weight of those that there are."""

    pair_sites: ClassVar[tuple[str, ...]] = ("mean", "p")
    sites: ClassVar[Mapping[str, Site]] = {**Weighted.sites, "p": Blocks.sites["p"]}

    def law(self, values, a, b, i, j):
        return Hurdle(super().law(values, a, b, i, j), values["p"][a, b])


@dataclass(frozen=True, kw_only=True, eq=False)
class Affine(_Blocks):
    """Assortative: one number for dyads within blocks, one for the others, on the scale of logits."""

    sites: ClassVar[Mapping[str, Site]] = {
        **NODES,
        "base": Site("global", (), support=constraints.real),
        "within": Site("global", (), support=constraints.real),
    }

    def default_priors(self):
        return {**super().default_priors(), "base": dist.Normal(0.0, 2.0), "within": dist.Normal(0.0, 2.0)}

    def law(self, values, a, b, i, j):
        return dist.Bernoulli(logits=values["base"] + values["within"] * (a == b))


@dataclass(frozen=True, kw_only=True, eq=False)
class Degrees(Rates):
    """Counts of edges by blocks, and by how often each node takes part in edges."""

    sites: ClassVar[Mapping[str, Site]] = {
        **Rates.sites,
        "often": Site("global", ("node",), support=constraints.positive),
    }

    def default_priors(self):
        return {**super().default_priors(), "often": dist.Gamma(1.0, 1.0)}

    def law(self, values, a, b, i, j):
        return dist.Poisson(values["rate"][a, b] * values["often"][i] * values["often"][j])


@dataclass(frozen=True, kw_only=True, eq=False)
class Readers(TwoModeModel):
    """Which readers like which books, by the sorts of both."""

    axes: ClassVar[Mapping[str, str]] = {**TwoModeModel.axes, "sort": "num_blocks"}
    sites: ClassVar[Mapping[str, Site]] = {
        **NODES,
        "sort_size": Site("global", ("sort",), support=constraints.simplex),
        "p": Site("global", ("component", "sort"), support=constraints.unit_interval),
    }

    def __call__(self, x=None, **plate):
        values = self.sample_globals()
        graph, readers = self.graph(x, **plate), self.num_first
        sizes = values["size"].expand(readers, -1), values["sort_size"].expand(graph.num_nodes - readers, -1)
        z = pyro.sample("block", Labelling(torch.cat(sizes)))
        with graph as (i, j):
            return graph.observe("x", dist.Bernoulli(values["p"][z[..., i], z[..., j]]))


def planted(kind: type[Any], size: int, blocks: int, seed: int, *, directed: bool, loops: bool = False) -> np.ndarray:
    """A graph of blocks of equal sizes, x (N, N), with more edges within blocks."""
    rng = np.random.default_rng(seed)
    label = np.arange(size) % blocks
    inside = label[:, None] == label
    if issubclass(kind, Signed):
        x = np.where(
            inside, rng.choice(3, (size, size), p=[0.5, 0.4, 0.1]), rng.choice(3, (size, size), p=[0.5, 0.1, 0.4])
        )
        x = (x + 1) % 3 - 1 if kind is Foes else x
    elif issubclass(kind, Weighted):
        x = rng.normal(np.where(inside, 0.5, -0.5), 0.7)
        x = x * (rng.random((size, size)) < np.where(inside, 0.5, 0.2)) if kind is TwoPart else x
    elif issubclass(kind, Rates):
        often = rng.gamma(3.0, 1 / 3, size) if issubclass(kind, Degrees) else np.ones(size)
        x = rng.poisson(np.where(inside, 0.8, 0.15) * often * often[:, None])
    else:
        x = rng.random((size, size)) < np.where(inside, 0.5, 0.1)
    x = x.astype(float) if directed else np.triu(x) + np.triu(x, 1).T * 1.0
    if not loops:
        np.fill_diagonal(x, 0.0)
    return x
