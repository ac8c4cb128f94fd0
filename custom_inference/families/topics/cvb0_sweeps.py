"""Passes of CVB0 over documents: the shares of every word's tokens, and the counts that they add up to.

On a processor compiled loops refresh word by word (``_cvb0_kernel``); elsewhere whole blocks of documents are refreshed
at once, by the counts that the blocks before them left. Both have the same fixed points.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_inference.families.common.documents import Block, DocumentRows


class Refreshed(NamedTuple):
    """share (nnz, K); counts (V, K): N_kv; bound (N,): sum_v n_dv log p(v | all other tokens)."""

    share: Tensor
    counts: Tensor
    bound: Tensor


def counted(rows: DocumentRows, share: Tensor) -> Tensor:
    """N_kv = sum_d n_dv share_dvk, (V, K)."""
    counts = share.new_zeros(rows.counts.shape[1], share.shape[1])
    return counts.index_add_(0, rows.counts.col_indices(), share * rows.counts.values().unsqueeze(-1))


def refresh(
    rows: DocumentRows, share: Tensor, counts: Tensor, alpha: Tensor, gamma: Tensor, temperature: float = 1.0
) -> Refreshed:
    """One pass. share (nnz, K) and the ``counts`` (V, K) it adds up to are left as they are; alpha (K,); gamma (1,) or
    (V,)."""
    share, table = share.clone(memory_format=torch.contiguous_format), (counts + gamma.unsqueeze(-1)).contiguous()
    bound = torch.zeros_like(rows.lengths)
    run = _kernel().refresh_documents if share.device.type == "cpu" else refresh_blocks
    return Refreshed(share, run(rows, share, alpha, table, bound, temperature), bound)


def start(rows: DocumentRows, topic: Tensor, alpha: Tensor, *, sweeps: int) -> Tensor:
    """Shares (nnz, K) from topics (K, V) alone: the fixed point at these, nearly."""
    run = _kernel().start_documents if topic.device.type == "cpu" else start_blocks
    return run(rows, topic.T.contiguous(), alpha, sweeps)


def _kernel() -> Any:
    # Not at the top: numba takes a second to import, and most of the suite does without.
    from custom_inference.families.topics import cvb0_kernel as _cvb0_kernel

    return _cvb0_kernel


# ----- block by block -------------------------------------------------------------------------------------------------


def refresh_blocks(
    rows: DocumentRows, share: Tensor, alpha: Tensor, table: Tensor, bound: Tensor, temperature: float
) -> Tensor:
    """As :func:`custom_inference.families.topics.cvb0_kernel.refresh_documents`, on any device."""
    for block in rows.blocks:
        inside = block.cells >= 0
        old, word = _own(share, block), block.word.flatten()
        document = block.count.unsqueeze(1) @ old + alpha
        seen = (table.index_select(0, word).view_as(old) - old).clamp(min=0) / (table.sum(0) - old)
        new, mass = _normalised((document - old) * (seen if temperature == 1.0 else seen**temperature), inside)
        each = torch.where(inside, block.count * (mass / (document.sum(-1) - 1)).log(), 0.0)
        bound[block.documents] += each.sum(-1)
        table.index_add_(0, word, ((new - old) * block.count.unsqueeze(-1)).flatten(0, 1))
        share[block.cells[inside]] = new[inside]
    return counted(rows, share)


def start_blocks(rows: DocumentRows, topic: Tensor, alpha: Tensor, sweeps: int) -> Tensor:
    """As :func:`custom_inference.families.topics.cvb0_kernel.start_documents`, on any device."""
    share = topic.new_empty(rows.counts.values().numel(), topic.shape[1])
    for block in rows.blocks:
        inside = block.cells >= 0
        seen = topic.index_select(0, block.word.flatten()).view(*block.word.shape, -1)
        new = _normalised(seen, inside)[0]
        for _ in range(sweeps):
            new = _normalised((block.count.unsqueeze(1) @ new + alpha - new) * seen, inside)[0]
        share[block.cells[inside]] = new[inside]
    return share


def _own(share: Tensor, block: Block) -> Tensor:
    """The shares of the block's places, (B, M, K), 0 for padding."""
    if not len(share):
        return share.new_zeros(*block.word.shape, share.shape[1])
    own = share.index_select(0, block.cells.clamp(min=0).flatten()).view(*block.word.shape, -1)
    return own * (block.cells >= 0).unsqueeze(-1)


def _normalised(weight: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Shares, 0 for padding, and the sums that were divided by."""
    weight = weight.clamp(min=0)
    mass = weight.sum(-1).clamp(min=1e-30)
    equal = torch.full_like(weight, 1 / weight.shape[-1])
    share = torch.where((mass > 1e-30).unsqueeze(-1), weight / mass.unsqueeze(-1), equal)
    return share * inside.unsqueeze(-1), mass
