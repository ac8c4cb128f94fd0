"""Files of an output: each is written by itself, so that one which fails costs none of the others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ppl_models import PPLError


class Files:
    """What was written into a folder, and what could not be.

    written: what -> path. failed: file -> why.
    """

    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out = out
        self.written: dict[str, str] = {}
        self.failed: dict[str, str] = {}

    @contextlib.contextmanager
    def writing(self, what: str, name: str) -> Iterator[Path]:
        """Give the path of a file to write; an error ends the block alone, and is kept for :meth:`require_all`."""
        try:
            yield self.out / name
        except Exception as error:
            said = str(error).strip().splitlines()
            self.failed[name] = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
        else:
            self.written[what] = str(self.out / name)

    def require_all(self) -> None:
        """Raise PPLError that names every file that could not be written, and why."""
        if self.failed:
            told = "; ".join(f"{name} ({why})" for name, why in self.failed.items())
            raise PPLError(f"could not write {told}; all else is in {self.out}/")
