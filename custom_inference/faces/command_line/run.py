"""The commands of ``ppl``, once their options are read."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import typer

from custom_inference.checks.compare import compare as compare_methods
from custom_inference.checks.model_choice.choose import choose as choose_number
from custom_inference.checks.suggest import Suggestion, kinds_read_by
from custom_inference.checks.suggest import suggest as suggest_models
from custom_inference.core.registry import engines_of, objective_named
from custom_inference.faces import distributed
from custom_inference.faces.command_line import output, relations
from custom_inference.faces.command_line.options import (
    ChooseOptions,
    CompareOptions,
    FitOptions,
    SourceOptions,
    SuggestOptions,
)
from custom_inference.faces.command_line.source import WORDS, Source, split_names
from custom_inference.methods import methods_for, methods_of, resolve_method
from ppl_models import IRM, MODELS, Data, DataError, MethodError, Model, ModelError, RowBlocks, as_matrix
from ppl_models.core.doors import needs_no_number
from ppl_models.core.errors import unknown_name
from ppl_models.core.unsized import UnsizedModel
from ppl_models.data.held import is_text
from ppl_models.data.names import encode_classes


def _read(name: str, source: Source, block_rows: int | None = None) -> tuple[Callable[..., Model], Data | RowBlocks]:
    """What makes the model of data and a number of components, and its data; with ``block_rows`` block by block."""
    if name.lower() not in MODELS:
        raise ModelError(unknown_name("model", name, MODELS))
    kind = MODELS[name.lower()]
    model = kind.example().model
    if block_rows is not None:
        return kind.for_data, read_blocks(model, source, block_rows)
    data = read_data(model, source)
    data = replace(data, recipe={**data.recipe, "table": source.table_recipe})
    with source.naming_columns():
        return _with_beside(model, source, data)


def read_blocks(model: Model, source: Source, block_rows: int) -> RowBlocks:
    """Read the rows of a model block by block. Raises DataError for data that are needed at once."""
    _refuse_words(model, source)
    if model.is_graph:
        raise DataError("--block-rows for a graph, whose nodes are no independent rows", expected="all of it")
    if model.data_kind in ("ratings", "sequences"):
        raise DataError(f"--block-rows for {model.data_kind}, which are needed at once", expected="all of them")
    return source.blocks(block_rows)


def read_data(model: Model, source: Source) -> Data:
    """Read a file as a model reads its data, without what stands beside the rows."""
    _refuse_words(model, source)
    if model.is_graph:
        return source.read_graph("counts" if model.data_kind.startswith("multi") else "binary")
    readers = {"ratings": source.read_ratings, "sequences": source.read_sequences, "categories": source.read_answers}
    kinds = {"as_documents": model.data_kind == "documents", "binary": model.data_kind == "binary"}
    return readers.get(model.data_kind, partial(source.read, **kinds))()


def _refuse_words(model: Model, source: Source) -> None:
    if model.data_kind != "documents":
        source.refuse(WORDS, "for a model that reads no documents", "lda or the like")


def _with_beside(model: Model, source: Source, data: Data) -> tuple[Callable[..., Model], Data]:
    """What makes the model, with the values that are fields of it and the kinds that were said; the data, with those
    that are sites. model: the example of its class."""
    beside, kind = source.read_beside(model), type(model)
    tensors = [name for name in model.settings() if torch.is_tensor(getattr(model, name))]
    open_sites = [one.name.removeprefix("num_") for one in fields(kind) if one.name.endswith("covariates")]
    valid = list(dict.fromkeys([*model.other_sites, *tensors, *open_sites]))
    for name in beside:
        if name not in valid:
            raise MethodError(unknown_name(f"--with of {kind.__name__}", name, valid))
    held = {name: beside.pop(name) for name in [*beside] if name in tensors}
    settings = _kinds(model, source, beside)
    if beside:
        number = {} if needs_no_number(kind) else {kind.axes["component"]: 1}
        data = UnsizedModel(kind, {**number, **settings}, ()).for_data(data, **beside).prepare(data, **beside)
    return partial(kind.for_data, **held, **settings), data


def _kinds(model: Model, source: Source, beside: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the model that say what kind of values its sites hold, as they were said or as words show it."""
    kinds: dict[str, Any] = {}
    with_kinds = [site for site in model.other_sites if is_text(getattr(model, site, None))]
    for name, one in source.beside_rows.items():
        has_kind = name in with_kinds
        if one.kind is not None and not has_kind:
            expected = f"a kind of {', '.join(with_kinds)}" if with_kinds else "no kind"
            raise DataError(f"--with {name}=...:{one.kind} of {type(model).__name__}", site=name, expected=expected)
        if has_kind:
            names = None if beside[name].ndim > 1 else encode_classes(beside[name], None)[1]
            kinds |= {} if one.kind is None and len(names or ()) < 3 else {name: one.kind or "categorical"}
    return kinds


