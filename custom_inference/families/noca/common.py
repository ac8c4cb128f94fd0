"""What NOCA's engines share: random starts, the linear terms of their bounds, and the M step of cause transmission.

Cause transmission. Introduce z_ij ~ Bernoulli(s_i p_ij) for every source and z_0j ~ Bernoulli(p_0j) for the leak,
x_j = OR_i z_ij. Given s, P(z_ij = 1 | s, x_j = 1) = s_i p_ij / P(x_j = 1 | s), and 0 for x_j = 0. Hence with
T_ij = sum_n ones_nj E_q[s_i p_ij / P(x_j = 1 | s)] and S_ij = sum_n m_nj E_q[s_i] the M step is p_ij = T_ij / S_ij
(plus Beta pseudo-counts). It is an EM step for the augmented model, so it raises E_q[log p(x, s)] too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from custom_inference.core.engine import Engine, EStep, Params
from custom_inference.families.conjugate.beta import FLOOR, Beta, interior
from custom_inference.families.rows.matrix import BinaryRows
from ppl_models import Data, Model
from ppl_models.distributions import theta_of


class NocaEngine(Engine):
    """Base of the NOCA engines: data, priors and starts, and the M step from ``transmission_statistics``."""

    def rows(self, model: Model, data: Data) -> BinaryRows:
        return BinaryRows.of(data)

    def check(self, model: Model, rows: BinaryRows) -> None:
        """Raises MethodError for priors other than Beta (or flat): the M steps are closed-form for those only."""
        self.check_priors(model, rows)
        super().check(model, rows)

    def check_priors(self, model: Model, rows: BinaryRows) -> None:
        """Raises MethodError for priors other than Beta, or flat."""
        for site, shape in model.shapes.items():
            Beta.with_mode(model, site, rows.ones.new_zeros(shape))

    def initial(self, model: Model, rows: BinaryRows, generator: torch.Generator) -> Params:
        """Start with random loadings around the data's mean rate, and a leak well below it."""
        (num_components, num_features), like = model.shapes["loading"], rows.ones
        rate = (rows.ones.sum(0) / rows.observed_count.clamp(min=1)).clamp(0.01, 0.9)
        noise = torch.rand((num_components, num_features), generator=generator, dtype=torch.float64).to(like)
        return {
            "source_prior": logit_jitter(min(0.3, 2.0 / num_components), (num_components,), 0.1, generator, like),
            "loading": (rate * (0.4 + 1.2 * noise)).clamp(0.02, 0.95),
            "leak": (0.3 * rate).clamp(1e-3, 0.5),
        }

    def m_step(self, model: Model, params: Params, step: EStep, rows: BinaryRows) -> Params:
        s = dict(step.statistics)
        prior = prior_mode(model, params, s.pop("source"), round(float(s.pop("rows"))))
        priors = [Beta.with_mode(model, site, params[site]) for site in ("loading", "leak")]
        return {**params, **transmission_update(priors, **s), "source_prior": prior}


def transmission_update(
    priors: list[Beta], *, sent: Tensor, sent_leak: Tensor, present: Tensor, observed: Tensor
) -> Params:
    """Compute p = T / S for loading (K, D) and leak (D,), with the pseudo-counts (a, b) of their Beta priors."""
    loading = priors[0].mode(sent, present, floor=FLOOR)
    return {"loading": loading, "leak": priors[1].mode(sent_leak, observed, floor=FLOOR)}


def transmission_statistics(
    params: Params, rows: BinaryRows, mean: Tensor, sent: Tensor, sent_leak: Tensor
) -> dict[str, Tensor]:
    """Return what the M step needs: sent (K, D) and sent_leak (D,) are sums of E_q[s_i / P(x_j = 1 | s)]."""
    return {
        "sent": sent * params["loading"],
        "sent_leak": sent_leak * params["leak"],
        "present": rows.sum_observed(mean),
        "observed": rows.observed_count,
        "source": mean.sum(0),
        "rows": mean.new_tensor(len(rows)),
    }


def linear_terms(params: Params, rows: BinaryRows, mean: Tensor) -> Tensor:
    """What bounds under independent sources, lambda = ``mean`` (N, K), have beside the observed ones, (N,):

    sum_i [lambda_i logit pi_i + log(1 - pi_i)] - sum_j zeros_nj (theta_0j + sum_i lambda_i theta_ij) + H(Q).
    """
    (theta, theta0), pi = thetas(params), interior(params["source_prior"])
    prior = mean @ torch.logit(pi) + torch.log1p(-pi).sum()
    absent = (rows.zeros * (theta0 + mean @ theta)).sum(-1)
    return prior - absent + (torch.special.entr(mean) + torch.special.entr(1 - mean)).sum(-1)


def any_size(model: Model) -> Model:
    """Return the model with priors that serve any number of sources: those that differ by source are made flat.

    M steps read nothing but the priors from a model, so searches run them with fewer or more sources than it has.
    """
    flat, varying = model.default_priors(), {}
    source, loading = (tuple(getattr(model.priors[site], "batch_shape", ())) for site in ("source_prior", "loading"))
    if source not in ((), (1,)):
        varying["source_prior"] = flat["source_prior"]
    if len(loading) == 2 and loading[0] != 1:
        varying["loading"] = flat["loading"]
    return model.with_priors(**varying) if varying else model


def thetas(params: Params) -> tuple[Tensor, Tensor]:
    """Return theta (K, D) and theta_0 (D,)."""
    return theta_of(params["loading"]), theta_of(params["leak"])


def prior_mode(model: Model, params: Params, source_total: Tensor, num_rows: int) -> Tensor:
    """Compute pi_i = (sum_n E[s_ni] + a - 1) / (N + a + b - 2) (the paper, Fig. 2, with a Beta prior)."""
    prior = Beta.with_mode(model, "source_prior", params["source_prior"])
    return prior.mode(source_total, torch.full_like(source_total, num_rows), floor=FLOOR)


def logit_jitter(
    value: float, shape: tuple[int, ...], spread: float, generator: torch.Generator, like: Tensor
) -> Tensor:
    """Draw probabilities around ``value``, spread on the logit scale."""
    noise = torch.randn(shape, generator=generator, dtype=torch.float64).to(like)
    return torch.sigmoid(torch.logit(torch.tensor(value, dtype=like.dtype, device=like.device)) + spread * noise)
