"""Data that a program reads on their own scale: a centre and a unit for every column, given or taken from the data.

A covariate u enters a program as d = (u - centre) / unit, and default priors are those of weights per unit: whether
ages are in years or days, or years count from 0 or from 1990, the law of the data is the same. Weights themselves are
in the data's units, w = (weight of d) / unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ppl_models.core.errors import DataError, ModelError, about
from ppl_models.core.model import Model
from ppl_models.data.matrix import Data
from ppl_models.distributions import ScaledNormal

#: Units beyond these, and their reciprocals, leave single precision, in which default priors are stated.
_MOST = 1e30


@dataclass(frozen=True, kw_only=True, eq=False)
class OnOwnScale(Model):
    """A model with a site on a scale of its own: covariates or responses of P columns.

    centre: of each column, one number or P; None: from the data that a method fits to, else 0.
    unit: of each column, one positive number or P; None: from these data, else 1.

    Raises ModelError for numbers that are not finite, units that are not positive, and another number of them.
    """

    centre: float | Sequence[float] | None = None
    unit: float | Sequence[float] | None = None

    #: The site that is on the scale; the field that is the number of its columns.
    scaled_site: ClassVar[str]
    scaled_size: ClassVar[str]

    def __post_init__(self) -> None:
        for name in ("centre", "unit"):
            if (value := getattr(self, name)) is not None:
                known = check_scale(name, value, self.scaled_size, getattr(self, self.scaled_size))
                object.__setattr__(self, name, known)
        super().__post_init__()

    def scale_of_columns(self, like: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """centre and unit, each (P,), in the type of ``like``; 0 and 1 where they are not known."""
        size = getattr(self, self.scaled_size)
        centre, unit = self.centre or (0.0,) * size, self.unit or (1.0,) * size
        kind: Any = {} if like is None else {"dtype": like.dtype, "device": like.device}
        return torch.tensor(centre, **kind), torch.tensor(unit, **kind)

    def standard(self, value: Tensor) -> Tensor:
        """(value - centre) / unit, of columns (..., P)."""
        centre, unit = self.scale_of_columns(value)
        return (value - centre) / unit

    def of_weights(self, spread: float) -> Any:
        """The default prior of what a covariate adds, of elements in rows p: Normal(0, spread / unit_p)."""
        if self.unit is None:
            return ScaledNormal(0.0, spread)
        _, unit = self.scale_of_columns()
        return ScaledNormal(torch.zeros(len(unit), 1), spread / unit.unsqueeze(-1))

    def measure_scale(self, value: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """centre and unit (P,) of data (N, P), NaN where unknown: means, and :func:`units_about`; weights: (N,) above
        0, how often each row counts."""
        centre = _mean(value, weights).nan_to_num()
        return centre, units_about(value, centre, weights=weights)

    def on_scale_of(self, data: Data | None, *, like: Model | None = None, weights: Tensor | None = None) -> Self:
        """This model, with the centre and unit of the model ``like``, or of the data, where it states none."""
        size = getattr(self, self.scaled_size)
        if not size or (self.centre is not None and self.unit is not None):
            return self
        value = None if data is None else data.others.get(self.scaled_site)
        if data is not None and value is None:
            return self
        found: Any = [[0.0] * size, [1.0] * size]
        if value is not None:
            value = value.double().reshape(len(value), -1)
            counted = slice(None) if weights is None else weights > 0
            weights = None if weights is None else weights[counted]
            with about(self.scaled_site):
                found = [one.tolist() for one in self.measure_scale(value[counted], weights)]
        if isinstance(like, OnOwnScale) and getattr(like, self.scaled_size) == size:
            found = [one or own for one, own in zip((like.centre, like.unit), found, strict=True)]
        return replace(self, centre=self.centre or found[0], unit=self.unit or found[1], priors=self.chosen_priors)


def check_scale(name: str, value: float | Sequence[float] | Tensor, of: str, size: int) -> tuple[float, ...]:
    """The numbers of a centre or unit, one for each of so many columns, whose number is called ``of``."""
    try:
        numbers = torch.as_tensor(value, dtype=torch.float64)
        numbers = numbers.expand(size) if numbers.ndim == 0 else numbers
    except (TypeError, ValueError, RuntimeError):
        raise ModelError(f"{name} = {value!r}, expected numbers, one for each of {of}") from None
    if tuple(numbers.shape) != (size,):
        raise ModelError(f"{name} of shape {tuple(numbers.shape)}, expected {of} = {size} numbers")
    units = name.startswith("unit")
    if not bool(torch.isfinite(numbers).all()) or (units and not bool((numbers > 0).all())):
        raise ModelError(f"{name} = {value!r}, expected {'positive finite numbers' if units else 'finite numbers'}")
    return tuple(numbers.tolist())


def beside_an_intercept(value: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """centre and unit (P,) of covariates (N, P) of a regression that has no intercept but those among them: about means
    where one of them is a constant other than 0, which is its own unit about 0; else about 0."""
    same, zero = (value == value[0]).all(0), torch.zeros_like(value[0])
    constant = same & (value[0] != 0)
    if not bool(constant.any()):
        return zero, units_about(value, zero, two=False, weights=weights)
    centre = _mean(value, weights).nan_to_num()
    unit = units_about(value, centre, weights=weights)
    return torch.where(same, zero, centre), torch.where(constant, value[0].abs(), unit)


def _mean(value: Tensor, weights: Tensor | None) -> Tensor:
    """Means (P,) of the known values of columns (N, P), by weights (N,) of the rows; NaN where none is known."""
    if weights is None:
        return value.nanmean(0)
    known = ~torch.isnan(value)
    return (weights @ torch.where(known, value, 0.0)) / (weights @ known.to(weights))


def units_about(value: Tensor, centre: Tensor, *, two: bool = True, weights: Tensor | None = None) -> Tensor:
    """Units of columns (N, P), NaN where unknown: the distance of the two values of a column that has two (with
    ``two``), else the root mean square about ``centre``; 1 where that is 0. weights: (N,) above 0, of the rows."""
    known = ~torch.isnan(value)
    low = torch.where(known, value, torch.inf).amin(0)
    high = torch.where(known, value, -torch.inf).amax(0)
    pair = (~known | (value == low) | (value == high)).all(0) if two else torch.zeros_like(low, dtype=torch.bool)
    away = (value - centre).abs()
    most = torch.where(known, away, 0.0).amax(0)
    size = torch.where(most > 0, most, 1.0)  # squares of what is very large or small are no numbers
    spread = size * _mean((away / size).square(), weights).sqrt().nan_to_num()
    unit = torch.where(pair, high - low, spread)
    least = 1e-12 * torch.maximum(low.abs(), high.abs())  # a column of equal numbers has their rounding as its spread
    unit = torch.where(unit > least, unit, 1.0)
    wrong = ((unit < 1 / _MOST) | (unit > _MOST)).nonzero().flatten().tolist()
    if wrong:
        found = f"column {wrong[0]} varies by about {float(unit[wrong[0]]):.3g}"
        raise DataError(found, axis="column", expected=f"between {1 / _MOST:g} and {_MOST:g}: change its unit")
    return unit
