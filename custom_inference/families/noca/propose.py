"""Which informed start NOCA's engines share, by number of sources."""

from __future__ import annotations

from typing import Any

import torch

from custom_inference.core.align import match_components
from custom_inference.core.engine import Params
from custom_inference.core.proposals import Proposals
from custom_inference.families.common.rows import BinaryRows
from custom_inference.families.noca.grow import grow
from custom_inference.families.noca.split import shut_off, split_and_prune
from ppl_models import Model

#: The starts, in turn: growth under this held leak (dense patterns want more, weak and sparse ones less), or
#: split-and-prune (None).
TURNS = (0.3, 0.4, 0.2, None, 0.1, 0.03)
#: Growth enumerates the codes of the sources born so far: beyond this many it is too slow.
GROW_UP_TO = 12


class NocaProposals(Proposals):
    """Growth, or split-and-prune; pruning by evidence."""

    def propose(self, model: Model, rows: BinaryRows, generator: torch.Generator, attempt: int) -> Params:
        """Up to ``GROW_UP_TO`` sources the start whose turn it is; beyond, split-and-prune."""
        held_leak = TURNS[attempt % len(TURNS)]
        if model.shapes["source_prior"][0] <= GROW_UP_TO and held_leak is not None:
            return grow(model, rows, generator, held_leak)
        return split_and_prune(model, rows, generator)

    def refine(self, model: Model, rows: BinaryRows, params: Params) -> Params:
        """Beyond ``GROW_UP_TO`` sources, those that are not worth their price on all rows are shut off."""
        if model.shapes["source_prior"][0] <= GROW_UP_TO:
            return params
        return shut_off(model, rows, params)

    def same_solution(self, model: Model, first: Any, second: Any) -> bool:
        """Every source of one has its own counterpart in the other, with cosine of the loadings above .9.

        Equal scores are not enough: on data with weak links wrong solutions score alike.
        """
        return bool((match_components(first["loading"], second["loading"]).similarity > 0.9).all())

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """One start for each held leak and one split-and-prune; beyond ``GROW_UP_TO`` only that, on more rows."""
        num_components = model.shapes["source_prior"][0]
        if num_components <= GROW_UP_TO:
            return len(TURNS), 1000
        return 1, max(1500, 48 * num_components)
