"""Datasets with named axes, and the groups of ArviZ that hold data: observed, given, drawn from prior or posterior."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import count
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from custom_inference.core import predictive
from custom_inference.core.draws import PosteriorDraws
from custom_inference.core.isolation import seed_of
from custom_inference.core.result import Result
from ppl_models import ModelError
from ppl_models.data import sparse as _sparse
from ppl_models.data.answers import ANSWERS, labels_in_common
from ppl_models.data.held import to_numpy

Array = NDArray[Any]
#: Axis -> the labels along it.
Labels = dict[str, list[Any]]

#: Axes of ArviZ, of all values that are drawn.
OWN = ("chain", "draw")
#: Sparse data of up to this many entries are made dense.
DENSE_UP_TO = 20_000_000
#: Copies of the data, and draws of the prior, of up to so many entries in all are made; at least so many copies.
_ENTRIES, _FEWEST = 4_000_000, 4


def dataset(
    values: Mapping[str, Any], dims: Mapping[str, tuple[str, ...]], labels: Labels, leading: Sequence[str] = OWN
) -> xr.Dataset:
    """Variables with their axes named; labels are cut to the length of the axis.

    An axis that is called as a site or as ArviZ calls its own, which xarray cannot have, becomes an "_id" ("user_id"
    beside the factors "user", "chain_id" of chains in the program).
    """
    variables, coords = {}, {}
    for name, value in values.items():
        array = to_numpy(value)
        inner, number = dims.get(name), array.ndim - len(leading)
        if not inner or len(inner) != number:  # of pairs of rows the program draws a vector
            inner = tuple(f"{name}_dim_{i}" for i in range(number))
        axes = (*leading, *inner)
        taken = [axis in dims or (place >= len(leading) and axis in OWN) for place, axis in enumerate(axes)]
        called = [f"{axis}_id" if is_taken else axis for axis, is_taken in zip(axes, taken, strict=True)]
        variables[name] = (called, array)
        for axis, known, size in zip(axes, called, array.shape, strict=True):
            coords[known] = labels[axis][:size] if axis in labels else np.arange(size)
    return xr.Dataset(variables, coords=coords)


def attributes_of(fit: Result) -> dict[str, Any]:
    """What all groups, and the posterior by itself, say of a fit."""
    named = {name: getattr(fit, name) for name in ("status", "objective", "bound_name", "seed", "prior_term")}
    own = {name: value for name, value in named.items() if value is not None}
    return {"model": type(fit.model).__name__, **own, "method": fit.method_name, "inference_library": "ppl-models"}


def with_answers(group: xr.Dataset, fit: Result) -> xr.Dataset:
    """A dataset with the coordinate ``answer`` (feature, category), the names of the answers of each question, where
    these differ; "" where a question has fewer."""
    labels, feature = fit.data.coords.get(ANSWERS), fit.model.feature_axis
    size = group.sizes.get("category")
    if labels is None or size is None or group.sizes.get(feature) != len(labels) or labels_in_common(labels, size):
        return group
    table = [[str(one[c]) if c < len(one) else "" for c in range(size)] for one in labels]
    return group.assign_coords(answer=((feature, "category"), np.array(table)))


def distinct(values: Sequence[Any]) -> list[Any]:
    """Labels that ArviZ can select by and netCDF can hold: of one type, and no two alike."""
    if not (all(type(v) is int for v in values) or all(type(v) is float for v in values)):
        values = [str(v) for v in values]
    if len(set(values)) == len(values):
        return list(values)
    taken: dict[str, None] = {}  # a set that keeps its order
    for value in map(str, values):
        numbered = (f"{value} ({i})" for i in count(2))
        taken[value if value not in taken else next(name for name in numbered if name not in taken)] = None
    return list(taken)


def as_whole_numbers(fit: Result, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Values of observed sites, those of sites of whole numbers in a type of these: ArviZ smooths all others where it
    draws them, which shows 0 and 1 as two hills. Where some are missing they stay as they are."""
    known = {site: one.support for site, one in fit.model.sites.items() if one.role == "observed" and site in values}
    whole = [site for site, support in known.items() if support is not None and support.is_discrete]
    finite = [site for site in whole if bool(torch.isfinite(values[site]).all())]
    counted = {site: values[site].round().long() for site in finite}
    return dict(values) | {site: one for site, one in counted.items() if bool((one == values[site]).all())}


