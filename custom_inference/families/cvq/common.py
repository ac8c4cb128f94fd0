"""What CVQ's engines share: the log joint as a quadratic form in the code, the additive statistics, the M step.

With L = diag(1 / sigma_j^2), G = W L W' (restricted to a row's observed features where entries are missing) and
s_i^2 = s_i, a row's log joint (Diab 2020, "CVQ - Model Description", normalisation corrected) is

    log p(x, s) = c + sum_i s_i h_i - 1/2 sum_{i != j} s_i s_j G_ij,      h_i = x L w_i' - G_ii / 2 + logit pi_i
    c = sum_i log(1 - pi_i) - 1/2 sum_j [log(2 pi sigma_j^2) + x_j^2 / sigma_j^2].

M step. Given <s> and <ss'> (Diab 2020, "Variational EM, M step"; the printed gradient in w has wrong signs, the update
of sigma is missing there):

    pi = mean of <s>;    W = <ss'>^-1 sum_n <s>' x;    sigma^2 = sum_n <|x - s W|^2> / (N D),

per feature where entries are missing, as <ss'> then sums over the rows that observe it. A Normal prior on W adds a
ridge term; priors on sigma leave a one-dimensional problem with one stationary point.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.engine import Engine, EStep, Params
from custom_inference.families.conjugate.beta import Beta, interior
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.conjugate.scale import SCALE_PRIORS, require_scale_prior, scale_floor, scale_mode
from custom_inference.families.noca.common import logit_jitter, prior_mode
from custom_inference.families.rows.matrix import RealRows
from ppl_models import CVQ, Data, Model
from ppl_models.core.priors import is_flat

#: Entries of the (rows, K, K) couplings of a block of rows with missing entries.
_BLOCK_ENTRIES = 2**18


class Quadratic(NamedTuple):
    """The log joint of a block of rows: constant c (B,), linear h (B, K), coupling G without its diagonal.

    coupling: (K, K), or (B, K, K) where entries are missing.
    """

    constant: Tensor
    linear: Tensor
    coupling: Tensor

    def pull(self, codes: Tensor) -> Tensor:
        """sum_j G_ij s_j of one code, or one mean, a row: (B, K) -> (B, K)."""
        if self.coupling.ndim == 2:
            return codes @ self.coupling
        return torch.einsum("bij,bj->bi", self.coupling, codes)


def quadratics(
    params: Params, rows: RealRows, temperature: float = 1.0, *, block_rows: int | None = None
) -> Iterator[tuple[slice, RealRows, Quadratic]]:
    """The log joint in blocks of rows, by default as large as memory allows. The likelihood is tempered."""
    num_bits = len(params["source_prior"])
    size = block_rows or len(rows)
    if rows.mask is not None:
        size = min(size, max(1, _BLOCK_ENTRIES // num_bits**2))
    weight, precision = params["weight"], params["scale"].square().reciprocal().expand(rows.x.shape[1])
    scaled = temperature * precision * weight
    spread = torch.log(2 * math.pi / precision)
    prior = interior(params["source_prior"])
    logit, off = torch.logit(prior), torch.log1p(-prior).sum()
    products = (scaled[:, None] * weight).flatten(0, 1) if rows.mask is not None else None
    for block, part in rows.parts(size):
        if part.observed is None or products is None:
            gram, entropy = scaled @ weight.T, spread.sum()
        else:
            gram, entropy = (part.observed @ products.T).unflatten(1, (num_bits, num_bits)), part.observed @ spread
        diagonal = gram.diagonal(dim1=-2, dim2=-1)
        linear = torch.addmm(logit, part.x, scaled.T) - 0.5 * diagonal
        constant = off - 0.5 * temperature * (part.x.square() @ precision + entropy)
        yield block, part, Quadratic(constant, linear, gram - torch.diag_embed(diagonal))


def moments(rows: RealRows, mean: Tensor, second: Tensor | None = None) -> dict[str, Tensor]:
    """The additive statistics of a block of rows, from <s> (B, K) and, where given, <ss'>.

    second: <ss'> with any diagonal, its sum over the rows (K, K), or (B, K, K) where entries are missing; for
        independent bits it is made here: <s_i s_j> = lambda_i lambda_j.
    """
    num_bits = mean.shape[1]
    if rows.observed is None:
        total, present = mean.T @ mean if second is None else second, mean.sum(0)
    else:
        second = (mean[:, :, None] * mean[:, None, :]) if second is None else second
        total = (rows.observed.T @ second.flatten(1)).unflatten(1, (num_bits, num_bits))
        present = rows.observed.T @ mean
    # s_i^2 = s_i, whatever the diagonal was.
    pairs = total - torch.diag_embed(total.diagonal(dim1=-2, dim2=-1) - present)
    return {
        "source": mean.sum(0),
        "rows": mean.new_tensor(len(rows)),
        "pairs": pairs,
        "cross": mean.T @ rows.x,
        "square": rows.square,
        "observed": rows.observed_count,
    }


class CvqEngine(Engine):
    """Data, priors, starts and the M step of every CVQ engine."""

    def rows(self, model: CVQ, data: Data) -> RealRows:
        """x - centre, which all the formulas call x."""
        return RealRows.of(replace(data, x=data.x - model.centre) if model.centre else data)

    conjugate: ClassVar[Mapping[str, tuple[type, ...]]] = SCALE_PRIORS

    def check(self, model: Model, rows: RealRows) -> None:
        """Raises MethodError for priors that the M step has no closed form for."""
        Beta.with_mode(model, "source_prior", rows.like.new_zeros(model.shapes["source_prior"]))
        Normal.of(model, "weight", model.shapes["weight"], rows.like)
        require_scale_prior(model)
        super().check(model, rows)

    def initial(self, model: Model, rows: RealRows, generator: torch.Generator) -> Params:
        """The plain start: weights are faded random rows, sigma is the data's root mean square."""
        num_bits, like = model.shapes["source_prior"][0], rows.like
        spread = (rows.square.sum() / rows.observed_count.sum()).sqrt().clamp(min=torch.finfo(like.dtype).tiny ** 0.25)
        pick = torch.randint(len(rows), (num_bits,), generator=generator).to(like.device)
        noise = torch.randn(num_bits, like.shape[1], generator=generator, dtype=torch.float64).to(like)
        return {
            "source_prior": logit_jitter(min(0.3, 2.0 / num_bits), (num_bits,), 0.1, generator, like),
            "weight": 0.5 * rows.x[pick] + 0.1 * spread * noise,
            "scale": spread.expand(model.shapes["scale"]).clone(),
        }

    def floors(self, model: Model, step: EStep) -> Params:
        return {"scale": scale_floor(step.statistics, step.statistics["square"].dtype)}

    def m_step(self, model: Model, params: Params, step: EStep, rows: RealRows) -> Params:
        """pi, then W, then sigma: each the maximum of the expected log joint plus log prior, the others held."""
        s = step.statistics
        prior = prior_mode(model, params, s["source"], round(float(s["rows"])))
        weight, pairs = weight_mode(model, params, s), s["pairs"]
        fitted = pairs @ weight if pairs.ndim == 2 else torch.einsum("dij,jd->id", pairs, weight)
        # sum_n m_nj <(x_nj - s_n w_j)^2>, (D,) (Diab 2020, M step: x'x - 2 x'W<s> + tr(W'W <ss'>)).
        residual = (s["square"] + (weight * (fitted - 2 * s["cross"])).sum(0)).clamp(min=0)
        scale = scale_mode(model, params["scale"], s, residual)
        return {**params, "source_prior": prior, "weight": weight, "scale": scale}


