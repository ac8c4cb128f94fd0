"""The latents that a program draws for every row, of whatever kind, and one vector that codes a row's values of them.

A choice (``Site(..., choice=axis)``) is coded by a one-hot vector; one-hot vectors, bits, whole and real numbers by
themselves, flattened. The code of a row is the latents' codes side by side, in the order of the declaration.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.core.capacity import require
from ppl_models.core.sites import of_element

#: Logarithms and logits beyond are those of numbers near the least and the largest of double precision.
_FAR = 650.0
#: The logarithm of numbers of values up to which they are whole to rounding.
_MOST_EXACT = 30.0
#: Whole numbers from the least to the largest that one element may be, at most.
_MOST_OPTIONS = 2**24


@dataclass(frozen=True)
class Latent:
    """One latent site of a row.

    shape: of a row's value in the program, the axes of inner plates first. visible: the same without the axes of size
    1 that the program needs for broadcasting alone. row_axis: where the axis of rows is in the program's value, counted
    from the right. integer: whether the program draws whole numbers as such (it may look up by them). places: of a
    choice the number of its places, else None. options: (S, w) codes of the S values that one element may have, None
    of continuous latents. elements: how many elements there are. open: whether larger whole numbers are possible than
    those in ``options``. transform: of continuous ones, from real numbers. reals: the shape of a row's real numbers.
    support: of continuous ones (transforms of several parts do not tell what they map onto). moving: whether the
    support depends on other values (globals, what rows are given, other latents); ``transform`` and ``support`` are
    then those of one run, and densities ask for the right ones (:mod:`.supports`).
    """

    name: str
    shape: tuple[int, ...]
    visible: tuple[int, ...]
    row_axis: int
    integer: bool = False
    places: int | None = None
    options: Tensor | None = None
    elements: int = 1
    open: bool = False
    transform: Any = None
    reals: tuple[int, ...] = ()
    support: Any = None
    moving: bool = False

    @property
    def width(self) -> int:
        """The length of its code."""
        return math.prod(self.shape) * (self.places or 1)

    @property
    def num_reals(self) -> int:
        """How many real numbers stand for a value, 0 of finite latents."""
        return 0 if self.transform is None else math.prod(self.reals)

    @property
    def is_untransformed(self) -> bool:
        """Whether its real numbers are its values."""
        return of_element(self.support) is constraints.real

    @property
    def mean_shape(self) -> tuple[int, ...]:
        """The shape of a row's posterior mean: at least one axis."""
        return ((*self.visible, self.places) if self.places else self.visible) or (1,)

    def decode(self, code: Tensor) -> Tensor:
        """The program's values from codes (..., N, w), with the axis of rows where the program has it."""
        places = () if self.places is None else (self.places,)
        value = code.reshape(*code.shape[:-1], *self.shape, *places)
        value = value.argmax(-1) if places else value
        return (value.long() if self.integer else value).movedim(code.ndim - 2, self.row_axis)

    def encode(self, value: Tensor, like: Tensor) -> Tensor:
        """Codes (..., N, w) of the program's values, with the type of ``like``; of values without an axis of rows those
        of one row."""
        value = value.unsqueeze(0) if value.ndim == len(self.shape) else value
        leading = value.ndim - 1 - len(self.shape)
        value = value.movedim(self.row_axis, leading)
        if self.places is not None:
            value = torch.nn.functional.one_hot(value.long(), self.places)
        return value.reshape(*value.shape[: leading + 1], -1).to(like)

    def constrain(self, reals: Tensor) -> tuple[Tensor, Tensor]:
        """Codes (..., N, w) from real numbers (..., N, R), and the logarithm of the volume that the map stretches."""
        value = self.place_reals(reals)
        found = self.transform(value)
        volume = self.sum_volume(self.transform.log_abs_det_jacobian(value, found), reals.ndim - 2)
        return self.encode(found, reals), volume.expand(reals.shape[:-1])

    def unconstrain(self, code: Tensor) -> Tensor:
        """Real numbers (..., N, R) from codes (..., N, w)."""
        return self.read_reals(self.transform.inv(self.decode(code)), code.ndim - 2)

    def place_reals(self, reals: Tensor) -> Tensor:
        """Real numbers (..., N, R) with the axes that the program's values have."""
        return reals.reshape(*reals.shape[:-1], *self.reals).movedim(reals.ndim - 2, self._real_axis)

    def read_reals(self, value: Tensor, leading: int = 0) -> Tensor:
        """Real numbers (..., N, R), with so many axes in front, from those with the axes of the program's values."""
        value = value.movedim(self._real_axis, leading)
        return value.reshape(*value.shape[: leading + 1], -1)

    def sum_volume(self, volume: Tensor, leading: int = 0) -> Tensor:
        """Sum the logarithm of a stretched volume over all axes but that of rows and leading ones."""
        return sum_but_rows(volume, self.row_axis + self.transform.codomain.event_dim, leading)

    @property
    def _real_axis(self) -> int:
        return self.row_axis + len(self.shape) - len(self.reals)


def list_whole(name: str, low: int, high: int) -> Tensor:
    """The whole numbers (S, 1) from low to high that a latent may be. Raises CapacityError where there are too many."""
    number = high + 1 - low
    fits = f"at most {_MOST_OPTIONS} are listed: state '{name}' on fewer, or as a real number"
    require(f"listing the {number} values of latent '{name}'", 8.0 * number, allowed=8.0 * _MOST_OPTIONS, fits=fits)
    return torch.arange(low, high + 1, dtype=torch.float64).unsqueeze(-1)


