"""Corpora from text files: one document a line, lda-c, and UCI's bag of words; plain or compressed with gzip."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import scipy.sparse

from ppl_models.core.errors import FileFormatError, unknown_name
from ppl_models.data.containers import plausible_size
from ppl_models.data.files.reading import decode, file_bytes, reading

FORMATS = ("text", "lda-c", "uci")

_LDA_C = re.compile(r"\d+(?:\s+\d+:\d+)*", re.ASCII)
ENTRY = re.compile(r"\d+\s+\d+\s+\d+", re.ASCII)


def read_corpus(
    path: Path, file_format: str | None = None, *, vocabulary_size: int | None = None
) -> list[str] | tuple[scipy.sparse.csr_matrix, list[str] | None]:
    """A corpus from a text file: texts, or counts (N, V) and the words of the columns, where a file beside it has them.

    file_format: "text" (UTF-8, one document a line), "lda-c" (each line the number of distinct words and then
        ``word:count`` pairs, words from 0) or "uci" (three lines with N, V and the number of entries, then lines
        ``document word count``, from 1); by default what the first lines look like.
    vocabulary_size: columns of an lda-c file, which does not say; by default as many as occur.

    Words: ``vocab.NAME.txt`` beside ``docword.NAME.txt``; ``NAME.vocab`` beside ``NAME.ldac`` or the like.

    Raises FileFormatError, naming the line, for a file that is not what it claims to be.
    """
    if file_format is not None and file_format not in FORMATS:
        raise FileFormatError(unknown_name("format of documents", file_format, FORMATS))
    lines = read_lines(path)
    file_format = file_format or format_of_name(path) or looks_like(lines)
    if file_format == "text":
        return lines
    words = words_beside(path)
    with reading(path, file_format):  # numbers of any length are numbers
        if file_format == "uci":
            return _uci(path, lines), words
        return lda_c(path, lines, len(words) if words is not None else vocabulary_size), words


def read_lines(path: Path) -> list[str]:
    """The lines of a text file, which may be compressed."""
    if not path.is_file():
        raise FileFormatError(f"{path}: no such file")
    with reading(path):
        text = decode(path, file_bytes(path))
    if not text.strip():
        raise FileFormatError(f"{path}: nothing in it")
    return lines_of(text)


def lines_of(text: str) -> list[str]:
    """Split a text into lines; not by splitlines(), as form feeds and the like may stand inside a document."""
    return text.removesuffix("\n").split("\n")


def read_words(path: Path) -> list[str]:
    """A vocabulary, one word a line."""
    return [line.strip() for line in read_lines(path)]


def format_of_name(path: Path) -> str | None:
    """Return the format that a file's name indicates, or None."""
    name = path.name.lower().removesuffix(".gz")
    if name.endswith((".ldac", ".lda-c")):
        return "lda-c"
    return "uci" if name.startswith("docword.") else None


def looks_like(lines: list[str]) -> str:
    """Recognise the format of a file by its first lines."""
    first = [line.strip() for line in lines[:4]]
    if len(first) == 4 and all(line.isdecimal() for line in first[:3]) and ENTRY.fullmatch(first[3]):
        return "uci"
    pairs = [line for line in first if _LDA_C.fullmatch(line) and int(line.split()[0]) == line.count(":")]
    return "lda-c" if len(pairs) == len(first) else "text"


def words_beside(path: Path) -> list[str] | None:
    """The words of the columns, from the file that goes with a corpus."""
    name = path.name.removesuffix(".gz")
    beside = [path.with_name(name.rpartition(".")[0] + ".vocab")]
    if name.startswith("docword."):
        beside = [path.with_name("vocab." + name.removeprefix("docword."))]
    return next((read_words(other) for other in beside if other.is_file()), None)


