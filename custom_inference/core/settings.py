"""Checks of settings that many methods have."""

from __future__ import annotations

import math
from typing import Any

from ppl_models import MethodError
from ppl_models.data.held import is_text, is_whole


def require_whole(name: str, value: Any, least: int = 1, *, why: str = "") -> None:
    """Raises MethodError unless the value is a whole number of at least ``least``."""
    if not is_whole(value) or value < least:
        raise MethodError(f"{name} = {value!r}, expected a whole number of at least {least}{why}")


def require_positive(name: str, value: float | str) -> None:
    """Raises MethodError unless the value is a finite number above 0."""
    if is_text(value) or not 0 < float(value) < math.inf:
        raise MethodError(f"{name} = {value!r}, expected a positive number")
