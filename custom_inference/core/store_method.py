"""The method of a saved fit: the class of its settings, and those that are not the default ones, as JSON."""

from __future__ import annotations

import functools
import importlib
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any


class _NotPlainError(Exception):
    """A setting that is an object of the caller's."""


def method_to_json(method: Any) -> dict[str, Any] | None:
    """Return the class and the settings of a method; None of one whose settings are not all plain values."""
    try:
        return _to_json(method) if is_dataclass(method) else None
    except _NotPlainError:
        return None


def method_from_json(found: dict[str, Any] | None) -> Any:
    """Return the method that :func:`method_to_json` described; None where there is no such class, or setting."""
    try:
        return None if found is None else _from_json(found)
    except (ImportError, AttributeError, TypeError, ValueError, LookupError):
        return None


@functools.singledispatch
def _to_json(value: Any) -> Any:
    """Return a value of settings as JSON: by default an object, which is settings itself."""
    kind = type(value)
    own = is_dataclass(value) and kind.__module__.startswith("custom_inference.")
    if not own or "<locals>" in kind.__qualname__:
        raise _NotPlainError
    settings = [one for one in fields(value) if one.init]  # pyright: ignore[reportArgumentType]
    chosen = [one.name for one in settings if not _is_default(one, getattr(value, one.name))]
    given = {name: _to_json(getattr(value, name)) for name in chosen}
    return {"module": kind.__module__, "class": kind.__qualname__, "settings": given}


_to_json.register(str | int | float | None, lambda value: value)
_to_json.register(Path, lambda path: {"path": str(path)})
_to_json.register(tuple, lambda values: {"tuple": [_to_json(one) for one in values]})
_to_json.register(list, lambda values: [_to_json(one) for one in values])


@_to_json.register
def _(value: dict) -> dict[str, Any]:
    if not all(isinstance(name, str) for name in value):
        raise _NotPlainError
    return {"dict": {name: _to_json(one) for name, one in value.items()}}


def _is_default(setting: Field[Any], value: Any) -> bool:
    default = setting.default if setting.default_factory is MISSING else setting.default_factory()
    return type(default) is type(value) and bool(default == value)


@functools.singledispatch
def _from_json(found: Any) -> Any:
    return found


_from_json.register(list, lambda values: [_from_json(one) for one in values])


@_from_json.register
def _(found: dict) -> Any:
    if "path" in found:
        return Path(found["path"])
    if "tuple" in found:
        return tuple(_from_json(one) for one in found["tuple"])
    if "dict" in found:
        return {name: _from_json(one) for name, one in found["dict"].items()}
    module, name = found["module"], found["class"]
    if module.partition(".")[0] != "custom_inference":
        raise ImportError(module)
    kind: Any = getattr(importlib.import_module(module), name)
    # Settings are frozen dataclasses, which check what they are given and do nothing else.
    if not kind.__dataclass_params__.frozen:
        raise TypeError(name)
    return kind(**{setting: _from_json(value) for setting, value in found["settings"].items()})
