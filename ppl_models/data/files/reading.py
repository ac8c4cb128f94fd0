"""Files from elsewhere: what is read of them runs no code, takes no more memory than there is, and fails by name."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from ppl_models.core.errors import DataError, FileFormatError, PPLError
from ppl_models.data.held import Source, is_path, is_string

#: The most that deflate makes of a byte (RFC 1951: 258 bytes of two bits), and some for the headers.
_INFLATION = 1100


def file_named(source: Source | None, expected: str) -> Path | None:
    """The file that a source names, None where it is no name. Raises DataError for a string that names none."""
    if is_string(source) and ("\n" in source or len(source) > 4096 or not Path(source).is_file()):
        raise DataError(f"a single string, {source[:40]!r}, that names no file", expected=expected)
    return Path(source) if is_path(source) else None


@contextlib.contextmanager
def naming(path: Path | None) -> Iterator[None]:
    """Errors of the suite say which file they are about; None: no file is read."""
    try:
        yield
    except PPLError as error:
        if path is not None and str(path) not in str(error):
            error.args = (f"{path}: {error}", *error.args[1:])
        raise


@contextlib.contextmanager
def reading(path: Path, kind: str = "") -> Iterator[None]:
    """Whatever a parser raises is a FileFormatError: of a damaged file it raises anything."""
    with naming(path):
        try:
            yield
        except (PPLError, Warning):  # warnings, of those who have them raised
            raise
        except Exception as error:
            what = " ".join(str(error).split())[:200] or type(error).__name__
            raise FileFormatError(f"{path}: not readable{f' as {kind}' if kind else ''}: {what}") from None


def file_bytes(path: Path) -> bytes:
    """The contents of a file, which may be compressed with gzip."""
    raw = path.read_bytes()
    if raw[:2] != b"\x1f\x8b":
        return raw
    most = psutil.virtual_memory().available // 4
    with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise FileFormatError(f"{path}: more than {most / 2**30:.3g} GiB once it is decompressed")
    return found


def encoding_of(raw: bytes) -> str:
    """The encoding of a text: UTF-16 and UTF-32 where its first bytes, a mark of their order, say so, else UTF-8."""
    if raw.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    return "utf-16" if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def decode(path: Path, raw: bytes) -> str:
    """A text in UTF-8, or what a mark of the order of its bytes says, with newlines alone at the ends of lines.

    Raises FileFormatError for any other, saying where, and how to convert it.
    """
    encoding = encoding_of(raw)
    try:
        return raw.decode(encoding).replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        where = f"({error.reason} at byte {error.start})"
        if encoding != "utf-8-sig":
            raise FileFormatError(f"{path}: no text in {encoding.upper()} {where}") from None
        near = raw[max(0, error.start - 10) : error.start + 10].decode("cp1252", "replace")
        found = f"{path}: no text in UTF-8 {where}; in CP1252, Latin-1's successor, {near!r}"
        convert = f"iconv -f CP1252 -t UTF-8 {path.name} > FILE"
        raise FileFormatError(f"{found} stands there; expected UTF-8, as {convert!r} makes it") from None


def npz_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an NPZ archive by name. Arrays of Python objects, which could run code, are refused.

    What the headers announce is held against the size of the file before any memory is asked for.
    """
    with zipfile.ZipFile(path) as archive:
        names, needed = [name for name in archive.namelist() if name.endswith(".npy")], 0
        for name in names:
            with archive.open(name) as member:
                shape, _, dtype = npy_header(member, f"{path}: {name}")
            needed += math.prod(shape) * dtype.itemsize
        most = min(_INFLATION * path.stat().st_size, psutil.virtual_memory().available)
        if needed > most:
            found = f"{path}: announces arrays of {needed / 2**30:.3g} GiB"
            raise FileFormatError(f"{found}; a file of this size, on this machine, holds at most {most / 2**30:.3g}")
        arrays = {}
        for name in names:
            with archive.open(name) as member:
                arrays[name.removesuffix(".npy")] = np.lib.format.read_array(member, allow_pickle=False)
        return arrays


def npy_header(file: Any, what: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order (True: Fortran's) and type of an array of numbers. Raises FileFormatError for any other."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise FileFormatError(f"{what}: version {version} of the npy format; expected numbers, no records")
    read: Any = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise FileFormatError(f"{what} holds Python objects, which are not read; expected numbers")
    if any(size < 0 for size in shape):
        raise FileFormatError(f"{what} announces the shape {shape}")
    return tuple(shape), fortran, dtype
