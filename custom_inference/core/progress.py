"""Progress of long work, on standard error, and only where somebody is looking."""

from __future__ import annotations

import sys

from tqdm.auto import tqdm


class Progress(tqdm):
    """A tqdm bar with the current bound; silent when ``enabled`` is False or standard error is not a terminal."""

    def __init__(self, total: int | None, label: str, *, enabled: bool):
        shown = enabled and (sys.stderr.isatty() or "ipykernel" in sys.modules)
        super().__init__(total=total, desc=label, disable=not shown, leave=False)

    def advance(self, value: float | None = None, count: int = 1) -> None:
        if value is not None:
            self.set_postfix_str(f"{value:.4f} a row", refresh=False)
        self.update(count)

    def label(self, text: str) -> None:
        self.set_description_str(text, refresh=False)  # which a bar without a total ends with one colon
