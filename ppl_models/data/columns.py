"""What is legal for one row but cannot be learned from: columns without an entry, columns that never vary."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ppl_models.core.errors import DataError, warn_of_data
from ppl_models.data import sparse
from ppl_models.data.matrix import Data


def check_for_fitting(data: Data) -> None:
    """What is legal for one row but cannot be learned from: raises on empty columns, warns of constant ones."""
    check_columns(data, constant=(0, 1))
    empty_rows = int((sparse.row_sums(data.as_columns.observed_x) == 0).sum())
    if empty_rows == len(data):
        raise DataError("every observed entry is 0", expected="at least one 1 to learn from")
    if 2 * empty_rows > len(data):
        warn_of_data(f"{empty_rows} of {len(data)} rows are all zero; they say little but how rare ones are")


def check_columns(data: Data, *, constant: Iterable[int] = ()) -> None:
    """Raises on columns without any observed entry; warns of those that are always one of the values ``constant``."""
    names, axis = data.feature_names, "feature" if data.x.ndim == 2 else None
    data = data.as_columns
    empty = [] if data.mask is None else (~data.mask).all(0).nonzero().flatten().tolist()
    if empty:
        problem = f"{len(empty)} column(s) without any observed entry (the first: {names[empty[0]]!r})"
        raise DataError(problem, axis=axis, expected="at least one observed entry; drop the column")
    for value in constant if len(data) > 1 else ():
        columns = _always(data, value).nonzero().flatten().tolist()
        if columns:
            warn_of_data(
                f"{len(columns)} of {data.num_features} columns are always {value} (the first: {names[columns[0]]!r}); "
                "they carry no information about the latent variables"
            )


def _always(data: Data, value: int) -> Tensor:
    """Whether every observed entry of each column is ``value``, (D,)."""
    if data.is_sparse:
        stored = torch.zeros(data.num_features, dtype=torch.long, device=data.x.device)
        stored = stored.index_add(0, data.x.col_indices(), (data.x.values() == value).long())
        others = torch.zeros_like(stored).index_add(0, data.x.col_indices(), (data.x.values() != value).long())
        return others == 0 if value == 0 else stored == len(data)
    differs = data.x != value
    return ~(differs if data.mask is None else differs & data.mask).any(0)
