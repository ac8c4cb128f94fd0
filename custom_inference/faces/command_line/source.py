"""The data of a command: the file, and what is done to it before it reaches the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from custom_inference.checks.kinds import answers_in, kind_of_columns, kind_of_file, read_weights_if_any
from custom_inference.faces.command_line import columns
from custom_inference.faces.command_line.beside import MATRICES, TABULAR, BesideRows
from ppl_models import (
    Data,
    DataError,
    GraphData,
    Ratings,
    RowBlocks,
    answers,
    as_matrix,
    documents,
    graph,
    ratings,
    relations,
    row_blocks,
    sequences,
)
from ppl_models.data import sparse
from ppl_models.data.answers import has_words
from ppl_models.data.files.tables import TABLES, columns_called, ending, matrix_of
from ppl_models.data.lazy import pandas as pd
from ppl_models.datasets import read_matrix

#: Options of documents alone; those that need to see all rows; those of matrices alone.
WORDS = ("vocabulary", "min_count", "max_share", "stop_words", "text")
_WHOLE = (*WORDS[1:], "transpose", "drop_empty_rows", "labels", "directed", "beside")
_TABLE = ("columns", "id", "drop", "header")
_MATRIX = ("id", "drop", "matrix", "labels", "mask_value", "transpose")
_CHANGED = ("mask_value", "threshold")
#: Options that are not called as their fields are.
_SPELLED = {"directed": "--directed or --undirected", "beside": "--with"}


class Source(BesideRows):
    """The data that the options name."""

    def read(self, *, as_documents: bool = False) -> Data:
        """Rows by features, labels kept; sparse rows stay sparse where they can.

        Missing entries are marked before anything is compared with a threshold. as_documents: texts, lda-c and UCI
        files are read too, and words are left out as asked.
        """
        self.refuse(("directed",), "for a model that reads no graph", "sbm or the like")
        data = self._raw(as_documents)
        data = self._apply_options(_transpose(data) if self.transpose else data)
        if as_documents:
            names: Any = self.stop_words
            limits: dict[str, Any] = {"min_count": self.min_count, "max_share": self.max_share, "stop_words": names}
            data = documents(data, vocabulary=self.vocabulary, dtype=torch.float64, **limits)
        return _without_empty(data) if self.drop_empty_rows else data

    def read_answers(self) -> Data:
        """Rows of answers: as :meth:`read`, but of a table whose answers are words, or numbers none of which is 0, as
        :func:`ppl_models.answers` reads them, with their labels."""
        frame = self.answers_table()
        if frame is None:
            return self.read()
        words = has_words(frame)
        return answers(frame, dtype=torch.float64) if words or not bool((frame == 0).any(axis=None)) else self.read()

    def answers_table(self) -> pd.DataFrame | None:
        """The columns of answers as they stand in a table; None where the file is none, or its entries are changed."""
        plain = (self.matrix, self.labels, self.mask_value, self.threshold, self.text) == (None,) * 5
        if self.file.suffix.lower() not in TABULAR or not plain or self.transpose or self.drop_empty_rows:
            return None
        frame = self._table.drop(columns=columns_called(self._table, self._columns_beside))
        return answers_in(frame, split_names(self.columns), id=self.id, drop=split_names(self.drop))

    def blocks(self, block_rows: int) -> RowBlocks:
        """The file, or the folder of files, read in blocks of so many rows; entries are changed as they are read.

        Raises DataError for options that need to see all rows.
        """
        self.refuse(_WHOLE, "with --block-rows", "a file that needs no such change")
        is_table = self.file.is_dir() or ending(self.file) in TABULAR
        settings: dict[str, Any] = {"columns": split_names(self.columns) if is_table else self.columns}
        settings |= {"matrix": self.matrix, "vocabulary": self.vocabulary, "header": self.header_given}
        settings |= {"id": self.id, "drop": split_names(self.drop)}
        source = row_blocks(self.file, block_rows=block_rows, **settings)
        return source if self.mask_value is None and self.threshold is None else source.map(self._apply_options)

    def read_kind(self, kind: str | None, among: Sequence[str] = ()) -> tuple[str | None, Data]:
        """The data, read as such; by default as what the options say, or the file looks like: see :func:`kind_of_file`.
        The kind; None of rows, which look like it or not. among: kinds that are meant."""
        kind = self._kind_by_options(among) if kind is None else kind
        if kind == "graph":
            return kind, read_weights_if_any(self.read_graph)
        if kind == "categories":
            return kind, self.read_answers()
        return kind, self.read_ratings() if kind == "ratings" else self.read(as_documents=kind == "documents")

    def _kind_by_options(self, among: Sequence[str]) -> str | None:
        if self.text is not None:
            return "documents"
        if self.directed is not None:
            return "graph"
        chosen = (self.columns, self.id, self.drop) != (None,) * 3
        if self.beside is None and chosen and ending(self.file) in TABULAR:
            named = split_names(self.columns) or list(self._table.columns)
            left = {"id": self.id, "drop": split_names(self.drop)}
            return kind_of_columns(self._table, str(self.file), named, **left, among=among)
        return None if chosen or self.beside is not None else kind_of_file(self.file, self.header_given, among=among)

    def read_graph(self, kind: str) -> GraphData:
        """A graph, from any file that :func:`ppl_models.graph` reads.

        threshold: edges of a greater weight, as 0/1. drop_empty_rows: without the nodes that have no edge. kind:
        "binary" or "counts".
        """
        self.refuse(_MATRIX, "for a graph", "an edge list or an adjacency matrix as it is")
        settings: dict[str, Any] = {"directed": self.directed, "dtype": torch.float64, "header": self.header_given}
        names = split_names(self.columns)
        if names is not None:
            if len(names) not in (2, 3):
                raise DataError(f"--columns {self.columns} of edges", expected="FROM,TO or FROM,TO,WEIGHT")
            settings |= {"columns": tuple(names[:2]), "weight": names[2] if len(names) > 2 else None}
        if self.threshold is None:
            data = graph(self.file, kind=kind, **settings)
        elif self.threshold < 0:
            raise DataError(f"--threshold {self.threshold:g} for a graph", expected="a number of at least 0")
        else:
            data = graph(self.file, **settings)
            data = replace(data, x=_above(data, self.threshold).x)
        if not self.drop_empty_rows:
            return data
        joined = data.degrees() > 0
        if not bool(joined.any()):
            raise DataError("no node has an edge", axis="node", expected="at least one edge")
        return data.subgraph(joined)

    def read_ratings(self) -> Ratings:
        """Ratings, from any file that :func:`ppl_models.ratings` reads, or a matrix of them as other models read it."""
        listed = ending(self.file) in TABLES and not self.transpose
        if not listed:
            return ratings(self.read())
        self.refuse((*_MATRIX, "drop_empty_rows", "directed"), "for a list of ratings", "a file of them as it is")
        data = ratings(self.file, columns=split_names(self.columns), header=self.header_given, dtype=torch.float64)
        if self.mask_value is not None:
            data = data.chosen(data.value != self.mask_value)
        if self.threshold is None:
            return data
        return replace(data, x=sparse.with_values(data.x, (data.value > self.threshold).to(data.value)))

    def read_sequences(self) -> Data:
        """Sentences, from a text or an archive that :func:`ppl_models.sequences` reads, or a matrix of words."""
        if ending(self.file) in TABULAR:
            return self.read()
        self.refuse(
            (*_MATRIX, *_TABLE, *_CHANGED, "drop_empty_rows", "directed"), "for sequences", "a file of them as it is"
        )
        return sequences(self.file, dtype=torch.float64)

    def read_relations(self) -> Data:
        """A long table of relations."""
        read = {"file", "header", "drop", "directed"}
        self.refuse({one.name for one in fields(self)} - read, "for relations", "--header, --drop, --undirected")
        symmetric = None if self.directed is None else not self.directed
        drop = split_names(self.drop)
        return relations(self.file, symmetric=symmetric, header=self.header_given, drop=drop, dtype=torch.float64)

    def _from_table(self) -> Data | None:
        """The rows without the columns that stand beside them; None where no columns were named."""
        beside = self._columns_beside
        if self.text is None and not beside:
            return None
        self.refuse(("matrix", "labels"), "for a table", "NPZ files")
        if self.text is not None:
            texts = columns.select_columns(self._table, [self.text], self.file)[self.text]
            return documents(texts.fillna("").astype(str).tolist(), vocabulary=self.vocabulary, dtype=torch.float64)
        columns.select_columns(self._table, beside, self.file)
        dropped = [*beside, *columns_called(self._table, split_names(self.drop) or [])]
        chosen = matrix_of(self._table, split_names(self.columns), id=self.id, drop=dropped)
        return as_matrix(chosen, dtype=torch.float64)

    def refuse(self, names: Iterable[str], problem: str, expected: str) -> None:
        """Raises DataError where one of these options was given."""
        for option in fields(self):
            if option.name in names and getattr(self, option.name) != option.default:
                told = _SPELLED.get(option.name) or f"--{option.name.replace('_', '-')}"
                raise DataError(f"{told} {problem}", expected=expected)

    def _apply_options(self, block: Any) -> Data:
        """Rows, all or a block of them, without what is to be missing, and compared with the threshold."""
        data = block if isinstance(block, Data) else as_matrix(block, dtype=torch.float64, keep_sparse=True)
        if self.mask_value is not None:
            data = data.dense()
            observed = data.x != self.mask_value
            observed = observed if data.mask is None else observed & data.mask
            data = Data(x=data.x.masked_fill(~observed, 0), mask=observed, coords=data.coords)
        return data if self.threshold is None else _above(data, self.threshold)

    def _raw(self, as_documents: bool) -> Data:
        rows = self._from_table()
        if rows is not None:
            return rows
        if as_documents and ending(self.file) not in MATRICES:
            if (self.matrix, self.labels) != (None, None):
                raise DataError(f"{self.file} has no arrays", expected="--matrix, --labels with NPZ files")
            self.refuse(_TABLE, f"for {self.file}, which is no table", f"a file of {' or '.join(MATRICES)}")
            return documents(self.file, vocabulary=self.vocabulary, dtype=torch.float64)
        names: dict[str, Any] = {"matrix": self.matrix, "rows": self.labels}
        if ending(self.file) == ".npz":
            self.refuse(("id", "drop", "header"), "for NPZ files", "a table")
            names["columns"] = self.columns
        else:
            names |= {"columns": split_names(self.columns), "id": self.id, "drop": split_names(self.drop)}
            names["header"] = self.header_given
        return read_matrix(self.file, **names, dtype=torch.float64, keep_sparse=True)


def split_names(text: str | None) -> list[str] | None:
    """Names between commas."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _without_empty(data: Data) -> Data:
    observed = data.observed_x
    # Of the absolute values: entries of both signs could add up to nothing.
    sizes = sparse.row_sums(sparse.map_values(observed, torch.abs))
    kept = (sizes != 0).nonzero().flatten()
    if not len(kept):
        raise DataError("no row has an entry other than 0", axis="row", expected="at least one")
    if len(kept) < len(data) and "row" not in data.coords:
        # Without labels of its own, a row that is left is known by its place in the file.
        data = replace(data, coords={**data.coords, "row": list(range(len(data)))})
    return data.rows(kept)


def _above(data: Data, threshold: float) -> Data:
    """1 where an entry is greater than the threshold; below 0 that is every entry that a sparse matrix leaves out."""
    data = data if threshold >= 0 else data.dense()
    return replace(data, x=sparse.map_values(data.x, lambda x: (x > threshold).to(x)))


def _transpose(data: Data) -> Data:
    names = {"row": "feature", "feature": "row"}
    mask = None if data.mask is None else data.mask.T.contiguous()
    x = sparse.from_scipy(sparse.to_scipy(data.x).T, dtype=data.x.dtype) if data.is_sparse else data.x.T.contiguous()
    return Data(x=x, mask=mask, coords={names[k]: v for k, v in data.coords.items()})
