"""Newton steps of the expected log joint in entries that are linear predictors: logistic, Poisson and softmax
regressions, and the likes.

With t = shift + J v of a block's parameters on their scale, Q = sum_m q_m(t_m): its slope is J' q', its curvature
J' diag(q'') J, and of a softmax J' [counts (p p' - diag p)] J. A step solves with the curvature of the log prior
beside, and is halved until the objective gains.

Modes of entries under priors that have no closed form are roots of slopes, each entry by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import biject_to, constraints
from torch.distributions.constraints import Constraint

from custom_inference.compiled.blocks import Block
from custom_inference.compiled.linear import SCALES
from custom_inference.compiled.sources import Entries
from custom_inference.core.optimize.newton import decreasing_root
from ppl_models import Model

#: Entries that are moved together, and numbers of a block's matrix, at most.
_ENTRIES, _MATRIX = 600, 2**23
#: What the diagonal of a system is raised by, as a part of itself.
_RIDGE = 1e-12
#: Steps of an M step, and halvings of each.
_STEPS, _HALVINGS = 2, 12
#: How far a step moves a predictor at most, on the scale of logarithms and logits.
_FAR = 4.0


@dataclass(frozen=True)
class Predictor:
    """The parameters of a block as linear predictors of the entries that are moved.

    place: of the block. matrix: (M, L). shift: (M,), others: (places, entries, slopes) of entries that are held. link:
    the scale of the parameters, of this shape. softmax: whether they are those of categories.
    """

    place: int
    matrix: Tensor
    shift: Tensor
    others: tuple[Tensor, Tensor, Tensor]
    link: str
    shape: tuple[int, ...]
    softmax: bool

    def totals(self, values: Tensor, flat: Tensor) -> Tensor:
        """Return t at the values (L,) of the entries that are moved."""
        place, entry, slope = self.others
        held = self.shift.index_add(0, place, slope * flat[entry]) if len(place) else self.shift
        return (held + self.matrix @ values).reshape(self.shape)


@dataclass(frozen=True)
class Newton:
    """Newton steps for some sites. column: (entries,) which number each entry has among those that are moved, -1 of
    others."""

    sites: tuple[str, ...]
    column: Tensor
    predictors: tuple[Predictor, ...]

    @classmethod
    def of(cls, model: Model, entries: Entries, blocks: Sequence[Block], sites: Sequence[str]) -> Newton | None:
        """Return the steps for sites of real numbers that are linear predictors wherever they stand; None for
        others."""
        size = sum(torch.Size(entries.shapes[site]).numel() for site in sites)
        real = all(model.supports[site] is constraints.real for site in sites)
        plain = all(getattr(model.priors[site], "event_dim", 1) == 0 for site in sites)
        if not (sites and real and plain) or size > _ENTRIES:
            return None
        column, start = torch.full((sum(torch.Size(s).numel() for s in entries.shapes.values()),), -1), 0
        for site in sites:
            part = entries.slices[site]
            column[part] = torch.arange(start, start := start + part.stop - part.start)
        found = []
        for place, block in enumerate(blocks):
            if block.sites & set(sites):
                one = _predictor(place, block, set(sites), column, size)
                if one is None:
                    return None
                found.append(one)
        return cls(tuple(sites), column, tuple(found))

    def climb(
        self, entries: Entries, blocks: Sequence[Block], statistics: Sequence[Tensor], state: Mapping[str, Tensor],
        log_prior: Callable[[dict[str, Tensor]], Tensor],
    ) -> dict[str, Tensor]:  # fmt: skip
        """Return the state after some steps. statistics: the expected features of every block in double precision;
        log_prior: of the sites that are moved, and of those whose priors depend on them."""
        fixed = {site: value.double() for site, value in state.items()}
        flat, moved = entries.flatten(fixed), self.column >= 0
        values = flat[moved][torch.argsort(self.column[moved])]
        for _ in range(_STEPS):
            value, slope, curvature = self._expand(blocks, statistics, values, flat, fixed, entries, log_prior)
            step = solve_scaled(curvature, slope)
            far = max(float((one.matrix @ step).abs().max()) for one in self.predictors)
            step = step * min(1.0, _FAR / max(far, 1e-300))  # where rates are near 0, curvatures are, too
            for halving in range(_HALVINGS):
                tried = values + 0.5**halving * step
                if float(self._evaluate(blocks, statistics, tried, flat, fixed, entries, log_prior)) >= value:
                    values = tried
                    break
            else:
                break
        flat = flat.clone()
        flat[moved] = values[self.column[moved]]
        reached = entries.unflatten(flat)
        return {**state, **{site: reached[site].to(state[site]) for site in self.sites}}

    def _place(self, values: Tensor, flat: Tensor, fixed: dict[str, Tensor], entries: Entries) -> dict[str, Tensor]:
        """Values of all sites, with those that are moved."""
        moved = self.column >= 0
        found = entries.unflatten(flat.index_put((moved.nonzero()[:, 0],), values[self.column[moved]]))
        return {**fixed, **{site: found[site] for site in self.sites}}

    def _evaluate(
        self, blocks: Sequence[Block], statistics: Sequence[Tensor], values: Tensor, flat: Tensor,
        fixed: dict[str, Tensor], entries: Entries, log_prior: Callable[[dict[str, Tensor]], Tensor],
    ) -> Tensor:  # fmt: skip
        total = log_prior(self._place(values, flat, fixed, entries))
        for one in self.predictors:
            total = total + _sum_expected(one, blocks[one.place], statistics[one.place], one.totals(values, flat))
        return total

    def _expand(
        self, blocks: Sequence[Block], statistics: Sequence[Tensor], values: Tensor, flat: Tensor,
        fixed: dict[str, Tensor], entries: Entries, log_prior: Callable[[dict[str, Tensor]], Tensor],
    ) -> tuple[float, Tensor, Tensor]:  # fmt: skip
        """Return the objective, its slope, and minus its curvature."""
        with torch.enable_grad():
            at = values.detach().requires_grad_()
            prior = log_prior(self._place(at, flat, fixed, entries))
            slope, bend = _two_slopes(prior, at)
        total, curvature = prior.detach(), -torch.diag(bend.clamp(max=0.0))
        for one in self.predictors:
            own, first, second = _slopes(one, blocks[one.place], statistics[one.place], one.totals(values, flat))
            total, slope = total + own, slope + one.matrix.T @ first.reshape(-1)
            if one.softmax:
                curvature = curvature + _of_softmax(one, second)
            else:
                curvature = curvature + one.matrix.T @ (second.reshape(-1, 1) * one.matrix)
        return float(total), slope, curvature


def solve_scaled(matrix: Tensor, right: Tensor) -> Tensor:
    """Solve a system whose unknowns may have any units: each is scaled by its diagonal element."""
    scale = matrix.diagonal().abs().clamp(min=1e-300).rsqrt()
    scaled = scale[:, None] * matrix * scale + _RIDGE * torch.eye(len(scale), dtype=matrix.dtype)
    return scale * torch.linalg.solve_ex(scaled, scale * right)[0]


def solve_normal(precision: Tensor, pull: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (L,) of a normal, and a root R (L, L) of its covariance R R', from its precision (L, L) and that
    times its mean; unknowns may have any units."""
    scale = precision.diagonal().rsqrt()
    factor = torch.linalg.cholesky(scale[:, None] * precision * scale)
    unit = torch.eye(len(scale), dtype=precision.dtype)
    root = scale[:, None] * torch.linalg.solve_triangular(factor.mT, unit, upper=True)
    return root @ (root.mT @ pull), root


