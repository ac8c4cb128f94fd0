"""The method of a saved fit: the class of its settings, and those that are not the default ones, as JSON."""

from __future__ import annotations

import importlib
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

_PLAIN = str | int | float | bool | None


class _NotPlainError(Exception):
    """A setting that is an object of the caller's."""


def method_to_json(method: Any) -> dict[str, Any] | None:
    """Return the class and the settings of a method; None of one whose settings are not all plain values."""
    try:
        found = _to_json(method)
    except _NotPlainError:
        return None
    return found if isinstance(found, dict) else None


def method_from_json(found: Any) -> Any:
    """Return the method that :func:`method_to_json` described; None where there is no such class, or setting."""
    try:
        return None if found is None else _from_json(found)
    except (ImportError, AttributeError, TypeError, ValueError, LookupError):
        return None


def _to_json(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Path):
        return {"path": str(value)}
    if isinstance(value, tuple):
        return {"tuple": [_to_json(one) for one in value]}
    if isinstance(value, list):
        return [_to_json(one) for one in value]
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {"dict": {name: _to_json(one) for name, one in value.items()}}
    kind = type(value)
    if (
        not is_dataclass(value)
        or not kind.__module__.startswith("custom_inference.")
        or "<locals>" in kind.__qualname__
    ):
        raise _NotPlainError
    settings = {one.name: getattr(value, one.name) for one in fields(value) if one.init}
    chosen = {one.name for one in fields(value) if one.init and not _is_default(one, settings[one.name])}
    given = {name: _to_json(one) for name, one in settings.items() if name in chosen}
    return {"module": kind.__module__, "class": kind.__qualname__, "settings": given}


def _is_default(field: Any, value: Any) -> bool:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return type(default) is type(value) and bool(default == value)


def _from_json(found: Any) -> Any:
    if isinstance(found, list):
        return [_from_json(one) for one in found]
    if not isinstance(found, dict):
        return found
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
