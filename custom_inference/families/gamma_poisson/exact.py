"""Gamma-Poisson factor analysis exactly at given loadings: the activations of rows with few events integrated out.

The polynomial of ``topics.exact`` with weights 1 / r_nk (see ``common``): of L_n events in K components C(L_n + K - 1,
K - 1) terms. Given the components' sums m of a row its activations are Gamma(alpha_k + m_k, r_nk).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, ExactEngine, Params, Warm
from custom_inference.core.posteriors import GammaMixture
from custom_inference.families.gamma_poisson.common import EventRows, loading_of
from custom_inference.families.gamma_poisson.engines import GapGamma, rates_after, rows_constant
from custom_inference.families.topics.exact import LdaExact
from ppl_models import GammaPoisson


@dataclass(frozen=True, kw_only=True)
class ExactByTokens(GapGamma, ExactEngine):
    """What engines share that sum over the components of single events, as LDA's does over the topics of tokens.

    max_bytes: memory allowed; half of what is free by default.
    """

    max_bytes: float | None = None

    name = "exact"
    objective = "evidence"
    accelerate = "squarem"

    @property
    def _tokens(self) -> LdaExact:
        return LdaExact(max_bytes=self.max_bytes)

    def feasible(self, model: GammaPoisson) -> bool:
        """Only with a single component: how many events the rows have is not known here."""
        return model.local_shape[0] == 1

    def check(self, model: GammaPoisson, rows: EventRows) -> None:
        """Raises PriorError for priors without closed-form updates, CapacityError for polynomials that do not fit."""
        super().check(model, rows)
        longest = int(rows.lengths.max()) if len(rows) else 0
        self._tokens.require(model.local_shape[0], longest, 1, rows.like.values().element_size())


@dataclass(frozen=True, kw_only=True)
class GapExact(ExactByTokens):
    """The evidence, the sums being over the components of every event."""

    def _problem(self, model: GammaPoisson, state: Params, rows: EventRows) -> tuple[Tensor, Tensor, Tensor]:
        """b (K, D), alpha (K,) and r (N, K). Raises MethodError for what is no count: sums go over single events."""
        self.require_counts(rows)
        loading = loading_of(state)
        shape, rate, _ = self.activation_prior(model, loading)
        return loading, shape, rates_after(rate, rows.exposure(loading))

    def e_step(
        self, model: GammaPoisson, state: Params, rows: EventRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        loading, shape, after = self._problem(model, state, rows)
        bound = rows_constant(rows, self.activation_prior(model, loading), after)
        events, own = torch.zeros_like(loading.T), shape.repeat(len(rows), 1)
        weighted = rows.with_weights(1 / after)
        for tokens, place, responsibility in self._tokens.attribute_tokens(
            loading, shape, weighted, bound, temperature
        ):
            counted = (responsibility * tokens.inside[place]).T
            events.index_add_(0, tokens.word[place], counted)
            own[tokens.documents] += counted
        return EStep(rows.statistics(events.T, own / after), {}, bound)

    def log_evidence(self, model: GammaPoisson, params: Params, rows: EventRows) -> Tensor:
        """Compute log p(x_n | loadings), (N,); differentiable in the loadings."""
        loading, shape, after = self._problem(model, params, rows)
        bound = rows_constant(rows, self.activation_prior(model, loading), after)
        return bound + self._tokens.log_tokens(loading, shape, rows.with_weights(1 / after))

    def posterior(self, model: GammaPoisson, state: Params, rows: EventRows, step: EStep | None = None) -> Any:
        """The exact posterior of every row's activations: the same shapes, in proportions of its own."""
        loading, shape, after = self._problem(model, state, rows)
        shares = self._tokens.mixture(loading, shape, rows.with_weights(1 / after))
        return GammaMixture(shares.log_weight, shares.concentration, shape.sum() + rows.lengths, after)
