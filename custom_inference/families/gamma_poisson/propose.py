"""Starts for gamma-Poisson factor analysis: those of topic models, scaled."""

from __future__ import annotations

from typing import Any

import torch

from custom_inference.core.align import match_components
from custom_inference.core.proposals import Proposals
from custom_inference.core.states import values_of
from custom_inference.families.gamma_poisson.common import EventRows, GapEngine
from custom_inference.families.topics.propose import propose_topics
from ppl_models import Model

#: The largest concentrations that starts are sampled under: under flat priors a sampler hardly tells components apart.
_MOST_SHAPE, _MOST_LOADING = 0.1, 0.05
#: Two starts found a component in common where their loadings have at least this cosine.
_SAME = 0.9
#: Fewer rows than this have this many starts, others three; rows that a start looks at, and at least so many each.
_FEW_ROWS, _STARTS_OF_FEW, _SEARCH_ROWS, _SEARCH_ROWS_EACH = 500, 12, 5000, 200


def propose_loading(engine: GapEngine, model: Model, rows: EventRows, generator: torch.Generator) -> Any:
    """Sampled components of the events, more than asked for and merged: as topics of documents are."""
    like = rows.like.values()
    shape = engine.activation_prior(model, like)[0].clamp(max=_MOST_SHAPE)
    counts = propose_topics(rows, shape, like.new_tensor(_MOST_LOADING), generator)
    return engine.from_counts(model, counts, len(rows))


class GapProposals(Proposals):
    def propose(self, model: Model, rows: EventRows, generator: torch.Generator, attempt: int) -> Any:
        """Sampled components; of few rows, two times in three, random ones."""
        if attempt % 3 and len(rows) < _FEW_ROWS:
            return self.engine.initial(model, rows, generator)
        return propose_loading(self.engine, model, rows, generator)

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """Few rows have many optima, and starts are cheap there."""
        starts = _STARTS_OF_FEW if num_rows < _FEW_ROWS else 3
        return starts, min(num_rows, max(_SEARCH_ROWS, _SEARCH_ROWS_EACH * model.local_shape[0]))

    def same_solution(self, model: Model, first: Any, second: Any) -> bool:
        one, other = (values_of(model, state)["loading"] for state in (first, second))
        return bool((match_components(one, other).similarity > _SAME).all())
