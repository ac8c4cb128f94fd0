"""The output of ``ppl``."""

from __future__ import annotations

import json as json_module
import math
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from custom_inference.checks.compare import Comparison
from custom_inference.checks.suggest import Suggestion
from custom_inference.core import evaluate
from custom_inference.core.engine import POINT
from custom_inference.core.evaluate import score
from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import describe_stand_in
from custom_inference.core.objectives import objective_line
from custom_inference.core.registry import presentation_of
from custom_inference.core.summary import describe_sites
from custom_inference.faces import distributed
from custom_inference.faces.command_line.files import Files
from custom_inference.faces.command_line.options import ChooseOptions, FitOptions, spell_command
from custom_inference.faces.command_line.report.components import name_best_rows
from custom_inference.faces.command_line.report.facts import Occasion, describe_data
from custom_inference.faces.command_line.report.neighbours import Neighbours, compare_neighbours
from custom_inference.faces.command_line.report.write import in_plain_text, say_in_short
from custom_inference.faces.command_line.report.write import write_report as write_page
from custom_inference.faces.command_line.words import in_words_of_commands
from ppl_models import Data, FileFormatError, GraphData, ModelError, RowBlocks
from ppl_models.core import displays
from ppl_models.data.atomic import write_atomically, write_text
from ppl_models.data.held import is_listed, labels_of, to_numpy
from ppl_models.data.lazy import is_pandas

#: Draws that represent a point estimate in posterior.nc: fewer where these would be more values than so many.
_DRAWS, _VALUES = 200, 20_000_000
#: Numbers of a site up to which ``--json`` lists them; of more summary.csv has them.
_LISTED = 10_000
#: What rows and columns are called, by kind of data.
_NAMES = {"documents": ("documents", "words"), "ratings": ("users", "items"), "categories": ("rows", "questions")}
#: Copies of the data, and draws of the prior, beside them.
_COPIES = 100


def prepare(out: Path, json: Path | None, image_shape: tuple[int, int] | None, data: Data) -> None:
    """Refuse what would only fail after the fit: an unusable folder, or images of the wrong size."""
    if image_shape is not None and math.prod(image_shape) != data.num_features:
        height, width = image_shape
        raise ModelError(f"--image-shape {height}x{width} does not hold the {data.num_features} features of the data")
    if out.exists() and not out.is_dir():
        raise FileFormatError(f"{out}: exists and is not a folder")
    require_file(json)
    if os.environ.get("RANK", "0") != "0":  # of a group of processes only the first one writes
        return
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    out.mkdir(parents=True, exist_ok=True)
    for folder in made:  # made anew when there is something to write: a fit that fails leaves none behind
        folder.rmdir()


def require_file(json: Path | None) -> None:
    """Refuse a folder where a file is to be written."""
    if json is not None and json.is_dir():
        raise FileFormatError(f"{json}: is a folder; --json takes a file")


