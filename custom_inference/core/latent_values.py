"""Values of a row's latents as the program holds them, from what posteriors give, under any model."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.enumeration import ROW_PLATE
from custom_inference.core.posteriors import LocalPosterior
from custom_inference.core.programs.latents import Layout
from custom_inference.core.programs.posteriors import OneLatent, PartPosterior
from custom_inference.core.programs.row_plates import plate_depth, row_dim_of
from custom_inference.core.programs.statements import check_statements, layout_of, row_plates_on, run
from custom_inference.core.registry import engines_of
from ppl_models import Data, Model, ModelError

#: Model -> its latents as the program holds them, once it was run on data.
_LAYOUTS: weakref.WeakKeyDictionary[Model, Layout] = weakref.WeakKeyDictionary()


def is_own_of_rows(model: Model) -> bool:
    """Whether the model is a program of rows without closed-form engines: what serves any program serves it."""
    return model.rows_are_independent and not engines_of(model)


def plates_of_rows(model: Model, data: Data) -> frozenset[str]:
    """The names of the plates of rows of a program; of those with engines it is always the same."""
    return row_plates_on(model, data, {}) if is_own_of_rows(model) else frozenset({ROW_PLATE})


def nesting_of(model: Model, data: Data) -> int:
    """How many batch dimensions the plates of a program take; of those with engines it is always one."""
    return plate_depth(run(model, model.as_read(data.rows(slice(0, 1))).dense())) if is_own_of_rows(model) else 1


def layout_of_model(model: Model, params: Mapping[str, Tensor], data: Data) -> Layout:
    """The latents of a program without engines. Raises ModelError for sites that are not declared, or not stated."""
    if model not in _LAYOUTS:
        data = model.as_read(data).dense()
        nodes = run(model, data, params)
        check_statements(model, nodes, params)
        _LAYOUTS[model] = layout_of(model, nodes, row_plates_on(model, data, params))
    return _LAYOUTS[model]


def latent_values(model: Model, params: Mapping[str, Tensor], data: Data | None, local: Tensor) -> dict[str, Tensor]:
    """Latent -> the program's value of it, from values (..., N, K) as posteriors of ``data`` give them."""
    if not is_own_of_rows(model):
        return {model.local_site: model.local_value(local)}
    if data is None and model not in _LAYOUTS:
        raise ModelError(f"the latents of {type(model).__name__} are known once it is run on data; give them")
    return _LAYOUTS[model].decode(local) if data is None else layout_of_model(model, params, data).decode(local)


def split_draws(model: Model, params: Mapping[str, Tensor], data: Data, local: Tensor) -> dict[str, Tensor]:
    """Latent -> its values (..., N, ...), rows before its own axes, from draws (..., N, K) of posteriors."""
    if not is_own_of_rows(model):
        return {model.local_site: local}
    layout, found = layout_of_model(model, params, data), {}
    for latent in layout:
        value = local[..., layout.slices[latent.name]].reshape(*local.shape[:-1], *latent.visible, latent.places or 1)
        found[latent.name] = value.argmax(-1) if latent.places else value.squeeze(-1)
    return found


def code_of(model: Model, params: Mapping[str, Tensor], data: Data, drawn: Mapping[str, Tensor]) -> Tensor:
    """Values (N, K) in the form of posteriors, of latents that were drawn with rows first (``read_latents``)."""
    if not is_own_of_rows(model):
        return drawn[model.local_site]
    parts = []
    for latent in layout_of_model(model, params, data):
        value = drawn[latent.name]
        value = torch.nn.functional.one_hot(value.long(), latent.places) if latent.places else value
        parts.append(value.reshape(len(value), -1).to(data.x))
    return torch.cat(parts, 1)


def read_latents(model: Model, nodes: Mapping[str, Any], plates: frozenset[str]) -> dict[str, Tensor]:
    """Latent -> its values in a run of a program without engines, whose plates of rows have these names, rows first."""
    found = {}
    for name in model.row_latents:
        node = nodes[name]
        dim = row_dim_of(node, plates)
        value = node["value"] if dim is None else node["value"].movedim(dim - node["fn"].event_dim, 0)
        found[name] = value
    return found


def posteriors_of(
    model: Model, params: Mapping[str, Tensor], data: Data, posterior: LocalPosterior
) -> dict[str, LocalPosterior]:
    """Latent -> its own posterior, from that of all latents of a row."""
    if not is_own_of_rows(model):
        parts = {part: PartPosterior(posterior, model, part) for part in model.part_sites}
        return {model.local_site: posterior, **parts}
    layout = layout_of_model(model, params, data)
    slices = layout.slices
    if len(layout.latents) == 1 and len(layout.latents[0].mean_shape) == 1:
        return {layout.latents[0].name: posterior}
    return {one.name: OneLatent(posterior, one, slices[one.name]) for one in layout}