def _settings(pairs: list[str]) -> dict[str, Any]:
    """NAME=VALUE -> name: value, numbers and null read as such."""
    settings = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise MethodError(f"--set {pair!r}, expected NAME=VALUE")
        value: Any = text
        with contextlib.suppress(json.JSONDecodeError):
            value = json.loads(text)
        settings[name.strip().replace("-", "_")] = value
    return settings


def list_models(path: Path | None) -> None:
    """Print name, summary, sites with shapes and methods of every model."""
    listed = []
    for name, kind in sorted({**MODELS, "irm": IRM}.items()):
        model = kind.example().model
        sites = {site: list(axes) for site, axes in model.dims.items()}
        methods, bounds = methods_for(model), list(engines_of(model))
        estimates = [one for one in bounds if objective_named(model, one) not in ("bound", "evidence")]
        listed.append({"name": name, "summary": kind.summary, "sites": sites, "methods": methods, "bounds": bounds})
        print(f"{name}: {kind.summary}")
        print("  sites    " + ", ".join(f"{site} ({', '.join(axes)})" for site, axes in sites.items()))
        print(f"  methods  {', '.join(methods)}")
        print(f"  bounds   {', '.join(name for name in bounds if name not in estimates)}")
        if estimates:
            print(f"  estimates, no bounds: {', '.join(estimates)}")
    output.write_json(path, {"models": listed})


def fit(options: FitOptions, image_shape: tuple[int, int] | None) -> bool:
    """Fit, write everything to ``out``, print the report; returns whether the fit was interrupted.

    In a group of processes (torchrun) all of them fit, and the first one writes and prints.
    """
    name, file, components = options.model.lower(), options.source.file, options.components
    if name == "irm":
        return relations.fit(options, _settings(options.settings or []))
    if name == "auto":
        if components is None:
            raise _missing_components("ppl fit auto")
        if options.block_rows is not None or options.method != "default":
            raise MethodError("auto reads all of FILE, and fits by defaults; expected no --block-rows and no --method")
        found = _suggest(options.source, None, components, seed=options.seed, progress=not options.no_progress)
        name = str(found.table.index[0])
        print(f"\n{name} predicts best\n")
    example = MODELS[name].example().model if name in MODELS else None  # whose methods are listed where one is unknown
    chosen = resolve_method(options.method, model=example, **_settings(options.settings or []))
    source = Source(**vars(options.source))
    make, data = _read(name, source, options.block_rows)
    blocks = data if isinstance(data, RowBlocks) else None
    if blocks is None:
        first: Any = data
    else:  # the model's shape is chosen by the first block
        first = as_matrix(next(iter(blocks)), dtype=torch.float64, keep_sparse=True)
        first = replace(first, coords={**blocks.coords, **first.coords})
    if components is None and not needs_no_number(MODELS[name]):
        raise _missing_components(name)
    model = make(first, components)
    weights = source.weights(model)
    # Before the fit, so that an hour's work does not end in a folder that cannot be written or a wrong shape.
    number = "" if components is None else f"_k{components}"
    out = options.out or Path(f"{file.stem}_{name}{number}")
    output.prepare(out, options.json, image_shape, first)
    call: dict[str, Any] = {"seed": options.seed, "progress": not options.no_progress}
    with source.naming_columns():
        if options.processes is None and not distributed.in_group():
            result = chosen.fit(model, data, weights=weights, **call)
        elif weights is None:
            result = distributed.fit(model, data, processes=options.processes, method=chosen, **call)
        else:
            raise MethodError("--with weights=... in several processes, which take every row once")
    if distributed.rank() > 0:
        return False
    files = output.write_fit(result, out, image_shape=image_shape, top=options.top)
    summary = output.summarise(result, top=options.top)
    if blocks is not None:
        with files.writing("membership", "membership.csv") as path:
            output.write_memberships(result, blocks, path)
        summary |= {"num_rows": len(blocks), "scored_rows": len(result.data)}
    occasion = output.write_report(result, replace(options, model=name), blocks, files)
    output.print_fit(result, summary, occasion)
    output.write_json(options.json, {"model": name, "file": str(file), **summary, "files": files.written})
    files.require_all()
    return summary["interrupted"]


