"""What a table, a list or a file holds, by its header and its content: edges, ratings, texts, or rows."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ppl_models import DataError, DataWarning
from ppl_models.data.files.corpora import claimed_format, looks_like, read_lines
from ppl_models.data.files.graphs import GRAPHS
from ppl_models.data.files.headers import Header, end_columns, fields_of, found_header, plain_name, separator
from ppl_models.data.files.tables import TABLES, ending, is_bare, read_table

#: Rows below which a table without known names is never taken for a list of pairs.
_FEW = 5
#: Different values that a column of ratings has at most.
_SCALE = 21
#: Lines of a text that are looked at.
_LINES = 2000


def kind_of_file(path: Path, header: Header = "auto") -> str | None:
    """ "graph", "ratings", "documents", or None: rows, whose entries say what they are.

    Raises DataError where it may be either of two, with the names of both.
    """
    suffix = ending(path)
    if suffix in GRAPHS:
        return "graph"
    if suffix == ".npz":
        return None
    if suffix in (".csv", ".tsv", ".tab", ".parquet"):
        return kind_of_table(_as_pairs(path, header), str(path))
    lines = [line for line in read_lines(path) if line.strip() and line[0] not in "#%"][:_LINES]
    if claimed_format(path) or looks_like(lines) != "text":
        return "documents"
    between = separator("\n".join(lines), ".txt")
    widths = {len(fields) for fields in fields_of(lines, between)}
    if len(lines) < _FEW or len(widths) > 1 or not widths <= {2, 3, 4} or suffix not in TABLES:
        return "documents"
    rows = fields_of(lines, between)
    named = found_header(rows, lists=(2, 3, 4), custom=False).header if header == "auto" else header
    names = rows[0] if named else range(len(rows[0]))
    frame = pd.DataFrame({name: _numbers([row[j] for row in rows[named:]]) for j, name in enumerate(names)})
    if pd.api.types.is_numeric_dtype(frame.iloc[:, -1]) or frame.shape[1] == 2:
        return kind_of_table(frame, str(path), texts=True)
    return "documents"


def _numbers(column: list[str]) -> list[Any]:
    try:
        return [float(cell) for cell in column]
    except ValueError:
        return column


def _as_pairs(path: Path, header: Header) -> pd.DataFrame:
    """The table, if it is one of pairs. What is decided of its first line is said by what reads it as what it is."""
    with warnings.catch_warnings(action="ignore", category=DataWarning):
        return read_table(path, header, lists=(2, 3, 4))


def kind_of_table(frame: pd.DataFrame, where: str = "the table", *, texts: bool = False) -> str | None:
    """As :func:`kind_of_file`, of a table. texts: its lines may also be texts of as many words."""
    names = {plain_name(name) for name in frame.columns}
    if names & {"user", "userid"} and names & {"item", "itemid", "movie", "movieid"}:
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
    if frame.shape[1] > 2:
        values = frame.iloc[:, 2]
        rated = 1 < values.nunique() <= _SCALE and (values.nunique() < len(frame) or frame.shape[1] == 4)
        if not numeric[0] and shared and frame.shape[1] == 3:
            return "graph"
        if rated and (frame.shape[1] == 4 or not numeric[0] or not shared):
            return "ratings"
        return _unsure(where, "pairs and a number", ("ratings", "graph", "counts"))
    if not numeric[0]:
        if 2 * shared >= min(map(len, ends)):
            return "graph"
        return _unsure(where, "two words a line", ("graph", "documents"))
    other = "documents" if texts else "counts"
    return "graph" if shared and is_bare(frame) else _unsure(where, "pairs of numbers", ("graph", other))


def _rows(frame: pd.DataFrame, numeric: Sequence[bool], where: str) -> None:
    """Refuses columns of text beside that of the labels."""
    wrong = [name for name, is_number in zip(frame.columns, numeric, strict=True) if not is_number][not numeric[0] :]
    if wrong:
        told = "--kind graph or --kind ratings for pairs, --text for documents, --id and --drop for what is no entry"
        raise DataError(f"{where}: column {wrong[0]!r} holds text", axis="feature", expected=f"numbers, or {told}")


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


def _unsure(where: str, found: str, kinds: Sequence[str]) -> str:
    spelled = ", ".join(f"--kind {kind}" for kind in kinds)
    said = f"{where} has {found}, which may be {' or '.join(kinds)}"
    raise DataError(said, expected=f"what they are: {spelled} (kind={kinds[0]!r} in Python)")


def kind_of(x: Any) -> str | None:
    """As :func:`kind_of_file`, of a frame, a list of tuples, an array, or a graph of networkx."""
    if isinstance(x, pd.DataFrame):
        return kind_of_table(x)
    if type(x).__module__.partition(".")[0] == "networkx":
        return "graph"
    if isinstance(x, list) and x and all(isinstance(one, tuple) for one in x):
        return kind_of_table(pd.DataFrame(x), "the list")
    if isinstance(x, np.ndarray) and x.ndim == 2 and x.dtype.kind in "iuOUS" and x.shape[1] in (2, 3, 4):
        return kind_of_table(pd.DataFrame(x).infer_objects(), "the array")
    return None
