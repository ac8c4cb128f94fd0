"""Graphs from files: edge lists as text, CSV or Parquet, GML and GraphML, and NPZ archives."""

from __future__ import annotations

import csv
import io
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from ppl_models.core.errors import FileFormatError
from ppl_models.data.files.edge_frames import (
    NAMES,
    WIDTHS,
    GraphFile,
    edges_by_place,
    edges_of,
    graph_table,
    odd_width,
    without_times,
)
from ppl_models.data.files.edge_lines import with_attributes, without_comments
from ppl_models.data.files.headers import Header, fields_of, is_number_text, separator
from ppl_models.data.files.matrices import read_matrix
from ppl_models.data.files.reading import decode, file_bytes, npz_arrays, reading
from ppl_models.data.files.tables import decide_header, ending, read_table
from ppl_models.data.lazy import pandas as pd

_TEXTS = (".txt", ".edges", ".edgelist", ".el", ".tsv", ".tab", ".dat", ".data")
#: Endings of files that hold graphs alone.
GRAPHS = (".edges", ".edgelist", ".el", ".gml", ".graphml")
#: What may be between fields of one line; what the first line of a file of KONECT says.
_MIXED, _DIRECTION = r"[\s,;]+", re.compile(r"% ?(a?sym)\b")
#: Lines from which the layout of a text is told.
_LINES = 500


def read_graph_file(
    path: Path, *, columns: tuple[Any, Any] = ("source", "target"), weight: str | None = None, header: Header = "auto"
) -> GraphFile:
    """A graph from a file, by its ending.

    Text (.txt, .edges, .edgelist, .el, .tsv, .tab, .dat, .data): an edge a line, two nodes and perhaps a weight, apart
    by blanks, tabs or commas, also by a mixture of these where that is plain, or attributes as networkx writes them
    (``0 1 {'weight': 4}``); lines that start with # or % are comments, and so is what # begins behind an edge. KONECT's
    files out.NAME are such texts, whose first line says whether they are directed (% asym) or not (% sym). CSV and
    Parquet: the ``columns`` of a frame of edges, or those that edges have by other names (from, to), else the first two
    of two or three columns, else an adjacency matrix with names. A last column that was not asked for and looks like
    times is left out, with a DataWarning; columns without names are called by their numbers, from 0. GML and GraphML by
    networkx. NPZ: ``edges`` (E, 2) of whole numbers, with ``n``, ``directed`` and ``names`` beside it where the file
    has them; else an adjacency matrix as :func:`read_matrix` finds it. Texts may be compressed (.gz).

    header: of CSV and text: whether the first line names the columns; "auto" looks at it.
    """
    if not path.is_file():
        raise FileFormatError(f"{path}: no such file")
    suffix = ending(path)
    with reading(path, suffix[1:]):
        if suffix in _TEXTS or path.name.startswith("out."):
            return _text(path, columns, weight, header)
        if suffix == ".npz":
            return _npz(path)
        if suffix in (".gml", ".graphml"):
            import networkx

            with warnings.catch_warnings(action="ignore"):
                return GraphFile(source=networkx.read_gml(path) if suffix == ".gml" else networkx.read_graphml(path))
        if suffix in (".csv", ".parquet"):
            return graph_table(path, read_table(path, header, lists=WIDTHS, asked=None), columns, weight)
    readable = ", ".join([*_TEXTS, ".csv", ".parquet", ".npz", ".gml", ".graphml"])
    raise FileFormatError(f"{path}: unknown ending {suffix!r}; readable: {readable}")


