"""Gaussian PCA, which is probabilistic PCA: exact EM (Tipping & Bishop 1999), and its starts.

With p(s_n) = N(m0, P^-1) and the observed entries of row n alone,

    V_n^-1 = P + sum_j w_j w_j' / sigma_j^2,    V_n^-1 m_n = P m0 + sum_j w_j (x_nj - b_j) / sigma_j^2
    log p(x_n) = sum_j log N(x_nj; b_j + w_j'm_n, sigma_j^2) + log N(m_n; m0, P^-1) + K / 2 log 2 pi + 1/2 log|V_n|

as the posterior is Gaussian with its mode at m_n. The M step maximises the expected log joint over (w_j, b_j) given
sigma, and then over sigma given these. For complete data under flat priors with one sigma the maximum of the likelihood
is known: the first proposal, at which EM then stays. Sums over rows and the M step are in double precision: of columns
far from 0 squares leave too few digits in single.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, ExactEngine, Params, Warm
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.conjugate.scale import SCALE_PRIORS, require_scale_prior, scale_floor, scale_mode
from custom_inference.families.factors.common import FactorEngine, append_bias, least_squares, split
from custom_inference.families.factors.natural import extend_moments, outer_products
from custom_inference.families.rows.base import BlockSteps
from custom_inference.families.rows.matrix import RealRows
from ppl_models import Data, Model
from ppl_models.likelihoods import Gaussian

#: Entries of the (rows, components, components) arrays per block.
_BLOCK_ENTRIES = 2**19


@dataclass(frozen=True, kw_only=True)
class GaussianExact(FactorEngine, ExactEngine):
    """Exact EM."""

    conjugate: ClassVar[Mapping[str, tuple[type, ...]]] = SCALE_PRIORS
    accelerate: ClassVar[str | None] = "squarem"

    def rows(self, model: Model, data: Data) -> RealRows:
        return RealRows.of(data)

    def feasible(self, model: Model) -> bool:
        return True

    def check(self, model: Model, rows: RealRows) -> None:
        """Raises PriorError as other engines do, and for priors of the scale without a closed form."""
        super().check(model, rows)
        require_scale_prior(model)

    def initial(self, model: Model, rows: RealRows, generator: torch.Generator) -> Params:
        """Start with small random weights, and the columns' means and variances."""
        noise = torch.randn(model.shapes["weight"], generator=generator, dtype=torch.float64).to(rows.like)
        mean, variance = _moments(rows)
        scale = variance.sqrt() if model.shapes["scale"] else variance.mean().sqrt()
        return {"weight": 0.3 * noise * variance.sqrt(), "bias": mean, "scale": scale}

    def propose(self, model: Model, rows: RealRows, generator: torch.Generator, attempt: int) -> Params:
        """Start with the principal components of the columns less the noise, the mean of the other eigenvalues."""
        if attempt > 0:
            return self.initial(model, rows, generator)
        mean, variance = _moments(rows)
        size = model.local_shape[0]
        apart = rows.x - mean if rows.observed is None else (rows.x - mean) * rows.observed
        value, vector = torch.linalg.eigh(apart.T @ apart / len(rows))
        value, vector = value.flip(0).clamp(min=0), vector.flip(1)
        least = 1e-6 * value.mean().clamp(min=torch.finfo(value.dtype).tiny)
        noise = value[size:].mean().clamp(min=least) if len(value) > size else least
        weight = (vector[:, :size] * (value[:size] - noise).clamp(min=least).sqrt()).T.contiguous()
        if not model.shapes["scale"]:
            return {"weight": weight, "bias": mean, "scale": noise.sqrt()}
        left = (variance - weight.square().sum(0)).clamp(min=0.05 * variance.clamp(min=least))
        return {"weight": weight, "bias": mean, "scale": left.sqrt()}

    def e_step(
        self, model: Model, params: Params, rows: RealRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        steps = BlockSteps()
        prior, size = Normal.of(model, "score", model.local_shape, params["weight"]), len(params["weight"])
        pairs, rate = outer_products(params["weight"].T), temperature / params["scale"].square()
        for _, part in rows.parts(max(64, _BLOCK_ENTRIES // (size**2 + rows.x.shape[1]))):
            seen = torch.ones_like(part.x) if part.observed is None else part.observed
            apart = seen * (part.x - params["bias"])
            precision = torch.diag(prior.precision) + ((rate * seen) @ pairs).unflatten(1, (size, size))
            factor = torch.linalg.cholesky(precision)
            right = (rate * apart) @ params["weight"].T + prior.precision * prior.mean
            score = torch.cholesky_solve(right.unsqueeze(-1), factor).squeeze(-1)
            covariance = torch.cholesky_inverse(factor)
            log_det = -2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
            eta = score @ params["weight"]
            log_p = Gaussian().log_prob(apart / params["scale"], seen * eta / params["scale"]) - params["scale"].log()
            # E[log p(x | s)] - KL(p(s | x) || prior), which is log p(x).
            spread = (covariance.flatten(1) @ pairs.T) * (rate * seen)
            fit = temperature * (log_p * seen).sum(-1) - 0.5 * spread.sum(-1)
            found = _statistics(part.x, temperature * seen, score, covariance)
            bound = fit - prior.kl_of(score, covariance, log_det)
            steps.add(found, bound, score=score, covariance=covariance)
        return steps.join()

    def m_step(self, model: Model, params: Params, step: EStep, rows: RealRows) -> Params:
        """Update (w_j, b_j) at the present sigma, and then sigma."""
        s, size, like = step.statistics, len(params["weight"]) + 1, params["weight"]
        params = {site: value.double() for site, value in params.items()}
        pair, current = s["pair"].reshape(-1, size, size), append_bias(params["weight"], params["bias"])
        rate = params["scale"].square().reciprocal().expand(len(pair))
        priors = (Normal.of(model, site, model.shapes[site], current) for site in ("weight", "bias"))
        mean, precision = (append_bias(*parts) for parts in zip(*priors, strict=True))
        scaled = rate.view(-1, 1, 1) * pair, rate.unsqueeze(-1) * s["target"]
        found, _ = least_squares(*scaled, mean, precision, current)
        fitted = (pair @ found.unsqueeze(-1)).squeeze(-1)
        residual = (s["square"] + (found * (fitted - 2 * s["target"])).sum(-1)).clamp(min=0)
        weight, bias = (part.contiguous() for part in split(found))
        scale = scale_mode(model, params["scale"], _sums_about_means(s), residual)
        return {site: value.to(like) for site, value in (("weight", weight), ("bias", bias), ("scale", scale))}

    def floors(self, model: Model, step: EStep) -> Params:
        # Steps are taken in double precision.
        return {"scale": scale_floor(_sums_about_means(step.statistics), torch.float64)}

    def project(self, model: Model, state: Params, locals_: Params) -> tuple[Params, Params]:
        """Keep scales positive."""
        least = torch.finfo(state["scale"].dtype).tiny ** 0.25
        return {**state, "scale": state["scale"].clamp(min=least)}, locals_


def _statistics(x: Tensor, seen: Tensor, score: Tensor, covariance: Tensor) -> dict[str, Tensor]:
    """Sum over the rows in double precision; observed entries weigh ``seen`` and others 0."""
    x, seen, score, covariance = (part.double() for part in (x, seen, score, covariance))
    one, pair = extend_moments(score, covariance)
    target, count, square = (seen * x).T @ one, seen.sum(0), (seen * x.square()).sum(0)
    return {"pair": seen.T @ pair, "target": target, "square": square, "observed": count}


def _sums_about_means(s: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the sums with squares about the columns' means: the least scale is a share of how far entries are from
    these, and not from 0."""
    return {**s, "square": (s["square"] - s["target"][:, -1].square() / s["observed"].clamp(min=1)).clamp(min=0)}


def _moments(rows: RealRows) -> tuple[Tensor, Tensor]:
    """Compute means and variances of the observed entries of every column, (D,)."""
    count = rows.observed_count.clamp(min=1)
    mean = rows.x.sum(0) / count
    apart = rows.x - mean if rows.observed is None else (rows.x - mean) * rows.observed
    # What rounding of the entries leaves of a column that is constant.
    least = torch.finfo(mean.dtype).eps ** 2 * rows.square / count
    variance = (apart.square().sum(0) / count).clamp(min=least)
    return mean, variance.clamp(min=torch.finfo(mean.dtype).tiny)
