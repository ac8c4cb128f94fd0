"""The user rating profile model (002, eq. 27.14) by the engines of LDA.

A row's responses are the words "response r is c" of a document, of which it has one for each r that was observed: with
column r C + c for that word, p(y_i | pi_i) = prod_v [sum_k pi_ik b_kv]^n_iv is LDA's density at topics whose columns
are normalised in R groups of C. So the E steps are LDA's, and M steps, priors and divergences go by groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Params
from custom_inference.core.posteriors import LocalPosterior
from custom_inference.core.states import State
from custom_inference.families.common.dirichlet import (
    dirichlet_divergence,
    dirichlet_prior,
    expected_log,
    log_prior_density,
    softmax_or_simplex,
)
from custom_inference.families.common.documents import DocumentRows
from custom_inference.families.mixtures.rows import MixtureRows
from custom_inference.families.topics.common import FLOOR, TopicEngine
from custom_inference.families.topics.dirichlet import LdaDirichlet
from custom_inference.families.topics.exact import LdaExact
from custom_inference.families.topics.map import LdaMap
from custom_inference.families.topics.states import ProfilePosteriors, TopicPosteriors
from custom_inference.families.topics.sweeps import Scores
from custom_inference.families.topics.vb import LdaVB
from ppl_models import Data, MethodError, Model
from ppl_models.data import sparse as _sparse

#: Exact sums are the default up to this many terms a row.
_EXACT_TERMS = 500


def response_prior(model: Model, like: Tensor) -> Tensor:
    """The concentration of the responses' prior, (K, R C)."""
    return dirichlet_prior(model, "response", like).expand(model.shapes["response"]).flatten(1)


class ProfileEngine(TopicEngine):
    """What the engines share beside those of LDA: tables b (K, R, C) are topics (K, R C) side by side."""

    def rows(self, model: Any, data: Data) -> DocumentRows:
        return DocumentRows(MixtureRows.of_categories(data, model.num_categories).counts)

    def check(self, model: Model, rows: DocumentRows) -> None:
        """Raises MethodError for priors without closed-form updates."""
        like = rows.like.values()
        self.alpha(model, like)
        dirichlet_prior(model, "response", like)

    def from_counts(self, model: Any, counts: Tensor) -> Any:
        flat = softmax_or_simplex(counts, response_prior(model, counts), floor=FLOOR, groups=model.num_features)
        return {"response": flat.unflatten(-1, (model.num_features, model.num_categories))}

    def random_counts(self, model: Model, rows: DocumentRows, generator: torch.Generator) -> Tensor:
        """The responses' frequencies, each multiplied by an exponential variable of mean 1 in every profile."""
        frequency = _sparse.column_sums(rows.counts) + 1
        shape = (model.shapes["response"][0], len(frequency))
        noise = torch.rand(shape, generator=generator, dtype=torch.float64).to(frequency)
        return frequency * -torch.log1p(-noise * (1 - 1e-6))

    def initial(self, model: Model, rows: DocumentRows, generator: torch.Generator) -> Any:
        return self.from_counts(model, self.random_counts(model, rows, generator))

    def e_step(self, model: Model, params: Params, rows: DocumentRows, warm: Any = None, **settings: Any) -> EStep:
        return super().e_step(model, as_topics(params), rows, warm, **settings)

    def m_step(self, model: Model, params: Params, step: EStep, rows: DocumentRows) -> Params:
        return self.from_counts(model, step.statistics["topic"])

    def prior_term(self, model: Any, params: Params) -> Tensor:
        flat = params["response"].flatten(1)
        return log_prior_density(flat, response_prior(model, flat), groups=model.num_features).double()

    def posterior(self, model: Model, params: Params, rows: DocumentRows, step: EStep) -> LocalPosterior:
        return super().posterior(model, as_topics(params), rows, step)


def as_topics(params: Params) -> Params:
    """With the tables side by side as topics."""
    return {**params, "topic": params["response"].flatten(1)}


@dataclass(frozen=True, kw_only=True)
class ProfileDirichlet(ProfileEngine, LdaDirichlet):
    """Dirichlet posteriors of the memberships, the responses as points (002, eqs. 27.44 and 27.45)."""


@dataclass(frozen=True, kw_only=True)
class ProfileMap(ProfileEngine, LdaMap):
    """Points for memberships and responses."""

    def point_locals(self, step: EStep) -> dict[str, Tensor]:
        return {"membership": step.locals["topic_proportion"]}


@dataclass(frozen=True, kw_only=True)
class ProfileExact(ProfileEngine, LdaExact):
    """The memberships integrated out by all C(R + K - 1, K - 1) numbers of responses from each profile."""

    def feasible(self, model: Any) -> bool:
        """Where a row has few such numbers."""
        size = model.num_components
        return math.comb(model.num_features + size - 1, size - 1) <= _EXACT_TERMS

    def check(self, model: Any, rows: DocumentRows) -> None:
        """Raises MethodError for priors without closed-form updates, CapacityError for sums that do not fit."""
        super().check(model, rows)
        self._require(model.num_components, model.num_features, 1, rows.like.values().element_size())

    def log_evidence(self, model: Model, params: Params, rows: DocumentRows) -> Tensor:
        return super().log_evidence(model, as_topics(params), rows)


#: What variational Bayes shares with points: rows, priors, and the memberships at given responses.
_POINTS = ProfileDirichlet()


@dataclass(frozen=True, kw_only=True)
class ProfileVB(LdaVB):
    """Dirichlet posteriors of memberships and responses."""

    state: ClassVar[type[State]] = ProfilePosteriors

    def rows(self, model: Model, data: Data) -> DocumentRows:
        return _POINTS.rows(model, data)

    def check(self, model: Model, rows: DocumentRows) -> None:
        """Raises MethodError for priors without closed-form updates, and where priors are to be learned."""
        _POINTS.check(model, rows)
        if self.learn is not None:
            raise MethodError(f"learn = {self.learn!r}: the priors of the user rating profile model are not learned")

    def local(self) -> ProfileDirichlet:
        return _POINTS

    def expected_scores(self, model: Any, state: TopicPosteriors, temperature: float = 1.0) -> Scores:
        """E[log b], tempered."""
        return Scores.of(temperature * expected_log(state.concentration, model.num_features))

    def from_counts(self, model: Model, counts: Tensor) -> ProfilePosteriors:
        return ProfilePosteriors(response_prior(model, counts) + counts)

    def m_step(self, model: Model, state: TopicPosteriors, step: EStep, rows: DocumentRows) -> ProfilePosteriors:
        return self.from_counts(model, step.statistics["topic"])

    def prior_term(self, model: Any, state: TopicPosteriors) -> Tensor:
        prior = response_prior(model, state.concentration)
        return -dirichlet_divergence(state.concentration, prior, model.num_features).double().sum()

    def initial(self, model: Model, rows: DocumentRows, generator: torch.Generator) -> ProfilePosteriors:
        """Every response, divided among the profiles in random proportions."""
        random = self.from_counts(model, _POINTS.random_counts(model, rows, generator)).concentration
        return self.from_counts(model, random / random.sum(0) * _sparse.column_sums(rows.counts))
