"""Integrals over one to three real numbers a row, beside sums over finite latents, by adaptive product rules.

For every value c of the finite latents the real numbers are u = m + L t with the mode m and the root L of the Laplace
approximation, and the integral over t is that of the trapezoidal rule on an even grid, whose error for smooth functions
that vanish at the ends is exponentially small in 1 / step (Trefethen & Weideman, SIAM Review 2014):

    log p(x_n) = log sum_c |L| h^R sum_q p(x_n, c, m + L t_q)

The difference to the same rule on every second node bounds the error, by far for smooth densities. Where it, or what is
left at the ends of the grid, is too large, the grid is moved to the mean and the covariance that were found and made
finer, and at last stretched by u = m + L sinh(t), which reaches into heavy tails (double exponential rule: Takahasi &
Mori 1974).
"""

from __future__ import annotations

import contextvars
import functools
import itertools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from custom_inference.core.capacity import memory_limit, require
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.modes import Gaussians, find_modes, log_shares

#: Real numbers a row at most.
MOST_REALS = 3
#: What the error of log p(x_n) is to be at most, and the posterior probability at the ends of the grid.
TOLERANCE, _AT_THE_ENDS = 1e-7, 1e-9
#: The former while globals are learned: the bound of the error exceeds it by far.
_WHILE_LEARNING = 1e-2
#: A grid whose highest density is by so much lower than another's misses a part of it.
_LOWER = 2.0
#: Posterior probabilities of nodes below which they say nothing of moments.
_NOTHING = 1e-40
#: Errors above which what a rule found says nothing of where the density is.
_POOR = 0.05
#: Separate maxima for one value of the finite latents that have a grid of their own, at most.
_PIECES = 4
#: Real numbers beyond which a program is asked whether it has a slope: exp(-u) and the like are rounded to 0 there.
_FAR = 30.0
#: Numbers in the arrays of a block of rows; the same while globals are learned, and how many are kept for gradients of
#: each (node, entry of a row), about.
_BLOCK, _LEARNED, _KEPT = 2**22, 2**26, 16