def weight_mode(model: Model, params: Params, s: dict[str, Tensor]) -> Tensor:
    """Solve <ss'> W = <s>' x; with w_ij ~ Normal(m, t^2), (<ss'> + g) w_j = <s>' x_j + g m with g = sigma_j^2 / t^2."""
    weight, pairs, cross = params["weight"], s["pairs"], s["cross"]
    if is_flat(model.priors["weight"]):
        return ascend(pairs, cross, weight)
    mean, precision = Normal.of(model, "weight", model.shapes["weight"], weight)
    ridge = params["scale"].square().expand(weight.shape[1]) * precision
    matrix = pairs + torch.diag_embed(ridge.T)  # (D, K, K)
    return ascend(matrix, cross + ridge * mean, weight)


def ascend(matrix: Tensor, right: Tensor, start: Tensor) -> Tensor:
    """The maximum of -1/2 w' A w + b' w from ``start``, by columns of w (K, D); A is (K, K), or (D, K, K).

    Where A is singular (a source that is never on, two that are always on together) the maxima form a subspace: only
    the directions in which A curves are moved along, so that the objective never falls and w stays finite.
    """
    shared = matrix.ndim == 2
    gradient = right - matrix @ start if shared else right - torch.einsum("dij,jd->id", matrix, start)
    columns = gradient if shared else gradient.T[..., None]
    factor, failed = torch.linalg.cholesky_ex(matrix)
    pivots = factor.diagonal(dim1=-2, dim2=-1)
    edge = torch.finfo(matrix.dtype).eps * matrix.shape[-1]
    sound = ~failed.any() & (pivots.amin(-1).square() > 10 * edge * pivots.amax(-1).square()).all()
    if bool(sound):
        step = torch.cholesky_solve(columns, factor)
    else:
        step = torch.linalg.pinv(matrix, rtol=10 * edge, hermitian=True) @ columns
    return start + (step if shared else step[..., 0].T)
