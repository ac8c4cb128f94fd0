"""Documents the way the steps of topic models read them: the distinct words of each, in padded blocks.

Only words that occur carry topics. A block holds documents with similar numbers of distinct words, so that the work on
it is a few batched matrix products: word (B, M), count (B, M), padded with word 0 and count 0.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_inference.families.rows.base import Rows
from ppl_models import Data
from ppl_models.data import sparse as _sparse
from ppl_models.distributions.tokens import log_coefficient

#: (document, word) places of a block: its (B, M, K) arrays should stay in cache.
_BLOCK_PLACES = 2**13
#: Stored cells whose products with shares are made at a time.
_CELLS = 2**16
#: Samplers draw every token, at a few million a second: no default does so for more of them than this, unless they are
#: texts, where a word occurs a few times in a document.
_TOKENS_DRAWN, _TOKENS_A_CELL = 200_000, 16


class DocumentBlock(NamedTuple):
    """documents (B,): which; word, count (B, M): their distinct words, and how often each occurs; cells: where the
    places that are no padding lie among the stored entries of the CSR matrix, (B, M), -1 for padding."""

    documents: Tensor
    word: Tensor
    count: Tensor
    cells: Tensor

    def of_words(self, table: Tensor) -> Tensor:
        """Select the rows of a table (V, K) that belong to the block's words, (B, M, K)."""
        return table.index_select(0, self.word.flatten()).view(*self.word.shape, -1)


