"""Tempered chains over the blocks that a graph's nodes take for their dyads, the memberships integrated out."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.annealing.chains import (
    GraphChains,
    Product,
    State,
    Tuning,
    draw_places,
    draw_proportions,
    draw_seed,
    exchange_names,
)
from custom_inference.core.engine import Params
from custom_inference.families.memberships.common import membership_prior
from custom_inference.families.memberships.dyads import list_observed_dyads
from custom_inference.families.memberships.exact import MmsbExact
from custom_inference.families.rows.graph import GraphRows
from ppl_models import MMSB, Data

#: Numbers in the tables of all dyads at most.
_MOST = 2**25


@dataclass(frozen=True)
class PairChains(GraphChains):
    """Chains over the pairs of blocks (a, b), as a K + b, of the E observed dyads of a graph, which is one row here.
    Two blocks exchange their names at times: dyad by dyad chains do not pass to where these have changed roles.

    first, second (E,): the nodes of the dyads. table (E, K^2): log p(x_ij | a, b). alpha (K,): concentrations of the
    memberships. size: N.
    """

    first: Tensor
    second: Tensor
    table: Tensor
    alpha: Tensor
    size: int
    base: Product | None = None

    @property
    def options(self) -> Tensor:
        return torch.full((len(self.first),), self.table.shape[1])

    @functools.cached_property
    def _begun(self) -> Tensor:
        """The log-probabilities (E, K^2) that paths begin at: without others, those of a single dyad."""
        if self.base is not None:
            return self.base.table[0].contiguous()
        share = (self.alpha / self.alpha.sum()).log()
        return torch.log_softmax(self.table + (share[:, None] + share).flatten(), -1)

    def begin(self, chains: int, generator: torch.Generator) -> State:
        return self._score(draw_places(self._begun.exp(), (chains,), generator))

    def at(self, code: Tensor, generator: torch.Generator) -> State:
        """Draw the pairs of the dyads given memberships (M, 1, N K)."""
        share = code.reshape(len(code), self.size, -1)
        both = share[:, self.first].unsqueeze(-1) * share[:, self.second].unsqueeze(-2)
        return self._score(draw_places(both.flatten(2) * self.table.exp(), (), generator))

    def _counts(self, state: State) -> Tensor:
        """How often every node takes every block, (M, N, K), with the concentrations."""
        pair, blocks = state.place[:, 0], len(self.alpha)
        found = self.alpha.repeat(len(pair), self.size)
        for node, block in ((self.first, pair // blocks), (self.second, pair % blocks)):
            found.scatter_add_(1, node * blocks + block, torch.ones_like(block, dtype=found.dtype))
        return found.unflatten(1, (self.size, blocks))

    def code(self, state: State) -> Tensor:
        """The expected memberships given the blocks that nodes took."""
        found = self._counts(state)
        return (found / found.sum(-1, keepdim=True)).flatten(1).unsqueeze(1)

    def draw(self, state: State, generator: torch.Generator) -> Tensor:
        return draw_proportions(self._counts(state), generator).flatten(1).unsqueeze(1)

    def move(self, state: State, power: Tensor, tuning: Tuning, generator: torch.Generator) -> tuple[State, Tensor]:
        from custom_inference.families.memberships.kernels import draw_pairs

        pair, heat = state.place[:, 0].clone(), float(power)
        field = ((1 - heat) * self._begun if heat < 1 else 0.0) + heat * self.table
        room = np.empty((self.size, len(self.alpha))), np.empty(self.table.shape[1])
        given = (one.numpy() for one in (self.first, self.second, field, self.alpha))
        draw_pairs(pair.numpy(), *given, heat, *room, draw_seed(generator))
        state, blocks = self._score(pair), len(self.alpha)
        if blocks > 1:
            names = exchange_names(blocks, len(pair), generator)
            other = self._score(names.gather(1, pair // blocks) * blocks + names.gather(1, pair % blocks))
            state = state.accept(other, power, generator)
        return state, torch.ones_like(power)

    def _score(self, pair: Tensor) -> State:
        """The state at pairs (M, E)."""
        from custom_inference.families.memberships.kernels import score_pairs

        both, room = np.empty((len(pair), 2)), np.empty((self.size, len(self.alpha)))
        given = (one.numpy() for one in (self.first, self.second, self.table, self._begun, self.alpha))
        score_pairs(pair.contiguous().numpy(), *given, room, both)
        joint, base = torch.from_numpy(both).T.contiguous().unsqueeze(-1)
        place = pair.unsqueeze(1)
        return State(place, place.new_zeros(*place.shape[:2], 0, dtype=torch.float64), joint, base)


def pair_chains(model: MMSB, params: Params, data: Data) -> PairChains | None:
    """Chains over the blocks that nodes take for their dyads; None of graphs whose dyads are too many."""
    blocks = model.num_blocks
    if model.num_dyads(len(data)) * blocks**2 > _MOST:
        return None
    rows = GraphRows.of(model, data)
    first, second, _ = (torch.as_tensor(one) for one in list_observed_dyads(rows))
    table = MmsbExact().tables(model, params, rows.to(torch.float64))[0].double().log().flatten(1)
    return PairChains(first, second, table.contiguous(), membership_prior(model, table).contiguous(), len(rows))