def _fits(value: Tensor) -> bool:
    return not _sparse.is_sparse(value) or value.numel() <= DENSE_UP_TO


def data_groups(fit: Result, labels: Labels) -> dict[str, xr.Dataset]:
    """observed_data and constant_data, where there is something to hold."""
    model, data, site = fit.model, fit.data, fit.model.observed_site
    beside, mask = {name: data.others[name] for name in model.sites_of("observed") if name != site}, data.mask
    observed = {name: _sparse.dense(one) for name, one in beside.items() if _fits(one)}
    if not data.is_sparse or data.x.numel() <= DENSE_UP_TO:
        dense = data.dense()
        mask = dense.mask  # of a graph it is made of its hidden dyads
        observed = {site: dense.x if mask is None else dense.x.masked_fill(~mask, torch.nan)} | observed
    own = {one.name: getattr(model, one.name) for one in fields(model)}
    constant = {s: fit.globals[s] for s in model.known if s in model.shapes}
    constant |= model.given(data) | {name: value for name, value in own.items() if torch.is_tensor(value)}
    constant |= {} if mask is None else {"mask": mask}
    dims = {**model.dims, "mask": model.dims[site]}
    dims |= {name: _axes(name, value, fit) for name, value in constant.items() if name not in dims}
    found = {"observed_data": as_whole_numbers(fit, observed), "constant_data": constant}
    return {name: dataset(values, dims, labels, leading=()) for name, values in found.items() if values}


def _axes(name: str, value: Tensor, fit: Result) -> tuple[str, ...]:
    """Name the axes of a value that no site declares: the row axis if it is as long as the data, and its own axes."""
    own = [f"{name}_dim_{i}" for i in range(value.ndim)]
    return (fit.model.row_axis, *own[1:]) if value.ndim and len(value) == len(fit.data) else tuple(own)


def draw_groups(fit: Result, num_copies: int, labels: Labels) -> tuple[dict[str, xr.Dataset], dict[str, str]]:
    """posterior_predictive, prior and prior_predictive of at most so many draws; name -> why one is left out."""
    model, left_out = fit.model, "left out: too large"
    fewest, num_copies = min(_FEWEST, num_copies), min(num_copies, _ENTRIES // fit.data.x.numel())
    if num_copies < fewest:
        return {}, dict.fromkeys(("posterior_predictive", "prior", "prior_predictive"), left_out)
    seeds = [seed_of(fit.seed, "copies of the data", number) for number in range(num_copies)]
    source = PosteriorDraws(fit, num_copies, fit.seed)
    try:
        predictive.require_copies(model, fit.globals, fit.posterior.mode, fit.data)
    except ModelError as error:
        return {}, dict.fromkeys(("posterior_predictive", "prior", "prior_predictive"), f"left out: {error}")
    copies = [
        predictive.run_of(model, len(fit.data), source.at(*pair), seed=seed, like=fit.data)
        for pair, seed in zip(source, seeds, strict=True)
    ]
    groups = {"posterior_predictive": _stack(copies, model.sites_of("observed"), fit, labels)}
    if num_copies * sum(value.numel() for value in fit.globals.values()) > _ENTRIES:
        return groups, dict.fromkeys(("prior", "prior_predictive"), left_out)
    try:
        runs = [predictive.run_of(model, len(fit.data), {}, seed=seed + 1, like=fit.data) for seed in seeds]
    except NotImplementedError as error:  # of a prior without a way to draw from it
        return groups, dict.fromkeys(("prior", "prior_predictive"), f"left out: no draws of a prior ({error})")
    except ModelError as error:  # of a program with factors
        return groups, dict.fromkeys(("prior", "prior_predictive"), f"left out: {error}")
    groups["prior"] = _stack(runs, model.global_sites, fit, labels)
    groups["prior_predictive"] = _stack(runs, model.sites_of("observed"), fit, labels)
    return groups, {}


def _stack(runs: Iterable[dict[str, Tensor]], sites: Sequence[str], fit: Result, labels: Labels) -> xr.Dataset:
    """The values of some sites in all runs, as one chain."""
    values = {s: torch.stack([run[s] for run in runs])[None] for s in sites}
    return dataset(as_whole_numbers(fit, values), fit.model.dims, labels)
