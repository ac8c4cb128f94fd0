"""What variational Bayes and CVB0 of topic models and profiles iterate on, and the topics that these stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from custom_inference.core.posteriors import ContinuousPosterior, DirichletPosterior
from custom_inference.core.states import Params, State
from custom_inference.families.common.dirichlet import dirichlet_prior
from ppl_models import Model


@dataclass(frozen=True)
class TopicPosteriors(State):
    """concentration: b~ (K, V), of the topics' posteriors. alpha (K,), gamma: the priors' where these are learned."""

    concentration: Tensor
    alpha: Tensor | None = None
    gamma: Tensor | None = None

    def values(self, model: Model) -> Params:
        return {site: posterior.mean for site, posterior in self.posteriors(model).items()}

    def posteriors(self, model: Model) -> Mapping[str, DirichletPosterior]:
        return {"topic": DirichletPosterior(self.concentration)}

    def fitted_model(self, model: Any) -> Model:
        """With the learned concentrations as its priors'."""
        learned = {name: value for name, value in (("alpha", self.alpha), ("gamma", self.gamma)) if value is not None}
        return model.with_concentration(**learned) if learned else model

    @classmethod
    def from_posterior(cls, model: Model, posterior: DirichletPosterior) -> Self:
        """The state that a fit's posterior of the topics was read off."""
        del model
        return cls(posterior.concentration)


@dataclass(frozen=True)
class ProfilePosteriors(TopicPosteriors):
    """concentration: (K, R C), of the posteriors of the responses to R features of C categories, side by side."""

    def posteriors(self, model: Any) -> Mapping[str, DirichletPosterior]:
        table = self.concentration.unflatten(-1, (model.num_features, model.num_categories))
        return {"response": DirichletPosterior(table)}


@dataclass(frozen=True)
class TopicCounts(State):
    """counts: N_kv (K, V), the expected tokens of every word in every topic."""

    counts: Tensor

    def values(self, model: Model) -> Params:
        """(N_kv + gamma_v) / (N_k + sum gamma)."""
        return {site: posterior.mean for site, posterior in self.posteriors(model).items()}

    def posteriors(self, model: Model) -> Mapping[str, ContinuousPosterior]:
        """Dirichlet(N_k + gamma), the posterior at the expected counts."""
        return {"topic": DirichletPosterior(self.counts + dirichlet_prior(model, "topic", self.counts))}

    @classmethod
    def from_posterior(cls, model: Model, posterior: DirichletPosterior) -> Self:
        """The state that a fit's posterior of the topics was read off."""
        return cls(posterior.concentration - dirichlet_prior(model, "topic", posterior.concentration))
