"""What loops ask of numba, as instructions in their own code.

numba compiles ``max``, ``min`` and ``numpy.empty`` as functions, and sums of arrays as several, anew for every type and
every set of options: 20 to 40 ms each, and ten or more in the first fit of a model. Import inside functions only: it
loads the compiler.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite.ir import IRBuilder, Value
from numba import types
from numba.core.base import BaseContext as TargetContext
from numba.core.typing.context import BaseContext as TypingContext
from numba.core.typing.npydecl import parse_dtype
from numba.core.typing.templates import Signature
from numba.extending import intrinsic
from numba.np import arrayobj

from custom_inference.families.common.compiled import Reals, inlined


def _choose(compare: Callable[[Any, Any], Any]):
    """An instruction for the one of two numbers that ``compare`` holds of; the first where of neither, as in Python."""

    def choose(typing: TypingContext, first: types.Type, second: types.Type):
        kind: Any = typing.unify_types(first, second)

        def generate(context: TargetContext, builder: IRBuilder, signature: Signature, numbers: Sequence[Value]):
            a, b = (context.cast(builder, *part, kind) for part in zip(numbers, signature.args, strict=True))
            holds = context.get_function(compare, types.boolean(kind, kind))
            return builder.select(holds(builder, (b, a)), b, a)

        return kind(first, second), generate

    return intrinsic(choose)


def _allocate(typing: TypingContext, shape: types.Type, kind: types.Type | None = None):
    """An array of one extent or several, in double precision if no other kind of numbers is given. Its entries are what
    memory has held before."""
    del typing
    array = types.Array(types.float64 if kind is None else parse_dtype(kind), getattr(shape, "count", 1), "C")

    def generate(context: TargetContext, builder: IRBuilder, signature: Signature, given: Sequence[Value]):
        extents = arrayobj._parse_shape(context, builder, signature.args[0], given[0])
        return arrayobj._empty_nd_impl(context, builder, array, extents)._getvalue()

    return array(shape, types.Omitted(None) if kind is None else kind), generate


larger: Any = _choose(operator.gt)
smaller: Any = _choose(operator.lt)
allocate: Any = intrinsic(_allocate)


@inlined
def add_up(values: Reals):
    """Add numbers one after the other, in their own precision: numba's ``sum`` is four functions."""
    total = values.dtype.type(0)
    for value in values:
        total += value
    return total


@inlined
def find_largest(values: Reals):
    """Find the largest of at least one number: numba's ``max`` is seven functions."""
    found = values[0]
    for value in values:
        found = larger(found, value)
    return found
