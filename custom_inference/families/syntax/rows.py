"""Documents as sentences the way the compiled passes read them, and one pass over them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from custom_inference.families.rows.base import Rows
from ppl_models import Data
from ppl_models.data import sparse as _sparse

Array = NDArray[np.float64]


class SyntaxTables(NamedTuple):
    """What a pass goes by, float64: topic (V, K), classes (V, S), transition (S, S), initial (S,). Column 0 of the
    classes counts only where there are no topics."""

    topic: Array
    classes: Array
    transition: Array
    initial: Array


class SyntaxExpectations(NamedTuple):
    """topic (V, K), classes (V, S), transition (S, S), initial (S,): expected numbers; usage (N, K): of the topics in
    each document; log_evidence (N,): of the sentences at these tables."""

    topic: Array
    classes: Array
    transition: Array
    initial: Array
    usage: Array
    log_evidence: Array


@dataclass(frozen=True)
class SentenceRows(Rows):
    """x (N, L): 1 + the number of the word at each place, 0 where there is none, dense or CSR. num_words: V.

    Passes are made on the processor, whatever device x is on.
    """

    x: Tensor
    num_words: int

    @classmethod
    def of(cls, data: Data, num_words: int) -> Self:
        return cls(data.x if data.mask is None else data.observed_x, num_words)

    @cached_property
    def like(self) -> Tensor:
        """A tensor of the data's dtype and device."""
        return self.x.values()[:0] if _sparse.is_sparse(self.x) else self.x[:0]

    @cached_property
    def words(self) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """word (T,), start (M + 1,) of every sentence among the tokens, document (M,) of every sentence."""
        document, value, _, place = (part.cpu().numpy() for part in _sparse.runs(self.x))
        begins = np.flatnonzero(place == 0)
        return (value - 1).astype(np.int32), np.append(begins, len(value)), document[begins]

    @property
    def document(self) -> NDArray[np.int64]:
        """The document of every token, (T,)."""
        return np.repeat(self.words[2], np.diff(self.words[1]))

    def compute_expectations(
        self, tables: SyntaxTables, share: Array, *, active: Any = None, state: Array | None = None
    ) -> SyntaxExpectations:
        """Compute the expectations at these tables, the content of document i being sum_k share_ik topic_vk.

        active: (N,) bool, the documents that are looked at. state (T, S): takes the states' probabilities.
        """
        from custom_inference.families.syntax.kernels import expected_counts

        size, states = tables.topic.shape, len(tables.initial)
        shapes = size, (size[0], states), (states, states), (states,), (len(self), size[1]), (len(self),)
        found = SyntaxExpectations(*(np.zeros(shape) for shape in shapes))
        active = np.ones(len(self), bool) if active is None else active
        state = np.zeros((0, states)) if state is None else state
        expected_counts(self.words, (share, *tables), active, tuple(found), state)
        found.topic[:] *= tables.topic
        found.transition[:] *= tables.transition
        return found


def array(value: Tensor) -> Array:
    """A tensor as the passes read it."""
    return np.ascontiguousarray(value.detach().cpu().double().numpy())
