"""Recognition of what a table, a list or a file holds, by header and content: edges, ratings, texts, or rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ppl_models import DataError, DataWarning, FileFormatError, GraphData
from ppl_models.data.answers import has_words
from ppl_models.data.factors import are_written_numbers, is_two_valued
from ppl_models.data.files.corpora import format_of_name, looks_like, read_lines
from ppl_models.data.files.edge_lines import are_edges_with_attributes
from ppl_models.data.files.graphs import GRAPHS
from ppl_models.data.files.headers import Header, end_columns, fields_of, find_header, plain_name, separator
from ppl_models.data.files.tables import TABLES, columns_called, ending, is_bare, matrix_of, read_table
from ppl_models.data.lazy import is_pandas

#: Columns by their names.
Names = Sequence[Hashable]
#: Rows below which a table without known names is never taken for a list of pairs.
_FEW = 5
#: Rows below which words that repeat are not taken for answers.
_ASKED = 10
#: Different values that a column of ratings, or of answers in words, has at most.
_SCALE = 21
#: Lines of a text that are looked at.
_LINES = 2000
#: Endings of files of texts, beside those of tables: nothing else is taken for text without being asked.
_TEXTS = ("", ".text", ".ldac", ".lda-c")


def kind_of_file(path: Path, header: Header = "auto", *, among: Collection[str] = ()) -> str | None:
    """ "graph", "ratings", "documents", "categories" of answers in words, or None: rows of numbers, which say what they
    are.

    among: kinds that are meant, as far as is known: they settle what may be several.

    Raises DataError where it may be either of two, with the names of both; FileFormatError for unknown endings.
    """
    suffix = ending(path)
    if suffix in GRAPHS:
        return "graph"
    if suffix == ".npz":
        return None
    if suffix in (".csv", ".tsv", ".tab", ".parquet"):
        # What is decided of its first line is said by what reads it as what it is.
        with warnings.catch_warnings(action="ignore", category=DataWarning):
            frame = read_table(path, header, lists=(2, 3, 4))
        return kind_of_table(frame, str(path), among=among)
    if suffix not in (*TABLES, *_TEXTS) and format_of_name(path) is None:
        readable = ", ".join(dict.fromkeys([*TABLES, ".npz", *GRAPHS, *_TEXTS[1:]]))
        told = "kind='documents' (--kind documents) where it holds texts"
        raise FileFormatError(f"{path}: unknown ending {suffix!r}; readable: {readable}; {told}")
    lines = [line for line in read_lines(path) if line.strip() and line[0] not in "#%"][:_LINES]
    if suffix in TABLES and are_edges_with_attributes(lines):
        return "graph"
    if format_of_name(path) or looks_like(lines) != "text":
        return "documents"
    between = separator("\n".join(lines), ".txt")
    widths = {len(fields) for fields in fields_of(lines, between)}
    if len(lines) < _FEW or len(widths) > 1 or not widths <= {2, 3, 4} or suffix not in TABLES:
        return "documents"
    rows = fields_of(lines, between)
    named = find_header(rows, lists=(2, 3, 4), custom=False).header if header == "auto" else header
    names = rows[0] if named else range(len(rows[0]))
    frame = pd.DataFrame({name: _numbers([row[j] for row in rows[named:]]) for j, name in enumerate(names)})
    if pd.api.types.is_numeric_dtype(frame.iloc[:, -1]) or frame.shape[1] == 2:
        return kind_of_table(frame, str(path), texts=True, among=among)
    return "documents"


def _numbers(column: list[str]) -> list[Any]:
    try:
        return [float(cell) for cell in column]
    except ValueError:
        return column


def kind_of_table(
    frame: pd.DataFrame, where: str = "the table", *, texts: bool = False, among: Collection[str] = ()
) -> str | None:
    """Guess the kind of data in a table, as :func:`kind_of_file` does. texts: its lines may be texts of equally
    many words."""
    names = {plain_name(name) for name in frame.columns}
    if names & {"user", "userid"} and names & {"item", "itemid", "movie", "movieid"}:
        if frame.shape[1] == 2:
            return _unsure(where, "users and items, and no ratings of them", ("graph",), among)
        return "ratings"
    if end_columns(list(frame.columns)) is not None:
        return "graph"
    numeric = [pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes]
    labels = frame.iloc[:, 0]
    if not numeric[0] and all(numeric[1:]) and list(labels.astype(str)) == list(map(str, frame.columns[1:])):
        return "graph"  # nodes by nodes
    if frame.shape[1] not in (2, 3, 4) or len(frame) < _FEW or not _are_pairs(frame, numeric):
        return _rows(frame, numeric, where)
    ends = [set(frame.iloc[:, j].tolist()) for j in (0, 1)]
    shared = len(ends[0] & ends[1])
    if frame.shape[1] > 2 and not shared and any(len(one) == len(frame) for one in ends):
        return _rows(frame, numeric, where)  # who occurs once has rated nothing else: the names of rows
    if frame.shape[1] > 2:
        values = frame.iloc[:, 2]
        rated = 1 < values.nunique() <= _SCALE and (values.nunique() < len(frame) or frame.shape[1] == 4)
        if not numeric[0] and shared and frame.shape[1] == 3:
            return "graph"
        if rated and (frame.shape[1] == 4 or not numeric[0] or not shared):
            return "ratings"
        return _unsure(where, "pairs and a number", ("ratings", "graph", "counts"), among)
    if not numeric[0]:
        if 2 * shared >= min(map(len, ends)):
            return "graph"
        return _unsure(where, "two words a line", ("graph", "documents" if texts else "categories"), among)
    other = "documents" if texts else "counts"
    if shared and is_bare(frame):
        return "graph"
    return _unsure(where, "pairs of numbers", ("graph", other), among)


def _rows(frame: pd.DataFrame, numeric: Sequence[bool], where: str) -> str | None:
    """Rows of numbers, or of answers in words: columns of few different values each. Refuses other text beside the
    labels of the rows, which are in the first column."""
    words = [name for name, is_number in zip(frame.columns, numeric, strict=True) if not is_number]
    if not words or frame.columns.has_duplicates:
        return None
    labels = are_labels(frame.iloc[:, 0])
    asked = dict(list(frame.items())[1:] if labels else frame.items())
    words = [name for name in words if name in asked]
    numbers = [name for name in asked if name not in words]
    if not labels and not numeric[0] and len(words) == 1:  # one more question, or groups beside counts or the like
        words = words if _are_answers(asked[words[0]]) and all(_is_positive(asked[name]) for name in numbers) else []
    if not words:
        return None
    if (
        numbers
        and all(is_two_valued(asked[n]) for n in words)
        and all(set(asked[n].dropna()) <= {0, 1} for n in numbers)
    ):
        return "binary"
    odd = [name for name in words if not _are_answers(asked[name])]
    # A column of numbers that all differ, as of a respondent, is said to be one where the answers are read.
    scales = [asked[name] for name in numbers if asked[name].nunique() < len(frame)]
    if not odd and len(asked) > 1 and all(_is_positive(column) or set(column.dropna()) <= {0, 1} for column in scales):
        return "categories"
    told = "--kind graph or --kind ratings for pairs, --kind categories for answers, --text for documents"
    suspects = odd or words
    wrong = next((name for name in suspects if name != frame.columns[0]), suspects[0])
    found = f"{where}: column {wrong!r} holds text"
    raise DataError(found, axis="feature", expected=f"numbers, or {told}, --id and --drop for what is no entry")


def are_labels(column: pd.Series) -> bool:
    """Whether a column names the rows: words that hardly ever repeat."""
    most = len(column) >= _ASKED and 2 * column.nunique() > column.count()
    return not pd.api.types.is_numeric_dtype(column) and bool(column.is_unique or most)


def _are_answers(column: pd.Series) -> bool:
    """Whether the values of a column are few, and repeat: answers to a question."""
    different = column.nunique()
    if pd.api.types.is_numeric_dtype(column):
        values = column.to_numpy(np.float64, na_value=np.nan)
        if (values[~np.isnan(values)] % 1 != 0).any():
            return False
    elif are_written_numbers(column):
        return False
    return len(column) >= _ASKED and different <= _SCALE and 2 * different <= column.count()


def _is_positive(column: pd.Series) -> bool:
    """Whether a column has answers in numbers, none of them 0."""
    return bool((column.dropna() > 0).all()) and _are_answers(column)


def kind_of_columns(
    frame: pd.DataFrame,
    where: str,
    columns: Names,
    *,
    id: Hashable | None = None,
    drop: Names | None = None,
    among: Collection[str] = (),
) -> str | None:
    """Guess the kind of data in the selected columns, as :func:`kind_of_table` does."""
    if id is not None or drop is not None:  # of rows alone
        chosen = matrix_of(frame, columns, id=id, drop=drop)
        return _rows(chosen, [pd.api.types.is_numeric_dtype(kind) for kind in chosen.dtypes], where)
    return kind_of_table(frame.loc[:, columns_called(frame, columns)], where, among=among)


def answers_in(
    frame: pd.DataFrame, columns: Names | None = None, *, id: Hashable | None = None, drop: Names | None = None
) -> pd.DataFrame:
    """The columns of answers: without that of the rows' labels, the one that ``id`` names, or the first, if it is of
    words that hardly ever repeat."""
    if id is not None or (frame.shape[1] and are_labels(frame.iloc[:, 0])):
        return matrix_of(frame, columns, id=id, drop=drop)
    kept = list(frame.columns) if columns is None else columns_called(frame, columns)
    dropped = [] if drop is None else columns_called(frame, drop)
    return frame.loc[:, [name for name in kept if name not in dropped]]


def read_weights_if_any(read: Callable[[str], GraphData]) -> GraphData:
    """A graph without weights, or with whole ones where it has such. read: reads it as "binary" or "counts"."""
    try:
        return read("binary")
    except DataError:
        return read("counts")


def _are_pairs(frame: pd.DataFrame, numeric: Sequence[bool]) -> bool:
    """Whether the first two columns can be who and whom: both names, or both whole numbers, no pair twice, and without
    a header that says otherwise."""
    if numeric[0] != numeric[1] or not all(numeric[2:3]):
        return False
    ends = frame.iloc[:, :2]
    if ends.isna().any(axis=None) or ends.duplicated().any():
        return False
    if not numeric[0]:
        return True
    whole = bool((np.asarray(ends, dtype=np.float64) % 1 == 0).all()) and bool((ends >= 0).all(axis=None))
    several = all(ends.iloc[:, j].nunique() < len(ends) for j in (0, 1))
    known = {plain_name(name) for name in frame.columns} & {"weight", "rating", "stars", "score", "timestamp"}
    return whole and several and (is_bare(frame) or frame.shape[1] == 2 or bool(known))


def _unsure(where: str, found: str, kinds: Sequence[str], among: Collection[str]) -> str | None:
    meant = [kind for kind in kinds if kind in among]
    if len(meant) == 1:
        return None if meant == ["counts"] else meant[0]
    spelled = ", ".join(f"--kind {kind}" for kind in kinds)
    said = f"{where} has {found}" + (f", which may be {' or '.join(kinds)}" if len(kinds) > 1 else "")
    raise DataError(said, expected=f"what they are: {spelled} (kind={kinds[0]!r} in Python)")


def kind_of(x: Any, *, among: Collection[str] = ()) -> str | None:
    """Guess the kind of a frame, a list of tuples, a table of words, an array, or a networkx graph."""
    if is_pandas(x, "DataFrame"):
        return kind_of_table(x, among=among)
    if type(x).__module__.partition(".")[0] == "networkx":
        return "graph"
    if isinstance(x, list) and x and all(isinstance(one, tuple) for one in x):
        return kind_of_table(pd.DataFrame(x), "the list", among=among)
    narrow = isinstance(x, np.ndarray) and x.ndim == 2 and x.dtype.kind in "iuOUS" and x.shape[1] in (2, 3, 4)
    if narrow or has_words(x):
        return kind_of_table(pd.DataFrame(x).infer_objects(), "the array", among=among)
    return None