def _missing_components(name: str) -> typer.BadParameter:
    told = f"missing: {name} needs a number of components, a whole number of at least 1"
    return typer.BadParameter(f"{told}; 'ppl choose' compares several", param_hint="'--components' / '-k'")


def _suggest(source: SourceOptions, kind: str | None, components: int, **settings: Any) -> Suggestion:
    """The suggestion, printed."""
    read = Source(**vars(source))
    read.refuse_weights("ppl suggest and auto")
    kind, data = read.read_kind(kind, kinds_read_by(settings.get("models")))
    found = suggest_models(data, components, kind=kind, **settings)
    output.print_suggestion(found)
    return found


def suggest(options: SuggestOptions) -> None:
    """Print and write the table of :func:`custom_inference.suggest`."""
    names = split_names(options.models)
    output.require_file(options.json)
    call: dict[str, Any] = {"models": names, "share": options.share, "max_rows": options.rows, "seed": options.seed}
    call["progress"] = not options.no_progress
    found = _suggest(options.source, options.kind, options.components, **call)
    lines = [{"name": name, **line} for name, line in found.table.to_dict("index").items()]
    about = {"file": str(options.source.file), "kind": found.kind, "baseline": found.baseline, "seed": options.seed}
    output.write_json(options.json, {**about, "table": lines, "refused": found.refused})


def choose(options: ChooseOptions) -> None:
    """Print and write the table of :func:`custom_inference.choose`."""
    source, sizes = Source(**vars(options.source)), _read_sizes(options.sizes)
    source.refuse_weights("ppl choose")
    make, read = _read(options.model, source)
    data = cast(Data, read)  # only fits read blocks
    for path in (options.json, options.figure):
        output.require_file(path)
    call: dict[str, Any] = {"criteria": split_names(options.criteria), "folds": options.folds, "seed": options.seed}
    call |= {"seconds": options.seconds, "progress": not options.no_progress}
    found = choose_number(make(data, sizes[0]), data, sizes, **call)
    print(found)
    if options.figure is not None:
        output.save_figure(found.plot(), options.figure)
    lines = [{"components": int(name), **line} for name, line in found.table.to_dict("index").items()]
    about = {"model": options.model.lower(), "file": str(source.file), "seed": options.seed, "best": found.best}
    number = found.num_components if found.best else None
    output.write_json(options.json, {**about, "components": number, "sentence": found.sentence, "table": lines})


def _read_sizes(text: str) -> list[int]:
    """Read "2-8" or "2,4,8"."""
    first, dash, last = text.partition("-")
    parts = [first, last] if dash else text.split(",")
    known = [int(part) for part in parts if part.strip().isdecimal()]
    whole = len(known) == len(parts)
    sizes = [*range(known[0], known[1] + 1)] if dash and whole else known
    if not (whole and sizes and all(sizes)):
        raise MethodError(f"--components {text!r}, expected numbers such as 2-8 or 2,4,8")
    return sizes


def compare(options: CompareOptions) -> None:
    """Print and write the table of :func:`custom_inference.compare`."""
    names, rows = split_names(options.methods), options.rows
    chosen = [resolve_method(name) for name in names or ()]
    source = Source(**vars(options.source))
    source.refuse_weights("ppl compare")
    make, read = _read(options.model, source)
    data = cast(Data, read)  # only fits read blocks
    if rows is not None and data.container == "graph":
        raise DataError("--rows of a graph, whose nodes are no independent rows", axis="node", expected="all of it")
    if rows is not None and rows < len(data):
        picked = torch.randperm(len(data), generator=torch.Generator().manual_seed(options.seed))[:rows]
        # Prepared before, as links between rows are then a matrix of which both axes are cut.
        data = make(data, options.components).prepare(data).rows(picked.sort().values)
    model = make(data, options.components)
    if names is None:
        # At given globals no method needs steps for their priors.
        names = [name for name in methods_of(model) if name == "exact" or name in engines_of(model)]
        chosen = [resolve_method(name) for name in names]
    output.require_file(options.json)
    comparison = compare_methods(chosen, model, data, seed=options.seed, progress=not options.no_progress)
    output.print_comparison(comparison, len(data))
    about = {"model": options.model.lower(), "file": str(options.source.file), "num_rows": len(data)}
    found = {"methods": names, **output.of_comparison(comparison)}
    output.write_json(options.json, {**about, "seed": options.seed, **found})
