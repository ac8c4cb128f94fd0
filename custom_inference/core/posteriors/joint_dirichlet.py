"""The joint posterior over the memberships of a graph's nodes, which depend on each other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from custom_inference.core.posteriors.continuous import (
    ContinuousPosterior,
    DirichletMixture,
    dirichlet_mode,
    sample_dirichlet,
)
from custom_inference.core.posteriors.protocol import Layout, draw_slots

#: The mode is sought among those of so many of the heaviest components.
_CANDIDATES = 50


@dataclass(frozen=True)
class JointDirichletMixture(ContinuousPosterior):
    """q(s_1 .. s_N) = sum_m w_m prod_n Dirichlet(s_n; concentration_mn): within a component nodes are independent.

    log_weight: (M,), normalised. concentration: (M, N, K). The exact posterior of the memberships of a mixed-membership
    block model has this form, m being the counts of the blocks that nodes take; with equal weights it is the average
    of what draws of those say.
    """

    layout: ClassVar[Layout] = {"log_weight": "m", "concentration": "m*"}

    log_weight: Tensor
    concentration: Tensor

    joint = True

    @classmethod
    def of_draws(cls, concentration: Tensor) -> JointDirichletMixture:
        """An equal mixture of draws (S, N, K)."""
        return cls(concentration.new_full((len(concentration),), -math.log(len(concentration))), concentration)

    @property
    def mean(self) -> Tensor:
        each = self.concentration / self.concentration.sum(-1, keepdim=True)
        return torch.einsum("m,mnk->nk", self.log_weight.exp(), each)

    @property
    def mode(self) -> Tensor:
        """The best of the modes of heavy components: a point of high density, not the exact maximum."""
        heavy = self.log_weight.topk(min(_CANDIDATES, len(self.log_weight))).indices
        modes = dirichlet_mode(self.concentration[heavy])
        return modes[torch.cat([self.log_prob(one) for one in modes]).argmax()]

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        slot = draw_slots(self.log_weight, num_samples, generator)
        # Not the same seed again: the draw would then depend on the slot.
        return sample_dirichlet(self.concentration[slot], int(torch.randint(2**62, (), generator=generator)))

    def log_prob(self, local: Tensor) -> Tensor:
        """log q of all nodes' memberships (N, K) together, (1,)."""
        log = local.clamp_min(torch.finfo(local.dtype).tiny).log()  # off the faces, where a density may be infinite
        each = self._powers @ log.flatten()
        return (self._constants + each).logsumexp(0, keepdim=True)

    @cached_property
    def _powers(self) -> Tensor:
        return (self.concentration - 1).flatten(1)

    @cached_property
    def _constants(self) -> Tensor:
        normaliser = torch.lgamma(self.concentration.sum(-1)) - torch.lgamma(self.concentration).sum(-1)
        return self.log_weight + normaliser.sum(-1)

    def rows(self, index: Tensor | slice) -> JointDirichletMixture:
        """The joint posterior of some of the nodes."""
        return JointDirichletMixture(self.log_weight, self.concentration[:, index])

    def marginal(self, node: int) -> DirichletMixture:
        """The posterior of one node's membership."""
        return DirichletMixture(self.log_weight.unsqueeze(0), self.concentration[:, node])