def _text(path: Path, columns: tuple[Any, Any], weight: str | None, header: Header) -> GraphFile:
    """Read an edge list with pandas: networkx takes six times as long (3.6 s for 500,000 edges) and joins edges."""
    text = decode(path, file_bytes(path))
    said = _DIRECTION.match(text)
    directed = None if said is None else said[1] == "asym"
    # Not pandas' own comments: of these there are two signs, and names may hold them.
    plain, values = with_attributes(path, without_comments(text), weight)
    plain = re.sub(r"^[ \t]+|[ \t]+$", "", plain, flags=re.MULTILINE)
    lines = [line for line in plain[: 200 * _LINES].split("\n") if line.strip()][:_LINES]
    between = _between(path, lines)
    if between == _MIXED:  # pandas' fast reader takes one sign
        plain, lines, between = (re.sub(r"[ \t,;]+", "\t", plain), [re.sub(_MIXED, "\t", line) for line in lines], "\t")
    first = decide_header(path, fields_of(lines, between), header, lists=WIDTHS, custom=False)
    settings: dict[str, Any] = {"header": None, "dtype": str, "quoting": csv.QUOTE_NONE, "keep_default_na": False}
    try:
        frame = pd.read_csv(io.StringIO(plain), sep=between, na_values=[""], **settings)
    except (pd.errors.EmptyDataError, pd.errors.ParserError):
        frame = None
    if frame is None or frame.shape[1] < 2 or bool(frame.isna().any(axis=None)):
        raise FileFormatError(f"{path}: {_odd_line(text, between)}; expected two nodes a line, and perhaps a weight")
    frame = frame.apply(lambda column: column.str.strip())
    if first:
        frame = frame.iloc[1:].set_axis(frame.iloc[0].tolist(), axis=1)
        chosen = graph_table(path, frame, columns, None if values else weight)
        if chosen.edges is None:
            return chosen
        frame = chosen.edges
    elif tuple(map(str, columns)) != tuple(NAMES[:2]):
        frame = edges_of(path, frame, columns, None if values else weight)
    elif (timeless := without_times(path, frame, None if values else weight)).shape[1] in WIDTHS:
        frame = edges_by_place(path, timeless, None if values else weight)
    else:
        raise FileFormatError(f"{path}: {_odd_line(text, between)}; expected {odd_width(frame)}")
    if frame is None:
        raise FileFormatError(f"{path}: no columns {columns}")
    if values is not None:
        frame = frame[NAMES[:2]].assign(weight=values)
    ends = [frame[name] for name in NAMES[:2]]
    if all(end.str.isdecimal().all() and not end.str.match(r"0\d").any() for end in ends):
        frame = frame.assign(**{name: frame[name].map(int) for name in NAMES[:2]})  # of any size
    try:
        edges = frame.astype({"weight": np.float64}) if "weight" in frame else frame
        return GraphFile(edges=edges, directed=directed)
    except ValueError as error:
        raise FileFormatError(f"{path}: a weight is no number: {error}") from None


def _between(path: Path, lines: list[str]) -> str:
    """What keeps the fields of lines apart: one sign, or ``_MIXED``. Raises FileFormatError where it may be either.

    Names may hold blanks or commas; what tells them from fields is that behind two nodes there are numbers alone.
    """
    usual = _usual(lines)
    cut = fields_of(lines, usual)
    cells = [cell for row in cut for cell in row if re.search(_MIXED, cell)]
    if not cells or usual == "::":
        return usual
    if not _are_edges(fields_of(lines, _MIXED)):
        return next((one for one in ("\t", ",", ";", r"\s+") if _are_edges(fields_of(lines, one))), usual)
    if _are_edges(cut) and not any(all(map(is_number_text, re.split(_MIXED, cell))) for cell in cells):
        names = {"\t": "tabs", ",": "commas", ";": "semicolons", " ": "blanks"}
        kinds = " and ".join(name for sign, name in names.items() if any(sign in line for line in lines))
        found = f"a mixture of {kinds} in {lines[-1][:60]!r}, which may be between fields or in the names of nodes"
        raise FileFormatError(f"{path}: {found}; expected one of them between all fields, or CSV with names in quotes")
    return _MIXED


def _are_edges(rows: list[list[str]]) -> bool:
    """Whether all rows have the same number of fields, two of nodes, and numbers behind them."""
    behind = [cell for row in rows[1:] or rows for cell in row[2:]]
    return len(set(map(len, rows))) == 1 and len(rows[0]) > 1 and all(map(is_number_text, behind))


def _usual(lines: list[str]) -> str:
    """Tabs where there are some; blanks, unless these leave lines whole that commas or the like cut."""
    if lines and "\t" in lines[0]:
        return "\t"
    widths = {len(fields) for fields in fields_of(lines, r"\s+")}
    by_commas = fields_of(lines, ",")
    apart = {len(fields) for fields in by_commas} <= set(WIDTHS) and not any(" " in f for row in by_commas for f in row)
    return separator("\n".join(lines), ".txt") if widths == {1} or (lines and apart) else r"\s+"


def _odd_line(text: str, separator: str) -> str:
    """The first line that has not as many fields as the others, in words."""
    lines = ((number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() and line[0] not in "#%")
    widths = {number: len([field for field in re.split(separator, line.strip()) if field]) for number, line in lines}
    usual = next(iter(widths.values()), 0)
    odd = next((number for number, width in widths.items() if width != usual or usual not in (2, 3)), None)
    if odd is None:
        return "an empty field" if widths else "no edges"
    return f"line {odd} has {widths[odd]} fields"


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
