"""Checks of settings that many methods have."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from ppl_models import MethodError


def require_whole(name: str, value: Any, least: int = 1, *, why: str = "") -> None:
    """Raises MethodError unless the value is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise MethodError(f"{name} = {value!r}, expected a whole number of at least {least}{why}")
