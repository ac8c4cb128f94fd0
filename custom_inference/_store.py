"""Saving fits: one safetensors file, tensors in its body and JSON in its header. Nothing in it is executed."""

from __future__ import annotations

import inspect
import json
import os
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyro.distributions as dist
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from custom_inference.engines import Local, LocalSolver, steps_for
from custom_inference.posterior import (
    POSTERIORS,
    CodePosterior,
    DirichletMixture,
    JointDirichletMixture,
    LabellingPosterior,
)
from ppl_models import MODELS, Data, FileFormatError, GraphData, Model, ModelError, _sparse
from ppl_models.distributions import Flat

if TYPE_CHECKING:
    from custom_inference.fit import Fit

FORMAT = "ppl-models fit 1"
#: Draws of labelings are kept up to so many entries.
_LABELS = 2**24


def _prior_to_json(prior: Any) -> dict[str, Any]:
    if isinstance(prior, Flat):
        return {"flat": _prior_to_json(prior.proposal)}
    accepted = inspect.signature(type(prior).__init__).parameters
    names = [n for n in prior.arg_constraints if n in accepted]
    if {"probs", "logits"} <= set(names):  # either will do, not both
        names.remove("probs" if "logits" in vars(prior) else "logits")
    arguments = {n: _numbers_to_json(torch.as_tensor(getattr(prior, n))) for n in names}
    return {"distribution": type(prior).__name__, "arguments": arguments}


def _numbers_to_json(value: Tensor) -> Any:
    """Nested lists; of equal numbers (a symmetric Dirichlet over a vocabulary) the number and the shape."""
    first = value.flatten()[:1]
    if value.numel() > 1 and bool((value == first).all()):
        return {"all": first.item(), "shape": list(value.shape)}
    return value.tolist()


def _numbers_from_json(entry: Any, dtype: torch.dtype) -> Tensor:
    if isinstance(entry, dict):
        return torch.full(entry["shape"], entry["all"], dtype=dtype)
    return torch.tensor(entry, dtype=dtype)


def _prior_from_json(entry: dict[str, Any], dtype: torch.dtype) -> Any:
    if "flat" in entry:
        return Flat(_prior_from_json(entry["flat"], dtype))
    kind = getattr(dist, entry["distribution"], None)
    if not (isinstance(kind, type) and issubclass(kind, torch.distributions.Distribution)):
        raise FileFormatError(f"prior of unknown distribution {entry['distribution']!r}")
    arguments: dict[str, Any] = {name: _numbers_from_json(value, dtype) for name, value in entry["arguments"].items()}
    return kind(**arguments)


def _tensors(fit: Fit) -> dict[str, Tensor]:
    tensors = {f"params/{k}": v for k, v in fit.params.items()}
    tensors |= {f"draws/{k}": v for k, v in (fit.draws or {}).items()}
    tensors |= {f"stats/{k}": v for k, v in fit.sample_stats.items()}
    for site, posterior in fit.global_posterior.items():
        tensors |= {f"global/{site}/{name}": part for name, part in _parts(posterior).items()}
    tensors |= {"elbo": fit.elbo} | _data_tensors(fit.data.x)
    if fit.data.mask is not None and not isinstance(fit.data, GraphData):
        tensors["data/mask"] = fit.data.mask
    if isinstance(fit.data, GraphData) and fit.data.hidden is not None:
        tensors["data/hidden"] = fit.data.hidden
    if _stores_local(fit):
        assert fit.local is not None
        posterior = fit.local.posterior
        tensors |= {f"local/{name}": part for name, part in _parts(posterior).items()}
        tensors["local/bound"] = fit.local.bound
    return {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}


def _parts(posterior: Any) -> dict[str, Tensor]:
    """The tensors that a posterior consists of."""
    return {f.name: getattr(posterior, f.name) for f in fields(posterior)}


def _data_tensors(x: Tensor) -> dict[str, Tensor]:
    """Sparse rows by their parts: the format has no sparse tensors."""
    if not _sparse.is_sparse(x):
        return {"data/x": x}
    size = torch.tensor(x.shape)
    return {"data/crow": x.crow_indices(), "data/column": x.col_indices(), "data/values": x.values(), "data/size": size}


def _data_x(tensors: dict[str, Tensor]) -> Tensor:
    if "data/x" in tensors:
        return tensors["data/x"]
    crow, column, values, size = (tensors[f"data/{part}"] for part in ("crow", "column", "values", "size"))
    return _sparse.tensor(crow, column, values, size=(int(size[0]), int(size[1])))


def _graph_settings(data: Data) -> dict[str, Any] | None:
    if not isinstance(data, GraphData):
        return None
    return {"directed": data.directed, "self_loops": data.self_loops}


