"""Instructions of compiled loops against what NumPy and Python say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from custom_inference.families.common.compiled import entry, inner, part
from custom_inference.families.common.intrinsics import add_up, allocate, find_largest, larger, smaller


@pytest.fixture(scope="module")
def instructions():
    @inner
    def among(first, second):
        return larger(first, second), smaller(first, second)

    @part
    def arrays(rows, like):
        return allocate(rows), allocate((rows, 2)), allocate(rows, like.dtype), allocate(rows, np.int64)

    @entry(cache=False)
    def of_all(first, second, rows, values):
        return among(first, second), arrays(rows, values), add_up(values), find_largest(values)

    return of_all


@pytest.mark.parametrize("first, second", [(1, 2.5), (2.5, 1), (3, 3), (math.nan, 1.0), (1.0, math.nan)])
def test_instructions_say_what_python_says(instructions, first, second):
    values = np.array([2.0, 16777216.0, 1.0, 1.0], np.float32)
    (most, least), arrays, total, largest = instructions(first, second, 3, values)
    assert [most, least] == pytest.approx([max(first, second), min(first, second)], nan_ok=True, abs=0)
    assert [array.shape for array in arrays] == [(3,), (3, 2), (3,), (3,)]
    assert [array.dtype for array in arrays] == [np.float64, np.float64, np.float32, np.int64]
    assert total == np.cumsum(values)[-1] and largest == values.max()


def test_what_compiled_code_alone_calls_is_translated_once(instructions):
    engine = instructions.targetctx.codegen()._engine  # where machine code is
    before = set(engine._defined_symbols)

    @inner
    def twice(x):
        return x + x

    @entry(cache=False)
    def run(x):
        return twice(x) + 1.0

    assert run(2.0) == 5.0 and twice.signatures == run.signatures
    assert twice.overloads[twice.signatures[0]].library._finalized
    libraries = [name for name in engine._defined_symbols - before if "twice" in name]
    assert len({name for name in libraries if name.startswith("_ZN")}) <= 1
