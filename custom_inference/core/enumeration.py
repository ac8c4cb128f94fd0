"""Summing out finite local latents of any Pyro program, with the traps refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer import config_enumerate
from torch import Tensor

from custom_inference.core.capacity import memory_limit, require, require_labelings, rows_that_fit
from custom_inference.core.isolation import own_store
from custom_inference.core.states import Params
from ppl_models import Data, MethodError, ModelError
from ppl_models.core.errors import own_errors

ROW_PLATE = "data"


def _sample_sites(trace: Any) -> dict[str, dict[str, Any]]:
    return {
        name: site
        for name, site in trace.nodes.items()
        if site["type"] == "sample" and type(site["fn"]).__name__ != "_Subsample"
    }


def _plates(site: dict[str, Any]) -> list[Any]:
    return [frame for frame in site["cond_indep_stack"] if frame.vectorized]


def plate_nesting(model: Callable[..., Any], params: Mapping[str, Tensor], data: Data) -> int:
    """How many batch dimensions the program's plates take; refuses programs whose enumeration would be wrong.

    A latent that is enumerated inside a plate other than the rows' is treated by Pyro as independent of its
    siblings. Where siblings meet again in one likelihood (a code whose bits are a plate) the evidence comes out
    wrong, and no error is raised. Such a program is refused here.
    """
    return _nesting(_run_once(model, params, data))


def _run_once(model: Callable[..., Any], params: Mapping[str, Tensor], data: Data) -> dict[str, dict[str, Any]]:
    """The program's sites, in one run of it."""
    conditioned = pyro.condition(model, data=dict(params))
    with own_errors(), own_store(), torch.random.fork_rng(devices=[]):
        return _sample_sites(poutine.trace(conditioned).get_trace(data.x, **data.arguments))


def _nesting(sites: dict[str, dict[str, Any]]) -> int:
    depth = 1
    for name, site in sites.items():
        plates = _plates(site)
        depth = max([depth] + [-frame.dim for frame in plates])
        if site["is_observed"]:
            continue
        if not getattr(site["fn"], "has_enumerate_support", False):
            what = f"site '{name}' ({type(site['fn']).__name__})"
            raise MethodError(f"{what} has no finite support: exact enumeration does not apply")
        others = [frame.name for frame in plates if frame.name != ROW_PLATE]
        if others:
            raise ModelError(
                f"site '{name}' would be enumerated inside plate '{others[0]}'; Pyro then treats its members as "
                "independent and returns a wrong evidence where they meet in one likelihood. Use one event vector "
                "(ppl_models.distributions.BernoulliVector) or one site per component"
            )
    return depth


def enumerate_log_joint(model: Any, params: Mapping[str, Tensor], data: Data) -> tuple[Params, Tensor]:
    """Values of the local sites per configuration c, and log p(x_n, c | params), (N, C).

    Works on any program with one row plate called "data" whose unobserved sites have finite support, by Pyro's
    own parallel enumeration; costs C times one evaluation of the program. Latents outside that plate (the blocks of a
    graph's nodes) meet in all of its members, which are then one observation: N = 1.

    Raises CapacityError where the sum is too large.
    """
    sites = _run_once(model, params, data)
    depth = _nesting(sites)
    if getattr(model, "is_graph", False):  # at its peak 2 numbers more for each weight of a dyad
        weights = math.prod(model.shapes[model.component_site][2:])
        require_labelings(model, len(data), instead="a bound, or a sampler", per_dyad=4 + 2 * weights)
    else:
        _require_room([site for name, site in sites.items() if name not in params], data)
    conditioned = config_enumerate(pyro.condition(model, data=dict(params)), default="parallel")
    enumerated = poutine.enum(conditioned, first_available_dim=-1 - depth)
    with own_errors(), own_store():
        trace = poutine.trace(enumerated).get_trace(data.x, **data.arguments)
        trace.compute_log_prob(site_filter=lambda name, site: name not in params)
    total = torch.zeros((), dtype=data.x.dtype, device=data.x.device)
    values: Params = {}
    sites = {name: site for name, site in _sample_sites(trace).items() if name not in params}
    joint = any(not site["is_observed"] and not _plates(site) for site in sites.values())
    for name, site in sites.items():
        term = site["log_prob"]
        inner = [f.dim for f in _plates(site) if joint or f.name != ROW_PLATE]
        if inner:  # observations inside further plates are independent given the codes: add them up
            term = term.sum(inner, keepdim=True)
        total = total + term
        if not site["is_observed"]:
            values[name] = site["value"]
    batch = total.shape[:-1]
    rows = 1 if joint else max(f.size for site in sites.values() for f in _plates(site) if f.name == ROW_PLATE)
    table = total.expand(*batch, rows).reshape(-1, rows).T
    return {name: _per_configuration(value, batch) for name, value in values.items()}, table


def _require_room(sites: list[dict[str, Any]], data: Data) -> None:
    """Two numbers for every configuration and every entry that is observed, or row."""
    supports = [site["fn"].enumerate_support(expand=False) for site in sites if not site["is_observed"]]
    configurations = math.prod(len(support) for support in supports)
    entries = len(data) + sum(site["value"].numel() for site in sites if site["is_observed"])
    needed, allowed = 2.0 * data.x.element_size() * configurations * entries, memory_limit()
    fits = rows_that_fit(len(data), allowed / max(needed, 1.0))
    require(
        f"summing over {configurations} values of the locals of {len(data)} rows", needed, allowed=allowed, fits=fits
    )


def _per_configuration(value: Tensor, batch: torch.Size) -> Tensor:
    """The value of a site in every joint configuration (C, *event): drop the row axis, broadcast the others."""
    missing = len(batch) + 1 - value.dim()
    if missing > 0:  # fewer enumeration dims than others have: pad on the left
        value = value.reshape((1,) * missing + value.shape)
    event_shape = value.shape[len(batch) + 1 :]
    return value.select(len(batch), 0).expand(*batch, *event_shape).reshape(-1, *event_shape)
