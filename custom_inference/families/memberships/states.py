"""What variational Bayes and CVB0 of mixed memberships iterate on, and the globals that these stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.posteriors import BetaPosterior, ContinuousPosterior, SymmetricBetaPosterior
from custom_inference.core.states import Params, State
from custom_inference.families.memberships.common import beta_prior


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
        return _posteriors(model, self.links, self.gaps, self.background)


@dataclass(frozen=True)
class ExpectedCounts(State):
    """Expected counts: members n (N, K), links l and gaps m (K, K), background (2,)."""

    members: Tensor
    links: Tensor
    gaps: Tensor
    background: Tensor

    def values(self, model: Any) -> Params:
        return {site: posterior.mean for site, posterior in self.posteriors(model).items()}

    def posteriors(self, model: Any) -> Mapping[str, ContinuousPosterior]:
        """Those at the expected counts."""
        first, second = beta_prior(model, "edge_probability", self.links)
        background = None
        if model.sparsity is None:
            background = torch.stack(beta_prior(model, "sparsity", self.links)) + self.background
        return _posteriors(model, first + self.links, second + self.gaps, background)


def _posteriors(model: Any, links: Tensor, gaps: Tensor, background: Tensor | None) -> dict[str, ContinuousPosterior]:
    kind = BetaPosterior if model.directed else SymmetricBetaPosterior
    found: dict[str, ContinuousPosterior] = {"edge_probability": kind(links, gaps)}
    return found if background is None else {**found, "sparsity": BetaPosterior(background[0], background[1])}
