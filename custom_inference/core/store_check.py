"""Checks of saved fits: every part is checked against the model before it is used."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from custom_inference.compiled.programs import engines_of_program
from custom_inference.core.ended import Ended
from custom_inference.core.engine import Objective
from custom_inference.core.latent_values import is_own_of_rows
from custom_inference.core.local_inference import Local, LocalSolver
from custom_inference.core.posteriors import POSTERIORS
from custom_inference.core.posteriors.protocol import DOMAINS
from custom_inference.core.registry import engine_for, objective_named
from custom_inference.core.stages import Stage, Stages
from custom_inference.core.store_method import method_from_json
from custom_inference.core.store_model import model_from_json, tuples
from custom_inference.core.store_priors import refuse, show
from ppl_models import Data, FileFormatError, GraphData, Model
from ppl_models.core.sites import of_element
from ppl_models.data import sparse as _sparse
from ppl_models.data.answers import ANSWERS

_Tensors = Mapping[str, Tensor]
#: Rounding may take a probability this far out of its bounds, and a sum of such from 1.
_SLACK = 1e-3
_FLOATS = {torch.float32, torch.float64}


def rebuilt(meta: Any, tensors: _Tensors, given: Model | type[Model] | None = None) -> dict[str, Any]:
    """The arguments of a fit, from the header and the tensors of a file.

    given: the class or an instance of a model that is not of the suite.

    Raises FileFormatError for parts that are missing or do not belong together; other errors of the suite, KeyError,
    ValueError or RuntimeError for what the model and its data refuse.
    """
    refuse(not isinstance(meta, dict), f"a header that is a {type(meta).__name__}")
    early, meta = "prior_term" not in meta, {**_LATER, **meta}
    for key, kind in _KINDS.items():
        refuse(not isinstance(meta[key], kind) or isinstance(meta[key], bool), f"{key} = {show(meta[key])}")
    meta |= {key: _RENAMED[meta[key]] for key in ("solver", "bound_name") if meta[key] in _RENAMED}
    params = _group(tensors, "params/")
    most = max(1, sum(value.numel() for value in tensors.values()))
    sizes = {size for value in tensors.values() for size in value.shape}
    sizes |= {len(tensors["data/crow"]) - 1} if "data/crow" in tensors else set()
    model = model_from_json(meta, params, sizes, most, given)
    data = _data(model, meta, tensors)
    _check_params(model, params, len(data))
    _check_draws(model, tensors, len(data))
    elbo = tensors["elbo"]
    refuse(elbo.ndim != 1 or not elbo.is_floating_point(), f"an objective of shape {tuple(elbo.shape)}")
    return {
        "model": model,
        "params": params,
        "elbo": elbo,
        "data": data,
        "local": _local(model, meta["local"], tensors, len(data)),
        "solver": _solver(model, meta),
        "global_posterior": {
            site: _posterior(kind, _group(tensors, f"global/{site}/"), _shape(model, site))
            for site, kind in meta["global"].items()
        },
        "draws": _group(tensors, "draws/") or None,
        "sample_stats": _group(tensors, "stats/"),
        "weights": _weights(tensors.get("weights"), len(data)),
        **{key: meta[key] for key in ("bound_name", "status", "seed", "details")},
        "method": method_from_json(meta["method_settings"]) or meta["method"],
        "method_name": meta["method"],
        "ended": _ended(meta),
        "stages": _stages(meta["stages"]),
        "objective": _objective(model, meta),
        "prior_term": _prior_term(model, meta, params) if early else meta["prior_term"],
    }


_KINDS: dict[str, Any] = {
    "model": str, "settings": dict, "sites": dict | None, "priors": dict, "coords": dict, "graph": dict | None,
    "local": str | None, "global": dict, "solver": str | None, "solver_settings": dict, "bound_name": str,
    "objective": str | None, "prior_term": float | int | None, "status": str, "method": str, "seed": int,
    "details": dict, "ended": str | None, "method_settings": dict | None, "stages": list, "version": str | None,
}  # fmt: skip
#: What files of earlier versions call otherwise: engines, and the bounds that have their names.
_RENAMED = {"evidence": "exact"}
#: What files of earlier versions do not have.
_LATER: dict[str, Any] = {
    "objective": None, "prior_term": None, "graph": None, "sites": None, "global": {}, "solver_settings": {},
    "ended": None, "method_settings": None, "stages": [], "version": None,
}  # fmt: skip


def _ended(meta: dict[str, Any]) -> Ended:
    """Return how the fit ended; files of earlier versions say only in words whether it was interrupted."""
    if meta["ended"] is None:
        return Ended.INTERRUPTED if "interrupted" in meta["status"] else Ended.UNKNOWN
    refuse(meta["ended"] not in list(Ended), f"ended = {show(meta['ended'])}, expected {', '.join(Ended)}")
    return Ended(meta["ended"])


def _stages(found: list[Any]) -> Stages:
    for one in found:
        wrong = not isinstance(one, dict) or one.keys() != {"name", "seconds", "objective"}
        refuse(wrong or not isinstance(one["name"], str), f"a stage {show(one)}")
        refuse(not isinstance(one["seconds"], float), f"a stage of {show(one['seconds'])} seconds")
        refuse(not isinstance(one["objective"], float | None), f"a stage with the objective {show(one['objective'])}")
    return Stages(Stage(**one) for one in found)


def _objective(model: Model, meta: dict[str, Any]) -> str:
    """Return the kind of number that the objective is; files of earlier versions say it by the bound's name alone."""
    found = meta["objective"] or objective_named(model, meta["bound_name"])
    refuse(found not in get_args(Objective), f"objective = {show(found)}, expected {', '.join(get_args(Objective))}")
    return found


