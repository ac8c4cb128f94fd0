"""``row_blocks(...)``: one door for rows in files that do not fit into memory."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ppl_models.core.errors import DataError, FileFormatError, unknown_name
from ppl_models.data.blocks.arrays import npy_file, npz_file
from ppl_models.data.blocks.files import FileBlocks, RowFile
from ppl_models.data.blocks.parquet import parquet_file
from ppl_models.data.blocks.text import csv_file, lda_c_file, open_bytes, texts_file, uci_file
from ppl_models.data.files.corpora import FORMATS, format_of_name, looks_like, read_words, words_beside
from ppl_models.data.files.headers import Header
from ppl_models.data.files.tables import list_names
from ppl_models.data.held import Names, Source, is_listed, is_path, is_string, labels_of
from ppl_models.data.row_blocks import ABOUT, RowBlocks, open_blocks

#: Endings of the files that a folder is searched for.
_ENDINGS = (".npy", ".npz", ".parquet", ".csv", ".csv.gz", ".tsv", ".tsv.gz")
_TABLES = (".parquet", ".csv", ".tsv")
#: Bytes that the format of a text file is told by.
_SNIFFED = 2**16


def row_blocks(
    source: Source,
    *,
    block_rows: int = 4096,
    columns: Sequence[str] | str | None = None,
    vocabulary: Sequence[Any] | str | Path | None = None,
    matrix: str | None = None,
    file_format: str | None = None,
    id: Names = None,
    drop: Names = None,
    header: Header = "auto",
) -> RowBlocks:
    """Rows in files as a source that ``VariationalEM`` and ``EM`` fit to with one block in memory at a time.

    >>> fit = EM().fit(model, row_blocks("shards/*.npy"))                                    # doctest: +SKIP
    >>> fit = VariationalEM(guide="vb", batch_size=512).fit(lda, row_blocks("docword.nytimes.txt.gz"))  # doctest: +SKIP

    Parameters
    ----------
    source: a file, several, a glob pattern, or a folder of files of one kind, with those in folders below it; rows go
        by the names of the files. Or data in memory.

        ========================  =====================================================================================
        ``.npy``                  matrices of numbers, NaN where missing, read at their place in the file
        ``.npz``                  a dense, bit-packed (``X_bits``, ``shape``) or scipy CSR matrix, uncompressed: read at
                                  its place; compressed: unpacked into memory, up to 256 MiB a file
        ``.parquet``              numeric columns, nulls where missing, by row groups
        ``.csv``, ``.tsv``        numeric columns; the first names the rows where it is not numeric; also ``.gz``
        lda-c, UCI bag of words   counts of words; UCI's sorted by document; also compressed with gzip
        texts, one a line         counted in the ``vocabulary``
        ``save_blocks``' folder   counts
        ========================  =====================================================================================

    block_rows: at most so many rows are read together; no block crosses from a file into the next.
    columns: of Parquet and CSV, which; of NPZ, the name of the array that labels them. By default all numeric ones.
    vocabulary: labels of the columns, where the files have none; a list, or the path of a file with one a line.
    matrix: which of an NPZ file's. file_format: "text", "lda-c" or "uci", where it should not be guessed.
    id, drop: of Parquet, CSV and TSV: the column that names the rows, and columns that are left out.
    header: of CSV and TSV: whether the first line names the columns; "auto" looks at it.

    Raises FileFormatError or DataError, naming the file, for what cannot be read, and for files of different widths.
    Text files are looked through once, to find where blocks begin; of all others only the headers are read.
    """
    if isinstance(source, RowBlocks):
        return source
    held: Any = [source] if is_path(source) else source
    if not (is_listed(held) and held and all(map(is_path, held))):
        return RowBlocks.of(held, block_rows)
    if file_format is not None and file_format not in FORMATS:
        raise FileFormatError(unknown_name("format of documents", file_format, FORMATS))
    paths = _paths(held)
    given: Any = vocabulary
    words = None if given is None else list(read_words(Path(given)) if is_path(given) else given)
    if len(paths) == 1 and (paths[0] / ABOUT).is_file():
        return _add_labels(open_blocks(paths[0], block_rows=block_rows), words)
    asked = _Asked(block_rows, columns, words, matrix, file_format, {"header": header, "id": id, "drop": drop})
    files, labels = _files(paths, asked)
    blocks = FileBlocks.of(files, block_rows)
    found = RowBlocks(read=blocks, num_rows=blocks.num_rows, coords={} if labels is None else {"feature": labels})
    return found if labels is not None else _add_labels(found, words, files[0].num_columns)


class _Asked(NamedTuple):
    """What was asked for; see :func:`row_blocks`. words: the vocabulary. table: settings of tables alone."""

    block_rows: int
    columns: Any
    words: list[Any] | None
    matrix: str | None
    file_format: str | None
    table: dict[str, Any]


def _paths(source: Iterable[str | Path]) -> list[Path]:
    """The files, in order; a folder of blocks stays one."""
    found: list[Path] = []
    for one in source:
        path = Path(one)
        if path.is_dir() and not (path / ABOUT).is_file():
            found += _inside(path)
        elif path.exists() or not glob.has_magic(str(one)):
            found.append(path)
        else:
            # A pattern without any match is itself the file that is not there.
            found += sorted(map(Path, glob.glob(str(one), recursive=True))) or [path]  # noqa: PTH207 - may be absolute
    missing = next((path for path in found if not path.exists()), None)
    if missing is not None:
        raise FileFormatError(f"{missing}: no such file")
    return found


def _inside(folder: Path) -> list[Path]:
    """The files of a folder and of those below it, without hidden ones and those that only describe others."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    plain = [p for p in files if not any(part.startswith((".", "_")) for part in p.relative_to(folder).parts)]
    readable = [path for path in plain if _ending(path) is not None]
    if not readable:
        raise FileFormatError(f"{folder}: no files to read in it; readable: {', '.join(_ENDINGS)}")
    return readable


