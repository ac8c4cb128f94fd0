"""Tables that hold graphs: edges by columns or by place, or nodes by nodes."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ppl_models.core.errors import FileFormatError, warn_of_data
from ppl_models.data.files.fields import without_index
from ppl_models.data.files.headers import end_columns, plain_name
from ppl_models.data.files.tables import is_bare
from ppl_models.data.held import plain
from ppl_models.data.lazy import pandas as pd

NAMES = ["source", "target", "weight"]
#: Numbers of columns of lists of edges, with weights and without.
WIDTHS = (2, 3)
#: What columns of times are called, and the ranges of unix times in seconds and milliseconds, 1985 to 2128.
_TIMES = frozenset(["time", "timestamp", "date", "datetime", "year", "unixtime", "ts"])
_UNIX = ((5e8, 5e9), (5e11, 5e12))


class GraphFile(NamedTuple):
    """The contents of a file: a source that :func:`ppl_models.graph` reads, or edges, and what else it says."""

    source: Any = None
    edges: Any = None
    nodes: Any = None
    directed: bool | None = None


def graph_table(path: Path, frame: pd.DataFrame, columns: tuple[Any, Any], weight: str | None) -> GraphFile:
    """The graph of a table: nodes by nodes where its labels say so, else the ``columns`` of edges, or those that edges
    have by other names, else the first two of two or three columns, else nodes by nodes.

    Raises FileFormatError for columns that are not there, and for a table of another shape.
    """
    if not len(frame):
        raise FileFormatError(f"{path}: no rows below the header")
    if (matrix := as_labelled_matrix(frame)) is not None:
        return GraphFile(source=matrix)
    frame = without_index(frame, path, (*columns, weight))
    edges = edges_of(path, frame, columns, weight)
    if edges is not None:
        return GraphFile(edges=edges)
    frame = without_times(path, frame, weight)
    labelled = frame.set_index(frame.columns[0]) if not pd.api.types.is_numeric_dtype(frame.iloc[:, 0]) else frame
    square = labelled.shape[0] == labelled.shape[1]
    bare = is_bare(labelled) and labelled.shape[1] > 2  # numbers without names: of nodes by nodes where symmetric
    symmetric = square and bare and np.array_equal(labelled.to_numpy(), labelled.to_numpy().T)
    alike = symmetric or (square and set(labelled.index) == set(labelled.columns))
    if frame.shape[1] in WIDTHS and not alike:
        return GraphFile(edges=edges_by_place(path, frame, weight))
    if not square:
        found = f"{frame.shape[1]} columns and {len(frame)} rows"
        raise FileFormatError(f"{path}: {found}; expected nodes by nodes, {odd_width(frame)}")
    return GraphFile(source=labelled.set_axis(frame.columns, axis=0) if labelled is frame else labelled)


def as_labelled_matrix(frame: pd.DataFrame) -> pd.DataFrame | None:
    """A table whose first column holds the names of the others, as nodes by nodes; None for any other."""
    if len(frame) < 2 or frame.shape[1] != len(frame) + 1:
        return None
    labels = plain(frame.iloc[:, 0])
    known = {str(label): label for label in labels}
    names = [str(name) for name in frame.columns[1:]]
    if len(known) < len(labels) or set(names) != set(known):
        return None
    return frame.iloc[:, 1:].set_axis(labels, axis=0).set_axis([known[name] for name in names], axis=1)


def edges_of(path: Path, frame: pd.DataFrame, columns: tuple[Any, Any], weight: str | None) -> pd.DataFrame | None:
    """The edges of the columns asked for, or by default of those with such names; None where there are none."""
    called = {str(name): name for name in reversed(frame.columns)}
    asked = tuple(map(str, columns)) != tuple(NAMES[:2])
    missing = [name for name in columns if str(name) not in called]
    if asked and missing:
        raise FileFormatError(f"{path}: no column {missing[0]!r} among {list(called)[::-1]}")
    ends = end_columns(list(frame.columns)) if missing else tuple(called[str(name)] for name in columns)
    if ends is None:
        return None
    if weight is not None and weight not in called:
        raise FileFormatError(f"{path}: no column {weight!r} among {list(called)[::-1]}")
    value = called[weight] if weight else next((n for n in frame.columns if plain_name(n) == "weight"), None)
    if value is None and missing and frame.shape[1] == len(NAMES):
        value = next(name for name in frame.columns if name not in ends)
        value = None if _is_time(path, frame, value) else value
    return _of_one_kind(frame.loc[:, [*ends, *([] if value is None else [value])]])


def edges_by_place(path: Path, frame: pd.DataFrame, weight: str | None) -> pd.DataFrame:
    """The edges of a table of two or three columns: two ends, and perhaps weights."""
    third = str(frame.columns[2]) if frame.shape[1] > 2 else None
    if weight is not None and (third is None or weight not in ("weight", third)):
        raise FileFormatError(f"{path}: no column {weight!r} among {list(map(str, frame.columns))}")
    kinds = [plain_name(name) for name in frame.columns[:2]]
    if kinds[0].startswith("user") and kinds[1].startswith(("item", "movie", "product")):
        both = set(frame.iloc[:, 0]) & set(frame.iloc[:, 1])
        if both:
            one, other = map(str, frame.columns[:2])
            warn_of_data(
                f"{path}: {len(both)} labels stand among both {one!r} and {other!r} (one of them: "
                f"{plain(both)[0]!r}), and are one node each; ratings and relations keep these kinds apart, "
                f"columns=({one!r}, {other!r}) says that they are the same nodes"
            )
    return _of_one_kind(frame)


def without_times(path: Path, frame: pd.DataFrame, weight: str | None = None, cure: str | None = None) -> pd.DataFrame:
    """A table of edges without times behind the two ends or the weight, unless they are asked for as the weight.

    cure: what else asks for them.
    """
    asked = weight is not None if frame.shape[1] == 3 else weight == str(frame.columns[-1])
    found = frame.shape[1] in (3, 4) and not asked and _is_time(path, frame, frame.columns[-1], cure)
    return frame.iloc[:, :-1] if found else frame


def odd_width(frame: pd.DataFrame) -> str:
    """Say what a table of edges with more columns than two ends and a weight needs."""
    one, other = map(str, frame.columns[:2])
    return f"two nodes and perhaps a weight, or columns=({one!r}, {other!r}) (--columns {one},{other}) that name them"


def _of_one_kind(frame: pd.DataFrame) -> pd.DataFrame:
    """Edges called as such; where one end is a text, numbers at the other are texts too, as they are in the file."""
    frame = frame.set_axis(NAMES[: frame.shape[1]], axis=1)
    whole = [pd.api.types.is_integer_dtype(frame[name]) for name in NAMES[:2]]
    if whole[0] == whole[1] or any(pd.api.types.is_float_dtype(frame[name]) for name in NAMES[:2]):
        return frame
    return frame.astype({NAMES[whole.index(True)]: str})


def _is_time(path: Path, frame: pd.DataFrame, name: Hashable, cure: str | None = None) -> bool:
    """Whether a column holds times rather than weights, by its name or its numbers; a DataWarning says so."""
    numbers: Any = pd.to_numeric(frame[name], errors="coerce")
    unix = bool((numbers == numbers.round()).all()) and any(numbers.between(*limits).all() for limits in _UNIX)
    if not unix and plain_name(name) not in _TIMES:
        return False
    first = plain(frame[name].iloc[:1])[0]
    warn_of_data(
        f"{path}: column {str(name)!r} looks like times (the first: {first}), and is not taken for weights; "
        f"{cure or f'weight={str(name)!r}'} takes it"
    )
    return True
