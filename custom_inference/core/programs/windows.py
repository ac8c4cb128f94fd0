"""Windows of whole numbers without an upper bound, beyond which no probability is left.

A window is tried by looking beyond it, at values ever farther apart and about every maximum that is seen among them:
what these suggest of the probability beyond must be negligible in every row, or the window is extended as far as that.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from custom_inference.core.capacity import memory_limit, require, rows_that_fit
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.latents import Latent
from custom_inference.core.programs.modes import find_modes
from custom_inference.core.programs.ranges import cover, name_all
from ppl_models import MethodError, ModelError


def require_room(density: RowDensity) -> None:
    """Refuse more values than memory holds: two numbers for every value and every entry that is observed, or row."""
    layout, rows = density.layout, len(density)
    number, entries = layout.num_configurations, rows + density.data.x.numel()
    needed, allowed = 2.0 * density.like.element_size() * number * entries, memory_limit()
    latents = ", ".join(f"'{latent.name}' ({_count(latent)})" for latent in layout.finite)
    fits = rows_that_fit(rows, allowed / max(needed, 1.0))
    require(f"summing over {number:.3g} values of {latents} of {rows} rows", needed, allowed=allowed, fits=fits)


def _count(latent: Latent) -> str:
    """How many values it has: those of an element, and of how many elements."""
    size = len(latent.options) if latent.options is not None else 1
    return f"{size}" if latent.elements == 1 else f"{size}^{latent.elements}"


#: Posterior probability beyond a window at most.
_NEGLIGIBLE = 1e-14
#: How far is looked at least, or so many times as far as the largest number of the data, or the window; what has
#: probability still there is refused. From one value to the next it is a part of the way; some values of x are looked
#: at, too.
_FAR, _TIMES, _PART = 2.0**20, 4.0, 1 / 8
#: Values of the other latents at which one is looked at, and maxima a row that are looked at closely, at most.
_OTHERS, _MAXIMA = 64, 3
#: A row that has probability nowhere is looked at at all values up to this one.
_DENSE = 4096


def settle(density: RowDensity) -> RowDensity:
    """Give the density with all values of whole numbers that have probability.

    Raises MethodError, which names the latent, where there is no end of them, and for a row that has no probability at
    any value that is looked at; CapacityError where there are too many of them.
    """
    density = cover(density)
    if not any(latent.open for latent in density.layout):
        return density
    with torch.no_grad():
        while True:
            require_room(density)
            codes = density.layout.configurations(density.like)
            grown = _look_beyond(density, codes, _profile(density, codes))
            if not grown:
                return density
            density = cover(replace(density, layout=density.layout.in_range(grown)))


def _profile(density: RowDensity, codes: Tensor) -> Tensor:
    """log p(x_n, finite latents) (N, C), by Laplace's approximation where there are real numbers beside them."""
    size = density.layout.num_reals
    if not size:
        found = density(codes[:, None].expand(-1, len(density), -1))
    else:
        centre, root = find_modes(density, codes)
        found = density.real(codes[:, None], centre) + torch.linalg.slogdet(root)[1] + size / 2 * math.log(2 * math.pi)
    return found.T.nan_to_num(-torch.inf, -torch.inf, -torch.inf)


def is_settled(density: RowDensity, codes: Tensor, log_joint: Tensor) -> bool:
    """Whether the largest whole numbers of all windows have no probability left, by log_joint (N, C) at the codes
    (C, W)."""
    log_joint = log_joint.detach()
    if not any(latent.open for latent in density.layout):
        return True
    if not bool(log_joint.amax(-1).isfinite().all()):
        return False
    share = torch.softmax(log_joint, -1)
    for latent in density.layout:
        if latent.open and latent.options is not None:
            last = (codes[:, density.layout.slices[latent.name]] == latent.options[-1].to(codes)).any(-1)
            if float(share[:, last].sum(-1).max()) > _NEGLIGIBLE:
                return False
    return True


def _look_beyond(density: RowDensity, codes: Tensor, log_joint: Tensor) -> dict[str, tuple[int, int]]:
    """Latent -> from where to where its window has to go, of those whose window does not do."""
    layout, total = density.layout, log_joint.logsumexp(-1)
    windows = [latent for latent in layout.finite if latent.open]
    best = codes[log_joint.argmax(-1)].unique(dim=0)[:_OTHERS]
    every = [latent for latent in layout.finite if latent.open or (latent.moving and latent.places is None)]
    together = torch.cat([torch.arange(layout.width)[layout.slices[latent.name]] for latent in every])
    grown: dict[str, tuple[int, int]] = {}
    seen = torch.full_like(total, -torch.inf)
    for latent in windows:
        assert latent.options is not None
        first, last = int(latent.options[0]), int(latent.options[-1])
        columns = range(*layout.slices[latent.name].indices(layout.width))
        found = []
        for column in columns:
            own = codes if len(codes) <= _OTHERS * len(latent.options) else best
            own = own.index_fill(1, torch.tensor([column], device=codes.device), float(first)).unique(dim=0)
            found.append(_Line(density, own, torch.tensor([column]), last))
        if len(together) > 1:
            found.append(_Line(density, best, together, last))
        for line in found:
            line.refine()
        where = torch.logsumexp(torch.stack([total, *(line.mass() for line in found)]), 0)
        for line in found:
            if not bool(where.isfinite().all()):
                line.fill(~where.isfinite())
        where = torch.logsumexp(torch.stack([total, *(line.mass() for line in found)]), 0)
        seen = torch.maximum(seen, where)
        end = max(line.reach(where) for line in found)
        if end > found[0].far:
            raise MethodError(
                f"'{latent.name}' of {type(density.model).__name__} has probability above {end // 2} still, and cannot "
                "be summed over; declare its bound, such as Site(..., support=constraints.integer_interval(0, 1000))"
            )
        if end > last:
            grown[latent.name] = first, end
    nowhere = torch.nonzero(~seen.isfinite())[:, 0]
    if len(nowhere):
        raise MethodError(
            f"row {int(nowhere[0])} (of {len(nowhere)}) has no probability at any value of "
            f"{name_all(latent.name for latent in windows)} of {type(density.model).__name__} that was looked at (all "
            f"up to {_DENSE}, some up to {_FAR:.0f}); check what its x may be given the other latents and the globals"
        )
    return grown


