"""Globals of block models whose priors are not conjugate: values of a chain's state (``common.explicit``).

Given the labels, the block proportions see the sizes of the blocks, and the block matrix edges and exposures. Sweeps
of labels and merge-split moves are the same at given values, as f(m, t) = m A + t B stands for the integral over eta,
and n log pi for that over pi (``gibbs_kernels``).

Propensities depend on each other, so each moves on its own: log theta_i by a step of about its standard deviation
given the rest, and the scale of every block's propensities together (``gibbs_conditionals``).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from custom_inference.families.blocks.cells import fill
from custom_inference.families.blocks.likelihoods import likelihood_of
from custom_inference.families.blocks.rows import BERNOULLI, GIVEN, Floats, Graph, PartitionState
from custom_inference.families.common.explicit import Explicit
from custom_inference.gibbs.protocol import Params
from ppl_models.block_models import BlockModel

#: Passes over the propensities in a sweep, and their steps in standard deviations.
_WALKS, _STEP = 2, 2.4


class BlockValues:
    """The explicit ones of block proportions and block matrix."""

    def __init__(self, model: BlockModel, explicit: Mapping[str, Explicit]):
        self.likelihood = likelihood_of(model)
        self.explicit = {
            site: explicit[site] for site in ("block_proportion", self.likelihood.site) if site in explicit
        }
        self._begun = False

    def draw(self, graph: Graph, state: PartitionState, generator: np.random.Generator) -> Graph:
        """Draw new values given the labels; return the graph with these in the places of their priors."""
        left = state.exposure - state.edges if graph.kind == BERNOULLI else state.exposure
        counts = {"block_proportion": (state.size,), self.likelihood.site: (state.edges, left)}
        at = graph
        for site, one in self.explicit.items():
            statistics = tuple(torch.as_tensor(part.copy()) for part in counts[site])
            if not self._begun:
                one.begin(statistics, generator)
            one.update(statistics, generator)
            if site == "block_proportion":
                at = at._replace(alpha=one.value.numpy(), counted=False)
            else:
                lift, base = (np.ascontiguousarray(part.numpy()) for part in self.likelihood.natural(one.value))
                at = at._replace(first=lift, second=base, kind=GIVEN)
        self._begun = True
        return at

    def values(self) -> Params:
        return {site: one.value for site, one in self.explicit.items()}

    def log_prior(self) -> float:
        return sum(one.log_prior() for one in self.explicit.values())


class Walks:
    """Steps of propensities under any priors. sides: of each side of a dyad its site; starts are those in ``graph``."""

    def __init__(self, sides: list[Explicit], graph: Graph):
        self.sides = sides
        for weight, one in zip(graph.weight, sides, strict=True):
            one.steps = "Metropolis steps"
            one.settle(torch.as_tensor(weight.copy()))
            weight[:] = one.value.numpy()

    def log_prior(self, weight: Floats) -> Floats:
        """Compute the log density of log theta, (S, N); for known values minus infinity elsewhere, so that they
        stay."""
        found = [self._of_side(one, row) for one, row in zip(self.sides, torch.as_tensor(weight), strict=True)]
        return torch.stack(found).numpy()

    def _of_side(self, one: Explicit, theta: Tensor) -> Tensor:
        if one.known:
            return torch.where(theta == one.value, 0.0, -torch.inf)
        return one.log_prior_of(one.scale.unconstrain(theta)) + torch.log(theta)

    def run(self, graph: Graph, state: PartitionState, rate: Floats, generator: np.random.Generator) -> None:
        """Draw new propensities at the rates eta, then new scales; ``state`` is left with old sums."""
        from custom_inference.families.blocks import gibbs_conditionals as conditionals

        degree, weight = graph.links.degree, graph.weight
        for _ in range(_WALKS):
            jump = _STEP / np.sqrt(degree + 1) * generator.standard_normal(weight.shape)
            proposed = weight * np.exp(jump)
            gain = self.log_prior(proposed) - self.log_prior(weight) + degree * jump
            height = -generator.standard_exponential(weight.shape)
            conditionals.walk_propensities(graph, state, rate, proposed, gain, height)
        fill(graph, state)
        jump = _STEP * generator.standard_normal(state.degree.shape) / np.sqrt(state.size + 1)
        each = jump[:, state.label]
        gain = self.log_prior(weight * np.exp(each)) - self.log_prior(weight) + degree * each
        summed = np.stack([np.bincount(state.label, side, len(state.size)) for side in gain])
        conditionals.walk_scales(graph, state, jump, summed, -generator.standard_exponential(jump.shape))
