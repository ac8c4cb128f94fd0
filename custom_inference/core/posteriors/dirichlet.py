"""Posteriors over memberships on the simplex: Dirichlets and mixtures of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import torch
from torch import Tensor

from custom_inference.core.isolation import torch_seeded
from custom_inference.core.posteriors.protocol import ContinuousPosterior, beta_quantiles, draw_slots
from ppl_models.distributions import FaceDirichlet
from ppl_models.distributions.simplex import powers_of

#: The mode of a joint mixture is sought among those of so many of its heaviest components.
_CANDIDATES = 50


@dataclass(frozen=True)
class DirichletPosterior(ContinuousPosterior):
    """q(s_n) = Dirichlet(concentration_n), (N, K); where a concentration is 0, so is the coordinate."""

    concentration: Annotated[Tensor, "*", "nonnegative"]

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    @property
    def variance(self) -> Tensor:
        return self.mean * (1 - self.mean) / (1 + self.concentration.sum(-1, keepdim=True))

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        """An entry is Beta(alpha, the others' sum)."""
        rest = (self.concentration.sum(-1, keepdim=True) - self.concentration).clamp_min(0)
        return beta_quantiles(self.concentration, rest, levels)

    @property
    def mode(self) -> Tensor:
        """(alpha - 1) / sum(alpha - 1) with what is below 1 at the edge; the mean where every alpha is at most 1."""
        above = (self.concentration - 1).clamp_min(0)
        total = above.sum(-1, keepdim=True)
        return torch.where(total > 0, above / total.clamp_min(torch.finfo(above.dtype).tiny), self.mean)

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        return _sample_once(self.concentration.expand(num_samples, *self.concentration.shape), seed)

    def log_prob(self, local: Tensor) -> Tensor:
        powers, normaliser = self._density
        return (powers * inside(local).log()).sum(-1) + normaliser

    @cached_property
    def _density(self) -> tuple[Tensor, Tensor]:
        return powers_of(self.concentration)


@dataclass(frozen=True)
class DirichletMixture(ContinuousPosterior):
    """q(s_n) = sum_m w_nm Dirichlet(concentration_m): log_weight (N, M) normalised, concentration (M, K) shared.

    The exact posterior of a membership under an aspect model has this form.
    """

    log_weight: Annotated[Tensor, "nm", "log_weights"]
    concentration: Annotated[Tensor, "mk", "nonnegative"]

    def is_kept(self, *, exact: bool, by_engine: bool) -> bool:
        return False

    @property
    def mean(self) -> Tensor:
        return self.log_weight.exp() @ DirichletPosterior(self.concentration).mean

    @property
    def variance(self) -> Tensor:
        one = DirichletPosterior(self.concentration)
        return (self.log_weight.exp() @ (one.variance + one.mean.square()) - self.mean.square()).clamp_min(0)

    @property
    def mode(self) -> Tensor:
        """The mode of the heaviest component: a good point of high density, not the exact maximum."""
        return DirichletPosterior(self.concentration).mode[self.log_weight.argmax(-1)]

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        slot = draw_slots(self.log_weight, num_samples, generator)
        return _sample_once(self.concentration[slot.T], _another(generator))

    def log_prob(self, local: Tensor) -> Tensor:
        powers, normaliser = self._density
        return (inside(local).log() @ powers.to(local).mT + (self.log_weight + normaliser)).logsumexp(-1)

    @cached_property
    def _density(self) -> tuple[Tensor, Tensor]:
        return powers_of(self.concentration)


@dataclass(frozen=True)
class SticksPosterior(ContinuousPosterior):
    """q of weights (K,) that are broken off a stick: v_j ~ Beta(own_j, rest_j), j < K - 1, of what those before left.

    own, rest (K - 1,). The last weight is what is left.
    """

    own: Annotated[Tensor, "j", "positive"]
    rest: Annotated[Tensor, "j", "positive"]

    @staticmethod
    def _lay_out(log_share: Tensor, log_left: Tensor) -> Tensor:
        """Add logarithms (..., K - 1) of shares, and of what they left, up to those of weights (..., K)."""
        none = log_share.new_zeros(*log_share.shape[:-1], 1)
        before = torch.cat([none, log_left.cumsum(-1)], -1)
        return torch.cat([log_share, none], -1) + before

    def mean_log(self) -> Tensor:
        """Return E[log weight], (K,)."""
        total = torch.digamma(self.own + self.rest)
        return self._lay_out(torch.digamma(self.own) - total, torch.digamma(self.rest) - total)

    @property
    def mean(self) -> Tensor:
        total = (self.own + self.rest).log()
        return self._lay_out(self.own.log() - total, self.rest.log() - total).exp()

    @property
    def variance(self) -> Tensor:
        """E[w^2] - E[w]^2: of independent shares the mean of the product of squares is that of their means."""
        total = self.own + self.rest
        total = (total * (total + 1)).log()
        share, left = ((part * (part + 1)).log() - total for part in (self.own, self.rest))
        return (self._lay_out(share, left).exp() - self.mean.square()).clamp_min(0)

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        pair = _sample_once(torch.stack([self.own, self.rest], -1).expand(num_samples, -1, -1), seed).log()
        return self._lay_out(pair[..., 0], pair[..., 1]).exp()

    def log_prob(self, local: Tensor) -> Tensor:
        """Compute log q of weights (..., K) as a density of all but the last: 1 / what was left is the volume."""
        weight = inside(local)
        left = weight.flip(-1).cumsum(-1).flip(-1)
        share = torch.stack([weight[..., :-1] / left[..., :-1], left[..., 1:] / left[..., :-1]], -1)
        pair = DirichletPosterior(torch.stack([self.own, self.rest], -1))
        return (pair.log_prob(share) - left[..., :-1].log()).sum(-1)


@dataclass(frozen=True)
class DirichletDraws(ContinuousPosterior):
    """q(s_n) = 1/S sum_s Dirichlet(concentration_sn): concentration (S, N, K), the conditional posterior of each draw.

    Averaging the conditionals, rather than draws from them, has the smaller Monte Carlo error (Rao-Blackwell).
    """

    concentration: Annotated[Tensor, "s*", "nonnegative"]

    @property
    def mean(self) -> Tensor:
        return DirichletPosterior(self.concentration).mean.mean(0)

    @property
    def variance(self) -> Tensor:
        one = DirichletPosterior(self.concentration)
        return one.variance.mean(0) + one.mean.var(0, correction=0)

    @property
    def mode(self) -> Tensor:
        """The mode of the draw whose own mode is the most probable: a point of high density, not the exact maximum."""
        modes = torch.stack([DirichletPosterior(one).mode for one in self.concentration])
        density = torch.stack([self.log_prob(one) for one in modes])
        best = density.nan_to_num(nan=-torch.inf).argmax(0)
        return modes[best, torch.arange(modes.shape[1], device=modes.device)]

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        size, rows, _ = self.concentration.shape
        generator = torch.Generator().manual_seed(seed)
        slot = torch.randint(size, (num_samples, rows), generator=generator)
        return _sample_once(self.concentration[slot, torch.arange(rows)], _another(generator))

    def log_prob(self, local: Tensor) -> Tensor:
        powers, normaliser = self._density
        each = torch.einsum("snk,nk->sn", powers.to(local), inside(local).log()) + normaliser
        return each.logsumexp(0) - math.log(len(self.concentration))

    @cached_property
    def _density(self) -> tuple[Tensor, Tensor]:
        return powers_of(self.concentration)


@dataclass(frozen=True)
class JointDirichletMixture(ContinuousPosterior):
    """q(s_1 .. s_N) = sum_m w_m prod_n Dirichlet(s_n; concentration_mn): within a component nodes are independent.

    log_weight: (M,), normalised. concentration: (M, N, K). The exact posterior of the memberships of a mixed-membership
    block model has this form, m being the counts of the blocks that nodes take; with equal weights it is the average
    of what draws of those say.
    """

    log_weight: Annotated[Tensor, "m", "log_weights"]
    concentration: Annotated[Tensor, "m*", "nonnegative"]

    joint = True

    @classmethod
    def of_draws(cls, concentration: Tensor) -> JointDirichletMixture:
        """An equal mixture of draws (S, N, K)."""
        return cls(concentration.new_full((len(concentration),), -math.log(len(concentration))), concentration)

    def is_kept(self, *, exact: bool, by_engine: bool) -> bool:
        return not exact

    @property
    def mean(self) -> Tensor:
        return torch.einsum("m,mnk->nk", self.log_weight.exp(), DirichletPosterior(self.concentration).mean)

    @property
    def variance(self) -> Tensor:
        one = DirichletPosterior(self.concentration)
        square = one.variance + (one.mean - self.mean).square()
        return torch.einsum("m,mnk->nk", self.log_weight.exp(), square)

    @property
    def mode(self) -> Tensor:
        """The best of the modes of heavy components: a point of high density, not the exact maximum."""
        heavy = self.log_weight.topk(min(_CANDIDATES, len(self.log_weight))).indices
        modes = DirichletPosterior(self.concentration[heavy]).mode
        return modes[torch.cat([self.log_prob(one) for one in modes]).argmax()]

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        slot = draw_slots(self.log_weight, num_samples, generator)
        return _sample_once(self.concentration[slot], _another(generator))

    def log_prob(self, local: Tensor) -> Tensor:
        """log q of all nodes' memberships (N, K) together, (1,)."""
        powers, constants = self._density
        return (constants + powers @ inside(local).log().flatten()).logsumexp(0, keepdim=True)

    @cached_property
    def _density(self) -> tuple[Tensor, Tensor]:
        """Each component's powers of the entries of s (M, N K), and its log weight with normaliser (M,)."""
        powers, normaliser = powers_of(self.concentration)
        return powers.flatten(1), self.log_weight + normaliser.sum(-1)

    def marginal(self, node: int) -> DirichletMixture:
        """The posterior of one node's membership."""
        return DirichletMixture(self.log_weight.unsqueeze(0), self.concentration[:, node])


def inside(local: Tensor) -> Tensor:
    """Off the faces of the simplex, where a density may be 0 or infinite and its logarithm is not a number."""
    return local.clamp_min(torch.finfo(local.dtype).tiny)


def _sample_once(concentration: Tensor, seed: int) -> Tensor:
    """Draw once for every row of concentrations (..., K), from a random state of its own."""
    with torch_seeded(seed):
        return FaceDirichlet(concentration.cpu(), validate_args=False).sample().to(concentration)


def _another(generator: torch.Generator) -> int:
    """A seed for what follows the draws of a generator: by the same seed it would depend on them."""
    return int(torch.randint(2**62, (), generator=generator))
