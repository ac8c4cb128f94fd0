"""Whatever is handed over as data, read as what it is: told, or by its header, its content and its entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from custom_inference.checks.kinds import answers_in, kind_of, kind_of_file, read_weights_if_any
from custom_inference.checks.looks import Look, look_of
from ppl_models import (
    Data,
    DataError,
    GraphData,
    MethodError,
    Ratings,
    Sequences,
    answers,
    as_matrix,
    documents,
    graph,
    ratings,
)
from ppl_models.core.errors import unknown_name
from ppl_models.data.answers import ANSWERS, has_words
from ppl_models.data.files.headers import end_columns
from ppl_models.data.files.reading import file_named
from ppl_models.data.files.tables import TABLES, ending, read_table
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
    if isinstance(x, GraphData | Ratings):
        given = "graph" if isinstance(x, GraphData) else "ratings"
        if kind not in (None, given):
            raise DataError(f"kind = {kind!r} of {type(x).__name__}", expected=given)
        return given, x, None
    if isinstance(x, Sequences):
        raise DataError(
            "token sequences", expected="rows, documents, a graph or ratings: sequences have one model, LDAHMM"
        )
    if isinstance(x, Sequence) and not isinstance(x, str) and len(x) and isinstance(x[0], str):
        kind = kind or "documents"
    file = file_named(x, "rows, documents, a graph, ratings, or the path of a file")
    if kind is None:
        kind = kind_of(x, among=among) if file is None else kind_of_file(file, among=among)
    if kind in _DOORS and not isinstance(x, Data):
        return kind, _DOORS[kind](x), None
    data = _answers(x, file) if kind == "categories" else None
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


def _answers(x: Any, file: Any) -> Data | None:
    """The answers of a table that has words; None where there are none."""
    table = read_table(file) if file is not None and ending(file) in TABLES else x
    if isinstance(table, Data) or not has_words(table):
        return None
    return answers(answers_in(table) if is_pandas(table, "DataFrame") else table)


def _convert(kind: str, data: Data) -> Data:
    """Rows of numbers as the container of what they are: a graph, ratings, answers numbered from 0."""
    if kind == "graph":
        return graph(data)
    if kind == "ratings":
        return data if isinstance(data, Ratings) else ratings(data)
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
