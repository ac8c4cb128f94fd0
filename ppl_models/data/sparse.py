"""Sparse rows: torch CSR tensors whose rows are made dense a block at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor


def is_sparse(x: Tensor) -> bool:
    return x.layout == torch.sparse_csr


def is_tensor(data: Any) -> bool:
    """Whether something is a torch tensor in one of the sparse layouts."""
    return torch.is_tensor(data) and data.layout != torch.strided


def is_matrix(data: Any) -> bool:
    """Whether something is a sparse matrix, SciPy's or torch's."""
    return scipy.sparse.issparse(data) or is_tensor(data)


def from_scipy(
    matrix: scipy.sparse.spmatrix, *, dtype: torch.dtype, device: torch.device | str | None = None
) -> Tensor:
    """A torch CSR tensor of the same entries; explicit zeros are dropped."""
    csr = scipy.sparse.csr_matrix(matrix, copy=True)
    csr.sum_duplicates()
    csr.eliminate_zeros()
    crow, column, values = (torch.as_tensor(np.asarray(part)) for part in (csr.indptr, csr.indices, csr.data))
    return tensor(crow.long(), column.long(), values.to(dtype), size=tuple(matrix.shape)).to(device=device)  # pyright: ignore[reportArgumentType]


def tensor(crow: Tensor, column: Tensor, values: Tensor, *, size: tuple[int, int], check: bool = False) -> Tensor:
    """``torch.sparse_csr_tensor`` without the notice that the layout is in beta.

    check: raise RuntimeError for parts that are not those of a CSR matrix with sorted columns, each once.
    """
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return torch.sparse_csr_tensor(crow, column, values, size=size, check_invariants=check)


def with_values(x: Tensor, values: Tensor) -> Tensor:
    """A CSR tensor with other values at its stored entries."""
    return tensor(x.crow_indices(), x.col_indices(), values, size=(x.shape[0], x.shape[1]))


def from_dense(x: Tensor) -> Tensor:
    """A matrix in torch's CSR layout."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return x.to_sparse_csr()


def to_scipy(x: Tensor) -> scipy.sparse.csr_matrix:
    """Return the entries as a SciPy matrix, without a copy where the tensor is on the CPU."""
    parts = (part.cpu().numpy() for part in (x.values(), x.col_indices(), x.crow_indices()))
    return scipy.sparse.csr_matrix(tuple(parts), shape=tuple(x.shape))


def scipy_of(x: Any) -> Any:
    """A sparse matrix as SciPy's, in any of torch's sparse layouts too; SciPy knows no half precision."""
    if scipy.sparse.issparse(x):
        return x
    x = x.detach()
    x = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    return to_scipy(from_dense(x.coalesce() if x.layout == torch.sparse_coo else x))


def map_values(x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """A change of every entry that takes 0 to 0, made to the stored ones alone where ``x`` is sparse."""
    if not is_sparse(x):
        return change(x)
    # Entries that became 0 are not stored.
    return from_scipy(to_scipy(with_values(x, change(x.values()))), dtype=x.dtype, device=x.device)


def stored(x: Tensor) -> Tensor:
    """The stored entries (M,) of a CSR tensor; a dense one as it is."""
    return x.values() if is_sparse(x) else x


def is_whole(x: Tensor) -> bool:
    """Whether all entries are whole numbers."""
    values = stored(x)
    return bool((values == values.round()).all())


def select_columns(x: Tensor, index: Tensor | slice) -> Tensor:
    """The chosen columns, sparse or dense as ``x`` is."""
    if not is_sparse(x):
        return x[:, index]
    return from_scipy(to_scipy(x)[:, places(x.shape[1], index)], dtype=x.dtype, device=x.device)


def select_rows(x: Tensor, index: Tensor | slice) -> Tensor:
    """The chosen rows, sparse or dense as ``x`` is."""
    if not is_sparse(x):
        return x[index]
    return from_scipy(to_scipy(x)[places(x.shape[0], index)], dtype=x.dtype, device=x.device)


def places(size: int, index: Tensor | Sequence[int] | slice) -> np.ndarray:
    """The numbers of the places of an axis that an index chooses: a slice, numbers, or True for each that is kept."""
    return np.arange(size)[index if isinstance(index, slice) else torch.as_tensor(index).cpu().numpy()]


def dense_rows(x: Tensor, start: int, stop: int) -> Tensor:
    """Rows ``start`` to ``stop`` as a dense tensor (a view where ``x`` is dense)."""
    if not is_sparse(x):
        return x[start:stop]
    crow = x.crow_indices()[start : stop + 1]
    first, last = int(crow[0]), int(crow[-1])
    row = torch.repeat_interleave(torch.arange(len(crow) - 1, device=x.device), crow.diff())
    dense = torch.zeros(len(crow) - 1, x.shape[1], dtype=x.dtype, device=x.device)
    dense[row, x.col_indices()[first:last]] = x.values()[first:last]
    return dense


def dense(x: Tensor) -> Tensor:
    return x.to_dense() if is_sparse(x) else x


def column_sums(x: Tensor) -> Tensor:
    """(D,)."""
    if not is_sparse(x):
        return x.sum(0)
    return torch.zeros(x.shape[1], dtype=x.dtype, device=x.device).index_add_(0, x.col_indices(), x.values())


def row_sums(x: Tensor) -> Tensor:
    """(N,)."""
    if not is_sparse(x):
        return x.sum(1)
    row, _, values = triplets(x)
    return torch.zeros(x.shape[0], dtype=x.dtype, device=x.device).index_add_(0, row, values)


def triplets(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Row, column and value of every stored entry of a CSR tensor, in row order."""
    row = torch.repeat_interleave(torch.arange(x.shape[0], device=x.device), x.crow_indices().diff())
    return row, x.col_indices(), x.values()


def entries(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """x at the places (row, column) (E,); of a CSR tensor with sorted columns, 0 where nothing is stored."""
    if not is_sparse(x):
        return x[row, column]
    width = x.shape[1]
    stored_row, stored_column, values = triplets(x)
    keys, wanted = stored_row * width + stored_column, row * width + column
    return look_up(keys, wanted, values)


def look_up(keys: Tensor, wanted: Tensor, values: Tensor) -> Tensor:
    """The value of each wanted key among sorted ones, 0 where it is not there."""
    if not len(keys):
        return torch.zeros(wanted.shape, dtype=values.dtype, device=values.device)
    place = torch.searchsorted(keys, wanted.contiguous()).clamp(max=len(keys) - 1)
    return torch.where(keys[place] == wanted, values[place], torch.zeros_like(values[:1]))


def runs(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Row, value, run and place in the run of every entry of x (N, L) other than 0, in row order, (T,) each: runs are
    entries of a row side by side. Of a CSR tensor stored entries, which must not be 0."""
    if is_sparse(x):
        row, column, value = triplets(x)
    else:
        row, column = x.nonzero(as_tuple=True)
        value = x[row, column]
    begins = torch.ones_like(row, dtype=torch.bool)
    begins[1:] = (row.diff() != 0) | (column.diff() != 1)
    run = begins.cumsum(0) - 1
    return row, value, run, torch.arange(len(row), device=x.device) - begins.nonzero().flatten()[run]
