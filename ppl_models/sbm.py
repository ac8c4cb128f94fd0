"""Stochastic block models: every node has one block, and edges depend on the blocks of their ends.

Source 002: Murphy, *Machine Learning: a Probabilistic Perspective*, section 27.5.1. Nodes i, j, blocks a, b:

    q_i ~ Categorical(pi)                                              the block of a node
    p(x_ij = r | q_i = a, q_j = b, eta) = Ber(r | eta_ab)                                              (eq. 27.75)

With counts of edges x_ij ~ Poisson(eta_ab). Real graphs have nodes of very different degrees within one block; the
degree-corrected model gives every node a propensity theta_i of its own (Karrer & Newman, *Stochastic blockmodels and
community structure in networks*, Phys. Rev. E 83, 2011):

    x_ij ~ Poisson(theta_i theta_j eta_ab)         directed: theta_i of sending, theta_j of receiving
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.graph_model import GraphModel, graph_example
from ppl_models.core.model import Example
from ppl_models.core.sites import Site
from ppl_models.distributions.labellings import EndBlocks, Labelling


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockModel(GraphModel):
    """Nodes that belong to one of K blocks each."""

    sites: ClassVar[Mapping[str, Site]] = {
        "block_proportion": Site("global", ("component",), support=constraints.simplex),
        "block": Site("latent", (), ("node",), choice="component"),
        **GraphModel.sites,
    }

    def draw_locals(self, site: Mapping[str, Tensor], num_nodes: int) -> Tensor:
        """The blocks of the nodes (N,) as one event; enumerated ones have axes in front."""
        return pyro.sample("block", Labelling(site["block_proportion"].unsqueeze(-2).expand(num_nodes, -1)))

    def edge_distribution(self, site: Mapping[str, Tensor], local: Tensor | EndBlocks, i: Tensor, j: Tensor) -> Any:
        ends = local if isinstance(local, EndBlocks) else EndBlocks(_of_nodes(local, i), _of_nodes(local, j))
        return self.edges_between(site, ends.first, ends.second, i, j)

    @abc.abstractmethod
    def edges_between(self, site: Mapping[str, Tensor], first: Tensor, second: Tensor, i: Tensor, j: Tensor) -> Any:
        """p(x_ij | q_i, q_j) at the blocks (..., E) of the nodes i and j (E,)."""

    def local_value(self, local: Tensor) -> Tensor:
        """The blocks (..., N) of one-hot rows (..., N, K)."""
        return local.argmax(-1)


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


def _of_nodes(block: Tensor, index: Tensor) -> Tensor:
    """The blocks (..., E) of the nodes in ``index``: an enumerated labelling has a last batch axis for the plate."""
    taken = block[..., index]
    return taken.squeeze(-2) if block.ndim > 1 else taken
