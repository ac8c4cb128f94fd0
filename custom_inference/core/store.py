"""Saving fits: one safetensors file, tensors in its body and JSON in its header. Nothing in it is executed."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from custom_inference import __version__
from custom_inference.core.posteriors import LocalPosterior
from custom_inference.core.registry import engines_of
from custom_inference.core.result import Result
from custom_inference.core.store_check import rebuilt
from custom_inference.core.store_method import method_to_json
from custom_inference.core.store_model import model_to_json, require_class
from custom_inference.core.store_priors import show
from custom_inference.core.tensor_files import digest, write_tensors
from ppl_models import FileFormatError, Model
from ppl_models.data import sparse as _sparse

FORMAT = "ppl-models fit 1"
#: What is kept of a fit as it is.
_SAID = ("bound_name", "objective", "prior_term", "status", "ended", "seed", "details")
#: What the header of a file holds.
_HEADER = {"format", "fit", "digest"}


def save(fit: Result, path: Path) -> Path:
    """Write to a temporary file beside ``path`` and rename: a crash leaves the old file as it was."""
    data: Any = fit.data
    engine = fit.solver.engine if fit.solver else None
    flags = {"directed": data.directed, "self_loops": data.self_loops} if fit.model.is_graph else None
    meta = {
        "version": __version__,
        **model_to_json(fit.model),
        "coords": {axis: [label_to_json(one) for one in labels] for axis, labels in data.coords.items()},
        "recipe": label_to_json(data.recipe),
        "graph": flags,
        "local": type(fit.local.posterior).__name__ if fit.local and _stores_local(fit) else None,
        "global": {site: type(posterior).__name__ for site, posterior in fit.global_posterior.items()},
        "solver": None if engine is None else engine.name,
        "solver_settings": {} if engine is None else engine.saved_settings,
        **{key: getattr(fit, key) for key in _SAID},
        "method": fit.method_name,
        "method_settings": method_to_json(fit.method),
        "stages": [asdict(stage) for stage in fit.stages],
    }
    tensors, text = _tensors(fit), json.dumps(meta)
    write_tensors(path, tensors, {"format": FORMAT, "fit": text, "digest": digest(text, tensors)})
    return path


@functools.singledispatch
def label_to_json(value: Any) -> Any:
    """Labels, and what else was learned of data: numbers, texts and what is made of them as they are, the names of
    functions, which files do not hold, anything else (times, ...) as text."""
    return {"function": getattr(value, "__qualname__", str(value))} if callable(value) else str(value)


label_to_json.register(str | int | float | None, lambda value: value)
label_to_json.register(tuple | list | set, lambda values: [label_to_json(one) for one in values])
label_to_json.register(dict, lambda values: {str(name): label_to_json(one) for name, one in values.items()})


def _tensors(fit: Result) -> dict[str, Tensor]:
    data: Any = fit.data
    params = {site: value for site, value in fit.params.items() if site not in fit.derived}
    groups = {"params": params, "draws": fit.draws or {}, "stats": fit.sample_stats}
    groups |= {f"global/{site}": _parts(posterior) for site, posterior in fit.global_posterior.items()}
    groups |= {"data": _data_tensors(data.x)}
    for name, value in data.others.items():
        groups |= {f"data/others/{name}": _data_tensors(value)} if _sparse.is_sparse(value) else {}
    groups["data/others"] = {name: value for name, value in data.others.items() if not _sparse.is_sparse(value)}
    name, marks = ("hidden", data.hidden) if fit.model.is_graph else ("mask", data.mask)
    groups["data"] |= {} if marks is None else {name: marks}
    if fit.local is not None and _stores_local(fit):
        groups["local"] = {**_parts(fit.local.posterior), "bound": fit.local.bound}
    named = {f"{group}/{name}": value for group, values in groups.items() for name, value in values.items()}
    weights = {} if fit.weights is None else {"weights": fit.weights}
    return {"elbo": fit.elbo, **weights, **named}


def _parts(posterior: LocalPosterior) -> dict[str, Tensor]:
    """The tensors that a posterior consists of."""
    return {name: getattr(posterior, name) for name in posterior.layout()}


def _data_tensors(x: Tensor) -> dict[str, Tensor]:
    """Sparse rows by their parts: the format has no sparse tensors."""
    if not _sparse.is_sparse(x):
        return {"x": x}
    return {"crow": x.crow_indices(), "column": x.col_indices(), "values": x.values(), "size": torch.tensor(x.shape)}


def _stores_local(fit: Result) -> bool:
    """Whether the posterior of the locals is kept: not one that is large, and cheap to compute again."""
    by_engine = fit.bound_name in engines_of(fit.model)
    return fit.local is not None and fit.local.posterior.is_kept(exact=fit.bound_name == "exact", by_engine=by_engine)


def load(path: Path, model: Model | type[Model] | None = None) -> dict[str, Any]:
    """The arguments of :class:`custom_inference.Fit` from a file that :func:`save` wrote.

    model: the class or an instance of a model that is not of the suite.

    Raises FileFormatError, naming the file, for one that is damaged, whose parts do not make a fit, or which is one of
    another model; ModelError where ``model`` is none.
    """
    if model is not None:
        require_class(model)
    path = path / "fit.safetensors" if path.is_dir() else path  # as the shell writes it
    if not path.is_file():
        raise FileFormatError(f"{path}: no such file")
    meta: Any = None
    try:
        with safe_open(path, framework="pt") as archive:
            header = archive.metadata() or {}
            if header.get("format") != FORMAT:
                raise FileFormatError(f"not a saved fit (format {header.get('format')!r}, expected {FORMAT!r})")
            tensors = {key: archive.get_tensor(key) for key in archive.keys()}  # noqa: SIM118
        text = header["fit"]
        # Files of earlier versions carry no digest; a header of anything else has had its names damaged.
        if header.get("digest", "") not in ("", digest(text, tensors)) or not header.keys() <= _HEADER:
            raise FileFormatError("damaged: its contents are not those that were saved")
        meta = json.loads(text)
        return rebuilt(meta, tensors, model)
    except (SafetensorError, LookupError, OSError, ValueError, RecursionError, RuntimeError) as error:
        what = f"nothing under {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
        told = f"{path}: not readable as a saved fit: {what.splitlines()[0]}"
        raise FileFormatError(f"{told}{_other_version(meta)}") from None


def _other_version(meta: Any) -> str:
    """Say where a file was written by another version of the suite."""
    found = meta.get("version", "") if type(meta) is dict else ""
    return f" (written by version {show(found)}, read by {__version__})" if found not in ("", __version__) else ""
