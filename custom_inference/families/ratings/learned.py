"""The evidence of ratings at given globals under learned priors, and users' posteriors: for all that comes after a fit.

Gaussian ratings have closed forms, and one integral where noise varies (``fold_in``). Of others, log p(r_n) is the
integral over the profile p ~ Normal(m, P^-1) by Gauss-Hermite nodes t_q, with weights w_q, about the posterior
Normal(c, L L') of the bounds of ``outcomes``, somewhat wider,

    p(r_n) ~ (2 pi)^(C/2) |L| sum_q w_q e^(t_q't_q / 2) p(r_n, c + L t_q),

or, of more than three dimensions, the bound itself: E log p(r | p) >= by each term of ``outcomes``, less KL(q || p).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Objective, Params, Warm
from custom_inference.families.ratings.fold_in import ProfileProblem, conditional
from custom_inference.families.ratings.gaussian import RatingsExact
from custom_inference.families.ratings.outcomes import terms
from custom_inference.families.ratings.rows import RatingRows
from ppl_models import PMF, CapacityError, Data
from ppl_models.core.likelihood import hermite

#: Nodes an axis, by the number of axes; how much wider they lie than the bound's posterior, which is too narrow.
_AXIS_NODES, _WIDER = {1: 60, 2: 32, 3: 16}, 1.2
#: Ratings times nodes at a time.
_BLOCK_ENTRIES = 2**22


@dataclass(frozen=True)
class LearnedRows(RatingRows):
    """Ratings, and the data that they are of, with times and covariates."""

    data: Data | None = None

    @classmethod
    def of(cls, data: Data, centre: float = 0.0) -> Self:
        """Return the rows of data."""
        plain = RatingRows.of(data, centre)
        return cls(plain.x, plain.observed, centre, data)

    def select(self, index: Tensor | slice) -> Self:
        """Return the chosen users."""
        assert self.data is not None
        return self.of(self.data.rows(index), self.centre)


@dataclass(frozen=True, kw_only=True)
class RatingsLearned(RatingsExact):
    """The evidence: exact, or by quadrature over up to three dimensions. It has no M step."""

    def feasible(self, model: PMF) -> bool:
        return model.likelihood == "gaussian" or model.sizes["coordinate"] in _AXIS_NODES

    def rows(self, model: PMF, data: Data) -> LearnedRows:
        return LearnedRows.of(data, model.units[0])

    def initial(self, model: PMF, rows: LearnedRows, generator: torch.Generator) -> Params:
        """Start as where nothing is given beside ratings; gains are 1, what is beside is 0."""
        start = super().initial(model, rows, generator)
        rest = {
            site: rows.like.new_full(shape, float(site == "item_precision")) for site, shape in model.shapes.items()
        }
        return {site: start.get(site, rest[site]) for site in model.global_sites}

    def e_step(
        self, model: PMF, params: Params, rows: LearnedRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        assert rows.data is not None
        known, moved = ProfileProblem.of(model, params, rows.data)
        found, bound = conditional(model, params, *known, params.get("item_precision"))
        mean, covariance = found.mean, found.covariance
        assert covariance is not None
        if model.likelihood != "gaussian":
            mean, covariance, bound = self._improve(model, params, known, mean, covariance)
        return EStep({}, {"user_profile": mean - moved, "covariance": covariance}, bound)

    def _improve(
        self, model: PMF, params: Params, known: ProfileProblem, centre: Tensor, spread: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return means, covariances and log evidence by quadrature about the bound's posteriors. Raises CapacityError
        for more dimensions than three."""
        size = centre.shape[1]
        if size not in _AXIS_NODES:
            needed, most = (8.0 * known.rows.count.sum() * 16.0**axes for axes in (size, 3))
            what = f"quadrature over profiles of {size} entries; it is offered for up to three"
            raise CapacityError(
                f'{what}; use the bound "gaussian"', needed_bytes=float(needed), allowed_bytes=float(most)
            )
        node, weight = (part.to(centre) for part in hermite(_AXIS_NODES[size]))
        log_weight = weight.log() + 0.5 * node.square() + 0.5 * math.log(2 * math.pi)
        node, log_weight = (torch.cartesian_prod(*[one] * size).reshape(-1, size) for one in (node, log_weight))
        root = _WIDER * torch.linalg.cholesky(spread)
        user, item, value = known.rows.list_ratings()
        at = centre[:, None] + node @ root.mT  # (N, Q, C)
        prior = torch.distributions.MultivariateNormal(known.mean[:, None], known.covariance)
        log_joint = prior.log_prob(at) + log_weight.sum(-1) + root.diagonal(dim1=1, dim2=2).log().sum(1)[:, None]
        block = max(1, _BLOCK_ENTRIES // len(node))
        for one, two, rated in zip(
            *(part.split(block) for part in (user, item, value + known.rows.centre)), strict=True
        ):
            eta = (at[one] @ known.loading[two].unsqueeze(-1)).squeeze(-1) + known.offset[two].unsqueeze(-1)
            log_joint.index_add_(0, one, model.entry(params, eta).log_prob(rated.round().unsqueeze(-1)))
        share = log_joint.softmax(1)
        mean = torch.einsum("nq,nqc->nc", share, at)
        apart = at - mean[:, None]
        return mean, torch.einsum("nq,nqc,nqd->ncd", share, apart, apart), log_joint.logsumexp(1)


@dataclass(frozen=True, kw_only=True)
class RatingsBound(RatingsLearned):
    """The bound, of any number of dimensions, of ratings that are not Gaussian."""

    name: ClassVar[str] = "gaussian"
    objective: ClassVar[Objective] = "bound"

    def feasible(self, model: PMF) -> bool:
        return True

    def _improve(
        self, model: PMF, params: Params, known: ProfileProblem, centre: Tensor, spread: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        user, item, value = known.rows.list_ratings()
        loading, scale = known.loading[item], params.get("scale", centre.new_ones(()))
        eta = (centre[user] * loading).sum(-1) + known.offset[item]
        variance = torch.einsum("mi,mij,mj->m", loading, spread[user], loading)
        rated = (value + known.rows.centre).round().cpu().double().numpy()
        bound, sign = (torch.as_tensor(one).to(centre) for one in terms(rated, model.levels))
        z = (eta[:, None] - bound) / scale
        half = 0.5 * (z.square() + variance[:, None] / scale.square()).sqrt()
        each = ((sign != 0) * (0.5 * sign * z - half - torch.log1p(torch.exp(-2 * half)))).sum(1)
        if model.levels is not None:
            each = each + (sign != 0).all(1) * torch.log(-torch.expm1(-1 / scale))
        own, prior = (torch.distributions.MultivariateNormal(*one) for one in ((centre, spread), known[3:]))
        found = -torch.distributions.kl_divergence(own, prior)
        return centre, spread, found.index_add_(0, user, each)
