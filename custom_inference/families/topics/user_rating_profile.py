"""The user rating profile model (002, eq. 27.14) by the engines of LDA.

A row's responses are the words "response r is c" of a document, of which it has one for each r that was observed: with
column r C + c for that word, p(y_i | pi_i) = prod_v [sum_k pi_ik b_kv]^n_iv is LDA's density at topics whose columns
are normalised in R groups of C. So the E steps are LDA's, and M steps, priors and divergences go by groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Params
from custom_inference.core.posteriors import DirichletPosterior, LocalPosterior
from custom_inference.families.common.dirichlet import (
    dirichlet_divergence,
    dirichlet_prior,
    expected_log,
    log_prior_density,
    softmax_or_simplex,
)
from custom_inference.families.common.documents import DocumentRows
from custom_inference.families.mixtures.rows import MixtureRows
from custom_inference.families.topics.common import FLOOR, TopicSteps
from custom_inference.families.topics.dirichlet import LdaDirichlet
from custom_inference.families.topics.exact import LdaExact
from custom_inference.families.topics.map import LdaMap
from custom_inference.families.topics.sweeps import Scores
from custom_inference.families.topics.vb import LdaVB
from ppl_models import Data, MethodError, Model
from ppl_models.data import sparse as _sparse

#: Exact sums are the default up to this many terms a row.
_EXACT_TERMS = 500


@dataclass(frozen=True, kw_only=True)
class ProfileSteps(TopicSteps):
    """groups: R; num_categories: C. Both are set by ``for_model``. ``params`` {"response": b (K, R, C)}."""

    groups: int = 1
    num_categories: int = 1

    def for_model(self, model: Any) -> Self:
        """Raises MethodError where the prior of the memberships is not a Dirichlet."""
        alpha = dirichlet_prior(model, "membership", torch.ones((), dtype=torch.float64))
        sizes = {"groups": model.num_features, "num_categories": model.num_categories}
        return replace(self, concentration=tuple(alpha.flatten().tolist()), **sizes)

    def rows(self, data: Data) -> DocumentRows:
        return DocumentRows(MixtureRows.of_categories(data, self.num_categories).counts)

    def check(self, model: Model, rows: DocumentRows) -> None:
        """Raises MethodError for priors without closed-form updates."""
        self.for_model(model)
        dirichlet_prior(model, "response", rows.like.values())

    def prior(self, model: Model, like: Tensor) -> Tensor:
        """The concentration of the responses' prior, (K, R C)."""
        return dirichlet_prior(model, "response", like).expand(model.shapes["response"]).flatten(1)

    def shaped(self, flat: Tensor) -> Tensor:
        """(K, R C) as (K, R, C)."""
        return flat.unflatten(-1, (self.groups, self.num_categories))

    def from_counts(self, model: Model, counts: Tensor) -> Params:
        flat = softmax_or_simplex(counts, self.prior(model, counts), floor=FLOOR, groups=self.groups)
        return {"response": self.shaped(flat)}

    def initial(self, model: Model, rows: DocumentRows, generator: torch.Generator) -> Params:
        """The responses' frequencies, each multiplied by an exponential variable of mean 1 in every profile."""
        frequency = _sparse.column_sums(rows.counts) + 1
        shape = (model.shapes["response"][0], len(frequency))
        noise = torch.rand(shape, generator=generator, dtype=torch.float64).to(frequency)
        return self.from_counts(model, frequency * -torch.log1p(-noise * (1 - 1e-6)))

    def alpha(self, params: Params) -> Tensor:
        """(K,)."""
        return params["response"].new_tensor(self.concentration)

    def e_step(self, params: Params, rows: DocumentRows, locals_: Any = None, **settings: Any) -> EStep:
        return super().e_step(as_topics(params), rows, locals_, **settings)

    def m_step(self, model: Model, params: Params, step: EStep, rows: DocumentRows) -> Params:
        return self.from_counts(model, step.statistics["topic"])

    def objective(self, model: Model, params: Params, bound: Tensor) -> float:
        flat = params["response"].flatten(1)
        prior = log_prior_density(flat, self.prior(model, flat), groups=self.groups)
        return float(bound.double().sum() + prior.double())

    def posterior(self, params: Params, rows: DocumentRows, step: EStep) -> LocalPosterior:
        return super().posterior(as_topics(params), rows, step)


