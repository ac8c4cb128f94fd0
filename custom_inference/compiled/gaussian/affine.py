"""Normal laws whose means are affine in Gaussian latents of a row, and where their coefficients come from.

With v = (x, 1, u) of the value and the latents u that the mean b + a'u depends on, the deviation of a value from its
mean is c'v with c = (1, -b, -a), so that the expected log density is linear in the moments E[v v'],

    E log Normal(x; b + a'u, s) = -log s - 1/2 log 2 pi - c' E[v v'] c / (2 s^2).

A latent is such an element too: its value is 0, and it stands among u with the coefficient -1.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions.constraints import Constraint

from custom_inference.compiled.laws import Exponential, NormalLaw, Said
from custom_inference.compiled.probes import alike
from custom_inference.compiled.reading import NotCompiled, read_codes
from custom_inference.compiled.sources import Entries
from custom_inference.core.programs.latents import Layout
from ppl_models import Data, Model

#: Slopes below are rounding of the means that they are differences of, as a part of these.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class AffineLaw(Exponential):
    """Normal laws with parameters (b, a, s) and features v v', flattened."""

    kinds: ClassVar[Mapping[str, str]] = {"coefficient": "place", "scale": "spread"}

    @classmethod
    def of(cls, kind: type, size: int) -> AffineLaw:
        """Return the law of means that depend on so many latents."""
        return cls(kind, ("coefficient", "scale"), (size + 1, 0))

    @staticmethod
    def turn(coefficient: Tensor) -> Tensor:
        """Return c (..., 2 + R) of coefficients (b, a)."""
        return torch.cat([torch.ones_like(coefficient[..., :1]), -coefficient], -1)

    def natural(self, parameters: Tensor) -> Tensor:
        c, scale = self.turn(parameters[..., :-1]), parameters[..., -1]
        pairs = -0.5 * (c / scale.unsqueeze(-1)).unsqueeze(-1) * (c / scale.unsqueeze(-1)).unsqueeze(-2)
        constant = torch.zeros_like(pairs)
        constant[..., 1, 1] = 1.0
        less = torch.log(scale) + 0.5 * math.log(2 * math.pi)
        return (pairs - constant * less[..., None, None]).flatten(-2)

    def say(self, counted: Tensor, parameters: Tensor) -> dict[str, Said]:
        """Return what the moments say of the scale: the sums of squares about the means, and how many there are."""
        c, moments = self.turn(parameters[..., :-1]), as_matrices(counted)
        squares = torch.einsum("...i,...ij,...j->...", c, moments, c).clamp(min=0)
        return {"scale": ("spread", (squares, moments[..., 1, 1]))}


def as_matrices(counted: Tensor) -> Tensor:
    """Return moments (..., F) as matrices (..., 2 + R, 2 + R)."""
    size = math.isqrt(counted.shape[-1])
    return counted.unflatten(-1, (size, size))


@dataclass(frozen=True)
class Affine:
    """The laws of the elements of a statement in some rows.

    kind: of distributions. coefficient: (C, N, E, 1 + W), b and the slopes in all real latents, at each of the C values
    of the finite ones together. scale: (C, N, E).
    """

    kind: type
    coefficient: Tensor
    scale: Tensor


