"""What the engines of gamma-Poisson factor analysis share: rows, priors, scales, and the tie to topic models.

Given its events' components, a row's activations are Gammas and its events' components those of a document: with
r_nk = beta_k + B_nk, B_nk = sum of E[b_kv] over the observed entries, and weights w_nk = 1 / r_nk,

    log p(x_n | b) = log E[prod_v (sum_k pi_k w_nk b_kv)^x_nv] + log [G(alpha. + L_n) / G(alpha.)]
                     - sum_k alpha_k log(r_nk / beta_k) - sum_v log x_nv!,          pi ~ Dirichlet(alpha),

where the first term is the evidence of LDA's tokens with "topics" w_nk b_kv: integrate z_nk = y_k / r_nk, y_k = t pi_k,
t ~ Gamma(alpha. + L_n, 1). The same holds of LDA's bound in place of its evidence, the posterior shapes of the
activations being the concentrations of the proportions. So E steps here are those of ``topics`` with weights.

Activations and loadings share a scale: with (z_.k s, b_k. / s) in place of (z_.k, b_k.) the likelihood stays and

    power_k log s - rate_k s - mass_k / s,  power_k = N alpha_k - sum_v c, rate_k = beta_k sum_n E[z_nk], mass_k = d B_k

is what changes. Ordinary steps creep along that line; every M step goes to its maximum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from custom_inference.core.engine import Engine, EStep, Params
from custom_inference.families.conjugate.gamma import Gamma
from custom_inference.families.conjugate.pair import basis_shift
from custom_inference.families.rows.documents import DocumentRows
from ppl_models import Data, GammaPoisson, PriorError
from ppl_models.data import sparse as _sparse
from ppl_models.distributions import SpikeGamma

#: Shape, rate and spike of the activations' prior.
ActivationParameters = tuple[Tensor, Tensor, Tensor]
#: Rates are kept this far from 0.
FLOOR = 1e-12


@dataclass(frozen=True)
class EventRows(DocumentRows):
    """Rows of counts, of which only those above 0 carry work. mask (N, D): True where an entry was observed."""

    mask: Tensor | None = None

    @classmethod
    def of(cls, data: Data, *, coefficient: bool = False) -> Self:
        return cls(DocumentRows.of(data).counts, mask=data.mask)

    @cached_property
    def observed(self) -> Tensor | None:
        """The mask as numbers; None where everything is observed."""
        return None if self.mask is None else self.mask.to(self.counts.dtype)

    @cached_property
    def whole(self) -> bool:
        """Whether all entries are whole numbers that double precision can count, so that they may be counts."""
        return _sparse.is_whole(self.counts) and float(self.counts.values().amax(-1).nan_to_num()) <= 2.0**53

    @cached_property
    def log_base(self) -> Tensor:
        """-sum_v log x_nv!, (N,)."""
        logs = -torch.lgamma(self.counts.values() + 1)
        return _sparse.row_sums(_sparse.with_values(self.counts, logs))

    def statistics(self, events: Tensor, mean: Tensor) -> dict[str, Tensor]:
        """Return what M steps take: expected events (K, D), what they were exposed to at activations of these means (N,
        K), the sums of these, and the number of rows."""
        exposure, number = self.sum_observed(mean), mean.new_tensor(float(len(self)))
        return {"events": events, "exposure": exposure, "activation": mean.sum(0), "rows": number}

    def exposure(self, loading: Tensor) -> Tensor:
        """sum of b_kv (K, D) over the observed entries of each row, (N, K)."""
        if self.observed is None:
            return loading.sum(1).expand(len(self), -1)
        return self.observed @ loading.T

    def sum_observed(self, activation: Tensor) -> Tensor:
        """Sum z_nk (N, K) over the rows that observed each feature, (K, D)."""
        if self.observed is None:
            return activation.sum(0).unsqueeze(1).expand(-1, self.counts.shape[1])
        return activation.T @ self.observed


class GapEngine(Engine):
    """``rows``, ``check``, ``initial`` and the prior term of the engines that estimate the loadings as points."""

    def rows(self, model: GammaPoisson, data: Data) -> EventRows:
        return EventRows.of(data)

    def loading_prior(self, model: GammaPoisson, like: Tensor) -> Gamma:
        return Gamma.of(model, "loading", like)

    def activation_prior(self, model: GammaPoisson, like: Tensor) -> ActivationParameters:
        """alpha, beta and rho, (K,) each."""
        return activation_parameters(model, like)

    def check(self, model: GammaPoisson, rows: EventRows) -> None:
        """Raises PriorError for priors without closed-form updates."""
        like = rows.like.values()
        self.activation_prior(model, like)
        self.loading_prior(model, like)

    def require_proper(self, model: GammaPoisson, rows: EventRows) -> None:
        """Raises PriorError for a flat prior of the activations that are integrated out: what they are integrated to
        rises without end as the loadings shrink."""
        if bool((self.activation_prior(model, rows.like.values())[1] <= 0).any()):
            found = "the flat prior of 'activation' is improper: its bound has no maximum, it rises as loadings shrink"
            raise PriorError(f"{found}; use method='map', or a Gamma prior")

    def random_shares(self, model: GammaPoisson, rows: EventRows, generator: torch.Generator, evenness: int) -> Tensor:
        """Each feature's events divided among the components in proportions of Gamma(evenness) variables, (K, D)."""
        size = model.shapes["loading"]
        noise = torch.zeros(size, dtype=torch.float64)
        for _ in range(evenness):
            noise -= torch.log1p(-torch.rand(size, generator=generator, dtype=noise.dtype) * (1 - 1e-6))
        counts = _sparse.column_sums(rows.counts)
        return (noise / noise.sum(0)).to(counts) * (counts + 0.1)

    def mean_activation(self, model: GammaPoisson, like: Tensor) -> Tensor:
        """Under the prior, 1 under flat ones, (K,)."""
        shape, rate, spike = self.activation_prior(model, like)
        return torch.where(rate > 0, (1 - spike) * shape / rate.clamp(min=FLOOR), torch.ones_like(shape))

    def from_counts(self, model: GammaPoisson, counts: Tensor, num_rows: int) -> Any:
        """Loadings at which each component has these expected events (K, D) in so many rows."""
        activation = self.mean_activation(model, counts).unsqueeze(1)
        return {"loading": ((counts + 1e-3) / (num_rows * activation)).clamp(min=FLOOR)}

    def initial(self, model: GammaPoisson, rows: EventRows, generator: torch.Generator) -> Any:
        return self.from_counts(model, self.random_shares(model, rows, generator, 1), len(rows))

    def m_step(self, model: GammaPoisson, state: Params, step: EStep, rows: EventRows) -> Params:
        events = step.statistics["events"]
        prior = self.loading_prior(model, events)
        loading = prior.mode(events, step.statistics["exposure"], floor=FLOOR)
        size, mass = loading_terms(prior, loading, basis_shift(prior.shape))
        scale = self.scale(self.activation_prior(model, events), step, size, mass)
        return {**state, "loading": (loading / scale.unsqueeze(-1)).clamp(min=FLOOR)}

    def scale(self, prior: tuple[Tensor, ...], step: EStep, size: Tensor, mass: Tensor) -> Tensor:
        """Return what the activations of each component, (K,), or of all, are best multiplied by."""
        shape, rate = prior[:2]
        return best_scale(step.statistics["rows"] * shape - size, rate * step.statistics["activation"], mass)

    def prior_term(self, model: GammaPoisson, state: Params) -> Tensor | float:
        """The density of the loadings in the basis that the M step takes its mode in."""
        loading = state["loading"]
        return self.loading_prior(model, loading).log_density(loading).sum().double()


