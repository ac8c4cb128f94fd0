"""Graphs from files: edge lists as text, CSV or Parquet, GML and GraphML, and NPZ archives."""

from __future__ import annotations

import csv
import io
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ppl_models.core.errors import FileFormatError
from ppl_models.data.files.headers import Header, end_columns, fields_of, separator
from ppl_models.data.files.matrices import read_matrix
from ppl_models.data.files.reading import decoded, file_bytes, npz_arrays, reading
from ppl_models.data.files.tables import decided, ending, is_bare, read_table
from ppl_models.data.lazy import pandas as pd

_NAMES = ["source", "target", "weight"]
_COMMENTS = re.compile(r"^[#%].*$", re.MULTILINE)
_TEXTS = (".txt", ".edges", ".edgelist", ".el", ".tsv", ".tab", ".dat", ".data")
#: Endings of files that hold graphs alone.
GRAPHS = (".edges", ".edgelist", ".el", ".gml", ".graphml")
#: Numbers of columns of lists of edges, with weights and without; lines from which the layout of a text is told.
_WIDTHS, _LINES = (2, 3), 500


class GraphFile(NamedTuple):
    """What a file holds: a source that :func:`ppl_models.graph` reads, or edges, and what else it says."""

    source: Any = None
    edges: Any = None
    nodes: Any = None
    directed: bool | None = None


def read_graph_file(
    path: Path, *, columns: tuple[str, str] = ("source", "target"), weight: str | None = None, header: Header = "auto"
) -> GraphFile:
    """A graph from a file, by its ending.

    Text (.txt, .edges, .edgelist, .el, .tsv, .tab, .dat, .data): an edge a line, two nodes and perhaps a weight, apart
    by blanks, tabs or commas; lines that start with # or % are comments. CSV and Parquet: the ``columns`` of a frame of
    edges, or those that edges have by other names (from, to), else the first two of two or three columns, else an
    adjacency matrix with names. GML and GraphML by networkx. NPZ: ``edges`` (E, 2) of whole numbers, with ``n``,
    ``directed`` and ``names`` beside it where the file has them; else an adjacency matrix as :func:`read_matrix` finds
    it. Texts may be compressed (.gz).

    header: of CSV and text: whether the first line names the columns; "auto" looks at it.
    """
    if not path.is_file():
        raise FileFormatError(f"{path}: no such file")
    suffix = ending(path)
    with reading(path, suffix[1:]):
        if suffix in _TEXTS:
            return _text(path, columns, weight, header)
        if suffix == ".npz":
            return _npz(path)
        if suffix in (".gml", ".graphml"):
            import networkx

            with warnings.catch_warnings(action="ignore"):
                return GraphFile(source=networkx.read_gml(path) if suffix == ".gml" else networkx.read_graphml(path))
        if suffix in (".csv", ".parquet"):
            return _frame(path, read_table(path, header, lists=_WIDTHS), columns, weight)
    readable = ", ".join([*_TEXTS, ".csv", ".parquet", ".npz", ".gml", ".graphml"])
    raise FileFormatError(f"{path}: unknown ending {suffix!r}; readable: {readable}")


def _text(path: Path, columns: tuple[str, str], weight: str | None, header: Header) -> GraphFile:
    """By pandas: networkx's reader takes six times as long (3.6 s for 500,000 edges), and joins repeated edges."""
    text = decoded(path, file_bytes(path))
    # Not pandas' own comments: of these there are two signs, and names may hold them.
    plain = _COMMENTS.sub("", text).lstrip("\r\n")
    lines = [line for line in plain[: 200 * _LINES].split("\n") if line.strip()][:_LINES]
    between = _between(lines)
    first = decided(path, fields_of(lines, between), header, lists=_WIDTHS, custom=False)
    settings: dict[str, Any] = {"header": None, "dtype": str, "quoting": csv.QUOTE_NONE, "keep_default_na": False}
    try:
        frame = pd.read_csv(io.StringIO(plain), sep=between, na_values=[""], **settings)
    except (pd.errors.EmptyDataError, pd.errors.ParserError):
        frame = None
    widths = _WIDTHS if not first else range(2, 2 if frame is None else frame.shape[1] + 1)
    if frame is None or frame.shape[1] not in widths or bool(frame.isna().any(axis=None)):
        raise FileFormatError(f"{path}: {_odd_line(text, between)}; expected two nodes a line, and perhaps a weight")
    frame = frame.apply(lambda column: column.str.strip())
    if first:
        chosen = _frame(path, frame.iloc[1:].set_axis(frame.iloc[0].tolist(), axis=1), columns, weight)
        if chosen.edges is None:
            return chosen
        frame = chosen.edges
    ends, frame.columns = _NAMES[:2], _NAMES[: frame.shape[1]]
    if frame[ends].apply(lambda column: column.str.isdecimal()).all(axis=None):
        frame = frame.astype(dict.fromkeys(ends, np.int64))
    try:
        return GraphFile(edges=frame.astype({"weight": np.float64}) if "weight" in frame else frame)
    except ValueError as error:
        raise FileFormatError(f"{path}: a weight is no number: {error}") from None


