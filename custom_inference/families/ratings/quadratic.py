"""Bilinear factors by quadratic bounds: Gaussian posteriors of the users' own factors, everything else as points.

Of an observation m of user u with the items v_l (l = 1..L), logits theta_l = a_u'b_l, the log likelihood has a lower
bound that is quadratic in theta, touching at a point that the current posterior gives: gradient g_m and curvature H_m
there. Of clicks (L = 1) it is Jaakkola and Jordan's, with xi^2 = E[theta^2],

    log p(x | theta) >= (x - 1/2) theta - c(xi) (theta^2 - xi^2) / 2 - log(2 cosh(xi / 2)),

so that H = c(xi) = tanh(xi / 2) / (2 xi); of choices Boehning's, about E[theta]: H = (I - 1 1' / L) / 2. With
q(user_u) = N(m_u, V_u) under the prior N(m, P^-1), F the matrix of the b_l and a = W'x_u + user_u:

    V_u^-1 = P + sum_m F'H F,    m_u += V_u [sum_m F'g + P (m - m_u)]                                             E step
    b_v:   gradient sum [E[a] g_l - V_u (F'H)_l],  curvature at most sum h_l E[a a'],  h_l = c(xi) or 1/2         M step
    W:     gradient sum x_u (F'g)',                curvature sum x_u x_u' (x) F'H F

``item`` and ``item_weight`` in b_v = V'z_v + item_v take turns; all of these are least-squares problems, and no update
lowers the bound.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.engine import Engine, EStep, Params, Warm
from custom_inference.core.posteriors import GaussianPosterior, LocalPosterior
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.ratings.observations import Observations, choices_of, pairs_of
from ppl_models import ChoicePMF, Data
from ppl_models.bilinear_pmf import BilinearModel
from ppl_models.core.likelihood import jaakkola_curvature, log_two_cosh_half

#: Spread of the factors at the start; turns of ``item`` and ``item_weight`` in an M step.
_SPREAD, _TURNS = 0.5, 3
#: Where a prior is flat, an update is held back by this share of its own curvature.
_PROXIMAL = 1e-6


class ChoiceExpansion(NamedTuple):
    """The bound of every observation at the posterior, its gradient (M, L) and curvature (M, L, L) in the logits there,
    and a diagonal (M, L) that is at least as curved."""

    value: Tensor
    gradient: Tensor
    curvature: Tensor
    majorant: Tensor


class Users(NamedTuple):
    """The posterior of the users' factors: mean (U, K), covariance (U, K, K)."""

    mean: Tensor
    covariance: Tensor