def as_topics(params: Params) -> Params:
    """With the tables side by side as topics."""
    return {**params, "topic": params["response"].flatten(1)}


@dataclass(frozen=True, kw_only=True)
class ProfileDirichlet(ProfileSteps, LdaDirichlet):
    """Dirichlet posteriors of the memberships, the responses as points (002, eqs. 27.44 and 27.45)."""


@dataclass(frozen=True, kw_only=True)
class ProfileMap(ProfileSteps, LdaMap):
    """Points for memberships and responses."""

    def point_locals(self, step: EStep) -> dict[str, Tensor]:
        return {"membership": step.locals["topic_proportion"]}


@dataclass(frozen=True, kw_only=True)
class ProfileExact(ProfileSteps, LdaExact):
    """The memberships integrated out by all C(R + K - 1, K - 1) numbers of responses from each profile."""

    def feasible(self, model: Any) -> bool:
        """Where a row has few such numbers."""
        size = model.num_components
        return math.comb(model.num_features + size - 1, size - 1) <= _EXACT_TERMS

    def check(self, model: Any, rows: DocumentRows) -> None:
        """Raises MethodError for priors without closed-form updates, CapacityError for sums that do not fit."""
        super().check(model, rows)
        self._require(model.num_components, model.num_features, 1, rows.like.values().element_size())

    def log_evidence(self, params: Params, rows: DocumentRows) -> Tensor:
        return super().log_evidence(as_topics(params), rows)


@dataclass(frozen=True, kw_only=True)
class ProfileVB(ProfileSteps, LdaVB):
    """Dirichlet posteriors of memberships and responses; params {"response": their concentrations (K, R C)}."""

    integrates_globals: ClassVar[bool] = True

    def check(self, model: Model, rows: DocumentRows) -> None:
        """Raises MethodError for priors without closed-form updates, and where priors are to be learned."""
        super().check(model, rows)
        if self.learn is not None:
            raise MethodError(f"learn = {self.learn!r}: the priors of the user rating profile model are not learned")

    def local(self) -> ProfileDirichlet:
        return ProfileDirichlet(
            concentration=self.concentration, groups=self.groups, num_categories=self.num_categories
        )

    def scores(self, params: Params, temperature: float = 1.0) -> Scores:
        """E[log b], tempered."""
        return Scores.of(temperature * expected_log(params["topic"], self.groups))

    def from_counts(self, model: Model, counts: Tensor) -> Params:
        return {"response": self.prior(model, counts) + counts}

    def objective(self, model: Model, params: Params, bound: Tensor) -> float:
        concentration = params["response"]
        divergence = dirichlet_divergence(concentration, self.prior(model, concentration), self.groups)
        return float(bound.double().sum() - divergence.double().sum())

    def initial(self, model: Model, rows: DocumentRows, generator: torch.Generator) -> Params:
        """Every response, divided among the profiles in random proportions."""
        random = super().initial(model, rows, generator)["response"]
        return self.from_counts(model, random / random.sum(0) * _sparse.column_sums(rows.counts))

    def starting(self, model: Model, params: Params, rows: DocumentRows) -> Params:
        """The posterior that the rows give when their memberships are inferred at these responses."""
        return self.from_counts(model, self.looked(params, rows).statistics["topic"])

    def reported(self, model: Model, params: Params) -> tuple[Params, dict[str, DirichletPosterior]]:
        """Posterior means, and the posteriors."""
        posterior = DirichletPosterior(self.shaped(params["response"]))
        return {"response": posterior.mean}, {"response": posterior}
