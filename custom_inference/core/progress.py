"""Progress of long work, on standard error, and only where somebody is looking."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from tqdm.auto import tqdm


class Progress:
    """A tqdm bar with the current bound; silent when ``enabled`` is False or standard error is not a terminal."""

    def __init__(self, total: int | None, label: str, *, enabled: bool):
        shown = enabled and (sys.stderr.isatty() or "ipykernel" in sys.modules)
        self._bar = tqdm(total=total, desc=label, disable=not shown, leave=False)

    def advance(self, value: float | None = None, count: int = 1) -> None:
        if value is not None:
            self._bar.set_postfix_str(f"{value:.4f} a row", refresh=False)
        self._bar.update(count)

    def label(self, text: str) -> None:
        self._bar.set_description(text, refresh=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
