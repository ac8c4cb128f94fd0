"""The named statistics, by kind of data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from custom_inference.checks import row_statistics as _rows
from custom_inference.checks import sparse_statistics as _sparse
from custom_inference.checks.copies import Law
from ppl_models import MethodError
from ppl_models.core.errors import unknown_name


@dataclass(frozen=True)
class Statistic:
    """A function of data whose value in the observed ones is compared with its values in copies.

    function: T(x), a number or an array, of x as its kind of data has it: an ndarray (N, D), or a numpy masked array
        where entries are missing; of documents and graphs a scipy sparse array (N, V) or (N, N).
    needs: "x"; "draw" for a realised discrepancy T(x, local, globals), the latter two a draw from the posterior as
        ndarrays, globals by site; "law" for one that adds up over entries, T(values, :class:`Law`).
    entries: of what an array has one entry: "feature", "pair" (of features), "value", "answer", or "" for a number.
    text: what it is; by default the first paragraph of the function's docstring.
    """

    function: Callable[..., Any]
    needs: str = "x"
    entries: str = ""
    text: str = ""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise MethodError(f"a statistic that is a {type(self.function).__name__}, expected a function of the data")

    @property
    def meaning(self) -> str:
        """The meaning of the statistic, in a sentence."""
        return self.text or " ".join((inspect.getdoc(self.function) or "").split("\n\n")[0].split())


def log_likelihood(x: Tensor, law: Law) -> Tensor:
    """log p(x | locals, globals) at the same draw of the latents (Gelman, Meng & Stern, *Posterior predictive
    assessment of model fitness via realized discrepancies*, Statistica Sinica 6, 1996)."""
    return law.log_prob(x)


def chi_square(x: Tensor, law: Law) -> Tensor:
    """sum (x - E[x | s])^2 / Var(x | s) over the entries, at the same draw s of the latents (Gelman, Meng & Stern 1996,
    eq. 8); of word counts, whose sum is given, with E in place of Var (Pearson)."""
    variance = law.variance
    inside = variance > torch.finfo(variance.dtype).tiny
    squares = torch.where(inside, (x - law.mean) ** 2 / variance.clamp_min(torch.finfo(variance.dtype).tiny), 0.0)
    return law.total(squares)


#: Statistic -> of what its array has one entry.
_ENTRIES = {
    **dict.fromkeys(("column_mean", "column_variance", "word_total", "document_frequency"), "feature"),
    **dict.fromkeys(("correlation", "covariance", "association"), "pair"),
    "value_frequency": "value",
    "answer_share": "answer",
}


def _of(module: ModuleType, *names: str) -> dict[str, Statistic]:
    """Statistics of a module: those of its table ``SIMPLE``, or functions of their own."""
    found = {name: module.SIMPLE.get(name) or (getattr(module, name), "") for name in names}
    return {name: Statistic(one, entries=_ENTRIES.get(name, ""), text=text) for name, (one, text) in found.items()}


_LIKELIHOOD = {"log_likelihood": Statistic(log_likelihood, "law")}
_REALISED = {**_LIKELIHOOD, "chi_square": Statistic(chi_square, "law")}
_INFORMATION = {"word_document_information": Statistic(_sparse.word_document_information, "proportions")}
_GRAPH = {
    **_of(_sparse, "density", "degree_variance", "degree_max", "isolated_nodes", "transitivity", "assortativity"),
    **_of(_sparse, "components", "largest_component", "efficiency", "spectral_gap"),
}
_DIGRAPH = _of(_sparse, "in_degree_variance", "in_degree_max", "reciprocity")
_MULTIGRAPH = _of(_sparse, "edge_total", "edge_dispersion", "edge_max")
_BINARY = ("mean", "row_total_variance", "row_total_max", "empty_rows", "distinct_rows", "column_mean", "correlation")
_COUNTS = (
    "mean",
    "zero_share",
    "max",
    "dispersion",
    "row_total_variance",
    "column_mean",
    "value_frequency",
    "correlation",
)
_WORDS = ("distinct_words", "distinct_words_variance", "vocabulary", "max_count", "burstiness", "dispersion")
_SHAPE = ("mean", "variance", "skewness", "kurtosis", "min", "max", "column_mean", "column_variance", "covariance")
_ANSWERS = ("agreement", "uniform_rows", "modal_share_variance", "row_mean_variance", "distinct_rows", "answer_share")

#: Kind of data (:attr:`ppl_models.Model.data_kind`) -> name -> statistic: what a check looks at by default.
STATISTICS: dict[str, dict[str, Statistic]] = {
    "binary": _of(_rows, *_BINARY) | _REALISED,
    "counts": _of(_rows, *_COUNTS, "correlation") | _REALISED,
    "documents": _of(_sparse, *_WORDS, "word_total", "document_frequency") | _INFORMATION | _REALISED,
    "sequences": _of(_rows, "words_used", "same_word_again", "neighbours_information") | _LIKELIHOOD,
    "real": _of(_rows, *_SHAPE) | _REALISED,
    "ratings": _of(_rows, "mean", "variance", "min", "max", "column_mean", "column_variance") | _REALISED,
    "categories": _of(_rows, *_ANSWERS, "association") | _LIKELIHOOD,
    "graph": _GRAPH | _REALISED,
    "digraph": _GRAPH | _DIGRAPH | _REALISED,
    "multigraph": _GRAPH | _MULTIGRAPH | _REALISED,
    "multidigraph": _GRAPH | _DIGRAPH | _MULTIGRAPH | _REALISED,
}

Given = Mapping[str, Callable[..., Any]] | Sequence[str | Mapping[str, Callable[..., Any]]] | str | None


def select_statistics(kind: str, given: Given) -> dict[str, Statistic]:
    """The statistics that were asked for, by name: of the kind of data, and functions.

    Raises MethodError for a name that the kind does not have, and for what is no function of one or three arguments.
    """
    if kind not in STATISTICS:
        raise MethodError(unknown_name("kind of data", kind, STATISTICS))
    if given is None:
        return dict(STATISTICS[kind])
    found: dict[str, Statistic] = {}
    for one in [given] if isinstance(given, str | Mapping) else given:
        if isinstance(one, Mapping):
            found |= {str(name): _own(str(name), function) for name, function in one.items()}
        elif one in STATISTICS[kind]:
            found[one] = STATISTICS[kind][one]
        else:
            raise MethodError(unknown_name(f"statistic of {kind} data", one, STATISTICS[kind]))
    if not found:
        raise MethodError(f"no statistics; valid: {', '.join(sorted(STATISTICS[kind]))}")
    return found


def _own(name: str, function: Callable[..., Any] | Statistic) -> Statistic:
    """A user's function: of x, or of x, local and globals, by the number of arguments that it needs."""
    if isinstance(function, Statistic):
        return function
    statistic = Statistic(function)
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # compiled functions may have no signature
        return statistic
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.default is p.empty and p.kind in positional]
    if len(needed) not in (1, 3):
        arguments = ", ".join(p.name for p in needed) or "none"
        raise MethodError(
            f"statistic '{name}' needs {len(needed)} arguments ({arguments}), expected 1 (the data) or 3 (the data, a "
            "draw of the locals, a mapping of draws of the globals)"
        )
    return Statistic(function, "draw" if len(needed) == 3 else "x")