@dataclass(frozen=True)
class DocumentRows(Rows):
    """counts (N, V) in torch's CSR layout, without what was masked. coefficient: whether log p(n) includes the
    multinomial coefficient. weight (N, K): what scores of words are multiplied by in a document; None: 1."""

    counts: Tensor
    coefficient: bool = False
    weight: Tensor | None = None

    @classmethod
    def of(cls, data: Data, *, coefficient: bool = False) -> DocumentRows:
        x = data.x if data.mask is None else data.x.masked_fill(~data.mask, 0.0)
        return cls(x if _sparse.is_sparse(x) else _sparse.from_dense(x), coefficient)

    def with_weights(self, weight: Tensor) -> DocumentRows:
        """Return the documents with weights (N, K); what was computed from the counts is kept."""
        made = DocumentRows(self.counts, self.coefficient, weight)
        vars(made)["lengths"] = self.lengths
        if self.counts.device.type != "cpu":
            vars(made).update(blocks=self.blocks, _by_word=self._by_word)
        return made

    @cached_property
    def lengths(self) -> Tensor:
        """Tokens of each document, (N,)."""
        return _sparse.row_sums(self.counts)

    def tokens(self) -> tuple[Tensor, Tensor]:
        """Return document and word (T,) of every token, document by document and in each in the order of the words."""
        row, column, values = _sparse.triplets(self.counts)
        repeats = values.long()
        return row.repeat_interleave(repeats), column.repeat_interleave(repeats)

    def draw_tokens(self, number: Tensor, random: NDArray[np.float64]) -> Tensor:
        """Draw ``number`` tokens (N,) of each document without replacement, those with the smallest ``random`` numbers
        (T,); return how many fall into each cell, (nnz,)."""
        values, document = self.counts.values(), self.tokens()[0].cpu()
        cell = torch.arange(len(values)).repeat_interleave(values.long().cpu())
        order = torch.from_numpy(np.lexsort((random, document.numpy())))
        length = torch.bincount(document, minlength=len(self))
        rank = torch.arange(len(cell)) - (length.cumsum(0) - length)[document]
        return torch.bincount(cell[order[rank < number[document]]], minlength=len(values)).to(values)

    @cached_property
    def log_coefficient(self) -> Tensor:
        """log(L! / prod_v n_v!), (N,); 0 where the tokens are taken in their order."""
        return log_coefficient(self.counts) if self.coefficient else torch.zeros_like(self.lengths)

    def sum_by_word(self, cell: Tensor, local: Tensor) -> Tensor:
        """Compute sum_i cell_iv local_ik, (V, K), of a value a stored cell (nnz,) and values a document (N, K)."""
        crow, column, (size, words) = self.counts.crow_indices(), self.counts.col_indices(), self.counts.shape
        if cell.device.type == "cpu":
            # The transpose of a CSR matrix is a CSC matrix with the same arrays.
            parts = (cell.numpy(), column.numpy(), crow.numpy())
            return torch.from_numpy(scipy.sparse.csc_matrix(parts, shape=(words, size)) @ local.numpy())
        order, first, document = self._by_word
        return _sparse.tensor(first, document, cell[order], size=(words, size)) @ local

    def sum_shares(self, share: Tensor) -> Tensor:
        """Compute sum_i n_iv c_ivk, (V, K), of shares of the tokens of every stored cell, (nnz, K)."""
        return self._sum_cells(share, self.counts.col_indices(), self.counts.shape[1])

    def sum_by_document(self, share: Tensor) -> Tensor:
        """Compute sum_v n_iv c_ivk, (N, K), of shares of the tokens of every stored cell, (nnz, K)."""
        return self._sum_cells(share, _sparse.triplets(self.counts)[0], len(self))

    def _sum_cells(self, share: Tensor, place: Tensor, size: int) -> Tensor:
        """Add n_iv c_ivk up by where each stored cell belongs, (nnz,); some cells at a time, as all products take the
        memory of all shares."""
        count = self.counts.values()
        found = count.new_zeros(size, share.shape[1], dtype=torch.promote_types(share.dtype, count.dtype))
        for part in zip(*(one.split(_CELLS) for one in (share, place, count)), strict=True):
            found.index_add_(0, part[1], part[0] * part[2].unsqueeze(-1))
        return found

    def responsibilities(self, local: Tensor, word: Tensor) -> Tensor:
        """Compute c_ivk proportional to local_ik word_vk of every stored cell, (nnz, K), from (N, K) and (V, K)."""
        row, column, _ = _sparse.triplets(self.counts)
        joint = word.index_select(0, column) * local.index_select(0, row)
        return joint / joint.sum(-1, keepdim=True).clamp(min=torch.finfo(joint.dtype).tiny)

    @cached_property
    def _by_word(self) -> tuple[Tensor, Tensor, Tensor]:
        """The stored cells word by word: their order, where each word's begin (V + 1,), their documents."""
        document, column, _ = _sparse.triplets(self.counts)
        order = torch.argsort(column, stable=True)
        ends = torch.bincount(column, minlength=self.counts.shape[1]).cumsum(0)
        return order, torch.cat([ends.new_zeros(1), ends]), document[order]

    @cached_property
    def blocks(self) -> list[DocumentBlock]:
        """Every document once, shortest first."""
        crow = self.counts.crow_indices()
        distinct = crow.diff()
        order = torch.argsort(distinct, stable=True)
        # Padding, cell -1, reads the last place of these: word 0, count 0.
        padded = [torch.cat([part, part.new_zeros(1)]) for part in (self.counts.col_indices(), self.counts.values())]
        found, at, widths = [], 0, distinct[order].clamp(min=1).tolist()
        while at < len(widths):
            # The last of a block is its longest: take as many as fit at that width, which more can only raise.
            first = at
            size = bisect_right(
                range(first + 1, len(widths)), _BLOCK_PLACES, key=lambda last: (last - first + 1) * widths[last]
            )
            at += 1 + size
            documents = order[first:at]
            cells = crow[documents].unsqueeze(1) + torch.arange(widths[at - 1], device=crow.device)
            cells = torch.where(cells < crow[documents + 1].unsqueeze(1), cells, -1)
            word, count = (part[cells] for part in padded)
            found.append(DocumentBlock(documents, word, count, cells))
        return found


@dataclass(frozen=True)
class ByCells:
    """The rule of records whose default samples tokens: an engine that goes by stored cells where these hold many.

    engine: its name.
    """

    engine: str

    def __call__(self, data: Data) -> tuple[str | None, str]:
        if data.x is None:
            return None, ""
        rows = DocumentRows.of(data)
        tokens, cells = float(rows.lengths.sum()), rows.counts.values().numel()
        if tokens <= max(_TOKENS_DRAWN, _TOKENS_A_CELL * cells):
            return None, ""
        return self.engine, f"since {tokens:.3g} tokens in {cells} cells are too many to draw one by one"