class AffineRuns:
    """The coefficients of all normal statements in some rows, as functions of the globals: by runs of the program at
    real latents that are 0 and at unit vectors, beside all values of the finite ones."""

    def __init__(self, model: Model, layout: Layout, plates: frozenset[str], data: Data, entries: Entries):
        self.model, self.layout, self.plates, self.entries = model, layout, plates, entries
        every, units = layout.configurations(data.x.double()), units_of(layout)
        self.shape = len(every), len(units), len(data)
        self.codes = (every.unsqueeze(1) + units).flatten(0, 1).repeat_interleave(len(data), 0)
        self.data = data.rows(torch.arange(len(data)).repeat(len(every) * len(units)))
        self._last: tuple[weakref.ref[Tensor], bool, dict[str, Affine]] | None = None

    def __call__(self, flat: Tensor) -> dict[str, Affine]:
        """Return what is stated at a vector of all entries; the last run is kept, as several blocks ask for it.

        Raises NotCompiled where a statement that depends on real latents is not normal, or has a scale that does.
        """
        grad = torch.is_grad_enabled()
        if self._last is not None and self._last[0]() is flat and self._last[1] == grad:
            return self._last[2]
        values, slices = self.entries.unflatten(flat), self.layout.slices_of_reals
        stated = read_codes(self.model, self.data, values, self.layout, self.plates, self.codes.to(flat))
        found = {}
        for name, one in stated.items():
            parameters = one.parameters.unflatten(0, self.shape)
            if type(one.law) is not NormalLaw:
                still = self.layout.finite and bool(alike(parameters[:, 1:], parameters[:, :1]).all())
                if still and name not in slices:
                    continue
                raise NotCompiled(f"'{name}' is drawn from {one.law.kind.__name__}; expected Normal")
            loc, scale = parameters.unbind(-1)
            if not bool(alike(scale[:, 1:], scale[:, :1]).all()):
                raise NotCompiled(f"the scale of '{name}' depends on latents")
            slope = loc[:, 1:] - loc[:, :1]
            rounded = slope.abs() <= _ROUNDING * (loc[:, 1:].abs() + loc[:, :1].abs())
            slope = torch.where(rounded, torch.zeros_like(slope), slope)
            found[name] = Affine(one.law.kind, torch.cat([loc[:, :1], slope], 1).movedim(1, -1), scale[:, 0])
        self._last = weakref.ref(flat), grad, found
        return found

    def sites_of(self, source: AffineSource, flat: Tensor) -> frozenset[str]:
        """The sites that some parameters depend on, by their gradients."""
        found = self.entries.find_sites(source.parameters, flat)
        self._last = None
        return found


def units_of(layout: Layout) -> Tensor:
    """Return codes (1 + W, K) in which all latents are 0, and each real one is 1 in turn."""
    slices = [range(layout.slices[one.name].start, layout.slices[one.name].stop) for one in layout.continuous]
    places = [place for own in slices for place in own]
    found = torch.zeros(1 + len(places), layout.width, dtype=torch.float64)
    found[torch.arange(1, 1 + len(places)), places] = 1.0
    return found


@dataclass(frozen=True)
class AffineSource:
    """Coefficients, or scales, that the program itself computes.

    row, element: (U,) which each is of. parents: the latents of the coefficients, None of scales. own: the place among
    them of the latent that is drawn.
    """

    runs: AffineRuns
    statement: str
    row: Tensor
    element: Tensor
    parents: tuple[int, ...] | None
    own: int | None
    sites: frozenset[str] = frozenset()

    of_entries: ClassVar[bool] = False

    def parameters(self, flat: Tensor) -> Tensor:
        return self.choose(self.runs(flat.double())[self.statement]).to(flat)

    def choose(self, stated: Affine) -> Tensor:
        """Return the parameters (1, C, U, P) among those that were stated."""
        if self.parents is None:
            return stated.scale[:, self.row, self.element][None, :, :, None]
        found = stated.coefficient[:, self.row, self.element][..., [0, *(1 + v for v in self.parents)]]
        if self.own is not None:
            found = found.clone()
            found[..., 1 + self.own] = -1.0
        return found[None]

    def part_of(self, kind: str, site: str, support: Constraint, entries: Entries) -> str:
        """Return that there is no closed form."""
        del kind, site, support, entries
        return "mixed"

    def count(self, said: Said, parameters: Tensor, flat: Tensor, total: dict[str, Tensor]) -> None:
        """Count nothing: parameters are made of no entries alone."""

    def as_sums(self) -> None:
        """Return None: parameters are anything."""

    def to(self, like: Tensor) -> Any:
        del like
        return self
