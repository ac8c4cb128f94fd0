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


def require_seed(seed: int) -> None:
    """Raises MethodError unless the seed is one that random numbers begin with: a whole number from 0 to 2^63 - 1."""
    if not is_whole(seed) or not 0 <= seed < 2**63:
        raise MethodError(f"seed = {seed!r}, expected a whole number from 0 to 2^63 - 1")


def require_positive(name: str, value: float | str, *, why: str = "") -> None:
    """Raises MethodError unless the value is a finite number above 0."""
    if not 0 < _number_of(value) < math.inf:
        raise MethodError(f"{name} = {value!r}, expected a positive number{why}")


def require_between(name: str, value: float | str, interval: str, *, why: str = "") -> None:
    """Raises MethodError unless the value is a number in the interval, such as "[0, 1)" or "[0, inf)"."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    number = _number_of(value)
    above = low <= number if interval[0] == "[" else low < number
    below = number <= high if interval[-1] == "]" else number < high
    if not (above and below):
        raise MethodError(f"{name} = {value!r}, expected a number in {interval}{why}")


def _number_of(value: Any) -> float:
    """Return the number that a setting is; NaN, which is in no interval, of texts, truth values and other things."""
    if is_text(value) or type(value) is bool:
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return math.nan