def sum_but_rows(term: Tensor, row_dim: int, leading: int = 0) -> Tensor:
    """Sum a term of log-probabilities over all axes but that of rows, counted from the right, and ``leading`` ones."""
    rest = [dim for dim in range(leading - term.ndim, 0) if dim != row_dim]
    return term.sum(rest) if rest else term


@dataclass(frozen=True)
class Layout:
    """The latents of a row, in the order of their declaration."""

    latents: tuple[Latent, ...]

    def __iter__(self) -> Iterator[Latent]:
        return iter(self.latents)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(latent.name for latent in self.latents)

    @property
    def width(self) -> int:
        return sum(latent.width for latent in self.latents)

    @property
    def slices(self) -> dict[str, slice]:
        """Latent -> its part of a row's code."""
        ends = list(itertools.accumulate((latent.width for latent in self.latents), initial=0))
        return {latent.name: slice(*pair) for latent, pair in zip(self.latents, itertools.pairwise(ends), strict=True)}

    @property
    def continuous(self) -> tuple[Latent, ...]:
        return tuple(latent for latent in self.latents if latent.transform is not None)

    @property
    def finite(self) -> tuple[Latent, ...]:
        return tuple(latent for latent in self.latents if latent.transform is None)

    @property
    def num_reals(self) -> int:
        """How many real numbers a row has."""
        return sum(latent.num_reals for latent in self.latents)

    def reach(self, like: Tensor) -> Tensor:
        """How far the real numbers (R,) go before what they stand for is rounded to the end of its support, where
        densities have values but no slopes."""
        ends = [torch.inf if latent.is_untransformed else _FAR for latent in self.continuous]
        sizes = torch.tensor([latent.num_reals for latent in self.continuous])
        return torch.tensor(ends).to(like).repeat_interleave(sizes.to(like.device))

    @property
    def num_configurations(self) -> float:
        """How many values the finite latents of a row have together."""
        logs = [one.elements * math.log(len(one.options)) for one in self.finite if one.options is not None]
        return float(round(math.exp(sum(logs)))) if sum(logs) < _MOST_EXACT else math.exp(min(sum(logs), 700.0))

    @property
    def is_boolean(self) -> bool:
        """Whether codes consist of zeros and ones."""
        return all(
            latent.options is not None and bool(((latent.options == 0) | (latent.options == 1)).all())
            for latent in self
        )

    def configurations(self, like: Tensor) -> Tensor:
        """All values of the finite latents as codes (C, W), 0 where continuous ones stand."""
        parts = [_product([latent.options.to(like)] * latent.elements) for latent in self.finite]  # type: ignore[union-attr]
        every = _product(parts) if parts else like.new_zeros(1, 0)
        found, start = like.new_zeros(len(every), self.width), 0
        for latent in self.finite:
            found[:, self.slices[latent.name]] = every[:, start : start + latent.width]
            start += latent.width
        return found

    def decode(self, code: Tensor) -> dict[str, Tensor]:
        """The program's values of every latent from codes (..., N, W)."""
        return {latent.name: latent.decode(code[..., self.slices[latent.name]]) for latent in self.latents}

    def encode(self, values: Mapping[str, Tensor], like: Tensor) -> Tensor:
        """Codes (..., N, W) of the program's values."""
        return torch.cat([latent.encode(values[latent.name], like) for latent in self.latents], -1)

    def constrain(self, code: Tensor, reals: Tensor) -> tuple[Tensor, Tensor]:
        """Codes (..., N, W) with the continuous latents from real numbers (..., N, R), the others as they are in
        ``code`` (which broadcasts), and the logarithm of the stretched volume (..., N). Latents whose support moves
        stay as they are, too: ask the density for them."""
        shape = (*reals.shape[:-1], code.shape[-1])
        parts, volume = list(code.expand(shape).split([one.width for one in self.latents], -1)), 0.0
        for place, latent in enumerate(self.latents):
            if latent.transform is not None and not latent.moving:
                parts[place], own = latent.constrain(reals[..., self.slices_of_reals[latent.name]])
                volume = volume + own
        return torch.cat(parts, -1), torch.as_tensor(volume).expand(shape[:-1])

    @property
    def moving(self) -> tuple[Latent, ...]:
        """The latents whose support depends on other values."""
        return tuple(latent for latent in self.latents if latent.moving)

    @property
    def slices_of_reals(self) -> dict[str, slice]:
        """Continuous latent -> its part of a row's real numbers."""
        ends = list(itertools.accumulate((latent.num_reals for latent in self.continuous), initial=0))
        return {one.name: slice(*pair) for one, pair in zip(self.continuous, itertools.pairwise(ends), strict=True)}

    def in_range(self, ranges: Mapping[str, tuple[int, int]]) -> Layout:
        """The layout in which an element of some latents may have the whole numbers from and to these."""

        def of(latent: Latent) -> Latent:
            if latent.name not in ranges:
                return latent
            low, high = ranges[latent.name]
            return replace(latent, options=list_whole(latent.name, low, high))

        return Layout(tuple(of(latent) for latent in self.latents))


def _product(parts: list[Tensor]) -> Tensor:
    """Return all combinations of rows of the parts (S_i, w_i), side by side: (prod S_i, sum w_i)."""
    found = parts[0]
    for part in parts[1:]:
        found = torch.cat([found.repeat_interleave(len(part), 0), part.repeat(len(found), 1)], -1)
    return found
