"""Expected natural parameters of blocks, where the entries of globals have posteriors in place of values.

Under q the entries of a block count by E of its natural parameters:

    chance       E log v, E log(1 - v)           of products of hidden causes, with a_t = exp E log v_t and
                                                 f_t = exp E log(1 - v_t): log prod f_t of no success, and of success
                                                 log [prod (a_t + f_t) - prod f_t]
    proportion   E log v_k
    rate         E log v, E v                    of sums of rates, log sum_t b_t exp E log v_t, and sum_t b_t E v_t
    place        E m and Var m
    spread       E 1 / v^2, E log v

Entries that stand anywhere else, as those of logistic regressions, are normals on the unconstrained scale, and what is
said of them is a mean over fixed draws (``open_beliefs``). What is said of success and of sums is the best bound that
hidden causes, and shares of events, allow: by Jensen's inequality, with their own posterior at its optimum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from custom_inference.compiled.blocks import Block
from custom_inference.compiled.laws import (
    BernoulliLaw,
    CategoricalLaw,
    ExponentialLaw,
    Law,
    NormalLaw,
    PoissonLaw,
    ZeroInflatedPoissonLaw,
    clamp_off,
    safe_log,
)
from custom_inference.compiled.sources import EntrySource, Source


@dataclass(frozen=True)
class Moments:
    """Means of functions of all entries under their posterior, (entries,) each; of known ones at their values.

    value: E v. log: E log v. rest: E log(1 - v), of probabilities. precision: E 1 / v^2, of standard deviations. Each
    is NaN where it means nothing. roots: site of means of normals -> a root R (M, L) of their covariance R R', of noise
    that all sites have in common; of independent ones its diagonal (M,). unknown: the sites that have posteriors.
    spans: site -> its entries. open: the sites without counts, and draws: all entries at each of their fixed draws.
    """

    value: Tensor
    log: Tensor
    rest: Tensor
    precision: Tensor
    roots: Mapping[str, Tensor]
    unknown: frozenset[str]
    spans: Mapping[str, slice]
    open: frozenset[str] = frozenset()
    draws: tuple[Tensor, ...] = ()

    @property
    def shares(self) -> Tensor:
        """What stands for every entry where events or causes are shared: exp E log v of rates; of probabilities
        a / (a + f)."""
        return torch.where(self.rest.isnan(), torch.exp(self.log), torch.sigmoid(self.log - self.rest))

    @property
    def mass(self) -> Tensor:
        """The logarithms of a + f of probabilities, at most 0."""
        return torch.logaddexp(self.log, self.rest)


#: What is said of a parameter: tensors (G, C, U) of each, of proportions (G, C, U, P).
Expected = tuple[Tensor, ...]


def expect_natural(block: Block, moments: Moments) -> Any:
    """Return the expected natural parameters (G, C, U, F) of a block; of normals (G, C, U, 3): two parameters that give
    the density at the expected precision, and what is added to it. Of laws without features what they are at every
    draw.
    """
    if not block.sites & moments.unknown:
        return block.natural(moments.value)
    if block.sites & moments.open and not block.law.by_value:
        every = tuple(block.natural(flat) for flat in moments.draws)
        return every if block.is_direct else _average(every)
    expected = expect_parameters(block, moments)
    join = next(join for kind, join in _JOINS.items() if issubclass(type(block.law), kind))
    return join(expected)


def expect_parameters(block: Block, moments: Moments) -> dict[str, Expected]:
    """Return what is said of every parameter of a block's law that has counts, by its name."""
    found = {}
    for name, source in zip(block.law.names, block.sources, strict=True):
        kind = block.law.kinds[name]
        if source.sites & moments.open:
            found[name] = _expect_drawn(kind, source, moments)
        elif source.sites & moments.unknown:
            found[name] = _EXPECT[kind](source, moments)
        else:
            found[name] = _OF_NUMBERS[kind](source.parameters(moments.value))
    return found


def _average(every: Sequence[Tensor]) -> Tensor:
    return torch.stack([*every]).mean(0)


def _expect_drawn(kind: str, source: Source, moments: Moments) -> Expected:
    """Return what is said of a parameter by the draws of its entries."""
    every = [source.parameters(flat) for flat in moments.draws]
    if kind == "place":
        return _average(every)[..., 0], torch.stack(every).var(0, correction=0)[..., 0]
    return tuple(_average(said) for said in zip(*map(_OF_NUMBERS[kind], every), strict=True))


def standing_parameters(block: Block, moments: Moments, *, shares: bool = False) -> Tensor:
    """Return numbers (G, C, U, P) that stand for the parameters where expected features are read; with ``shares``,
    where these are divided among the entries of a sum of rates."""
    parts = []
    for name, source in zip(block.law.names, block.sources, strict=True):
        kind = block.law.kinds.get(name, "")
        if source.sites & moments.open:
            parts.append(_average([source.parameters(flat) for flat in moments.draws]))
        elif kind == "place" or (kind == "rate" and not shares) or not source.sites & moments.unknown:
            parts.append(source.parameters(moments.value))
        elif kind == "spread":
            parts.append(_expect_spread(source, moments)[0].rsqrt().unsqueeze(-1))
        else:
            parts.append(source.parameters(moments.shares))
    return torch.cat(parts, -1)


