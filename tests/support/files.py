"""What the tests of files share: strict reading, damage, little memory."""

from __future__ import annotations

import resource
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from ppl_models import (
    DataError,
    DataWarning,
    FileFormatError,
    PPLError,
)
from tests.support.fuzz import says_something

Loader = Callable[[Path], Any]


@contextmanager
def strict() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DataWarning)
        yield


def loads_or_says(path: Path, load: Loader, contents: bytes) -> Any:
    """What a file with these contents is read as, or None where it is refused by name."""
    before = path.read_bytes()
    path.write_bytes(contents)
    try:
        with strict():
            return load(path)
    except PPLError as error:
        assert isinstance(error, DataError | FileFormatError), repr(error)
        assert str(path) in str(error) and says_something(error), str(error)
        return None
    finally:
        path.write_bytes(before)


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Cuts, changed bytes, and bytes put in; places as shares of the length, so that they suit any file."""
    share = st.floats(0, 1, exclude_max=True)
    byte = st.one_of(st.integers(0, 255), st.sampled_from(list(b"0123456789 :,-.\n\t\"'{}[]")))
    cut = draw(st.one_of(st.none(), share))
    changes = draw(st.lists(st.tuples(share, byte), min_size=cut is None, max_size=4))
    inserted = draw(st.one_of(st.just(b""), st.binary(max_size=6)))

    def damaged(raw: bytes) -> bytes:
        found = bytearray(raw)
        for place, value in changes:
            found[int(place * len(found))] = value
        middle = int((changes[0][0] if changes else 0.5) * len(found))
        found[middle:middle] = inserted
        return bytes(found if cut is None else found[: int(cut * len(found))])

    return damaged


@contextmanager
def little_memory(more: int = 2**30) -> Iterator[None]:
    """Address space for so many bytes more than there are now: whatever allocates what a header claims fails."""
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
