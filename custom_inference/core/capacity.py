"""How much memory an exact computation may take, and what to say when it would take more."""

from __future__ import annotations

import math

import psutil

from ppl_models import CapacityError, GraphModel
from ppl_models.distributions.labellings import MAX_LABELINGS


def memory_limit(limit: float | None = None) -> float:
    """Half of the memory that is free now, or the caller's own limit."""
    return float(limit) if limit is not None else 0.5 * psutil.virtual_memory().available


def code_table_bytes(num_bits: int, num_features: int, block_rows: int, itemsize: int = 8) -> float:
    """The codes, two (2^K, D) tables of log-likelihoods and one block of the (N, 2^K) joint with its softmax."""
    return 2.0**num_bits * itemsize * (num_bits + 2 * num_features + 2 * block_rows)


def require(what: str, needed: float, *, allowed: float, fits: str) -> None:
    """Raise :class:`CapacityError` if ``needed`` bytes are more than ``allowed``."""
    if needed > allowed:
        raise _refusal(what, needed, allowed, fits)


def rows_that_fit(rows: int, share: float) -> str:
    """Say how many of the rows a sum fits for, where a share of what all need is allowed, and what does for all."""
    fitting = int(rows * share)
    number = f"{fitting} rows at a time" if fitting else "no single row"
    advice = "a bound by SVI(guide='mean_field'), or an estimate by AIS() or log_likelihood(bound='ais')"
    return f"{number} would fit; for all take {advice}"


def _refusal(what: str, needed: float, allowed: float, fits: str) -> CapacityError:
    sizes = f"{needed / 2**30:.3g} GiB, {allowed / 2**30:.3g} GiB are allowed"
    return CapacityError(f"{what} needs about {sizes}; {fits}", needed_bytes=needed, allowed_bytes=allowed)


def largest_enumerable(num_features: int, *, allowed: float, block_rows: int = 64) -> int:
    """The largest K whose code table fits."""
    bits = 1
    while bits < 22 and code_table_bytes(bits + 1, num_features, block_rows) <= allowed:
        bits += 1
    return bits


def require_labelings(
    model: GraphModel, num_nodes: int, *, instead: str, per_dyad: int = 4, limit: float | None = None
) -> None:
    """Raise :class:`CapacityError` where a sum over all K^N labelings of the nodes does not fit into memory,
    or would go through more than 2^22 of them.

    per_dyad: numbers of every labeling and dyad; by default the blocks of both ends, mean and log-probability.
    """
    blocks, allowed = model.local_shape[0], memory_limit(limit)

    def labelings(size: int) -> float:
        return math.exp(min(size * math.log(blocks), 600.0))  # e^700 is no float

    def bytes_for(size: int) -> float:
        return 8.0 * labelings(size) * (size + per_dyad * model.num_dyads(size))

    most = num_nodes
    while most > 1 and (bytes_for(most) > allowed or labelings(most) > MAX_LABELINGS * (1 + 1e-9)):
        most -= 1
    if most < num_nodes:
        what = f"the sum over {blocks}^{num_nodes} labelings of the nodes"
        fits = f"with {blocks} blocks at most {most} nodes are enumerated; use {instead}"
        raise _refusal(what, bytes_for(num_nodes), min(allowed, bytes_for(most)), fits)
