"""Discriminative categorical PCA: the engines of exponential-family PCA with means of the scores that inputs predict.

With p(z_n) = N(m0 + U'u_n, P^-1) an E step is that of :mod:`custom_inference.families.factors.newton` at prior means of
the rows' own (Murphy 2012, section 27.4.4.3). In U the expected log joint is a regression of E[z_n] - m0 on the inputs:
with the prior N(M, 1 / L) of its columns,

    U_k = [t_k sum_n u_n u_n' + L_k]^-1 [t_k sum_n u_n E(z_nk - m0_k) + L_k M_k]

whose sums are additive over rows; under "laplace" E[z_n] is the mode and z of ``newton``, by which it leans. Of
Gaussian outputs the E step is exact under all engines of Gaussians, one of which is "exact"; of others that is
quadrature over one or two scores. The noise of Gaussian outputs has R = sum_nj E(x_nj - eta_nj)^2 and the mode of
-M log sigma - R / (2 sigma^2) + log p(sigma) over M entries.

With experts, p(z_n) = sum_e pi_e N(m0 + U_e'u_n, P^-1), and of each the bound B_ne of such an E step at its own prior,

    log p(x_n) >= log sum_e pi_e exp(B_ne),   q(z_n) = sum_e r_ne N(m_ne, V_ne),   r_ne proportional to pi_e exp(B_ne)

and every sum over rows is one over rows and experts with the weights r_ne.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from pyro.distributions import InverseGamma
from torch import Tensor
from torch.distributions import LogNormal

from custom_inference.core.draws import draw_globals, has_draws
from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.local_inference import solve_local
from custom_inference.core.posteriors import GaussianMixturePosterior, LocalPosterior
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.conjugate.scale import scale_mode
from custom_inference.families.factors.common import FactorEngine, append_bias
from custom_inference.families.factors.gaussian import GaussianExact
from custom_inference.families.factors.moving import equations
from custom_inference.families.factors.newton import FactorVariational
from custom_inference.families.factors.rows import FactorRows, ScoreProblem
from custom_inference.families.rows.base import BlockSteps
from custom_inference.families.rows.matrix import RealRows
from ppl_models import Data, MethodError, Model
from ppl_models.core.turns import canonical_turn

#: Entries of the (rows, experts, natural parameters) arrays per block.
_BLOCK_ENTRIES = 2**17
#: Draws of the scores that predictions are averaged over.
_DRAWS = 200


@dataclass(frozen=True)
class InputRows(FactorRows):
    """Rows with their inputs (N, P), about the model's centre."""

    covariates: Tensor | None = None

    @classmethod
    def read(cls, model: Any, data: Data) -> InputRows:
        inputs = data.others["covariates"]
        return replace(super().read(model, data), covariates=inputs - model.scale_of_columns(inputs)[0])  # pyright: ignore

    @property
    def inputs(self) -> Tensor:
        assert self.covariates is not None
        return self.covariates

    def problem(self, model: Model, params: Params, temperature: float = 1.0) -> ScoreProblem:
        """Return the problem of the scores at the prior means (N, K) of these rows; without weights of the inputs, at
        the common one. With the scale of Gaussian outputs, 1 where there is none."""
        found = super().problem(model, params, temperature)
        if "scale" in params:
            rate, count = params["scale"].square().reciprocal(), found.total.sum(1)
            half = 0.5 * math.log(2 * math.pi)
            base = rate * (found.base + half * count) - (half + params["scale"].log()) * count
            found = found._replace(target=rate * found.target, total=rate * found.total, base=base)
        if "input_weight" not in params:
            return found
        prior = found.prior
        return found._replace(prior=Normal(prior.mean + self.inputs @ params["input_weight"], prior.precision))


