"""What variational Bayes of block models iterates on, and the globals that it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from custom_inference.core.posteriors import ContinuousPosterior, DirichletPosterior
from custom_inference.core.states import Params, State
from custom_inference.families.blocks.likelihoods import Pair, likelihood_of
from custom_inference.families.blocks.nodes import nodes_of


@dataclass(frozen=True)
class BlockPosteriors(State):
    """proportion (K,): concentrations; first, second (K, K): of the block matrix' Betas or Gammas; responsibility
    (N, K): the division of the nodes that it goes with; propensities: parameters of theirs, where nodes have them."""

    proportion: Tensor
    first: Tensor
    second: Tensor
    responsibility: Tensor
    propensities: Params = field(default_factory=dict)

    @property
    def pair(self) -> Pair:
        return self.first.double(), self.second.double()

    def values(self, model: Any) -> Params:
        """The posterior means."""
        values, _ = nodes_of(model, integrated=True).values(self.propensities)
        return {site: posterior.mean for site, posterior in self._blocks(model).items()} | values

    def posteriors(self, model: Any) -> Mapping[str, ContinuousPosterior]:
        return self._blocks(model) | nodes_of(model, integrated=True).values(self.propensities)[1]

    def _blocks(self, model: Any) -> dict[str, ContinuousPosterior]:
        matrix = likelihood_of(model)
        return {
            "block_proportion": DirichletPosterior(self.proportion),
            matrix.site: matrix.posterior((self.first, self.second)),
        }