def lda_c(path: Path, lines: list[str], size: int | None, first_line: int = 1) -> scipy.sparse.csr_matrix:
    """Counts of lines of lda-c; ``size`` columns, or as many as occur. first_line: where in the file they are."""
    lines = [line.strip() for line in lines]
    for number, line in enumerate(lines, first_line):
        if not _LDA_C.fullmatch(line):
            raise FileFormatError(f"{path}: line {number} is {line[:40]!r}; lda-c has 'distinct word:count ...'")
    distinct = np.array([line.count(":") for line in lines])
    begins = np.concatenate([[0], np.cumsum(1 + 2 * distinct)[:-1]])
    numbers = numbers_in(" ".join(lines).replace(":", " ").encode())
    assert numbers is not None  # as every line has been found to be
    wrong = np.flatnonzero(numbers[begins] != distinct)
    if len(wrong):
        found = f"line {first_line + wrong[0]} announces {numbers[begins][wrong[0]]} words and has {distinct[wrong[0]]}"
        raise FileFormatError(f"{path}: {found}")
    numbers = np.delete(numbers, begins).reshape(-1, 2)
    columns = plausible_size(int(numbers[:, 0].max(initial=-1)) + 1, len(numbers), "word")
    if size is not None and columns > size:
        raise FileFormatError(f"{path}: word {columns - 1}, where the vocabulary has {size} words, from 0")
    pointer = np.concatenate([[0], distinct.cumsum()])
    matrix = scipy.sparse.csr_matrix((numbers[:, 1], numbers[:, 0], pointer), shape=(len(lines), size or columns))
    matrix.sum_duplicates()
    return matrix


def numbers_in(raw: bytes) -> np.ndarray | None:
    """Whole numbers between blanks, of 64 bits at most; None where there is anything else."""
    # What NumPy says of text that is no number:
    with warnings.catch_warnings(action="error", category=DeprecationWarning):
        try:
            return np.fromstring(raw.decode("ascii"), dtype=np.int64, sep=" ")
        except (DeprecationWarning, UnicodeDecodeError, ValueError):
            return None


def _uci(path: Path, lines: list[str]) -> scipy.sparse.csr_matrix:
    documents, size, entries = uci_header(path, lines[:3])
    for axis, announced in {"document": documents, "word": size}.items():
        plausible_size(announced, len(lines), axis)
    body = "".join(f"{line}\n" for line in lines[3:] if line.strip())
    triples = uci_triples(path, body.encode(), (documents, size))
    if len(triples) != entries:
        raise FileFormatError(f"{path}: {len(triples)} entries, where the third line announces {entries}")
    document, word, count = triples.T
    return scipy.sparse.csr_matrix((count, (document - 1, word - 1)), shape=(documents, size))


def uci_header(path: Path, lines: list[str]) -> tuple[int, int, int]:
    """N, V and the number of entries, from the first three lines."""
    header = [line.strip()[:40] for line in lines]
    if len(header) < 3 or not all(line.isdecimal() for line in header):
        raise FileFormatError(f"{path}: begins with {header}; UCI's bag of words has N, V and the number of entries")
    documents, size, entries = map(int, header)
    return documents, size, entries


def uci_triples(path: Path, raw: bytes, limits: tuple[int, int], before: int = 0) -> np.ndarray:
    """Document, word and count of whole lines, (E, 3). before: entries of the file that come before these.

    Raises FileFormatError for other lines, and for documents and words beyond the header's ``limits``."""
    letters, numbers = np.frombuffer(raw, np.uint8), numbers_in(raw)
    dark = letters > ord(" ")
    begins = np.flatnonzero(dark & ~np.concatenate([[False], dark[:-1]]))
    tokens = np.diff(np.searchsorted(begins, np.flatnonzero(letters == ord("\n"))), prepend=0)
    if numbers is None or (tokens != 3).any():
        for number, line in enumerate(raw.decode("utf-8", "replace").splitlines(), before + 4):
            if not ENTRY.fullmatch(line.strip()):
                raise FileFormatError(f"{path}: line {number} is {line[:40]!r}; expected 'document word count'")
        raise FileFormatError(f"{path}: not readable as UCI's bag of words; expected lines 'document word count'")
    triples = numbers.reshape(-1, 3)
    for values, limit, what in zip(triples.T, limits, ("document", "word"), strict=False):
        outside = np.flatnonzero((values < 1) | (values > limit))
        if len(outside):
            found = f"{what} {values[outside[0]]} in entry {before + int(outside[0]) + 1}"
            raise FileFormatError(f"{path}: {found}; expected 1 to {limit}, as the header says")
    return triples