@dataclass(frozen=True, kw_only=True)
class Discriminative(FactorEngine):
    """Rows, starts, and the M steps of the weights of the inputs and of the noise, for any engine of the scores."""

    conjugate: ClassVar[Mapping[str, tuple[type, ...]]] = {"scale": (LogNormal, InverseGamma)}

    def rows(self, model: Model, data: Data) -> InputRows:
        return InputRows.read(model, data)

    def initial(self, model: Model, rows: InputRows, generator: torch.Generator) -> Params:
        return _with_inputs(model, self._start(model, rows, generator, 1), generator)

    def propose(self, model: Model, rows: InputRows, generator: torch.Generator, attempt: int) -> Params:
        return _with_inputs(model, self._start(model, rows, generator, attempt), generator)

    def _start(self, model: Any, rows: InputRows, generator: torch.Generator, attempt: int) -> Params:
        """Start as for the other models of scores; Gaussian outputs start as Gaussian PCA does."""
        if model.outputs == "gaussian":
            return GaussianExact().propose(model, RealRows(rows.like, rows.mask), generator, attempt)
        if attempt:
            return FactorEngine.initial(self, model, rows, generator)
        return FactorEngine.propose(self, model, rows, generator, 0)

    def check(self, model: Any, rows: InputRows) -> None:
        """Raises MethodError for priors other than Normal (or flat), a flat prior of scores that are integrated out, or
        for experts unless the engine is "variational", or "exact" of Gaussian outputs."""
        if model.num_experts > 1 and self.name != "variational" and (self.name, model.outputs) != ("exact", "gaussian"):
            raise MethodError(f"experts are mixed by guide='variational' alone, not by {self.name!r}")
        for site in ("weight", "bias", "input_weight", "score"):
            Normal.of(model, site, model.shape_of(site), rows.base)
        if self.name != "map":
            Normal.of(model, "score", model.local_shape, rows.base).require_proper("score")

    def e_step(
        self, model: Any, params: Params, rows: InputRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        settings: dict[str, Any] = {"temperature": temperature, "generator": generator}
        step = super().e_step(model, params, rows, warm, **settings)  # pyright: ignore[reportAbstractUsage]
        away = (
            step.locals["score"]
            + step.locals.get("lean", 0.0)
            - Normal.of(model, "score", model.local_shape, rows.inputs).mean
        )
        sums = {**regression(rows.inputs, away), **noise_sums(model, rows, temperature)}
        return step._replace(statistics={**step.statistics, **sums})

    def step_towards(self, model: Any, current: Tensor, found: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
        """Return the columns after an M step; for Gaussian outputs the maximum itself, without a Newton step."""
        return found if model.outputs == "gaussian" else super().step_towards(model, current, found, mean, precision)

    def m_step(self, model: Any, params: Params, step: EStep, rows: InputRows) -> Params:
        score, current, found = (
            Normal.of(model, "score", model.local_shape, params["weight"]).precision,
            params["input_weight"],
            step.statistics,
        )
        prior = Normal.of(model, "input_weight", model.shapes["input_weight"], current)
        new = super().m_step(model, params, step, rows)
        if "scale" in params:
            new["scale"] = noise(model, params["scale"], found, append_bias(new["weight"], new["bias"]))
        if model.num_experts == 1:
            best = fit_regression(found["inputs"], found["along"], score, prior.mean, prior.precision, current)
            shortened = 1 + getattr(self, "tightness", 0.0)  # as of the other steps that were taken back
            return {**new, "input_weight": current + (best - current) / shortened}
        parts = zip(found["inputs"], found["along"], *prior, current, strict=True)
        each = [fit_regression(pair, along, score, *rest) for pair, along, *rest in parts]
        proportion = Dirichlet.with_mode(model, "expert_proportion", current).mode(found["experts"], floor=1e-6)
        return {**new, "input_weight": torch.stack(each), "expert_proportion": proportion}

    def canonical(self, model: Model, params: Params, locals_: Params) -> tuple[Params, Params]:
        """Rotate the factors as for the other models of scores, and ``input_weight`` with them, if its prior allows."""
        prior = Normal.of(model, "input_weight", model.shapes["input_weight"], params["weight"])
        if not prior.is_central(-1):
            return params, locals_
        turned, moved = super().canonical(model, params, locals_)
        if turned is params:
            return params, locals_
        turn = canonical_turn(params["weight"])
        if "expert_score" in moved:
            moved["expert_score"] = moved["expert_score"] @ turn.T
            moved |= {name: turn @ moved[name] @ turn.T for name in ("expert_covariance", "expert_precision")}
        return {**turned, "input_weight": params["input_weight"] @ turn.T}, moved


def noise_sums(model: Any, rows: InputRows, temperature: float) -> dict[str, Tensor]:
    """Sum x_nj^2 over the rows and count the entries, (D,) each, for Gaussian outputs."""
    if model.outputs != "gaussian":
        return {}
    x = rows.x
    seen = torch.ones_like(x) if rows.observed is None else rows.observed
    return {"square": temperature * x.square().sum(0), "observed": temperature * seen.sum(0)}


def noise(model: Model, scale: Tensor, found: dict[str, Tensor], values: Tensor) -> Tensor:
    """Return the scale of Gaussian outputs at weights and biases (D, K + 1), from sums that were taken at the last
    scale."""
    pair = scale.square() * found["pair"].reshape(len(values), *values.shape[1:] * 2)
    target = scale.square() * found["target"]
    fitted = (pair @ values.unsqueeze(-1)).squeeze(-1)
    residual = (found["square"] + (values * (fitted - 2 * target)).sum(-1)).clamp(min=0)
    return scale_mode(model, scale, found, residual)


def regression(inputs: Tensor, away: Tensor, weight: Tensor | None = None) -> dict[str, Tensor]:
    """Sum u_n u_n' and u_n E(z_n - m0)' over the rows, which count for ``weight`` (N,)."""
    counted = inputs if weight is None else inputs * weight.unsqueeze(-1)
    return {"inputs": counted.T @ inputs, "along": counted.T @ away}


def fit_regression(
    pair: Tensor, along: Tensor, score: Tensor, mean: Tensor, precision: Tensor, current: Tensor
) -> Tensor:
    """Solve for U (P, K) from the sums, the precisions (K,) of the scores and the prior's mean and precision (P, K)."""
    system = score.view(-1, 1, 1) * pair + torch.diag_embed(precision.T)
    # Held back by next to nothing, where the prior is flat and inputs are collinear; in the inputs' own units.
    pull = 1e-8 * system.diagonal(dim1=-2, dim2=-1)
    right = (score * along + precision * mean).T + pull * current.T
    unit = pull.clamp(min=torch.finfo(pull.dtype).tiny).sqrt()
    system = (system + torch.diag_embed(pull)) / (unit.unsqueeze(-1) * unit.unsqueeze(-2))
    factor = torch.linalg.cholesky(system)
    return (torch.cholesky_solve((right / unit).unsqueeze(-1), factor)[..., 0] / unit).T.contiguous()


def _with_inputs(model: Any, params: Params, generator: torch.Generator) -> Params:
    """Add weights of the inputs that say nothing yet; for several experts random ones."""
    shape, like = model.shapes["input_weight"], params["weight"]
    if model.num_experts == 1:
        return {**params, "input_weight": like.new_zeros(shape)}
    noise = torch.randn(shape, generator=generator, dtype=torch.float64).to(like)
    noise = noise / model.scale_of_columns(like)[1].unsqueeze(-1)
    proportion = like.new_full((model.num_experts,), 1 / model.num_experts)
    return {**params, "input_weight": noise, "expert_proportion": proportion}


@dataclass(frozen=True, kw_only=True)
class DiscriminativeVariational(Discriminative, FactorVariational):
    """The best Gaussians, under E[A] itself or the tilted bound on it; with experts one of each."""

    def e_step(
        self, model: Any, params: Params, rows: InputRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        if model.num_experts == 1:
            return super().e_step(model, params, rows, warm, temperature=temperature, generator=generator)
        steps, (groups, size) = BlockSteps(), rows.shape
        for place, part in rows.parts(max(64, _BLOCK_ENTRIES // (groups * size * model.num_experts))):
            start = None if warm is None else {name: value[place] for name, value in warm.items()}
            bound, kept, sums = self._mix_experts(model, params, part, start, temperature)
            steps.add({**sums, **noise_sums(model, part, temperature)}, bound, **kept)
        return steps.join()

    def _mix_experts(
        self, model: Any, params: Params, rows: InputRows, warm: Warm, temperature: float
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Return the bounds, what is kept, and the sums of a block of rows."""
        made = []
        for expert, own in enumerate(params["input_weight"]):
            problem = rows.problem(model, {**params, "input_weight": own}, temperature)
            names = ("score", "precision", "tilt")
            parts = {name: f"expert_{name}" for name in names if warm is not None and f"expert_{name}" in warm}
            start = {name: warm[key][:, expert] for name, key in parts.items()} if warm is not None else None
            made.append((problem, *self._solve(problem, start, len(rows))))
        joint = torch.stack([at.objective for *_, at in made], -1) + params["expert_proportion"].log()
        share, prior, sums = joint.softmax(-1), Normal.of(model, "score", model.local_shape, rows.inputs), []
        for (problem, moving, at), weight in zip(made, share.T, strict=True):
            curvature = moving.curvature(at).scale_by(weight.unsqueeze(-1).expand(len(rows), at.eta.shape[1]))
            residual = weight.view(-1, 1, 1) * moving.residual(at)
            own = regression(rows.inputs, at.score - prior.mean, weight)
            sums.append((equations(problem, at, at.covariance, curvature, residual), own))
        total = {name: torch.stack([one[name] for one, _ in sums]).sum(0) for name in sums[0][0]}
        total |= {name: torch.stack([own[name] for _, own in sums]) for name in sums[0][1]}
        kept = {
            f"expert_{name}": torch.stack([getattr(at, name) for *_, at in made], 1)
            for name in ("score", "covariance", "precision")
        }
        if made[0][2].tilt is not None:
            kept["expert_tilt"] = torch.stack([at.tilt.flatten(1) for *_, at in made], 1)
        kept["log_share"] = joint.log_softmax(-1)
        kept["score"] = (share.unsqueeze(-1) * kept["expert_score"]).sum(1)
        return joint.logsumexp(-1), kept, {**total, "experts": share.sum(0)}

    def posterior(self, model: Any, params: Params, rows: FactorRows, step: EStep) -> LocalPosterior:
        if model.num_experts == 1:
            return super().posterior(model, params, rows, step)
        found = step.locals
        return GaussianMixturePosterior(found["log_share"], found["expert_score"], found["expert_covariance"])


def predict_outputs(fit: Any, data: Data) -> Tensor:
    """Predict label probabilities (of reals the means), (N, D), by their posterior mean given the inputs and the labels
    that are seen; the mean over draws of the globals where the fit has them."""
    every = list(draw_globals(fit)) if has_draws(fit) else [fit.globals]
    several, found = len(every) > 1, []
    for number, params in enumerate(every):
        params = {site: value.to(data.x) for site, value in params.items()} if several else params
        posterior = solve_local(fit.model, params, data, seed=fit.seed).posterior if several else fit.posterior_of(data)
        draws = posterior.sample(-(-_DRAWS // len(every)), seed=fit.seed + number)
        found += [fit.model.predict(params, one) for one in draws]
    return torch.stack(found).mean(0)
