"""Progress of long work, on standard error: a bar where somebody is looking, else a line now and then."""

from __future__ import annotations

import sys
import time
from typing import ClassVar

from tqdm.auto import tqdm

#: Seconds of work after which the time that is left is said for the first time; each further time three times later.
_FIRST, _LATER = 10.0, 3.0


class Progress(tqdm):
    """A tqdm bar with the current bound; silent when ``enabled`` is False or standard error is not a terminal.

    says_time: whether work that takes long says in a line how long it will go on, bar or no bar; the command line does.
    """

    says_time: ClassVar[bool] = False

    def __init__(self, total: int | None, label: str, *, enabled: bool):
        shown = enabled and (sys.stderr.isatty() or "ipykernel" in sys.modules)
        self._enabled, self._called, self._next = enabled, label, _FIRST
        self.expect(total)
        super().__init__(total=total, desc=label, disable=not shown, leave=False)

    def advance(self, value: float | None = None, count: int = 1) -> None:
        if value is not None:
            self.set_postfix_str(f"{value:.4f} a row", refresh=False)
        self.update(count)
        self._done += count
        self._say_time(self._done, self._most)

    def label(self, text: str) -> None:
        self.set_description_str(text, refresh=False)  # which a bar without a total ends with one colon

    def expect(self, most: int | None) -> None:
        """Count from here on at most so many steps: what the time that is left is told by; None: nobody knows."""
        self._begin, self._done, self._most = time.monotonic(), 0, most

    def label_start(self, place: int, number: int) -> None:
        """Say which of the starts of a search is next, as ``label`` does; place: 0, 1, ..."""
        self.label(f"start {place + 1} of {number}")
        if not place:
            self.expect(None)
        self._say_time(place, number, "starts")

    def _say_time(self, done: int, most: int | None, what: str = "steps") -> None:
        took = time.monotonic() - self._begin
        if not (self.says_time and self._enabled and done and took >= self._next):
            return
        self._next = _LATER * took
        text = f"{self._called}: {done} {what} in {describe_seconds(took)}"
        if most is not None:
            text = f"{text}; at most {most}, which would take {describe_seconds(took / done * (most - done))} more"
        self.write(text, file=sys.stderr)


def describe_seconds(seconds: float) -> str:
    """Return a duration in the unit that suits it: "12 s", "3 min", "1.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
