"""The report of a fit of relations: clusters of every type, and how sure it is who belongs together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from custom_inference.faces.command_line.report.facts import Occasion, describe_making
from custom_inference.faces.command_line.report.page import Page
from custom_inference.faces.command_line.report.verdict import judge
from custom_inference.faces.command_line.report.write import add_files, add_pictures, state_objective
from custom_inference.families.relations.result import RelationFit
from ppl_models.core import displays
from ppl_models.data.atomic import write_text


def make_relation_report(fit: RelationFit, occasion: Occasion | None = None, *, top: int = 8) -> Page:
    """Make the report of a fit of relations, from the fit alone; what is known of the occasion is told too."""
    known = occasion or Occasion()
    of = f" of {Path(known.file).name}" if known.file else ""
    page = Page(f"IRM fitted to {len(fit.data)} cells{of} by {fit.method_name}")
    counts = ", ".join(f"{n} of type {t} in {fit.num_clusters(t)} clusters" for t, n in fit.model.types.items())
    verdict = " ".join(judge(fit))
    page.summarise([f"{fit.model.summary.rstrip('.')}: {counts}.", *([verdict] if verdict else []), _say_how_sure(fit)])
    page.head("Data")
    page.list_facts({**_describe_relations(fit), **describe_making(fit, known)})
    page.head("Clusters")
    page.say("The largest cluster of each type comes first, here and in all figures and files.")
    page.tabulate(add_sureness(fit, fit.report(top=top)))
    for relation, types in fit.model.relations.items():
        table = fit.table(relation).cpu().numpy()
        if len(types) == table.ndim == 2:
            rows, columns = ([f"{t} {k}" for k in range(n)] for t, n in zip(types, table.shape, strict=True))
            page.say(f'Expected cells of the relation "{relation}" between the clusters of its rows and its columns:')
            page.tabulate(pd.DataFrame(table, pd.Index(rows, name="cluster"), columns))
    add_pictures(page, known.written, [key.removesuffix("_figure") for key in known.written if key.endswith("_figure")])
    page.head("Can it be trusted?")
    page.list_facts({"status": fit.status, "method": fit.method_name, **state_objective(fit)})
    page.head("How sure?")
    page.say(_say_how_sure(fit))
    add_files(page, known.written)
    page.fold("The model", displays.of_model(fit.model))
    return page


def write_relation_report(fit: RelationFit, path: Path, occasion: Occasion | None = None, *, top: int = 8) -> None:
    """Write the report of a fit of relations as a page of HTML."""
    write_text(path, make_relation_report(fit, occasion, top=top).write())


def add_sureness(fit: RelationFit, report: pd.DataFrame) -> pd.DataFrame:
    """Add to the table of clusters how probable it is that two members of a cluster belong together, on average over
    the pairs; NaN of single members, and where no draws say."""
    together = {t: fit.co_assignment(t).to_numpy() for t in fit.model.types} if fit.draws is not None else {}
    found = []
    for line in report.to_dict("records"):
        members = np.flatnonzero(fit.params[f"cluster_{line['type']}"].cpu().numpy() == line["cluster"])
        pairs: Any = together[line["type"]][np.ix_(members, members)] if line["type"] in together else None
        off = None if pairs is None else pairs[~np.eye(len(members), dtype=bool)]
        found.append(float(off.mean()) if off is not None and len(off) else np.nan)
    return report.assign(sureness=found)


def _describe_relations(fit: RelationFit) -> dict[str, str | None]:
    model = fit.model
    arrays = {name: fit.data.array(name) for name in model.relations}
    size = sum(one.size for one in arrays.values())
    known = size - sum(int(np.isnan(one).sum()) for one in arrays.values())
    return {
        "entities": ", ".join(f"{n} of type {t}" for t, n in model.types.items()),
        "relations": ", ".join(f"{name} ({', '.join(types)})" for name, types in model.relations.items()),
        "cells": f"{known} of {size} are known",
        "missing": f"{size - known} cells, {100 * (size - known) / max(size, 1):.3g} %" if size > known else "none",
    }


def _say_how_sure(fit: RelationFit) -> str:
    if fit.draws is None:
        return "Only the best clusters are known: nothing says how sure they are. `--method gibbs` draws others."
    narrow = " The draws are from an approximation of the posterior, which tends to be too sure."
    return (
        "How sure it is that entities belong together is known from draws of the clusters: the column sureness, and in "
        f"the files named co_assignment for every pair.{'' if fit.sample_stats else narrow}"
    )