@dataclass(frozen=True, kw_only=True)
class QuadraticEngine(Engine):
    """The engine of both kinds of observations.

    sweeps: updates of the bound and of the posterior in an E step.
    """

    additive = False
    one_process = True

    name: ClassVar[str] = "gaussian"
    sweeps: int = 2

    @abc.abstractmethod
    def expansion(self, rows: Observations, mean: Tensor, covariance: Tensor) -> ChoiceExpansion:
        """Expand the bound where logits have this mean (M, L) and covariance (M, L, L)."""

    def check(self, model: BilinearModel, rows: Observations) -> None:
        """Raises PriorError for priors that are neither Normal nor flat, and for a flat one of ``user``."""
        for site in (*model.shapes, model.local_site):
            prior = Normal.of(model, site, model.shape_of(site), rows.like)
            if site == model.local_site:
                prior.require_proper(site)

    def initial(self, model: BilinearModel, rows: Observations, generator: torch.Generator) -> Params:
        """Start with small random factors: at 0 nothing tells one component from another."""
        shapes = model.shapes.items()
        noise = {site: torch.randn(shape, generator=generator, dtype=torch.float64) for site, shape in shapes}
        for side in ("user", "item"):
            if f"{side}_weight" in noise:
                noise[f"{side}_weight"] /= model.scale(side, noise["item"])[1].unsqueeze(-1)
        return {site: _SPREAD * value.to(rows.like) for site, value in noise.items()}

    def e_step(
        self, model: BilinearModel, params: Params, rows: Observations, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        prior = Normal.of(model, "user", model.local_shape, rows.like)
        if warm:
            users = Users(warm["user"], warm["covariance"])
        else:
            covariance = torch.diag(prior.precision.reciprocal()).expand(len(rows), -1, -1)
            users = Users(prior.mean.expand(len(rows), -1), covariance)
        factors, (mean, precision) = _factors(model, params, rows), prior
        for _ in range(self.sweeps):
            found = self._expand_bound(factors, users, rows)
            information = temperature * rows.sum_by_user(_pull_back(factors, found.curvature)) + torch.diag(precision)
            pull = temperature * rows.sum_by_user((factors.item.mT @ found.gradient.unsqueeze(-1)).squeeze(-1))
            covariance = torch.cholesky_inverse(torch.linalg.cholesky(information))
            step = covariance @ (pull + precision * (mean - users.mean)).unsqueeze(-1)
            users = Users(users.mean + step.squeeze(-1), covariance)
        value = temperature * self._expand_bound(factors, users, rows).value
        bound = rows.sum_by_user(value) - prior.kl_of(*users, torch.logdet(users.covariance))
        return EStep({}, {"user": users.mean, "covariance": users.covariance}, bound)

    def m_step(self, model: BilinearModel, params: Params, step: EStep, rows: Observations) -> Params:
        users = Users(step.locals["user"], step.locals["covariance"])
        factors = _factors(model, params, rows)
        found = self._expand_bound(factors, users, rows)
        moved = params | self._items(model, params, rows, factors, users, found)
        if not model.num_user_covariates:
            return moved
        after = _factors(model, moved, rows)
        change = (_logits(after, users, rows) - _logits(factors, users, rows)).unsqueeze(-1)
        gradient = found.gradient.unsqueeze(-1) - found.curvature @ change
        pull = rows.sum_by_user((after.item.mT @ gradient).squeeze(-1))
        information = rows.sum_by_user(_pull_back(after, found.curvature))
        weight = _regression(model, "user_weight", params, rows.user_covariates, pull, information)
        return {**moved, "user_weight": weight}

    def _items(
        self,
        model: BilinearModel,
        params: Params,
        rows: Observations,
        factors: ChoiceFactors,
        users: Users,
        found: ChoiceExpansion,
    ) -> Params:
        """Update ``item`` and ``item_weight`` by turns."""
        a = (factors.offset + users.mean)[rows.user]
        spread = users.covariance[rows.user]
        pull = found.gradient.unsqueeze(-1) * a.unsqueeze(-2) - found.curvature @ factors.item @ spread
        second = a.unsqueeze(-1) * a.unsqueeze(-2) + spread
        gradient = rows.sum_by_item(pull * rows.shown.unsqueeze(-1))
        curvature = rows.sum_by_item((found.majorant * rows.shown)[..., None, None] * second.unsqueeze(1))
        item, weights = params["item"], {"item_weight": params["item_weight"]} if model.num_item_covariates else {}
        mean, precision = Normal.of(model, "item", model.shapes["item"], item)
        system = curvature + torch.diag_embed(_regular(precision, curvature))
        for _ in range(_TURNS):
            step = torch.linalg.solve(system, (gradient + precision * (mean - item)).unsqueeze(-1))
            item = item + step.squeeze(-1)
            gradient = gradient - (curvature @ step).squeeze(-1)
            for site, before in weights.items():
                weights[site] = _regression(model, site, weights, rows.item_covariates, gradient, curvature)
                change = rows.item_covariates @ (weights[site] - before)
                gradient = gradient - (curvature @ change.unsqueeze(-1)).squeeze(-1)
        return {"item": item, **weights}

    def posterior(self, model: BilinearModel, params: Params, rows: Observations, step: EStep) -> LocalPosterior:
        return GaussianPosterior(step.locals["user"], step.locals["covariance"])

    def _expand_bound(self, factors: ChoiceFactors, users: Users, rows: Observations) -> ChoiceExpansion:
        covariance = factors.item @ users.covariance[rows.user] @ factors.item.mT
        return self.expansion(rows, _logits(factors, users, rows), covariance)


@dataclass(frozen=True, kw_only=True)
class ClickBound(QuadraticEngine):
    """Yes or no to single items, by Jaakkola and Jordan's bound."""

    def rows(self, model: BilinearModel, data: Data) -> Observations:
        return pairs_of(model, data)

    def expansion(self, rows: Observations, mean: Tensor, covariance: Tensor) -> ChoiceExpansion:
        theta, xi = mean[:, 0], (mean[:, 0].square() + covariance[:, 0, 0]).sqrt()
        curvature, slope = jaakkola_curvature(xi), rows.x - 0.5
        gradient, value = slope - curvature * theta, slope * theta - log_two_cosh_half(xi)
        return ChoiceExpansion(value, gradient[:, None], curvature[:, None, None], curvature[:, None])


@dataclass(frozen=True, kw_only=True)
class ChoiceBound(QuadraticEngine):
    """Choices among the items shown, by Boehning's bound about the mean logits."""

    def rows(self, model: ChoicePMF, data: Data) -> Observations:
        return choices_of(model, data)

    def expansion(self, rows: Observations, mean: Tensor, covariance: Tensor) -> ChoiceExpansion:
        shown, places = rows.shown.to(mean), rows.shown.sum(-1, keepdim=True).to(mean)
        logits = mean.masked_fill(~rows.shown, -torch.inf)
        picked = torch.nn.functional.one_hot(rows.x.long(), mean.shape[1]).to(mean)
        curvature = 0.5 * (torch.diag_embed(shown) - shown.unsqueeze(-1) * (shown / places).unsqueeze(-2))
        value = (picked * mean).sum(-1) - logits.logsumexp(-1) - 0.5 * (curvature * covariance).sum((-2, -1))
        return ChoiceExpansion(value, picked - logits.softmax(-1), curvature, 0.5 * shown)


def precision_of_choosers(model: ChoicePMF, params: Params, data: Data, mean: Tensor) -> Tensor:
    """Return minus the Hessian (U, K, K) of log p(choices, user) at users of ``mean`` (U, K): Boehning's bound is
    more curved, and its posteriors are narrower, the more items are shown. Their means are the modes."""
    rows = choices_of(model, data)
    factors = _factors(model, params, rows)
    logits = _logits(factors, Users(mean, mean.new_zeros(0)), rows)
    p = logits.masked_fill(~rows.shown, -torch.inf).softmax(-1)
    information = rows.sum_by_user(_pull_back(factors, torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)))
    return information + torch.diag(Normal.of(model, "user", model.local_shape, mean).precision)


