"""``ppl fit irm table.csv``: relations of a long table, and what the fit of them writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pandas as pd

from custom_inference.core.fit import Fit
from custom_inference.faces.command_line import output
from custom_inference.faces.command_line.files import Files
from custom_inference.faces.command_line.options import FitOptions, SourceOptions, spell_command
from custom_inference.faces.command_line.report.facts import Occasion
from custom_inference.faces.command_line.report.relations import write_relation_report
from custom_inference.faces.command_line.source import Source, split_names
from custom_inference.methods import resolve_method
from ppl_models import IRM, DataError, MethodError
from ppl_models.core.errors import unknown_name
from ppl_models.data.files.tables import columns_called, read_table

#: Options of a fit that say something of relations.
_TAKEN = {"model", "components", "method", "seed", "out", "source", "settings", "json", "no_progress", "top"}
_TAKEN |= {"no_compare"}  # fits of other numbers of clusters are never made: the data choose it


def fit(options: FitOptions, settings: dict[str, Any]) -> bool:
    """Fit an IRM to a table with the columns relation, one for each type, and value; returns whether it was
    interrupted.

    --components: a fixed number of clusters of every type; by default as many as the data ask for.
    """
    for name, value in vars(options).items():
        if name not in _TAKEN and value is not None:
            raise MethodError(f"--{name.replace('_', '-')} of relations, which has no meaning there")
    file = options.source.file
    source = Source(**vars(options.source))
    data = source.read_relations()
    model = IRM.for_data(data, options.components)
    method: Any = resolve_method(options.method, model=model, **settings)
    out = options.out or Path(f"{file.stem}_irm")
    output.prepare(out, options.json, None, data)
    found = method.fit(model, data, seed=options.seed, progress=not options.no_progress)
    files = Files(out)
    with files.writing("fit", "fit.safetensors") as path:
        found.save(path)
    report = found.report(top=options.top)
    with files.writing("clusters", "clusters.csv") as path:
        output.write_table(report, path, index=False)
    for t in model.types:
        with files.writing(f"co_assignment_{t}", f"co_assignment_{t}.csv") as path:
            output.write_table(found.co_assignment(t), path)
    for name, types in model.relations.items():
        if len(types) in (2, 3):
            with files.writing(f"{name}_figure", f"{name}.png") as path:
                output.save_figure(found.plot("relations", relation=name), path)
    with files.writing("report", "report.html") as path:
        occasion = Occasion(str(file), spell_command("fit", options), written=files.written)
        write_relation_report(found, path, occasion, top=options.top)
    summary = print_clusters(found, top=options.top)
    output.print_written(files.written)
    output.write_json(options.json, {"model": "irm", "file": str(file), **summary, "files": files.written})
    files.require_all()
    return found.interrupted


def print_clusters(found: Fit, *, top: int) -> dict[str, Any]:
    """Print a fit and its clusters; return what ``--json`` says of it."""
    print(found)
    print(found.report(top=top).to_string(index=False, max_colwidth=80))
    summary = {"log_joint": float(found.elbo[-1]), "status": found.status, "interrupted": found.interrupted}
    return summary | {"clusters": {t: cast(Any, found).num_clusters(t) for t in cast(Any, found.model).types}}


def predict_cells(found: Fit, options: SourceOptions) -> pd.DataFrame:
    """Predict the cells that a table asks for: its first column names a relation, the next ones the entities along the
    axes; probabilities of 1, expected counts, means, of categories the probability of each."""
    known: Any = found.model
    frame = read_table(options.file, Source(**vars(options)).header_given)
    frame = frame.drop(columns=columns_called(frame, split_names(options.drop) or []))
    parts = []
    for name, asked in frame.groupby(frame.columns[0], sort=False):
        entities = asked.iloc[:, 1:].dropna(axis=1, how="all")
        if name not in known.relations:
            raise DataError(unknown_name("relation", name, known.relations), axis="relation")
        size = len(known.relations[str(name)])
        if entities.shape[1] < size:
            raise DataError(f"{entities.shape[1]} columns of entities", axis=str(name), expected=f"{size} of them")
        cells = found.predict((name, *(entities.iloc[:, axis].tolist() for axis in range(size))))
        columns = {"predicted": cells} if cells.ndim == 1 else {f"P({c})": cells[:, c] for c in range(cells.shape[1])}
        parts.append(asked.iloc[:, : 1 + size].assign(**columns))
    return pd.concat(parts).sort_index()
