"""``ppl fit irm table.csv``: relations of a long table, and what the fit of them writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from custom_inference.faces.command_line import output
from custom_inference.faces.command_line.files import Files
from custom_inference.faces.command_line.options import FitOptions, spell_command
from custom_inference.faces.command_line.report.facts import Occasion
from custom_inference.faces.command_line.report.relations import write_relation_report
from custom_inference.faces.command_line.source import Source
from custom_inference.methods import resolve_method
from ppl_models import IRM, MethodError

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
    print(found)
    print(report.to_string(index=False, max_colwidth=80))
    output.print_written(files.written)
    summary = {"log_joint": float(found.elbo[-1]), "status": found.status, "interrupted": found.interrupted}
    summary["clusters"] = {t: found.num_clusters(t) for t in model.types}
    output.write_json(options.json, {"model": "irm", "file": str(file), **summary, "files": files.written})
    files.require_all()
    return found.interrupted
