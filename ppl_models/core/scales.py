"""Data that a program reads on their own scale: a centre and a unit for every column, given or taken from the data.

A covariate u enters a program as d = (u - center) / unit, and default priors are those of weights per unit: whether
ages are in years or days, or years count from 0 or from 1990, the law of the data is the same. Weights themselves are
in the data's units, w = (weight of d) / unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ppl_models.core.errors import ModelError
from ppl_models.core.model import Model
from ppl_models.data.matrix import Data
from ppl_models.distributions import Flat, ScaledNormal


@dataclass(frozen=True, kw_only=True, eq=False)
class OnOwnScale(Model):
    """A model with a site on a scale of its own: covariates or responses of P columns.

    center: of each column, one number or P; None: from the data that a method fits to, else 0.
    unit: of each column, one positive number or P; None: from these data, else 1.

    Raises ModelError for numbers that are not finite, units that are not positive, and another number of them.
    """

    center: float | Sequence[float] | None = None
    unit: float | Sequence[float] | None = None

    #: The site that is on the scale; the field that is the number of its columns.
    scaled_site: ClassVar[str]
    scaled_size: ClassVar[str]

    def __post_init__(self) -> None:
        for name in ("center", "unit"):
            object.__setattr__(self, name, self._checked(name))
        super().__post_init__()

    def _checked(self, name: str) -> tuple[float, ...] | None:
        value = getattr(self, name)
        if value is None:
            return None
        size = getattr(self, self.scaled_size)
        try:
            numbers = torch.as_tensor(value, dtype=torch.float64)
            numbers = numbers.expand(size) if numbers.ndim == 0 else numbers
        except (TypeError, ValueError, RuntimeError):
            raise ModelError(f"{name} = {value!r}, expected numbers, one for each of {self.scaled_size}") from None
        if tuple(numbers.shape) != (size,):
            raise ModelError(f"{name} of shape {tuple(numbers.shape)}, expected {self.scaled_size} = {size} numbers")
        if not bool(torch.isfinite(numbers).all()) or (name == "unit" and not bool((numbers > 0).all())):
            what = "positive finite numbers" if name == "unit" else "finite numbers"
            raise ModelError(f"{name} = {value!r}, expected {what}")
        return tuple(numbers.tolist())

    def scale(self, like: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """center and unit, each (P,), in the type of ``like``; 0 and 1 where they are not known."""
        size = getattr(self, self.scaled_size)
        center, unit = self.center or (0.0,) * size, self.unit or (1.0,) * size
        kind: Any = {} if like is None else {"dtype": like.dtype, "device": like.device}
        return torch.tensor(center, **kind), torch.tensor(unit, **kind)

    def standard(self, value: Tensor) -> Tensor:
        """(value - center) / unit, of columns (..., P)."""
        center, unit = self.scale(value)
        return (value - center) / unit

    def of_weights(self, spread: float) -> Any:
        """The default prior of what a covariate adds, of elements in rows p: Normal(0, spread / unit_p)."""
        if self.unit is None:
            return ScaledNormal(0.0, spread)
        _, unit = self.scale()
        return ScaledNormal(torch.zeros(len(unit), 1), spread / unit.unsqueeze(-1))

    def measured(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """center and unit (P,) of data (N, P), NaN where unknown: means, and :func:`units_about`."""
        center = value.nanmean(0).nan_to_num()
        return center, units_about(value, center)

    def scaled_to(self, data: Data, *, like: Model | None = None) -> Self:
        """This model, with the center and unit of the model ``like``, or of the data, where it states none; default
        priors are made anew."""
        value = data.others.get(self.scaled_site)
        if value is None or not getattr(self, self.scaled_size) or (self.center is not None and self.unit is not None):
            return self
        found: Any = [one.tolist() for one in self.measured(value.double().reshape(len(value), -1))]
        if isinstance(like, OnOwnScale) and getattr(like, self.scaled_size) == getattr(self, self.scaled_size):
            found = [one or own for one, own in zip((like.center, like.unit), found, strict=True)]
        stated = {"center": self.center or found[0], "unit": self.unit or found[1]}
        native = self.default_priors()
        own = {site: prior for site, prior in self.priors.items() if not _is_default(prior, native.get(site))}
        return replace(self, **stated, priors=own)


def units_about(value: Tensor, center: Tensor, *, two: bool = True) -> Tensor:
    """Units of columns (N, P), NaN where unknown: the distance of the two values of a column that has two (with
    ``two``), else the root mean square about ``center``; 1 where that is 0."""
    known = ~torch.isnan(value)
    low = torch.where(known, value, torch.inf).amin(0)
    high = torch.where(known, value, -torch.inf).amax(0)
    pair = (~known | (value == low) | (value == high)).all(0) if two else torch.zeros_like(low, dtype=torch.bool)
    spread = (value - center).square().nanmean(0).sqrt().nan_to_num()
    unit = torch.where(pair, high - low, spread)
    least = 1e-12 * torch.maximum(low.abs(), high.abs())  # a column of equal numbers has their rounding as its spread
    return torch.where((unit > least) & torch.isfinite(unit), unit, 1.0)


def _is_default(prior: Any, native: Any) -> bool:
    """Whether a prior is the one that a model on a scale makes by itself."""
    if type(prior) is not type(native) or not isinstance(prior, ScaledNormal | Flat):
        return False
    if isinstance(prior, Flat):
        return True
    return bool((prior.loc == native.loc).all() and (prior.scale == native.scale).all())
