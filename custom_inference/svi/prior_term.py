"""The part of an objective of SVI that is of the globals: E_q[log p - log q] of the guide's distribution of them."""

from __future__ import annotations

import math
from typing import Any

import torch
from pyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor
from torch.distributions import biject_to

from custom_inference.core.isolation import isolated, seed_of
from custom_inference.svi.guides import protocol
from custom_inference.svi.guides.own import OwnGuide
from custom_inference.svi.marginal import GlobalsBound
from ppl_models import Data, Model
from ppl_models.core.priors import is_flat

#: Draws that the mean is taken over, and fewer, but no fewer than the second, where these would be more numbers.
_DRAWS, _FEWEST, _NUMBERS = 200, 10, 4_000_000
#: Objectives that are E_q[log p - log q].
_ELBOS = (Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO, protocol.DerivedBound)


def prior_term(
    program: Model, guide: Any, data: Data, loss: Any, seed: int, points: dict[str, Tensor] | None
) -> float | None:
    """What the globals' own terms add to the objective: at ``points``, if given, their log prior density, with the
    constants that flat priors have in the program (``GlobalsBound`` leaves flat ones out); else minus the divergence of
    the guide's distribution of them from the priors, a mean over draws. None of guides of the caller's own that draw,
    and of other losses than ELBOs.
    """
    if not isinstance(loss, _ELBOS):
        return None
    sites = program.unknown_sites
    if isinstance(loss, GlobalsBound):
        sites = tuple(site for site in sites if not is_flat(program.priors[site]))
    with torch.no_grad(), isolated(seed_of(seed, "terms of the globals")):
        if points is not None:
            return float(_log_density(program, {site: points[site] for site in program.global_sites}, sites))
        if isinstance(guide, OwnGuide):
            return None
        inner = guide.globals_guide if isinstance(guide, protocol.LocalGuide) else guide
        size = sum(math.prod(program.shapes[site]) for site in program.unknown_sites)
        number = max(_FEWEST, min(_DRAWS, _NUMBERS // max(1, size)))
        values, log_q = dict[str, Tensor](), torch.zeros(number, dtype=torch.float64, device=data.x.device)
        for site in program.unknown_sites:
            values[site], own = _draws(inner, site, number)
            log_q = log_q + own.double().reshape(number, -1).sum(-1)
        known = {site: value.to(data.x) for site, value in program.known.items()}
        if program.has_functions:
            each = [{site: value[s] for site, value in values.items()} for s in range(number)]
            log_p = torch.stack([_log_density(program, known | one, sites) for one in each])
        else:
            log_p = _log_density(program, known | values, sites)
        return float((log_p - log_q).mean())


def _log_density(program: Model, values: dict[str, Tensor], sites: tuple[str, ...]) -> Tensor:
    """The log prior density of some sites at one value of each, or at as many of each along a leading axis."""
    found = [program.prior(site, like=values[site], values=values).log_prob(values[site]).double() for site in sites]
    return torch.stack(found).sum(0) if found else torch.zeros((), dtype=torch.float64)


def _draws(guide: Any, site: str, number: int) -> tuple[Tensor, Tensor]:
    """Draws (S, ...) of a site from a guide of the suite, and their log density (S, ...), 0 of points."""
    if isinstance(guide, protocol.DirichletGlobals):
        if site not in guide.simplices:
            return _draws(getattr(guide, f"{site}_guide"), site, number)
        q = torch.distributions.Dirichlet(getattr(guide, f"{site}_concentration"))
        value = q.sample((number,))
        return value, q.log_prob(value)
    if not isinstance(guide, AutoNormal):
        value = guide.median()[site]
        return value.expand(number, *value.shape), value.new_zeros(number)
    loc, scale = guide._get_loc_and_scale(site)
    transform: Any = biject_to(guide.prototype_trace.nodes[site]["fn"].support)  # pyright: ignore
    free = loc + scale * torch.randn(number, *loc.shape, dtype=loc.dtype, device=loc.device)
    value = transform(free)
    volume = transform.log_abs_det_jacobian(free, value).reshape(number, -1).sum(-1)
    return value, torch.distributions.Normal(loc, scale).log_prob(free).reshape(number, -1).sum(-1) - volume
