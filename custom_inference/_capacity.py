"""How much memory an exact computation may take, and what to say when it would take more."""

from __future__ import annotations

import psutil

from ppl_models import CapacityError


def allowed_bytes(limit: float | None = None) -> float:
    """Half of the memory that is free now, or the caller's own limit."""
    return float(limit) if limit is not None else 0.5 * psutil.virtual_memory().available


def code_table_bytes(num_bits: int, num_features: int, block_rows: int, itemsize: int = 8) -> float:
    """The codes, two (2^K, D) tables of log-likelihoods and one block of the (N, 2^K) joint with its softmax."""
    return 2.0**num_bits * itemsize * (num_bits + 2 * num_features + 2 * block_rows)


def require(what: str, needed: float, *, allowed: float, fits: str) -> None:
    """Raise :class:`CapacityError` if ``needed`` bytes are more than ``allowed``."""
    if needed > allowed:
        raise CapacityError(
            f"{what} needs about {needed / 2**30:.3g} GiB, {allowed / 2**30:.3g} GiB are allowed; {fits}",
            needed_bytes=needed,
            allowed_bytes=allowed,
        )


def largest_enumerable(num_features: int, *, allowed: float, block_rows: int = 64) -> int:
    """The largest K whose code table fits."""
    bits = 1
    while bits < 22 and code_table_bytes(bits + 1, num_features, block_rows) <= allowed:
        bits += 1
    return bits
