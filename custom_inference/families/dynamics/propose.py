"""Starts of dynamic topics: topics that do not change, learned from all slices together."""

from __future__ import annotations

from typing import Any

import torch

from custom_inference.core.align import match_components
from custom_inference.core.proposals import Proposals
from custom_inference.core.states import values_of
from custom_inference.families.dynamics.cvb0 import refresh_responsibilities
from custom_inference.families.rows.documents import DocumentRows
from ppl_models import Model
from ppl_models.data import sparse

#: Iterations of EM for the topics that do not change.
_STATIC = 18
#: Documents that a start looks at, at most.
_SEARCH_ROWS = 5000
#: Two starts found a topic in common where their word probabilities, all slices together, have at least this cosine.
_SAME = 0.9


class DynamicProposals(Proposals):
    """Static topics by EM with each token left out of its document's proportions, from random responsibilities."""

    tolerance = 2e-3

    def propose(self, model: Any, rows: DocumentRows, generator: torch.Generator, attempt: int) -> Any:
        del attempt
        static = _merge_slices(rows, model.vocabulary_size)
        like, shape = rows.like.values(), (model.vocabulary_size, model.num_topics)
        alpha = self.engine.alpha(model, like)
        weight = -torch.log1p(-torch.rand(shape, generator=generator, dtype=torch.float64) * (1 - 1e-6)).to(like)
        own = weight[static.counts.col_indices()]
        locals_ = {"responsibility": own / own.sum(-1, keepdim=True)}
        counts = weight * sparse.column_sums(static.counts).unsqueeze(-1) / weight.sum(-1, keepdim=True)
        for _ in range(_STATIC):
            topic = counts + 0.05
            found = refresh_responsibilities(static, topic / topic.sum(0), alpha, locals_, 1)
            counts, locals_ = found.counts, found.locals
        return self.engine.from_static(model, rows, counts.T)

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        return 3, min(num_rows, _SEARCH_ROWS)

    def same_solution(self, model: Model, first: Any, second: Any) -> bool:
        one, other = (torch.softmax(values_of(model, state)["topic_logit"], -1).mean(0) for state in (first, second))
        return bool((match_components(one, other).similarity > _SAME).all())


def _merge_slices(rows: DocumentRows, words: int) -> DocumentRows:
    """Return the documents with columns v for t V + v."""
    counts = rows.counts
    size = (len(rows), words)
    crow, column = counts.crow_indices(), counts.col_indices() % words
    return DocumentRows(sparse.tensor(crow, column, counts.values(), size=size))
