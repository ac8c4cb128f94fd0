"""The part of an objective of SVI that is of the globals: E_q[log p - log q] of the guide's distribution of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from torch import Tensor

from custom_inference.core.isolation import isolated, seed_of
from custom_inference.svi.guides import protocol
from custom_inference.svi.guides.own import OwnGuide
from ppl_models import Data, Model

#: Draws that the mean is taken over, and fewer, but no fewer than the second, where these would be more numbers.
_DRAWS, _FEWEST, _NUMBERS = 200, 10, 4_000_000
#: Objectives that are E_q[log p - log q].
_ELBOS = (Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO, protocol.DerivedBound)


def prior_term(
    program: Model, guide: Any, data: Data, loss: Any, seed: int, points: dict[str, Tensor] | None
) -> float | None:
    """What the globals' own terms add to the objective: at ``points``, if given, their log prior density, with the
    constants that flat priors have in the program; else minus the divergence of the guide's distribution of them from
    the priors, a mean over draws. None of guides of the caller's own that draw, and of other losses than ELBOs.
    """
    kind = loss if isinstance(loss, type) else type(loss)
    if loss is not None and not issubclass(kind, _ELBOS):
        return None
    with torch.no_grad(), isolated(seed_of(seed, "terms of the globals")):
        if points is not None:
            return _log_density(program, {site: points[site] for site in program.global_sites})
        if isinstance(guide, OwnGuide):
            return None
        inner = guide.globals_guide if isinstance(guide, protocol.LocalGuide) else guide
        terms = [_log_density(program, values) - log_q for values, log_q in _drawn(program, inner, data)]
    return sum(terms) / len(terms)


def _log_density(program: Model, values: dict[str, Tensor]) -> float:
    found = [
        program.prior(site, like=values[site], values=values).log_prob(values[site]) for site in program.unknown_sites
    ]
    return float(sum(one.double().sum() for one in found))


def _drawn(program: Model, guide: Any, data: Data) -> Iterator[tuple[dict[str, Tensor], float]]:
    """Draws of the globals and their log density under a guide of the suite; automatic ones draw unconstrained values,
    and have the volume of the transformation as the density of the site itself."""
    known = {site: value.to(data.x) for site, value in program.known.items()}
    own = {name for site in program.unknown_sites for name in (site, f"{site}_unconstrained")}
    size = sum(math.prod(program.shapes[site]) for site in program.unknown_sites)
    for _ in range(max(_FEWEST, min(_DRAWS, _NUMBERS // max(1, size)))):
        trace: Any = poutine.trace(guide).get_trace(data.x, mask=data.mask)
        trace.compute_log_prob()
        values = known | {site: trace.nodes[site]["value"] for site in program.unknown_sites}
        yield values, sum(float(trace.nodes[name]["log_prob"].double().sum()) for name in own & set(trace.nodes))
