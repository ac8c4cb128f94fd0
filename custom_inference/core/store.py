"""Saving fits: one safetensors file, tensors in its body and JSON in its header. Nothing in it is executed."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from custom_inference.core.capabilities import SavedSettings
from custom_inference.core.posteriors import CodePosterior, DirichletMixture, JointDirichletMixture, LabellingPosterior
from custom_inference.core.result import Result
from custom_inference.core.store_check import rebuilt
from custom_inference.core.store_priors import prior_to_json
from custom_inference.core.tensor_files import digest, write_tensors
from ppl_models import MODELS, Data, FileFormatError, GraphData, ModelError
from ppl_models.data import sparse as _sparse

FORMAT = "ppl-models fit 1"
#: Draws of labelings are kept up to so many entries.
_LABELS = 2**24


# ----- writing --------------------------------------------------------------------------------------------


def save(fit: Result, path: Path) -> Path:
    """Write to a temporary file beside ``path`` and rename: a crash leaves the old file as it was."""
    name = next((n for n, kind in MODELS.items() if type(fit.model) is kind), None)
    if name is None:
        raise ModelError(f"{type(fit.model).__name__} is not one of the suite's models: {', '.join(MODELS)}")
    meta = {
        "model": name,
        "settings": fit.model.settings(),
        "priors": {site: prior_to_json(prior) for site, prior in fit.model.priors.items()},
        "coords": {axis: [_label(one) for one in labels] for axis, labels in fit.data.coords.items()},
        "graph": _graph_settings(fit.data),
        "local": type(fit.local.posterior).__name__ if fit.local and _stores_local(fit) else None,
        "global": {site: type(posterior).__name__ for site, posterior in fit.global_posterior.items()},
        "solver": fit.solver.engine.name if fit.solver else None,
        "solver_settings": _saved_settings(fit),
        **{key: getattr(fit, key) for key in ("bound_name", "status", "method", "seed", "details")},
    }
    tensors, text = _tensors(fit), json.dumps(meta)
    header = {"format": FORMAT, "fit": text, "digest": digest(text, tensors)}
    write_tensors(path, tensors, header)
    return path


def _saved_settings(fit: Result) -> dict[str, Any]:
    engine = None if fit.solver is None else fit.solver.engine
    return engine.saved_settings if isinstance(engine, SavedSettings) else {}


def _label(value: Any) -> Any:
    """Labels of axes: numbers, texts and tuples of them as they are, anything else (times, ...) as text."""
    if isinstance(value, tuple):
        return [_label(one) for one in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _tensors(fit: Result) -> dict[str, Tensor]:
    tensors = {f"params/{k}": v for k, v in fit.params.items()}
    tensors |= {f"draws/{k}": v for k, v in (fit.draws or {}).items()}
    tensors |= {f"stats/{k}": v for k, v in fit.sample_stats.items()}
    for site, posterior in fit.global_posterior.items():
        tensors |= {f"global/{site}/{name}": part for name, part in _parts(posterior).items()}
    tensors |= {"elbo": fit.elbo} | _data_tensors(fit.data.x)
    tensors |= {f"data/others/{name}": value for name, value in fit.data.others.items()}
    if fit.data.mask is not None and not isinstance(fit.data, GraphData):
        tensors["data/mask"] = fit.data.mask
    if isinstance(fit.data, GraphData) and fit.data.hidden is not None:
        tensors["data/hidden"] = fit.data.hidden
    if _stores_local(fit):
        assert fit.local is not None
        posterior = fit.local.posterior
        tensors |= {f"local/{name}": part for name, part in _parts(posterior).items()}
        tensors["local/bound"] = fit.local.bound
    return tensors


def _parts(posterior: Any) -> dict[str, Tensor]:
    """The tensors that a posterior consists of."""
    return {f.name: getattr(posterior, f.name) for f in fields(posterior)}


def _data_tensors(x: Tensor) -> dict[str, Tensor]:
    """Sparse rows by their parts: the format has no sparse tensors."""
    if not _sparse.is_sparse(x):
        return {"data/x": x}
    size = torch.tensor(x.shape)
    return {"data/crow": x.crow_indices(), "data/column": x.col_indices(), "data/values": x.values(), "data/size": size}


def _graph_settings(data: Data) -> dict[str, Any] | None:
    if not isinstance(data, GraphData):
        return None
    return {"directed": data.directed, "self_loops": data.self_loops}


def _stores_local(fit: Result) -> bool:
    """An exact posterior over all codes is large and cheap to compute again; any other posterior is kept."""
    if fit.local is None:
        return False
    posterior = fit.local.posterior
    if isinstance(posterior, CodePosterior) and posterior.shared:
        classes = len(posterior.codes) <= posterior.codes.shape[1]  # a table of no more entries than the means
        return classes and fit.bound_name != "exact"
    if isinstance(posterior, LabellingPosterior):
        return posterior.labels.numel() <= _LABELS and fit.bound_name != "exact"
    if isinstance(posterior, JointDirichletMixture):
        return fit.bound_name != "exact"
    return not isinstance(posterior, DirichletMixture)


# ----- reading --------------------------------------------------------------------------------------------


def load(path: Path) -> dict[str, Any]:
    """The arguments of :class:`custom_inference.Fit` from a file that :func:`save` wrote.

    Raises FileFormatError, naming the file, for one that is damaged, or whose parts do not make a fit.
    """
    if not path.is_file():
        raise FileFormatError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt") as archive:
            header = archive.metadata() or {}
            if header.get("format") != FORMAT:
                raise FileFormatError(f"not a saved fit (format {header.get('format')!r}, expected {FORMAT!r})")
            tensors = {key: archive.get_tensor(key) for key in archive.keys()}  # noqa: SIM118
        text = header["fit"]
        # Files of earlier versions carry no digest.
        if header.get("digest", "") not in ("", digest(text, tensors)):
            raise FileFormatError("damaged: its contents are not those that were saved")
        return rebuilt(json.loads(text), tensors)
    except (SafetensorError, LookupError, OSError, ValueError, RecursionError, RuntimeError) as error:
        what = f"nothing under {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise FileFormatError(f"{path}: not readable as a saved fit: {what.splitlines()[0]}") from None
