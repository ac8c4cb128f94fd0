"""What variational Bayes and CVB0 of mixed memberships iterate on, and the priors and globals that belong to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.posteriors import BetaPosterior, ContinuousPosterior, SymmetricBetaPosterior
from custom_inference.core.posteriors.continuous import mirrored
from custom_inference.core.states import Params, State
from custom_inference.families.common import beta
from custom_inference.families.common.dirichlet import dirichlet_prior


def membership_prior(model: Any, like: Tensor) -> Tensor:
    """alpha (K,). Raises MethodError where the prior of the memberships is not a Dirichlet."""
    return dirichlet_prior(model, "membership", like).expand(model.num_blocks)


def beta_prior(model: Any, site: str, like: Tensor) -> tuple[Tensor, Tensor]:
    """(a, b) of a Beta prior, in the site's shape; of a symmetric site the entries a <= b, mirrored.

    Raises :class:`MethodError` for any other prior.
    """
    first, second = (part.expand(model.shapes[site]) for part in beta.beta_prior(model, site, like.new_zeros(())))
    if first.ndim == 2 and not model.directed:
        return mirrored(first), mirrored(second)
    return first, second


@dataclass(frozen=True)
class MembershipPosteriors(State):
    """concentration: gamma (N, K); links l and gaps m (K, K); where rho is learned, background (2,)."""

    concentration: Tensor
    links: Tensor
    gaps: Tensor
    background: Tensor | None = None

    def values(self, model: Any) -> Params:
        return {site: posterior.mean for site, posterior in self.posteriors(model).items()}

    def posteriors(self, model: Any) -> Mapping[str, ContinuousPosterior]:
        kind = BetaPosterior if model.directed else SymmetricBetaPosterior
        found: dict[str, ContinuousPosterior] = {"edge_probability": kind(self.links, self.gaps)}
        return found if self.background is None else {**found, "sparsity": BetaPosterior(*self.background)}


@dataclass(frozen=True)
class ExpectedCounts(State):
    """Expected counts: members n (N, K), links l and gaps m (K, K), background (2,)."""

    members: Tensor
    links: Tensor
    gaps: Tensor
    background: Tensor

    def added_to_priors(self, model: Any) -> MembershipPosteriors:
        """The posteriors at these counts."""
        like, background = self.links, None
        first, second = beta_prior(model, "edge_probability", like)
        if model.sparsity is None:
            background = torch.stack(beta_prior(model, "sparsity", like)) + self.background
        concentration = membership_prior(model, like) + self.members
        return MembershipPosteriors(concentration, first + self.links, second + self.gaps, background)

    def values(self, model: Any) -> Params:
        return self.added_to_priors(model).values(model)

    def posteriors(self, model: Any) -> Mapping[str, ContinuousPosterior]:
        return self.added_to_priors(model).posteriors(model)
