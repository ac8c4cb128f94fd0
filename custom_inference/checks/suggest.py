"""Which models apply to data, and which of them predicts best what it has not seen? One call."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd
import torch

from custom_inference.checks import held_entries
from custom_inference.checks.held_entries import Held
from custom_inference.checks.read_as import KINDS, Look, otherwise, recognise
from custom_inference.core.fit import Fit, require_complete
from custom_inference.core.progress import Progress
from custom_inference.methods import fit as default_fit
from ppl_models import MODELS, Data, MethodError, Model
from ppl_models.core.answer_models import categories_of
from ppl_models.core.errors import DataWarning, PPLError, own_errors, unknown_name
from ppl_models.data.columns import warn_of_answers, warn_of_ids
from ppl_models.data.held import is_text

#: Data kind of graphs with weights, whole numbers, and what such data are.
_WEIGHTED = ("multi", "a graph whose edges have weights")
#: How these are left out.
_WITHOUT = "graph(source, weight=False) leaves the weights out"
#: Data kind -> what holds a share of the data out.
HELD: dict[str, Callable[[Any, float, int], Held[Any, Any]]] = {
    **{kind: partial(held_entries.hold_out_entries, baseline=one) for kind, one in held_entries.BASELINES.items()},
    "documents": held_entries.hold_out_tokens,
    "graph": held_entries.hold_out_pairs,
    "ratings": held_entries.hold_out_ratings,
}
#: Models that are another's program in other sites, or that need what is given in fields of theirs.
_LEFT_OUT = ("choice_pmf", "covariate_sbm", "mixture_of_multinomial_counts", "multinomial_pca")
#: Models that search for as long as all others together, and the data of which they do: (rows, columns, sum of the
#: entries). There they are compared only where they are named.
_SLOW: dict[str, Callable[[int, int, float], bool]] = {
    "helmholtz_machine": lambda *_: True,
    "replicated_softmax": lambda rows, columns, tokens: tokens > 30_000,
    "softmax_pca": lambda rows, columns, tokens: rows * columns > 100_000,
}
#: Entries other than 0 that are compared: of long documents as many as short ones have.
_ENTRIES = 60_000
#: Rows that are compared however many entries they have.
_FEW = 50


@dataclass(frozen=True)
class Suggestion:
    """The result of :func:`suggest`.

    kind: what the data were taken for. table: a line for every model that applies, the best first: ``score``, the log
    probability that it gives to a held-out entry (token, pair of nodes, rating) in nats, higher is better; ``gain``
    over the baseline, which has no components; ``seconds`` of the fit; ``model``, in a sentence. refused: model -> why
    it has no line. interrupted: Ctrl-C ended it; the table has the models until then. rows: how many of the data's were
    compared. slow: models that apply but take longer than all others together, and were not named. look: why the data
    were taken for what they are, and what else they may be.
    """

    kind: str
    table: pd.DataFrame
    baseline: float
    models: dict[str, Model]
    data: Data = field(repr=False)
    refused: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False
    rows: int | None = None
    slow: tuple[str, ...] = ()
    look: Look | None = None

    @property
    def best(self) -> Model:
        """The model of the highest score, for all of the data."""
        return self.models[str(self.table.index[0])]

    def fit(self, **settings: Any) -> Fit:
        """The default fit of the best model to all of the data. settings: of :func:`custom_inference.fit`."""
        return default_fit(self.best, self.data, **settings)

    @property
    def remarks(self) -> list[str]:
        """What the table does not say."""
        what = f"{_WEIGHTED[1]} ({_WITHOUT})" if _has_weights(self.data) else KINDS[self.kind][0]
        first = f"taken for {what}; without components: {self.baseline:.4f} nats an entry"
        if self.rows is not None and self.rows < len(self.data):
            first = f"{first}; compared on {self.rows} of {len(self.data)} rows, drawn at random"
        found = [*otherwise(self.look), first]
        if not bool((self.table["gain"] > 0).any()):
            found.append("no model predicts better than no components do")
        if self.slow:
            found.append(f"not compared, as slow on such data: {', '.join(self.slow)}; name them in models")
        return found + [f"{name} refused: {reason}" for name, reason in self.refused.items()]

    def __repr__(self) -> str:
        return "\n".join([self.table.to_string(float_format=lambda value: f"{value:.4f}"), *self.remarks])

    def _repr_html_(self) -> str:
        from custom_inference.faces import displays

        return displays.report(f"{len(self.table)} models that apply", *self.remarks, table=self.table)


def suggest(
    x: Any,
    num_components: int,
    *,
    kind: str | None = None,
    models: Sequence[str] | None = None,
    share: float = 0.2,
    max_rows: int = 2000,
    seed: int = 0,
    progress: bool = True,
) -> Suggestion:
    """Fit every model that applies with its defaults, and compare how well they predict what was held out.

    x: what ``fit`` takes: rows, texts, a graph, ratings; or the path of a file of them. kind: what the data are, one of
        ``KINDS``; by default what they look like: tables and lists of pairs are edges or ratings by the names of their
        columns and what is in them; few words, and few whole numbers none of which is 0, are categories, with a quarter
        of the cells missing ratings; a symmetric square of 0/1 a graph; other whole numbers counts, or documents from
        50 columns on. The result says why where it may be something else.
    models: names of the models to compare; by default all that read such data and need nothing beside, but for those
        that take longer on them than all others together (the Helmholtz machine; of long documents the replicated
        softmax and softmax PCA), which the result names.
    share: of the entries of every row that is held out (tokens of every document, pairs of nodes, ratings). The score
        is the mean over the rows of log p(held out | observed entries of the row, fitted globals) an entry, the local
        posterior averaged over (draws); of graphs that of the pairs being linked, of ratings that of a normal
        distribution around the prediction with the best variance.
    max_rows: of more rows so many at random, by ``seed``, are compared; of rows with many entries other than 0 (long
        documents) fewer. What ``Suggestion.fit`` fits are all of them.

    Ctrl-C returns the models that are done. Raises DataError for data that no model reads, MethodError for unknown
    names; if every model refuses, the first error.
    """
    if not 0 < share < 1:
        raise MethodError(f"share = {share}, expected a number between 0 and 1")
    found, data, look = recognise(x, kind, kinds_read_by(models))
    if found in ("counts", "documents"):
        warn_of_ids(data)  # what is held out of such a column hides what it is
    if found == "categories":
        warn_of_answers(data)
    some = _some(data, max_rows, seed)
    names, slow = _applicable(found, models, data, look), ()
    if models is None:
        table = some.container not in ("graph", "ratings")
        size = (len(some), some.num_features, float(some.stored.nansum())) if table else (len(some), 0, 0.0)
        slow = tuple(name for name in names if name in _SLOW and _SLOW[name](*size))
        names = [name for name in names if name not in slow]
    held = HELD[found](some, share, seed)
    # What is held out must not be an answer that no part of the model knows of.
    sizes = {"num_categories": categories_of(data)} if found == "categories" else {}
    rows, refused, interrupted = _compare_models(names, held, num_components, seed, sizes, progress)
    programs = {name: MODELS[name].for_data(data, num_components, **sizes) for name in rows}
    table = pd.DataFrame.from_dict(rows, orient="index").sort_values("score", ascending=False)
    table.insert(1, "gain", table["score"] - held.baseline)
    reasons = {name: str(error).partition("\n")[0] for name, error in refused.items()}
    return Suggestion(
        found, table.rename_axis("name"), held.baseline, programs, data, reasons, interrupted, len(some), slow, look
    )


def _compare_models(
    names: Sequence[str], held: Held[Any, Any], num_components: int, seed: int, sizes: dict[str, Any], progress: bool
) -> tuple[dict[str, dict[str, Any]], dict[str, PPLError], bool]:
    """Fit the models and score them; those that refused, and whether Ctrl-C ended it before the last.

    Raises the first model's error where all refuse.
    """
    rows, refused, interrupted = {}, {}, False
    with Progress(len(names), "models", enabled=progress) as bar:
        try:
            for name in names:
                bar.label(name)
                try:
                    rows[name] = _line(name, held, num_components, seed, sizes)
                except PPLError as error:
                    refused[name] = error
                bar.advance()
        except KeyboardInterrupt:
            if not rows:
                raise
            interrupted = True
    if not rows:
        raise next(iter(refused.values()))
    return rows, refused, interrupted


def _line(name: str, held: Held[Any, Any], num_components: int, seed: int, sizes: dict[str, Any]) -> dict[str, Any]:
    begin = time.perf_counter()
    with own_errors(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # all of the data were read, and warned of, once
        model = MODELS[name].for_data(held.train, num_components, **sizes)
        fit = require_complete(default_fit(model, held.train, seed=seed, progress=False))
        seconds = time.perf_counter() - begin
        score = held.score(fit)
    if not math.isfinite(score):
        raise MethodError(f"{name}: log probability {score} of what was held out")
    return {"score": score, "seconds": seconds, "model": MODELS[name].summary}


def kinds_read_by(wanted: Sequence[str] | None) -> list[str]:
    """The kinds of data that the models of these names read."""
    names = [] if wanted is None or is_text(wanted) else [name for name in wanted if name in MODELS]
    return [kind for kind in KINDS if any(_applies(MODELS[name], kind) for name in names)]


def _has_weights(data: Data) -> bool:
    return data.container == "graph" and bool((data.stored > 1).any())


def _applicable(kind: str, wanted: Sequence[str] | None, data: Data, look: Look | None = None) -> list[str]:
    """Models that read such data and need nothing beside."""
    able = [name for name, one in MODELS.items() if name not in _LEFT_OUT and _applies(one, kind)]
    what, hints = KINDS[kind][0], otherwise(look)
    if _has_weights(data):
        what, hints = _WEIGHTED[1], [_WITHOUT]
        able = [name for name in able if MODELS[name].example().model.data_kind.startswith(_WEIGHTED[0])]
    if is_text(wanted):
        raise MethodError(f"models = {wanted!r}, expected a list of names")
    for name in wanted or ():
        if name not in able:
            raise MethodError("; ".join([unknown_name(f"model of {what}", name, able), *hints]))
    return able if wanted is None else list(wanted)


def _applies(one: type[Model], kind: str) -> bool:
    example = one.example().model
    return example.data_kind in KINDS[kind][1] and not example.other_sites


def _some(data: Data, max_rows: int, seed: int) -> Data:
    """Choose so many rows at random, fewer if they have many nonzero entries; graphs and ratings stay whole."""
    if data.container in ("graph", "ratings"):
        return data
    stored = data.x.values().numel() if data.is_sparse else 0
    if stored > _ENTRIES:
        max_rows = min(max_rows, max(_FEW, _ENTRIES * len(data) // stored))
    if len(data) <= max_rows:
        return data
    picked = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:max_rows]
    return data.rows(picked.sort().values)