def _prior_term(model: Model, meta: dict[str, Any], params: dict[str, Tensor]) -> float | None:
    """Compute the prior term that files of an earlier version lack, for fits by closed-form steps: the engine's."""
    if meta["solver"] is None or meta["global"]:
        return None
    engine = engine_for(model, meta["solver"])
    if engine.state is not None or engine.name != meta["bound_name"]:
        return None
    return engine.prior_term_at(model, {site: params[site] for site in model.global_sites})


def _weights(found: Tensor | None, rows: int) -> Tensor | None:
    if found is not None:
        wrong = found.shape != (rows,) or not found.is_floating_point() or not bool((found >= 0).all())
        refuse(wrong or not bool(torch.isfinite(found).all()), f"weights of {rows} rows, {tuple(found.shape)}")
    return found


def _group(tensors: _Tensors, prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _shape(model: Model, site: str) -> tuple[int, ...]:
    refuse(site not in model.shapes, f"a posterior of the site {show(site)}; the model has {', '.join(model.shapes)}")
    return model.shapes[site]


def _check_params(model: Model, params: dict[str, Tensor], rows: int) -> None:
    """Names, shapes, kinds of numbers, and that they lie where the priors have their mass."""
    unknown = [site for site in params if site not in model.dims or site == model.observed_site]
    refuse(bool(unknown), f"parameters of the site {show(unknown[:1])}; the model has {', '.join(model.dims)}")
    model.check_params(params)
    for site, value in params.items():
        if site in model.shapes:
            refuse(not value.is_floating_point(), f"'{site}' of {value.dtype}")
            refuse(not _inside(model, site, value), f"'{site}' has values that no prior allows")
        elif value.is_floating_point():
            own = model.shape_of(site) if site in model.part_sites else model.local_shape
            refuse(value.shape != (rows, *own), f"'{site}' of shape {tuple(value.shape)}")
            refuse(not bool(torch.isfinite(value).all()), f"'{site}' has values that are not finite")
        else:
            blocks, size = model.local_shape[0], model.sizes.get(model.sites[site].axes[0], rows)
            refuse(value.shape != (size,) or bool(((value < 0) | (value >= blocks)).any()), f"'{site}' of no blocks")
    refuse(not model.rows_are_independent and model.local_site not in params, f"no '{model.local_site}' of the nodes")


def _inside(model: Model, site: str, value: Tensor) -> bool:
    """Whether values are finite and, but for rounding, in the support of the site's prior."""
    finite = bool(torch.isfinite(value).all())
    return finite and is_within(getattr(model.priors[site], "support", None), value)


def is_within(support: Constraint | None, value: Tensor) -> bool:
    """Whether values are, but for rounding, on the simplex, or between the bounds of a support."""
    if support is constraints.simplex:
        return bool((value >= -_SLACK).all() and ((value.sum(-1) - 1).abs() <= _SLACK).all())
    support = of_element(support)
    lower, upper = (getattr(support, f"{end}_bound", sign * math.inf) for end, sign in (("lower", -1), ("upper", 1)))
    return bool((value >= torch.as_tensor(lower) - _SLACK).all() and (value <= torch.as_tensor(upper) + _SLACK).all())


def _check_draws(model: Model, tensors: _Tensors, rows: int) -> None:
    """(chain, draw, ...) of the model's sites."""
    rows = model.sizes.get(model.sites[model.local_site].axes[0], rows)
    local = {model.local_site: [(rows, *model.local_shape), (rows,)]}
    others = {"indicator", *model.sites_of("latent")}
    for site, value in _group(tensors, "draws/").items():
        shapes = [model.shapes[site]] if site in model.shapes else local.get(site)
        refuse(shapes is None and site not in others, f"draws of the unknown site {show(site)}")
        shape = tuple(value.shape)
        refuse(shapes is not None and shape[2:] not in shapes, f"draws of '{site}' of shape {shape}")
        refuse(value.ndim < 2 or bool(torch.isnan(value).any()), f"draws of '{site}' that are not numbers")


def _data(model: Model, meta: dict[str, Any], tensors: _Tensors) -> Data:
    """The data, as the model's own door lets them in."""
    x, graph = _x(tensors), meta["graph"]
    dims = model.sites[model.observed_site].dims
    refuse(x.ndim != 1 + len(dims) or not x.is_floating_point(), f"data of shape {tuple(x.shape)} and {x.dtype}")
    sizes = {"row": x.shape[0], **dict(zip(dims, x.shape[1:], strict=True)), **model.sizes}
    sizes |= {ANSWERS: x.shape[1]} if model.data_kind == "categories" and x.ndim == 2 else {}
    if x.ndim == 2:
        axis = model.feature_axis  # of sequences the words, which are no columns of x
        sizes = {"feature": x.shape[1] if axis in dims else model.sizes[axis], **sizes}
    sizes |= model.named_sizes
    coords = {axis: [tuples(one) for one in labels] for axis, labels in meta["coords"].items() if axis in sizes}
    refuse(not all(isinstance(one, tuple) and one for one in coords.get(ANSWERS, [])), "answers that are no labels")
    for axis, labels in coords.items():
        refuse(len(labels) != sizes[axis], f"{len(labels)} labels of the axis '{axis}' of {sizes[axis]}")
    recipe = meta.get("recipe", {})  # which files of earlier versions lack
    refuse(type(recipe) is not dict or not all(type(one) is dict for one in recipe.values()), "no recipe")
    refuse((graph is not None) != model.is_graph, "a graph without its settings, or settings of a graph without one")
    if graph is None:
        mask = tensors.get("data/mask")
        refuse(mask is not None and mask.dtype != torch.bool, "a mask that is not of yes and no")
        others: dict[str, Any] = _group(tensors, "data/others/")
        for name in {key.partition("/")[0] for key in others if "/" in key}:
            others = {key: value for key, value in others.items() if not key.startswith(f"{name}/")}
            others[name] = _x(tensors, f"data/others/{name}")
        refuse(not set(others) <= set(model.other_sites), f"data of the sites {show(list(others))}")
        found = model.prepare(Data(x=x, mask=mask, coords=coords), dtype=x.dtype, **others)
        return replace(
            found, coords={**coords, **found.coords}, recipe=recipe
        )  # of what stands beside x, as times do, too
    flags = {name: graph.get(name) for name in ("directed", "self_loops")}
    refuse(any(not isinstance(flag, bool) for flag in flags.values()), f"settings of a graph {show(graph)}")
    refuse(not _sparse.is_sparse(x) or x.shape[0] != x.shape[1], "a graph that is no square sparse matrix")
    hidden = tensors.get("data/hidden")
    if hidden is not None:
        _check_hidden(hidden, x, **flags)
    return replace(model.prepare(GraphData(x=x, hidden=hidden, coords=coords, **flags), dtype=x.dtype), recipe=recipe)


def _x(tensors: _Tensors, group: str = "data") -> Tensor:
    if f"{group}/x" in tensors:
        return tensors[f"{group}/x"]
    crow, column, values, size = (tensors[f"{group}/{part}"] for part in ("crow", "column", "values", "size"))
    refuse(size.shape != (2,) or size.is_floating_point(), f"a size of shape {tuple(size.shape)}")
    return _sparse.tensor(crow, column, values, size=(int(size[0]), int(size[1])), check=True)


def _check_hidden(hidden: Tensor, x: Tensor, *, directed: bool, self_loops: bool) -> None:
    """Hidden dyads in their order, none of them with an edge."""
    size = x.shape[0]
    fits = hidden.ndim == 2 and len(hidden) == 2 and hidden.dtype == torch.int64
    refuse(not fits or bool(((hidden < 0) | (hidden >= size)).any()), "hidden dyads of other nodes")
    low, high = hidden
    key = low * size + high
    ordered = bool((key.diff() > 0).all()) and (directed or bool((low <= high).all()))
    refuse(not ordered or (not self_loops and bool((low == high).any())), "hidden dyads out of order")
    edges = bool(_sparse.entries(x, low, high).any() or (not directed and _sparse.entries(x, high, low).any()))
    refuse(edges, "an edge at a hidden dyad")


def _local(model: Model, kind: str | None, tensors: _Tensors, rows: int) -> Local | None:
    if kind is None:
        return None
    parts = _group(tensors, "local/")
    bound = parts.pop("bound")
    shape = tuple(bound.shape)
    refuse(shape not in ((rows,), (1,)) or not bound.is_floating_point(), f"bounds of shape {shape}")
    shape = (rows, *model.local_shape)
    if is_own_of_rows(model):  # all latents, side by side
        shape = (rows, sum(math.prod(model.mean_shape_of(name)) for name in model.row_latents))
    return Local(_posterior(kind, parts, shape), bound)


def _posterior(kind: str, parts: dict[str, Tensor], shape: tuple[int, ...]) -> Any:
    """A posterior of this kind, whose mean has this shape."""
    if not isinstance(kind, str) or kind not in POSTERIORS:
        raise FileFormatError(f"a posterior of the unknown kind {show(kind)}; known: {', '.join(POSTERIORS)}")
    layout = POSTERIORS[kind].layout()
    refuse(set(parts) != set(layout), f"a {kind} of {sorted(parts)}, expected {sorted(layout)}")
    shapes = {name: tuple(value.shape) for name, value in parts.items()}
    choices = itertools.product(*(layout[name].split("|") for name in parts))
    fits = any(_fits(dict(zip(parts, choice, strict=True)), shapes, shape) for choice in choices)
    refuse(not fits, f"a {kind} of the shapes {shapes} for means of shape {shape}")
    if "num_blocks" in parts:  # it says how much memory the means take
        refuse(int(parts["num_blocks"]) != shape[-1], f"{int(parts['num_blocks'])} blocks, expected {shape[-1]}")
    for name, domain in POSTERIORS[kind].domain().items():
        refuse(not _within(parts[name], domain), f"a {kind} whose {name} is not {domain}")
    floating = {value.dtype for value in parts.values() if value.is_floating_point()}
    refuse(len(floating) > 1 or not floating <= _FLOATS, f"a {kind} of numbers of the types {floating}")
    made = POSTERIORS[kind](**parts)
    mean = made.mean
    refuse(tuple(mean.shape) != shape, f"a {kind} whose means have shape {tuple(mean.shape)}, expected {shape}")
    refuse(not bool(torch.isfinite(mean).all()), f"a {kind} whose means are not finite")
    return made


def _within(value: Tensor, domain: str) -> bool:
    """Whether all of it is finite and in the domain; logarithms of weights may be infinite. Of places the fourth power
    is finite too, as densities there are; precisions of components that are shut off are larger."""
    whole = domain.endswith("integer")
    if domain != "boolean" and (value.is_floating_point() == whole or value.dtype == torch.bool):
        return False
    if domain not in ("boolean", "log_weights"):
        most = torch.finfo(value.dtype).max ** 0.25 if domain == "real" else math.inf
        if not bool((value.abs() < most).all()):
            return False
    return bool(DOMAINS[domain].check(value).all())


def _fits(layout: dict[str, str], shapes: dict[str, tuple[int, ...]], mean: tuple[int, ...]) -> bool:
    """Whether the shapes are those of a layout (see :class:`LocalPosterior`)."""
    sizes = {"n": mean[0], "k": mean[-1], "j": mean[-1] - 1} if mean else {}
    for name, letters in layout.items():
        before, star, after = letters.partition("*")
        expected = [*before, *(mean if star else ()), *after]
        if len(expected) != len(shapes[name]):
            return False
        for axis, size in zip(expected, shapes[name], strict=True):
            if (sizes.setdefault(axis, size) if isinstance(axis, str) else axis) != size:
                return False
    return True


def _solver(model: Model, meta: dict[str, Any]) -> LocalSolver | None:
    if meta["solver"] is None:
        return None
    settings = {key: tuples(value) for key, value in meta["solver_settings"].items()}
    compiled = engines_of_program(model).get(meta["solver"])
    try:
        return LocalSolver(engine=engine_for(model, meta["solver"], **settings) if compiled is None else compiled())
    except TypeError as error:
        raise FileFormatError(f"settings of the bound {show(meta['solver'])}: {error}") from None
