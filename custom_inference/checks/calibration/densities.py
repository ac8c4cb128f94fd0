"""What the program says of many draws of its latents at once."""

from __future__ import annotations

from typing import Any

import pyro
import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import constraints

from custom_inference.core.isolation import default_dtype
from ppl_models import Data, Model
from ppl_models.core.priors import support_of

#: Logarithms are compared after rounding: equal values that were added up in another order are ties, not differences.
_DECIMALS = 7
#: Draws are evaluated so many at a time that they hold about this many (draw, entry of x) pairs.
_PAIRS = 2**22


def log_densities(
    model: Model, draws: dict[str, Tensor], data: Data, *, given: dict[str, Tensor] | None = None, by_row: bool = False
) -> dict[str, Tensor]:
    """log p(all observed | all latents) as "log_likelihood" and log p(x, those drawn | those given) as "log_joint".

    draws: site -> (S, ...), each as the program holds it. given: sites with one value for all draws.
    by_row: (S, N), of each row with its locals; otherwise (S,). Both rounded, so that equal values are ties.
    """
    found = site_log_probs(model, draws, model.as_read(data), given or {})
    observed = _observed(model, data)
    likelihood: Any = sum(found[site] for site in observed)
    if by_row:
        joint = likelihood + found[model.local_site]
    else:
        totals = {site: value.reshape(len(value), -1).sum(1) for site, value in found.items()}
        likelihood = sum(totals[site] for site in observed)
        joint = torch.stack([totals[site] for site in (*draws, *observed)]).sum(0)
    both = {"log_likelihood": likelihood, "log_joint": joint}
    return {name: torch.round(value.double(), decimals=_DECIMALS) for name, value in both.items()}


def _observed(model: Model, data: Data) -> list[str]:
    """The observed sites that the data have."""
    return [site for site in model.sites_of("observed") if site == model.observed_site or site in data.others]


def site_log_probs(model: Model, draws: dict[str, Tensor], data: Data, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Site -> (S, ...) log-probabilities of the statements of the program at S draws of its latents."""
    sites = (*model.global_sites, model.local_site, *_observed(model, data))
    draws, given = ({s: _off_the_faces(model, s, v) for s, v in side.items()} for side in (draws, given))

    def at(one: dict[str, Tensor]) -> dict[str, Tensor]:
        program = pyro.condition(model.summed_out, data={**given, **one})
        trace = poutine.trace(program).get_trace(data.x, **data.arguments)
        trace.compute_log_prob()
        nodes: Any = trace.nodes
        return {site: nodes[site]["log_prob"] for site in sites}

    number = len(next(iter(draws.values())))
    chunk = max(1, _PAIRS // max(1, data.x.numel()))
    with torch.no_grad(), pyro.get_param_store().scope(), default_dtype(torch.float64), pyro.validation_enabled(False):
        try:
            return torch.vmap(at, chunk_size=chunk)(draws)
        except RuntimeError:  # a program whose course depends on values: one draw after the other
            each = [at({site: value[i] for site, value in draws.items()}) for i in range(number)]
            return {site: torch.stack([one[site] for one in each]) for site in sites}


def _off_the_faces(model: Model, site: str, value: Tensor) -> Tensor:
    """Draws of a Dirichlet may be 0 to rounding, where its density is no number."""
    if site in model.priors and support_of(model.priors[site]) is constraints.simplex:
        return value.clamp_min(torch.finfo(value.dtype).tiny)
    return value
