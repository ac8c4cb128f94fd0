"""Sums over the numbers n of a document's tokens of each topic, the proportions integrated out:

    p(words) = sum_n c(n) [Gamma(a) / Gamma(a + L)] prod_k Gamma(alpha_k + n_k) / Gamma(alpha_k),    a = sum_k alpha_k

c(n) sums prod_l b_{z_l w_l} over the topics z with these numbers: (L + 1)^(K - 1) terms, for short texts or few topics.
Of longer ones n is drawn by Gibbs sampling.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.annealing.chains import draw_seed
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.admixture import Admixture
from ppl_models.distributions.tokens import Cells
from ppl_models.distributions.topic_means import topic_count_law

#: Sums have about so many terms a document at most; numbers that are held at once.
TERMS, _NUMBERS = 2e4, 2**22
#: Sweeps before the first draw of a document's topics, and before those at further globals; draws at the only globals,
#: and at each of several.
_BEFORE, _AGAIN, _ALONE, _EACH = 20, 3, 200, 3

#: Documents (n,), the weights (n, G) of what their tokens' topics may be, and the shares (n, G, K) of the topics then.
Shares = tuple[Tensor, Tensor, Tensor]


class TopicShares:
    """What the topics of the tokens of documents may be given the words, at one value of the globals or several in
    turn, each going on from the topics that were drawn at the one before. seed: of what is drawn, the same for each
    document, so that its draws are the same whatever stands beside it."""

    def __init__(self, several: bool, seed: int):
        self._draws, self._generator = _EACH if several else _ALONE, torch.Generator().manual_seed(seed)
        self._topic: Any = None

    def infer(self, said: Admixture) -> list[Shares]:
        """Return the terms of sums, or draws."""
        parts, short = [], is_short(said, TERMS)
        for places in divide(said, short.nonzero().flatten()):
            weight, share = sum_numbers(said, places)
            parts.append((places, weight.softmax(1), share))
        long = (~short).nonzero().flatten()
        return parts + self._draw(said, long) if len(long) else parts

    def _draw(self, said: Admixture, places: Tensor) -> list[Shares]:
        from custom_inference.families.topics.token_kernels import draw_numbers

        seed = draw_seed(self._generator)
        size, tokens, found = said.alpha.shape[1], said.rows.lengths[places].long(), []
        before = _AGAIN if self._topic is not None else _BEFORE
        if self._topic is None:
            self._topic = np.full(int(tokens.sum()), -1, np.int32)
        ends, draws = tokens.cumsum(0), self._draws
        block = (tokens.clamp(min=draws) * size).cumsum(0) // _NUMBERS
        for some in (block[:, None] == block.unique()).T:
            rows, _, word, alpha = read_words(said, places[some])
            first, last = int((ends - tokens)[some][0]), int(ends[some][-1])
            number, length = np.zeros((draws, len(rows), size)), tokens[some].numpy()
            given: Any = self._topic[first:last], length, word.contiguous().numpy(), alpha.contiguous().numpy()
            draw_numbers(*given, before, seed, number)
            share = torch.as_tensor(number).transpose(0, 1) / rows.lengths[:, None, None]
            found.append((places[some], share.new_full(share.shape[:2], 1 / draws), share))
        return found


def is_short(said: Admixture, terms: float) -> Tensor:
    """Tell of every document, (N,), whether its sum takes about so many products at most."""
    length, size = said.rows.lengths, said.alpha.shape[1]
    return length * size * (length + 1) ** (size - 1) <= terms


def divide(said: Admixture, places: Tensor) -> Iterator[Tensor]:
    """Divide documents into groups of about the same length, whose sums are held at once."""
    length, size = said.rows.lengths, said.alpha.shape[1]
    places = places[length[places].argsort(stable=True)]
    while len(places):
        most = max(1, int(_NUMBERS / (size * (float(length[places[-1]]) + 1) ** (size - 1))))
        yield places[-most:]
        places = places[:-most]


def read_words(said: Admixture, places: Tensor) -> tuple[DocumentRows, Tensor, Tensor, Tensor]:
    """Return some documents, of their tokens the places among them and b_kw (P, K), and the concentrations."""
    rows = said.rows.select(places)
    document, word = rows.tokens()
    return rows, document, said.topic.mT[said.group[places][document], word], said.alpha[places]


def sum_numbers(said: Admixture, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logarithms (n, G) of the terms of documents, and the shares (n, G, K) of the topics in each."""
    rows, document, word, alpha = read_words(said, places)
    cells = Cells(document, document, torch.ones(len(document)).to(word), rows.lengths.clamp(min=1))
    total = word.sum(-1, keepdim=True).clamp(min=torch.finfo(word.dtype).tiny)
    chance, share = topic_count_law(word / total, cells, torch.eye(word.shape[1]).to(word))
    may = (chance > 0).any(0)  # numbers that add up to more than there are tokens are among them
    chance, share = chance[:, may], share[:, may].clamp(min=0)
    number, own = share * cells.length[:, None, None], alpha.clamp(min=1e-300).unsqueeze(1)
    prior = torch.where(number > 0.5, torch.lgamma(own + number) - torch.lgamma(own), 0.0).sum(-1)
    mass = alpha.sum(-1)
    constant = cells.sum_by_document(total[:, 0].log()) + torch.lgamma(mass) - torch.lgamma(mass + rows.lengths)
    return chance.log() + prior + constant.unsqueeze(-1), share
