"""Walks of the topics' logits: their prior, their divergence from it, and the steps of what it depends on.

Of a logit b (T,) of topic k and word v, with m the background, s the first scale, z ~ Normal(l, r^2) the prior of
(b_1 - m) / s and sigma^2 the drift variance (Murphy 2012, eq. 27.57):

    b ~ Normal(mu, Lambda^-1),  mu = m + s l at every t,  b'Lambda b = (b_1/sr)^2 + sum_t (b_t - b_{t-1})^2 / sigma^2

Everything is vectorised over topics and words, (T, K, V). Given a Gaussian q with means, variances var_t and
covariances of neighbours cov_t, each of m, s and sigma^2 has its maximum given the others:

    m_v       Normal prior: the mean, by precisions, of b_1kv - s l over the topics and the prior's
    sigma^2   n = (T - 1) K V:    -n/2 log sigma^2 - S / (2 sigma^2) + log p(sigma^2),
              S = sum (E[b_t] - E[b_{t-1}])^2 + var_t + var_{t-1} - 2 cov_t
    s         -K V log s - 1/2 sum E[((b_1 - m)/s - l)^2] / r^2 + log p(s)

the last two along a line, under any prior.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from custom_inference.core.engine import Params
from custom_inference.core.posteriors import WalkPosterior
from custom_inference.core.posteriors.walk import Tridiagonal
from custom_inference.core.states import State
from custom_inference.families.conjugate.normal import Normal
from ppl_models import DTM
from ppl_models.core.priors import value_if_known

#: Half the width, in logarithms, of the first grid of a search along a line; its points, and how often it is refined.
_REACH, _POINTS, _ROUNDS = 4.0, 4097, 2


@dataclass(frozen=True)
class WalkState(State):
    """q(topic_logit) = Normal(mean, J^-1), by chains: mean and the diagonals of J (T, K, V), coupling (K, V); points of
    the others. settled: where the last step came to before it was built on, (T, K, V)."""

    mean: Tensor
    diagonal: Tensor
    coupling: Tensor
    drift_variance: Tensor
    background: Tensor
    initial_scale: Tensor
    settled: Tensor | None = None

    @property
    def hypers(self) -> Params:
        return {site: getattr(self, site) for site in ("drift_variance", "background", "initial_scale")}

    @property
    def eliminated(self) -> Tridiagonal:
        return Tridiagonal.of(self.diagonal, self.coupling)

    def values(self, model: DTM) -> Params:
        found = {**self.hypers, "topic_logit": self.mean}
        return {site: found[site] for site in model.global_sites if site in found}

    def posteriors(self, model: DTM) -> dict[str, WalkPosterior]:
        return {"topic_logit": WalkPosterior(self.mean, self.diagonal, self.coupling)}


class WalkPrior:
    """mu (K, V) and Lambda of the walks at values of the other sites. first: 1 / (s r)^2, (K, V); drift: 1 / sigma^2;
    diagonal (T, K, V): Lambda's."""

    def __init__(self, model: DTM, hypers: Params):
        like, shape = hypers["background"], model.shapes["topic_logit"]
        self.centre, precision = Normal.of(model, "topic_logit", shape[1:], like)  # l and r^-2
        scale = hypers["initial_scale"]
        self.mean, self.first = hypers["background"] + scale * self.centre, precision / scale.square()
        self.drift = hypers["drift_variance"].reciprocal()
        self.coupling, self.steps = self.drift.expand(shape[1:]), shape[0] - 1
        sides = torch.full((shape[0],), 2.0 if self.steps else 0.0).to(like)
        sides[0] -= float(self.steps > 0)
        sides[-1] -= float(self.steps > 0)
        self.diagonal = (sides * self.drift)[:, None, None].expand(shape).clone()
        self.diagonal[0] += self.first

    def pull(self, value: Tensor) -> Tensor:
        """Lambda (b - mu), (T, K, V)."""
        found = torch.zeros_like(value)
        step = value.diff(dim=0).mul_(self.drift)
        found[1:] += step
        found[:-1] -= step
        found[0] += self.first * (value[0] - self.mean)
        return found

    def quadratic(self, value: Tensor) -> Tensor:
        """(b - mu)'Lambda(b - mu), (K, V)."""
        return self.first * (value[0] - self.mean).square() + self.drift * value.diff(dim=0).square().sum(0)

    @property
    def log_det(self) -> Tensor:
        """log |Lambda|, (K, V)."""
        return self.first.log() + self.steps * self.drift.log()

    def divergence(self, mean: Tensor, chain: Tridiagonal) -> Tensor:
        """KL(q || walk) of every chain, (K, V)."""
        variance, covariance = chain.variances()
        trace = (self.diagonal * variance).sum(0) - 2 * self.drift * covariance.sum(0)
        return (trace - len(mean) + self.quadratic(mean) + chain.log_det - self.log_det) / 2

    def centre_logits(self, value: Tensor) -> Tensor:
        """Add to the logits of each topic in each slice the number that the prior of the walk likes best."""
        weight = self.first / self.first.sum(-1, keepdim=True)
        start = value[:1] - ((value[0] - self.mean) * weight).sum(-1, keepdim=True)
        step = value.diff(dim=0)
        return torch.cat([start, step - step.mean(-1, keepdim=True)]).cumsum(0)


