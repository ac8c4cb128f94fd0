"""Values that go with the rows of a command's file, in other files or in columns of the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from custom_inference.faces.command_line import columns
from custom_inference.faces.command_line.options import SourceOptions
from ppl_models import DataError, Model, PPLError
from ppl_models.data.files import headers
from ppl_models.data.files.reading import naming
from ppl_models.data.files.tables import ending, read_table
from ppl_models.data.lazy import pandas as pd
from ppl_models.datasets import read_matrix

#: Tables whatever the model; of documents other endings are those of texts.
TABULAR = (".csv", ".tsv", ".tab", ".parquet")
MATRICES = (*TABULAR, ".npz")
#: What ``--with`` calls how often each row counts.
WEIGHTS = "weights"


@dataclass
class Given:
    """What stands beside the rows: the value, the names of classes, labels or columns, and the kind that was said."""

    value: Any
    names: list[Any] | None = None
    kind: str | None = None


class BesideRows(SourceOptions):
    """The options of a source, as far as they say what stands beside its rows."""

    def read_given(self, model: Model) -> dict[str, Given]:
        """Name -> what the files, or the columns of this file, hold that ``beside`` names, (N, P), but for weights; of
        links between the rows, where these are no matrix, the path of their file, which the model reads."""
        found: dict[str, Given] = {}
        for name, one in self.beside_rows.items():
            if name == WEIGHTS and name not in model.sites:
                continue
            if model.dims.get(name, ())[1:] == (f"to_{model.row_axis}",):
                found[name] = Given(_links(Path(one.text)))
            elif one.file is not None:
                found[name] = Given(read_matrix(one.file, dtype=torch.float64).x_with_nan, kind=one.kind)
            elif name in model.axes and not model.sites[name].dims:  # places on an axis, which keeps them as labels
                found[name] = Given(columns.select_columns(self._table, one.columns[:1], self.file).iloc[:, 0])
            else:
                with naming(self.file):
                    frame = columns.select_columns(self._table, one.columns, self.file)
                    found[name] = Given(*columns.values(model, name, frame, one.kind), one.kind)
        return found

    def weights(self, model: Model) -> np.ndarray | None:
        """How often each row counts, (N,), where ``beside`` says it."""
        one = None if WEIGHTS in model.sites else self.beside_rows.get(WEIGHTS)
        if one is None:
            return None
        if one.file is not None:
            return read_matrix(one.file, dtype=torch.float64).x.squeeze(1).numpy()
        with naming(self.file):
            return columns.weights(columns.select_columns(self._table, one.columns, self.file))

    def refuse_weights(self, command: str) -> None:
        """Raises DataError where ``beside`` says how often rows count."""
        if WEIGHTS in self.beside_rows:
            raise DataError(f"--with weights=... of {command}, where every row counts once", expected="ppl fit MODEL")

    def table_beside(self, one: columns.Beside) -> pd.DataFrame:
        """Return the table that one place beside the rows says: of its file, or of columns of this file."""
        if one.file is not None:
            return read_table(one.file)
        return columns.select_columns(self._table, one.columns, self.file)

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
        return read_table(self.file, self.header_given, asked=asked)

    @property
    def header_given(self) -> headers.Header:
        """Whether the first line of the file names its columns, as its readers take it."""
        given = {"yes": True, "no": False, "auto": "auto"}
        return given[str(self.header)]  # pyright: ignore[reportReturnType]


def _links(file: Path) -> Any:
    """A square matrix of more than three rows, or else the path: of pairs, or of a file of a graph."""
    with contextlib.suppress(PPLError):
        values = read_matrix(file, dtype=torch.float64, keep_sparse=True)
        if values.num_features == len(values) > 3:
            return values.x_with_nan
    return file
