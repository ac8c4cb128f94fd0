"""Errors by kind. A message says what was wrong, where, and what was expected."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    """Base of the errors that this suite raises on purpose.

    Every kind can be made of a message alone: what an error carries is then unknown, or that of the error being handled
    where the message repeats it. Pyro makes errors of a program anew in that way, to add the shapes of its sites.
    """

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
        again = None if site or axis or expected else _error_to_repeat(type(self), problem)
        if again is not None:
            super().__init__(problem)
            self.site, self.axis, self.expected = again.site, again.axis, again.expected
            return
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
    """An exact computation would not fit into memory, or into sensible time.

    needed_bytes, allowed_bytes: what was estimated and what would fit; NaN where unknown.
    """

    def __init__(self, message: str, *, needed_bytes: float = math.nan, allowed_bytes: float = math.nan):
        super().__init__(message)
        again = (
            _error_to_repeat(type(self), message) if math.isnan(needed_bytes) and math.isnan(allowed_bytes) else None
        )
        self.needed_bytes = needed_bytes if again is None else again.needed_bytes
        self.allowed_bytes = allowed_bytes if again is None else again.allowed_bytes


def require_room(what: str, needed: float, allowed: float, hint: str) -> None:
    """Raises CapacityError where ``what`` needs more bytes than are allowed."""
    if needed > allowed:
        message = f"{what} need about {needed / 2**30:.3g} GiB, {allowed / 2**30:.3g} GiB are allowed; {hint}"
        raise CapacityError(message, needed_bytes=needed, allowed_bytes=allowed)


def is_real(value: float | str) -> bool:
    """Whether a setting is a number of Python's; truth values are none."""
    return isinstance(value, int | float) and value is not True and value is not False


def require_whole(values: Mapping[str, Any], least: int = 1) -> None:
    """Raises ModelError for the first of these settings, by name, that is no whole number of at least ``least``."""
    for name, value in values.items():
        if not (is_real(value) and isinstance(value, int)) or value < least:
            raise ModelError(f"{name} = {value!r}, expected a whole number of at least {least}")


class FileFormatError(PPLError):
    """A file could not be read as what it claims to be."""


class ProcessError(PPLError):
    """One of several processes that work together has died, or lost the others."""


class DataWarning(UserWarning):
    """The data can be used, but something in them is probably not meant."""


def _error_to_repeat(kind: type[PPLError], message: str) -> Any:
    """Return the error that is being handled, if it is of this kind and the message repeats it."""
    handled = sys.exc_info()[1]
    return handled if type(handled) is kind and str(handled) in message else None


def own_cause(error: ValueError) -> PPLError | None:
    """The error of this suite that Pyro raised another ValueError for; None where there is none, or it is one itself.

    Pyro does so with what goes wrong in a site's log-probability.
    """
    cause = error.__cause__
    while cause is not None and not isinstance(cause, PPLError):
        cause = cause.__cause__
    return None if isinstance(error, PPLError) else cause


@contextlib.contextmanager
def own_errors() -> Iterator[None]:
    """Errors of this suite leave the block as they were raised, also where Pyro raised others for them."""
    try:
        yield
    except ValueError as error:
        own = own_cause(error)
        if own is None:
            raise
        raise own from own.__cause__


def _as_it_was(kind: type[PPLError], arguments: tuple[Any, ...], attributes: dict[str, Any]) -> PPLError:
    """An error that comes from another process."""
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(attributes)
    return error


def warn_of_data(problem: str) -> None:
    """A DataWarning of the line that called the suite."""
    warn_caller(f"site '{_SITE.get()}': {problem}", DataWarning)


def warn_caller(message: str, kind: type[Warning] = UserWarning) -> None:
    """Warn of the line that called the suite."""
    frame: Any = inspect.currentframe()
    level = 1
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("ppl_models", "custom_inference"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, kind, stacklevel=level)


def warn_of_absent(site: str, meaning: str, expected: str) -> None:
    """A DataWarning that nothing is given of a site on which the model rests, and what it is without."""
    with about(site):
        warn_of_data(f"documents without {site}: {meaning}; expected {expected}")


def digits(value: float) -> str:
    """A number in a message: in few digits, but in all where these would make a whole number of one that is none."""
    short = f"{value:g}"
    rounded = float(short)
    return repr(float(value)) if rounded != value and rounded.is_integer() else short


def a_value_of(kind: type) -> str:
    """Name a type in a sentence about a value of it: "an int", "a str", "a torch.distributions.normal.Normal"."""
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def unknown_name(kind: str, name: object, valid: Iterable[object]) -> str:
    """The sentence for an unknown name, with the closest of the valid ones, and all of them."""
    known = sorted(map(str, valid))
    close = difflib.get_close_matches(str(name), known, 1)
    meant = f" (did you mean {close[0]!r}?)" if close else ""
    return f"unknown {kind} {name!r}{meant}; {'valid: ' + ', '.join(known) if known else 'it takes none'}"


def list_some(values: Sequence[Any], most: int = 8, *, show: Callable[[Any], str] = str) -> str:
    """Join the first of the values for a sentence, and say by "..." that there are more."""
    return ", ".join(map(show, values[:most])) + (", ..." if len(values) > most else "")
