"""Discriminative categorical PCA: the engines of exponential-family PCA with means of the scores that inputs predict.

With p(z_n) = N(m0 + U'u_n, P^-1) an E step is that of :mod:`custom_inference.families.factors.newton` at prior means of
the rows' own (002, section 27.4.4.3). In U the expected log joint is a regression of E[z_n] - m0 on the inputs: with
the prior N(M, 1 / L) of its columns,

    U_k = [t_k sum_n u_n u_n' + L_k]^-1 [t_k sum_n u_n E(z_nk - m0_k) + L_k M_k]

whose sums are additive over rows. Of Gaussian outputs the E step is exact under "gaussian".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.families.common.priors import normal_parameters
from custom_inference.families.factors.common import FactorEngine
from custom_inference.families.factors.natural import ScorePrior
from custom_inference.families.factors.newton import FactorGaussian, FactorMap, FactorVariational
from custom_inference.families.factors.rows import FactorRows, Problem
from ppl_models import Data, Model
from ppl_models.exponential_family_pca import canonical_turn

#: Draws of the scores that predictions are averaged over.
_DRAWS = 200


@dataclass(frozen=True)
class InputRows(FactorRows):
    """Rows with their inputs (N, P)."""

    covariates: Tensor | None = None

    @classmethod
    def read(cls, model: Any, data: Data) -> InputRows:
        return replace(super().read(model, data), covariates=data.others["covariates"])  # pyright: ignore

    def select(self, index: Tensor | slice) -> Self:
        inputs = self.covariates
        return replace(super().select(index), covariates=None if inputs is None else inputs[index])

    def to(self, dtype: torch.dtype) -> Self:
        inputs = self.covariates
        return replace(super().to(dtype), covariates=None if inputs is None else inputs.to(dtype))

    @property
    def inputs(self) -> Tensor:
        assert self.covariates is not None
        return self.covariates

    def problem(self, model: Model, params: Params, temperature: float = 1.0) -> Problem:
        """At the prior means (N, K) of these rows; without weights of the inputs, at the common one."""
        found = super().problem(model, params, temperature)
        if "input_weight" not in params:
            return found
        prior = found.prior
        return found._replace(prior=prior._replace(mean=prior.mean + self.inputs @ params["input_weight"]))


@dataclass(frozen=True, kw_only=True)
class _Discriminative(FactorEngine):
    """Rows, starts, and the M step of the weights of the inputs, for any engine of the scores."""

    def rows(self, model: Model, data: Data) -> InputRows:
        return InputRows.read(model, data)

    def initial(self, model: Model, rows: InputRows, generator: torch.Generator) -> Params:
        return _with_inputs(model, super().initial(model, rows, generator))

    def propose(self, model: Model, rows: InputRows, generator: torch.Generator, attempt: int) -> Params:
        return _with_inputs(model, super().propose(model, rows, generator, attempt))

    def e_step(
        self, model: Model, params: Params, rows: InputRows, warm: Warm = None, *, temperature=1.0, generator=None
    ) -> EStep:
        settings: dict[str, Any] = {"temperature": temperature, "generator": generator}
        step = super().e_step(model, params, rows, warm, **settings)  # pyright: ignore[reportAbstractUsage]
        inputs = rows.inputs
        away = step.locals["score"] - ScorePrior.of(model, inputs).mean
        return step._replace(statistics={**step.statistics, "inputs": inputs.T @ inputs, "along": inputs.T @ away})

    def m_step(self, model: Model, params: Params, step: EStep, rows: InputRows) -> Params:
        score, current = ScorePrior.of(model, params["input_weight"]).precision, params["input_weight"]
        mean, precision = normal_parameters(model, "input_weight", model.shapes["input_weight"], current)
        pair = score.view(-1, 1, 1) * step.statistics["inputs"] + torch.diag_embed(precision.T)
        # Held back by next to nothing, where the prior is flat and inputs are collinear.
        pull = 1e-8 * pair.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
        right = (score * step.statistics["along"] + precision * mean).T + pull * current.T
        factor = torch.linalg.cholesky(pair + pull.unsqueeze(-1) * torch.eye(pair.shape[-1]).to(pair))
        found = torch.cholesky_solve(right.unsqueeze(-1), factor)[..., 0].T
        return {**super().m_step(model, params, step, rows), "input_weight": found.contiguous()}

    def canonical(self, model: Model, params: Params, locals_: Params) -> tuple[Params, Params]:
        """As that of the other models of scores; ``input_weight`` turned alike, if its prior allows."""
        mean, precision = normal_parameters(model, "input_weight", model.shapes["input_weight"], params["weight"])
        if bool((mean != 0).any() | (precision != precision[:, :1]).any()):
            return params, locals_
        turned, moved = super().canonical(model, params, locals_)
        if turned is params:
            return params, locals_
        return {**turned, "input_weight": params["input_weight"] @ canonical_turn(params["weight"]).T}, moved


def _with_inputs(model: Model, params: Params) -> Params:
    """Weights of the inputs that say nothing yet."""
    return {**params, "input_weight": params["weight"].new_zeros(model.shapes["input_weight"])}


@dataclass(frozen=True, kw_only=True)
class DiscriminativeVariational(_Discriminative, FactorVariational):
    """The best Gaussians, under E[A] itself or the tilted bound on it."""


@dataclass(frozen=True, kw_only=True)
class DiscriminativeGaussian(_Discriminative, FactorGaussian):
    """Boehning's bound; of Gaussian outputs exact."""


@dataclass(frozen=True, kw_only=True)
class DiscriminativeMap(_Discriminative, FactorMap):
    """Point estimates of the scores beside those of the globals."""


def predicted(fit: Any, data: Data) -> Tensor:
    """The posterior mean of label probabilities (of reals the means), (N, D), given the inputs and the labels that are
    seen."""
    draws = fit.local_posterior(data).posterior.sample(_DRAWS, seed=fit.seed)
    return torch.stack([fit.model.expected(fit.globals, one) for one in draws]).mean(0)
