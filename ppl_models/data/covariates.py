"""Values that go with rows (covariates, responses, times), matched by the rows' labels where both have some."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ppl_models.core.errors import DataError, about
from ppl_models.data import sparse
from ppl_models.data.adapt import adapt
from ppl_models.data.containers import as_tensor, axis_labels, unpack
from ppl_models.data.held import MatrixLike, Source, labels_of
from ppl_models.data.labels import order_beside
from ppl_models.data.lazy import is_pandas
from ppl_models.data.matrix import Data


def read_before(data: Source | None) -> Data | None:
    """Return data that were read before; None where they are in any other container."""
    return data if isinstance(data, Data) else None


def given_or_own(given: MatrixLike | None, data: Source, site: str) -> Any:
    """Return what is given of a site or, where nothing is, what the data carry of it."""
    own = read_before(data)
    return own.others.get(site) if given is None and own is not None else given


def labels_held(data: Source, axis: str) -> list[Any] | None:
    """Return the labels of an axis that data carry which were read before; None where there are none."""
    own = read_before(data)
    return None if own is None else own.coords.get(axis)


def alone(data: Source) -> Source:
    """Return data without what stands beside their rows."""
    own = read_before(data)
    return data if own is None else replace(own, others={}, between=())


def beside(given: MatrixLike, data: Data, *, axis: str = "row", dtype: torch.dtype | None = None) -> Tensor:
    """Numbers (N, ...) beside the rows of the data (or along another ``axis`` that has labels), in their type.

    A frame, series or labelled array is put in the order of the data, as :func:`places_beside` says; everything else is
    in that order.

    Raises DataError for labels that the data do not have, and for rows of the data that nothing is given of.
    """
    given = adapt(given)
    values, _ = unpack(sparse.scipy_of(given).toarray() if sparse.is_matrix(given) else given)
    place = places_beside(given, data.coords.get(axis), axis)
    return as_tensor(values if place is None else values[place], dtype or data.x.dtype).to(data.x.device)


def in_rows_of(rows: Source, values: MatrixLike) -> Any:
    """Return what is given beside rows, in any container, in their order, in its own container."""
    given = adapt(values)
    place = places_beside(given, axis_labels(adapt(rows))[0])
    return given if place is None else given.iloc[place] if is_pandas(given, "DataFrame", "Series") else given[place]


def places_beside(
    given: MatrixLike, names: list[Any] | None, axis: str = "row", *, place: int = 0
) -> np.ndarray | None:
    """Return where, in what is given beside an axis with these labels, its places stand, as :func:`order_beside` says.

    place: which of the axes of what is given is that of the labels.
    """
    names = None if names is None or labels_of(names) is None else names
    told = "nothing is given of {} of " + (f"{len(names)} labels" if names else "the rows")
    return order_beside(axis_labels(given)[place], names, axis, told)


def finite_beside(
    given: MatrixLike, data: Data, site: str, shape: tuple[int, ...], each: str, *, axis: str = "row",
    expected: str = "finite numbers", dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Numbers beside the data as :func:`beside` reads them, of this shape; of one column they may be (N,).

    Raises DataError for another shape (``each`` says what it is) and numbers that are not finite.
    """
    with about(site):
        found = beside(given, data, axis=axis, dtype=dtype)
        found = found[:, None] if found.ndim == 1 and shape[1:] == (1,) else found
        if tuple(found.shape) != shape:
            raise DataError(f"shape {tuple(found.shape)}", expected=f"{shape}, {each}")
        wrong = (~torch.isfinite(found)).nonzero()
        if len(wrong):
            where = ", ".join(f"{what} {n}" for what, n in zip(("row", "column"), wrong[0].tolist(), strict=False))
            raise DataError(f"{len(wrong)} values are not finite (the first: {where})", expected=expected)
    return found


def covariates_of(known: MatrixLike, data: Data, size: int) -> Tensor:
    """Covariates as (N, ``size``), in the data's type; a single one may be (N,).

    Raises DataError for another shape and numbers that are not finite.
    """
    expected = "finite numbers; fill in missing covariates first"
    return finite_beside(known, data, "covariates", (len(data), size), "one row for each of x", expected=expected)
