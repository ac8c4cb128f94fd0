"""What logistic PCA's engines share: Jaakkola's bound, the least squares it leads to, and the canonical rotation.

Under ``Bernoulli().jaakkola(x, xi)``, with slope x - 1/2 and curvature c(xi), log p(x | theta) of log-odds theta is
bounded by a quadratic: every update of scores and of weights is a least-squares problem, and none lowers the objective
(Schein, Saul & Ungar 2003, eqs. 5-11, with their T = c(theta)). Its parts are taken one by one, as sweeps over the
scores need the curvature alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.capabilities import Canonical, Checked
from custom_inference.core.engine import Engine, EStep, Params
from custom_inference.core.proposals import Proposals
from custom_inference.families.common.normal import normal_parameters
from custom_inference.families.common.rows import BinaryRows
from ppl_models import Data, MethodError, Model
from ppl_models.logistic_pca import canonical_turn

#: Where a prior is flat, an update is held back by this share of its own curvature, which keeps the systems regular
#: and (as a proximal step) the ascent monotone.
_PROXIMAL = 1e-6


class ScorePrior(NamedTuple):
    """mean and precision (K,) of the Normal prior of a row's score; precision 0: flat."""

    mean: Tensor
    precision: Tensor

    @classmethod
    def of(cls, model: Model, like: Tensor) -> ScorePrior:
        return cls(*normal_parameters(model, "score", model.local_shape, like))

    def require_proper(self) -> None:
        """Scores that are integrated out need a prior that integrates."""
        if bool((self.precision == 0).any()):
            raise MethodError(
                "the prior of 'score' is flat, so that it cannot be integrated out; use guide=\"map\" for it"
            )


def half_signs(rows: BinaryRows) -> Tensor:
    """x - 1/2 where observed, 0 elsewhere, (N, D)."""
    return rows.ones - 0.5 if rows.mask is None else (rows.ones - rows.zeros) / 2


def observed_only(rows: BinaryRows, value: Tensor) -> Tensor:
    return value if rows.mask is None else value * rows.mask


def squared_rows(matrix: Tensor) -> Tensor:
    """The outer product of every row of (M, K) with itself, (M, K * K)."""
    return (matrix[:, :, None] * matrix[:, None, :]).reshape(len(matrix), -1)


@dataclass(frozen=True, kw_only=True)
class LogisticEngine(Proposals, Canonical, Checked, Engine):
    """Data, starts, priors and the M step of every engine of logistic PCA."""

    @property
    def engine(self) -> LogisticEngine:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Itself: its proposals are its own."""
        return self

    def rows(self, model: Model, data: Data) -> BinaryRows:
        return BinaryRows.of(data)

    def check(self, model: Model, rows: BinaryRows) -> None:
        """Raises MethodError for priors other than Normal (or flat)."""
        for site, shape in (*model.shapes.items(), ("score", model.local_shape)):
            normal_parameters(model, site, shape, rows.ones)

    def initial(self, model: Model, rows: BinaryRows, generator: torch.Generator) -> Params:
        """Small random weights, the columns' log-odds as bias."""
        noise = torch.randn(model.shapes["weight"], generator=generator, dtype=torch.float64).to(rows.ones)
        return {"weight": 0.3 * noise, "bias": column_log_odds(rows)}

    def propose(self, model: Model, rows: BinaryRows, generator: torch.Generator, attempt: int) -> Params:
        """The leading principal components of the data linearised at log-odds 0; later attempts random."""
        if attempt > 0:
            return self.initial(model, rows, generator)
        # One step of Schein's algorithm from theta = 0, where c = 1/4: PCA of 4 (x - mean).
        mean = rows.ones.sum(0) / rows.observed_count.clamp(min=1)
        residual = 4 * observed_only(rows, rows.ones - mean)
        return {"weight": principal_axes(residual, model.shapes["weight"][0]), "bias": column_log_odds(rows)}

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """The principal components and two random starts, on rows enough to span the components."""
        return 3, 1000 + 50 * model.local_shape[0]

    def m_step(self, model: Model, params: Params, step: EStep, rows: BinaryRows) -> Params:
        """For every feature, (w_t, b_t) = [sum_n c_nt E[s~ s~'] + prior]^-1 [sum_n (x_nt - 1/2) E[s~] + prior]."""
        size = len(params["weight"]) + 1
        pair, current = step.statistics["pair"].reshape(-1, size, size), _extended(params["weight"], params["bias"])
        priors = (normal_parameters(model, site, model.shapes[site], current) for site in ("weight", "bias"))
        mean, precision = (_extended(*parts) for parts in zip(*priors, strict=True))
        found, _ = _least_squares(pair, step.statistics["target"], mean, precision, current)
        return {"weight": found[:, :-1].T.contiguous(), "bias": found[:, -1].contiguous()}

    def same_solution(self, model: Model, first: Any, second: Any) -> bool:
        """W'W of both, which no rotation changes, have a cosine above .98."""
        cross = (first["weight"] @ second["weight"].T).square().sum()
        own = [(p["weight"] @ p["weight"].T).square().sum().sqrt() for p in (first, second)]
        return bool(cross > 0.98 * own[0] * own[1])

    def canonical(self, model: Model, params: Params, locals_: Params) -> tuple[Params, Params]:
        """Orthogonal rows of the weight, the longest first, the largest entry of each positive; scores turned alike.

        As it is where the priors prefer directions of the score space.
        """
        if not rotatable(model):
            return params, locals_
        turn, moved = canonical_turn(params["weight"]), dict(locals_)
        if "score" in moved:
            moved["score"] = moved["score"] @ turn.T
        if "covariance" in moved:
            moved["covariance"] = turn @ moved["covariance"] @ turn.T
        return {**params, "weight": turn @ params["weight"]}, moved


