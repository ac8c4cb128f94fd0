"""Infinite stochastic block model: a block model that finds out how many blocks there are.

Source 002: Murphy, *Machine Learning: a Probabilistic Perspective*, section 27.6.1, of one type and one relation (Kemp,
Tenenbaum, Griffiths, Yamada & Ueda, *Learning systems of concepts with an infinite relational model*, AAAI 2006). The
blocks of a Chinese restaurant process,

    p(a block of n nodes is joined) ~ n,     p(a new one is opened) ~ c,

are those that nodes use of K blocks with

    pi ~ Dirichlet(c / K, ..., c / K),       q_i | pi ~ Categorical(pi),
    p(partition) = Gamma(c) / Gamma(c + N) K! / (K - u)! prod_(a used) Gamma(n_a + c / K) / Gamma(c / K),

as K grows, u being the blocks in use: c^u Gamma(c) / Gamma(c + N) prod_a (n_a - 1)! (Green & Richardson, *Modelling
heterogeneity with and without the Dirichlet process*, Scand. J. Statist. 28, 2001). K is a bound that is not reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyro.distributions as dist
import torch

from ppl_models.core.errors import ModelError
from ppl_models.core.graph_model import graph_example
from ppl_models.core.model import Example
from ppl_models.sbm import SBM


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