def _predictor(place: int, block: Block, sites: set[str], column: Tensor, size: int) -> Predictor | None:
    """The linear predictor of a block; None where its parameters are something else."""
    sums, softmax = block.sources[0].as_sums(), block.law.kinds.get("probs") == "proportion"
    if len(block.sources) > 1 or block.is_direct or sums is None or sums.scales != {"identity"}:
        return None
    shift, where, entry, slope, link, _, shape = sums
    if softmax and link not in ("ratio", "difference") and block.law.names != ("logits",):
        return None
    if len(shift) * size > _MATRIX:
        return None
    moved = column[entry] >= 0
    matrix = torch.zeros(len(shift), size, dtype=torch.float64)
    matrix.index_put_((where[moved], column[entry[moved]]), slope[moved].double(), accumulate=True)
    others = where[~moved], entry[~moved], slope[~moved].double()
    return Predictor(place, matrix, shift.double(), others, link, shape, softmax)


def _sum_expected(one: Predictor, block: Block, counted: Tensor, totals: Tensor) -> Tensor:
    """The expected log-probability of a block at totals on the parameters' scale."""
    return (block.law.natural(SCALES[one.link][1](totals)) * counted).sum()


def _slopes(one: Predictor, block: Block, counted: Tensor, totals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The expected log-probability, its slopes in the totals, and minus its second ones; of a softmax the counts and
    the proportions in place of these."""
    if one.softmax:
        share = torch.softmax(totals, -1)
        number = counted.sum(-1, keepdim=True)
        value = (torch.log_softmax(totals, -1) * counted).sum()
        return value, counted - number * share, torch.stack([number.expand_as(share), share])
    with torch.enable_grad():
        at = totals.detach().requires_grad_()
        value = _sum_expected(one, block, counted, at)
        first, second = _two_slopes(value, at)
    return value.detach(), first, (-second).clamp(min=0.0)


def _two_slopes(value: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the second derivatives of a sum of functions of single numbers."""
    if not value.requires_grad:
        return torch.zeros_like(at), torch.zeros_like(at)
    (first,) = torch.autograd.grad(value, at, create_graph=True)
    if not first.requires_grad:
        return first.detach(), torch.zeros_like(at)
    (second,) = torch.autograd.grad(first.sum(), at, allow_unused=True)
    return first.detach(), torch.zeros_like(at) if second is None else second


def _of_softmax(one: Predictor, told: Tensor) -> Tensor:
    """Minus the curvature of the expected log-probability of categories, in the entries."""
    number, share = (part.reshape(-1, one.shape[-1]) for part in told)
    matrix = one.matrix.reshape(*share.shape, -1)  # (M, S, L)
    mean = torch.einsum("ms,msl->ml", share, matrix)
    weighted = (number * share).reshape(-1, 1) * one.matrix
    return one.matrix.T @ weighted - (number[:, :1] * mean).T @ mean


#: How far roots are on unconstrained scales, of logarithms and logits, and how far one M step looks for them.
_FARTHEST, _REACH = 30.0, 3.0
#: Newton steps of an M step at most, how close to a root is enough, as the next M step goes on; and how often a way
#: that goes too far is halved.
_ROUNDS, _CLOSE, _HALVED = 2, 1e-6, 30


def find_mode(
    role: str, prior: Any, support: Constraint, counted: list[Tensor], value: Tensor, floor: Tensor | None
) -> Tensor:
    """Return the mode of entries that play a part, under any prior of single numbers: the root of the slope on the
    unconstrained scale, where that is no lower than where they are.

    counted: what is counted of them (``counts``). value: where they are. floor: the least that they may be.
    """
    while type(prior).__name__ == "Independent":  # the density of each entry is asked, not of all together
        prior = prior.base_dist
    one, other = (part.double() for part in counted)
    transform: Any = biject_to(constraints.real if role == "place" else support)

    def gain(at: Tensor) -> Tensor:
        v = transform(at)
        said = {
            "chance": lambda: torch.xlogy(one, v) + torch.xlogy(other, 1 - v),
            "rate": lambda: torch.xlogy(one, v) - other * v,
            "place": lambda: one * v - 0.5 * other * v.square(),
            "spread": lambda: -other * torch.log(v) - 0.5 * one / v.square(),
        }[role]()
        return said + prior.log_prob(v)

    def slope(at: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            at = at.detach().requires_grad_()
            (first,) = torch.autograd.grad(gain(at).sum(), at, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), at)
        return first.detach(), second

    start = transform.inv(value.double()).clamp(-_FARTHEST, _FARTHEST) if role != "place" else value.double()
    # On scales of logarithms and logits one step goes so far: from farther off Newton's method comes back slowly.
    if role == "place":
        upper = _FARTHEST * (1 + start.abs() + (one / other.clamp(min=1e-9)).abs())
        lower = -upper
    else:
        lower, upper = ((start + step).clamp(-_FARTHEST, _FARTHEST) for step in (-_REACH, _REACH))
    if floor is not None:
        lower = torch.maximum(lower, torch.log(floor.double()))
        start, upper = torch.maximum(start, lower), torch.maximum(upper, lower)
    found = decreasing_root(slope, lower, upper, start, tolerance=_CLOSE, max_iterations=_ROUNDS)
    least = gain(start)
    # What is found lies uphill: where it is lower, beyond a maximum or short of one, the way there is halved.
    for _ in range(_HALVED):
        worse = ~(gain(found) >= least)
        if not bool(worse.any()):
            break
        found = torch.where(worse, 0.5 * (found + start), found)
    return transform(torch.where(gain(found) >= least, found, start)).to(value)
