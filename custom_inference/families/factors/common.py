"""What the engines of exponential-family PCA share: starts, priors, the M step, the rotation that is reported.

Every E step leaves, for each column m of the M natural parameters, the normal equations of a quadratic in (w_m, b_m):
with s~ = (s, 1), what is expected of rows n at the present globals being their slope g_nm and curvature r_nm in eta_nm,

    pair_m = sum_n r_nm E[s~ s~'],    target_m = sum_n (g_nm + r_nm E eta_nm) E[s~] + ...

so that (w_m, b_m) = [pair_m + prior]^-1 [target_m + prior]: the maximum of a bound where r belongs to one, and a step
of Newton's method where it is the curvature itself. Both are additive over rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from custom_inference.core.engine import Engine, EStep, Params
from custom_inference.core.posteriors import GaussianPosterior, LocalPosterior, PointPosterior
from custom_inference.core.proposals import Proposals
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.factors.rows import FactorRows, categories_of, in_units, normaliser_of, units_of
from custom_inference.families.rows.matrix import MatrixRows
from ppl_models import Data, Model
from ppl_models.core.turns import canonical_turn

_Rows = TypeVar("_Rows", bound=MatrixRows)
#: Where a prior is flat, an update is held back by this share of its own curvature, which keeps the systems regular
#: and (as a proximal step) the ascent monotone.
_PROXIMAL = 1e-6
#: The least variance of a component at its start, that of noise being 1.
_LEAST = 0.05


@dataclass(frozen=True, kw_only=True)
class FactorEngine(Proposals, Engine[_Rows, Params]):
    """Base of every engine of exponential-family PCA: data, starts, priors and the M step."""

    #: Itself: its proposals are its own.
    engine = property(lambda self: self)  # pyright: ignore[reportIncompatibleVariableOverride]

    def rows(self, model: Model, data: Data) -> Any:
        return FactorRows.read(model, data)

    def check(self, model: Model, rows: _Rows) -> None:
        """Raises PriorError for priors other than Normal (or flat), and for flat ones of scores that are integrated
        out."""
        like = torch.zeros((), dtype=torch.float64)
        for site in ("weight", "bias"):
            Normal.of(model, site, model.shapes[site], like)
        prior = Normal.of(model, "score", model.local_shape, like)
        if not self.has_point_locals:
            prior.require_proper("score")

    def initial(self, model: Model, rows: MatrixRows, generator: torch.Generator) -> Params:
        """Start with small random weights, and the columns' own natural parameters as bias."""
        bias = self.start_bias(model, rows)
        noise = torch.randn(model.shapes["weight"], generator=generator, dtype=torch.float64).to(bias)
        return _in_data(model, 0.3 * noise, bias)

    def start_bias(self, model: Model, rows: Any) -> Tensor:
        """Return the natural parameters of the columns' means, with half a count added; of real entries in their
        units."""
        sums = [_column_sums(part) for _, part in rows.parts(1024)]
        target = torch.stack([one for one, _ in sums]).sum(0)
        total = torch.stack([two for _, two in sums]).sum(0).unsqueeze(-1)
        normaliser = rows.normaliser()
        if normaliser.present is not None:
            present = normaliser.present.to(target)
            bias = torch.log(target + 0.5) * present
            return (bias - bias.sum(-1, keepdim=True) / present.sum(-1, keepdim=True) * present).view(
                model.shapes["bias"]
            )
        bounded = normaliser.likelihood.kind == "binary"
        less = target if normaliser.likelihood.kind == "real" else target + 0.5
        more = total + 1.0 if bounded else total.clamp(min=torch.finfo(total.dtype).tiny)
        return normaliser.likelihood.natural(less / more).view(model.shapes["bias"])

    def propose(self, model: Model, rows: FactorRows, generator: torch.Generator, attempt: int) -> Params:
        """Start with the leading components of Pearson's residuals at the bias, less their noise; later attempts are
        random."""
        if attempt > 0:
            return self.initial(model, rows, generator)
        shape = model.shapes["weight"]
        bias = self.start_bias(model, rows)
        params = _in_data(model, torch.zeros(shape).to(bias), bias)
        parts = [_pearson(part, model, params) for _, part in rows.parts(1024)]
        residual, rate = torch.cat([one for one, _ in parts]), torch.stack([two for _, two in parts]).sum(0) / len(rows)
        axes = principal_axes(residual, shape[0])
        length = axes.norm(dim=1, keepdim=True).clamp(min=torch.finfo(axes.dtype).tiny)
        axes = axes / length * (length.square() - 1).clamp(min=_LEAST).sqrt()
        weight = axes / rate.clamp(min=1e-3).sqrt()
        if rows.likelihood.kind != "real":
            weight = weight.clamp(-2, 2)  # of curvatures that are not those far from the bias
        return _in_data(model, weight.view(shape), bias)

    def at_random(self, attempt: int, num_rows: int) -> bool:
        return attempt > 0

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """Return the number of starts, the principal components and two random ones, and of rows, enough to span the
        components."""
        return 3, 1000 + 50 * model.local_shape[0]

    def m_step(self, model: Model, params: Params, step: EStep, rows: _Rows) -> Params:
        """Solve for every column (w, b) = [pair + prior]^-1 [target + prior]."""
        size, units = len(params["weight"]) + 1, units_of(model)
        current = append_bias(*in_units(units, params["weight"], params["bias"]))
        priors = (Normal.of(model, site, model.shapes[site], current) for site in ("weight", "bias"))
        mean, precision = zip(*priors, strict=True)
        mean, precision = append_bias(*in_units(units, *mean)), units[1] ** 2 * append_bias(*precision)
        pair = step.statistics["pair"].reshape(-1, size, size)
        found, _ = least_squares(pair, step.statistics["target"], mean, precision, current)
        found = self.step_towards(model, current, found, mean, precision)
        weight, bias = (
            part.reshape(model.shapes[site]) for site, part in zip(("weight", "bias"), split(found), strict=True)
        )
        return _in_data(model, weight.contiguous(), bias.contiguous())

    def step_towards(self, model: Model, current: Tensor, found: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
        """Return the columns after an M step from ``current`` (M, K + 1), whose normal equations ``found`` solves."""
        del model, current, mean, precision
        return found

    def posterior(self, model: Model, params: Params, rows: _Rows, step: EStep) -> LocalPosterior:
        """Return Gaussians of the scores where the E step kept covariances, and else points."""
        score, covariance = step.locals["score"], step.locals.get("covariance")
        return PointPosterior(score) if covariance is None else GaussianPosterior(score, covariance)

    def point_locals(self, step: EStep) -> Params:
        return {"score": step.locals["score"]} if self.has_point_locals else {}

    def same_solution(self, model: Model, first: Params, second: Params) -> bool:
        return span_alike(first["weight"].flatten(1), second["weight"].flatten(1))

    def canonical(self, model: Model, params: Params, locals_: Params) -> tuple[Params, Params]:
        """Rotate to orthogonal rows of the weight, the longest first, the largest entry of each positive, if the priors
        allow."""
        sites = {"weight": model.shapes["weight"], "score": model.local_shape}
        priors = [Normal.of(model, site, shape, params["weight"]) for site, shape in sites.items()]
        if not all(prior.is_central(0) for prior in priors):
            return params, locals_
        weight = params["weight"].flatten(1)
        turn, moved = canonical_turn(weight), dict(locals_)
        moved |= {name: moved[name] @ turn.T for name in ("score", "lean") if name in moved}
        for name in ("covariance", "precision"):
            if name in moved:
                moved[name] = turn @ moved[name] @ turn.T
        return {**params, "weight": (turn @ weight).view_as(params["weight"])}, moved


@dataclass(frozen=True, kw_only=True)
class NewtonSteps(FactorEngine):
    """M steps by Newton's method, which may go too far: none changes a column's weights by more than ``most_change`` in
    length, and the driver takes back those that lower the objective."""

    may_lower = True

    most_change: float = 1.5

    #: A step is shortened to 1 / (1 + tightness) of itself.
    tightness: float = 0.0

    def tighten(self, factor: float) -> None:
        tightness = self.tightness * factor
        tightness = max(1.0, tightness) if factor > 1 else (tightness if tightness > 1e-2 else 0.0)
        object.__setattr__(self, "tightness", tightness)

    def step_towards(self, model: Model, current: Tensor, found: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
        change = found - current
        length = change.norm(dim=-1, keepdim=True)
        change = change * (self.most_change / length.clamp(min=self.most_change)) / (1 + self.tightness)
        return centre_logits(model, current + change, mean, precision)


def span_alike(one: Tensor, other: Tensor) -> bool:
    """Tell whether W'W of both (K, D), which no rotation changes, have a cosine above .98."""
    own = [(w @ w.T).square().sum().sqrt() for w in (one, other)]
    return bool((one @ other.T).square().sum() > 0.98 * own[0] * own[1])


def centre_logits(model: Any, value: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
    """Return the best logits under the priors among those that differ by a number added to all of a group; (M, K +
    1)."""
    normaliser = normaliser_of(model.likelihood, categories_of(model), len(value), value.device)
    if normaliser.present is None:
        return value
    value, mean, precision = (part.view(*normaliser.present.shape, -1) for part in (value, mean, precision))
    present = normaliser.present.to(value).unsqueeze(-1)
    weight = present * torch.where((precision > 0).all(1, keepdim=True), precision, torch.ones_like(precision))
    shift = (weight * (value - mean)).sum(1, keepdim=True) / weight.sum(1, keepdim=True)
    return (value - shift * present).flatten(0, 1)


def _column_sums(rows: FactorRows) -> tuple[Tensor, Tensor]:
    """Sum T over the rows (G, C) and compute the expected sums of L (G,), rows weighing as much as their offsets
    say."""
    target, total = rows.statistics()
    if rows.offset is not None:
        total = total * rows.offset.exp().unsqueeze(-1)
    return target.sum(0), total.sum(0)


def _pearson(rows: FactorRows, model: Model, params: Params) -> tuple[Tensor, Tensor]:
    """Compute (T - L A') / (L A'')^(1/2) at score 0, (N, M), and sum_n L A'', (M,)."""
    problem = rows.problem(model, params)
    at = problem.normaliser.at(problem.eta(problem.weight.new_zeros(len(rows), len(problem.weight))))
    rate = problem.total.unsqueeze(-1) * at.curvature.rate
    residual = problem.target - problem.total.unsqueeze(-1) * at.mean
    return (residual / rate.clamp(min=1e-3).sqrt()).flatten(1), rate.sum(0).flatten()


def _in_data(model: Model, weight: Tensor, bias: Tensor) -> Params:
    """Convert the globals that the engines work with to those of the data as they are."""
    centre, unit = units = units_of(model)
    return (
        {"weight": weight, "bias": bias}
        if units == (0.0, 1.0)
        else {"weight": weight * unit, "bias": bias * unit + centre}
    )


def append_bias(weight: Tensor, bias: Tensor) -> Tensor:
    """Stack (w_m, b_m) of every column, (M, K + 1)."""
    return torch.cat([weight.flatten(1), bias.reshape(1, -1)]).T


def split(value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights (K, M) and biases (M,) of (M, K + 1)."""
    return value[:, :-1].T, value[:, -1]


def least_squares(
    pair: Tensor, target: Tensor, mean: Tensor, precision: Tensor, current: Tensor
) -> tuple[Tensor, Tensor]:
    """Solve [pair + prior]^-1 [target + prior] (N, K); return the solution and the Cholesky factor of the matrix (N, K,
    K)."""
    # Held back only where the prior is flat: by a share of the curvature, never 0.
    diagonal = pair.diagonal(dim1=-2, dim2=-1)
    share = _PROXIMAL * diagonal.mean(-1, keepdim=True) + torch.finfo(pair.dtype).eps
    pull = torch.where(precision > 0, torch.zeros_like(diagonal), share.expand_as(diagonal))
    factor = torch.linalg.cholesky(pair + torch.diag_embed(precision + pull))
    right = target + precision * mean + pull * current
    return torch.cholesky_solve(right[..., None], factor)[..., 0], factor


def principal_axes(matrix: Tensor, count: int) -> Tensor:
    """Compute W (K, D) with W'W the best rank-K approximation of M'M / N: scores on it have unit variance."""
    tall = matrix.shape[0] >= matrix.shape[1]
    gram = (matrix.T @ matrix if tall else matrix @ matrix.T) / len(matrix)
    value, vector = torch.linalg.eigh(gram)
    value, vector = value[-count:].flip(0).clamp(min=0), vector[:, -count:].flip(1)
    axes = (vector * value.sqrt()).T if tall else (matrix.T @ vector).T / len(matrix) ** 0.5
    # More components than the data have dimensions: a component of length 0 would stay there for ever.
    short = count - len(axes)
    return axes if short <= 0 else torch.cat([axes, 1e-2 * torch.eye(matrix.shape[1]).to(axes)[:short]])
