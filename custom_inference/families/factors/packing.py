"""Symmetric matrices by their upper triangles: half the work of matrix products with many of them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


class _Packing(NamedTuple):
    """How symmetric matrices (K, K) are packed: rows and columns of the upper triangle, where it lies in the flat
    matrix, where each flat entry lies in it, and what its entries count in half the inner product of two matrices."""

    first: Tensor
    second: Tensor
    flat: Tensor
    back: Tensor
    half: Tensor


@lru_cache(maxsize=64)
def _packing(size: int, device: torch.device) -> _Packing:
    first, second = torch.triu_indices(size, size, device=device)
    back = torch.empty(size, size, dtype=torch.long, device=device)
    back[first, second] = back[second, first] = torch.arange(len(first), device=device)
    half = torch.where(first == second, 0.5, 1.0)
    return _Packing(first, second, first * size + second, back.flatten(), half)


def products(matrix: Tensor) -> Tensor:
    """Compute the products of the entries of every row of (M, K), each pair once: (M, K (K + 1) / 2)."""
    places = _packing(matrix.shape[1], matrix.device)
    return matrix.index_select(1, places.first).mul_(matrix.index_select(1, places.second))


def pack_symmetric(matrices: Tensor) -> Tensor:
    """Return the upper triangles of symmetric matrices (M, K, K), in the order of :func:`products`."""
    size = matrices.shape[-1]
    return matrices.reshape(-1, size * size).index_select(1, _packing(size, matrices.device).flat)


def unpack_symmetric(values: Tensor, size: int) -> Tensor:
    """Return the symmetric matrices (M, K, K) with these upper triangles."""
    return values.index_select(1, _packing(size, values.device).back).view(-1, size, size)


def halve_products(values: Tensor, size: int) -> Tensor:
    """Scale, in place, so that a product with packed matrices is half the inner product of the matrices (K, K)."""
    return values.mul_(_packing(size, values.device).half.to(values))