def activation_parameters(model: GammaPoisson, like: Tensor) -> ActivationParameters:
    """alpha, beta and rho of the activations' prior, (K,) each; beta is 0 under a flat prior, rho under a Gamma. Raises
    PriorError for other priors."""
    prior = model.priors["activation"]
    if isinstance(prior, SpikeGamma):
        parts = prior.concentration.to(like), prior.rate.to(like), prior.spike.to(like)
    else:
        shape, rate = Gamma.of(model, "activation", like)
        parts = shape, rate, torch.zeros_like(rate)
    shape, rate, spike = (part.expand(model.local_shape) for part in parts)
    return shape, rate, spike


def best_scale(power: Tensor, rate: Tensor, mass: Tensor) -> Tensor:
    """argmax over s > 0 of power log s - rate s - mass / s; 1 where that has none, or no end of it is held."""
    held = (rate > 0) & (mass > 0)
    rate, mass = (torch.where(held, part, torch.ones_like(part)) for part in (rate, mass))
    root = torch.sqrt(power.square() + 4 * rate * mass)
    found = torch.where(power > 0, (power + root) / (2 * rate), 2 * mass / (root - power))
    return torch.where(held, found, torch.ones_like(found))


def loading_terms(prior: Gamma, loading: Tensor, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    """sum_v (c - shift) and sum_v d b_kv, (K,) each."""
    shape, rate = prior.expand(loading.shape)
    return (shape - shift).sum(1), (rate * loading).sum(1)


def loading_of(params: Params) -> Tensor:
    return params["loading"].clamp(min=FLOOR)
