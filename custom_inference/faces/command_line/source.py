"""The data of a command: the file, and what is done to it before it reaches the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from custom_inference.checks.kinds import answers_in, kind_of_columns, kind_of_file, read_weights_if_any
from custom_inference.core.fit import Fit
from custom_inference.faces.command_line import columns
from custom_inference.faces.command_line.beside import MATRICES, TABULAR, BesideRows, split_names
from ppl_models import (
    Data,
    DataError,
    GraphData,
    Ratings,
    RowBlocks,
    as_matrix,
    documents,
    graph,
    ratings,
    relations,
    row_blocks,
    sequences,
)
from ppl_models.core.doors import read_answer_table
from ppl_models.core.errors import list_some, warn_of_data
from ppl_models.data import sparse
from ppl_models.data.answers import ANSWERS, has_words
from ppl_models.data.factors import Factors
from ppl_models.data.files.tables import TABLES, columns_called, ending, read_table
from ppl_models.data.lazy import pandas as pd
from ppl_models.datasets import read_matrix

#: Options of documents alone; those that need to see all rows; those of matrices alone.
WORDS = ("vocabulary", "min_count", "max_share", "stop_words", "text", "token_pattern", "keep_case", "ngrams")
_WHOLE = (*WORDS[1:], "transpose", "drop_empty_rows", "labels", "directed", "beside")
_TABLE = ("columns", "id", "drop", "header")
_MATRIX = ("id", "drop", "matrix", "labels", "mask_value", "transpose")
_CHANGED = ("mask_value", "threshold")
#: Options that name columns; those by which a fit's new rows are read as its own were, unless they are given anew.
_COLUMNS = ("id", "drop", "text")
_AS_BEFORE = (*_COLUMNS, *_CHANGED)
#: Options that are not called as their fields are.
_SPELLED = {"directed": "--directed or --undirected", "beside": "--with"}


class Source(BesideRows):
    """The data that the options name."""

    def read(self, *, as_documents: bool = False, binary: bool = False) -> Data:
        """Rows by features, labels kept; sparse rows stay sparse where they can.

        Missing entries are marked before anything is compared with a threshold. as_documents: texts, lda-c and UCI
        files are read too, and words are left out as asked. binary: columns may hold two words each.
        """
        self.refuse(("directed",), "for a model that reads no graph", "sbm or the like")
        table, factors = self.table_of_rows() if binary and self.threshold is None else None, Factors()
        if table is not None and len(table) and has_words(table):
            data = as_matrix(factors.number_two_valued("x", table), dtype=torch.float64)
            data = replace(data, recipe={"levels": factors.columns})
        else:
            data = self._raw(as_documents)
        data = self._apply_options(_transpose(data) if self.transpose else data)
        if as_documents:
            names: Any = self.stop_words
            limits: dict[str, Any] = {"min_count": self.min_count, "max_share": self.max_share, "stop_words": names}
            counted = documents(data, vocabulary=self.vocabulary, dtype=torch.float64, **limits)
            data = replace(counted, recipe=data.recipe)
        return self._without_empty(data) if self.drop_empty_rows else data

    def read_answers(self) -> Data:
        """Rows of answers: as :meth:`read`, but of a table, whose answers are numbered by what occurs."""
        frame = self.table_of_rows()
        if frame is None or self.threshold is not None:
            return self.read()
        data = read_answer_table(answers_in(frame) if self.columns is None and self.id is None else frame)
        return self._without_empty(data.dense()) if self.drop_empty_rows else data

    def table_of_rows(self, known: Sequence[Any] | None = None, *, words: bool = False) -> pd.DataFrame | None:
        """The columns of the rows as they stand in a table, under the names of the rows, without entries that are to be
        missing; None where the file is no table.

        known: columns of a fit: others are left out, and a DataWarning says so. words: they are words, some of which
            may be missing.
        """
        if ending(self.file) not in TABULAR or self.transpose:
            return None
        self.refuse(("matrix", "labels"), "for a table", "NPZ files")
        beside = columns_called(self._table, self._columns_beside)
        dropped = [*beside, *columns_called(self._table, split_names(self.drop) or [])]
        chosen = split_names(self.columns)
        if known is not None and chosen is None:
            chosen = self._columns_known(known, [*dropped, self.row_label], words=words)
        frame = self._table if self.row_label is None else self._table.set_index(self.row_label)
        names = columns_called(frame, chosen) if chosen is not None else frame.columns
        frame = frame.loc[:, [name for name in names if name not in dropped]]
        return frame if self.mask_value is None else frame.mask(frame == self.mask_value)

    def _columns_known(self, known: Sequence[Any], dropped: Sequence[Any], *, words: bool) -> list[Any] | None:
        """The columns of the table that a fit knows; None where some of them, or for documents all, are missing."""
        names = {str(name) for name in known}
        chosen = [name for name in self._table.columns if str(name) in names]
        others = [name for name in self._table.columns if str(name) not in names and name not in dropped]
        if not chosen or (len(chosen) < len(names) and not words):
            return None
        if others:
            told = f"{len(others)} column{'s' if len(others) > 1 else ''} that the fit does not know"
            warn_of_data(f"{self.file}: {told} {'are' if len(others) > 1 else 'is'} left out: {list_some(others)}")
        return chosen

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
        if kind == "ratings":
            return kind, self.read_ratings()
        return kind, self.read(as_documents=kind == "documents", binary=kind == "binary")

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
        refused = (*(name for name in _MATRIX if name not in ("drop", "mask_value")), "drop_empty_rows", "directed")
        self.refuse(refused, "for a list of ratings", "a file of them as it is")
        names, source = split_names(self.columns), self.file
        if self.drop is not None:
            listed = read_table(self.file, self.header_given, lists=(2, 3, 4), asked=None)
            source = listed.drop(columns=columns_called(listed, split_names(self.drop)))
        header = self.header_given if self.drop is None else "auto"
        data = ratings(source, columns=names, header=header, dtype=torch.float64)
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
            data = replace(data, x=data.x.masked_fill(~observed, 0), mask=observed)
        return data if self.threshold is None else _above(data, self.threshold)

    def _raw(self, as_documents: bool) -> Data:
        cut: dict[str, Any] = {"vocabulary": self.vocabulary, "dtype": torch.float64}
        if self.text is not None:
            texts = columns.select_columns(self._table, [self.text], self.file)[self.text]
            texts = texts if self.row_label is None else texts.set_axis(self._table[self.row_label], axis=0)
            return documents(texts.fillna("").astype(str), **cut, **self.cut)
        frame = self.table_of_rows() if self.beside or self.id else None
        if frame is not None:
            return as_matrix(frame, dtype=torch.float64)
        if as_documents and ending(self.file) not in MATRICES:
            if (self.matrix, self.labels) != (None, None):
                raise DataError(f"{self.file} has no arrays", expected="--matrix, --labels with NPZ files")
            self.refuse(_TABLE, f"for {self.file}, which is no table", f"a file of {' or '.join(MATRICES)}")
            return documents(self.file, **cut, **self.cut)
        names: dict[str, Any] = {"matrix": self.matrix, "rows": self.labels}
        if ending(self.file) == ".npz":
            self.refuse(("id", "drop", "header"), "for NPZ files", "a table")
            names["columns"] = self.columns
        else:
            names |= {"columns": split_names(self.columns), "id": self.id, "drop": split_names(self.drop)}
            names["header"] = self.header_given
        return read_matrix(self.file, **names, dtype=torch.float64, keep_sparse=True)

    @property
    def table_recipe(self) -> dict[str, Any]:
        """How a file was read, as far as others are read so too: the options that were given."""
        given = {name: getattr(self, name) for name in (*_AS_BEFORE, "beside")}
        return {name: value for name, value in given.items() if value is not None}

    def as_before(self, fit: Fit) -> Source:
        """Return the source with the options that the data of a fit were read by where these are not given anew: what
        was dropped, masked or cut there; and, of the columns that were beside its rows, those that new rows need.

        Columns that this file does not have are left out.
        """
        told = fit.data.recipe.get("table", {})
        told = {name: told[name] for name in _AS_BEFORE if name in told and getattr(self, name) is None}
        if ending(self.file) in TABULAR:
            names = set(map(str, read_table(self.file, self.header_given, asked=None).columns))
            for name in [one for one in _COLUMNS if one in told]:
                known = [one for one in split_names(told.pop(name)) or () if one in names]
                told |= {name: ",".join(known)} if known else {}
            kept = [pair for pair in fit.data.recipe.get("table", {}).get("beside", ()) if self.beside is None]
            kept = [(pair, *_parts(pair)) for pair in kept]
            given = [pair for pair, site, where in kept if set(where) <= names and site in fit.model.sites_of("given")]
            others = [one for _, _, where in kept for one in where if one in names]
            told |= {"beside": given} if given else {}
            used = {one for pair in given for one in _parts(pair)[1]}
            more = [one for one in others if one not in used]
            told |= {"drop": ",".join([*(split_names(told.get("drop", self.drop)) or []), *more])} if more else {}
        else:
            told = {name: value for name, value in told.items() if name not in _COLUMNS}
        return replace(self, **told)

    @property
    def cut(self) -> dict[str, Any]:
        """How texts are cut, as settings of scikit-learn's ``CountVectorizer``."""
        found: dict[str, Any] = {} if self.token_pattern is None else {"token_pattern": self.token_pattern}
        found |= {"lowercase": False} if self.keep_case else {}
        return found if self.ngrams == 1 else {**found, "ngram_range": (1, self.ngrams)}

    def _without_empty(self, data: Data) -> Data:
        """The rows with an entry other than 0; those that are left are known by their labels, or their places."""
        observed = data.observed_x
        # Of the absolute values: entries of both signs could add up to nothing.
        sizes = sparse.row_sums(sparse.map_values(observed, torch.abs)) if ANSWERS not in data.coords else (
            data.observed.sum(1)
        )  # fmt: skip
        kept = (sizes != 0).nonzero().flatten()
        if not len(kept):
            raise DataError("no row has an entry other than 0", axis="row", expected="at least one")
        if len(kept) < len(data) and "row" not in data.coords:
            data = replace(data, coords={**data.coords, "row": list(range(len(data)))})
        self.__dict__["kept"] = kept.tolist()
        return data.rows(kept)


def _parts(pair: str) -> tuple[str, list[str]]:
    """The site and the columns of an option ``--with SITE=COLUMN,COLUMN:kind``."""
    site, _, where = pair.partition("=")
    return site, where.partition(":")[0].split(",")


def _above(data: Data, threshold: float) -> Data:
    """1 where an entry is greater than the threshold; below 0 that is every entry that a sparse matrix leaves out."""
    data = data if threshold >= 0 else data.dense()
    return replace(data, x=sparse.map_values(data.x, lambda x: (x > threshold).to(x)))


def _transpose(data: Data) -> Data:
    names = {"row": "feature", "feature": "row"}
    mask = None if data.mask is None else data.mask.T.contiguous()
    x = sparse.from_scipy(sparse.to_scipy(data.x).T, dtype=data.x.dtype) if data.is_sparse else data.x.T.contiguous()
    return Data(x=x, mask=mask, coords={names[k]: v for k, v in data.coords.items()})
