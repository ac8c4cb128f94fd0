"""The part of an objective of SVI that is of the globals: E_q[log p - log q] of the guide's distribution of them."""

from __future__ import annotations

import math

import torch
from pyro.infer import ELBO, Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from torch import Tensor

from custom_inference.core.isolation import isolated, seed_of
from custom_inference.svi.guides.of_globals import LearnedGuide
from custom_inference.svi.guides.protocol import DerivedBound
from custom_inference.svi.marginal import GlobalsBound
from ppl_models import Data, Model
from ppl_models.core.priors import is_flat

#: Draws that the mean is taken over, and fewer, but no fewer than the second, where these would be more numbers.
_DRAWS, _FEWEST, _NUMBERS = 200, 10, 4_000_000
#: Objectives that are E_q[log p - log q].
_ELBOS = (Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO, DerivedBound)


def prior_term(
    program: Model, guide: LearnedGuide, data: Data, loss: ELBO, seed: int, points: dict[str, Tensor] | None
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
        if guide.is_own:
            return None
        size = sum(math.prod(program.shapes[site]) for site in program.unknown_sites)
        number = max(_FEWEST, min(_DRAWS, _NUMBERS // max(1, size)))
        values, log_q = dict[str, Tensor](), torch.zeros(number, dtype=torch.float64, device=data.x.device)
        for site in program.unknown_sites:
            values[site], own = guide.of_globals.draw(site, number)
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
