"""``ppl show``, ``transform``, ``predict`` and ``recommend``: a saved fit, looked at again and applied to new rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch.distributions import constraints

from custom_inference.core.expected import expect_entries
from custom_inference.core.fit import Fit
from custom_inference.core.registry import family_of
from custom_inference.faces.command_line import output, relations
from custom_inference.faces.command_line.new_rows import read_pairs, read_rows
from custom_inference.faces.command_line.options import NewRowsOptions, PredictOptions, RecommendOptions, ShowOptions
from custom_inference.faces.command_line.report.facts import Occasion
from custom_inference.faces.command_line.run import read_blocks
from custom_inference.faces.command_line.source import Source
from custom_inference.graphs import link_probability
from ppl_models import Data, FileFormatError, MethodError
from ppl_models.data.answers import ANSWERS
from ppl_models.data.held import to_numpy
from ppl_models.data.lazy import is_pandas

#: Rows in the form that a fit takes, and a number or several of each.
Rows = Data | pd.DataFrame
Values = torch.Tensor | np.ndarray | pd.DataFrame
#: The level of the intervals of predicted ratings, as of those in summary.csv.
_LEVEL = 0.9


def show(options: ShowOptions) -> None:
    """Print what ``ppl fit`` printed of a fit."""
    output.require_file(options.json)
    fit = Fit.load(options.fit)
    if fit.model.data_kind == "relations":
        summary = relations.print_clusters(fit, top=options.top)
    else:
        summary = output.summarise(fit, top=options.top)
        output.print_fit(fit, summary, Occasion())
    output.write_json(options.json, {"model": type(fit.model).__name__, "file": str(options.fit), **summary})


def transform(options: NewRowsOptions) -> None:
    """Write the posterior means of the locals of new rows, under the names of the components."""
    _require_place(options.out)
    fit = Fit.load(options.fit)
    if fit.model.data_kind == "relations":
        raise MethodError("ppl transform of IRM, whose clusters are of the entities of the fit; expected ppl show")
    if options.block_rows is None:
        rows, given = read_rows(fit, options.source)
        _write(output.order_columns(fit, _label(fit, rows, fit.transform(rows, **given))), options.out)
        return
    if options.out is None:
        raise MethodError("--block-rows without --out; expected --out FILE")
    blocks = read_blocks(fit.model, Source(**vars(options.source)), options.block_rows)
    output.write_memberships(fit, blocks, options.out)


def predict(options: PredictOptions) -> None:
    """Write what the model predicts of new rows, or of pairs."""
    _require_place(options.out)
    fit = Fit.load(options.fit)
    of_pairs = fit.model.is_graph or fit.model.data_kind in ("ratings", "relations")
    for told, given in (("--fill", options.fill), ("--new", options.new), ("--clip", options.clip)):
        if given and (of_pairs if told == "--fill" else fit.model.data_kind != "ratings"):
            raise MethodError(f"{told} of {type(fit.model).__name__}, for which it has no meaning")
    if of_pairs:
        _write(_predict_pairs(fit, options), options.out, index=False)
    elif family_of(fit.model).predict is not None and not options.fill:
        _write(_predict_responses(fit, options), options.out)
    else:
        rows, given = read_rows(fit, options.source)
        data = fit.read(rows, **given)
        _write(_label(fit, rows, predict_entries(fit, data, fill=options.fill)), options.out)


def recommend(options: RecommendOptions) -> None:
    """Write the items that are best for users, who are called as the data call them."""
    _require_place(options.out)
    fit = Fit.load(options.fit)
    known = {str(label): label for label in fit.data.coords.get("row", range(len(fit.data)))}
    users = None if options.users is None else [known.get(one, one) for one in options.users]
    clip = {"clip": True} if options.clip else {}
    table = fit.recommend(users, options.number, exclude_seen=not options.seen, uncertainty=True, **clip)
    _write(
        _name_columns(fit, table, table["low"], table["high"]).drop(columns=["low", "high"]), options.out, index=False
    )


def _name_columns(fit: Fit, table: pd.DataFrame, low: pd.Series, high: pd.Series) -> pd.DataFrame:
    """Add the ends of intervals to means and sds, under the names of their quantiles; a mean of clicks is their
    probability."""
    clicks = fit.model.sites[fit.model.observed_site].support is constraints.boolean
    table = table.rename(columns={"mean": "probability"}) if clicks else table
    return table.assign(**{f"q{50 * (1 - _LEVEL):g}": low, f"q{50 * (1 + _LEVEL):g}": high})


def _predict_pairs(fit: Fit, options: PredictOptions) -> pd.DataFrame:
    """Links of pairs of nodes, ratings of pairs of users and items, cells of relations."""
    if fit.model.data_kind == "relations":
        return relations.predict_cells(fit, options.source)
    if fit.model.is_graph:
        pairs = read_pairs(fit, options.source, ("source", "target"))
        chance = link_probability(fit, pairs["source"].tolist(), pairs["target"].tolist())
        return pairs.assign(probability=to_numpy(chance))
    pairs = read_pairs(fit, options.source, ("user", "item"))
    asked = pairs["user"].tolist(), pairs["item"].tolist()
    clip = {"clip": True} if options.clip else {}
    found = fit.predict(asked, uncertainty=True, new="prior" if options.new else None, **clip)
    low, high = (pd.Series(to_numpy(end)) for end in found.interval(_LEVEL))
    return _name_columns(fit, pairs.assign(mean=to_numpy(found.mean), sd=to_numpy(found.sd)), low, high)


def _predict_responses(fit: Fit, options: PredictOptions) -> pd.DataFrame:
    """The mean responses, or the probabilities of classes and labels and which is the most probable."""
    model = fit.model
    if model.data_kind == "categories":
        found = f"ppl predict of {type(model).__name__}, which is asked for users and the sets of items they are shown"
        raise MethodError(f"{found}; expected fit.predict((users, shown)) in Python")
    if family_of(model).reads_queries and model.sites_of("given"):  # words by covariates alone
        source = Source(**vars(options.source))
        table: Any = source.table_of_rows()
        table = source.read().dense() if table is None else table
        return _label(fit, table, fit.predict(getattr(table, "x", table)), fit.column_names)
    rows, given = read_rows(fit, options.source)
    if family_of(model).reads_queries:
        return _label(fit, rows, fit.predict(rows, **given), fit.coords[model.row_axis])
    values = to_numpy(fit.predict(rows, **given))
    if values.ndim == 1 and getattr(model, "response", None) in ("binary", "categorical"):
        values = np.stack([1 - values, values], 1)
    if values.ndim == 1:
        return _label(fit, rows, values[:, None], ["response"])
    return _choose_classes(fit, rows, values)


def _choose_classes(fit: Fit, rows: Rows, values: np.ndarray) -> pd.DataFrame:
    """Probabilities of classes or labels, after those that are the most probable; of other responses their means."""
    model, size = fit.model, values.shape[1]
    labels = fit.coords.get("label")
    classes = fit.data.coords.get("class", list(range(size)))
    if labels is not None and len(labels) == size:
        best = ["|".join(str(name) for name, p in zip(labels, row, strict=True) if p > 0.5) for row in values]
        return _label(fit, rows, values, [f"P({name})" for name in labels]).assign(predicted=best)
    kind = getattr(model, "response", "categorical")
    several = getattr(model, "num_responses", None) is not None and fit.data.others.get("response", values).ndim > 1
    if size == model.sizes.get("feature") or several or kind not in ("binary", "categorical"):
        names = fit.column_names if size == model.sizes.get("feature") else fit.coords.get("response", range(size))
        return _label(fit, rows, values, list(names))
    best = [classes[place] for place in values.argmax(1)]
    return _label(fit, rows, values, [f"P({name})" for name in classes]).assign(predicted=best)


def predict_entries(fit: Fit, data: Data, *, fill: bool) -> pd.DataFrame:
    """The entries that the posterior of each row expects: means, of answers the most probable ones.

    fill: only in place of missing entries, others as they are.
    """
    names, labels = fit.column_names, fit.data.coords.get(ANSWERS)
    if fit.model.data_kind == "categories":
        found = expect_entries(fit, data, read=_probabilities).mean.argmax(-1)
    else:
        found = _round_to_errors(*expect_entries(fit, data))
    expected = pd.DataFrame(to_numpy(found.reshape(len(found), -1)), columns=names)
    if fill:
        own = to_numpy(data.dense().x_with_nan).reshape(expected.shape)
        expected = expected.where(np.isnan(own), own)
    if fit.model.data_kind != "categories":
        return expected
    coded = expected.astype(int)
    known = [range(size) for size in coded.max() + 1] if labels is None else labels
    return pd.DataFrame({name: [one[c] for c in coded[name]] for name, one in zip(names, known, strict=True)})


def _probabilities(law: torch.distributions.Distribution) -> torch.Tensor:
    """The probabilities of the categories of every entry, (N, D, C)."""
    plain: Any = law
    while not hasattr(plain, "probs"):
        plain = plain.base_dist
    return plain.probs


def _round_to_errors(mean: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """Leave those decimals of estimates that their standard errors leave, and say how large these are."""
    known = error > 0
    if not bool(known.any()):
        return mean
    largest = float(error[known].max())
    print(f"means over draws, right to {largest:.1g}: their decimals go as far as their errors allow", file=sys.stderr)
    unit = torch.where(known, 10 ** error.double().log10().ceil(), 1.0)
    return torch.where(known, (mean / unit).round() * unit, mean.double())


def _label(fit: Fit, rows: Rows, values: Values, names: list[Any] | None = None) -> pd.DataFrame:
    """A table of the rows by their labels, or by their numbers."""
    own = list(cast(pd.DataFrame, rows).index) if is_pandas(rows, "DataFrame") else cast(Data, rows).coords.get("row")
    if is_pandas(values, "DataFrame"):
        table = values.reset_index(drop=True)
    else:
        found = to_numpy(values)
        found = found.reshape(len(found), -1)
        known = fit.local_names if names is None else names
        fits = len(known) == found.shape[1]
        table = pd.DataFrame(found, columns=known if fits else [f"s{k}" for k in range(found.shape[1])])
    return table.set_axis(pd.Index(range(len(table)) if own is None else own, name="row"), axis=0)


def _write(table: pd.DataFrame, out: Path | None, *, index: bool = True) -> None:
    """A CSV file, or the same on standard output."""
    if out is None:
        print(table.to_csv(float_format="%.6g", index=index), end="")
    else:
        output.write_table(table, out, index=index)


def _require_place(out: Path | None) -> None:
    """Refuse a folder in place of a file to write, before anything is computed."""
    if out is not None and out.is_dir():
        raise FileFormatError(f"{out}: is a folder; --out takes a file")
