"""Gibbs sampling of programs of shares: choices of all tokens, shares of all rows, then the globals.

Tokens of one word in a row are alike, so that how many of them chose each component is multinomial. Given these numbers
n_k shares have their conjugate conditionals,

    theta ~ Dirichlet(alpha + n),   or   theta_k ~ Gamma(shape_k + n_k, rate_k + R_k)

with the sum R_k of what component k adds to a row's rates. Where shares stand in rates, exp(-sum_k theta_k R_k) is what
is left of the conditional; with R the largest R_k it is a sum over numbers of events that were not seen,

    exp(-R) sum_m prod_k (theta_k (R - R_k))^m_k / m_k!,    m_k ~ Poisson(theta_k (R - R_k)),

given which theta ~ Dirichlet(alpha + n + m). The globals follow from the numbers of words and the shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference.compiled.admixture.proof import prior_of
from custom_inference.compiled.admixture.rows import AdmixtureRows
from custom_inference.compiled.bayes.drawing import GlobalsDrawer
from custom_inference.compiled.blocks import Block
from custom_inference.compiled.reading import NotCompiled
from custom_inference.compiled.steps import Steps
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.conjugate.gamma import Gamma
from custom_inference.gibbs.programs import ChainOfGlobals, CompiledSampler
from custom_inference.gibbs.protocol import Chain, Params
from ppl_models import Data, Model
from ppl_models.data import sparse

#: Starts that a chain chooses from, and steps of EM of each.
_STARTS, _SETTLE = 4, 15


@dataclass(frozen=True)
class _Blocks:
    """What draws of globals read of rows."""

    blocks: Sequence[Block]
    parts: Sequence[None]


class _SharesDrawer(GlobalsDrawer):
    """Draws the globals of programs of shares."""

    def __init__(self, model: Model, rows: AdmixtureRows, generator: np.random.Generator):
        self._steps = rows.structure.steps_of(model, rows.like)
        read: Any = _Blocks(self._steps.blocks, [None] * len(self._steps.blocks))
        super().__init__(model, read, generator)

    @property
    def steps(self) -> Steps:
        return self._steps


class SharesChain(ChainOfGlobals):
    """Values of the globals, theta (N, K) of all rows, and how many tokens of every word chose each component."""

    def __init__(self, model: Model, rows: AdmixtureRows, seed: int, start: Params):
        self.model, self.rows = model, rows
        self.values = {site: value.double() for site, value in start.items()}
        self.generator = np.random.default_rng(seed % 2**64)
        self._drawer = _SharesDrawer(model, rows, self.generator)
        self._row, self._word, count = sparse.triplets(rows.counts)
        self._count = count.round().long().numpy()
        structure = rows.structure
        mean = structure.shape / (structure.shape.sum() if structure.rate is None else structure.rate)
        self.share = mean.expand(len(rows), -1)
        self._counted: list[Tensor] | None = None

    def sweep(self) -> None:
        """Draw the globals given choices and shares, then choices, then shares; at first without the globals."""
        with torch.no_grad():
            if self._counted is not None:
                self.values = self._drawer.draw(self.values, self._counted)
            natural = self._natural()
            weight = self._weigh(natural)
            chance = (weight / weight.sum(-1, keepdim=True)).numpy()
            chosen = torch.from_numpy(self.generator.multinomial(self._count, chance)).double()
            own = chosen.new_zeros(self.share.shape).index_add(0, self._row, chosen)
            self.share = self._draw_shares(own, natural)
            by_word = chosen.new_zeros(self.rows.counts.shape[1], chosen.shape[1]).index_add(0, self._word, chosen)
            self._counted = self.rows.gather(by_word.T, self.share)

    def _natural(self) -> list[Tensor]:
        return _engine().values(self.model, self.values, self.rows)

    def _weigh(self, natural: Sequence[Tensor]) -> Tensor:
        """Return theta_k p_k (M, K) of every stored entry, relative to the largest of its word."""
        score = self.rows.scores(natural)
        return self.share[self._row] * (score - score.amax(0)).exp().T[self._word]

    def _draw_shares(self, own: Tensor, natural: Sequence[Tensor]) -> Tensor:
        """Draw theta given numbers of choices (N, K)."""
        structure, exposure = self.rows.structure, self.rows.exposure(natural)
        if structure.rate is not None:
            return Gamma(structure.shape + own, structure.rate + exposure).draw(self.generator).clamp(min=1e-300)
        unseen = self.share * (exposure.amax(-1, keepdim=True) - exposure)
        own = own + torch.from_numpy(self.generator.poisson(unseen.numpy()))
        return Dirichlet(structure.shape + own).draw(self.generator).clamp(min=1e-300)

    def log_joint(self) -> float:
        """Return log p(x | shares, globals) + log p(shares) + log p(globals), choices summed out."""
        natural = self._natural()
        largest = self.rows.scores(natural).amax(0)[self._word]
        words = torch.as_tensor(self._count) * (self._weigh(natural).sum(-1).log() + largest)
        share = self.share / self.share.sum(-1, keepdim=True) if self.rows.structure.rate is None else self.share
        prior = prior_of(self.rows.structure).log_prob(share).sum()
        known = self.rows.offset.sum() - (self.share * self.rows.exposure(natural)).sum()
        return float(words.sum() + prior + known) + float(self.model.log_prior(self.values))

    def indicators(self) -> Tensor:
        """Return nothing: choices are numbers of tokens."""
        return torch.zeros(len(self.rows), 0, dtype=torch.long)


class SharesSampler(CompiledSampler):
    """Chains of programs of shares."""

    target = "log p(x, shares, globals), choices summed out"

    def chain(self, model: Model, data: Data, seed: int, start: Params | None) -> Chain:
        rows = self._read_shares(model, data)
        if start is None:
            start = _engine().initial(model, rows, torch.Generator().manual_seed(seed % 2**63))
        return SharesChain(model, rows, seed, {**dict(start or {}), **model.known})

    def propose(self, model: Model, data: Data, seed: int) -> Params:
        """Propose values near a good mode of the bound: the best of some starts after some steps of EM."""
        engine, rows = _engine(), self._read_shares(model, data)
        generator, best = torch.Generator().manual_seed(seed % 2**63), list[tuple[float, Any]]()
        with torch.no_grad():
            for attempt in range(_STARTS):
                state, warm, bound = engine.propose(model, rows, generator, attempt), None, -np.inf
                for _ in range(_SETTLE):
                    step = engine.e_step(model, state, rows, warm)
                    state, warm = engine.m_step(model, state, step, rows), step.locals
                    bound = engine.objective_at(model, state, step.bound)
                best.append((float(bound), state))
        return max(best, key=lambda pair: pair[0])[1]

    @staticmethod
    def _read_shares(model: Model, data: Data) -> AdmixtureRows:
        rows = _engine().rows(model, data.to(dtype=torch.float64))
        if rows.structure.responses:
            raise NotCompiled(f"{type(model).__name__} has responses, given which choices are not independent")
        return rows


def _engine() -> Any:
    """Return the engine of points. It is loaded where it is needed: families import methods, which import this."""
    return import_module("custom_inference.compiled.admixture.engine").AdmixturePoints()