def _expect_chance(given: Source, moments: Moments) -> Expected:
    """Return E log p and E log(1 - p)."""
    source: Any = given
    if not source.of_entries:
        p = clamp_off(source.parameters(moments.shares))[..., 0]
        mass = torch.zeros_like(source.shift).index_add(0, source.place, source.slope * moments.mass[source.entry])
        mass = mass.reshape(p.shape)
        return torch.log(p) + mass, torch.log1p(-p) + mass
    log, rest = _expect_entries(source, moments)
    return log[..., 0], rest[..., 0]


def _expect_entries(source: EntrySource, moments: Moments) -> tuple[Tensor, Tensor]:
    """Return E log p and E log(1 - p) of probabilities that are entries, 1 less entries, or numbers."""
    log, rest = moments.log[source.index], moments.rest[source.index]
    number = clamp_off(source.shift)
    on = torch.where(source.slope > 0, log, torch.where(source.slope < 0, rest, torch.log(number)))
    off = torch.where(source.slope > 0, rest, torch.where(source.slope < 0, log, torch.log1p(-number)))
    return on, off


def _expect_proportion(source: Source, moments: Moments) -> Expected:
    entries: Any = source
    return (_expect_entries(entries, moments)[0],)


def _expect_rate(source: Source, moments: Moments) -> Expected:
    """Return E log of a rate (or the best bound of a sum), and its mean."""
    return safe_log(source.parameters(moments.shares))[..., 0], source.parameters(moments.value)[..., 0]


def _expect_place(source: Source, moments: Moments) -> Expected:
    """Return the mean and the variance of a mean of normals, a sum of real entries."""
    mean = source.parameters(moments.value)[..., 0]
    sums: Any = source.as_sums()
    variance, turned = mean.new_zeros(mean.numel()), mean.new_zeros(mean.numel(), 0)
    for site, root in moments.roots.items():
        span = moments.spans[site]
        own = (sums.entry >= span.start) & (sums.entry < span.stop)
        place, entry, slope = sums.place[own], sums.entry[own] - span.start, sums.slope[own]
        if root.ndim == 1:
            variance = variance.index_add(0, place, (slope * root[entry]).square())
        elif len(place):  # of the noise of all sites of linear predictors
            turned = turned if turned.shape[1] else root.new_zeros(mean.numel(), root.shape[1])
            turned = turned.index_add(0, place, slope.unsqueeze(-1) * root[entry])
    variance = variance + turned.square().sum(-1)
    return mean, variance.reshape(mean.shape)


def _expect_spread(given: Source, moments: Moments) -> Expected:
    """Return the expected precision of normals, and the expected logarithm of their standard deviation."""
    source: Any = given
    index, slope, shift = (one[..., 0] for one in (source.index, source.slope, source.shift))
    stands = slope != 0
    slope, number = torch.where(stands, slope, 1.0), torch.where(stands, 1.0, shift)
    precision = torch.where(stands, moments.precision[index] / slope.square(), number**-2)
    return precision, torch.where(stands, moments.log[index] + torch.log(slope), torch.log(number))


def _of_probabilities(numbers: Tensor) -> Expected:
    probs = clamp_off(numbers[..., 0])
    return torch.log(probs), torch.log1p(-probs)


#: Kind of parameter -> what is said of those that are numbers (G, C, U, P).
_OF_NUMBERS: dict[str, Callable[[Tensor], Expected]] = {
    "chance": _of_probabilities,
    "proportion": lambda numbers: (torch.log(clamp_off(numbers / numbers.sum(-1, keepdim=True))),),
    "rate": lambda numbers: (safe_log(numbers[..., 0]), numbers[..., 0]),
    "place": lambda numbers: (numbers[..., 0], torch.zeros_like(numbers[..., 0])),
    "spread": lambda numbers: (numbers[..., 0] ** -2, torch.log(numbers[..., 0])),
}
#: The same of those that are made of entries.
_EXPECT: dict[str, Callable[[Source, Moments], Expected]] = {
    "chance": _expect_chance, "proportion": _expect_proportion, "rate": _expect_rate, "place": _expect_place,
    "spread": _expect_spread,
}  # fmt: skip


def _join_normal(expected: dict[str, Expected]) -> Tensor:
    (mean, variance), (precision, log) = expected["loc"], expected["scale"]
    scale = precision.rsqrt()
    return torch.stack([mean, scale, torch.log(scale) - log - 0.5 * precision * variance], -1)


def _join_zero_inflated(expected: dict[str, Expected]) -> Tensor:
    (log, rate), (on, off) = expected["rate"], expected["gate"]
    return torch.stack([torch.logaddexp(on, off - rate), log, off - rate], -1)


def _join_rate(expected: dict[str, Expected]) -> Tensor:
    log, rate = expected["rate"]
    return torch.stack([log, -rate], -1)


#: Law -> its natural parameters from what is said of its parameters.
_JOINS: dict[type[Law], Callable[[dict[str, Expected]], Tensor]] = {
    CategoricalLaw: lambda expected: expected["probs"][0],
    BernoulliLaw: lambda expected: torch.stack(expected["probs"], -1),
    ZeroInflatedPoissonLaw: _join_zero_inflated,
    PoissonLaw: _join_rate,
    ExponentialLaw: _join_rate,
    NormalLaw: _join_normal,
}
