"""Mixed-membership stochastic block model: every node has its own mix of blocks, and takes one for each dyad.

Murphy (2012), section 27.5.2 (Airoldi, Blei, Fienberg & Xing,
*Mixed membership stochastic blockmodels*, JMLR 9, 2008). Nodes i, j, blocks a, b:

    pi_i ~ Dirichlet(alpha)                                            the membership of a node
    q_{i->j} ~ Cat(pi_i),  q_{i<-j} ~ Cat(pi_j)                        the blocks that i and j take for (i, j) (27.77)
    p(x_ij = 1 | q_{i->j} = a, q_{i<-j} = b) = eta_ab                                                  (eq. 27.78)
    p(x_ij = r | ...) = rho delta_0(r) + (1 - rho) Ber(r | eta_ab)     zeros that say nothing          (eq. 27.79)

Summing the two indicators out leaves p(x_ij = 1 | pi_i, pi_j) = (1 - rho) sum_ab pi_ia eta_ab pi_jb.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import ModelError, is_real
from ppl_models.core.graph_model import GraphModel, graph_example
from ppl_models.core.model import Example
from ppl_models.core.plates import Plate
from ppl_models.core.priors import dirichlet
from ppl_models.core.sites import Site


@dataclass(frozen=True, kw_only=True, eq=False)
class MMSB(GraphModel):
    """Mixed-membership stochastic block model: a node's block varies from dyad to dyad.

    Sites
    -----
    edge_probability: eta (K, K); Beta(1, 1) by default. Symmetric where the model is undirected.
    membership: pi (N, K), local, on the simplex; Dirichlet(.1, ..., .1) by default.
    sparsity: rho (), the probability that a zero comes from the background and says nothing of the nodes (eq. 27.79). A
        site only where ``sparsity`` is None, with a Beta(1, 1) prior; otherwise the number given, 0 by default. rho
        and eta are confounded, p(x = 1) = (1 - rho) eta: a learned rho needs an informative prior of either.
    x: the dyads, observed, 0 or 1; the blocks that nodes take for them are summed out (:class:`MMSBIndicator`
        keeps them).

    Raises ModelError for a sparsity outside [0, 1).
    """

    sparsity: float | None = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        rho = self.sparsity
        if rho is not None and not (is_real(rho) and 0 <= rho < 1):
            raise ModelError(f"sparsity = {rho!r}, expected a number in [0, 1), or None to learn it")

    @property
    def sites(self) -> Mapping[str, Site]:
        learned = {} if self.sparsity is not None else {"sparsity": Site("global", support=constraints.unit_interval)}
        return {
            "edge_probability": Site("global", ("component", "to_component"), support=constraints.unit_interval),
            **learned,
            "membership": Site("latent", ("component",), ("node",), constraints.simplex),
            **GraphModel.sites,
        }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "membership": dist.Dirichlet(torch.full((self.num_blocks,), 0.1))}

    def with_concentration(self, alpha: float | Tensor) -> Self:
        """The same model with a Dirichlet(alpha) prior of the memberships: one number, or (K,)."""
        return self.with_priors(membership=dirichlet("membership", alpha, self.num_blocks))

    def __call__(self, x: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        probability = self.sample("edge_probability")
        sparsity = self.sample("sparsity") if self.sparsity is None else self.sparsity
        graph = self.graph(x, **plate)
        with pyro.plate("nodes", graph.num_nodes, dim=-1):
            membership = self.sample("membership")
        with graph as (i, j):
            mixed = (membership[i] @ probability * membership[j]).sum(-1)
            # Sums of products of probabilities may exceed 1 by rounding.
            return graph.observe("x", dist.Bernoulli(((1 - sparsity) * mixed).clamp(max=1.0)))

    def rho(self, site: Mapping[str, Tensor]) -> Tensor | float:
        """Return the sparsity: the site's value, or the setting."""
        return site["sparsity"] if self.sparsity is None else self.sparsity

    def edge_distribution(self, site: Mapping[str, Tensor], local: Tensor, i: Tensor, j: Tensor) -> Any:
        """Return p(x_ij | pi, globals) of dyads (..., E), at the memberships of all nodes (..., N, K)."""
        mixed = (local[i] @ site["edge_probability"] * local[j]).sum(-1)
        return dist.Bernoulli(((1 - self.rho(site)) * mixed).clamp(max=1.0))

    @classmethod
    def example(cls) -> Example:
        """Two communities and some nodes between them, directed, twenty nodes."""
        rng = np.random.default_rng(14)
        membership = np.repeat([[0.95, 0.05], [0.05, 0.95], [0.5, 0.5]], [8, 8, 4], axis=0)
        probability = np.array([[0.85, 0.05], [0.15, 0.75]])
        x = (rng.random((20, 20)) < membership @ probability @ membership.T) & ~np.eye(20, dtype=bool)
        truth = {"edge_probability": probability, "membership": membership}
        return graph_example(cls(num_blocks=2, num_nodes=20), x, truth)


@dataclass(frozen=True, kw_only=True, eq=False)
class MMSBIndicator(MMSB):
    """The same model with the blocks that nodes take for a dyad kept as sites, for enumeration and for sampling.

    sender, receiver: q_{i->j} and q_{i<-j} of every dyad (E,) (eq. 27.77), marked for parallel enumeration: dyads are
    independent given the memberships. Summed out they leave :class:`MMSB`.
    """

    @property
    def sites(self) -> Mapping[str, Site]:
        dyads = Site("latent", (), ("dyad",), choice="component")
        return {**super().sites, "sender": dyads, "receiver": dyads}

    listed: ClassVar[bool] = False

    @property
    def summed_out(self) -> MMSB:
        """:class:`MMSB` with the same priors: what fits hold."""
        return MMSB(**self.settings(), priors=self.priors)

    def __call__(self, x: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        probability = self.sample("edge_probability")
        sparsity = self.sample("sparsity") if self.sparsity is None else self.sparsity
        graph = self.graph(x, **plate)
        with pyro.plate("nodes", graph.num_nodes, dim=-1):
            membership = self.sample("membership")
        with graph as (i, j):
            infer: Any = {"enumerate": "parallel"}
            sender = pyro.sample("sender", dist.Categorical(membership[i]), infer=infer)
            receiver = pyro.sample("receiver", dist.Categorical(membership[j]), infer=infer)
            return graph.observe("x", dist.Bernoulli((1 - sparsity) * probability[sender, receiver]))
