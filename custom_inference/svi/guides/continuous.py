"""Families of continuous local latents, and Dirichlets as guides use them: their divergences in closed form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions.score_parts import ScoreParts
from pyro.infer import TraceMeanField_ELBO
from pyro.infer.util import is_validation_enabled
from pyro.poutine.util import prune_subsample_sites
from pyro.util import check_model_guide_match
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.distributions import constraints
from torch.distributions.kl import kl_divergence, register_kl
from torch.nn.functional import softplus

from ppl_models import Data, MethodError, Model
from ppl_models.core.hierarchy import typical_values

#: Keeps concentrations and scales off zero, where densities have no finite gradient.
_EDGE = 1e-3
#: Logarithms of concentrations are kept within: draws at far larger ones are constants to rounding.
_LOG_CONCENTRATION = (-7.0, 20.0)
#: What a reparameterised site says of its score where its density is not needed.
_NO_SCORE: Any = ScoreParts(torch.zeros(()), 0, torch.zeros(()))  # pyright: ignore[reportArgumentType]


class GuideDirichlet(dist.Dirichlet):
    """A Dirichlet whose divergence from a fixed Dirichlet costs three special functions an entry, gradient included."""


@register_kl(GuideDirichlet, dist.Dirichlet)
@register_kl(GuideDirichlet, torch.distributions.Dirichlet)
def _divergence(q: Any, p: Any) -> Tensor:
    if p.concentration.requires_grad:  # a prior that is itself drawn
        both = (dist.Dirichlet(one.concentration, validate_args=False) for one in (q, p))
        return kl_divergence(*both)
    return _DirichletDivergence.apply(q.concentration, p.concentration)


class _DirichletDivergence(torch.autograd.Function):
    """KL(Dirichlet(a) || Dirichlet(b)), b fixed, with A = sum_v a_v and B = sum_v b_v:

        log G(A) - sum_v log G(a_v) - log G(B) + sum_v log G(b_v) + sum_v (a_v - b_v) (psi(a_v) - psi(A))

    d/da_v = (a_v - b_v) psi'(a_v) - (A - B) psi'(A).
    """

    @staticmethod
    def forward(ctx: FunctionCtx, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        total, excess = a.sum(-1), a - b
        fixed = (torch.lgamma(_once(b)).expand(b.shape)).sum(-1) - torch.lgamma(b.sum(-1))
        free = torch.lgamma(total) - torch.lgamma(a).sum(-1)
        return fixed + free + (excess * torch.digamma(a)).sum(-1) - excess.sum(-1) * torch.digamma(total)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        a, b = ctx.saved_tensors
        excess = a - b
        slope = excess * torch.polygamma(1, a)
        slope -= (excess.sum(-1) * torch.polygamma(1, a.sum(-1))).unsqueeze(-1)
        return gradient.unsqueeze(-1) * slope, None


def _once(value: Tensor) -> Tensor:
    """One slice of every axis along which a tensor was expanded: the same numbers, computed with once."""
    for axis, (stride, size) in enumerate(zip(value.stride(), value.shape, strict=True)):
        if stride == 0 and size > 1:
            value = value.narrow(axis, 0, 1)
    return value


class ClosedFormELBO(TraceMeanField_ELBO):
    """``TraceMeanField_ELBO`` that evaluates no log density whose expectation it has in closed form.

    Pyro's own evaluates the densities of every site first and discards those of the sites with known divergences.
    """

    def _get_trace(
        self, model: Callable[..., Any], guide: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any]:
        guide_trace: Any = poutine.trace(guide).get_trace(*args, **kwargs)
        model_trace: Any = poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(*args, **kwargs)
        guide_trace, model_trace = prune_subsample_sites(guide_trace), prune_subsample_sites(model_trace)
        closed = {name for name in guide_trace.stochastic_nodes if _is_closed(name, guide_trace, model_trace)}
        model_trace.compute_log_prob(site_filter=lambda name, _: name not in closed)
        if set(guide_trace.stochastic_nodes) - closed:
            guide_trace.compute_score_parts()
        for name in closed:
            guide_trace.nodes[name].setdefault("score_parts", _NO_SCORE)
        if is_validation_enabled():
            check_model_guide_match(model_trace, guide_trace)
        return model_trace, guide_trace


def _is_closed(name: str, guide_trace: Any, model_trace: Any) -> bool:
    if name not in model_trace.nodes:
        return False
    q, p = (_base(trace.nodes[name]["fn"]) for trace in (guide_trace, model_trace))
    return isinstance(q, GuideDirichlet) and isinstance(p, torch.distributions.Dirichlet)


def _base(distribution: Any) -> Any:
    while isinstance(distribution, torch.distributions.Independent):
        distribution = distribution.base_dist
    return distribution


class ContinuousFamily(NamedTuple):
    """A map from unconstrained parameters of a row to its distribution.

    num_outputs: how many parameters a row has. distribution: (..., P) -> the distribution. start: the parameters of
    every row that learning starts around, (N, 1) or (N, P). analytic: whether divergences from the priors are taken in
    closed form.
    """

    num_outputs: int
    distribution: Callable[[Tensor], Any]
    start: Tensor
    analytic: bool = False


def continuous_family(model: Model, data: Data) -> ContinuousFamily:
    """Independent normals for real latents, Gammas for positive ones; for those on the simplex Dirichlets, or under a
    prior that is no Dirichlet independent normals of their stick-breaking coordinates.

    The concentrations of documents' proportions grow with the number of tokens, from the prior's on: they are learned
    by their logarithms, from alpha + L_n / K.
    """
    support, size = model.sites[model.local_site].support, model.local_shape[0]
    zeros = torch.zeros(len(data), 1).to(data.stored)
    if support is constraints.real:
        centre, unit = model.site_units.get(model.local_site, (torch.zeros(()), torch.ones(())))
        return ContinuousFamily(2 * size, partial(_normal, centre=centre.to(zeros), unit=unit.to(zeros)), zeros)
    if support is constraints.positive:
        return ContinuousFamily(2 * size, _gamma, zeros)
    if support is not constraints.simplex:
        raise MethodError(f"no guide for a local latent '{model.local_site}' with support {support}")
    prior: Any = model.prior(model.local_site, like=zeros, values=typical_values(model))
    if not isinstance(prior, dist.Dirichlet):
        return ContinuousFamily(2 * (size - 1), logistic_normal, zeros)
    given = model.given(data)
    if "num_tokens" not in given:
        return ContinuousFamily(size, _dirichlet, zeros)
    alpha = getattr(prior, "concentration", torch.ones(size).to(zeros))
    start = torch.log(alpha + given["num_tokens"].to(zeros).unsqueeze(-1) / size)
    return ContinuousFamily(size, log_dirichlet, start, analytic=True)


def log_dirichlet(raw: Tensor) -> GuideDirichlet:
    """The Dirichlet of these logarithms of its concentrations."""
    return GuideDirichlet(raw.clamp(*_LOG_CONCENTRATION).exp(), validate_args=False)


def _dirichlet(raw: Tensor) -> Any:
    return dist.Dirichlet(softplus(raw + 1.0) + _EDGE)


def _normal(raw: Tensor, centre: Tensor, unit: Tensor) -> Any:
    location, scale = raw.chunk(2, -1)
    return dist.Normal(centre + unit * location, unit * (softplus(scale) + _EDGE)).to_event(1)


def _gamma(raw: Tensor) -> Any:
    shape, rate = (softplus(part + 1.0) + _EDGE for part in raw.chunk(2, -1))
    return dist.Gamma(shape, rate).to_event(1)


def logistic_normal(raw: Tensor) -> Any:
    location, scale = raw.chunk(2, -1)
    return dist.LogisticNormal(location, softplus(scale) + _EDGE)
