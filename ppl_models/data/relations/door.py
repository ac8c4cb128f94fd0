"""``relations(...)``: arrays, sparse matrices, frames and long tables, as data that relational models take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch

from ppl_models.core.errors import DataError, warn_of_data
from ppl_models.data import sparse
from ppl_models.data.containers import as_numbers, as_tensor, refuse_blocks, type_for
from ppl_models.data.files.fields import without_index
from ppl_models.data.files.headers import Header
from ppl_models.data.files.reading import file_named, naming
from ppl_models.data.files.tables import columns_called, list_names, read_table, require_file
from ppl_models.data.graphs.edges import FEW
from ppl_models.data.graphs.lists import Reading
from ppl_models.data.graphs.sources import is_pairs, read_source
from ppl_models.data.held import Names, Source, is_listed, is_path, is_string, labels_of, objects, to_numpy
from ppl_models.data.labels import number_labels
from ppl_models.data.lazy import is_networkx, is_pandas
from ppl_models.data.lazy import pandas as pd
from ppl_models.data.relations.data import Relations, of_one_type, those_named, without_loops
from ppl_models.data.relations.dyads import Dyads
from ppl_models.data.relations.tables import VALUE, as_frame, as_table, numbers_of, of_long, type_called, with_names

_EXPECTED = "a mapping of relations to arrays, a long table of relation, entities and value, or the path of one"


def relations(
    source: Source,
    axes: Mapping[str, Sequence[str]] | None = None,
    *,
    types: Mapping[str, int] | None = None,
    labels: Mapping[str, Sequence[Any]] | None = None,
    unlisted: str | Mapping[str, str] | None = None,
    symmetric: Names | bool = None,
    self_loops: Names | bool = False,
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
        column for each axis, or (entities (C, A), values (C,)); of a type with itself also a list of pairs, or a
        networkx graph. Or one long table of all: a frame, or the path of a CSV or Parquet file, with the columns
        "relation", one for each type ("person"; "person_1" and "person_2" where a relation has two axes of one type),
        empty where a relation has no such axis, and perhaps "value". Without "relation" it is of one:
        called what its last column of numbers is, the third or later, or "related"; columns that share entities are
        then of one type, "entity".
    axes: relation -> the types of its axes. Of long tables by default what the columns are called.
    types: the number of entities of each type, where some have no cells. labels: of all of them, in order.
    unlisted: what the cells of long tables are that are not listed: "missing", the default of tables with values, or
        "zero", that of tables without, whose cells are 1; for all, or by relation.
    symmetric: the relations of a type with itself in which (i, j) and (j, i) are one cell: names, True for all of them,
        or False. By default matrices that are symmetric where both were observed; long tables are directed, with a
        DataWarning where no pair, or every one, stands in both directions.
    self_loops: those in which (i, i) is a cell, names or True; of others the diagonal is no observation, and is left
        out, with a DataWarning where it is not 0.
    header: of CSV and text files: whether the first line names the columns, or "auto". Without names a last column of
        numbers, the third or later, is "value", and the others hold entities: of one type, "entity", where two columns
        share some, else of types "entity1", "entity2", ... drop: columns of a long table of all that are left out.

    Raises DataError for other numbers of axes or entities, unknown labels, and cells that are listed twice.
    """
    refuse_blocks(source)
    file = file_named(source, _EXPECTED) if is_path(source) else None
    require_file(file, header)
    with naming(file):
        if isinstance(source, Relations):
            return source.to(dtype=dtype, device=device)
        axes = {"related": ("entity", "entity")} if axes is None and is_networkx(source, "Graph") else axes
        tables = _read_tables(source, file, axes, header, drop)
        door = _Door(axes or {}, dict(types or {}), {t: list(names) for t, names in (labels or {}).items()}, unlisted)
        for name, one in tables.items():
            door.read(str(name), one)
        return door.build(dtype, symmetric, self_loops).to(device=device)


def _read_tables(
    source: Source, file: Path | None, axes: Mapping[str, Sequence[str]] | None, header: Header, drop: Names
) -> Mapping[str, Any]:
    """The cells of every relation, as the source holds them."""
    held: Any = source
    if file is not None:
        held = with_names(read_table(file, header, lists=range(2, 9), asked=list_names(drop)), file)
    elif is_pandas(held, "DataFrame"):
        held = without_index(held, "the table of relations", list_names(drop))
    elif is_networkx(held, "Graph") and axes:
        return {next(iter(axes)): held}
    elif is_listed(held) and len(held) and is_pairs(held):
        held = with_names(as_table(held))
    if is_pandas(held, "DataFrame"):
        return of_long(held if drop is None else held.drop(columns=columns_called(held, drop)), axes)
    if not isinstance(held, Mapping) or not len(held):
        raise DataError(f"{type(held).__name__}", expected=_EXPECTED)
    return held


