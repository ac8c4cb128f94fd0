"""Sums over the numbers n of a document's tokens of each topic, the proportions integrated out:

    p(words) = sum_n c(n) [Gamma(a) / Gamma(a + L)] prod_k Gamma(alpha_k + n_k) / Gamma(alpha_k),    a = sum_k alpha_k

c(n) sums prod_l b_{z_l w_l} over the topics z with these numbers: (L + 1)^(K - 1) terms, for short texts or few topics.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.admixture import Admixture
from ppl_models.distributions.tokens import Cells
from ppl_models.distributions.topic_means import topic_count_law

#: Numbers that are held at once.
_NUMBERS = 2**22


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
    number, own = share * cells.length[:, None, None], alpha.clamp(min=1e-300).unsqueeze(1)
    prior = torch.where(number > 0.5, torch.lgamma(own + number) - torch.lgamma(own), 0.0).sum(-1)
    mass = alpha.sum(-1)
    constant = cells.sum_by_document(total[:, 0].log()) + torch.lgamma(mass) - torch.lgamma(mass + rows.lengths)
    return chance.log() + prior + constant.unsqueeze(-1), share
