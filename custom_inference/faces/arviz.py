"""Fits as ArviZ knows them: InferenceData for ArviZ 0.x, a DataTree for ArviZ 1.x, with named dims and coords."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from importlib import metadata
from itertools import count
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from custom_inference.core.draws import PosteriorDraws, chains_and_draws
from custom_inference.core.evaluate import score
from custom_inference.core.predictive import observed_log_prob
from custom_inference.core.result import Result
from ppl_models import GraphData, MethodError

Array = NDArray[Any]
#: Axis -> the labels along it.
Labels = dict[str, list[Any]]

#: Rows are scored at every draw of the globals where locals are continuous if that takes at most so many products.
_SCORES = 4e8
#: Sparse data of up to this many entries are made dense for the group ``observed_data``.
_DENSE_UP_TO = 20_000_000
#: The dyads of a graph are scored at every draw of its nodes' latents up to so many pairs of nodes and draws.
_DYADS = 2_000_000


def to_arviz(fit: Result, *, num_draws: int = 500, locals_: bool = True, max_rows: int = 200) -> Any:
    """ArviZ InferenceData (ArviZ 0.x) or DataTree (1.x) of a fit.

    num_draws: draws to make of a point estimate (one chain); ignored where the fit has draws of its own.
    locals_: whether to draw the local latents of the first ``max_rows`` rows. Where the fit has draws of the
        globals there is one draw of the locals for each, given it, and none where that is too expensive.

    Groups
    ------
    posterior: globals (chain, draw, ...) and locals (chain, draw, row, component). A point estimate is repeated,
        and says so: attribute ``globals`` = "point estimate". Globals with an approximate posterior
        (``Fit.global_posterior``) are drawn from it, or their mean is repeated where draws would be too large.
    sample_stats: the sampler's own, if it has any.
    log_likelihood: ``x`` (chain, draw, row), log p(x_n | globals) with the local latents summed out; attribute
        ``bound`` names what stands in for it where the sum is not feasible. Left out, and said in the posterior's
        attributes, where it would have to be found anew for too many draws and rows. Of graphs, which are one
        observation, (chain, draw, dyad): log p(x_ij | globals, locals) of the observed dyads at each draw of both;
        attribute ``given`` names the locals.
    observed_data: ``x`` (row, feature), NaN where missing; left out where x is sparse and too large to be made dense.
    constant_data: ``mask``, True where observed.
    """
    if num_draws < 1 or max_rows < 1:
        raise MethodError(f"num_draws = {num_draws}, max_rows = {max_rows}; expected at least 1 of each")
    # Labels that ArviZ can select by and netCDF can hold: of one type, and no two alike.
    labels = {axis: _distinct(values) for axis, values in fit.coords.items()}
    groups = {"posterior": _posterior(fit, num_draws, max_rows if locals_ else 0, labels)}
    if fit.sample_stats:
        groups["sample_stats"] = _dataset(fit.sample_stats, {}, {})
    if isinstance(fit.data, GraphData):
        if _dyads_are_cheap(fit, groups["posterior"]):
            groups["log_likelihood"] = _dyad_scores(fit, fit.data, groups["posterior"])
        else:
            groups["posterior"].attrs["log_likelihood"] = "left out: too many dyads for every draw"
    elif fit.draws is None or _scores_are_cheap(fit):
        groups["log_likelihood"] = _log_likelihood(fit, num_draws, labels)
    else:
        groups["posterior"].attrs["log_likelihood"] = "left out: too expensive for every draw of the globals"
    observed, mask = fit.model.observed_site, fit.data.mask
    axes = fit.model.dims[observed]
    if not fit.data.is_sparse or fit.data.x.numel() <= _DENSE_UP_TO:
        dense = fit.data.dense()
        x, mask = dense.x, dense.mask  # of a graph the mask is made of its hidden dyads
        x = x if mask is None else x.masked_fill(~mask, torch.nan)
        groups["observed_data"] = _dataset({observed: x}, {observed: axes}, labels, leading=())
    if mask is not None:
        groups["constant_data"] = _dataset({"mask": mask}, {"mask": axes}, labels, leading=())
    named = {name: getattr(fit, name) for name in ("method", "status", "bound_name", "seed")}
    attributes = {"model": type(fit.model).__name__, **named, "inference_library": "ppl-models"}
    groups["posterior"].attrs |= attributes
    return container(groups, attributes)


def _takes_inference_data() -> bool:
    """ArviZ 1.0 replaced InferenceData by DataTree; the name lingers on there, so the version decides."""
    return int(metadata.version("arviz").split(".")[0]) < 1


def library() -> Any:
    """ArviZ itself; 0.23 announces 1.0 on import, which is not the caller's concern."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    return arviz


def container(groups: dict[str, xr.Dataset], attributes: dict[str, Any]) -> Any:
    """InferenceData for ArviZ 0.x; a DataTree, which needs nothing of ArviZ, for 1.x."""
    if not _takes_inference_data():
        tree = xr.DataTree.from_dict(groups)
        tree.attrs.update(attributes)
        return tree
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # groups that go with others may stand alone
        return library().InferenceData(attrs=attributes, **groups)


