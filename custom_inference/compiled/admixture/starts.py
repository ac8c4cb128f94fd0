"""Starts of programs of shares: components sampled as topics of documents are, and words divided at random."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from custom_inference.compiled.admixture.reader import recall_admixture
from custom_inference.compiled.admixture.rows import AdmixtureRows
from custom_inference.compiled.probes import Probe
from custom_inference.compiled.steps import Steps
from custom_inference.core.align import match_components
from custom_inference.core.engine import EStep
from custom_inference.core.proposals import Proposals
from custom_inference.core.states import Params, State, values_of
from custom_inference.families.topics.propose import propose_topics
from ppl_models import Model

#: Rows that starts look at: at least the first, and the second for every component.
_ROWS, _ROWS_A_COMPONENT = 5000, 200
#: The largest concentrations that starts are sampled under, and of how even random ones are.
_MOST_SHAPE, _MOST_WORDS, _EVEN = 0.1, 0.05, 10
#: Fewer rows than this have random starts among the others.
_FEW = 500
#: The cosine of components that two starts have in common, at least.
_ALIKE = 0.9


class AdmixtureStarts(Proposals):
    """What a search does for a program of shares."""

    random_rows = 500

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """Return three starts, on so many rows that they show every component often."""
        structure = self.structure_if_known(model)
        size = 1 if structure is None else structure.size
        return 3, min(num_rows, max(_ROWS, _ROWS_A_COMPONENT * size))

    def initial(self, model: Model, rows: AdmixtureRows, generator: torch.Generator) -> Any:
        """Divide every word among the components in random proportions."""
        counts = rows.counts.to_dense().sum(0)
        noise = torch.zeros(rows.structure.size, len(counts), dtype=torch.float64)
        for _ in range(_EVEN):
            noise -= torch.log1p(-torch.rand(noise.shape, generator=generator, dtype=noise.dtype) * (1 - 1e-6))
        return self.from_counts(model, rows, (noise / noise.sum(0)).to(rows.like) * (counts + 1e-2), generator)

    def propose(self, model: Model, rows: AdmixtureRows, generator: torch.Generator, attempt: int) -> Any:
        """Sample components of the words, more than asked for, and merge them; of few rows random ones at times."""
        if not rows.repeats or self.at_random(attempt, len(rows)):
            return self.engine.initial(model, rows, generator)
        alpha = rows.structure.shape.to(rows.like).clamp(max=_MOST_SHAPE)
        counts = propose_topics(rows.documents, alpha, rows.like.new_tensor(_MOST_WORDS), generator)
        return self.from_counts(model, rows, counts, generator)

    def at_random(self, attempt: int, num_rows: int) -> bool:
        return attempt % 3 == 2 and num_rows < _FEW

    def from_counts(self, model: Model, rows: AdmixtureRows, counts: Tensor, generator: torch.Generator) -> Any:
        """Return the state at which the components have these expected numbers of words (K, W)."""
        structure = rows.structure
        shape = structure.shape.to(rows.like)
        mean = shape / (shape.sum() if structure.rate is None else structure.rate.to(rows.like))
        counted = [*rows.gather(counts, mean.expand(len(rows), -1)), *self._answer(rows)]
        statistics = {str(place): one for place, one in enumerate(counted)}
        statistics |= {"rows": rows.like.new_tensor(float(len(rows))), "share": len(rows) * mean}
        seed = int(torch.randint(2**31, (), generator=generator))
        own = structure.probe
        drawn = Probe(model, own.data, own.variables, seed=seed).draw_globals()
        typical = {site: value.to(rows.like) for site, value in drawn.items()}
        return self.engine.m_step(model, typical, EStep(statistics, {}, rows.like), rows)

    @staticmethod
    def _answer(rows: AdmixtureRows) -> list[Tensor]:
        """Return the features of responses when weights are as they are before anything was observed."""
        shape = rows.structure.shape.expand(len(rows), -1)
        total = shape.sum(-1, keepdim=True)
        return [
            one.law.expect(answer, shape / total, 1 / (total + 1)).sum(0)[None, None]
            for one, answer in zip(rows.structure.responses, rows.answers, strict=True)
        ]

    def same_solution(self, model: Model, first: State | Params, second: State | Params) -> bool:
        """Tell whether every component has its counterpart."""
        structure = self.structure_if_known(model)
        if structure is None:
            return first is second
        one, other = (structure.profile(values_of(model, state)) for state in (first, second))
        return bool((match_components(one, other).similarity > _ALIKE).all())

    @staticmethod
    def structure_if_known(model: Model) -> Any:
        return recall_admixture(model)

    def steps_if_known(self, model: Model) -> Steps | None:
        """Return the M step of a model on rows that were read before."""
        structure = self.structure_if_known(model)
        if structure is None:
            return None
        return next((known[model] for known in structure.steps.values() if model in known), None)
