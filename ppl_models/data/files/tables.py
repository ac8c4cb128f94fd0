"""Tables from files: text with fields apart by commas, tabs, blanks or ``::``, with a header or without; Parquet."""

from __future__ import annotations

import csv
import gzip
import io
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ppl_models.core.errors import DataError, FileFormatError, unknown_name, warn_of_data
from ppl_models.data.containers import first_text
from ppl_models.data.files.fields import (
    comment_lines,
    may_have_zeros,
    strip_blanks,
    with_decimals,
    with_ids,
    without_index,
    without_lines,
)
from ppl_models.data.files.headers import Header, fields_of, find_header, separator
from ppl_models.data.files.reading import decode, encoding_of, file_bytes, reading
from ppl_models.data.held import Names, is_string
from ppl_models.data.lazy import pandas as pd

#: Endings of tables, plain or (but for Parquet) compressed with gzip; those whose first line is a header by custom.
TABLES = (".csv", ".tsv", ".tab", ".dat", ".data", ".txt", ".parquet")
_CUSTOM = (".csv", ".tsv", ".tab")
#: Bytes from which the layout of a text is told.
_SNIFFED = 2**16


def require_file(file: Path | None, header: Header) -> None:
    """Raises DataError where ``header`` is said of what is no file."""
    if file is None and header != "auto":
        raise DataError(f"header = {header!r} of what is no file", expected="the path of a table, or no header=")


class Layout(NamedTuple):
    """How a text holds a table: whether its first line is a header; what is between fields, a regular expression where
    it has several letters; how many lines of comments stand above; whether it may be a list of edges or the like."""

    header: bool
    between: str
    comments: int = 0
    is_list: bool = False


