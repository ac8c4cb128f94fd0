"""Tempered chains over the topics of the tokens of documents, the proportions integrated out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.annealing.chains import Chains, Product, State, Tuning
from custom_inference.core.engine import Params
from custom_inference.core.registry import engine_for
from ppl_models import Data, Model

#: Numbers in the tables of a block of documents at most.
_MOST = 2**25


@dataclass(frozen=True)
class TokenChains(Chains):
    """Chains over the topics of up to T tokens of N documents.

    length: (N,) tokens of a document. word: (N, T, K) log b_kw of its tokens. alpha: (N, K) concentrations of the
    proportions. constant: (N,) what is added to log p(z, w).
    """

    length: Tensor
    word: Tensor
    alpha: Tensor
    constant: Tensor
    base: Product | None = None

    def __len__(self) -> int:
        return len(self.length)

    @property
    def options(self) -> Tensor:
        return torch.full((self.word.shape[1],), self.word.shape[2])

    @property
    def num_reals(self) -> int:
        return 0

    def rows(self, index: Tensor) -> TokenChains:
        parts = {name: getattr(self, name)[index] for name in ("length", "word", "alpha", "constant")}
        return replace(self, **parts, base=None if self.base is None else self.base.rows(index))

    @property
    def _table(self) -> Tensor:
        """The log-probabilities (N, T, K) of topics that paths begin at: without others, those of a single token."""
        single = torch.log_softmax(self.word + self.alpha.log().unsqueeze(1), -1).nan_to_num(nan=0.0)
        if self.base is None:
            return single
        return torch.where(single > -torch.inf, self.base.table, -torch.inf).log_softmax(-1).nan_to_num(nan=0.0)

    def begin(self, chains: int, generator: torch.Generator) -> State:
        table = self._table
        uniform = torch.rand(chains, *table.shape[:2], 1, generator=generator, dtype=torch.float64)
        ends = table.exp().cumsum(-1)
        place = torch.stack([(one * ends[..., -1:] >= ends[..., :-1]).sum(-1).to(torch.int32) for one in uniform])
        return self._score(place, table)

    def at(self, code: Tensor, generator: torch.Generator) -> State:
        """Draw the topics of the tokens given proportions (M, N, K)."""
        place = []
        for proportion in code:
            weight = (self.word + proportion.log().unsqueeze(1)).nan_to_num(nan=-torch.inf)
            noise = -(-torch.rand(weight.shape, generator=generator, dtype=torch.float64).clamp_min(1e-300).log()).log()
            place.append((weight + noise).argmax(-1).to(torch.int32))
        return self._score(torch.stack(place), self._table)

    def _counts(self, state: State) -> Tensor:
        inside = torch.arange(self.word.shape[1]) < self.length.unsqueeze(-1)
        count = torch.zeros(*state.place.shape[:2], self.alpha.shape[-1], dtype=torch.float64)
        return count.scatter_add_(-1, state.place.long(), inside.double().expand(state.place.shape).contiguous())

    def code(self, state: State) -> Tensor:
        """The expected proportions given the topics of the tokens."""
        found = self._counts(state) + self.alpha
        return found / found.sum(-1, keepdim=True)

    def draw(self, state: State, generator: torch.Generator) -> Tensor:
        found = (self._counts(state) + self.alpha).numpy()
        rng = np.random.default_rng(int(torch.randint(2**62, (1,), generator=generator)))
        drawn = torch.from_numpy(rng.standard_gamma(found)).clamp_min(torch.finfo(torch.float64).tiny)
        drawn = torch.where(torch.from_numpy(found) > 0, drawn, 0.0)
        return drawn / drawn.sum(-1, keepdim=True)

    def move(self, state: State, power: Tensor, tuning: Tuning, generator: torch.Generator) -> tuple[State, Tensor]:
        from custom_inference.families.topics.token_kernels import draw_tokens

        topic, table, size = state.place.transpose(0, 1).contiguous().numpy(), self._table, self.alpha.shape[-1]
        seed = torch.randint(2**62, (1,), generator=generator).numpy().astype(np.uint64)
        room: Any = [np.empty(size), np.empty(size), np.empty((self.word.shape[1], size)), np.empty(size)]
        given = (one.numpy() for one in (self.length, self.word, table, self.alpha, power))
        draw_tokens(topic, *given, *room, seed)
        return self._score(torch.from_numpy(topic).transpose(0, 1).contiguous(), table), torch.ones_like(power)

    def _score(self, place: Tensor, table: Tensor) -> State:
        from custom_inference.families.topics.token_kernels import score_tokens

        topic = place.transpose(0, 1).contiguous().numpy()
        both = np.empty((*topic.shape[:2], 2))
        given = (one.numpy() for one in (self.length, self.word, table, self.alpha))
        score_tokens(topic, *given, np.empty(self.alpha.shape[-1]), both)
        joint, base = torch.from_numpy(both).permute(2, 1, 0).contiguous()
        return State(place, place.new_zeros(*place.shape[:2], 0, dtype=torch.float64), joint + self.constant, base)


def token_chains(model: Model, params: Params, data: Data) -> TokenChains | None:
    """Chains over the topics of tokens; None where words are missing, and of long documents with many topics."""
    if data.mask is not None or not bool((data.dense().x == data.dense().x.round()).all()):
        return None
    engine: Any = engine_for(model, "dirichlet")
    rows = engine.rows(model, data)
    topic = engine.topics(model, dict(params)).double()
    alpha = engine.document_alpha(model, params, rows).double().expand(len(rows), len(topic))
    alpha = alpha if rows.weight is None else alpha * (rows.weight > 0)
    length, (document, word) = rows.lengths.long(), rows.tokens()
    most = max(1, int(length.max()))
    if len(rows) * most * len(topic) > _MOST:
        return None
    place = torch.arange(len(word)) - (length.cumsum(0) - length)[document]
    words = torch.zeros(len(rows), most, len(topic), dtype=torch.float64)
    words[document, place] = topic.T[word].log()
    return TokenChains(length, words, alpha.contiguous(), rows.log_coefficient.double())
