"""One door for data: whatever people hold their matrices in comes out as a validated tensor, a mask and labels."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
import torch
import xarray as xr
from torch import Tensor

from ppl_models._errors import DataError, DataWarning


@dataclass(frozen=True, kw_only=True)
class Data:
    """Validated rows.

    x: (N, D) tensor; missing entries are filled with 0, which nothing may depend on.
    mask: (N, D) bool, True where observed; ``None`` where everything is observed.
    coords: axis name -> labels, for the axes that came with labels.
    """

    x: Tensor
    mask: Tensor | None = None
    coords: dict[str, list[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.x.shape[0]

    @property
    def num_features(self) -> int:
        return self.x.shape[1]

    def to(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Data:
        mask = None if self.mask is None else self.mask.to(device=device)
        return replace(self, x=self.x.to(dtype=dtype, device=device), mask=mask)

    def rows(self, index: Tensor | slice) -> Data:
        """The chosen rows, with their labels."""
        coords = dict(self.coords)
        if "row" in coords:
            chosen = torch.arange(len(self))[index if isinstance(index, slice) else index.cpu()]
            coords["row"] = [coords["row"][i] for i in chosen.tolist()]
        mask = None if self.mask is None else self.mask[index]
        return Data(x=self.x[index], mask=mask, coords=coords)


def _labels(index: Sequence[Hashable]) -> list[Any] | None:
    """Labels that say more than the position does."""
    values = [v.item() if isinstance(v, np.generic) else v for v in index]
    return None if values == list(range(len(values))) else values


def _unpack(data: Any, site: str) -> tuple[np.ndarray | Tensor, dict[str, list[Any]]]:
    if isinstance(data, Tensor):
        return data.detach(), {}
    if isinstance(data, pd.DataFrame):
        labels = {"row": _labels(list(data.index)), "feature": _labels(list(data.columns))}
        wrong = [str(c) for c in data.columns if not pd.api.types.is_numeric_dtype(data[c])]
        if wrong:
            problem = f"column {wrong[0]!r} holds {data[wrong[0]].dtype}, not numbers"
            raise DataError(problem, site=site, axis="feature", expected="numeric or boolean columns")
        values = data.to_numpy(dtype=np.float64, na_value=np.nan)
        return values, {k: v for k, v in labels.items() if v is not None}
    if isinstance(data, xr.DataArray):
        labels = {
            axis: _labels(list(data.coords[dim].values))
            for axis, dim in zip(("row", "feature"), data.dims, strict=False)
            if dim in data.coords
        }
        return np.asarray(data.values), {k: v for k, v in labels.items() if v is not None}
    if scipy.sparse.issparse(data):
        return data.toarray(), {}
    try:
        return np.asarray(data), {}
    except ValueError as error:
        raise DataError(f"not a rectangular array ({error})", site=site, expected="rows of equal length") from None


def as_matrix(
    data: Any,
    *,
    mask: Any = None,
    site: str = "x",
    num_features: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Data:
    """Any two-dimensional numeric container -> :class:`Data`. NaN means missing, and so does ``mask == False``."""
    if isinstance(data, Data):
        if mask is not None:
            raise DataError("a mask was given beside data that already carry theirs", site=site)
        checked = data
    else:
        values, coords = _unpack(data, site)
        if isinstance(values, np.ndarray) and values.dtype.kind not in "buif":
            raise DataError(f"entries of type {values.dtype}", site=site, expected="numbers")
        if isinstance(values, np.ndarray) and not values.flags.writeable:
            values = values.copy()  # pandas hands out read-only views, which torch warns of
        tensor = torch.as_tensor(values, dtype=dtype or torch.get_default_dtype())
        if tensor.ndim != 2:
            raise DataError(f"{tensor.ndim} dimensions, shape {tuple(tensor.shape)}", site=site, expected="(N, D)")
        checked = Data(x=tensor, coords=coords)
        checked = _apply_mask(checked, mask, site)
    if 0 in checked.x.shape:
        raise DataError(f"no entries, shape {tuple(checked.x.shape)}", site=site, expected="N >= 1 and D >= 1")
    if num_features is not None and checked.num_features != num_features:
        problem = f"{checked.num_features} columns where the model has num_features = {num_features}"
        raise DataError(problem, site=site, axis="feature", expected=f"shape (N, {num_features})")
    return checked.to(dtype=dtype, device=device)


def _apply_mask(data: Data, mask: Any, site: str) -> Data:
    observed = ~torch.isnan(data.x)
    if mask is not None:
        given = torch.as_tensor(np.asarray(mask) if not isinstance(mask, Tensor) else mask)
        if given.shape != data.x.shape:
            problem = f"mask of shape {tuple(given.shape)} for data of shape {tuple(data.x.shape)}"
            raise DataError(problem, site=site, expected="one mask entry per data entry, True = observed")
        observed = observed & given.to(device=data.x.device, dtype=torch.bool)
    if bool(observed.all()):
        return data
    # 0 rather than NaN: a NaN would survive multiplication by a zero mask.
    return replace(data, x=torch.where(observed, data.x, torch.zeros_like(data.x)), mask=observed)


def as_binary(data: Any, **settings: Any) -> Data:
    """:func:`as_matrix`, refusing everything but 0, 1 and missing."""
    site = settings.get("site", "x")
    checked = as_matrix(data, **settings)
    wrong = (checked.x != 0) & (checked.x != 1)
    if bool(wrong.any()):
        row, column = (int(i) for i in wrong.nonzero()[0])
        name = checked.coords.get("feature", range(checked.num_features))[column]
        problem = (
            f"{int(wrong.sum())} of {wrong.numel()} entries are neither 0 nor 1 "
            f"(the first: {checked.x[row, column].item():g} in row {row}, column {name!r})"
        )
        raise DataError(problem, site=site, expected="0, 1, or NaN for missing; binarise first, e.g. x > threshold")
    return checked


def check_for_fitting(data: Data, *, site: str = "x") -> None:
    """What is legal for one row but cannot be learned from: raises on empty columns, warns of constant ones."""
    observed = data.mask if data.mask is not None else torch.ones_like(data.x, dtype=torch.bool)
    names = data.coords.get("feature", list(range(data.num_features)))
    count = observed.sum(0)
    if bool((count == 0).any()):
        empty = [names[i] for i in (count == 0).nonzero().flatten().tolist()]
        problem = f"{len(empty)} column(s) without any observed entry (the first: {empty[0]!r})"
        raise DataError(problem, site=site, axis="feature", expected="at least one observed entry; drop the column")
    total = (data.x * observed).sum(0)
    for value, constant in ((0, total == 0), (1, total == count)):
        columns = [names[i] for i in constant.nonzero().flatten().tolist()]
        if columns and len(data) > 1:
            message = (
                f"site '{site}': {len(columns)} of {data.num_features} columns are always {value} "
                f"(the first: {columns[0]!r}); they carry no information about the latent variables"
            )
            warnings.warn(message, DataWarning, stacklevel=5)
    empty_rows = int(((data.x * observed).sum(1) == 0).sum())
    if empty_rows == len(data):
        raise DataError("every observed entry is 0", site=site, expected="at least one 1 to learn from")
    if 2 * empty_rows > len(data):
        message = f"site '{site}': {empty_rows} of {len(data)} rows are all zero; they mostly inform the leak"
        warnings.warn(message, DataWarning, stacklevel=5)
