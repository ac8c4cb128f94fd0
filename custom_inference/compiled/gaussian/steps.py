"""M steps of programs with Gaussian latents: weighted least squares, standard deviations in closed form, or a climb.

With c = c_0 - J g, where g are the entries of globals that intercepts and slopes are sums of, the expected log joint is
a quadratic in g,

    Q(g) = -1/2 sum over elements c' E[v v'] c / s^2 + ...,

whose maximum solves one system for every set of entries that some mean has in common: the loadings and the mean of a
column each by themselves. Given these, standard deviations are counted as ``Steps`` does; what is neither is climbed.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from custom_inference.compiled.blocks import Part
from custom_inference.compiled.counts import NARROW, TINY, find_spread
from custom_inference.compiled.gaussian.affine import as_matrices
from custom_inference.compiled.gaussian.rows import GaussianRows
from custom_inference.compiled.newton import Newton
from custom_inference.compiled.sources import Sums
from custom_inference.compiled.steps import Steps
from custom_inference.families.conjugate.normal import Normal
from ppl_models import Model

#: Entries of one system at most; what the diagonal of a system is raised by, as a part of itself.
_MOST, _RIDGE = 2000, 1e-12
#: The least standard deviation of a latent, as a part of the root of its expected square.
_NARROW_LATENT = 1e-6


@dataclass(frozen=True)
class Coefficients:
    """The intercepts and slopes of a block as sums of the entries that are solved for.

    unknown, part, slope: (M, K) of every cell which unknowns there are, which part of v each is a factor of, and the
    slopes, 0 where there are fewer. shift: (M, 1 + R), others: places, entries and slopes of entries that are held.
    """

    unknown: Tensor
    part: Tensor
    slope: Tensor
    shift: Tensor
    others: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def of(cls, sums: Sums, column: Tensor) -> Coefficients:
        """Make them of sums of entries. column: (entries,) which unknown each entry is, -1 of those that are held."""
        shift, place, entry, slope, *_ = sums
        wide, learned = sums.shape[-1], column[entry] >= 0
        cell, unknown = place[learned] // wide, column[entry[learned]]
        order = torch.argsort(cell, stable=True)
        cell, unknown = cell[order], unknown[order]
        number = torch.bincount(cell, minlength=len(shift) // wide)
        rank = torch.arange(len(cell)) - (number.cumsum(0) - number)[cell]
        shape = len(number), max(1, int(number.max()) if len(number) else 1)
        unknowns, parts = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
        unknowns[cell, rank], parts[cell, rank] = unknown, 1 + (place[learned] % wide)[order]
        slopes = torch.zeros(shape, dtype=torch.float64)
        slopes[cell, rank] = slope[learned][order].double()
        others = place[~learned], entry[~learned], slope[~learned].double()
        return cls(unknowns, parts, slopes, shift.double().reshape(-1, wide), others)

    def hold(self, flat: Tensor) -> Tensor:
        """Return c_0 (M, 2 + R)."""
        place, entry, slope = self.others
        shift = self.shift
        if len(place):
            shift = shift.reshape(-1).index_add(0, place, slope * flat[entry]).reshape(shift.shape)
        return torch.cat([torch.ones_like(shift[:, :1]), -shift], -1)


@dataclass(frozen=True)
class Systems:
    """Which unknowns are solved for together. system: (L,) of each, place: (L,) in it; number, size: of all."""

    system: Tensor
    place: Tensor
    number: int
    size: int

    @classmethod
    def of(cls, coefficients: Sequence[Coefficients], length: int) -> Systems:
        """Put unknowns together that some mean has in common."""
        pairs = [(c.unknown[:, :1].expand_as(c.unknown)[c.slope != 0], c.unknown[c.slope != 0]) for c in coefficients]
        first, second = (torch.cat([pair[n] for pair in pairs]).numpy() for n in range(2))
        graph = coo_array((np.ones(len(first)), (first, second)), shape=(length, length))
        number, label = connected_components(graph, directed=False)
        system = torch.from_numpy(label.astype(np.int64))
        many = torch.bincount(system, minlength=number)
        order = torch.argsort(system, stable=True)
        place = torch.empty_like(order)
        place[order] = torch.arange(length) - (many.cumsum(0) - many)[system[order]]
        return cls(system, place, number, int(many.max()))

    def solve(self, matrix: Tensor, right: Tensor) -> Tensor:
        """Solve all systems (S, m, m), whose unknowns may have any units, and return the unknowns (L,)."""
        scale = matrix.diagonal(dim1=-2, dim2=-1).abs().clamp(min=1e-300).rsqrt()
        scaled = scale.unsqueeze(-1) * matrix * scale.unsqueeze(-2) + _RIDGE * torch.eye(self.size, dtype=matrix.dtype)
        found = scale * torch.linalg.solve_ex(scaled, (scale * right).unsqueeze(-1))[0].squeeze(-1)
        return found[self.system, self.place]


@dataclass(frozen=True)
class GaussianSteps(Steps):
    """The M step of a program with Gaussian latents. drawn: of each block of normal laws that draws latents the places
    of these among the parents of its factors; None of what is observed. The blocks of finite latents come behind."""

    drawn: tuple[Tensor | None, ...] = ()

    @classmethod
    def on(cls, model: Model, rows: GaussianRows) -> GaussianSteps:
        """Find which sites have closed forms."""
        plain = Steps.of(model, rows.structure.entries, rows.all_blocks)
        roles, climbing = dict(plain.roles), set(plain.climbing)
        for site, role in plain.roles.items():
            if role in ("place", "linear"):
                roles[site] = "linear"
                if site not in plain.closed:
                    climbing.add(site)
                    del roles[site]
        drawn = tuple(rows.structure.find_drawn(block) for block in rows.blocks)
        found = cls(model, plain.entries, plain.blocks, roles, _order(model, climbing), {}, drawn)
        if found.sites_in("linear") and found.systems.number * found.systems.size**2 > _MOST**2:
            linear = found.sites_in("linear")
            roles = {site: role for site, role in roles.items() if role != "linear"}
            found = replace(found, roles=roles, climbing=_order(model, {*climbing, *linear}))
        return found

    def advance(
        self, state: Mapping[str, Tensor], statistics: Sequence[Tensor], rows: float, parts: Sequence[Part | None]
    ) -> dict[str, Tensor]:
        """Return the values that raise Q plus the log prior, computed in double precision."""
        wide = {site: value.double() for site, value in state.items()}
        found = super().advance(wide, [one.double() for one in statistics], rows, parts)
        return {site: value.to(state[site]) for site, value in found.items()}

    def restrict(self, roles: Mapping[str, str]) -> GaussianSteps:
        """Return the step of some of the sites that have closed forms, which holds all others."""
        return replace(self, roles=dict(roles), climbing=())

    @property
    def newton(self) -> Newton | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """None: means are products of entries and latents."""
        return None

    @cached_property
    def column(self) -> Tensor:
        """(entries,) which unknown each entry is that is solved for, -1 of others."""
        total = sum(torch.Size(shape).numel() for shape in self.entries.shapes.values())
        column, start = torch.full((max(total, 1),), -1), 0
        for site in self.sites_in("linear"):
            part = self.entries.slices[site]
            column[part] = torch.arange(start, start := start + part.stop - part.start)
        return column

    @cached_property
    def coefficients(self) -> dict[int, Coefficients]:
        """The blocks that have entries which are solved for, by their places."""
        sites, found = set(self.sites_in("linear")), dict[int, Coefficients]()
        for place, block in enumerate(self.blocks[: len(self.drawn)]):
            sums = block.sources[0].as_sums() if block.sources[0].sites & sites else None
            if sums is not None:
                found[place] = Coefficients.of(sums, self.column)
        return found

    @cached_property
    def systems(self) -> Systems:
        """The unknowns that are solved for together."""
        return Systems.of(list(self.coefficients.values()), int(self.column.max()) + 1)

    def _solve(
        self, statistics: Sequence[Tensor], state: Mapping[str, Tensor], sites: Sequence[str]
    ) -> dict[str, Tensor]:
        """Solve for the entries of intercepts and slopes."""
        flat, systems = self.entries.flatten(state).double(), self.systems
        shape = (systems.number, systems.size)
        matrix, right = flat.new_zeros(*shape, systems.size), flat.new_zeros(shape)
        for place, own in self.coefficients.items():
            block = self.blocks[place]
            moments = as_matrices(statistics[place].double()).flatten(0, 2)  # (M, 2 + R, 2 + R)
            slope = own.slope / block.sources[1].parameters(flat).reshape(-1, 1)
            row = torch.arange(len(moments)).unsqueeze(-1)
            pairs = moments[row.unsqueeze(-1), own.part.unsqueeze(-1), own.part.unsqueeze(-2)]
            pairs = slope.unsqueeze(-1) * slope.unsqueeze(-2) * pairs
            pull = (own.hold(flat).unsqueeze(-2) @ moments).squeeze(-2)[row, own.part]
            pull = pull * slope / block.sources[1].parameters(flat).reshape(-1, 1)
            system, at = systems.system[own.unknown], systems.place[own.unknown]
            used = own.slope != 0
            both = used.unsqueeze(-1) & used.unsqueeze(-2)
            index = system.unsqueeze(-1).expand_as(pairs), at.unsqueeze(-1).expand_as(pairs)
            matrix.index_put_(
                (*(one[both] for one in index), at.unsqueeze(-2).expand_as(pairs)[both]), pairs[both], True
            )
            right.index_put_((system[used], at[used]), pull[used], True)
        priors = [Normal.of(self.model, site, tuple(state[site].shape), state[site].double()) for site in sites]
        now = torch.cat([state[site].double().reshape(-1) for site in sites])
        precision = torch.cat([prior.precision.reshape(-1) for prior in priors])
        mean = torch.cat([prior.mean.reshape(-1) for prior in priors])
        matrix.index_put_((systems.system, systems.place, systems.place), precision, True)
        right.index_put_((systems.system, systems.place), precision * mean, True)
        # By steps from where they are, so that what nothing is said of stays.
        every = now.new_zeros(shape).index_put((systems.system, systems.place), now)
        solved = now + systems.solve(matrix, right - (matrix @ every.unsqueeze(-1)).squeeze(-1))
        parts = solved.split([state[site].numel() for site in sites])
        return {site: part.reshape(state[site].shape).to(state[site]) for site, part in zip(sites, parts, strict=True)}

    def find_floors(self, statistics: Sequence[Tensor], flat: Tensor) -> Tensor:
        """Find the least standard deviations, by the spread of what was observed and by the squares of latents."""
        total = {"squares": torch.zeros_like(flat), "number": torch.zeros_like(flat)}
        for block, counted, drawn in zip(self.blocks, statistics, self.drawn, strict=False):
            moments = as_matrices(counted)  # (G, C, U, 2 + R, 2 + R)
            if drawn is None:
                if float(moments[..., 1, 1].sum(1).max()) < 1.5:  # as many cells as entries
                    moments = moments.sum(2, keepdim=True).expand_as(moments) / moments.shape[2]
                every = moments.sum(1, keepdim=True)  # of each element, whatever the finite latents are
                squares, number = find_spread(every[..., 0, 0], every[..., 0, 1], every[..., 1, 1])
                number, squares = moments[..., 1, 1], moments[..., 1, 1] * (squares / number).nan_to_num(0.0)
            else:
                index = (2 + drawn)[:, None, None, None].expand(*moments.shape[:3], 1)
                own = moments.diagonal(dim1=-2, dim2=-1).gather(-1, index).squeeze(-1)
                squares, number = (_NARROW_LATENT / NARROW) ** 2 * own, moments[..., 1, 1]
            block.sources[1].count(("spread", (squares, number)), flat, flat, total)
        return (NARROW * (total["squares"] / total["number"]).nan_to_num(0.0).sqrt()).clamp(min=TINY)


def _order(model: Model, sites: set[str]) -> tuple[str, ...]:
    return tuple(site for site in model.unknown_sites if site in sites)


#: Model -> its M step on the rows that were read last.
_STEPS: weakref.WeakKeyDictionary[Model, GaussianSteps] = weakref.WeakKeyDictionary()


def gaussian_steps_of(model: Model, rows: GaussianRows) -> GaussianSteps:
    """Return the M step of a program on rows, found once."""
    structure, finite = rows.structure, rows.structure.finite
    varying = structure.varying or (finite is not None and finite.varying)
    known = rows.steps if varying else structure.steps
    if model not in known:
        own = copy.copy(model)  # the model itself would be held for ever
        known[model] = GaussianSteps.on(own, rows)
    _STEPS[model] = known[model]
    return _STEPS[model]


def gaussian_steps_if_known(model: Model) -> GaussianSteps | None:
    """Return the M step of a program on the rows that were read last."""
    return _STEPS.get(model)
