"""Structures that were found of programs, and why others have none."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from custom_inference.compiled.reading import NotCompiled
from ppl_models import Model

_Structure = TypeVar("_Structure")


class KeptStructures(Generic[_Structure]):
    """Structures of a kind by model: each is found once, and so is why there is none."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Model, _Structure] = weakref.WeakKeyDictionary()
        self._refused: weakref.WeakKeyDictionary[Model, str] = weakref.WeakKeyDictionary()

    def find(
        self, model: Model, derive: Callable[[Model], _Structure],
        serves: Callable[[_Structure], bool] = lambda known: True,
    ) -> _Structure:  # fmt: skip
        """Return the structure of a program: what is known of it where that serves, else what is derived of a copy, as
        the model itself would be held for ever.

        Raises NotCompiled where it has none.
        """
        known = self._known.get(model)
        known = known if known is not None and serves(known) else None
        if known is None and model not in self._refused:
            try:
                known = self._known[model] = derive(copy.copy(model))
            except NotCompiled as reason:
                self._refused[model] = str(reason)
        # Rows that were bound first may have said that it is not the program.
        reason = self._refused[model] if known is None else getattr(known, "refused", "")
        if known is None or reason:
            raise NotCompiled(f"{type(model).__name__} is not compiled: {reason}")
        return known

    def recall(self, model: Model) -> _Structure | None:
        """Return the structure of a program that was read before."""
        known = self._known.get(model)
        return None if getattr(known, "refused", "") else known


@contextmanager
def refuse_errors() -> Iterator[None]:
    """Turn errors of a program that is run on values of several rows at once into NotCompiled."""
    try:
        yield
    except NotCompiled:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise NotCompiled(f"it does not run on values that differ between rows ({first})") from None