def hyper_steps(model: DTM, hypers: Params, mean: Tensor, chain: Tridiagonal, relaxed: float = 1.0) -> Params:
    """Background, first scale and drift variance at their maxima, each given the others.

    relaxed: by what the step of the logarithm of the drift variance is multiplied.
    """
    variance, covariance = chain.variances()
    found = dict(hypers)
    known = {site: value_if_known(model.priors[site]) for site in hypers}
    centre, precision = Normal.of(model, "topic_logit", tuple(mean.shape[1:]), mean)
    if known["background"] is None:
        first = precision / hypers["initial_scale"].square()
        at, weight = Normal.of(model, "background", tuple(mean.shape[2:]), mean)
        right = (first * (mean[0] - hypers["initial_scale"] * centre)).sum(0) + weight * at
        found["background"] = right / (first.sum(0) + weight)
    if known["initial_scale"] is None:
        off = mean[0] - found["background"]
        square = ((off.square() + variance[0]) * precision).double().sum()
        cross, number = (off * centre * precision).double().sum(), off.numel()
        found["initial_scale"] = _best(
            model, "initial_scale", hypers, lambda u: cross * (-u).exp() - number * u - square / 2 * (-2 * u).exp()
        )
    if known["drift_variance"] is None:
        moved = mean.diff(dim=0).square() + variance[1:] + variance[:-1] - 2 * covariance
        total, number = moved.double().sum(), moved.numel()
        new = _best(model, "drift_variance", hypers, lambda u: -number / 2 * u - total / 2 * (-u).exp())
        before = hypers["drift_variance"]
        further = before * (new / before) ** relaxed
        prior = model.prior("drift_variance", like=further)
        found["drift_variance"] = further if bool(prior.support.check(further)) else new
    return found


def _best(model: DTM, site: str, values: Params, gain: Callable[[Tensor], Tensor]) -> Tensor:
    """The value of a positive site that maximises ``gain`` of its logarithm plus the log prior; never a worse one."""
    now, prior = values[site], model.prior(site, like=values[site].double())
    at, width = now.double().log(), _REACH
    for _ in range(_ROUNDS):
        u = at + width * torch.linspace(-1, 1, _POINTS).to(at)
        value = u.exp()
        inside = prior.support.check(value)
        density = prior.log_prob(torch.where(inside, value, now.double()))
        total = torch.where(inside, gain(u) + density, -torch.inf)
        at = u[int(total.argmax())]  # the middle one is the last round's
        width = 2 * width / (_POINTS - 1)
    return at.exp().to(now)
