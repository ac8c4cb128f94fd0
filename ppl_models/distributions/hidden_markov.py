"""The words of documents under a hidden Markov model one of whose states draws them from topics, all states summed out.

Sentences are cut off one after the other: step t of all sentences that have one is one matrix product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.data import sparse as _sparse
from ppl_models.distributions.basic import Law, Shape


@dataclass(frozen=True)
class Steps:
    """The T tokens of documents, the first of every sentence before the second of any.

    word, document: (T,). sizes: how many sentences have a first token, a second, ...; sentences are in an order of
    falling lengths, so that those that go on are always the first ones. order: (T,), the place of each token among the
    tokens as they are in the documents.
    """

    word: Tensor
    document: Tensor
    sizes: list[int]
    order: Tensor

    @classmethod
    def of(cls, x: Tensor) -> Self:
        """Read x (N, L), dense or CSR: 1 + the number of the word; 0, for no word, ends a sentence."""
        document, value, sentence, position = _sparse.runs(x)
        length = torch.bincount(sentence)
        rank = torch.argsort(torch.argsort(length, descending=True, stable=True), stable=True)
        order = torch.argsort(position * max(1, len(length)) + rank[sentence])
        sizes = torch.bincount(position).tolist() if len(position) else []
        return cls(value[order].long() - 1, document[order], sizes, order)

    def log_evidence(self, emission: Tensor, transition: Tensor, initial: Tensor) -> Tensor:
        """log p(word | words before it in its sentence) of every token, (..., T): the forward algorithm.

        emission: (..., T, S), of each token in each state; transition: (..., S, S); initial: (..., S).
        """
        tiny, at, parts, last = torch.finfo(emission.dtype).tiny, 0, [], None
        for size in self.sizes:
            before = initial.unsqueeze(-2) if last is None else last[..., :size, :] @ transition
            joint = before * emission[..., at : at + size, :]
            scale = joint.sum(-1, keepdim=True).clamp(min=tiny)
            last, at = joint / scale, at + size
            parts.append(scale.squeeze(-1))
        return torch.cat(parts, -1).log() if parts else emission.new_zeros(*emission.shape[:-1])


class SyntaxTokens(Law):
    """Words (L,) of documents with the states of a hidden Markov chain, of which state 0 draws a word from topics.

        z_1 ~ initial,   z_t | z_t-1 ~ transition[z_t-1]      within each sentence              (Murphy 2012, eq. 27.63)
        y_t | z_t = 0 ~ sum_k pi_k topic_k,   y_t | z_t = c ~ emission_c                        (Murphy 2012, eq. 27.64)

    ``log_prob`` sums all states out (the forward algorithm). Values (B, L), dense or CSR: 1 + the number of the word,
    0 where there is none, which ends a sentence.

    Parameters
    ----------
    proportion: pi (..., B, K). topic: (K, V). emission: (C, V), transition: (S, S), initial: (S,), S = C + 1; None
    where 0 is the only state. layout: (B, L), where a draw has words: True and False.
    """

    own_axes: ClassVar[Mapping[str, int]] = {"proportion": 1, "layout": 1}
    support: ClassVar[Any] = constraints.independent(constraints.nonnegative_integer, 1)

    def __init__(
        self,
        proportion: Tensor,
        topic: Tensor,
        emission: Tensor | None,
        transition: Tensor | None,
        initial: Tensor | None,
        layout: Tensor,
    ):
        self.proportion, self.topic, self.emission, self.layout = proportion, topic, emission, layout
        one = topic.new_ones(1)
        self.transition = one.unsqueeze(0) if transition is None else transition
        self.initial = one if initial is None else initial
        super().__init__(proportion.shape[:-1], layout.shape[-1:], validate_args=False)

    def emissions(self, word: Tensor, document: Tensor) -> Tensor:
        """p(word | state), (..., T, S), of words (T,) of documents (T,)."""
        content = (self.proportion[..., document, :] * self.topic.mT[..., word, :]).sum(-1, keepdim=True)
        if self.emission is None:
            return content
        classes = self.emission.mT[..., word, :]
        return torch.cat([content, classes.expand(*content.shape[:-1], classes.shape[-1])], -1)

    def log_prob(self, value: Tensor) -> Tensor:
        """(..., B); values of more than two axes one after the other."""
        if value.ndim > 2:
            parts = [self.log_prob(one) for one in value.reshape(-1, *value.shape[-2:])]
            return torch.stack(parts).reshape(*value.shape[:-2], *parts[0].shape)
        steps = Steps.of(value)
        each = steps.log_evidence(self.emissions(steps.word, steps.document), self.transition, self.initial)
        return each.new_zeros(*each.shape[:-1], value.shape[0]).index_add(-1, steps.document, each)

    def state_probabilities(self) -> Tensor:
        """p(z_t) of every place (B, L, S), without having seen a word; 0 where the layout has none."""
        state, found = self.initial, []
        for place in range(self.layout.shape[-1]):
            here = self.layout[..., place, None]
            begins = here & ~(self.layout[..., place - 1, None] if place else torch.zeros_like(here))
            state = torch.where(begins, self.initial, state @ self.transition)
            found.append(torch.where(here, state, 0.0))
        return torch.stack(found, -2)

    @property
    def words(self) -> Tensor:
        """p(word | state) of each document, (..., B, S, V)."""
        content = (self.proportion @ self.topic).unsqueeze(-2)
        if self.emission is None:
            return content
        return torch.cat([content, self.emission.expand(*content.shape[:-2], *self.emission.shape)], -2)

    def _moment(self, power: int) -> Tensor:
        number = torch.arange(1, self.topic.shape[-1] + 1).to(self.topic) ** power
        return (self.state_probabilities() * (self.words @ number).unsqueeze(-2)).sum(-1)

    @property
    def mean(self) -> Tensor:
        """The prior mean of the numbers of the words, (B, L)."""
        return self._moment(1)

    @property
    def variance(self) -> Tensor:
        """The prior variance of the numbers of the words, (B, L)."""
        return self._moment(2) - self._moment(1).square()

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with torch.no_grad():
            batch = self._extended_shape(sample_shape)[:-1]
            layout = self.layout.expand(*batch, -1).reshape(-1, self.layout.shape[-1])
            table = self.words.expand(*batch, -1, -1).reshape(len(layout), len(self.initial), -1)
            found, state = torch.zeros(layout.shape).to(self.topic), None
            for place in range(layout.shape[1]):
                fresh = self.initial.expand(len(layout), -1)
                if state is not None:
                    fresh = torch.where(layout[:, place - 1, None], self.transition[state], fresh)
                state = torch.multinomial(fresh, 1).squeeze(-1)
                word = torch.multinomial(table[torch.arange(len(layout)), state], 1).squeeze(-1)
                found[:, place] = torch.where(layout[:, place], word + 1, 0).to(found)
            return found.reshape(*batch, -1)
