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
from custom_inference.families.common.priors import normal_parameters
from custom_inference.families.common.rows import BinaryRows
from ppl_models import Data, Model
from ppl_models.logistic_pca import canonical_turn

#: Where a prior is flat, an update is held back by this share of its own curvature, which keeps the systems regular
#: and (as a proximal step) the ascent monotone.
_PROXIMAL = 1e-6
#: Entries of the (rows, features) arrays per block: a few of them stay in cache.
_BLOCK_ENTRIES = 2**17


class ScorePrior(NamedTuple):
    """mean and precision (K,) of the Normal prior of a row's score; precision 0: flat."""

    mean: Tensor
    precision: Tensor

    @classmethod
    def of(cls, model: Model, like: Tensor) -> ScorePrior:
        return cls(*normal_parameters(model, "score", model.local_shape, like))


def half_signs(rows: BinaryRows) -> Tensor:
    """x - 1/2 where observed, 0 elsewhere, (N, D)."""
    return rows.ones - 0.5 if rows.mask is None else (rows.ones - rows.zeros) / 2


def observed_only(rows: BinaryRows, value: Tensor) -> Tensor:
    return value if rows.mask is None else value * rows.mask


def squared_rows(matrix: Tensor) -> Tensor:
    """The outer product of every row of (M, K) with itself, (M, K * K)."""
    return (matrix[:, :, None] * matrix[:, None, :]).reshape(len(matrix), -1)


def parts(rows: BinaryRows) -> list[slice]:
    """Blocks of rows whose (rows, features) arrays are of moderate size."""
    size = max(64, _BLOCK_ENTRIES // rows.ones.shape[1])
    return [slice(start, start + size) for start in range(0, len(rows), size)]


@dataclass(frozen=True, kw_only=True)
class LogisticEngine(Proposals, Canonical, Checked, Engine):
    """Data, starts, priors and the M step of every engine of logistic PCA."""

    def score_prior(self, model: Model, params: Params) -> ScorePrior:
        """A precision of 0 is flat."""
        return ScorePrior.of(model, params["weight"])

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
        pair, target = step.statistics["pair"], step.statistics["target"]
        size = len(params["weight"]) + 1
        current = torch.cat([params["weight"], params["bias"][None]]).T
        mean, precision = weight_prior(model, current)
        pull = _proximal(pair.reshape(-1, size, size), precision)
        left = pair.reshape(-1, size, size) + torch.diag_embed(precision + pull)
        right = target + precision * mean + pull * current
        found = torch.cholesky_solve(right[..., None], torch.linalg.cholesky(left))[..., 0]
        return {"weight": found[:, :-1].T.contiguous(), "bias": found[:, -1].contiguous()}

    def same_solution(self, model: Model, first: Any, second: Any) -> bool:
        """W'W of both, which no rotation changes, have a cosine above .98."""
        cross = (first["weight"] @ second["weight"].T).square().sum()
        own = [(p["weight"] @ p["weight"].T).square().sum().sqrt() for p in (first, second)]
        return bool(cross > 0.98 * own[0] * own[1])

    def canonical(self, model: Model, params: Params, locals_: Params) -> tuple[Params, Params]:
        """Weights and scores turned into the canonical rotation, where the priors allow."""
        return canonical(params, locals_) if rotatable(model) else (params, locals_)


def weight_prior(model: Model, current: Tensor) -> tuple[Tensor, Tensor]:
    """(mean, precision) of (w_t, b_t), each (D, K + 1)."""
    found = [normal_parameters(model, site, model.shapes[site], current) for site in ("weight", "bias")]
    (mean, precision), (bias_mean, bias_precision) = found
    return torch.cat([mean, bias_mean[None]]).T, torch.cat([precision, bias_precision[None]]).T


def _proximal(pair: Tensor, precision: Tensor) -> Tensor:
    """Held back only where the prior is flat: a share of the curvature (..., K), never 0."""
    diagonal = pair.diagonal(dim1=-2, dim2=-1)
    share = _PROXIMAL * diagonal.mean(-1, keepdim=True) + torch.finfo(pair.dtype).eps
    return torch.where(precision > 0, torch.zeros_like(diagonal), share.expand_as(diagonal))


def score_system(
    params: Params, rows: BinaryRows, rate: Tensor, prior: ScorePrior, current: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """(mean (N, K), Cholesky factor of the precision (N, K, K)) of the quadratic in the scores, at rate = c(xi)."""
    weight, bias = params["weight"], params["bias"]
    size, rate = len(weight), temperature * rate
    pair = (rate @ squared_rows(weight.T)).reshape(-1, size, size)
    pull = _proximal(pair, prior.precision.expand_as(current))
    precision = pair + torch.diag_embed(prior.precision + pull)
    right = (temperature * half_signs(rows) - rate * bias) @ weight.T + prior.precision * prior.mean + pull * current
    factor = torch.linalg.cholesky(precision)
    return torch.cholesky_solve(right[..., None], factor)[..., 0], factor


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


def canonical(params: Params, warm: dict[str, Tensor]) -> tuple[Params, dict[str, Tensor]]:
    """Orthogonal rows of the weight, the longest first, the largest entry of each positive; scores turned alike."""
    weight = params["weight"]
    turn = canonical_turn(weight)
    moved = dict(warm)
    if "score" in moved:
        moved["score"] = moved["score"] @ turn.T
    if "covariance" in moved:
        moved["covariance"] = turn @ moved["covariance"] @ turn.T
    return {**params, "weight": turn @ weight}, moved
