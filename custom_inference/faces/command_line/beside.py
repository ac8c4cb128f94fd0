"""Values that go with the rows of a command's file, in other files or in columns of the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from custom_inference.checks.kinds import are_labels
from custom_inference.faces.command_line import columns
from custom_inference.faces.command_line.options import SourceOptions
from ppl_models import DataError, Model, PPLError
from ppl_models.data.files import headers
from ppl_models.data.files.reading import naming
from ppl_models.data.files.tables import TABLES, columns_called, ending, list_names, read_table
from ppl_models.data.held import to_numpy
from ppl_models.data.lazy import pandas as pd
from ppl_models.datasets import read_matrix

#: Tables whatever the model; of documents other endings are those of texts.
TABULAR = (".csv", ".tsv", ".tab", ".parquet")
MATRICES = (*TABULAR, ".npz")
#: What ``--with`` calls how often each row counts.
WEIGHTS = "weights"


class BesideRows(SourceOptions):
    """The options of a source, as far as they say what stands beside its rows."""

    def read_beside(self, model: Model) -> dict[str, Any]:
        """Name -> the columns that ``beside`` names, of this file or another, under the labels of its rows, but for
        weights; of links between the rows, where these are no matrix, the path of their file, which the model reads."""
        found: dict[str, Any] = {}
        for name, one in self.beside_rows.items():
            if name == WEIGHTS and name not in model.sites:
                continue
            if model.dims.get(name, ())[1:] == (f"to_{model.row_axis}",):
                found[name] = _links(Path(one.text))
            else:
                with naming(self.file if one.file is None else one.file):
                    found[name] = columns.values_of(model, name, self.table_beside(one), one.kind)
        return found

    def weights(self, model: Model) -> pd.Series | None:
        """How often each row counts, (N,), where ``beside`` says it."""
        one = None if WEIGHTS in model.sites else self.beside_rows.get(WEIGHTS)
        if one is None:
            return None
        with naming(self.file if one.file is None else one.file):
            return columns.weights(self.table_beside(one))

    def refuse_weights(self, command: str) -> None:
        """Raises DataError where ``beside`` says how often rows count."""
        if WEIGHTS in self.beside_rows:
            raise DataError(f"--with weights=... of {command}, where every row counts once", expected="ppl fit MODEL")

    def table_beside(self, one: columns.Beside) -> pd.DataFrame:
        """Return the table that one place beside the rows says, under the labels of its rows: of columns of this file,
        or of another, whose rows the column of that name, or a first one of words, labels."""
        if one.file is None:
            chosen = columns.select_columns(self._table, one.columns, self.file)
            chosen = chosen if self.row_label is None else chosen.set_axis(self._table[self.row_label], axis=0)
            return chosen if self.kept is None else chosen.iloc[self.kept]
        if ending(one.file) not in TABLES:
            found = read_matrix(one.file, dtype=torch.float64).dense()
            return pd.DataFrame(to_numpy(found.x_with_nan), found.coords.get("row"), found.coords.get("feature"))
        table = read_table(one.file, asked=list_names(self.id), id=self.id)
        label = self.row_label if self.row_label in table.columns else None
        first = table.columns[0]
        is_words = not pd.api.types.is_numeric_dtype(table[first]) and table.shape[1] > 1 and table[first].is_unique
        label = first if label is None and is_words and self.row_label is not None else label
        return table if label is None else table.set_index(label)

    #: The places of the rows that are read, where some are left out.
    kept: Any = None

    @property
    def row_label(self) -> Any:
        """The column of the table that names its rows; None where none does."""
        if ending(self.file) not in TABULAR:
            return None
        if self.id is not None:
            return columns_called(self._table, self.id)[0]
        others = [*self._columns_beside, *(split_names(self.drop) or []), *(split_names(self.columns) or []), self.text]
        first = self._table.columns[0]
        return first if first not in others and are_labels(self._table.iloc[:, 0]) else None

    @contextlib.contextmanager
    def naming_columns(self) -> Iterator[None]:
        """Errors of what stands beside the rows say which columns it is in."""
        try:
            yield
        except DataError as error:
            one = self.beside_rows.get(error.site)
            if one is not None and one.columns and "column" not in str(error):
                error.args = (f"column {', '.join(map(repr, one.columns))} of {self.file}: {error}",)
            raise

    @property
    def _columns_beside(self) -> list[str]:
        return [name for one in self.beside_rows.values() for name in one.columns]

    @cached_property
    def beside_rows(self) -> dict[str, columns.Beside]:
        """Name -> the file, or the columns of this file, that hold it."""
        found: dict[str, columns.Beside] = {}
        for pair in self.beside or ():
            name, equals, where = pair.partition("=")
            if not equals or not name or not where:
                raise DataError(f"--with {pair!r}", expected="NAME=FILE, or NAME=COLUMN,COLUMN,... of FILE")
            found[name] = self._stands(where)
        return found

    def _stands(self, where: str) -> columns.Beside:
        """Parse a place and its kind: ``stars``, ``stars:real``, ``age,sex``, ``beside.csv``."""
        cut, colon, kind = where.rpartition(":")
        in_table = ending(self.file) in TABULAR
        is_name = in_table and where.split(",")[-1] in map(str, self._table.columns)
        if not colon or Path(where).is_file() or is_name or not kind.isidentifier():
            cut, kind = where, ""
        if not in_table or Path(cut).suffix.lower() in MATRICES or Path(cut).is_file():
            return columns.Beside(cut, Path(cut), [], kind or None)
        return columns.Beside(cut, None, [one.strip() for one in cut.split(",")], kind or None)

    @cached_property
    def _table(self) -> pd.DataFrame:
        """The table that the file holds."""
        if ending(self.file) not in TABULAR:
            raise DataError(f"{self.file} has no columns with names", expected=f"a file of {' or '.join(TABULAR)}")
        wheres = [pair.partition("=")[2] for pair in self.beside or ()]
        said = [*wheres, *(where.rpartition(":")[0] for where in wheres)]
        said += [one for one in (self.columns, self.id, self.drop, self.text) if one is not None]
        asked = [name.strip() for one in said for name in one.split(",")]
        return read_table(self.file, self.header_given, asked=asked, id=self.id)

    @property
    def header_given(self) -> headers.Header:
        """Whether the first line of the file names its columns, as its readers take it."""
        given = {"yes": True, "no": False, "auto": "auto"}
        return given[str(self.header)]  # pyright: ignore[reportReturnType]


def split_names(text: str | None) -> list[str] | None:
    """Names between commas."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _links(file: Path) -> Any:
    """A square matrix of more than three rows, or else the path: of pairs, or of a file of a graph."""
    with contextlib.suppress(PPLError):
        values = read_matrix(file, dtype=torch.float64, keep_sparse=True)
        if values.num_features == len(values) > 3:
            return values.x_with_nan
    return file
