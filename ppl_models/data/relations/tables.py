"""Long tables of relations: which columns hold entities, and of which types; values; pairs as tables."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ppl_models.core.errors import DataError
from ppl_models.data.files.edge_frames import without_times
from ppl_models.data.files.tables import is_bare
from ppl_models.data.lazy import pandas as pd

#: What the columns of a long table may be called that hold no entities.
_RELATION, VALUE = ("relation", "predicate"), ("value", "x", "rating")


def with_names(frame: pd.DataFrame, path: Path | None = None) -> pd.DataFrame:
    """A table without names: the entities by the numbers of their columns, of one type where columns share some; times
    behind two entities, or behind their value, are left out."""
    if not is_bare(frame):
        return frame
    frame = frame if path is None else without_times(path, frame, cure="a header that calls it value")
    has_value = frame.shape[1] > 2 and pd.api.types.is_numeric_dtype(frame.iloc[:, -1])
    ends = frame.iloc[:, :-1] if has_value else frame
    shared = _share_entities(ends)
    names = [f"entity_{j}" if shared else f"entity{j}" for j in range(1, ends.shape[1] + 1)]
    return frame.set_axis([*names, *(["value"] if has_value else [])], axis=1)


def of_long(frame: pd.DataFrame, axes: Mapping[str, Sequence[str]] | None) -> dict[str, Any]:
    """The rows of each relation, with the columns that it fills."""
    relation = next((one for one in _RELATION if one in frame.columns), None)
    if relation is None:
        return _of_one(frame) if axes is None else {next(iter(axes)): frame}
    found: dict[str, Any] = {}
    for name, rows in frame.groupby(relation, sort=False):
        own = rows.drop(columns=[relation])
        kept = [c for c in own.columns if c in VALUE or bool(own[c].notna().any())]
        found[str(name)] = own[kept]
    return found


def _of_one(frame: pd.DataFrame) -> dict[str, Any]:
    """A table of one relation: it is called what its values are, or "related" where they have no name of their own.
    Columns that share entities hold one type."""
    last, name = frame.columns[-1], "related"
    if len(frame.columns) > 2 and last not in VALUE and pd.api.types.is_numeric_dtype(frame[last]):
        name, frame = str(last), frame.rename(columns={last: VALUE[0]})
    ends = [column for column in frame.columns if column not in VALUE]
    shared = set(map(type_called, ends)) == set(map(str, ends)) and _share_entities(frame.loc[:, ends])
    names = {column: f"entity_{j}" for j, column in enumerate(ends, 1)} if shared else {}
    return {name: frame.rename(columns=names)}


def _share_entities(ends: pd.DataFrame) -> bool:
    seen = [set(ends[column]) for column in ends.columns]
    return any(one & other for place, one in enumerate(seen) for other in seen[:place])


def type_called(column: Hashable) -> str:
    """The type of the entities of a column: person_1 and person_2 hold persons."""
    return re.sub(r"[._ ]\d+$", "", str(column))


def numbers_of(column: pd.Series, name: str) -> np.ndarray:
    try:
        read: Any = pd.to_numeric(column)
        return read.to_numpy(dtype=np.float64, na_value=np.nan)
    except (ValueError, TypeError):
        raise DataError("values that are no numbers", axis=name, expected="numbers; NaN for missing") from None


def as_table(pairs: Sequence[Any]) -> pd.DataFrame:
    """Pairs of entities, perhaps with values, as a table without names."""
    if len(set(map(len, pairs))) > 1 or len(pairs[0]) not in (2, 3):
        raise DataError("pairs of different lengths", expected="(from, to) or (from, to, value) for every cell")
    return pd.DataFrame(list(map(list, pairs)))


def as_frame(pair: tuple[Any, ...]) -> pd.DataFrame:
    """Entities (C, A) and values (C,) as a long table."""
    entities = np.asarray(pair[0])
    if entities.ndim != 2 or len(entities) != len(pair[1]):
        expected = "entities (C, A) and values (C,)"
        raise DataError(f"entities of shape {entities.shape} and {len(pair[1])} values", expected=expected)
    return pd.DataFrame({f"_{a}": entities[:, a] for a in range(entities.shape[1])}).assign(value=pair[1])
