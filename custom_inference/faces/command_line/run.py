"""What the commands of ``ppl`` do, once their options are read."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from custom_inference.checks.compare import compare as compare_methods
from custom_inference.core.registry import engines_of
from custom_inference.faces import distributed
from custom_inference.faces.command_line import output
from custom_inference.faces.command_line.options import SourceOptions
from custom_inference.faces.command_line.source import Source
from custom_inference.methods import methods_for, named_method
from ppl_models import (
    MODELS,
    Data,
    DataError,
    FileFormatError,
    GraphData,
    MethodError,
    Model,
    ModelError,
    RowBlocks,
    as_matrix,
)
from ppl_models.core.errors import unknown_name


def _read(name: str, source: Source, block_rows: int | None = None) -> tuple[Callable[..., Model], Data | RowBlocks]:
    """What makes the model of data and a number of components, and its data; with ``block_rows`` block by block."""
    if name.lower() not in MODELS:
        raise ModelError(unknown_name("model", name, MODELS))
    kind = MODELS[name.lower()]
    model = kind.example().model
    as_documents = model.data_kind == "documents"
    if model.is_graph:
        if block_rows is not None:
            raise DataError("--block-rows for a graph, whose nodes are no independent rows", expected="all of it")
        data = source.read_graph("counts" if model.data_kind.startswith("multi") else "binary")
    elif block_rows is not None:
        return kind.for_data, source.blocks(block_rows, as_documents=as_documents)
    else:
        data = source.read(as_documents=as_documents)
    return _with_given(model, source.given(), data)


def _with_given(model: Model, given: dict[str, Any], data: Data) -> tuple[Callable[..., Model], Data]:
    """What makes the model, with the given values that are fields of it; the data, with those that are sites."""
    tensors = [name for name in model.settings() if isinstance(getattr(model, name), torch.Tensor)]
    valid = [*model.other_sites, *tensors]
    for name, value in given.items():
        if name not in valid:
            raise MethodError(unknown_name(f"--with of {type(model).__name__}", name, valid))
        if len(value) != len(data):
            raise DataError(f"{len(value)} rows", site=name, axis="row", expected=f"{len(data)}, as the data have")
    others = {name: given[name] for name in given if name in model.other_sites}
    others = {name: value[:, 0] if len(model.dims[name]) == 1 else value for name, value in others.items()}
    fields = {name: given[name] for name in given if name not in others}
    return partial(type(model).for_data, **fields), replace(data, others=others) if others else data


def _first(blocks: RowBlocks) -> Data:
    """The first block, by which the model's shape is chosen."""
    data = as_matrix(next(iter(blocks)), dtype=torch.float64, keep_sparse=True)
    return replace(data, coords={**blocks.coords, **data.coords})


def _settings(pairs: list[str]) -> dict[str, Any]:
    """NAME=VALUE -> name: value, numbers and null read as such."""
    settings = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise MethodError(f"--set {pair!r}, expected NAME=VALUE")
        try:
            settings[name.strip().replace("-", "_")] = json_module.loads(text)
        except json_module.JSONDecodeError:
            settings[name.strip().replace("-", "_")] = text
    return settings


def list_models(json: Path | None) -> None:
    """Print name, summary, sites with shapes and methods of every model."""
    listed = []
    for name, kind in MODELS.items():
        model = kind.example().model
        sites = {site: list(axes) for site, axes in model.dims.items()}
        methods, bounds = methods_for(model), list(engines_of(model))
        listed.append({"name": name, "summary": kind.summary, "sites": sites, "methods": methods, "bounds": bounds})
        print(f"{name}: {kind.summary}")
        print("  sites    " + ", ".join(f"{site} ({', '.join(axes)})" for site, axes in sites.items()))
        print(f"  methods  {', '.join(methods)}")
        print(f"  bounds   {', '.join(bounds)}")
    output.write_json(json, {"models": listed})


def fit(
    model_name: str,
    options: SourceOptions,
    components: int,
    *,
    method: str,
    settings: list[str],
    seed: int,
    image_shape: tuple[int, int] | None,
    top: int,
    out: Path,
    json: Path | None,
    progress: bool,
    processes: int | None = None,
    block_rows: int | None = None,
) -> bool:
    """Fit, write everything to ``out``, print the report; returns whether the fit was interrupted.

    In a group of processes (torchrun) all of them fit, and the first one writes and prints.
    """
    chosen = named_method(method, **_settings(settings))
    make, data = _read(model_name, Source(**vars(options)), block_rows)
    first = data if isinstance(data, Data) else _first(data)
    model = make(first, components)
    # Before the fit, so that an hour's work does not end in a folder that cannot be written or a wrong shape.
    output.prepare(out, json, image_shape, first)
    if processes is not None or distributed.in_group():
        result = distributed.fit(model, data, processes=processes, method=chosen, seed=seed, progress=progress)
    else:
        result = chosen.fit(model, data, seed=seed, progress=progress)
    if distributed.rank() > 0:
        return False
    files = output.write_fit(result, out, image_shape=image_shape, top=top)
    summary = output.summarise(result, top=top)
    if isinstance(data, RowBlocks):
        files["membership"] = output.write_memberships(result, data, out)
        summary |= {"num_rows": len(data), "scored_rows": len(result.data)}
    output.print_fit(result, summary, out)
    output.write_json(json, {"model": model_name.lower(), "file": str(options.file), **summary, "files": files})
    return summary["interrupted"]


def compare(
    model_name: str,
    options: SourceOptions,
    components: int,
    *,
    methods: str | None,
    seed: int,
    rows: int | None,
    json: Path | None,
    progress: bool,
) -> None:
    """Print and write the table of :func:`custom_inference.compare`."""
    names = None if methods is None else [name.strip() for name in methods.split(",") if name.strip()]
    chosen = [named_method(name) for name in names or ()]  # before anything is read
    make, data = _read(model_name, Source(**vars(options)))
    assert not isinstance(data, RowBlocks)  # only fits read blocks
    if rows is not None and isinstance(data, GraphData):
        raise DataError("--rows of a graph, whose nodes are no independent rows", axis="node", expected="all of it")
    if rows is not None and rows < len(data):
        picked = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:rows]
        data = data.rows(picked.sort().values)
    model = make(data, components)
    if names is None:
        names = ["exact", *(name for name in methods_for(model) if name in engines_of(model))]
        chosen = [named_method(name) for name in names]
    if json is not None and json.is_dir():
        raise FileFormatError(f"{json}: is a folder; --json takes a file")
    comparison = compare_methods(chosen, model, data, seed=seed, progress=progress)
    output.print_table(comparison.table, len(data))
    payload = {"model": model_name.lower(), "file": str(options.file), "num_rows": len(data), "seed": seed}
    output.write_json(json, {**payload, "methods": names, "table": output.table_rows(comparison.table)})
