"""What this machine can do on one thread, measured here and now, and what an iteration needs at the least.

The floor of an iteration is the time of its unavoidable arithmetic: matrix products at the rate of a large product of
the same shape, exponentials, logarithms and multiplications at the rates of arrays that stay in cache. It has no
passes over memory, no gathers, no bookkeeping: an engine at twice its floor is well made.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

#: Elements of the arrays that the elementwise rates are measured on: 256 KiB in single precision.
_ELEMENTS = 2**16


def cpu_seconds(call: Callable[[], object], *, repeats: int = 9, least: float = 0.002) -> float:
    """Median CPU seconds of a call, each measurement repeating it for at least ``least`` seconds."""
    call()
    begin = time.process_time()
    call()
    inner = max(1, round(least / max(time.process_time() - begin, 1e-7)))
    measured = []
    for _ in range(repeats):
        begin = time.process_time()
        for _ in range(inner):
            call()
        measured.append((time.process_time() - begin) / inner)
    return statistics.median(measured)


@dataclass(frozen=True)
class Work:
    """Unavoidable arithmetic of one iteration: product flops and numbers of elementwise operations."""

    flops: float = 0
    exponentials: float = 0
    logarithms: float = 0
    multiplications: float = 0


@dataclass(frozen=True)
class Rates:
    """Flops a second in products (rows x features x codes), and seconds an element."""

    flops: float
    exponential: float
    logarithm: float
    multiplication: float

    def floor(self, work: Work) -> float:
        """Seconds for some work."""
        return (
            work.flops / self.flops
            + work.exponentials * self.exponential
            + work.logarithms * self.logarithm
            + work.multiplications * self.multiplication
        )


def measured_rates(rows: int, features: int, codes: int, dtype: torch.dtype) -> Rates:
    """Rates of this process, with both products of the exact E step at their own shapes."""
    x, table = torch.rand(rows, features, dtype=dtype), torch.rand(rows, codes, dtype=dtype)
    code_table, back = torch.rand(codes, features, dtype=dtype), torch.empty(features, codes, dtype=dtype)
    out = torch.empty_like(table)
    seconds = cpu_seconds(lambda: torch.mm(x, code_table.T, out=out))
    seconds += cpu_seconds(lambda: torch.mm(x.T, table, out=back))
    values = torch.rand(_ELEMENTS, dtype=dtype) + 0.1
    result = torch.empty_like(values)
    return Rates(
        flops=4.0 * rows * features * codes / seconds,
        exponential=cpu_seconds(lambda: torch.exp(values, out=result)) / _ELEMENTS,
        logarithm=cpu_seconds(lambda: torch.log(values, out=result)) / _ELEMENTS,
        multiplication=cpu_seconds(lambda: torch.mul(values, values, out=result)) / _ELEMENTS,
    )


def exact_work(rows: int, features: int, sources: int, inner_steps: int) -> Work:
    """Two products over all codes and one exponential a (row, code); the tables of the codes; the inner M steps."""
    codes = 2**sources
    small = codes * features
    return Work(
        flops=4.0 * rows * features * codes + 2.0 * small * sources * (1 + 2 * inner_steps),
        exponentials=rows * codes + small * (1 + inner_steps),
        logarithms=small,
    )


def factorized_work(rows: int, features: int, sources: int, ones: int, inner_steps: int) -> Work:
    """g(q) of every (one, source) before and after every alternation; one Newton step for theta and one for theta_0."""
    pairs = float(ones * sources)
    return Work(
        flops=2.0 * rows * features * sources * (inner_steps + 1),
        exponentials=pairs * (inner_steps + 1 + 2),
        logarithms=pairs * (inner_steps + 1),
    )


def mean_field_work(sources: int, ones: int, nodes: int, sweeps: int) -> Work:
    """A (one, node, source) costs 2 operations to enter the product, 6 per sweep, 5 in the statistics."""
    return Work(multiplications=float(ones * nodes * sources) * (2 + 6 * sweeps + 5))


def truncated_work(rows: int, features: int, sources: int, ones: int, free: int, refresh_every: int) -> Work:
    """One exponential and one logarithm per one and code of the cube, and per one and source at every refresh."""
    size = min(free, sources)
    pairs = ones * (2**size + sources / refresh_every)
    return Work(
        flops=2.0 * rows * features * sources + 4.0 * ones * size * 2**size, exponentials=pairs, logarithms=pairs
    )
