"""Centre and unit of real data, on which the default priors of models with real inputs hold.

Where a prior is said for x with centre 0 and unit 1, that for a x + b is the same prior of (x - centre) / unit, so that
what is learned from a x + b is what is learned from x, transformed. Both are of all observed entries together: one
number each, as a and b are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ppl_models.core.errors import ModelError, is_real
from ppl_models.data.matrix import Data


def weights_of_values(data: Data, weights: Tensor) -> Tensor:
    """How often each of the observed entries of x counts, (M,), where rows count by weights (N,)."""
    if data.is_sparse:
        return weights.repeat_interleave(data.x.crow_indices().diff())
    every = weights.reshape(-1, *[1] * (data.x.ndim - 1)).expand(data.x.shape)
    return every.flatten() if data.mask is None else every[data.mask]


def centre_and_unit(value: Tensor, weights: Tensor | None = None) -> tuple[float, float]:
    """Mean and standard deviation of the finite ones of some values (M,), in double precision; 0 where there are none,
    and for the unit 1 where all are the same. weights: (M,), how often each counts."""
    value = value.detach().double()
    known = torch.isfinite(value) if weights is None else torch.isfinite(value) & (weights > 0)
    value, weights = value[known], None if weights is None else weights[known].double()
    if not value.numel():
        return 0.0, 1.0
    centre = value.mean() if weights is None else weights @ value / weights.sum()
    square = (value - centre).square()
    unit = float((square.mean() if weights is None else weights @ square / weights.sum()).sqrt())
    # Of equal values rounding alone is left.
    apart = unit > 1e-12 * float(value.abs().max())
    return float(centre), unit if apart else 1.0


def centre_and_unit_of(data: Data | None, weights: Tensor | None = None) -> tuple[float, float]:
    """Return centre and unit of the observed entries; 0 and 1 without data. weights: (N,), how often rows count."""
    if data is None:
        return 0.0, 1.0
    return centre_and_unit(data.entries, None if weights is None else weights_of_values(data, weights))


def set_centre_and_unit(model: Any, data: Data | None, weights: Tensor | None = None) -> Any:
    """The model with the mean and the standard deviation of all observed entries for ``centre`` and ``unit``, where
    these are None; without data 0 and 1. weights: (N,), how often each row counts."""
    if None not in (model.centre, model.unit):
        return model
    centre, unit = centre_and_unit_of(data, weights)
    return replace(
        model, centre=centre if model.centre is None else model.centre, unit=unit if model.unit is None else model.unit
    )


def summary_of(blocks: Iterable[Data]) -> Data:
    """Two entries (2, 1) with the mean and the standard deviation of the observed entries of all blocks, and what
    stands beside their rows, which memory has room for."""
    count, mean, square = 0, 0.0, 0.0
    beside: dict[str, list[Tensor]] = {}
    for block in blocks:
        for site, one in block.others.items():
            if one.layout == torch.strided and one.ndim < 3:
                beside.setdefault(site, []).append(one)
        value = block.entries.double()
        if value.numel():
            own, apart = float(value.mean()), float(value.mean()) - mean
            square += float((value - own).square().sum()) + apart**2 * count * value.numel() / (count + value.numel())
            count += value.numel()
            mean += apart * value.numel() / count
    spread = math.sqrt(square / max(count, 1))
    others = {site: torch.cat(parts) for site, parts in beside.items()}
    return Data(x=torch.tensor([[mean - spread], [mean + spread]], dtype=torch.float64), others=others)


def require_units(centre: float | None, unit: float | None, what: str = "") -> None:
    """Raises ModelError for a centre that is no finite number and a unit that is no positive one; None passes."""
    for name, value, least in (("centre", centre, -math.inf), ("unit", unit, 0.0)):
        if value is not None and not (is_real(value) and math.isfinite(value) and value > least):
            expected = "a finite number" if name == "centre" else "a finite number above 0"
            raise ModelError(f"{name}{what} = {value!r}, expected {expected}, or None: that of the data")
