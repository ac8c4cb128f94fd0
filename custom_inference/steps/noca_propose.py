"""Which informed start NOCA's engines share, by number of sources."""

from __future__ import annotations

import torch

from custom_inference.steps._protocol import Params
from custom_inference.steps._rows import BinaryRows
from ppl_models import Model

#: Growth enumerates the codes of the sources born so far: beyond this many it is too slow.
GROW_UP_TO = 12


class InformedStarts:
    """``propose`` and ``search_size`` of every NOCA engine."""

    def propose(self, model: Model, rows: BinaryRows, generator: torch.Generator, attempt: int) -> Params:
        """Growth under a held leak up to ``GROW_UP_TO`` sources; split-and-prune on truncated posteriors beyond."""
        if model.shapes["source_prior"][0] <= GROW_UP_TO:
            # Imported here: growth itself runs on the exact engine.
            from custom_inference.steps.noca_grow import grow

            return grow(model, rows, generator, attempt)
        from custom_inference.steps.noca_split import split_and_prune

        return split_and_prune(model, rows, generator)

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """Two starts for each of growth's three held leaks, on 600 rows; one for split-and-prune, on more."""
        num_components = model.shapes["source_prior"][0]
        if num_components <= GROW_UP_TO:
            return 6, 600
        return 1, max(1500, 48 * num_components)
