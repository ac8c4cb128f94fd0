"""What rows are explained by: matrices of covariates, one row for each of the data's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ppl_models.core.errors import DataError, about
from ppl_models.data.containers import as_tensor, unpacked
from ppl_models.data.matrix import Data


def covariates_of(known: Any, data: Data, size: int) -> Tensor:
    """Covariates as (N, ``size``), in the data's type. Raises DataError for another shape and numbers not finite."""
    with about("covariates"):
        given = as_tensor(unpacked(known)[0], data.x.dtype).to(data.x.device)
        if given.shape != (len(data), size):
            raise DataError(f"shape {tuple(given.shape)}", expected=f"({len(data)}, {size}), one row for each of x")
        wrong = (~torch.isfinite(given)).nonzero()
        if len(wrong):
            row, column = wrong[0].tolist()
            found = f"{len(wrong)} values are not finite (the first: row {row}, column {column})"
            raise DataError(found, expected="finite numbers; fill in missing covariates first")
    return given