class _Line:
    """Values beyond a window: log p(x_n, some entries of the code have this value), (N, J), at places (J,)."""

    def __init__(self, density: RowDensity, others: Tensor, columns: Tensor, last: int):
        """others: codes (B, W) at which the other latents stand. columns: the entries that have the values. last: the
        largest value of the window."""
        self.density, self.others, self.columns = density, others, columns.to(others.device)
        x = density.data.x.abs().flatten()
        x = x[x.isfinite()].double()
        self.far = max(_FAR, _TIMES * float(x.max()) if len(x) else 0.0, _TIMES * last)
        step, at, places = 1.0, float(last), set()
        while at < self.far:
            at += step
            places.add(min(round(at), int(self.far)))
            step = max(1.0, step * 2 if step < _PART * at else _PART * at)
        some = torch.quantile(x[:: max(1, len(x) // 10_000)], torch.linspace(0, 1, 33).to(x)) if len(x) else x
        places |= {value for value in map(round, some.tolist()) if last < value < self.far}
        self.places = sorted(places)
        self.values = self._evaluate(self.places)

    def _evaluate(self, places: list[int]) -> Tensor:
        at = torch.tensor(places, dtype=torch.float64).to(self.others)
        codes = self.others[None].repeat(len(at), 1, 1)
        codes[..., self.columns] = at[:, None, None].expand(-1, len(self.others), len(self.columns))
        try:
            found = _profile(self.density, codes.flatten(0, 1))
        except IndexError as error:
            raise ModelError(
                f"{type(self.density.model).__name__} cannot be run at whole numbers up to {places[-1]} "
                f"({error}): declare the bound of latents that look up, by constraints.integer_interval(0, last)"
            ) from error
        return found.reshape(len(found), len(at), -1).logsumexp(-1)

    def _add(self, places: set[int]) -> None:
        new = sorted(places - set(self.places))
        if new:
            values = torch.cat([self.values, self._evaluate(new)], 1)
            every = torch.tensor(self.places + new)
            order = every.argsort()
            self.places, self.values = every[order].tolist(), values[:, order.to(values.device)]

    def refine(self) -> None:
        """Look between the neighbours of the highest local maxima of every row until these are next to them."""
        while True:
            edge = torch.full_like(self.values[:, :1], -torch.inf)
            left, right = torch.cat([edge, self.values[:, :-1]], 1), torch.cat([self.values[:, 1:], edge], 1)
            peaks = self.values.masked_fill((self.values < left) | (self.values < right), -torch.inf)
            height, place = peaks.topk(min(_MAXIMA, len(self.places)), -1)
            between: set[int] = set()
            for at in place[height > -torch.inf].unique().tolist():
                for one, other in ((at - 1, at), (at, at + 1)):
                    if one >= 0 and other < len(self.places):
                        low, high = self.places[one], self.places[other]
                        between |= {(low + high) // 2} if high - low > 1 else set()
            if not between:
                return
            self._add(between)

    def fill(self, rows: Tensor) -> None:
        """Look at every value of the first few thousand, for rows that have no probability elsewhere."""
        whole = self.density
        self.density = whole.rows(torch.nonzero(rows)[:, 0])
        places = [place for place in range(self.places[0], _DENSE) if place not in set(self.places)]
        found = self._evaluate(places) if places else self.values[rows, :0]
        self.density = whole
        every = self.values.new_full((len(self.values), len(places)), -torch.inf)
        every[rows] = found
        values, order = torch.cat([self.values, every], 1), torch.tensor(self.places + places).argsort()
        self.places = torch.tensor(self.places + places)[order].tolist()
        self.values = values[:, order.to(values.device)]

    @property
    def _mass(self) -> Tensor:
        """The logarithms of the probabilities (N, J) of the values from a place up to the next."""
        places = torch.tensor(self.places, dtype=torch.float64)
        width = torch.cat([places.diff(), (places[-1:] * _PART)])
        return self.values + width.clamp_min(1.0).log().to(self.values)

    def mass(self) -> Tensor:
        """The logarithm of the probability of all values together, (N,)."""
        return self._mass.logsumexp(-1)

    def reach(self, total: Tensor) -> int:
        """How far values go that have probability in a row, by the logarithm of that of all values (N,)."""
        tail = self._mass.flip(-1).logcumsumexp(-1).flip(-1)
        counts = (tail - total[:, None] > math.log(_NEGLIGIBLE)).any(0)
        if not bool(counts.any()):
            return 0
        end = int(torch.nonzero(counts).max())
        return (self.places[end + 1 :] or [2 * self.places[end]])[0]