def ending(path: Path) -> str:
    """The ending of a file's name in small letters, without that of a compressed file."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def read_table(
    path: Path,
    header: Header = "auto",
    *,
    lists: Sequence[int] = (),
    custom: bool | None = None,
    asked: Iterable[Any] | None = (),
    id: Names = None,
) -> pd.DataFrame:
    """The table of a file, by its ending, one of ``TABLES``; columns without names are called 0, 1, ...

    header: whether the first line names the columns, or "auto": see :func:`layout_of`. asked: names of columns that are
    asked for, which stay even where they number the rows (:func:`without_index`); None: whatever does stays. id: the
    column of ids, if one is known: there 007 and 7 are two.

    Raises FileFormatError for other endings, and for what cannot be read.
    """
    if not path.is_file():
        raise FileFormatError(f"{path}: no such file")
    suffix = ending(path)
    if suffix not in TABLES:
        raise FileFormatError(f"{path}: unknown ending {suffix!r}; readable as tables: {', '.join(TABLES)}")
    if suffix == ".parquet":
        if header is False:
            raise DataError(f"{path}: header=False for Parquet, whose columns have names", expected="'auto'")
        with reading(path, "parquet"), warnings.catch_warnings(action="ignore"):
            frame = pd.read_parquet(path)
    else:
        frame = text_frame(path, layout_of(path, header, lists=lists, custom=custom), id=id)
    return frame if asked is None else without_index(frame, path, asked)


def layout_of(path: Path, header: Header = "auto", *, lists: Sequence[int] = (), custom: bool | None = None) -> Layout:
    """How a text holds its table.

    header: "auto" looks at the lines, as :func:`find_header` says; a DataWarning says what was decided where it is not
    what is usual, or where nothing but custom decides for a header. lists: numbers of columns of lists of pairs.
    custom: whether files of this kind usually have a header, by default those of CSV and TSV.
    """
    suffix = ending(path)
    custom = suffix in _CUSTOM if custom is None else custom
    with reading(path, suffix[1:]):
        head = _head(path)
        lines = [line for line in head.split("\n") if line.strip()]
        below = [line for line in lines if line.lstrip()[:1] not in ("#", "%")]
        between = separator("\n".join(below or lines), suffix)
        comments = comment_lines(lines, between)
        rows = fields_of(lines[comments:], between)
    return Layout(decide_header(path, rows, header, lists=lists, custom=custom), between, comments, bool(lists))


def decide_header(
    path: Path, rows: Sequence[Sequence[str]], header: Header, *, lists: Sequence[int] = (), custom: bool
) -> bool:
    """Whether the first of the rows is a header; see :func:`layout_of`."""
    if header is True or header is False:
        return header
    if header != "auto":
        raise DataError(f"header = {header!r}", expected="True, False or 'auto'")
    if not rows:
        return custom
    found = find_header(rows, lists=lists, custom=custom)
    if found.header != custom or (found.header and not found.sure):
        taken, other = ("a header", "False (--header no)") if found.header else ("data", "True (--header yes)")
        warn_of_data(f"{path}: the first line is taken for {taken}: {found.why}; header={other} says otherwise")
    return found.header


def _head(path: Path) -> str:
    """The first lines of a text; all of a short one."""
    with path.open("rb") as file:
        raw = file.read(_SNIFFED)
    if raw[:2] == b"\x1f\x8b":
        with gzip.open(path, "rb") as unpacked:
            raw = unpacked.read(_SNIFFED)
    text = raw.decode(encoding_of(raw), "replace").replace("\r\n", "\n").replace("\r", "\n")
    return text if len(raw) < _SNIFFED else text.rpartition("\n")[0]


def text_frame(path: Path, layout: Layout, raw: bytes | None = None, *, id: Names = None) -> pd.DataFrame:
    """The table of a text, as pandas reads it. raw: the header and some of the file's lines; None: the whole file.

    Raises FileFormatError for a header of numbers that repeat, which is a row of data; and for lines with fewer fields
    than the first: pandas takes what is not there for missing entries, but a file that was cut off ends with it.
    """
    kind, between = ending(path)[1:], layout.between
    text = without_lines(decode(path, file_bytes(path) if raw is None else raw), layout.comments)
    settings: dict[str, Any] = {"sep": between, "header": 0 if layout.header else None, "skipinitialspace": True}
    if between == "::":  # a regular expression, which pandas' faster reader does not take
        settings["engine"] = "python"
    with reading(path, kind), warnings.catch_warnings(action="ignore"):
        frame = pd.read_csv(io.StringIO(text), **settings)
        if layout.header:
            once: dict[str, Any] = {**settings, "header": None, "nrows": 1}
            _refuse_data(path, pd.read_csv(io.StringIO(text), **once))
        if may_have_zeros(text, between):
            texts = pd.read_csv(io.StringIO(text), **settings, dtype=str)
            frame = with_ids(frame, texts, lists=layout.is_list, header=layout.header, known=list_names(id))
        frame = with_decimals(strip_blanks(frame, text, between), between)
    if frame.shape[1] > 1 and len(between) == 1 and bool(frame.iloc[:, -1].isna().any()):
        lines = csv.reader(io.StringIO(text), delimiter=between, skipinitialspace=True)
        first = next((line for line in lines if line), [])
        short = next((line for line in lines if line and len(line) < len(first)), None)
        if short is not None:
            found = f"{len(short)} fields where the {'header' if layout.header else 'first line'} has {len(first)}"
            raise FileFormatError(f"{path}: not readable as {kind}: {found}: {','.join(short)[:60]!r}")
    return frame


def _refuse_data(path: Path, head: pd.DataFrame) -> None:
    if head.shape[1] == head.select_dtypes("number").shape[1] and bool(head.iloc[0].duplicated().any()):
        first = ",".join(f"{value:g}" for value in head.iloc[0])
        found = f"no header, the first line is {first[:60]!r}"
        raise FileFormatError(f"{path}: {found}; expected names of the columns there, or header=False")


def is_bare(frame: pd.DataFrame) -> bool:
    """Whether a table was read without names of its columns, which are then numbers."""
    return list(frame.columns) == list(range(frame.shape[1]))


def matrix_of(frame: pd.DataFrame, columns: Names = None, *, id: Names = None, drop: Names = None) -> pd.DataFrame:
    """The entries of a table whose first column, where it is not numeric, labels the rows, or that which ``id`` names.

    columns, drop: those to keep, in their order, and those to leave out: names, or one alone. Columns without names are
    called "0", "1", ... or 0, 1, ...

    Raises DataError for names that the table does not have.
    """
    dropped = [] if drop is None else columns_called(frame, drop)
    kept = list(frame.columns) if columns is None else columns_called(frame, columns)
    if id is not None:
        (label,) = columns_called(frame, id)
    else:
        first = frame.columns[0] if frame.shape[1] else None
        is_label = first is not None and first not in dropped and (columns is None or first not in kept[1:])
        label = first if is_label and not pd.api.types.is_numeric_dtype(frame.iloc[:, 0]) else None
        if label is not None:
            _refuse_numbers(frame.iloc[:, 0])
    names = [name for name in kept if name not in dropped and (label is None or name != label)]
    if not names:
        told = "at least one that is no id and not dropped; documents(column) reads a column of texts (--text COLUMN)"
        raise DataError("no column is left", axis="feature", expected=told)
    return (frame if label is None else frame.set_index(label)).loc[:, names]


def _refuse_numbers(labels: pd.Series) -> None:
    """A column of numbers but for some texts ("1,024") is none of labels: raises DataError."""
    given: Any = labels.dropna()
    if not given.map(type).eq(str).all():
        return
    numbers: Any = pd.to_numeric(given, errors="coerce")
    wrong = numbers.isna()
    if 0 < 2 * int(wrong.sum()) <= len(given):
        found = f"column {labels.name!r} holds numbers, but for {int(wrong.sum())} texts{first_text(given)}"
        raise DataError(found, axis="feature", expected=f"numbers; id={labels.name!r} (--id) makes it the rows' names")


def columns_called(frame: pd.DataFrame, names: Names) -> list[Any]:
    """The columns of these names, of one alone; where columns are numbers, names may be strings of them."""
    text = {str(column): column for column in frame.columns}
    found = []
    for name in list_names(names):
        if name not in frame.columns and str(name) not in text:
            raise DataError(unknown_name("column", name, list(frame.columns)), axis="feature")
        found.append(name if name in frame.columns else text[str(name)])
    return found


def list_names(*names: Any) -> list[Any]:
    """Names of columns, of each several or one alone, as one list; None: no names."""
    each = [[one] if is_string(one) or not isinstance(one, Sequence) else one for one in names if one is not None]
    return [name for one in each for name in one]
