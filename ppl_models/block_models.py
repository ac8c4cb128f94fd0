"""Stochastic block models: every node has one block, and edges depend on the blocks of their ends.

Murphy (2012), section 27.5.1. Nodes i, j, blocks a, b:

    q_i ~ Categorical(pi)                                              the block of a node
    p(x_ij = r | q_i = a, q_j = b, eta) = Ber(r | eta_ab)                                              (eq. 27.75)

With counts of edges x_ij ~ Poisson(eta_ab). Real graphs have nodes of very different degrees within one block; the
degree-corrected model gives every node a propensity theta_i of its own (Karrer & Newman, *Stochastic blockmodels and
community structure in networks*, Phys. Rev. E 83, 2011):

    x_ij ~ Poisson(theta_i theta_j eta_ab)         directed: theta_i of sending, theta_j of receiving

The infinite block model finds out how many blocks there are (Murphy 2012, section 27.6.1, of one type and one relation;
Kemp, Tenenbaum, Griffiths, Yamada & Ueda, *Learning systems of concepts with an infinite relational model*, AAAI 2006).
The blocks of a Chinese restaurant process,

    p(a block of n nodes is joined) proportional to n,    p(a new one is opened) proportional to c,

are those that nodes use of K blocks with

    pi ~ Dirichlet(c / K, ..., c / K),       q_i | pi ~ Categorical(pi),
    p(partition) = [Gamma(c) / Gamma(c + N)] [K! / (K - u)!] prod_(a used) [Gamma(n_a + c / K) / Gamma(c / K)],

as K grows, u being the blocks in use: c^u Gamma(c) / Gamma(c + N) prod_a (n_a - 1)! (Green & Richardson, *Modelling
heterogeneity with and without the Dirichlet process*, Scand. J. Statist. 28, 2001). K is a bound that is not reached.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import ModelError
from ppl_models.core.graph_model import GraphModel, graph_example
from ppl_models.core.model import Example
from ppl_models.core.plates import Plate
from ppl_models.core.sites import Site
from ppl_models.distributions.labellings import EndBlocks, Labelling


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockModel(GraphModel):
    """Nodes that belong to one of K blocks each: what the block models have in common."""

    sites: ClassVar[Mapping[str, Site]] = {
        "block_proportion": Site("global", ("component",), support=constraints.simplex),
        "block": Site("latent", (), ("node",), choice="component"),
        **GraphModel.sites,
    }
    #: The sites of the propensities of senders and receivers; none without degree correction.
    propensity_sites: ClassVar[tuple[str, ...]] = ()

    def edge_distribution(self, site: Mapping[str, Tensor], local: Tensor | EndBlocks, i: Tensor, j: Tensor) -> Any:
        """Return p(x_ij | q, globals) of dyads (..., E), at the blocks of all nodes (..., N)."""
        return self.edges_between(site, *EndBlocks.at(local, i, j), i, j)

    @abc.abstractmethod
    def edges_between(self, site: Mapping[str, Tensor], first: Tensor, second: Tensor, i: Tensor, j: Tensor) -> Any:
        """Return p(x_ij | q_i, q_j) at the blocks (..., E) of the nodes i and j (E,)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SBM(BlockModel):
    """Stochastic block model: edges depend on the blocks of their ends.

    Sites
    -----
    block_proportion: pi (K,) on the simplex; flat (Dirichlet of ones) by default.
    edge_probability: eta (K, K), P(edge from a node of block a to one of block b); Beta(1, 1) by default. Symmetric
        where the model is undirected.
    block: q (N,), local, whole numbers from 0.
    x: the dyads, observed, 0 or 1.
    """

    sites: ClassVar[Mapping[str, Site]] = {
        **BlockModel.sites,
        "edge_probability": Site("global", ("component", "to_component"), support=constraints.unit_interval),
    }

    def __call__(self, x: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        proportion = self.sample("block_proportion")
        probability = self.sample("edge_probability")
        graph = self.graph(x, **plate)
        block = pyro.sample("block", Labelling(proportion.expand(graph.num_nodes, -1)))
        with graph as (i, j):
            first, second = EndBlocks.at(block, i, j)
            return graph.observe("x", dist.Bernoulli(probability[first, second]))

    def edges_between(self, site: Mapping[str, Tensor], first: Tensor, second: Tensor, i: Tensor, j: Tensor) -> Any:
        return dist.Bernoulli(site["edge_probability"][first, second])

    @classmethod
    def example(cls) -> Example:
        """Three blocks of a directed ring, twenty-four nodes."""
        probability = np.array([[0.1, 0.8, 0.05], [0.05, 0.15, 0.7], [0.75, 0.05, 0.1]])
        block = np.repeat([0, 1, 2], [10, 8, 6])
        rng = np.random.default_rng(11)
        x = (rng.random((24, 24)) < probability[block][:, block]) & ~np.eye(24, dtype=bool)
        truth = {"block_proportion": np.array([10, 8, 6]) / 24, "edge_probability": probability, "block": block}
        return graph_example(cls(num_blocks=3, num_nodes=24), x, truth)


@dataclass(frozen=True, kw_only=True, eq=False)
class PoissonSBM(BlockModel):
    """Stochastic block model of counts of edges: Poisson rates depend on the blocks.

    Sites
    -----
    block_proportion, block: as :class:`SBM`'s. x: the dyads, observed, counts.
    edge_rate: eta (K, K), expected edges from a node of block a to one of block b; Gamma(1, 1) by default. Symmetric
        where the model is undirected.
    """

    sites: ClassVar[Mapping[str, Site]] = {
        **BlockModel.sites,
        "edge_rate": Site("global", ("component", "to_component"), support=constraints.positive),
    }
    edge_kind: ClassVar[str] = "counts"
    pair_sites: ClassVar[tuple[str, ...]] = ("edge_rate",)

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "edge_rate": dist.Gamma(1.0, 1.0)}

    def __call__(self, x: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        proportion = self.sample("block_proportion")
        rate = self.sample("edge_rate")
        graph = self.graph(x, **plate)
        block = pyro.sample("block", Labelling(proportion.expand(graph.num_nodes, -1)))
        with graph as (i, j):
            first, second = EndBlocks.at(block, i, j)
            return graph.observe("x", dist.Poisson(rate[first, second]))

    def edges_between(self, site: Mapping[str, Tensor], first: Tensor, second: Tensor, i: Tensor, j: Tensor) -> Any:
        return dist.Poisson(site["edge_rate"][first, second])

    @classmethod
    def example(cls) -> Example:
        """Two communities of an undirected graph with several edges a dyad, twenty-two nodes."""
        rate = np.array([[1.5, 0.2], [0.2, 0.9]])
        block = np.repeat([0, 1], [12, 10])
        upper = np.triu(np.random.default_rng(12).poisson(rate[block][:, block]), 1)
        truth = {"block_proportion": np.array([12, 10]) / 22, "edge_rate": rate, "block": block}
        return graph_example(cls(num_blocks=2, num_nodes=22, directed=False), upper + upper.T, truth)


@dataclass(frozen=True, kw_only=True, eq=False)
class DegreeCorrectedSBM(PoissonSBM):
    """Degree-corrected stochastic block model: every node has a propensity of its own.

    Sites
    -----
    block_proportion, edge_rate, block, x: as of :class:`PoissonSBM`; 0/1 graphs are counts too.
    propensity: theta (N,), how often a node takes part in edges, relative to others of its block; Gamma(1, 1) by
        default, which fixes the scale. Directed graphs have ``out_propensity`` and ``in_propensity`` instead.
    """

    @property
    def propensity_sites(self) -> tuple[str, str]:
        """Of the first and of the second node of a dyad."""
        return ("out_propensity", "in_propensity") if self.directed else ("propensity", "propensity")

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), **{site: dist.Gamma(1.0, 1.0) for site in self.propensity_sites}}

    @property
    def sites(self) -> Mapping[str, Site]:
        return {
            **PoissonSBM.sites,
            **{site: Site("global", ("node",), support=constraints.positive) for site in self.propensity_sites},
        }

    def __call__(self, x: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        proportion = self.sample("block_proportion")
        rate = self.sample("edge_rate")
        if self.directed:
            send, receive = self.sample("out_propensity"), self.sample("in_propensity")
        else:
            send = receive = self.sample("propensity")
        graph = self.graph(x, **plate)
        block = pyro.sample("block", Labelling(proportion.expand(graph.num_nodes, -1)))
        with graph as (i, j):
            first, second = EndBlocks.at(block, i, j)
            return graph.observe("x", dist.Poisson(rate[first, second] * send[i] * receive[j]))

    def edges_between(self, site: Mapping[str, Tensor], first: Tensor, second: Tensor, i: Tensor, j: Tensor) -> Any:
        send, receive = self.propensity_sites
        return dist.Poisson(site["edge_rate"][first, second] * site[send][i] * site[receive][j])

    @classmethod
    def example(cls) -> Example:
        """Two communities with nodes of very different degrees, undirected, twenty-four nodes."""
        rng = np.random.default_rng(13)
        rate, propensity = np.array([[0.9, 0.08], [0.08, 1.1]]), rng.gamma(2.0, 0.5, 24)
        block = np.repeat([0, 1], 12)
        mean = propensity[:, None] * propensity * rate[block][:, block]
        upper = np.triu(rng.poisson(mean), 1)
        truth = {"block_proportion": np.array([0.5, 0.5]), "edge_rate": rate, "propensity": propensity, "block": block}
        return graph_example(cls(num_blocks=2, num_nodes=24, directed=False), upper + upper.T, truth)


@dataclass(frozen=True, kw_only=True, eq=False)
class InfiniteSBM(SBM):
    """Infinite stochastic block model: uses as many blocks as the graph asks for.

    num_blocks: K, more than are needed. concentration: c; more is more blocks: c log(1 + N / c) about, before there are
    edges. Sites as of :class:`SBM`; block_proportion is Dirichlet(c / K, ..., c / K) by default, so that most blocks
    have no nodes: ``fit.posterior.mean.argmax(-1).unique()`` are those in use.

    Raises ModelError for a concentration that is not positive.
    """

    num_blocks: int = 20
    concentration: float = 1.0

    wide_reason: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        if not self.concentration > 0:
            raise ModelError(f"concentration = {self.concentration!r}, expected a positive number")
        super().__post_init__()

    def default_priors(self) -> dict[str, Any]:
        share = torch.full((self.num_blocks,), self.concentration / self.num_blocks)
        return {**super().default_priors(), "block_proportion": dist.Dirichlet(share)}

    @classmethod
    def example(cls) -> Example:
        """Two communities of an undirected graph, twenty nodes, one block more than there are."""
        probability = np.array([[0.8, 0.08, 0.1], [0.08, 0.7, 0.1], [0.1, 0.1, 0.1]])
        block = np.repeat([0, 1], [11, 9])
        upper = np.triu(np.random.default_rng(14).random((20, 20)) < probability[block][:, block], 1)
        truth = {"block_proportion": np.array([0.53, 0.42, 0.05]), "edge_probability": probability, "block": block}
        return graph_example(cls(num_blocks=3, num_nodes=20, directed=False), upper | upper.T, truth)