def _ending(path: Path) -> str | None:
    return next((ending for ending in _ENDINGS if path.name.lower().endswith(ending)), None)


def _files(paths: list[Path], asked: _Asked) -> tuple[list[RowFile], list[Any] | None]:
    """Return the readers of the rows, and the labels of the columns if the files have them."""
    kinds = {_ending(path) or "text" for path in paths}
    if len(kinds) > 1:
        raise FileFormatError(f"{paths[0].parent}: files of several kinds ({', '.join(sorted(kinds))}); expected one")
    kind = "text" if asked.file_format is not None else kinds.pop().removesuffix(".gz")
    _refuse_names(paths[0], kind, asked)
    labels: list[Any] | None = None
    files: list[RowFile] = []
    for path in paths:
        chosen = labels if asked.columns is None else asked.columns  # those of the first file, where none were asked
        file, own = _open_source(path, kind, asked._replace(columns=chosen))
        if files and file.num_columns != files[0].num_columns:
            found = f"{path} has {file.num_columns} columns, {paths[0]} has {files[0].num_columns}"
            raise DataError(found, axis="feature", expected="as many in every file")
        if files and own != labels:
            raise DataError(f"{path} labels its columns otherwise than {paths[0]}", axis="feature", expected="alike")
        files.append(file)
        labels = own
    if labels is not None and kind in _TABLES:
        labels = labels_of(labels)
    return files, labels


def _open_source(path: Path, kind: str, asked: _Asked) -> tuple[RowFile, list[Any] | None]:
    columns = asked.columns
    if kind == ".npy":
        return npy_file(path), None
    if kind == ".npz":
        return npz_file(path, asked.matrix, columns if is_string(columns) else None)
    if kind in _TABLES:
        columns = None if columns is None else list(columns)
        if kind != ".parquet":
            return csv_file(path, asked.block_rows, columns, **asked.table)
        rows = parquet_file(path, columns, list_names(asked.table["id"], asked.table["drop"]))
        return rows, list(rows.columns)
    return _corpus(path, asked)


def _refuse_names(path: Path, kind: str, asked: _Asked) -> None:
    columns, said = asked.columns, [name for name, value in asked.table.items() if value not in (None, "auto")]
    if said and (kind not in _TABLES or (kind == ".parquet" and "header" in said)):
        raise FileFormatError(f"{path}: {said[0]}= for {kind.removeprefix('.')}; expected a table: CSV or TSV")
    if asked.matrix is not None and kind != ".npz":
        raise FileFormatError(f"{path}: no arrays to pick {asked.matrix!r} from; matrix= goes with NPZ")
    named = is_string(columns)
    if columns is not None and (kind in (".npy", "text") or named != (kind == ".npz")):
        expected = {".npz": "the name of an array", ".npy": "vocabulary=", "text": "vocabulary="}.get(kind, "a list")
        raise FileFormatError(f"{path}: columns={columns!r} for {kind.removeprefix('.')}; expected {expected}")


def _corpus(path: Path, asked: _Asked) -> tuple[RowFile, list[Any] | None]:
    words, block_rows = asked.words, asked.block_rows
    with open_bytes(path) as file:
        first = file.read(_SNIFFED).decode("utf-8-sig", "replace")
    if not first.strip():
        raise FileFormatError(f"{path}: nothing in it")
    kind = asked.file_format or format_of_name(path) or looks_like(first.split("\n")[:4])
    if kind == "text":
        return texts_file(path, block_rows, words), words
    words = words if words is not None else words_beside(path)
    if kind == "lda-c":
        return lda_c_file(path, block_rows, None if words is None else len(words)), words
    counts = uci_file(path, block_rows)
    if words is not None and len(words) != counts.num_columns:
        found = f"{len(words)} words beside {counts.num_columns} columns of {path}"
        raise DataError(found, axis="word", expected="a vocabulary of the same length")
    return counts, words


def _add_labels(blocks: RowBlocks, words: list[Any] | None, width: int | None = None) -> RowBlocks:
    """Label the columns by the vocabulary where the files have no labels."""
    if words is None or blocks.coords:
        return blocks
    if width is not None and len(words) != width:
        raise DataError(f"{len(words)} labels for {width} columns", axis="feature", expected="one label a column")
    return replace(blocks, coords={"feature": words})
