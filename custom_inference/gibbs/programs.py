"""Gibbs sampling of a compiled program: codes of all rows by draws backwards through the sum, then the globals.

A sweep draws the globals given the codes, whose counts say all of the rows, and then the codes of every row together
given the globals: forwards by elimination, backwards by drawing, as along a chain (Scott, *Bayesian methods for hidden
Markov models*, JASA 97, 2002). The sum that is met on the way is log p(x | globals).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference.compiled.bayes.drawing import GlobalsDrawer, require_proper
from custom_inference.compiled.engine import CompiledExact, warn_of_narrow
from custom_inference.compiled.labels import reorder_draws
from custom_inference.compiled.moves import is_same
from custom_inference.compiled.starts import one_hot_marginals
from custom_inference.compiled.steps import steps_if_known
from custom_inference.compiled.structure import Bound, flatten
from custom_inference.core.posteriors.protocol import draw_slots
from custom_inference.gibbs.chains import Record
from custom_inference.gibbs.protocol import Chain, Params, Sampler
from ppl_models import Data, Model

#: Numbers that the draws of a site are kept up to.
_ENTRIES = 2**23
#: Steps of EM before a chain begins.
_SETTLE = 10


class ChainOfGlobals(Chain):
    """What is drawn is kept of the globals alone: given these, latents are summed out, or have a bound.

    values: site -> its value, in double precision.
    """

    values: dict[str, Tensor]

    def means(self) -> Params:
        """Return the present values: which place is which component is told once all draws are there."""
        return dict(self.values)

    def draw(self) -> Params:
        return {site: value.clone() for site, value in self.values.items()}

    def locals(self) -> Tensor:
        """Return nothing: posteriors of the latents follow from draws of the globals."""
        return torch.zeros(0)


class CompiledChain(ChainOfGlobals):
    """Values of the globals, and codes of all rows."""

    def __init__(self, model: Model, rows: Bound, seed: int, start: Params):
        self.model, self.rows = model, rows
        self.values = {site: value.double() for site, value in start.items()}
        self._generator = torch.Generator().manual_seed(seed % 2**63)
        self._drawer = GlobalsDrawer(model, rows, np.random.default_rng(seed % 2**64))
        self._counted: list[Tensor] | None = None
        self._chosen = torch.zeros(len(rows), 0, dtype=torch.long)
        self._evidence = torch.nan

    def sweep(self) -> None:
        """Draw the globals given the codes, then the codes given the globals; at first the codes alone."""
        with torch.no_grad():
            if self._counted is not None:
                self.values = self._drawer.draw(self.values, self._counted)
            naturals = self.rows.naturals(flatten(self.rows, self.values))
            chosen, evidence = list[Tensor](), 0.0
            for part in self.rows.cut():
                total, every = part.plan.run(part.tables(naturals))
                chosen.append(part.plan.go_back(total, every, self._choose))
                evidence += float((total + part.offset).sum())
            self._chosen, self._evidence = torch.cat(chosen), evidence
            self._counted = self.rows.gather(one_hot_marginals(self.rows, self._chosen))

    def _choose(self, log_weight: Tensor) -> Tensor:
        return draw_slots(torch.log_softmax(log_weight, -1), 1, self._generator)[:, 0]

    def log_joint(self) -> float:
        """Return log p(x | globals) + log p(globals), the codes summed out."""
        return self._evidence + float(self.model.log_prior(self.values))

    def indicators(self) -> Tensor:
        """Return the numbers (N, V) of the values of all latents' elements."""
        return self._chosen


class CompiledSampler(Sampler):
    """Chains of programs of one's own."""

    matched = False
    compares = True
    entries = _ENTRIES
    target = "log p(x, globals), latents summed out"

    def check(self, model: Model, data: Data) -> None:
        """Raise PriorError for improper priors."""
        del data
        require_proper(model)

    def chain(self, model: Model, data: Data, seed: int, start: Params | None) -> Chain:
        rows = self._read(model, data)
        if start is None:
            start = CompiledExact().initial(model, rows, torch.Generator().manual_seed(seed % 2**63))
        return CompiledChain(model, rows, seed, {**start, **model.known})

    def _read(self, model: Model, data: Data) -> Bound:
        return CompiledExact().rows(model, data.to(dtype=torch.float64))

    def propose(self, model: Model, data: Data, seed: int) -> Params:
        """Propose values near a good mode: the winner of a race of starts, after some steps of EM."""
        engine, rows = CompiledExact(), self._read(model, data)
        with torch.no_grad():
            state = engine.propose(model, rows, torch.Generator().manual_seed(seed % 2**63), 0)
            for _ in range(_SETTLE):
                state = engine.m_step(model, state, engine.e_step(model, state, rows), rows)
        warn_of_narrow(model, steps_if_known(model))
        return state

    def local_of_draws(self, model: Model, data: Data, locals_: Tensor) -> Any:
        """Return None: posteriors of the latents are averaged over the draws of the globals."""

    def settle(self, model: Model, records: list[Record]) -> list[Record]:
        """Bring what may change places into one order in all draws, that of the best chain; return the chains whose
        means are then the same as its."""
        length = min(len(next(iter(one.draws.values()))) for one in records)
        drawn = {
            site: torch.stack([torch.stack(one.draws[site][:length]) for one in records]) for site in records[0].draws
        }
        drawn = reorder_draws(model, drawn)
        for number, record in enumerate(records):
            record.draws = {site: list(value[number]) for site, value in drawn.items()}
            record.mean = {site: value[number].mean(0) for site, value in drawn.items()}
        return [one for one in records if one is records[0] or is_same(model, records[0].mean, one.mean)]

    def list_watched(self, records: Sequence[Record]) -> dict[str, np.ndarray]:
        """Return the draws of all sites that are learned, (chain, draw, ...) each."""
        length = min(len(next(iter(one.draws.values()))) for one in records)
        return {
            site: np.stack([torch.stack(one.draws[site][:length]).numpy() for one in records])
            for site in records[0].draws
            if site in records[0].model.unknown_sites
        }
