"""Users or items in place of those of a fit: their rows given their ratings and everything that is known.

With loadings a_j, offsets o_j and a prior Normal(m, P^-1) of the rows, Gaussian ratings give

    V^-1 = P + sum_j h_j a_j a_j' / sigma^2,    V^-1 m' = P m + sum_j h_j (r_j - o_j) a_j / sigma^2,

and others the same with the quadratics of ``outcomes`` in place of the squares, which take turns with the rows. Where
noise varies, rows of a_n times that precision are averaged over their gains: with G, b, c the sums of h a a' / sigma^2,
h (r - o) a / sigma^2 and h (r - o)^2 / sigma^2, and W = V^-1 = P + a G,

    log p(r | a) = [sum log(a h / 2 pi sigma^2) + log|P V| + m''W m' - m'P m - a c] / 2,    a ~ Gamma(s, s),

an integral over log a by the trapezoidal rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from custom_inference.core.local_inference import Local
from custom_inference.core.posteriors import GaussianPosterior
from custom_inference.core.states import Params
from custom_inference.families.ratings.outcomes import quadratic, terms
from custom_inference.families.ratings.rows import RatingRows
from custom_inference.families.ratings.times import without_time
from ppl_models import PMF, Data

#: Turns of bounds and rows.
_TURNS = 8
#: Turns of rows and gains that say where p(a_n | ratings) is; the ends of the rule, in standard deviations of log a_n,
#: and its step, by whether s is at least 10: to 1e-6 of the moments.
_GAIN_TURNS, _ENDS, _STEP = 4, (-10.0, 6.5), {True: 1.0, False: 0.5}
#: Entries of the arrays of a block of rows.
_BLOCK_ENTRIES = 2**23


class ProfileRows(NamedTuple):
    """Rows with a mean (N, C): points, but Gaussian from row ``first`` on, with covariance (N - first, C, C)."""

    mean: Tensor
    covariance: Tensor | None = None
    first: int = 0

    def append(self, other: ProfileRows) -> ProfileRows:
        """Return these rows and others, which are Gaussian, after them."""
        mean = torch.cat([self.mean, other.mean])
        if self.covariance is None or other.covariance is None:
            return ProfileRows(mean, other.covariance, len(self.mean))
        return ProfileRows(mean, torch.cat([self.covariance, other.covariance]), self.first)

    def select(self, row: Tensor) -> ProfileRows:
        """Return rows that are all points, or all Gaussian."""
        points = self.covariance is None or self.first > 0
        return ProfileRows(self.mean[row], None if points else self.covariance[row])  # pyright: ignore[reportOptionalSubscript]

    def dense(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean (M, C) and covariance (M, C, C), 0 of points, of rows (M,)."""
        mean, size = self.mean[row], self.mean.shape[1]
        found = mean.new_zeros(len(row), size, size)
        if self.covariance is not None:
            spread = row >= self.first
            found[spread] = self.covariance[row[spread] - self.first]
        return mean, found

    def vary_along(self, row: Tensor, vector: Tensor) -> Tensor:
        """Compute the variance (M,) of the products of rows (M,) and vectors (M, C)."""
        return self.vary_with(row, lambda part, own: torch.einsum("mi,mij,mj->m", vector[part], own, vector[part]))

    def vary_with(self, row: Tensor, term: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Return a term (M,) of the rows' covariances, 0 where they are points. term: of places and covariances."""
        found = torch.zeros(len(row), dtype=self.mean.dtype, device=self.mean.device)
        if self.covariance is not None:
            size = max(1, _BLOCK_ENTRIES // self.covariance[0].numel()) if len(self.covariance) else 1
            for part in (row >= self.first).nonzero().flatten().split(size):
                found[part] = term(part, self.covariance[row[part] - self.first])
        return found


class GivenRatings(NamedTuple):
    """Rows given their ratings, and log p(ratings) of each, (N,): exact of Gaussian ones, else NaN."""

    rows: ProfileRows
    log_evidence: Tensor


def conditional(
    model: PMF,
    at: Mapping[str, Tensor],
    rows: RatingRows,
    loading: Tensor,
    offset: Tensor,
    mean: Tensor,
    covariance: Tensor,
    gains: Tensor | None,
) -> GivenRatings:
    """Infer rows from their ratings; mean (C,) or (N, C), covariance (C, C) or (N, C, C): of their prior; gains: those
    of the other side, by which precisions of its ratings are multiplied; None: 1. Where noise varies, the rows have
    gains of their own as well."""
    size = len(rows), loading.shape[1]
    mean, precision = mean.expand(size), torch.linalg.inv(covariance).expand(*size, size[1])
    if model.likelihood != "gaussian":
        found = _variational_posterior(model, at, rows, loading, offset, mean, precision)
        return GivenRatings(found, torch.full_like(found.mean[:, 0], torch.nan))
    sums = Sums.of(at, rows, loading, offset - rows.centre, gains)
    if not len(rows):
        return GivenRatings(ProfileRows(mean, torch.zeros_like(precision)), mean[:, 0])
    blocks = 32 * len(rows) * size[1] ** 2 // _BLOCK_ENTRIES + 1
    parts = zip(*(part.chunk(blocks) for part in (*sums, mean, precision)), strict=True)
    done = [_average_over_gains(model.noise_shape, Sums(*part[:5]), *part[5:]) for part in parts]
    mean, covariance, evidence = (torch.cat(each) for each in zip(*done, strict=True))
    return GivenRatings(ProfileRows(mean, covariance), evidence)


class Sums(NamedTuple):
    """Sums over the ratings of each row of h a a' (N, C, C), h a (r - o) (N, C) and h (r - o)^2 (N,), by sigma^2; their
    number (N,), and that of log(h / 2 pi sigma^2) (N,)."""

    gram: Tensor
    right: Tensor
    square: Tensor
    count: Tensor
    constant: Tensor

    @classmethod
    def of(
        cls, at: Mapping[str, Tensor], rows: RatingRows, loading: Tensor, offset: Tensor, gains: Tensor | None
    ) -> Sums:
        size, scale = loading.shape[1], at["scale"]
        each = torch.as_tensor(scale.pow(-2) * (1.0 if gains is None else gains)).expand(len(loading))
        weight = each.unsqueeze(1)
        gram = rows.of_users(weight * (loading[:, :, None] * loading[:, None, :]).flatten(1)).unflatten(1, (size, size))
        right = rows.sum_ratings_by_user(weight * loading) - rows.of_users(weight * loading * offset[:, None])
        user, item, value = rows.list_ratings()
        square = each[item] * (value - offset[item]).square()
        square = torch.zeros_like(right[:, 0]).index_add_(0, user, square)
        return cls(gram, right, square, rows.count, rows.of_users((weight / (2 * math.pi)).log())[:, 0])


def _infer_given_gain(gain: Tensor, sums: Sums, mean: Tensor, precision: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean (N, C), covariance (N, C, C) and log p(ratings) (N,) of rows with these gains (N,)."""
    factor = torch.linalg.cholesky(precision + gain[:, None, None] * sums.gram)
    pull = (precision @ mean.unsqueeze(-1)).squeeze(-1)
    right = gain[:, None] * sums.right + pull
    found = torch.cholesky_solve(right.unsqueeze(-1), factor).squeeze(-1)
    log_det = torch.linalg.slogdet(precision).logabsdet - 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    square = (right * found).sum(-1) - (pull * mean).sum(-1) - gain * sums.square
    evidence = 0.5 * (sums.constant + sums.count * gain.log() + log_det + square)
    return found, torch.cholesky_inverse(factor), evidence


def _average_over_gains(
    shape: float | None, sums: Sums, mean: Tensor, precision: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what :func:`_infer_given_gain` does, over p(a_n | ratings). shape: s of the gains; None: all are 1."""
    gain = torch.ones_like(sums.square)
    if shape is None:
        return _infer_given_gain(gain, sums, mean, precision)
    for _ in range(_GAIN_TURNS):  # of the equations of q(p_n) q(a_n)
        found, covariance, _ = _infer_given_gain(gain, sums, mean, precision)
        moment = covariance + found[:, :, None] * found[:, None, :]
        error = sums.square - 2 * (sums.right * found).sum(1) + (sums.gram * moment).sum((1, 2))
        gain = (shape + 0.5 * sums.count) / (shape + 0.5 * error.clamp(min=0))
    spread = torch.polygamma(1, shape + 0.5 * (sums.count - mean.shape[1]).clamp(min=0)).sqrt()
    step = _STEP[shape >= 10]
    log_gain = gain.log() + spread * torch.arange(*_ENDS, step).to(gain)[:, None]
    each = [_infer_given_gain(one, sums, mean, precision) for one in log_gain.exp()]
    means, covariances, evidences = (torch.stack(part) for part in zip(*each, strict=True))
    prior = shape * (log_gain - log_gain.exp()) + shape * math.log(shape) - math.lgamma(shape)
    log_weight = evidences + prior + (step * spread).log()
    weight = log_weight.softmax(0)
    mean = torch.einsum("qn,qnc->nc", weight, means)
    apart = means - mean
    within = torch.einsum("qn,qncd->ncd", weight, covariances)
    return mean, within + torch.einsum("qn,qnc,qnd->ncd", weight, apart, apart), log_weight.logsumexp(0)


def profiles_given(model: PMF, params: Params, data: Data, family: str) -> Local:
    """Infer the Gaussian posterior of users' profiles at given globals, with the moments of the exact one of Gaussian
    ratings; else of the bounds of ``outcomes``."""
    known, moved = ProfileProblem.of(model, params, data)
    found, evidence = conditional(model, params, *known, params.get("item_precision"))
    assert found.covariance is not None
    posterior, exact = GaussianPosterior(found.mean - moved, found.covariance), model.likelihood == "gaussian"
    return Local(posterior, evidence, what="exact" if exact else "variational", family="exact" if exact else family)


class ProfileProblem(NamedTuple):
    """Ratings by row, loadings, offsets, and means (N, C) and covariance (C, C) of the rows' prior."""

    rows: RatingRows
    loading: Tensor
    offset: Tensor
    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, model: PMF, params: Params, data: Data) -> tuple[ProfileProblem, Tensor]:
        """Return what says the profiles of users at given globals, and what covariates add to these (N, C)."""
        rows = RatingRows.of(without_time(model, params, data), model.units[0])
        prior = model.prior(model.local_site, like=params["item"], values=params)
        loading, offset = model.coefficients(params, data.others.get("item_covariates"))
        none = torch.zeros(len(data), loading.shape[1]).to(loading)
        moved = model.profiles(params, none, data.others.get("user_covariates"))
        return cls(rows, loading, offset, prior.mean + moved, prior_covariance(prior)), moved


def prior_covariance(prior: torch.distributions.Distribution) -> Tensor:
    found = getattr(prior, "covariance_matrix", None)
    return torch.diag(prior.variance) if found is None else found


def _variational_posterior(
    model: PMF,
    at: Mapping[str, Tensor],
    rows: RatingRows,
    loading: Tensor,
    offset: Tensor,
    prior: Tensor,
    precision: Tensor,
) -> ProfileRows:
    """Infer profiles from ratings that are not Gaussian, by the bound that is best at its own posterior."""
    user, item, value = rows.list_ratings()
    bound, sign = terms((value + rows.centre).round().cpu().double().numpy(), model.levels)
    scale = float(at["scale"]) if "scale" in at else 1.0
    a, size = loading[item], loading.shape[1]
    mean, covariance = prior, torch.linalg.inv(precision)
    for _ in range(_TURNS):
        eta = (mean[user] * a).sum(-1) + offset[item]
        spread = torch.einsum("mi,mij,mj->m", a, covariance[user], a)
        each = quadratic(*(one.cpu().double().numpy() for one in (eta, spread)), bound, sign, scale)
        weight, linear = (torch.as_tensor(one).to(a) for one in each)
        pairs = weight[:, None, None] * a[:, :, None] * a[:, None, :]
        gram = pairs.new_zeros(len(rows), size, size).index_add_(0, user, pairs)
        pull = (linear - weight * offset[item])[:, None] * a
        right = pull.new_zeros(len(rows), size).index_add_(0, user, pull) + (precision @ prior.unsqueeze(-1))[..., 0]
        inverse = torch.linalg.inv(gram + precision)
        covariance = 0.5 * (inverse + inverse.mT)
        mean = (covariance @ right.unsqueeze(-1)).squeeze(-1)
    return ProfileRows(mean, covariance)