# ----- linear algebra -------------------------------------------------------------------------------------------------


class ChoiceFactors(NamedTuple):
    """b of the items of every observation (M, L, K), 0 where none is shown, and W'x_u (U, K)."""

    item: Tensor
    offset: Tensor


def _factors(model: BilinearModel, params: Params, rows: Observations) -> ChoiceFactors:
    item = model.item_factors(params, rows.item_covariates)[rows.item] * rows.shown.unsqueeze(-1)
    return ChoiceFactors(item, model.user_offsets(params, rows.user_covariates, len(rows)))


def _logits(factors: ChoiceFactors, users: Users, rows: Observations) -> Tensor:
    return (factors.item @ (factors.offset + users.mean)[rows.user].unsqueeze(-1)).squeeze(-1)


def _pull_back(factors: ChoiceFactors, curvature: Tensor) -> Tensor:
    """Compute F'H F of every observation, (M, K, K)."""
    return factors.item.mT @ curvature @ factors.item


def _regular(precision: Tensor, curvature: Tensor) -> Tensor:
    """Return the prior's precision, and a little of the curvature where the prior is flat, (..., K)."""
    diagonal = curvature.diagonal(dim1=-2, dim2=-1)
    return precision + _PROXIMAL * (diagonal + diagonal.amax().clamp_min(1e-30)) * (precision == 0)


def _regression(
    model: BilinearModel, site: str, params: Params, features: Tensor, gradient: Tensor, curvature: Tensor
) -> Tensor:
    """Solve for the weights (P, K) of features x_n (N, P) that maximise sum_n [g_n'd_n - d_n'A_n d_n / 2] + log prior,
    where d_n is the change of W'x_n: one system of PK equations."""
    weight = params[site]
    mean, precision = Normal.of(model, site, model.shapes[site], weight)
    size, components = weight.shape
    products = (features.unsqueeze(-1) * features.unsqueeze(-2)).flatten(1)
    system = (products.T @ curvature.flatten(1)).reshape(size, size, components, components).transpose(1, 2)
    system = system.reshape(size * components, size * components)
    system = system + torch.diag(_regular(precision.flatten(), system))
    target = features.T @ gradient + precision * (mean - weight)
    return weight + torch.linalg.solve(system, target.flatten()).view(size, components)