class Rule(NamedTuple):
    """An even grid for every axis: nodes -number .. number times ``step``, stretched by sinh or not."""

    step: float
    number: int
    stretched: bool = False

    @functools.cache  # noqa: B019
    def _grid(self, size: int) -> tuple[Tensor, Tensor, Tensor]:
        index = torch.tensor(list(itertools.product(range(-self.number, self.number + 1), repeat=size)))
        return index, (index % 2 == 0).all(-1), (index.abs() == self.number).any(-1)

    def nodes(self, size: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Give, for so many axes, the places (Q, R), the logarithms of weights (Q,), which nodes belong to the coarser
        rule, and which lie at an end."""
        index, coarse, end = (one.to(like.device) for one in self._grid(size))
        t = index.to(like) * self.step
        place, weight = (
            (torch.sinh(t), torch.log(torch.cosh(t)).sum(-1)) if self.stretched else (t, torch.zeros_like(t[:, 0]))
        )
        return place, weight + size * math.log(self.step), coarse, end


#: By the number of axes: the rules that are tried in turn.
RULES = {
    1: (
        Rule(0.55, 12),
        Rule(0.2, 40),
        Rule(0.12, 50, True),
        Rule(0.05, 240, True),
        Rule(0.02, 900, True),
        Rule(0.002, 6000, True),
        Rule(0.001, 12_000, True),
    ),
    2: (Rule(0.55, 12), Rule(0.3, 26), Rule(0.2, 30, True), Rule(0.1, 90, True)),
    3: (Rule(0.55, 12), Rule(0.4, 18), Rule(0.3, 18, True), Rule(0.2, 30, True)),
}


class Integral(NamedTuple):
    """The result of a rule for N rows and C values of the finite latents.

    log_joint (N, K C): log p(x_n, c), in as many parts as there are separate maxima. mean, square (N, W): of codes and
    their squares under the posterior. error (N,): of log p(x_n). gaussians: where the real numbers are, for each value.
    """

    log_joint: Tensor
    mean: Tensor
    square: Tensor
    error: Tensor
    highest: Tensor
    gaussians: Gaussians

    @property
    def log_evidence(self) -> Tensor:
        return self.log_joint.logsumexp(-1)


def integrate(density: RowDensity, *, start: Gaussians | None = None, thorough: bool = True) -> Integral:
    """The integral of every row. Gradients of ``log_joint`` flow to the globals.

    start: where the real numbers were at nearby globals, in place of a search for the modes. thorough: whether rules
    beyond the second are tried, where it does not do.
    """
    kind = density.like.dtype
    if kind != torch.float64:  # whose rounding no rule would get the better of
        double = None if start is None else Gaussians(*(one.double() for one in start))
        return _in_type(integrate(density.double(), start=double, thorough=thorough), kind)
    codes = density.layout.configurations(density.like)
    rules, tolerance = RULES[density.layout.num_reals], TOLERANCE
    if not thorough:
        rules, tolerance = rules[:2], _WHILE_LEARNING
    about = find_modes(density, codes, _PIECES) if start is None else start
    pieces = len(about.centre) // len(codes)
    found = _in_blocks(density, codes, about, rules[0])
    for number, rule in enumerate(rules[1:], start=1):
        poor = torch.nonzero(~(found.error <= tolerance))[:, 0]
        if not len(poor):
            break
        some = density.rows(poor)
        # Moments that a rule found are better than modes for the next, unless the rule was poor; the last one does not
        # trust them either, and is fine enough for one Gaussian in place of several, which may not be all maxima.
        last = thorough and number == len(rules) - 1
        about = found.gaussians.rows(poor)
        if (start is not None and thorough) or last or float(found.error[poor].max()) > _POOR:
            about = find_modes(some, codes, 1 if last else pieces).fill(len(about.centre), len(codes))
        again = _in_blocks(some, codes, about, rule)
        # A grid that misses a part of the density has a small error of its own: it must see the heights others saw.
        lost = again.highest < found.highest[poor] - _LOWER
        better = torch.nonzero(~(again.error >= found.error[poor]) & ~lost)[:, 0]
        found, start = _replace(found, poor[better], again, better), None
    return found


def _in_type(found: Integral, kind: torch.dtype) -> Integral:
    first: list[Any] = [one.to(kind) for one in found[:-1]]
    gaussians = Gaussians(*(one.to(kind) for one in found.gaussians))
    return Integral(first[0], first[1], first[2], first[3], first[4], gaussians)


def _replace(found: Integral, rows: Tensor, again: Integral, chosen: Tensor) -> Integral:
    first: list[Any] = [
        one.index_copy(0, rows, other[chosen]) for one, other in zip(found[:-1], again[:-1], strict=True)
    ]
    pairs = zip(found.gaussians, again.gaussians, strict=True)
    gaussians = Gaussians(*(one.index_copy(1, rows, other[:, chosen]) for one, other in pairs))
    return Integral(first[0], first[1], first[2], first[3], first[4], gaussians)


def _in_blocks(density: RowDensity, codes: Tensor, about: Gaussians, rule: Rule) -> Integral:
    nodes = (2 * rule.number + 1) ** about.centre.shape[-1] * len(about.centre)
    width, learns = density.layout.width + 1, torch.is_grad_enabled() and _is_learning(density)
    size = _BLOCK // (nodes * width)
    if learns:
        width = max(width, density.data.x.numel() // max(1, len(density)))
        size = _LEARNED // (nodes * width * _KEPT)
    if size < 1:
        _require_room(density, 8.0 * nodes * width * _KEPT)
    size, rows = max(1, size), torch.arange(len(density), device=codes.device)
    if size >= len(rows):
        return _apply(density, codes, about, rule)
    apply = _apply_again if learns else _apply
    parts = [apply(density.rows(some), codes, about.rows(some), rule) for some in rows.split(size)]
    first: list[Any] = [torch.cat(values) for values in list(zip(*parts, strict=True))[:-1]]
    gaussians = Gaussians(*(torch.cat(values, 1) for values in zip(*(one.gaussians for one in parts), strict=True)))
    return Integral(first[0], first[1], first[2], first[3], first[4], gaussians)


def _is_learning(density: RowDensity) -> bool:
    """Whether gradients flow to the globals."""
    return any(value.requires_grad for value in density.params.values())


def _require_room(density: RowDensity, needed: float) -> None:
    """Raise CapacityError where the integral of one row does not fit into memory."""
    named = ", ".join(f"'{latent.name}' ({latent.num_reals})" for latent in density.layout.continuous)
    values = density.layout.num_configurations
    what = f"the integral over {named} beside {values:.0f} values of the finite latents, of one row,"
    fits = "expected fewer real numbers a row, or SVI(guide='gaussian'), which integrates over none"
    require(what, needed, allowed=memory_limit(), fits=fits)


def _apply_again(density: RowDensity, codes: Tensor, about: Gaussians, rule: Rule) -> Integral:
    """Apply a rule, and again where gradients are asked for, so that what these need is not kept of all rows."""
    surroundings = contextvars.copy_context()
    found: Any = checkpoint(
        lambda: surroundings.copy().run(_apply, density, codes, about, rule), use_reentrant=False,
        preserve_rng_state=False,
    )  # fmt: skip
    return found


def _apply(density: RowDensity, codes: Tensor, about: Gaussians, rule: Rule) -> Integral:
    (number, rows, size), width = about.centre.shape, codes.shape[-1]
    place, weight, coarse, end = rule.nodes(size, codes)
    u = about.centre[:, None] + torch.einsum("cnrs,qs->cqnr", about.root, place)
    shares = log_shares(about, len(codes), u)
    codes = codes.repeat(number // len(codes), 1)
    reach = density.layout.reach(u)
    outside = (u.abs() > reach).any(-1)
    inside = u.clamp(-reach, reach)
    code, value = _evaluate(density, codes, inside)
    infinite = ~value.isfinite() & ~outside
    outside = outside | infinite
    if value.requires_grad and bool(infinite.any()):
        # Their weight is 0, but the gradient there would not be: a value of 0 or infinity has none.
        inside = torch.where(outside.unsqueeze(-1), about.centre[:, None], u)
        _, value = _evaluate(density, codes, inside)
    if value.requires_grad:
        value = _keep_slopes(density, codes, inside, value, about.centre)
    highest = torch.where(outside, -torch.inf, value.detach()).amax((0, 1))
    value = torch.where(outside, -torch.inf, value if shares is None else value + shares)
    scale = torch.linalg.slogdet(about.root)[1]
    joint = (value + weight[:, None]).logsumexp(1) + scale
    with torch.no_grad():
        rough = (value[:, coarse] + weight[coarse, None]).logsumexp(1) + scale + size * math.log(2)
        share = (value + weight[:, None] + scale[:, None] - joint.logsumexp(0)).exp()
        error = (joint.logsumexp(0) - rough.logsumexp(0)).abs()
        left = share[:, end].sum((0, 1))
        error = torch.where(left > _AT_THE_ENDS, error + left, error)
        code = code.reshape(number, len(place), rows, width)
        # At the ends of the real numbers a value may be infinite, and has no probability.
        code = torch.where((share > _NOTHING).unsqueeze(-1), code, 0.0)
        mean, square = (torch.einsum("cqn,cqnw->nw", share, code**power) for power in (1, 2))
        moved = _moments(share, u, about, rule.step)
    return Integral(joint.T, mean, square, error, highest, moved)


def _keep_slopes(density: RowDensity, codes: Tensor, u: Tensor, value: Tensor, centre: Tensor) -> Tensor:
    """Take far nodes for constants where a value is a number and its slope is none, which would make that of the
    globals none at all: y log r at y = 0 has the slope y / r = 0 / 0 where r = exp(u) is rounded to 0."""
    if not bool((u.abs() > _FAR).any()):
        return value
    leaf = u.detach().requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(_evaluate(density, codes, leaf)[1].sum(), leaf)
    without = ~slope.isfinite().all(-1)
    if not bool(without.any()):
        return value
    _, elsewhere = _evaluate(density, codes, torch.where(without.unsqueeze(-1), centre[:, None], u))
    return torch.where(without, value.detach(), elsewhere)


def _evaluate(density: RowDensity, codes: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Codes (C Q, N, W), and the density (C, Q, N), at real numbers u (C, Q, N, R)."""
    number, places, rows, _ = u.shape
    code = codes[:, None].expand(-1, places, -1).reshape(-1, 1, codes.shape[-1])
    code, volume = density.constrain(code, u.flatten(0, 1))
    return code, (density(code) + volume).reshape(number, places, rows)


def _moments(share: Tensor, u: Tensor, about: Gaussians, step: float) -> Gaussians:
    """Mean and root of the covariance of the real numbers given each value of the finite latents, no narrower than the
    nodes stand apart; those before, where a value has no probability."""
    total = share.sum(1, keepdim=True)
    weight = share / total.clamp_min(torch.finfo(share.dtype).tiny)
    mean = torch.einsum("cqn,cqnr->cnr", weight, u)
    apart = u - mean[:, None]
    covariance = torch.einsum("cqn,cqnr,cqns->cnrs", weight, apart, apart)
    covariance = covariance + (step / 4) ** 2 * about.root @ about.root.mT
    root, info = torch.linalg.cholesky_ex(covariance)
    good = (total[:, 0] > 1e-12) & (info == 0)
    return Gaussians(
        torch.where(good[..., None], mean, about.centre), torch.where(good[..., None, None], root, about.root)
    )
