"""What can go wrong, by kind. A message says what was wrong, where, and what was expected."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

_SITE: ContextVar[str] = ContextVar("site", default="x")


@contextlib.contextmanager
def about(site: str | None) -> Iterator[None]:
    """Errors and warnings of data are about this observed site; None: about the one that they were about."""
    token = _SITE.set(site or _SITE.get())
    try:
        yield
    finally:
        _SITE.reset(token)


class PPLError(ValueError):
    """Base of the errors that this suite raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by the constructor, which makes the message of what it is given: that would happen a second time.
        return _as_it_was, (type(self), self.args, dict(self.__dict__))


class DataError(PPLError):
    """The data cannot be used as they are.

    problem: what was found, in a sentence without a final stop.
    site: the model's observed site that the data are for; by default that of :func:`about`.
    axis: the axis of the data where the problem lies (``"row"`` or ``"feature"``), if it lies on one.
    expected: what would have been accepted.
    """

    def __init__(self, problem: str, *, site: str | None = None, axis: str | None = None, expected: str = ""):
        site = site or _SITE.get()
        where = f"site '{site}'" + (f", axis '{axis}'" if axis else "")
        super().__init__(f"{where}: {problem}" + (f"; expected {expected}" if expected else ""))
        self.site, self.axis, self.expected = site, axis, expected


class ModelError(PPLError):
    """The model's settings contradict each other, or a name in them is unknown."""


class MethodError(PPLError):
    """The inference method cannot be used on this model, or its settings contradict each other."""


class PriorError(MethodError):
    """The method has no step for a prior of the model; others may have."""


class CapacityError(PPLError):
    """An exact computation would not fit into memory. Carries what was estimated and what would fit."""

    def __init__(self, message: str, *, needed_bytes: float, allowed_bytes: float):
        super().__init__(message)
        self.needed_bytes, self.allowed_bytes = needed_bytes, allowed_bytes


def require_room(what: str, needed: float, allowed: float, hint: str) -> None:
    """Raises CapacityError where ``what`` needs more bytes than are allowed."""
    if needed > allowed:
        message = f"{what} need about {needed / 2**30:.3g} GiB, {allowed / 2**30:.3g} GiB are allowed; {hint}"
        raise CapacityError(message, needed_bytes=needed, allowed_bytes=allowed)


class FileFormatError(PPLError):
    """A file could not be read as what it claims to be."""


class ProcessError(PPLError):
    """One of several processes that work together has died, or lost the others."""


class DataWarning(UserWarning):
    """The data can be used, but something in them is probably not meant."""


def _as_it_was(kind: type[PPLError], arguments: tuple[Any, ...], attributes: dict[str, Any]) -> PPLError:
    """An error that comes from another process."""
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(attributes)
    return error


def warn_of_data(problem: str) -> None:
    """A DataWarning of the line that called the suite."""
    frame: Any = inspect.currentframe()
    level = 1
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("ppl_models", "custom_inference"):
        frame, level = frame.f_back, level + 1
    warnings.warn(f"site '{_SITE.get()}': {problem}", DataWarning, stacklevel=level)


def unknown_name(kind: str, name: object, valid) -> str:
    """The sentence for an unknown name, with the valid ones listed."""
    return f"unknown {kind} {name!r}; valid: {', '.join(sorted(map(str, valid)))}"
