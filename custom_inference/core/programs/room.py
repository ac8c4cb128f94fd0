"""Whether a sum over all values of a row's finite latents fits into memory."""

from __future__ import annotations

from custom_inference.core.capacity import memory_limit, require, rows_that_fit
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.latents import Latent


def require_room(density: RowDensity) -> None:
    """Refuse more values than memory holds: two numbers for every value and every entry that is observed, or row."""
    layout, rows = density.layout, len(density)
    number, entries = layout.num_configurations, rows + density.data.x.numel()
    needed, allowed = 2.0 * density.like.element_size() * number * entries, memory_limit()
    latents = ", ".join(f"'{latent.name}' ({_count(latent)})" for latent in layout.finite)
    fits = rows_that_fit(rows, allowed / max(needed, 1.0))
    require(f"summing over {number:.3g} values of {latents} of {rows} rows", needed, allowed=allowed, fits=fits)


def _count(latent: Latent) -> str:
    """How many values it has: those of an element, and of how many elements."""
    size = len(latent.options) if latent.options is not None else 1
    return f"{size}" if latent.elements == 1 else f"{size}^{latent.elements}"
