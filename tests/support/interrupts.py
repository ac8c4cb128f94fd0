"""Ctrl-C at any line of the project: a tracer that raises KeyboardInterrupt at the n-th line that runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import custom_inference
import ppl_models
from custom_inference.core.progress import Progress

_ROOTS = tuple(str(Path(package.__file__).parent) for package in (custom_inference, ppl_models) if package.__file__)


class Line:
    """Counts the lines that run, and interrupts at one of them.

    at: the line to interrupt at; 0 only counts. lines: how many ran. advanced: reports of progress before it.
    where: the functions that were running then, innermost first.
    """

    def __init__(self, at: int = 0):
        self.at, self.lines, self.advanced, self.where = at, 0, 0, []

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_ROOTS):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                self.where = _functions(frame)
                raise KeyboardInterrupt
        return self


def _functions(frame: FrameType | None) -> list[str]:
    names = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(_ROOTS):
            names.append(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}")
        frame = frame.f_back
    return names


@contextmanager
def tracing(line: Line) -> Iterator[None]:
    """Lines of this thread are counted; so are the reports of progress."""
    before, advance = sys.gettrace(), Progress.advance

    def counted(self: Progress, *arguments: Any, **settings: Any) -> Any:
        line.advanced += line.where == []
        return advance(self, *arguments, **settings)

    Progress.advance = counted
    sys.settrace(line)
    try:
        yield
    finally:
        sys.settrace(before)
        Progress.advance = advance


def count(run: Callable[[], Any]) -> int:
    line = Line()
    with tracing(line):
        run()
    return line.lines


def interrupted(run: Callable[[], Any], at: int) -> tuple[Any, Line]:
    """What a run returns that is interrupted at a line; None where the interrupt came out of it."""
    line = Line(at)
    try:
        with tracing(line):
            return run(), line
    except KeyboardInterrupt:
        return None, line
