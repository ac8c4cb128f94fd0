"""What the commands of ``ppl`` do, once their options are read."""

from __future__ import annotations

import json as json_module
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from custom_inference import _cli_output as output
from custom_inference._methods import methods_for, named_method
from custom_inference.compare import compare as compare_methods
from custom_inference.engines import engines_of
from ppl_models import MODELS, Data, DataError, FileFormatError, MethodError, Model, ModelError
from ppl_models._errors import unknown_name
from ppl_models.datasets import read_matrix


@dataclass(frozen=True)
class Source:
    """Where the data come from, and what is done to them before they reach the model."""

    file: Path
    columns: str | None = None
    transpose: bool = False
    mask_value: float | None = None
    threshold: float | None = None
    drop_empty_rows: bool = False

    def read(self) -> Data:
        """Rows by features, labels kept. Missing entries are marked before anything is compared with a threshold.

        Sparse rows stay sparse, for models that read them so, unless something is to be done to them.
        """
        changed = self.transpose or self.drop_empty_rows or (self.mask_value, self.threshold) != (None, None)
        data = read_matrix(self.file, columns=self.columns, dtype=torch.float64, keep_sparse=not changed)
        if self.transpose:
            data = _transposed(data)
        if self.mask_value is not None:
            observed = data.x != self.mask_value
            if data.mask is not None:
                observed &= data.mask
            data = Data(x=data.x.masked_fill(~observed, 0), mask=observed, coords=data.coords)
        if self.threshold is not None:
            data = Data(x=(data.x > self.threshold).to(data.x), mask=data.mask, coords=data.coords)
        return self._without_empty(data) if self.drop_empty_rows else data

    def _without_empty(self, data: Data) -> Data:
        observed = data.x if data.mask is None else data.x * data.mask
        kept = (observed != 0).any(1).nonzero().flatten()
        if not len(kept):
            raise DataError("no row has an entry other than 0", axis="row", expected="at least one")
        if len(kept) < len(data) and "row" not in data.coords:
            # Without labels of its own, a row that is left is known by its place in the file.
            data = Data(x=data.x, mask=data.mask, coords={**data.coords, "row": list(range(len(data)))})
        return data.rows(kept)


def _transposed(data: Data) -> Data:
    names = {"row": "feature", "feature": "row"}
    mask = None if data.mask is None else data.mask.T.contiguous()
    return Data(x=data.x.T.contiguous(), mask=mask, coords={names[k]: v for k, v in data.coords.items()})


def _model(name: str, data: Data, components: int) -> Model:
    if name.lower() not in MODELS:
        raise ModelError(unknown_name("model", name, MODELS))
    return MODELS[name.lower()].for_data(data, components)


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
) -> bool:
    """Fit, write everything to ``out``, print the report; returns whether the fit was interrupted."""
    chosen = named_method(method, **_settings(settings))
    data = source.read()
    model = _model(model_name, data, components)
    # Before the fit, so that an hour's work does not end in a folder that cannot be written or a wrong shape.
    output.prepare(out, json, image_shape, data)
    result = chosen.fit(model, data, seed=seed, progress=progress)
    files = output.write_fit(result, out, image_shape=image_shape, top=top)
    summary = output.summarise(result, top=top)
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
    data = source.read()
    if rows is not None and rows < len(data):
        picked = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:rows]
        data = data.rows(picked.sort().values)
    model = _model(model_name, data, components)
    if names is None:
        names = ["exact", *(name for name in methods_for(model) if name in engines_of(model))]
        chosen = [named_method(name) for name in names]
    if json is not None and json.is_dir():
        raise FileFormatError(f"{json}: is a folder; --json takes a file")
    comparison = compare_methods(chosen, model, data, seed=seed, progress=progress)
    output.print_table(comparison.table, len(data))
    payload = {"model": model_name.lower(), "file": str(source.file), "num_rows": len(data), "seed": seed}
    output.write_json(json, {**payload, "methods": names, "table": output.table_rows(comparison.table)})