def _data(tensors: dict[str, Tensor], coords: dict[str, Any], graph: dict[str, Any] | None) -> Data:
    """graph: the settings of a graph, None for rows."""
    if graph is None:
        return Data(x=_data_x(tensors), mask=tensors.get("data/mask"), coords=coords)
    kind: dict[str, Any] = dict(graph)
    return GraphData(x=_data_x(tensors), hidden=tensors.get("data/hidden"), coords=coords, **kind)


def _stores_local(fit: Fit) -> bool:
    """An exact posterior over all codes is large and cheap to compute again; any other posterior is kept."""
    if fit.local is None:
        return False
    posterior = fit.local.posterior
    if isinstance(posterior, CodePosterior) and posterior.shared:
        classes = len(posterior.codes) <= posterior.codes.shape[1]  # a table of no more entries than the means
        return classes and fit.bound_name != "evidence"
    if isinstance(posterior, LabellingPosterior):
        return posterior.labels.numel() <= _LABELS and fit.bound_name != "evidence"
    if isinstance(posterior, JointDirichletMixture):
        return fit.bound_name != "evidence"
    return not isinstance(posterior, DirichletMixture)


def save(fit: Fit, path: Path) -> Path:
    """Write to a temporary file beside ``path`` and rename: a crash leaves the old file as it was."""
    name = next((n for n, kind in MODELS.items() if type(fit.model) is kind), None)
    if name is None:
        raise ModelError(f"{type(fit.model).__name__} is not one of the suite's models: {', '.join(MODELS)}")
    meta = {
        "model": name,
        "settings": fit.model.settings(),
        "priors": {site: _prior_to_json(prior) for site, prior in fit.model.priors.items()},
        "coords": fit.data.coords,
        "graph": _graph_settings(fit.data),
        "local": type(fit.local.posterior).__name__ if fit.local and _stores_local(fit) else None,
        "global": {site: type(posterior).__name__ for site, posterior in fit.global_posterior.items()},
        "solver": fit.solver.steps.bound_name if fit.solver else None,
        "solver_settings": fit.solver.steps.kept if fit.solver else {},
        **{key: getattr(fit, key) for key in ("bound_name", "status", "method", "seed", "details")},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        save_file(_tensors(fit), temporary, metadata={"format": FORMAT, "fit": json.dumps(meta)})
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)  # mkstemp's files are private; a saved fit is an ordinary file
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return path


def load(path: Path) -> dict[str, Any]:
    """The arguments of :class:`custom_inference.Fit` from a file that :func:`save` wrote."""
    if not path.is_file():
        raise FileFormatError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt") as archive:
            header = archive.metadata() or {}
            tensors = {key: archive.get_tensor(key) for key in archive.keys()}  # noqa: SIM118
        if header.get("format") != FORMAT:
            raise FileFormatError(f"{path}: not a saved fit (format {header.get('format')!r}, expected {FORMAT!r})")
        return _rebuild(json.loads(header["fit"]), tensors)
    except (SafetensorError, json.JSONDecodeError, KeyError, OSError) as error:
        raise FileFormatError(f"{path}: not readable as a saved fit: {error}") from None


def _group(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _rebuild(meta: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    if meta["model"] not in MODELS:
        raise FileFormatError(f"model {meta['model']!r} is not known here; known: {', '.join(MODELS)}")
    params = _group(tensors, "params/")
    dtype = next(value.dtype for value in params.values() if value.is_floating_point())
    priors = {site: _prior_from_json(entry, dtype) for site, entry in meta["priors"].items()}
    model: Model = MODELS[meta["model"]](**meta["settings"], priors=priors)
    posteriors = meta.get("global", {})
    local = None
    if meta["local"] is not None:
        parts = _group(tensors, "local/")
        bound = parts.pop("bound")
        local = Local(POSTERIORS[meta["local"]](**parts), bound)
    settings = {key: _tuple(value) for key, value in meta.get("solver_settings", {}).items()}
    return {
        "model": model,
        "params": params,
        "elbo": tensors["elbo"],
        "data": _data(tensors, meta["coords"], meta.get("graph")),
        "local": local,
        "solver": LocalSolver(steps=steps_for(model, meta["solver"], **settings)) if meta["solver"] else None,
        "global_posterior": {s: POSTERIORS[kind](**_group(tensors, f"global/{s}/")) for s, kind in posteriors.items()},
        "draws": _group(tensors, "draws/") or None,
        "sample_stats": _group(tensors, "stats/"),
        **{key: meta[key] for key in ("bound_name", "status", "method", "seed", "details")},
    }


def _tuple(value: Any) -> Any:
    """What JSON made a list of, as settings have it."""
    return tuple(value) if isinstance(value, list) else value
