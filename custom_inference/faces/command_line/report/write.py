"""The report of a fit, section by section."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from custom_inference.core.engine import POINT
from custom_inference.core.evaluate import component_report
from custom_inference.core.fit import Fit
from custom_inference.core.objectives import objective_line
from custom_inference.core.registry import presentation_of
from custom_inference.core.summary import describe_globals
from custom_inference.faces.command_line.report.components import list_intervals, name_best_rows, name_strongest
from custom_inference.faces.command_line.report.facts import Occasion, describe_data, describe_making
from custom_inference.faces.command_line.report.neighbours import Neighbours
from custom_inference.faces.command_line.report.page import Page, leave_out_trivial, write_table
from custom_inference.faces.command_line.report.verdict import judge, say_how_sure
from ppl_models.core import displays
from ppl_models.data.atomic import write_text

#: Kind of figure -> what it shows, for those who see it and for those who do not.
CAPTIONS = {
    "components": "How much each component is used, and its numbers for the strongest features of all; where features "
    "are pixels, every component as a picture.",
    "loading": "Components by features: the numbers of every component, for the strongest where there are many.",
    "source": "Rows by components: the posterior means of what each row has of each component; rows with the same "
    "pattern lie together.",
    "topics": "The most probable words of each topic; bars are their probabilities.",
    "documents": "Documents by topics: how much of each document is about each topic; documents of the same main topic "
    "lie together.",
    "adjacency": "Who is linked to whom: nodes ordered by their blocks, grey lines between these, a square for every "
    "edge, from the node of its row to the node of its column.",
    "memberships": "How much of each node belongs to each block, in one colour a block.",
    "blocks": "The graph between blocks: arrows, or lines where edges have no direction, are as wide as edges are "
    "probable, with the probability beside them; borders are as wide as edges within the block are.",
    "elbo": "The objective by iteration: it should have come to stand still.",
}
#: File -> what is in it.
_CONTENTS = {
    "fit.safetensors": "the fit itself: Fit.load of the Python package reads it",
    "posterior.nc": "for ArviZ: draws of what has a posterior; point estimates are a group of their own",
    "summary.csv": "every number that was learned, with intervals where they are known",
    "components.csv": "the table of components",
    "loading.csv": "the numbers of every component for every feature",
    "membership.csv": "how much of every row belongs to each component",
    "clusters.csv": "the clusters and their members",
}
#: Lines of the table of all numbers that are shown.
_SHOWN = 40


def make_report(fit: Fit, occasion: Occasion | None = None, *, top: int = 8) -> Page:
    """Make the report of a fit, from the fit alone; what is known of the occasion is told too."""
    known = occasion or Occasion()
    name, rows = type(fit.model).__name__, known.num_rows or len(fit.data)
    described, intervals = describe_globals(fit), list_intervals(fit)
    short = say_in_short(fit, known, described, intervals)
    of = f" of {Path(known.file).name}" if known.file else ""
    page = Page(f"{name} fitted to {rows} {fit.model.row_axis}s{of} by {fit.method_name}")
    page.summarise([_say_what(fit), *short])
    page.head("Data")
    page.list_facts({**describe_data(fit, known.num_rows), **describe_making(fit, known)})
    _add_components(page, fit, top)
    add_pictures(page, known.written, ("components", "topics", "blocks"))
    _add_scores(page, fit, known)
    page.head("Can it be trusted?")
    page.say(*_say_whether_to_worry(fit, known, described))
    page.list_facts({"status": fit.status, "method": fit.method_name, **state_objective(fit)})
    if len(fit.stages) > 1:
        stages = [(one.name, one.seconds, one.objective) for one in fit.stages]
        page.tabulate(pd.DataFrame(stages, columns=["stage", "seconds", "objective a row"]))
    add_pictures(page, known.written, ("elbo",))
    page.head("How sure?")
    page.say(say_how_sure(fit, len(intervals) > 0))
    if len(intervals):
        page.tabulate(intervals)
    others = [key.removesuffix("_figure") for key in known.written if key.endswith("_figure")]
    others = [kind for kind in others if kind not in ("components", "topics", "blocks", "elbo")]
    if others:
        page.head("More figures")
        add_pictures(page, known.written, others)
    add_files(page, known.written)
    numbers = described.head(_SHOWN)
    title = f"All that was learned ({len(described)} numbers; all are in summary.csv)"
    page.fold(title, write_table(leave_out_trivial(numbers.rename_axis("number"))))
    page.fold("The model", displays.of_model(fit.model))
    return page


def write_report(fit: Fit, path: Path, occasion: Occasion | None = None, *, top: int = 8) -> None:
    """Write the report of a fit as a page of HTML."""
    write_text(path, make_report(fit, occasion, top=top).write())


def say_in_short(
    fit: Fit, known: Occasion, described: pd.DataFrame | None = None, intervals: pd.DataFrame | None = None
) -> list[str]:
    """Say whether to worry, how good the fit is beside others, and how sure it is, in a sentence or two each."""
    table, ranges = (describe_globals(fit), list_intervals(fit)) if described is None else (described, intervals)
    compared = known.neighbours.sentences if type(known.neighbours) is Neighbours else []
    worry = _say_whether_to_worry(fit, known, table)
    first = [" ".join(worry), " ".join(one for one in compared if one not in worry)]
    sure = say_how_sure(fit, ranges is not None and len(ranges) > 0)
    return [sentence for sentence in (*first, sure) if sentence]


def _say_whether_to_worry(fit: Fit, known: Occasion, described: pd.DataFrame) -> list[str]:
    """Say whether to worry, first of all where no components predict better."""
    compared = known.neighbours
    behind = compared.sentences[:1] if type(compared) is Neighbours and compared.behind else []
    return [*behind, *judge(fit, described, behind=bool(behind))]


def in_plain_text(sentences: Iterable[str]) -> list[str]:
    """Return sentences as a terminal shows them, without marks of code."""
    return [sentence.replace("`", "") for sentence in sentences]


def _say_what(fit: Fit) -> str:
    count = len(fit.component_names)
    summary = fit.model.summary.rstrip(".")
    return f"{type(fit.model).__name__} with {count} component{'s' * (count != 1)}: {summary}."


def state_objective(fit: Fit) -> dict[str, str]:
    """Return the objective, with what it is the sum of."""
    if not len(fit.elbo):
        return {}
    name, value = objective_line(fit)
    return {"objective": f"{value} ({name.removeprefix('objective (').removesuffix(')')})"}


def _add_components(page: Page, fit: Fit, top: int) -> None:
    page.head("Components")
    table, names = component_report(fit, top=top), fit.component_names
    table = pd.DataFrame(table).set_axis([names[i] for i in table.index], axis=0).rename_axis("component")
    table["strongest"] = name_strongest(fit, top)
    best = name_best_rows(fit)
    table["best rows"] = [best.get(str(name), "") for name in table.index]
    shown = presentation_of(fit.model)
    means = {name: f"{name}: {shown.value}" for name in ["strongest"] if shown.value != "value"}
    page.say(
        "The one that matters most comes first, here and in all figures and files. "
        + "".join(f"Numbers beside the strongest features are: {text.partition(': ')[2]}. " for text in means.values())
        + f"Numbers beside the best rows are: {shown.local}."
    )
    page.tabulate(table)


def _add_scores(page: Page, fit: Fit, known: Occasion) -> None:
    page.head("How good is it?")
    page.list_facts(state_scores(fit))
    compared = known.neighbours
    if type(compared) is Neighbours:
        page.say(*compared.sentences)
        page.tabulate(compared.table)
        page.say(
            "The held-out score is of one fifth of the entries, hidden once; its differences have no error beside them."
            if "held-out score" in compared.table
            else "BIC is of fits to all data.",
            *compared.remarks,
        )
        ahead = "Errors, and more numbers of components"
    else:
        page.say(*([f"Not compared with other numbers of components: {compared}."] if compared else []))
        ahead = "How it compares with one component fewer and one more"
    if known.choose is not None:
        page.say(f"{ahead}:")
        page.show_command(known.choose)


def state_scores(fit: Fit) -> dict[str, str]:
    """Return the scores of a fit as they are printed: of graphs, whose nodes are no rows of their own, in all."""
    from custom_inference.core.evaluate import score
    from custom_inference.core.local_inference import describe_stand_in

    rows, bound = score(fit)
    total, each = float(rows.sum()), f"log-likelihood per {fit.model.row_axis}"
    kind = "" if bound == "exact" else f" ({describe_stand_in(fit.model, bound)})"
    found = {"log-likelihood" if fit.model.is_graph else each: (
        f"{total:.2f}{kind}" if fit.model.is_graph else f"{total / len(fit.data):.4f}{kind}")}  # fmt: skip
    plugin = " (of the likelihood at the point estimates)" if fit.bound_name == POINT else ""
    return {**found, "BIC": f"{fit.bic():.1f}{plugin}"}


def add_pictures(page: Page, written: Mapping[str, str], kinds: Iterable[str]) -> None:
    """Add the figures of these kinds that were written."""
    for kind in kinds:
        path = written.get(f"{kind}_figure")
        if path is not None:
            caption = CAPTIONS.get(kind, f"The relation '{kind}': entities in the order of their clusters.")
            page.head("The objective" if kind == "elbo" else kind.replace("_", " ").capitalize(), 3)
            page.picture(Path(path).read_bytes(), caption, f"{kind}: {caption}")


def add_files(page: Page, written: Mapping[str, str]) -> None:
    """Add links to the files beside the page that are no figures."""
    names = [Path(path).name for key, path in written.items() if not key.endswith("_figure")]
    if names:
        page.head("Files")
        page.link({name: _CONTENTS.get(name, "P(two entities share a cluster)") for name in names})
