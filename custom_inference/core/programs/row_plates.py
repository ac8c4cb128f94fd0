"""Which plates of a program are those of its rows, whatever they are called: their sizes follow the number of rows.

Sizes of one run do not tell: an inner plate, of features say, may have as many members as there are rows.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from ppl_models import Model

#: The numbers of rows of the two runs that are compared.
_FEW = (2, 3)
#: Model -> the names of its plates of rows, once it was run on two numbers of rows.
_PLATES: weakref.WeakKeyDictionary[Model, frozenset[str]] = weakref.WeakKeyDictionary()


def row_plates_of(model: Model, run_on: Callable[[int], Mapping[str, Any]]) -> frozenset[str]:
    """The names of the plates of rows. run_on: gives the statements of a run of the program on so many rows."""
    if model not in _PLATES:
        one, other = (_sizes(run_on(number)) for number in _FEW)
        _PLATES[model] = frozenset(name for name in one if (one[name], other.get(name)) == _FEW)
    return _PLATES[model]


def _sizes(nodes: Mapping[str, Any]) -> dict[str, int]:
    stacks = [node["cond_indep_stack"] for node in nodes.values() if node["type"] == "sample"]
    return {frame.name: frame.size for stack in stacks for frame in stack if frame.vectorized}


def plate_depth(nodes: Mapping[str, Any]) -> int:
    """How many batch dimensions, counted from the right, the plates of a run take; at least one, that of rows."""
    stacks = [node["cond_indep_stack"] for node in nodes.values() if node["type"] == "sample"]
    return max([1, *(-frame.dim for stack in stacks for frame in stack if frame.vectorized)])


def stands_inside(node: Mapping[str, Any], plates: frozenset[str]) -> bool:
    """Whether a statement stands in a plate of several members beside those of rows, which have these names."""
    return any(f.vectorized and f.size > 1 and f.name not in plates for f in node["cond_indep_stack"])


def row_dim_of(node: Mapping[str, Any], plates: frozenset[str]) -> int | None:
    """The batch dimension of the plate of rows that a statement stands in, counted from the right; None outside it."""
    frames = (frame for frame in node["cond_indep_stack"] if frame.vectorized)
    return next((frame.dim for frame in frames if frame.name in plates), None)
