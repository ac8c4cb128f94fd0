"""What predictions of ratings, clicks and choices are, and the states of a fit that they are averages over."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import betaincinv
from torch import Tensor

from custom_inference.core.result import Result
from ppl_models import Data, MethodError

#: Whether predictions are kept within the ratings of the fit, or within (low, high).
Scale = bool | tuple[float, float]


class RatingPrediction(NamedTuple):
    """mean (M,) of each rating; sd: of what is not known of its mean; spread: of the rating, with its noise; low, high:
    ends of the scale of ratings, where it has some."""

    mean: Tensor
    sd: Tensor
    spread: Tensor
    low: float = -math.inf
    high: float = math.inf

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Return the central interval of a rating, as if it were Gaussian, within the scale."""
        half = torch.special.ndtri(torch.tensor((1 + require_level(level)) / 2, dtype=torch.float64)) * self.spread
        lower, upper = ((self.mean + one.to(self.mean)).clamp(self.low, self.high) for one in (-half, half))
        return lower, upper

    def clip(self, low: float, high: float) -> RatingPrediction:
        """Return this prediction with means and intervals within a scale."""
        return self._replace(mean=self.mean.clamp(low, high), low=low, high=high)


class ChancePrediction(NamedTuple):
    """mean: the probability of what is asked for, a click or the choice of an item; sd: of what is not known of the
    probability; spread: of the event itself, 0 or 1."""

    mean: Tensor
    sd: Tensor

    @property
    def spread(self) -> Tensor:
        return (self.mean * (1 - self.mean)).sqrt()

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Return the central interval of the probability, by the Beta with its mean and standard deviation."""
        mean, ends = self.mean.double().clamp(1e-9, 1 - 1e-9), ((1 - require_level(level)) / 2, (1 + level) / 2)
        size = (mean * (1 - mean) / self.sd.double().square().clamp(min=1e-12) - 1).clamp(min=1e-6)
        found = (betaincinv((mean * size).numpy(), ((1 - mean) * size).numpy(), end) for end in ends)
        lower, upper = (torch.as_tensor(one).to(self.mean) for one in found)
        return lower, upper


def require_level(level: float) -> float:
    """Return a level of intervals. Raises MethodError where it is not between 0 and 1."""
    if not 0 < level < 1:
        raise MethodError(f"level = {level}, expected between 0 and 1")
    return level


def read_scale(data: Data, clip: Scale) -> tuple[float, float]:
    """Return the lowest and the highest rating that predictions may have. Raises MethodError for anything else."""
    try:
        low, high = map(float, (data.entries.min(), data.entries.max()) if clip is True else clip)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        low = high = 0.0
    if low >= high and clip is not True:
        raise MethodError(f"clip = {clip!r}, expected True, for the ratings of the fit, or (low, high)")
    return low, high


def states_of(fit: Result, most: int | None = None) -> Iterator[dict[str, Tensor]]:
    """Yield the values of the sites of every draw of a fit that has draws of all globals, else those of the globals.
    most: of so many draws, evenly over all chains."""
    if fit.draws is None or not set(fit.model.unknown_sites) <= set(fit.draws):
        yield fit.globals
        return
    flat = {name: value.flatten(0, 1) for name, value in fit.draws.items()}
    total = len(next(iter(flat.values())))
    for number in np.unique(np.linspace(0, total - 1, min(total, most or total)).round().astype(int)).tolist():
        yield {**fit.globals, **{name: value[number] for name, value in flat.items()}}
