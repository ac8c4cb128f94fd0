"""PMF with Gaussian ratings and point estimates of the items: profiles integrated out ("exact") or points too ("map").

With a_j = (1, v_j), o_j = mu + g_j and the profile p_n = (f_n, u_n) ~ Normal(m, P^-1), given the items

    p(p_n | r_n) = Normal(m_n, V_n),   V_n^-1 = P + sum_j a_j a_j' / sigma^2
    m_n = V_n [P m + sum_j a_j (r_nj - o_j) / sigma^2]
    2 log p(r_n) = log|P| + log|V_n| + m_n' V_n^-1 m_n - m' P m - sum_j [(r_nj - o_j)^2 / sigma^2 + log 2 pi sigma^2]

sums over the items that user n rated, ratings and mu less the model's ``centre``, as squares of numbers far from 0
leave no digits (Ilin & Raiko 2010, section 2). The M step is a regression of each item's ratings on (1, u_n) with what
is known of the profiles; alternating it with the modes m_n is alternating least squares for Murphy (2012), eqs.
27.91-27.93. The statistics sum_n E[e_n e_n'] and sum_n r_nj E[e_n] of e_n = (1, p_n) over the users who rated item j
add up over users and determine the M step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.engine import POINT, Engine, EStep, ExactEngine, Params, Warm
from custom_inference.core.posteriors import GaussianPosterior, LocalPosterior, PointPosterior
from custom_inference.core.proposals import Proposals
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.conjugate.scale import SCALE_PRIORS, require_scale_prior, scale_floor, scale_mode
from custom_inference.families.factors.logistic_pca import outer_products, principal_axes
from custom_inference.families.ratings.priors import units_of_rows
from custom_inference.families.ratings.rows import RatingRows
from custom_inference.families.rows.base import BlockSteps
from ppl_models import PMF, Data, PriorError
from ppl_models.core.turns import canonical_turn

#: Entries of the (users, (K + 1)^2) arrays of a block.
_BLOCK_ENTRIES = 2**22


class ProfilePrior(NamedTuple):
    """mean (C,), precision (C, C) and its log determinant of the Normal prior of a profile; precision 0: flat."""

    mean: Tensor
    precision: Tensor
    log_det: Tensor

    @classmethod
    def of(cls, model: PMF, params: Params, like: Tensor) -> ProfilePrior:
        """Read the prior at values of the globals, on which it depends where it is learned."""
        if model.adaptive:
            factor = torch.linalg.cholesky(params["user_covariance"])
            log_det = -2 * factor.diagonal().log().sum()
            return cls(params["user_mean"], torch.cholesky_inverse(factor), log_det)
        sizes = {**({"user_bias": 1} if model.biases else {}), "user": model.num_components}
        parts = [Normal.of(model, site, (size,), like) for site, size in sizes.items()]
        mean, precision = (torch.cat(each) for each in zip(*parts, strict=True))
        log_det = precision.clamp(min=torch.finfo(like.dtype).tiny).log().sum()
        return cls(mean, torch.diag(precision), log_det)


class Profiles(NamedTuple):
    """mean (B, C), covariance (B, C, C) of the profiles of some users, and the log evidence (B,) of their ratings."""

    mean: Tensor
    covariance: Tensor
    evidence: Tensor


def profiles_given_items(
    model: PMF, params: Params, rows: RatingRows, prior: ProfilePrior, temperature: float = 1.0
) -> Profiles:
    """Infer the profiles of users from their ratings; the likelihood is raised to the temperature."""
    loading, offset = model.coefficients({**params, "mean": params["mean"] - rows.centre})
    weight, size = temperature / params["scale"].square(), loading.shape[1]
    products = rows.of_users(torch.cat([outer_products(loading), loading * offset[:, None]], 1))
    gram, moved = products[:, : size * size].unflatten(1, (size, size)), products[:, size * size :]
    right = weight * (rows.sum_ratings_by_user(loading) - moved) + prior.precision @ prior.mean
    factor = torch.linalg.cholesky(weight * gram + prior.precision)
    mean = torch.cholesky_solve(right[..., None], factor)[..., 0]
    both = rows.sum_ratings_by_user(offset[:, None]), rows.of_users(offset.square()[:, None])
    residual = rows.square - 2 * both[0][:, 0] + both[1][:, 0]
    constant = weight * residual + temperature * rows.count * torch.log(2 * math.pi * params["scale"].square())
    log_det = prior.log_det - 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    quadratic = (right * mean).sum(-1) - prior.mean @ prior.precision @ prior.mean
    return Profiles(mean, torch.cholesky_inverse(factor), 0.5 * (log_det + quadratic - constant))


@dataclass(frozen=True, kw_only=True)
class RatingsEngine(Proposals, Engine):
    """Base of both engines: data, starts, priors, the E step and the M step."""

    #: Itself: its proposals are its own.
    engine = property(lambda self: self)  # pyright: ignore[reportIncompatibleVariableOverride]
    conjugate: ClassVar[Mapping[str, tuple[type, ...]]] = SCALE_PRIORS
    accelerate = "squarem"
    points: ClassVar[bool] = False

    def rows(self, model: PMF, data: Data) -> RatingRows:
        return RatingRows.of(data, model.units[0])

    def check(self, model: PMF, rows: RatingRows) -> None:
        """Raises PriorError for priors that are not Normal (of the scale LogNormal or InverseGamma) or flat, and for a
        flat one of profiles that are integrated out."""
        if model.adaptive:
            raise PriorError('learned priors of users and items have no EM steps; use method="vb" or "gibbs"')
        for site in ("mean", "item", *(("item_bias",) if model.biases else ())):
            Normal.of(model, site, model.shapes[site], rows.like)
        parts = [Normal.of(model, site, model.shape_of(site), rows.like) for site in model.part_sites]
        for site, part in zip(model.part_sites, () if self.points else parts, strict=not self.points):
            part.require_proper(site)
        require_scale_prior(model)

    def initial(self, model: PMF, rows: RatingRows, generator: torch.Generator) -> Params:
        """Start with the mean, the items' own means drawn towards it, and small random factors."""
        total = rows.sum_ratings_by_item(rows.like.new_ones(len(rows), 1)).squeeze(1)
        count = rows.of_items(rows.like.new_ones(len(rows), 1)).squeeze(1)
        mean = total.sum() / count.sum().clamp(min=1)
        bias = (total - mean * count) / (count + 3)
        least = 1e-6 * model.units[1] ** 2
        spread = (rows.square.sum() / count.sum().clamp(min=1) - mean.square()).clamp(min=least).sqrt()
        noise = torch.randn(model.shapes["item"], generator=generator, dtype=torch.float64).to(rows.like)
        start = {"mean": mean + rows.centre, "item": 0.3 * spread * noise}
        start |= {"item_bias": bias} if model.biases else {}
        if model.adaptive:  # what generic methods start from, too
            size = model.sizes["coordinate"]
            for side, units in units_of_rows(model).items():
                start[f"{side}_mean"] = rows.like.new_zeros(size)
                each = units.to(rows.like) * spread / model.units[1]
                start[f"{side}_covariance"] = 0.5 * torch.diag(each.square())
        return {**start, "scale": 0.7 * spread}

    def propose(self, model: PMF, rows: RatingRows, generator: torch.Generator, attempt: int) -> Params:
        """Start with factors along the leading principal axes of what the biases leave; later attempts are random."""
        start = self.initial(model, rows, generator)
        if attempt > 0 or rows.is_sparse:
            return start
        fixed = start["mean"] - rows.centre + start.get("item_bias", torch.zeros_like(start["item"][:, 0]))
        residual = rows.x - fixed if rows.observed is None else (rows.x - fixed) * rows.observed
        if model.biases:
            residual = residual - residual.sum(1, keepdim=True) / (rows.count[:, None] + 3)
        axes = principal_axes(residual if rows.observed is None else residual * rows.observed, model.num_components)
        return {**start, "item": axes.T.contiguous()}

    def at_random(self, attempt: int, num_rows: int) -> bool:
        return attempt > 0

    def search_size(self, model: PMF, num_rows: int) -> tuple[int, int]:
        return 3, 1000 + 50 * model.num_components

    def e_step(
        self, model: PMF, params: Params, rows: RatingRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        prior, size = ProfilePrior.of(model, params, rows.like), model.sizes["coordinate"]
        block = max(256, _BLOCK_ENTRIES // size**2)
        spans = [slice(start, start + block) for start in range(0, len(rows), block)]
        parts = [rows] if len(spans) == 1 else [rows.select(span) for span in spans]
        steps = BlockSteps()
        for part in parts:
            found = profiles_given_items(model, params, part, prior, temperature)
            bound = self._bound(part, found, prior, params, model)
            kept = {} if self.points else {"covariance": found.covariance}
            steps.add(self._statistics(part, found, temperature), bound, user_profile=found.mean, **kept)
        return steps.join()

    def _bound(self, rows: RatingRows, found: Profiles, prior: ProfilePrior, params: Params, model: PMF) -> Tensor:
        return found.evidence

    def _statistics(self, rows: RatingRows, found: Profiles, temperature: float) -> dict[str, Tensor]:
        extended = torch.cat([torch.ones_like(found.mean[:, :1]), found.mean], 1)
        pair = outer_products(extended)
        if not self.points:
            pair = pair + torch.nn.functional.pad(found.covariance, (1, 0, 1, 0)).flatten(1)
        return {
            "pair": temperature * rows.of_items(pair),
            "target": temperature * rows.sum_ratings_by_item(extended),
            "square": temperature * rows.square.sum(),
        }

    def m_step(self, model: PMF, params: Params, step: EStep, rows: RatingRows) -> Params:
        """Update (g_j, v_j) of every item, then mu, then sigma: each to its best, the others held."""
        (centre, _), s, size = model.units, step.statistics, model.sizes["coordinate"] + 1  # rows may be streamed
        params = {**params, "mean": params["mean"] - centre}
        pair, target = s["pair"].unflatten(1, (size, size)), s["target"]
        params = {**params, **_items(model, params, pair, target)}
        params["mean"] = _mean(model, params, pair, target, centre)
        whole, count = _whole(model, params), pair[:, 0, 0]
        residual = s["square"] + ((torch.einsum("iab,ib->ia", pair, whole) - 2 * target) * whole).sum()
        moments = {"square": s["square"], "observed": count}
        scale = scale_mode(model, params["scale"], moments, residual.clamp(min=0))
        params["mean"] = params["mean"] + centre
        return {site: {**params, "scale": scale}[site] for site in model.global_sites}

    def floors(self, model: PMF, step: EStep) -> Params:
        square, pair = step.statistics["square"], step.statistics["pair"]
        return {"scale": scale_floor({"square": square, "observed": pair[:, 0]}, square.dtype)}

    def project(self, model: PMF, state: Params, locals_: Params) -> tuple[Params, Params]:
        return {**state, "scale": state["scale"].clamp(min=1e-6 * model.units[1])}, locals_

    def same_solution(self, model: PMF, first: Params, second: Params) -> bool:
        """Tell whether V V' of both, which no rotation changes, have a cosine above .98."""
        cross = (first["item"].T @ second["item"]).square().sum()
        own = [(p["item"].T @ p["item"]).square().sum().sqrt() for p in (first, second)]
        return bool(cross > 0.98 * own[0] * own[1])

    def canonical(self, model: PMF, params: Params, locals_: Params) -> tuple[Params, Params]:
        """Rotate to the form of :meth:`PMF.standard_form`, if the priors allow a rotation."""
        size = model.num_components
        for site, shape in (("item", model.shapes["item"]), ("user", (size,))):
            if not Normal.of(model, site, shape, params["item"]).is_central(-1):
                return params, locals_
        moved = model.standard_form({**params, **({"user_profile": locals_["user_profile"]} if locals_ else {})})
        found = dict(locals_)
        if locals_:
            found["user_profile"] = moved.pop("user_profile")
        if "covariance" in found:
            turn, first = canonical_turn(params["item"].mT), model.sizes["coordinate"] - size
            whole = torch.block_diag(torch.eye(first).to(turn), turn)
            found["covariance"] = whole @ found["covariance"] @ whole.T
        return moved, found


def _whole(model: PMF, params: Params) -> Tensor:
    """Return what (1, p_n) is multiplied by in the predictor of each item, (I, C + 1)."""
    loading, offset = model.coefficients(params)
    return torch.cat([offset[:, None], loading], 1)


def _items(model: PMF, params: Params, pair: Tensor, target: Tensor) -> Params:
    """[sum E[d d'] / sigma^2 + prior] w_j = sum E[(r - mu - f) d] / sigma^2 + prior; d = (1, u), w_j = (g_j, v_j)."""
    sites = [site for site in ("item_bias", "item") if site in model.shapes]
    places = [0, *range(2, pair.shape[1])] if model.biases else [*range(1, pair.shape[1])]
    matrix, right = pair[:, places][:, :, places], target[:, places] - params["mean"] * pair[:, places, 0]
    if model.biases:
        right = right - pair[:, places, 1]
    parts = [Normal.of(model, site, model.shapes[site], target) for site in sites]

    def beside(values: Iterable[Tensor]) -> Tensor:
        return torch.cat([value.reshape(len(target), -1) for value in values], 1)

    mean, precision = (beside(each) for each in zip(*parts, strict=True))
    current = beside(params[site] for site in sites)
    variance = params["scale"].square()
    # Where the prior is flat the step is held back a little, which keeps systems regular and the ascent monotone.
    pull = torch.where(precision > 0, torch.zeros_like(precision), 1e-6 * (1 + matrix.diagonal(dim1=1, dim2=2)))
    right = right + variance * precision * mean + pull * current
    found = torch.linalg.solve(matrix + torch.diag_embed(variance * precision + pull), right)
    return dict(zip(sites, ((found[:, 0], found[:, 1:]) if model.biases else (found,)), strict=True))


def _mean(model: PMF, params: Params, pair: Tensor, target: Tensor, centre: float) -> Tensor:
    mean, precision = Normal.of(model, "mean", (), target)
    rest = _whole(model, {**params, "mean": torch.zeros_like(params["mean"])})
    total = target[:, 0].sum() - (pair[:, 0] * rest).sum()
    ridge = params["scale"].square() * precision
    return (total + ridge * (mean - centre)) / (pair[:, 0, 0].sum() + ridge)


@dataclass(frozen=True, kw_only=True)
class RatingsExact(RatingsEngine, ExactEngine):
    """Profiles integrated out: the bound is the evidence."""

    def feasible(self, model: PMF) -> bool:
        return True

    def posterior(self, model: PMF, params: Params, rows: RatingRows, step: EStep) -> LocalPosterior:
        return GaussianPosterior(step.locals["user_profile"], step.locals["covariance"])


@dataclass(frozen=True, kw_only=True)
class RatingsMap(RatingsEngine):
    """Alternating least squares: points for profiles beside those of the items."""

    has_point_locals = True

    name = POINT
    objective = "log joint"
    points = True

    def _bound(self, rows: RatingRows, found: Profiles, prior: ProfilePrior, params: Params, model: PMF) -> Tensor:
        """Compute log p(r_n | p_n) + log p(p_n), but for constants of flat priors: the evidence less what integration
        added."""
        within = found.evidence - 0.5 * (torch.linalg.slogdet(found.covariance).logabsdet + prior.log_det)
        return within + Normal(prior.mean, prior.precision.diagonal()).log_constant()

    def posterior(self, model: PMF, params: Params, rows: RatingRows, step: EStep) -> LocalPosterior:
        return PointPosterior(step.locals["user_profile"])

    def point_locals(self, step: EStep) -> dict[str, Tensor]:
        return {"user_profile": step.locals["user_profile"]}