def _extended(weight: Tensor, bias: Tensor) -> Tensor:
    """(w_t, b_t) of every feature, (D, K + 1)."""
    return torch.cat([weight, bias[None]]).T


def _least_squares(
    pair: Tensor, target: Tensor, mean: Tensor, precision: Tensor, current: Tensor
) -> tuple[Tensor, Tensor]:
    """[pair + prior]^-1 [target + prior] (N, K), and the Cholesky factor of the matrix (N, K, K)."""
    pull = _proximal(pair, precision.expand_as(current))
    factor = torch.linalg.cholesky(pair + torch.diag_embed(precision + pull))
    right = target + precision * mean + pull * current
    return torch.cholesky_solve(right[..., None], factor)[..., 0], factor


def _proximal(pair: Tensor, precision: Tensor) -> Tensor:
    """Held back only where the prior is flat: a share of the curvature (..., K), never 0."""
    diagonal = pair.diagonal(dim1=-2, dim2=-1)
    share = _PROXIMAL * diagonal.mean(-1, keepdim=True) + torch.finfo(pair.dtype).eps
    return torch.where(precision > 0, torch.zeros_like(diagonal), share.expand_as(diagonal))


def score_system(
    params: Params, rows: BinaryRows, rate: Tensor, prior: ScorePrior, current: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """(mean (N, K), Cholesky factor of the precision (N, K, K)) of the quadratic in the scores, at rate = c(xi)."""
    weight, rate = params["weight"], temperature * rate
    pair = (rate @ squared_rows(weight.T)).unflatten(1, (len(weight), len(weight)))
    target = (temperature * half_signs(rows) - rate * params["bias"]) @ weight.T
    return _least_squares(pair, target, *prior, current)


def column_log_odds(rows: BinaryRows) -> Tensor:
    """Log-odds of every column, with half a count of each kind added, (D,)."""
    ones = rows.ones.sum(0)
    return torch.log((ones + 0.5) / (rows.observed_count - ones + 0.5))


def principal_axes(matrix: Tensor, count: int) -> Tensor:
    """W (K, D) with W'W the best rank-K approximation of M'M / N: scores on it have unit variance."""
    tall = matrix.shape[0] >= matrix.shape[1]
    gram = (matrix.T @ matrix if tall else matrix @ matrix.T) / len(matrix)
    value, vector = torch.linalg.eigh(gram)
    value, vector = value[-count:].flip(0).clamp(min=0), vector[:, -count:].flip(1)
    if tall:
        axes = (vector * value.sqrt()).T
    else:
        axes = (matrix.T @ vector).T / len(matrix) ** 0.5
    # More components than the data have dimensions: a component of length 0 would stay there for ever.
    short = count - len(axes)
    return axes if short <= 0 else torch.cat([axes, 1e-2 * torch.eye(matrix.shape[1]).to(axes)[:short]])


def rotatable(model: Model) -> bool:
    """Whether the priors are the same in every direction of the score space."""
    like = torch.zeros((), dtype=torch.float64)
    for site, shape in (("weight", model.shapes["weight"]), ("score", model.local_shape)):
        mean, precision = normal_parameters(model, site, shape, like)
        if bool((mean != 0).any()) or bool((precision != precision[:1]).any()):
            return False
    return True