def write_fit(fit: Fit, out: Path, *, image_shape: tuple[int, int] | None, top: int) -> Files:
    """Write the fit, ArviZ netCDF, tables and figures."""
    files = Files(out)
    with files.writing("fit", "fit.safetensors") as path:
        fit.save(path)
    with files.writing("posterior", "posterior.nc") as path, write_atomically(path) as temporary:
        size = sum(value.numel() for value in fit.globals.values())
        converted = fit.to_arviz(num_draws=max(1, min(_DRAWS, _VALUES // size)), num_copies=_COPIES)
        converted.to_netcdf(temporary, engine="h5netcdf")
    for name, table in tables(fit, top=top).items():
        with files.writing(name, f"{name}.csv") as path:
            write_table(table(), path)
    for kind, figure in figures(fit, image_shape).items():
        with files.writing(f"{kind}_figure", f"{kind}.png") as path:
            save_figure(figure(), path)
    return files


def write_table(table: pd.DataFrame, path: Path, **settings: Any) -> None:
    """A CSV file, whole or not at all; settings: of ``DataFrame.to_csv``."""
    with write_atomically(path) as temporary:
        table.to_csv(temporary, float_format="%.6g", **settings)


def write_memberships(fit: Fit, blocks: RowBlocks, path: Path) -> None:
    """The posterior means of all rows, block by block; rows without labels are known by their number."""
    names, start = fit.local_names, 0
    with write_atomically(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        for block in blocks:
            values = np.asarray(fit.transform(block))
            labels = labels_of(list(block.index)) if is_pandas(block, "DataFrame") else None
            index = pd.Index(labels or range(start, start + len(values)), name="row")
            table = order_columns(fit, pd.DataFrame(values, index, names))
            table.to_csv(file, header=start == 0, float_format="%.6g")
            start += len(values)


def save_figure(figure: Figure, path: Path) -> None:
    """A PNG, whole or not at all: what ``savefig`` writes, which draws it twice, at first for the layout alone."""
    with write_atomically(path) as temporary:
        FigureCanvasAgg(figure).print_png(temporary)


def figures(fit: Fit, image_shape: tuple[int, int] | None) -> dict[str, Callable[[], Figure]]:
    """Kind -> what draws it, of the kinds that this fit has something to show for."""
    kinds: dict[str, dict[str, Any]] = {"components": {"image_shape": image_shape}, "loading": {}, "source": {}}
    if fit.model.data_kind == "documents" and ("topic" in fit.params or hasattr(fit.model, "topics")):
        kinds = {"topics": {}, "documents": {}}
    elif fit.model.is_graph:
        pairs = fit.params[fit.model.component_site].ndim == 2
        kinds = {"adjacency": {}, "memberships": {}, **({"blocks": {}} if pairs else {})}
    if len(fit.elbo):
        kinds["elbo"] = {}
    return {kind: partial(fit.plot, kind, **settings) for kind, settings in kinds.items()}


def tables(fit: Fit, *, top: int) -> dict[str, Callable[[], pd.DataFrame]]:
    """summary: every global; components: the report; loading: with labels; membership: posterior means of the rows."""
    return {
        "summary": fit.summary,
        "components": partial(report, fit, top=top),
        "loading": partial(_loading, fit),
        "membership": partial(_membership, fit),
    }


def _loading(fit: Fit) -> pd.DataFrame:
    model, shown = fit.model, presentation_of(fit.model)
    labels = shown.labels_of(model, fit.column_names, fit.data)
    loading = pd.DataFrame(to_numpy(shown.matrix(model, fit.params)), fit.component_names, labels)
    loading = loading.iloc[evaluate.component_order(fit)]
    if shown.baseline is not None:
        loading.loc[shown.baseline] = to_numpy(fit.params[shown.baseline])
    return loading.rename_axis("component")


def _membership(fit: Fit) -> pd.DataFrame:
    rows = pd.Index(fit.coords[fit.model.row_axis], name="row")
    return order_columns(fit, pd.DataFrame(to_numpy(fit.transform()), rows, fit.local_names))


def order_columns(fit: Fit, memberships: pd.DataFrame) -> pd.DataFrame:
    """Put the columns of memberships, one for each entry of a row's main latent, in the order of the report."""
    first = len(fit.model.before_components)
    order = [*range(first), *(first + k for k in evaluate.component_order(fit))]
    return memberships.iloc[:, order] if len(order) == memberships.shape[1] else memberships


def _values(fit: Fit) -> dict[str, dict[str, Any]]:
    """The globals for ``--json``: axes and, of sites of at most so many numbers, what ``summary.csv`` says of them; and
    the labels of the axes."""
    values: dict[str, Any] = {}
    for site, columns in describe_sites(fit).items():
        axes = list(fit.model.dims[site])
        small = fit.globals[site].numel() <= _LISTED
        values[site] = {"axes": axes} | ({name: c.tolist() for name, c in columns.items()} if small else {})
    listed = {axis for one in values.values() for axis in one["axes"] if len(one) > 1}
    return {"values": values, "coords": {axis: list(fit.coords[axis]) for axis in sorted(listed)}}


def report(fit: Fit, *, top: int) -> pd.DataFrame:
    """The component report under the names that figures and tables use; without a column that says of all that they are
    not shut off."""
    names = fit.component_names
    table = evaluate.component_report(fit, top=top)
    if not any(table["shut off"].tolist()):
        table = table.drop(columns="shut off")
    return table.set_axis([names[i] for i in table.index], axis=0).rename_axis("component")


def summarise(fit: Fit, *, top: int) -> dict[str, Any]:
    """Summarise a fit for ``--json``."""
    rows, bound = score(fit)
    total = float(rows.sum())
    # From the score at hand, as fit.bic() has it; of point estimates of the locals it is that of their likelihood.
    bic = evaluate.criterion(total, evaluate.num_parameters(fit), len(fit.data), "bic")
    return {
        "method": fit.method_name,
        "status": fit.status,
        "interrupted": fit.interrupted,
        "seed": fit.seed,
        "num_rows": len(fit.data),
        "num_features": fit.data.num_features,
        "num_components": fit.model.sizes["component"],
        "params": {site: list(value.shape) for site, value in fit.params.items()},
        **_values(fit),
        "objective": float(fit.elbo[-1]) if len(fit.elbo) else None,
        "objective_kind": fit.objective,
        "objective_described": fit.described_objective,
        "data_term": fit.data_term,
        "prior_term": fit.prior_term,
        "bound_name": fit.bound_name,
        "log_likelihood_per_row": total / len(fit.data),
        "log_likelihood_bound": bound,
        "log_likelihood_described": "exact" if bound == "exact" else describe_stand_in(fit.model, bound),
        "bic": fit.bic() if fit.bound_name == POINT else bic,
        "seconds": fit.details.get("seconds"),
        "components": [{"component": i, **line} for i, line in report(fit, top=top).to_dict("index").items()],
    }


def write_report(fit: Fit, options: FitOptions, blocks: RowBlocks | None, files: Files) -> Occasion:
    """Write report.html, with what only the command knows, which is returned; comparing costs further fits."""
    size = fit.model.sizes.get("component", 0)
    sizes = f"{max(1, size - 1)}-{size + 1}"
    choose = ChooseOptions(model=options.model, sizes=sizes, seed=options.seed, source=options.source)
    if options.no_compare:
        compared: Neighbours | str = "--no-compare was given"
    elif blocks is not None or fit.interrupted or distributed.in_group() or options.processes is not None:
        compared = "of fits that were interrupted, read block by block, or made in several processes it is not done"
    else:
        compared = compare_neighbours(fit, partial(print, file=sys.stderr))
    num_rows = None if blocks is None else len(blocks)
    command, ahead = spell_command("fit", options), None if options.model == "irm" else spell_command("choose", choose)
    occasion = Occasion(str(options.source.file), command, ahead, num_rows, compared, files.written)
    with files.writing("report", "report.html") as path:
        write_page(fit, path, occasion, top=options.top)
    return occasion


def write_json(path: Path | None, payload: dict[str, Any]) -> None:
    """Standard JSON: what is not finite becomes null."""
    if path is not None:
        write_text(path, json_module.dumps(_plain(payload), indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if is_listed(value):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def of_comparison(comparison: Comparison) -> dict[str, Any]:
    """One object a method, with its name; why others have none, and why there is no exact answer (None: there is)."""
    lines = [{"method": str(name), **line} for name, line in comparison.table.to_dict("index").items()]
    return {"table": lines, "refused": comparison.refused, "no_exact": comparison.no_exact or None}


def print_fit(fit: Fit, summary: dict[str, Any], known: Occasion) -> None:
    """The component report and the scores; how it ended and what it is worth; the files that were written."""
    data, kind = fit.data, fit.model.data_kind
    rows, columns = _NAMES.get(kind, ("rows", "features"))
    size = f"{summary['num_rows']} {rows} x {summary['num_features']} {columns}"
    is_graph = fit.model.is_graph
    if is_graph:
        size = f"{len(data)} nodes, {cast(GraphData, data).num_edges} edges"
    print(f"{type(fit.model).__name__} fitted to {size} by {fit.method_name}")
    facts = describe_data(fit, known.num_rows)
    print(
        "; ".join(f"{name}: {facts[name]}" for name in ("tokens", "ratings", "density", "missing") if facts.get(name))
    )
    print(f"status: {fit.status}")
    if len(fit.elbo):
        print(": ".join(objective_line(fit)))
    exact = "" if summary["log_likelihood_bound"] == "exact" else f" ({summary['log_likelihood_described']})"
    part = f"    (of the first {summary['scored_rows']} rows)" if "scored_rows" in summary else ""
    plugin = " (of the likelihood at the point estimates)" if fit.bound_name == POINT else ""
    each = summary["log_likelihood_per_row"]
    value = f"log-likelihood: {each * len(data):.2f}" if is_graph else f"log-likelihood per row: {each:.4f}"
    print(f"{value}{exact}    BIC: {summary['bic']:.1f}{plugin}{part}\n")
    lines, best = summary["components"], name_best_rows(fit)
    width = max(len(str(line["component"])) for line in lines)
    name = next(column for column in lines[0] if column != "component")
    values = displays.write_numbers([line[name] for line in lines], least=3)
    for line, number in zip(lines, values, strict=True):
        off = "  (shut off)" if line.get("shut off") else ""
        print(f"{line['component']:<{width}}  {name} {number}  {line['strongest']}{off}")
        if str(line["component"]) in best:
            print(f"{'':<{width}}  best {fit.model.row_axis}s: {best[str(line['component'])]}")
    print("\n" + "\n".join(in_plain_text(say_in_short(fit, known))))
    print_written(known.written)


def print_written(written: dict[str, str]) -> None:
    """Name the files that were written, those to look at first."""
    names = sorted((Path(path).name for path in written.values()), key=lambda name: (name != "report.html", name))
    if names:
        print(f"\nwritten to {Path(next(iter(written.values()))).parent}/: {', '.join(names)}")


def print_suggestion(found: Suggestion) -> None:
    """The table, its models by what they are, and what it does not say."""
    print(found.table.drop(columns="model").to_string(float_format="{:.4f}".format))
    print("\nscore: log probability of a held-out entry in nats; gain: over no components; seconds: of the fit")
    for remark in found.remarks:
        print(in_words_of_commands(remark))


def print_comparison(comparison: Comparison, num_rows: int) -> None:
    """The comparison, with what its columns mean."""
    print(f"posteriors over the local latents of {num_rows} rows, all at the same globals:\n")
    fixed = dict.fromkeys(("bound", "standard_error", "evidence", "seconds"), "{:.2f}".format)
    small = ("gap_per_row", "gap_error", "kl_per_row", "worst_marginal_error", "marginal_error")
    formats: Any = {**fixed, **dict.fromkeys(small, lambda value: "0" if abs(value) < 1e-9 else f"{value:.4g}")}
    print(comparison.table.to_string(formatters=formats, na_rep="-"))
    for remark in comparison.remarks:
        print(remark)
    print("\nwhat, posterior: how a line's local posterior was had, and its name (lines of one name are the same one);")
    print("gap_per_row: (log evidence - bound) / rows; kl_per_row: KL(q || exact posterior); gap_error,")
    print("marginal_error: standard errors, 0 where what is compared with is exact;")
    print("the bound of an estimate is none: it may lie above, and its gap be negative")
    print("worst_marginal_error: max |E_q[s] - E[s | x]|; points have no bound and no finite divergence")
