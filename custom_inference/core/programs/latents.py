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

from ppl_models.core.sites import of_element

#: Logarithms and logits beyond are those of numbers near the least and the largest of double precision.
_FAR = 650.0


@dataclass(frozen=True)
class Latent:
    """One latent site of a row.

    shape: of a row's value in the program, the axes of inner plates first. visible: the same without the axes of size
    1 that the program needs for broadcasting alone. row_axis: where the axis of rows is in the program's value, counted
    from the right. integer: whether the program draws whole numbers as such (it may look up by them). places: of a
    choice the number of its places, else None. options: (S, w) codes of the S values that one element may have, None
    of continuous latents. elements: how many elements there are. open: whether larger whole numbers are possible than
    those in ``options``. transform: of continuous ones, from real numbers. reals: the shape of a row's real numbers.
    support: of continuous ones (transforms of several parts do not tell what they map onto).
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
        leading = reals.ndim - 2
        value = reals.reshape(*reals.shape[:-1], *self.reals).movedim(leading, self._real_axis)
        found = self.transform(value)
        volume = self.transform.log_abs_det_jacobian(value, found)
        volume = sum_but_rows(volume, self.row_axis + self.transform.codomain.event_dim, leading)
        return self.encode(found, reals), volume.expand(reals.shape[:-1])

    def unconstrain(self, code: Tensor) -> Tensor:
        """Real numbers (..., N, R) from codes (..., N, w)."""
        found = self.transform.inv(self.decode(code)).movedim(self._real_axis, code.ndim - 2)
        return found.reshape(*code.shape[:-1], -1)

    @property
    def _real_axis(self) -> int:
        return self.row_axis + len(self.shape) - len(self.reals)


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
        return math.prod(float(len(one.options)) ** one.elements for one in self.finite if one.options is not None)

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
        ``code`` (which broadcasts), and the logarithm of the stretched volume (..., N)."""
        shape = (*reals.shape[:-1], code.shape[-1])
        parts, volume, start = list(code.expand(shape).split([one.width for one in self.latents], -1)), 0.0, 0
        for place, latent in enumerate(self.latents):
            if latent.transform is not None:
                parts[place], own = latent.constrain(reals[..., start : start + latent.num_reals])
                start, volume = start + latent.num_reals, volume + own
        return torch.cat(parts, -1), torch.as_tensor(volume).expand(shape[:-1])

    def unconstrain(self, code: Tensor) -> Tensor:
        """The real numbers (..., N, R) of codes (..., N, W)."""
        return torch.cat([latent.unconstrain(code[..., self.slices[latent.name]]) for latent in self.continuous], -1)

    def widen(self) -> Layout:
        """Double the number of values of whole numbers without an upper bound."""
        return Layout(tuple(_widen(latent) if latent.open else latent for latent in self.latents))


def _widen(latent: Latent) -> Latent:
    assert latent.options is not None
    more = torch.arange(2 * len(latent.options)).to(latent.options).unsqueeze(-1)
    return replace(latent, options=more + latent.options[0])


def _product(parts: list[Tensor]) -> Tensor:
    """Return all combinations of rows of the parts (S_i, w_i), side by side: (prod S_i, sum w_i)."""
    found = parts[0]
    for part in parts[1:]:
        found = torch.cat([found.repeat_interleave(len(part), 0), part.repeat(len(found), 1)], -1)
    return found
