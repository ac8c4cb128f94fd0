"""Products of two thin matrices at the stored entries of a sparse one: what sparse likelihoods of mixtures cost."""

from __future__ import annotations

from typing import Any

import scipy.sparse
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ppl_models.data import sparse as _sparse

#: Entries a block, where there is no fused kernel: a block of both factors stays in cache.
_BLOCK = 4096


def entry_products(left: Tensor, right: Tensor, at: Tensor) -> Tensor:
    """sum_k left_ik right_kj at the stored entries (i, j) of ``at`` (N, V) in CSR layout: (..., number of entries).

    left: (..., N, K), or (..., 1, K) where all rows are equal; right: (K, V). For plain matrices neither the products'
    K terms nor their gradient's are ever held at once: (N, V) and (entries, K) numbers are not allocated.
    """
    if left.ndim > 2 or right.ndim > 2 or left.shape[0] != at.shape[0]:
        row, column, _ = _sparse.triplets(at)
        rows = left.expand(*left.shape[:-2], at.shape[0], left.shape[-1]).index_select(-2, row)
        return (rows * right.mT[..., column, :]).sum(-1)
    return _EntryProducts.apply(left, right, at.crow_indices(), at.col_indices())


def sparse_product(sparse: Tensor, dense: Tensor) -> Tensor:
    """``sparse`` (N, V), in CSR layout and fixed, times ``dense`` (V, H): (N, H)."""
    return _SparseProduct.apply(dense, sparse.crow_indices(), sparse.col_indices(), sparse.values())


class _SparseProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: Tensor, crow: Tensor, column: Tensor, values: Tensor) -> Tensor:
        ctx.save_for_backward(crow, column, values)
        ctx.num_columns = dense.shape[0]
        return _sparse.tensor(crow, column, values, size=(len(crow) - 1, dense.shape[0])) @ dense.contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        crow, column, values = ctx.saved_tensors
        sparse = _sparse.tensor(crow, column, values, size=(len(crow) - 1, ctx.num_columns))
        return _transposed_product(sparse, gradient), None, None, None


class _EntryProducts(torch.autograd.Function):
    """With weights w_e = dL/dp_e in the pattern of the entries, W: dL/dleft = W right', dL/dright = left' W."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, crow: Tensor, column: Tensor) -> Tensor:
        ctx.save_for_backward(left, right, crow, column)
        size = (left.shape[0], right.shape[1])
        pattern = _sparse.tensor(crow, column, left.new_zeros(len(column)), size=size)
        try:
            return torch.sparse.sampled_addmm(pattern, left.contiguous(), right.contiguous(), beta=0.0).values()
        except RuntimeError:  # a build of torch without the kernel
            return _in_blocks(left, right, pattern)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        left, right, crow, column = ctx.saved_tensors
        size, needed = (left.shape[0], right.shape[1]), ctx.needs_input_grad
        sparse = _sparse.tensor(crow, column, weight.contiguous(), size=size)
        grad_left = sparse @ right.T.contiguous() if needed[0] else None
        grad_right = _transposed_product(sparse, left).T if needed[1] else None
        return grad_left, grad_right, None, None


def _in_blocks(left: Tensor, right: Tensor, at: Tensor) -> Tensor:
    row, column, _ = _sparse.triplets(at)
    columns = right.T.contiguous()
    blocks = zip(row.split(_BLOCK), column.split(_BLOCK), strict=True)
    return torch.cat([(left.index_select(0, i) * columns.index_select(0, j)).sum(-1) for i, j in blocks])


def _transposed_product(sparse: Tensor, left: Tensor) -> Tensor:
    """sparse' left, (V, K)."""
    if sparse.device.type != "cpu":
        return sparse.mT @ left
    # Scipy's kernel reads the rows as they are stored; torch's is several times slower here.
    parts = (part.numpy() for part in (sparse.values(), sparse.col_indices(), sparse.crow_indices()))
    matrix = scipy.sparse.csr_matrix(tuple(parts), shape=tuple(sparse.shape))
    return torch.from_numpy(matrix.T @ left.detach().contiguous().numpy())
