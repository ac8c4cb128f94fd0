"""``relations(...)``: arrays, sparse matrices, frames and long tables, as data that relational models take."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch

from ppl_models.core.errors import DataError
from ppl_models.data import sparse
from ppl_models.data.containers import as_numbers, as_tensor, refuse_blocks, type_for
from ppl_models.data.files.fields import without_index
from ppl_models.data.files.headers import Header
from ppl_models.data.files.reading import file_named, naming
from ppl_models.data.files.tables import columns_called, is_bare, list_names, read_table, require_file
from ppl_models.data.held import Names, Source, is_path, is_string, labels_of, to_numpy
from ppl_models.data.labels import number_labels
from ppl_models.data.lazy import is_pandas
from ppl_models.data.lazy import pandas as pd
from ppl_models.data.relations.data import Relations

_EXPECTED = "a mapping of relations to arrays, a long table of relation, entities and value, or the path of one"
#: What the columns of a long table may be called that hold no entities.
_RELATION, _VALUE = ("relation", "predicate"), ("value", "x", "rating")


def relations(
    source: Source,
    axes: Mapping[str, Sequence[str]] | None = None,
    *,
    types: Mapping[str, int] | None = None,
    labels: Mapping[str, Sequence[Any]] | None = None,
    unlisted: str | Mapping[str, str] | None = None,
    header: Header = "auto",
    drop: Names = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Relations:
    """Relations between entities, from whatever people hold them in.

    >>> data = relations({"likes": [[1, 0], [1, float("nan")]]}, {"likes": ("person", "film")})
    >>> data.types, data.array("likes").tolist()
    ({'person': 2, 'film': 2}, [[1.0, 0.0], [1.0, nan]])

    Parameters
    ----------
    source: relation -> its cells: an array of as many axes as it has, NaN where missing; a sparse matrix, of which what
        is not stored is 0; a frame, with labels; or a long table of entities, and perhaps of values: a frame with a
        column for each axis, or (entities (C, A), values (C,)). Or one long table of all: a frame, or the path of a
        CSV or Parquet file, with the columns "relation", one for each type ("person"; "person_1" and "person_2" where a
        relation has two axes of one type), empty where a relation has no such axis, and perhaps "value". Without
        "relation" it is of one: called what its last column of numbers is, the third or later, or "related"; columns
        that share entities are then of one type, "entity".
    axes: relation -> the types of its axes. Of long tables by default what the columns are called.
    types: the number of entities of each type, where some have no cells. labels: of all of them, in order.
    unlisted: what the cells of long tables are that are not listed: "missing", the default of tables with values, or
        "zero", that of tables without, whose cells are 1; for all, or by relation.

    header: of CSV and text files: whether the first line names the columns, or "auto". Without names a last column of
        numbers, the third or later, is "value", and the others hold entities: of one type, "entity", where two columns
        share some, else of types "entity1", "entity2", ... drop: columns of a long table of all that are left out.

    Raises DataError for other numbers of axes or entities, unknown labels, and cells that are listed twice.
    """
    refuse_blocks(source)
    file = file_named(source, _EXPECTED) if is_path(source) else None
    require_file(file, header)
    with naming(file):
        if file is not None:
            source = _with_names(read_table(file, header, lists=range(2, 9), asked=list_names(drop)))
        elif is_pandas(source, "DataFrame"):
            source = without_index(source, "the table of relations", list_names(drop))
        if drop is not None and is_pandas(source, "DataFrame"):
            source = source.drop(columns=columns_called(source, drop))
        if isinstance(source, Relations):
            return source.to(dtype=dtype, device=device)
        tables = _of_long(source, axes) if is_pandas(source, "DataFrame") else source
        if not isinstance(tables, Mapping) or not len(tables):
            raise DataError(f"{type(source).__name__}", expected=_EXPECTED)
        door = _Door(axes or {}, dict(types or {}), {t: list(names) for t, names in (labels or {}).items()}, unlisted)
        for name, one in tables.items():
            door.read(str(name), one)
        return door.build(dtype).to(device=device)


def _with_names(frame: pd.DataFrame) -> pd.DataFrame:
    """A table without names: the entities by the numbers of their columns, of one type where columns share some."""
    if not is_bare(frame):
        return frame
    has_value = frame.shape[1] > 2 and pd.api.types.is_numeric_dtype(frame.iloc[:, -1])
    ends = frame.iloc[:, :-1] if has_value else frame
    shared = _share_entities(ends)
    names = [f"entity_{j}" if shared else f"entity{j}" for j in range(1, ends.shape[1] + 1)]
    return frame.set_axis([*names, *(["value"] if has_value else [])], axis=1)


def _of_long(frame: pd.DataFrame, axes: Mapping[str, Sequence[str]] | None) -> dict[str, Any]:
    """The rows of each relation, with the columns that it fills."""
    relation = next((one for one in _RELATION if one in frame.columns), None)
    if relation is None:
        return _of_one(frame) if axes is None else {next(iter(axes)): frame}
    found: dict[str, Any] = {}
    for name, rows in frame.groupby(relation, sort=False):
        own = rows.drop(columns=[relation])
        kept = [c for c in own.columns if c in _VALUE or bool(own[c].notna().any())]
        found[str(name)] = own[kept]
    return found


def _of_one(frame: pd.DataFrame) -> dict[str, Any]:
    """A table of one relation: it is called what its values are, or "related" where they have no name of their own.
    Columns that share entities hold one type."""
    last, name = frame.columns[-1], "related"
    if len(frame.columns) > 2 and last not in _VALUE and pd.api.types.is_numeric_dtype(frame[last]):
        name, frame = str(last), frame.rename(columns={last: _VALUE[0]})
    ends = [column for column in frame.columns if column not in _VALUE]
    shared = set(map(_type_called, ends)) == set(map(str, ends)) and _share_entities(frame.loc[:, ends])
    names = {column: f"entity_{j}" for j, column in enumerate(ends, 1)} if shared else {}
    return {name: frame.rename(columns=names)}


def _share_entities(ends: pd.DataFrame) -> bool:
    seen = [set(ends[column]) for column in ends.columns]
    return any(one & other for place, one in enumerate(seen) for other in seen[:place])


class _Part(NamedTuple):
    """The listed cells of one relation. ends: the entities by axis. closed: whether unlisted cells are 0. placed:
    whether entities are positions rather than labels."""

    name: str
    types: tuple[str, ...]
    ends: list[Any]
    values: np.ndarray
    closed: bool
    placed: bool


class _Door:
    """Relations read so far."""

    def __init__(
        self,
        axes: Mapping[str, Sequence[str]],
        types: dict[str, int],
        labels: dict[str, list[Any]],
        unlisted: str | Mapping[str, str] | None,
    ):
        self.axes, self.types, self.labels, self.unlisted = axes, types, labels, unlisted
        self.parts: list[_Part] = []

    def read(self, name: str, cells: Source) -> None:
        source: Any = _as_frame(cells) if isinstance(cells, tuple) and len(cells) == 2 else cells
        given = self.axes.get(name)
        if self.axes and given is None:
            raise DataError("a relation that is not named", axis=name, expected=f"one of {', '.join(self.axes)}")
        types = None if given is None else (given,) if is_string(given) else tuple(given)
        if not is_pandas(source, "DataFrame") or (types is not None and not self._is_long(source, types)):
            self._array(name, types, source)
            return
        columns = [c for c in source.columns if c not in _VALUE]
        types = types or tuple(map(_type_called, columns))
        self._arity(name, len(columns), types)
        value = next((c for c in source.columns if c in _VALUE), None)
        values = np.ones(len(source)) if value is None else _numbers(source[value], name)
        how = self.unlisted.get(name) if isinstance(self.unlisted, Mapping) else self.unlisted
        how = how or ("zero" if value is None else "missing")
        if how not in ("zero", "missing"):
            raise DataError(f"unlisted = {how!r}", axis=name, expected="'zero' or 'missing'")
        self.parts.append(_Part(name, types, [source[c] for c in columns], values, how == "zero", False))

    @staticmethod
    def _is_long(frame: pd.DataFrame, types: tuple[str, ...]) -> bool:
        named = any(c in _VALUE for c in frame.columns)
        named |= not all(pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes)
        return named or len(types) != 2 or tuple(map(_type_called, frame.columns)) == types

    def _arity(self, name: str, found: int, types: tuple[str, ...]) -> None:
        if found != len(types):
            raise DataError(f"{found} axes", axis=name, expected=f"{len(types)}: {', '.join(types)}")

    def _array(self, name: str, types: tuple[str, ...] | None, source: Any) -> None:
        if types is None:
            raise DataError("an array whose axes have no types", axis=name, expected="axes={relation: types}")
        if is_pandas(source, "DataFrame"):
            self._arity(name, 2, types)
            place = [self._places(t, index) for t, index in zip(types, (source.index, source.columns), strict=True)]
            source = source.to_numpy(dtype=np.float64, na_value=np.nan)
            if all(t in self.labels for t in types):
                where = np.indices(source.shape).reshape(2, -1)
                ends = [place[a][where[a]] for a in (0, 1)]
                self.parts.append(_Part(name, types, ends, source.ravel(), False, True))
                return
        if sparse.is_matrix(source):
            one: Any = scipy.sparse.coo_array(sparse.scipy_of(source))
            one.sum_duplicates()
            shape, ends, values, closed = one.shape, [one.row, one.col], one.data.astype(np.float64), True
        else:
            dense = to_numpy(as_numbers(source, axis=name)).astype(np.float64)
            gaps = np.isnan(dense)
            # Zeros need no list, unless most cells are missing: then it is the missing ones that need none.
            closed = bool(2 * gaps.sum() <= dense.size)
            listed = dense != 0 if closed else ~gaps
            shape, ends, values = dense.shape, list(np.nonzero(np.atleast_1d(listed))), dense[listed]
        self._arity(name, len(shape), types)
        self._check_sizes(name, types, shape)
        self.parts.append(_Part(name, types, ends, values, closed, True))

    def _places(self, t: str, index: pd.Index) -> np.ndarray:
        own = labels_of(index)
        names = self.labels.get(t) if own is None else self.labels.setdefault(t, own)
        return np.arange(len(index)) if names is None else number_labels(list(index), t, None, names)[0]

    def _check_sizes(self, name: str, types: tuple[str, ...], shape: Sequence[int]) -> None:
        for t, size in zip(types, shape, strict=True):
            if self.types.setdefault(t, int(size)) != size:
                found = f"{size} entities of type '{t}'"
                raise DataError(found, axis=name, expected=f"{self.types[t]}, as elsewhere")

    def build(self, dtype: torch.dtype | None) -> Relations:
        coords, types, place = self._entities()
        width = max(len(one.types) for one in self.parts)
        rows = []
        for r, one in enumerate(self.parts):
            if not one.types:
                raise DataError("a relation without axes", axis=one.name, expected="at least one")
            cells = np.full((len(one.values), 2 + width), -1.0)
            cells[:, 0], cells[:, -1] = r, one.values
            for a, entities in enumerate(place[r], 1):
                cells[:, a] = entities
            rows.append(cells)
        wide = any(type_for(torch.as_tensor(one)) == torch.float64 for one in rows)
        x = as_tensor(np.concatenate(rows), dtype or (torch.float64 if wide else None))
        unlisted = torch.tensor([0.0 if one.closed else torch.nan for one in self.parts]).to(x)
        relations = {one.name: one.types for one in self.parts}
        found = Relations(x=x, types=types, relations=relations, coords=coords, others={"unlisted": unlisted})
        found._check()
        return found

    def _entities(self) -> tuple[dict[str, list[Any]], dict[str, int], list[list[np.ndarray]]]:
        """Labels and sizes of all types, and where the entities of every relation are."""
        coords: dict[str, list[Any]] = {}
        sizes: dict[str, int] = {}
        place = [list(one.ends) for one in self.parts]
        for t in dict.fromkeys([*(t for one in self.parts for t in one.types), *self.types]):
            at = [(r, a) for r, one in enumerate(self.parts) for a, kind in enumerate(one.types) if kind == t]
            named = [(r, a) for r, a in at if t not in self.labels or not self.parts[r].placed]
            columns = [np.asarray(self.parts[r].ends[a]) for r, a in named]
            together = [one for column in columns for one in column.tolist()]
            known, size = self.labels.get(t), self.types.get(t)
            found, size, names = number_labels(together, t, size if known is None else None, known)
            if self.types.get(t, size) != size:
                raise DataError(f"{size} labels", axis=t, expected=f"{self.types[t]}, as their number says")
            sizes[t] = size
            if names is not None:
                coords[t] = names
            begin = 0
            for (r, a), column in zip(named, columns, strict=True):
                place[r][a], begin = found[begin : begin + len(column)], begin + len(column)
        return coords, sizes, place


def _type_called(column: Hashable) -> str:
    """The type of the entities of a column: person_1 and person_2 hold persons."""
    return re.sub(r"[._ ]\d+$", "", str(column))


def _numbers(column: pd.Series, name: str) -> np.ndarray:
    try:
        read: Any = pd.to_numeric(column)
        return read.to_numpy(dtype=np.float64, na_value=np.nan)
    except (ValueError, TypeError):
        raise DataError("values that are no numbers", axis=name, expected="numbers; NaN for missing") from None


def _as_frame(pair: tuple[Any, ...]) -> pd.DataFrame:
    """Entities (C, A) and values (C,) as a long table."""
    entities = np.asarray(pair[0])
    if entities.ndim != 2 or len(entities) != len(pair[1]):
        expected = "entities (C, A) and values (C,)"
        raise DataError(f"entities of shape {entities.shape} and {len(pair[1])} values", expected=expected)
    return pd.DataFrame({f"_{a}": entities[:, a] for a in range(entities.shape[1])}).assign(value=pair[1])
