"""Truncated posteriors: the exact posterior restricted to a few likely codes per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from custom_inference.guides._protocol import Guide


@dataclass(frozen=True, kw_only=True)
class Truncated(Guide):
    """Q(s_n) in proportion to p(x_n, s_n) on a set of codes that evolves per row; for VariationalEM.

    The bound log sum over the set of p(x_n, s) never exceeds log p(x_n) and grows whenever the set improves.
    """

    bound_name: ClassVar[str] = "truncated"


@dataclass(frozen=True, kw_only=True)
class AllCodes(Guide):
    """Q = the exact posterior, by summing over all codes; what EM uses."""

    bound_name: ClassVar[str] = "evidence"
