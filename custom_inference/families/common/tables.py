"""Tables (K, R, C) of responses with C_r <= C categories each: side by side (K, C_1 + ... + C_R), and back.

Side by side there is nothing that a response does not have; in a table that is 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from custom_inference.families.conjugate.dirichlet import Groups
from ppl_models.distributions.padded import present_of


def groups_of(model: Any) -> Groups:
    """Return the responses as groups of categories that lie side by side."""
    return model.categories if model.is_padded else model.num_features


def side_by_side(table: Tensor, categories: tuple[int, ...]) -> Tensor:
    """Reshape (..., R, C) to (..., F), without what the responses do not have."""
    if len(set(categories)) == 1:
        return table.flatten(-2)
    return table[..., _present(table, categories)]


def in_tables(flat: Tensor, categories: tuple[int, ...]) -> Tensor:
    """Reshape (..., F) to (..., R, C), with 0 for what the responses do not have."""
    if len(set(categories)) == 1:
        return flat.unflatten(-1, (len(categories), -1))
    found = flat.new_zeros(*flat.shape[:-1], len(categories), max(categories))
    found[..., _present(flat, categories)] = flat
    return found


def without_padding(flat: Tensor) -> Tensor:
    """Return parameters (K, F) of posteriors that are positive, without those that are 0: of categories that are not
    there."""
    there = (flat > 0).any(0)
    return flat if bool(there.all()) else flat[:, there]


def _present(like: Tensor, categories: tuple[int, ...]) -> Tensor:
    return present_of(torch.tensor(categories, device=like.device), max(categories))
