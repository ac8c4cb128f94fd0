"""Gamma-Poisson factor analysis by auxiliary counts: Gamma posteriors of the activations, of the loadings too ("vb").

With x_nv = sum_k m_nkv, m_nkv ~ Poisson(z_nk b_kv) (Cemgil 2009), q = prod Gamma(z_nk | a_nk, r_nk) Multinomial(m_nv |
x_nv, phi_nv) prod Gamma(b_kv | c_kv, d_kv) climbs a lower bound on log p(x) by

    phi_nvk proportional to exp(E[log z_nk] + E[log b_kv])
    a_nk = alpha_k + sum_v x_nv phi_nvk         r_nk = beta_k + sum_v E[b_kv]           (over observed entries)
    c_kv = c + sum_n x_nv phi_nvk               d_kv = d + sum_n E[z_nk]

which are the sweeps of ``topics.dirichlet`` with weights 1 / r_nk (see ``common``). Only counts above 0 carry work.

Empirical Bayes (``learn="activation"``): alpha_k and beta_k maximise the bound given the activations' E[z] and E[log z]
summed over the rows: log alpha - psi(alpha) = log mean E[z] - mean E[log z], beta = alpha / mean E[z].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from custom_inference.core.engine import Engine, EStep, InitialStep, Params, Warm
from custom_inference.core.posteriors import GammaPosterior
from custom_inference.core.states import State
from custom_inference.families.conjugate.gamma import Gamma
from custom_inference.families.conjugate.learn import LEAST_SHAPE, fit_shape
from custom_inference.families.gamma_poisson.common import (
    FLOOR,
    ActivationParameters,
    EventRows,
    GapEngine,
    loading_of,
    loading_terms,
)
from custom_inference.families.topics.dirichlet import TopicScores, sweep_documents
from ppl_models import GammaPoisson, MethodError, Model
from ppl_models.core.errors import unknown_name

#: What ``learn`` takes beside None.
LEARNED = ("activation",)
#: Passes between two that try a row afresh.
_AFRESH = 5


@dataclass(frozen=True, kw_only=True)
class GapGamma(GapEngine):
    """Loadings as points. This is also how rows are inferred at given loadings, whatever these were fitted with.

    sweeps, cold_sweeps: at most this many of an E step that goes on from the last one, and of one that does not.
    threshold: a row is done when its shapes change by less than this, on average over the components.
    """

    sweeps: int = 10
    cold_sweeps: int = 100
    threshold: float = 1e-3

    name: ClassVar[str] = "gamma"

    def check(self, model: GammaPoisson, rows: EventRows) -> None:
        """Raises PriorError for priors without closed-form updates, MethodError for entries that are no counts."""
        super().check(model, rows)
        self.require_counts(rows)
        self.require_proper(model, rows)

    def require_counts(self, rows: EventRows) -> None:
        """Raises MethodError for entries that are no whole numbers: the width of a posterior would be that of their
        unit. Bounds of rows at given loadings (``e_step``) are those of any numbers."""
        if not rows.whole:
            expected = "expected counts, or points (method='map') and bound='gamma' of their rows"
            raise MethodError(f"{self.name}: x has entries that are no whole numbers, and no posterior; {expected}")

    def e_step(
        self, model: GammaPoisson, state: Params, rows: EventRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        loading = loading_of(state)
        prior = self.activation_prior(model, loading)
        return self.infer_activations(rows, temperature * loading.log(), rows.exposure(loading), prior, warm)

    def infer_activations(
        self, rows: EventRows, log_score: Tensor, exposure: Tensor, prior: tuple[Tensor, ...], warm: Warm
    ) -> EStep:
        """Infer the rows' posteriors at (expected) log b (K, D) and summed b (N, K). Statistics: events of every
        feature in every component, what they were exposed to, sums of E[z] and E[log z], rows."""
        (shape, rate), length = prior[:2], rows.lengths
        after = rates_after(rate, exposure)
        least = after.amin(1, keepdim=True)
        start, sweeps = (warm["concentration"], self.sweeps) if warm else (None, self.cold_sweeps)
        # Rows are tried afresh every few passes, some in each: that costs more than all else.
        passes = warm["passes"] + 1 if warm and "passes" in warm else length.round() % _AFRESH
        weighted, limits = rows.with_weights(least / after), (sweeps, self.threshold, self.cold_sweeps)
        found = sweep_documents(weighted, TopicScores.of(log_score), shape, start, *limits, due=passes % _AFRESH == 0)
        mean = found.concentration / after
        statistics = rows.statistics(found.counts, mean)
        statistics["log_activation"] = Gamma(found.concentration, after).expected()[0].sum(0)
        bound = found.bound - length * least.squeeze(1).log() + rows_constant(rows, prior, after)
        return EStep(statistics, {"concentration": found.concentration, "rate": after, "passes": passes}, bound)

    def posterior(self, model: GammaPoisson, state: Params, rows: EventRows, step: EStep) -> GammaPosterior:
        return GammaPosterior(step.locals["concentration"], step.locals["rate"])


def rates_after(rate: Tensor, exposure: Tensor) -> Tensor:
    """beta_k + B_nk (N, K), the rates of the activations given their row. Under a flat prior a row without any observed
    entry leaves 0, no law: it has 1 there, as ``rows_constant`` has for the prior, so that its evidence is 1."""
    after = rate + exposure
    return torch.where(after > 0, after, torch.ones_like(after))


def rows_constant(rows: EventRows, prior: tuple[Tensor, ...], after: Tensor) -> Tensor:
    """log p(x_n) less the log evidence of LDA's tokens (see ``common``), (N,); after: beta_k + B_nk (N, K). The density
    of a flat prior is 1."""
    shape, rate = prior[0], torch.where(prior[1] > 0, prior[1], torch.ones_like(prior[1]))
    total = shape.sum()
    rise = torch.lgamma(total + rows.lengths) - torch.lgamma(total)
    return rise - (shape * (after.log() - rate.log())).sum(1) + rows.log_base


@dataclass(frozen=True)
class LoadingPosteriors(State):
    """shape, rate: c_kv and d_kv, (K, D). activation_shape, activation_rate, activation_spike (K,): those of the prior
    where it is learned."""

    shape: Tensor
    rate: Tensor
    activation_shape: Tensor | None = None
    activation_rate: Tensor | None = None
    activation_spike: Tensor | None = None

    @property
    def activation(self) -> ActivationParameters | None:
        """The learned prior."""
        if self.activation_shape is None or self.activation_rate is None or self.activation_spike is None:
            return None
        return self.activation_shape, self.activation_rate, self.activation_spike

    def posteriors(self, model: GammaPoisson) -> Mapping[str, GammaPosterior]:
        return {"loading": GammaPosterior(self.shape, self.rate)}

    def with_fitted_priors(self, model: GammaPoisson) -> Model:
        """Return the model with the learned prior of the activations."""
        if self.activation is None:
            return model
        shape, rate, spike = self.activation
        return model.with_activation(shape, rate, *([spike] if model.has_atoms else []))

    @classmethod
    def of_posteriors(cls, posteriors: Mapping[str, Any]) -> Self:
        """A learned prior is in the fitted model."""
        return cls(posteriors["loading"].shape, posteriors["loading"].rate)


@dataclass(frozen=True, kw_only=True)
class GapVB(GapGamma):
    """learn: "activation" learns shapes and rates of the activations' priors; they end in those of ``Fit.model``."""

    integrates_globals = True

    learn: str | None = None

    name: ClassVar[str] = "vb"
    state: ClassVar[type[State]] = LoadingPosteriors

    def __post_init__(self) -> None:
        if self.learn not in (None, *LEARNED):
            raise MethodError(unknown_name("prior to learn", str(self.learn), LEARNED))

    def local(self) -> Engine:
        return GapGamma()

    def _activation(self, model: GammaPoisson, state: LoadingPosteriors) -> ActivationParameters:
        return state.activation or self.activation_prior(model, state.shape)

    def _initial_posteriors(self, model: GammaPoisson, shape: Tensor, rate: Tensor) -> LoadingPosteriors:
        """Return the posteriors to start with, with the activations' prior as the model has it."""
        rate = rate.expand_as(shape)
        if self.learn is None:
            return LoadingPosteriors(shape, rate)
        return LoadingPosteriors(shape, rate, *(part.clone() for part in self.activation_prior(model, shape)))

    def from_counts(self, model: GammaPoisson, counts: Tensor, num_rows: int) -> LoadingPosteriors:
        exposure = num_rows * self.mean_activation(model, counts).unsqueeze(1)
        return self._initial_posteriors(model, *self.loading_prior(model, counts).update(counts, exposure))

    def initial(self, model: GammaPoisson, rows: EventRows, generator: torch.Generator) -> LoadingPosteriors:
        """Every feature's events, divided among the components in random proportions."""
        return self.from_counts(model, self.random_shares(model, rows, generator, 10), len(rows))

    def from_point(
        self, model: GammaPoisson, params: Params, rows: EventRows, e_step: InitialStep
    ) -> LoadingPosteriors:
        """The posterior that the rows give when their own are inferred at these loadings."""
        found = e_step().statistics
        prior = self.loading_prior(model, found["events"])
        return self._initial_posteriors(model, *prior.update(found["events"], found["exposure"]))

    def e_step(
        self, model: GammaPoisson, state: LoadingPosteriors, rows: EventRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        log, mean = Gamma(state.shape, state.rate).expected()
        return self.infer_activations(
            rows, temperature * log, rows.exposure(mean), self._activation(model, state), warm
        )

    def m_step(self, model: GammaPoisson, state: LoadingPosteriors, step: EStep, rows: EventRows) -> LoadingPosteriors:
        """Loadings, the scale between them and the activations, and the activations' prior, one after the other."""
        found = step.statistics
        prior = self.loading_prior(model, found["events"])
        shape, rate = prior.update(found["events"], found["exposure"])
        size, mass = loading_terms(prior, shape / rate)
        if state.activation is None:
            scale = self.scale(self._activation(model, state), step, size, mass)
            return LoadingPosteriors(shape, rate * scale.unsqueeze(1))
        scale = torch.where((mass > 0) & (size > 0), mass / size, torch.ones_like(mass))  # a learned rate follows it
        on = found["rows"].clamp(min=FLOOR)  # of every component, where activations may be 0
        mean = scale * found["activation"] / on
        mean_log = scale.log() + found["log_activation"] / on
        learned = fit_shape(mean, mean_log, state.activation[0])
        spike = (1 - on / found["total"]).clamp(0.0, 1.0) if "total" in found else torch.zeros_like(learned)
        return LoadingPosteriors(shape, rate * scale.unsqueeze(1), learned, learned / mean, spike)

    def prior_term(self, model: GammaPoisson, state: LoadingPosteriors) -> Tensor:
        return -Gamma(state.shape, state.rate).kl(self.loading_prior(model, state.shape)).double().sum()

    def project(
        self, model: GammaPoisson, state: LoadingPosteriors, locals_: Params
    ) -> tuple[LoadingPosteriors, Params]:
        """Shapes and rates are positive."""
        inside = {
            name: value.clamp(min=0 if name.endswith("spike") else LEAST_SHAPE)
            for name, value in state.tensors().items()
        }
        if state.activation_spike is not None:
            inside["activation_spike"] = inside["activation_spike"].clamp(max=1.0)
        return LoadingPosteriors.of(inside), locals_
