"""Whatever is handed over as data, read as what it is: told, or by its header, its content and its entries:
0/1, answers to questions, counts, words, ratings, a graph; and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from custom_inference.checks.kinds import answers_in, kind_of, kind_of_file, read_weights_if_any
from ppl_models import Data, DataError, MethodError, answers, as_matrix, documents, graph, ratings
from ppl_models.core.errors import unknown_name
from ppl_models.data import sparse
from ppl_models.data.answers import ANSWERS, has_words
from ppl_models.data.factors import Factors
from ppl_models.data.files.headers import end_columns
from ppl_models.data.files.reading import file_named
from ppl_models.data.files.tables import TABLES, ending, read_table
from ppl_models.data.held import is_listed, is_text
from ppl_models.data.lazy import is_pandas
from ppl_models.datasets import read_matrix

#: Data kind -> what such data are, in words, and the kinds of models (``Model.data_kind``) that read them.
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "binary": ("rows of 0/1 entries", ("binary",)),
    "categories": ("rows of categories", ("categories",)),
    "counts": ("rows of counts", ("counts",)),
    "documents": ("documents: counts of words", ("documents",)),
    "graph": ("a graph", ("graph", "digraph", "multigraph")),
    "ratings": ("ratings of pairs", ("ratings",)),
    "real": ("rows of real numbers", ("real",)),
}
#: Data kind -> what reads it from all that is no matrix yet.
_DOORS: dict[str, Callable[[Any], Any]] = {
    "documents": documents,
    "graph": lambda x: read_weights_if_any(lambda kind: graph(_with_ends(x), kind=kind)),
    "ratings": ratings,
}
#: A table of whole numbers of so many columns is taken for documents, one of fewer for counts.
_WORDS = 50
#: Rows below which nothing is concluded from values that do not occur.
_FEW = 5
#: Different answers to a question that are taken for categories, and the largest of them; different ratings.
_ANSWERS, _LARGEST, _STEPS = 7, 10, 21
#: Shares of missing cells from which rows may be ratings, and from which they are taken for these.
_MAYBE_RATED, _RATED = 0.08, 0.25
#: Rows from which on a column without two equal entries is taken for the number of the row.
_NUMBERED = 20


class Look(NamedTuple):
    """What data are taken for, what else they may be, and why, for those who know better; "" where it is plain."""

    kind: str
    others: tuple[str, ...] = ()
    why: str = ""


def look_of(data: Data) -> Look:
    """Recognise the kind of rows of numbers by their entries."""
    if ANSWERS in data.coords:
        return Look("categories")
    values = data.entries
    found = values.unique()
    whole = not bool((found != found.round()).any()) and not bool((found < 0).any())
    if whole and bool((found <= 1).all()):
        return _of_bits(data)
    share = 1 - values.numel() / max(1, data.x.shape[0] * data.x.shape[1])
    answered = _answers(data) if whole and not data.is_sparse and len(data) >= _FEW else 0
    complete = not data.is_sparse and len(data) >= _FEW and bool((found > 0).all())
    in_steps = complete and 2 < len(found) <= _STEPS and not bool((2 * found != (2 * found).round()).any())
    if in_steps and share >= _RATED:
        why = f"{share:.0%} of the cells are missing, and there are {len(found)} different values, none of them 0"
        return Look("ratings", ("categories", "counts") if whole else ("real",), why)
    maybe = ("ratings",) if in_steps and share >= _MAYBE_RATED else ()
    if not whole:
        return Look("real", maybe, "cells are missing, and values come in few steps" if maybe else "")
    if answered:
        return Look("categories", ("counts", *maybe), f"there are {answered} different whole numbers, and no 0")
    maybe = (*maybe, "categories") if in_steps and len(found) <= _LARGEST else maybe
    why = f"there are {len(found)} different whole numbers, and no 0" if maybe else ""
    if data.num_features >= _WORDS:
        return Look("documents", ("counts", *maybe), why)
    return Look("counts", ("documents", *maybe), why)


def _answers(data: Data) -> int:
    """How many different answers there are, few and none of them 0; 0 where these are no answers.

    Columns without two equal entries number the rows, and say nothing of the others.
    """
    each = [column[seen].unique() for column, seen in zip(data.x.T, data.observed.T, strict=True)]
    kept = [answers for answers in each if len(data) < _NUMBERED or len(answers) < len(data)]
    found = torch.cat(kept).unique() if kept else data.x.new_empty(0)
    few = 2 < len(found) <= _ANSWERS and float(found.min()) > 0 and float(found.max()) <= _LARGEST
    return len(found) if few else 0


def _of_bits(data: Data) -> Look:
    """Rows of 0/1 entries, or the adjacency matrix of a graph."""
    if data.x.ndim != 2 or not (len(data) == data.x.shape[1] >= _FEW) or data.mask is not None:
        return Look("binary")
    matrix: Any = sparse.to_scipy(data.x) if data.is_sparse else data.x.cpu().numpy()
    if np.any(matrix.diagonal()) or not matrix.sum():
        return Look("binary")
    differs = matrix != matrix.T
    if differs.sum():
        return Look("binary", ("graph",), "it is a square with an empty diagonal")
    return Look("graph", ("binary",), "it is a symmetric square of 0/1 with an empty diagonal")


def _with_ends(x: Any) -> Any:
    """A frame of edges whose columns have other names than those of edges under these."""
    if not is_pandas(x, "DataFrame") or x.shape[1] not in (2, 3) or end_columns(list(x.columns)) is not None:
        return x
    return x if len(x) == x.shape[1] else x.set_axis(["source", "target", "weight"][: x.shape[1]], axis=1)


def recognise(x: Any, kind: str | None, among: Sequence[str] = ()) -> tuple[str, Data, Look | None]:
    """Recognise the kind of the data: return the kind, the data, and, for rows of numbers, the reason. among: kinds to
    choose from."""
    if kind is not None and kind not in KINDS:
        raise MethodError(unknown_name("kind of data", kind, KINDS))
    own = x.container if isinstance(x, Data) else ""
    if own in ("graph", "ratings"):
        if kind not in (None, own):
            raise DataError(f"kind = {kind!r} of {type(x).__name__}", expected=own)
        return own, x, None
    if own == "sequences":
        expected = "rows, documents, a graph or ratings: sequences have one model, LDAHMM"
        raise DataError("token sequences", expected=expected)
    held: Any = x
    if is_listed(held) and len(held) and is_text(held[0]):
        kind = kind or "documents"
    file = file_named(x, "rows, documents, a graph, ratings, or the path of a file")
    if kind is None:
        kind = kind_of(x, among=among) if file is None else kind_of_file(file, among=among)
    if kind in _DOORS and not own:
        return kind, _DOORS[kind](x), None
    data = None
    if kind in ("categories", "binary") and not own:  # a table that has words
        table = read_table(file) if file is not None and ending(file) in TABLES else x
        if has_words(table):
            table = answers_in(table) if is_pandas(table, "DataFrame") else table
            data = answers(table) if kind == "categories" else as_matrix(Factors().number_two_valued("x", table))
    if data is None:
        x = x if file is None else read_matrix(file, keep_sparse=True)
        data = ratings(x) if kind == "ratings" else as_matrix(x, keep_sparse=True)
    look = look_of(data) if kind is None else None
    if look is not None:
        meant = [one for one in look.others if one in among]
        kind = look.kind if look.kind in among or not meant else meant[0]
        look = look if kind == look.kind else None
    assert kind is not None
    return kind, _convert(kind, data), look


def _convert(kind: str, data: Data) -> Data:
    """Rows of numbers as the container of what they are: a graph, ratings, answers numbered from 0."""
    if kind == "graph":
        return graph(data)
    if kind == "ratings":
        return data if data.container == "ratings" else ratings(data)
    if kind == "categories" and ANSWERS not in data.coords:
        data = data.dense()
        seen = data.entries
        return answers(data) if bool((seen >= 1).all()) else data
    return data


def otherwise(look: Look | None) -> list[str]:
    """How to say that data are not what they were taken for."""
    if look is None or not look.why:
        return []
    told = " or ".join(f"kind={other!r} (--kind {other})" for other in look.others)
    return [f"as {look.why}, the data are taken for {look.kind}; {told} says otherwise"]