def _posterior(fit: Result, num_draws: int, num_rows: int, labels: Labels) -> xr.Dataset:
    site, source = fit.model.local_site, _draws_of(fit, num_draws, num_rows)
    if fit.draws is None:
        values: dict[str, Any] = {s: _global_draws(source, s) for s in fit.globals}
        kind = "approximate posterior" if fit.global_posterior else "point estimate"
        if num_rows:
            values[site] = torch.stack(list(source.locals_apart()))[None]
    else:
        values, kind = {s: v for s, v in fit.draws.items() if s != site}, "draws"
        if site in fit.draws:
            values |= {site: fit.draws[site][:, :, :num_rows]} if num_rows else {}
        elif num_rows and source.infers_locals:
            drawn = torch.stack([local for _, local in source])
            values[site] = drawn.reshape(*chains_and_draws(fit), *drawn.shape[1:])
    dataset = _dataset(values, fit.model.dims, labels)
    dataset.attrs["globals"] = kind
    return dataset


def _draws_of(fit: Result, num_draws: int, num_rows: int = 0) -> PosteriorDraws:
    """The draws of the fit, all of them, or so many of its posterior; locals of these rows alone, to save memory."""
    number = num_draws if fit.draws is None else math.prod(chains_and_draws(fit))
    return PosteriorDraws(fit, number, fit.seed, num_rows)


def _global_draws(source: PosteriorDraws, site: str) -> Tensor:
    """Draws of a posterior where the fit has one and they are few enough; else its mean, or the point, repeated."""
    value = source.fit.globals[site]
    if site not in source.fit.global_posterior or len(source) * value.numel() > _DENSE_UP_TO:
        return value.expand(1, len(source), *value.shape)  # a view that takes no memory
    return torch.stack(list(source.of_site(site)))[None]


def _scores_are_cheap(fit: Result) -> bool:
    """Whether log p(x_n | globals) may be computed for every draw; with continuous locals each costs a fit of these."""
    if not fit.model.has_continuous_locals:
        return True
    chains, length = chains_and_draws(fit)
    entries = fit.data.x.values().numel() if fit.data.is_sparse else fit.data.x.numel()
    return chains * length * entries * fit.model.local_shape[0] <= _SCORES


def _log_likelihood(fit: Result, num_draws: int, labels: Labels) -> xr.Dataset:
    site = fit.model.observed_site
    if fit.draws is None:
        row, bound = score(fit)
        values = row.expand(1, num_draws, *row.shape)
    else:
        scored = [score(fit, params) for params in _draws_of(fit, num_draws).globals_alone()]
        values, bound = torch.stack([row for row, _ in scored]).reshape(*chains_and_draws(fit), -1), scored[0][1]
    dataset = _dataset({site: values}, {site: (fit.model.row_axis,)}, labels)
    dataset.attrs["bound"] = bound
    return dataset


def _dyads_are_cheap(fit: Result, posterior: xr.Dataset) -> bool:
    site = fit.model.local_site
    if site not in posterior or posterior.sizes["node"] < len(fit.data):
        return False
    return posterior.sizes["chain"] * posterior.sizes["draw"] * len(fit.data) ** 2 <= _DYADS


def _dyad_scores(fit: Result, graph: GraphData, posterior: xr.Dataset) -> xr.Dataset:
    """log p(x_ij | globals, locals) of every observed dyad at every draw."""
    model, site = fit.model, fit.model.observed_site
    shape = posterior.sizes["chain"], posterior.sizes["draw"]
    draws = {
        name: torch.tensor(posterior[name].values).to(graph.x.device).flatten(0, 1)
        for name in (*model.global_sites, model.local_site)
    }
    observed, names = observed_dyads(model, graph)
    found = [
        observed_log_prob(model, {name: value[i] for name, value in draws.items()}, graph)[observed]
        for i in range(math.prod(shape))
    ]
    values = torch.stack(found).reshape(*shape, -1)
    dataset = _dataset({site: values}, {site: ("dyad",)}, {"dyad": _distinct(names)})
    dataset.attrs["given"] = model.local_site
    return dataset


def observed_dyads(model: Any, graph: GraphData) -> tuple[Tensor, list[str]]:
    """Which of the model's dyads were observed, (E,) bool, and the names of these, such as "a -> b"."""
    i, j = model.dyads(torch.arange(model.num_dyads(len(graph)), device=graph.x.device), len(graph))
    observed, arrow = graph.is_observed(i, j), "->" if graph.directed else "--"
    ends = zip(i[observed].tolist(), j[observed].tolist(), strict=True)
    return observed, [f"{graph.names[a]} {arrow} {graph.names[b]}" for a, b in ends]


def _dataset(
    values: dict[str, Any], dims: dict[str, tuple[str, ...]], labels: Labels, leading: Sequence[str] = ("chain", "draw")
) -> xr.Dataset:
    """Variables with their axes named; labels are cut to the length of the axis."""
    variables, coords = {}, {}
    for name, value in values.items():
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        inner = dims.get(name) or tuple(f"{name}_dim_{i}" for i in range(array.ndim - len(leading)))
        axes = (*leading, *inner)
        variables[name] = (axes, array)
        for axis, size in zip(axes, array.shape, strict=True):
            coords[axis] = labels[axis][:size] if axis in labels else np.arange(size)
    return xr.Dataset(variables, coords=coords)


def _distinct(values: Sequence[Any]) -> list[Any]:
    if not (all(type(v) is int for v in values) or all(type(v) is float for v in values)):
        values = [str(v) for v in values]
    if len(set(values)) == len(values):
        return list(values)
    taken: dict[str, None] = {}  # a set that keeps its order
    for value in map(str, values):
        numbered = (f"{value} ({i})" for i in count(2))
        taken[value if value not in taken else next(name for name in numbered if name not in taken)] = None
    return list(taken)
