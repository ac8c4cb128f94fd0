"""Values that go with rows (covariates, responses, times), matched by the rows' labels where both have some."""

from __future__ import annotations

from typing import Any

import scipy.sparse
import torch
from torch import Tensor

from ppl_models.core.errors import DataError, about
from ppl_models.data.containers import as_tensor, labels_of, unpack
from ppl_models.data.labels import places_of
from ppl_models.data.lazy import is_pandas
from ppl_models.data.matrix import Data


def beside(given: Any, data: Data, *, axis: str = "row", dtype: torch.dtype | None = None) -> Tensor:
    """Numbers (N, ...) beside the rows of the data (or along another ``axis`` that has labels), in their type.

    A frame, series or labelled array whose rows have labels, beside data whose rows have some, is put in their order;
    everything else is in the order of the data.

    Raises DataError for labels that the data do not have, and for rows of the data that nothing is given of.
    """
    values, labels = unpack(given.toarray() if scipy.sparse.issparse(given) else given)
    own = labels_of(given.index) if is_pandas(given, "Series") else labels.get("row")
    names = data.coords.get(axis)
    if own is not None and names is not None and own != names:
        places_of(own, names, len(names), axis)
        lacking = [name for name in names if name not in set(own)]
        if lacking:
            found = f"nothing is given of {len(lacking)} of {len(names)} labels (the first: {lacking[0]!r})"
            raise DataError(found, axis=axis, expected="a row for each of the data's")
        values = values[places_of(names, own, len(own), axis)]
    return as_tensor(values, dtype or data.x.dtype).to(data.x.device)


def covariates_of(known: Any, data: Data, size: int) -> Tensor:
    """Covariates as (N, ``size``), in the data's type; a single one may be (N,).

    Raises DataError for another shape and numbers that are not finite.
    """
    with about("covariates"):
        given = beside(known.to_frame() if is_pandas(known, "Series") else known, data)
        given = given[:, None] if given.ndim == 1 and size == 1 else given
        if given.shape != (len(data), size):
            raise DataError(f"shape {tuple(given.shape)}", expected=f"({len(data)}, {size}), one row for each of x")
        wrong = (~torch.isfinite(given)).nonzero()
        if len(wrong):
            row, column = wrong[0].tolist()
            found = f"{len(wrong)} values are not finite (the first: row {row}, column {column})"
            raise DataError(found, expected="finite numbers; fill in missing covariates first")
    return given