def _between(lines: list[str]) -> str:
    """Tabs where there are some; blanks, unless these leave lines whole that commas or the like cut."""
    if lines and "\t" in lines[0]:
        return "\t"
    widths = {len(fields) for fields in fields_of(lines, r"\s+")}
    return separator("\n".join(lines), ".txt") if widths == {1} else r"\s+"


def _odd_line(text: str, separator: str) -> str:
    """The first line that has not as many fields as the others, in words."""
    lines = ((number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() and line[0] not in "#%")
    widths = {number: len([field for field in re.split(separator, line.strip()) if field]) for number, line in lines}
    usual = next(iter(widths.values()), 0)
    odd = next((number for number, width in widths.items() if width != usual or usual not in (2, 3)), None)
    if odd is None:
        return "an empty field" if widths else "no edges"
    return f"line {odd} has {widths[odd]} fields"


def _frame(path: Path, frame: pd.DataFrame, columns: tuple[str, str], weight: str | None) -> GraphFile:
    if not len(frame):
        raise FileFormatError(f"{path}: no rows below the header")
    called = columns if set(columns) <= set(frame.columns) else None
    ends = called or (end_columns(list(frame.columns)) if columns == tuple(_NAMES[:2]) else None)
    if ends is not None:
        if weight is not None and weight not in frame.columns:
            raise FileFormatError(f"{path}: no column {weight!r} among {list(map(str, frame.columns))}")
        value = weight or ("weight" if "weight" in frame.columns else None)
        if value is None and called is None and frame.shape[1] == len(_NAMES):
            value = next(name for name in frame.columns if name not in ends)
        chosen = frame[[*ends, *([] if value is None else [value])]]
        return GraphFile(edges=chosen.set_axis(_NAMES[: chosen.shape[1]], axis=1))
    labelled = frame.set_index(frame.columns[0]) if not pd.api.types.is_numeric_dtype(frame.iloc[:, 0]) else frame
    square = labelled.shape[0] == labelled.shape[1]
    alike = square and (set(labelled.index) == set(labelled.columns) or _is_symmetric(labelled))
    if frame.shape[1] in _WIDTHS and not alike:
        return GraphFile(edges=frame.set_axis(_NAMES[: frame.shape[1]], axis=1))
    if square and labelled is frame:
        labelled = frame.set_axis(frame.columns, axis=0)
    return GraphFile(source=labelled)


def _is_symmetric(frame: pd.DataFrame) -> bool:
    """Whether a table of numbers without names is one of nodes by nodes, rather than edges."""
    return is_bare(frame) and frame.shape[1] > 2 and bool(np.array_equal(frame.to_numpy(), frame.to_numpy().T))


def _npz(path: Path) -> GraphFile:
    arrays = npz_arrays(path)
    edges = arrays.get("edges")
    if edges is None:
        return GraphFile(source=read_matrix(path, dtype=None, keep_sparse=True))
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu":
        raise FileFormatError(f"{path}: 'edges' of shape {edges.shape} and type {edges.dtype}; expected whole (E, 2)")
    names = arrays.get("names")
    count = next((int(arrays[key]) for key in ("n", "num_nodes") if key in arrays and arrays[key].ndim == 0), None)
    flag = arrays.get("directed")
    directed = bool(flag) if flag is not None and flag.ndim == 0 else None
    if names is not None and names.ndim == 1:
        if edges.size and not 0 <= edges.min() <= edges.max() < len(names):
            raise FileFormatError(f"{path}: 'edges' of nodes beyond the {len(names)} 'names'")
        # Edges are positions among the names.
        found = names.tolist()
        return GraphFile(edges=[(found[i], found[j]) for i, j in edges.tolist()], nodes=found, directed=directed)
    return GraphFile(edges=edges, nodes=count, directed=directed)
