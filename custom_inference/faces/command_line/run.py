"""What the commands of ``ppl`` do, once their options are read."""

from __future__ import annotations

import json as json_module
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from custom_inference.checks.compare import compare as compare_methods
from custom_inference.core.registry import engines_of
from custom_inference.faces import distributed
from custom_inference.faces.command_line import output
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


def _read(name: str, source: Source, block_rows: int | None = None) -> tuple[type[Model], Data | RowBlocks]:
    """The model's class, and the data as it reads them; with ``block_rows`` block by block."""
    if name.lower() not in MODELS:
        raise ModelError(unknown_name("model", name, MODELS))
    kind = MODELS[name.lower()]
    model = kind.example().model
    as_documents = model.data_kind == "documents"
    if model.is_graph:
        if block_rows is not None:
            raise DataError("--block-rows for a graph, whose nodes are no independent rows", expected="all of it")
        return kind, source.read_graph("counts" if model.data_kind.startswith("multi") else "binary")
    if block_rows is not None:
        return kind, source.blocks(block_rows, as_documents=as_documents)
    return kind, source.read(as_documents=as_documents)


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
    source: Source,
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
    kind, data = _read(model_name, source, block_rows)
    first = data if isinstance(data, Data) else _first(data)
    model = kind.for_data(first, components)
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
    output.write_json(json, {"model": model_name.lower(), "file": str(source.file), **summary, "files": files})
    return summary["interrupted"]


def compare(
    model_name: str,
    source: Source,
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
    chosen = [named_method(name) for name in names or ()]
    kind, data = _read(model_name, source)
    assert not isinstance(data, RowBlocks)  # only fits read blocks
    if rows is not None and isinstance(data, GraphData):
        raise DataError("--rows of a graph, whose nodes are no independent rows", axis="node", expected="all of it")
    if rows is not None and rows < len(data):
        picked = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:rows]
        data = data.rows(picked.sort().values)
    model = kind.for_data(data, components)
    if names is None:
        names = ["exact", *(name for name in methods_for(model) if name in engines_of(model))]
        chosen = [named_method(name) for name in names]
    if json is not None and json.is_dir():
        raise FileFormatError(f"{json}: is a folder; --json takes a file")
    comparison = compare_methods(chosen, model, data, seed=seed, progress=progress)
    output.print_table(comparison.table, len(data))
    payload = {"model": model_name.lower(), "file": str(source.file), "num_rows": len(data), "seed": seed}
    output.write_json(json, {**payload, "methods": names, "table": output.table_rows(comparison.table)})