class _Part(NamedTuple):
    """The listed cells of one relation. ends: the entities by axis. closed: whether unlisted cells are 0. placed:
    whether entities are positions rather than labels, as in a matrix. symmetric: whether the source says that it is."""

    name: str
    types: tuple[str, ...]
    ends: list[Any]
    values: np.ndarray
    closed: bool
    placed: bool
    symmetric: bool | None = None


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
        source: Any = as_frame(cells) if isinstance(cells, tuple) and len(cells) == 2 else cells
        given = self.axes.get(name)
        if self.axes and given is None:
            raise DataError("a relation that is not named", axis=name, expected=f"one of {', '.join(self.axes)}")
        types = None if given is None else (given,) if is_string(given) else tuple(given)
        if is_networkx(source, "Graph"):
            self._graph(name, types, source)
            return
        if is_listed(source) and len(source) and is_pairs(source) and (types is None or len(types) == 2):
            frame = as_table(source)
            source = frame.set_axis(["_1", "_2", VALUE[0]][: frame.shape[1]], axis=1)
        if not is_pandas(source, "DataFrame") or (types is not None and not self._is_long(source, types)):
            self._array(name, types, source)
            return
        columns = [c for c in source.columns if c not in VALUE]
        types = types or tuple(map(type_called, columns))
        self._arity(name, len(columns), types)
        value = next((c for c in source.columns if c in VALUE), None)
        values = np.ones(len(source)) if value is None else numbers_of(source[value], name)
        how = self.unlisted.get(name) if isinstance(self.unlisted, Mapping) else self.unlisted
        seen = values[~np.isnan(values)]
        if how is None and value is not None and len(seen) >= FEW and (seen == seen[0]).all():
            warn_of_data(
                f"all {len(seen)} listed cells of '{name}' are {seen[0]:g}, and others are taken for missing; "
                "unlisted='zero', or no column of values (--drop), says that they are 0"
            )
        how = how or ("zero" if value is None else "missing")
        if how not in ("zero", "missing"):
            raise DataError(f"unlisted = {how!r}", axis=name, expected="'zero' or 'missing'")
        self.parts.append(_Part(name, types, [source[c] for c in columns], values, how == "zero", False))

    def _graph(self, name: str, types: tuple[str, ...] | None, source: Source) -> None:
        """A graph of networkx, whose nodes are the entities of one type."""
        edges = read_source(source, Reading())
        if types is None or not of_one_type(types):
            raise DataError(
                "a graph", axis=name, expected=f"axes={{{name!r}: (type, type)}}, the type of its nodes twice"
            )
        if edges.names is None:
            self._check_sizes(name, types, [edges.num_nodes] * 2)
        else:
            self.labels.setdefault(types[0], edges.names)
        names = objects(edges.names or range(edges.num_nodes))
        ends = [names[edges.row], names[edges.column]]
        self.parts.append(_Part(name, types, ends, edges.value, True, False, not edges.directed))

    @staticmethod
    def _is_long(frame: pd.DataFrame, types: tuple[str, ...]) -> bool:
        named = any(c in VALUE for c in frame.columns)
        named |= not all(pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes)
        return named or len(types) != 2 or tuple(map(type_called, frame.columns)) == types

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

    def build(
        self, dtype: torch.dtype | None, symmetric: Names | bool = None, self_loops: Names | bool = False
    ) -> Relations:
        coords, types, place = self._entities()
        width = max(len(one.types) for one in self.parts)
        relations = {one.name: one.types for one in self.parts}
        alike, loops = (
            those_named(option, names, relations, DataError)
            for option, names in (("symmetric", symmetric), ("self_loops", self_loops))
        )
        rows = []
        for r, one in enumerate(self.parts):
            if not one.types:
                raise DataError("a relation without axes", axis=one.name, expected="at least one")
            ends, values = place[r], one.values
            if of_one_type(one.types):
                said, size = one.symmetric if symmetric is None else one.name in alike, types[one.types[0]]
                names, sure = coords.get(one.types[0], range(size)), symmetric in (None, True, False)
                found = Dyads(one.name, ends[0], ends[1], values, size, names, one.closed, not one.placed, said, sure)
                found = found.settle()
                ends, values = [found.row, found.column], found.value
                alike = (*alike, one.name) if found.symmetric and one.name not in alike else alike
            cells = np.full((len(values), 2 + width), -1.0)
            cells[:, 0], cells[:, -1] = r, values
            for a, entities in enumerate(ends, 1):
                cells[:, a] = entities
            rows.append(cells)
        wide = any(type_for(torch.as_tensor(one)) == torch.float64 for one in rows)
        x = as_tensor(np.concatenate(rows), dtype or (torch.float64 if wide else None))
        x, closed = without_loops(x, relations, loops, coords), [0.0 if one.closed else torch.nan for one in self.parts]
        made = Relations(
            x=x, types=types, relations=relations, coords=coords, others={"unlisted": torch.tensor(closed).to(x)},
            symmetric=tuple(alike), self_loops=loops,
        )  # fmt: skip
        made._check()
        return made

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
