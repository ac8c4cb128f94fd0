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
from matplotlib.figure import Figure

from custom_inference._axes import INK, MUTED, new_figure
from custom_inference.default import fit as default_fit
from custom_inference.documents import held_out
from ppl_models import MODELS, Data, DataWarning, DocumentModel, MethodError, ModelError, as_documents
from ppl_models._errors import unknown_name


@dataclass(frozen=True)
class CrossValidation:
    """folds: a line for every number of topics and fold: ``perplexity``, ``tokens`` scored, ``seconds`` of the fit.

    how: what was scored. name: of the model.
    """

    folds: pd.DataFrame
    how: str
    name: str

    @property
    def table(self) -> pd.DataFrame:
        """By number of topics: the mean perplexity, its standard error over the folds, and the seconds of a fit."""
        grouped: Any = self.folds.groupby("num_topics")
        score, seconds = grouped["perplexity"], grouped["seconds"]
        return pd.DataFrame({"perplexity": score.mean(), "error": score.sem(), "seconds": seconds.mean()})

    @property
    def best(self) -> int:
        """The number of topics of the lowest mean perplexity."""
        table = self.table
        return int(table.index[table["perplexity"].to_numpy().argmin()])

    def plot(self, *, title: str | None = None) -> Figure:
        """Perplexity against the number of topics: every fold, and the mean with its standard error."""
        figure, table = new_figure(6.4, 4.2), self.table
        axes = figure.subplots()
        axes.scatter(self.folds["num_topics"], self.folds["perplexity"], s=14, color=MUTED, label="fold", zorder=2)
        bars = table["error"].fillna(0).to_numpy()
        mean: dict[str, Any] = {"marker": "o", "markersize": 4, "capsize": 3, "label": "mean and its standard error"}
        axes.errorbar(table.index.to_numpy(), table["perplexity"].to_numpy(), bars, color=INK, **mean)
        axes.set_xticks(table.index.to_list())
        axes.set(xlabel="number of topics", ylabel=f"held-out perplexity ({self.how})")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
        figure.suptitle(title or f"{self.name}: {len(self.folds['fold'].unique())}-fold cross-validation")
        return figure


def cross_validate(
    family: type[DocumentModel] | str,
    x: Any,
    num_topics: Sequence[int],
    *,
    folds: int = 5,
    how: str = "completion",
    per: str = "token",
    floor: float = 1e-12,
    seed: int = 0,
    method: Any = None,
    model: Mapping[str, Any] | None = None,
    fitting: Mapping[str, Any] | None = None,
    scoring: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> CrossValidation:
    """Held-out perplexity of a document model for several numbers of topics, by folds of documents.

    family: LDA, PLSA, MixtureOfMultinomials, ... or its name in ``MODELS``.
    how, per, floor: as in :func:`custom_inference.documents.perplexity`; scoring: further settings of it. Topics are
        floored, as words of the held-out documents need not occur in the others.
    method, fitting: as in :func:`custom_inference.fit`. model: settings of the model, and ``alpha``, ``gamma`` for
        ``with_concentration``. Documents are put into folds by ``seed``; the same for every number of topics.
    """
    kind = _family(family)
    data = as_documents(x, dtype=torch.float64)
    if not 2 <= folds <= len(data):
        raise MethodError(f"folds = {folds}, expected 2 to the {len(data)} documents")
    sizes = list(dict.fromkeys(int(size) for size in num_topics))
    if not sizes:
        raise MethodError("no numbers of topics to choose from")
    part = np.random.default_rng(seed).permutation(np.arange(len(data)) % folds)
    lines = []
    for size in sizes:
        made = _model(kind, data, size, model or {})
        if not lines:
            made.check_for_fitting(data)
        for fold in range(folds):
            train, test = (data.rows(torch.as_tensor(np.flatnonzero(which))) for which in (part != fold, part == fold))
            begin = time.perf_counter()
            with warnings.catch_warnings():
                # Empty documents and words were said of the whole; every fold has some more of them.
                warnings.filterwarnings("ignore", category=DataWarning, message=".*(occur in no document|are empty)")
                fitted = default_fit(made, train, seed=seed, method=method, progress=progress, **(fitting or {}))
            seconds = time.perf_counter() - begin
            score = held_out(fitted, test, how=how, floor=floor, **(scoring or {}))
            lines.append(
                {
                    "num_topics": size,
                    "fold": fold,
                    "perplexity": score.perplexity(per),
                    "tokens": int(score.tokens.sum()),
                    "seconds": seconds,
                }
            )
    return CrossValidation(pd.DataFrame(lines), how, kind.__name__)


def _family(family: type[DocumentModel] | str) -> type[DocumentModel]:
    kind: Any = family
    if isinstance(family, str):
        if family.lower() not in MODELS:
            raise ModelError(unknown_name("model", family, MODELS))
        kind = MODELS[family.lower()]
    if not (isinstance(kind, type) and issubclass(kind, DocumentModel)):
        raise MethodError(f"{getattr(kind, '__name__', kind)!r} is no model of documents")
    return kind


def _model(kind: type[DocumentModel], data: Data, size: int, settings: Mapping[str, Any]) -> Any:
    given = dict(settings)
    concentration = {name: given.pop(name) for name in ("alpha", "gamma") if name in given}
    made: Any = kind.for_data(data, size, **given)
    return made.with_concentration(**concentration) if concentration else made
