"""Choosing the number of topics by documents that were held out."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from custom_inference.core.fit import Fit, require_complete
from custom_inference.core.method import Method
from custom_inference.documents.scores import held_out, without_observed
from custom_inference.methods import fit as default_fit
from ppl_models import MODELS, Data, DataWarning, MethodError, Model, ModelError
from ppl_models.core.errors import unknown_name
from ppl_models.core.unsized import with_sizes
from ppl_models.data.held import Source, is_text


@dataclass(frozen=True)
class CrossValidation:
    """folds: a line for every number of topics and fold: ``perplexity``, ``tokens`` scored, ``seconds`` of the fit.

    how: what was scored. name: of the model. interrupted: Ctrl-C ended it; these are the folds until then, of the
    numbers of topics whose folds are all there (of the first one those that are).
    """

    folds: pd.DataFrame
    how: str
    name: str
    interrupted: bool = False

    @property
    def table(self) -> pd.DataFrame:
        """Mean perplexity, its standard error over the folds and the seconds of a fit, by number of topics."""
        grouped: Any = self.folds.groupby("num_topics")
        score, seconds = grouped["perplexity"], grouped["seconds"]
        return pd.DataFrame({"perplexity": score.mean(), "error": score.sem(), "seconds": seconds.mean()})

    def _repr_html_(self) -> str:
        from custom_inference.faces import displays

        title = f"Cross-validation of {self.name}: best with {self.best} topics"
        return displays.report(title, f"perplexity, {self.how}", table=self.table, plot=self.plot)

    @property
    def best(self) -> int:
        """The number of topics of the lowest mean perplexity."""
        table = self.table
        return int(table.index[table["perplexity"].to_numpy().argmin()])

    def plot(self, **settings: Any) -> Any:
        """Perplexity against the number of topics: every fold, and the mean with its standard error.

        settings: ``title``, and ``ax`` to draw on; returns that, or a new Figure.
        """
        from custom_inference.documents.plots import plot_cross_validation

        return plot_cross_validation(self, **settings)


def cross_validate(
    family: type[Model] | str,
    x: Any,
    num_topics: Sequence[int],
    *,
    folds: int = 5,
    how: str = "completion",
    per: str = "token",
    floor: float = 1e-12,
    seed: int = 0,
    method: Method | str | None = None,
    model: Mapping[str, Any] | None = None,
    fitting: Mapping[str, Any] | None = None,
    scoring: Mapping[str, Any] | None = None,
    progress: bool = False,
    **others: Any,
) -> CrossValidation:
    """Held-out perplexity of a document model for several numbers of topics, by folds of documents.

    family: LDA, PLSA, MixtureOfMultinomials, ... or its name in ``MODELS``.
    how, per, floor: as in :func:`custom_inference.documents.perplexity`; scoring: further settings of it. Topics are
        floored, as words of the held-out documents need not occur in the others.
    method, fitting: as in :func:`custom_inference.fit`. model: settings of the model, and ``alpha``, ``gamma`` for
        ``with_concentration``. Documents are put into folds by ``seed``; the same for every number of topics.
    others: what stands beside the words, as for ``fit``. What documents are given is given to their scores, too; what
        is observed (responses, links) is not: scores are of words.
    """
    kind = _family(family)
    sizes = list(dict.fromkeys(int(size) for size in num_topics))
    if not sizes:
        raise MethodError("no numbers of topics to choose from")
    models, data = _size_models(kind, sizes, model or {}, x, others)
    if not 2 <= folds <= len(data):
        raise MethodError(f"folds = {folds}, expected 2 to the {len(data)} documents")
    part = np.random.default_rng(seed).permutation(np.arange(len(data)) % folds)
    lines: list[dict[str, Any]] = []
    interrupted = False
    try:
        for size, made in zip(sizes, models, strict=True):
            if not lines:
                made.check_for_fitting(data)
            for fold in range(folds):
                train, test = (data.rows(torch.as_tensor(np.flatnonzero(w))) for w in (part != fold, part == fold))
                begin = time.perf_counter()
                fitted = _fit_fold(made, train, seed=seed, method=method, progress=progress, **(fitting or {}))
                seconds = time.perf_counter() - begin
                score = held_out(fitted, without_observed(made, test), how=how, floor=floor, **(scoring or {}))
                found = {"perplexity": score.perplexity(per), "tokens": int(score.tokens.sum()), "seconds": seconds}
                lines.append({"num_topics": size, "fold": fold, **found})
    except KeyboardInterrupt:
        if not lines:
            raise
        interrupted = True
        whole = [line for line in lines if sum(line["num_topics"] == other["num_topics"] for other in lines) == folds]
        lines = whole or lines
    return CrossValidation(pd.DataFrame(lines), how, kind.__name__, interrupted)


def _size_models(
    kind: type[Model], sizes: list[int], model: Mapping[str, Any], x: Source, others: Mapping[str, Any]
) -> tuple[list[Any], Data]:
    """Return models with so many topics, of the sizes of the data, and the data as they read them."""
    concentration = {name: value for name, value in model.items() if name in ("alpha", "gamma")}
    axis = kind.axes["component"]
    settings, models = {name: value for name, value in model.items() if name not in concentration}, []
    for size in sizes:
        made, x = with_sizes(kind(**{axis: size}, **settings), x, others)
        models.append(made.with_concentration(**concentration) if concentration else made)
    return models, models[0].prepare(x, dtype=torch.float64, **others)


def _fit_fold(model: Model, train: Data, **settings: Any) -> Fit:
    """The fit of a fold; one that was interrupted is no fit to be scored."""
    with warnings.catch_warnings():
        # Empty documents and words were said of the whole; every fold has some more of them.
        warnings.filterwarnings("ignore", category=DataWarning, message=".*(occur in no document|are empty)")
        return require_complete(default_fit(model, train, **settings))


def _family(family: type[Model] | str) -> type[Model]:
    kind: Any = family
    if is_text(family):
        if kind.lower() not in MODELS:
            raise ModelError(unknown_name("model", kind, MODELS))
        kind = MODELS[kind.lower()]
    if not (isinstance(kind, type) and issubclass(kind, Model) and kind.example().model.data_kind == "documents"):
        raise MethodError(f"{getattr(kind, '__name__', kind)!r} is no model of documents")
    return kind
