"""The choice, among all rotations of factors, of the one that fits report."""

from __future__ import annotations

import torch
from torch import Tensor


def canonical_turn(weight: Tensor) -> Tensor:
    """The orthogonal matrix (K, K) that makes the rows of weights (K, D) orthogonal, ordered and of one sign."""
    # Singular vectors of W itself: the Gram matrix W W' would square the condition number.
    turn = torch.linalg.svd(weight, full_matrices=False)[0].T
    turned = turn @ weight
    sign = torch.sign(turned.gather(1, turned.abs().argmax(1, keepdim=True)))
    return torch.where(sign == 0, torch.ones_like(sign), sign) * turn
