"""The places where a row's latents have most of their probability: for every value of the finite ones the maximum of
the density of the real numbers that stand for the continuous ones, and the Gaussian of the same curvature there
(Laplace).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from custom_inference.core.programs.density import RowDensity

#: Draws from the prior among which Newton's method begins at the best, for each value of the finite latents.
_PRIOR_DRAWS = 32
#: Draws from the prior whose density is less than so many nats below the maximum belong to the posterior; where some
#: are more than so many standard deviations away, the Gaussian is widened until they are as near as that.
_IN_SIGHT, _AWAY, _NEAR = 14.0, 5.0, 3.0
#: So many rows are looked at together.
_ROWS = 20_000
#: Along a line so many places are looked at, as far as sinh of so much times the draws' interquartile range. Newton
#: begins at so many maxima.
_PLACES, _FAR, _MAXIMA = 257, 9.0, 6
#: Into how many parts the range of an axis is divided, by the number of axes; Newton's method begins in each.
_BINS = {2: 3, 3: 2}
#: Maxima that are so many standard deviations apart, by the wider or the narrower of their Gaussians, are two.
_APART = 4.0
#: Parts of a density that belong to maxima of its own overlap as Gaussians that are so much wider do.
_OVERLAP = 2.0
#: Iterations at most, and the gain (in nats) that another one must promise.
_MOST, _GAIN = 60, 1e-9
#: Parts of a step that are tried until the density rises.
_PARTS = (1.0, 0.5, 0.2, 0.05, 0.005)
#: The longest step, and how far the Gaussian may reach, in standard deviations of the prior.
_LONGEST, _WIDEST = 4.0, 4.0


class Gaussians(NamedTuple):
    """Gaussians for C values of the finite latents and N rows: centre (C, N, R); root (C, N, R, R), where root root^T
    is the covariance."""

    centre: Tensor
    root: Tensor

    def rows(self, index: Tensor) -> Gaussians:
        return Gaussians(self.centre[:, index], self.root[:, index])

    def fill(self, number: int, codes: int) -> Gaussians:
        """Repeat the first Gaussian of each code where there are fewer than asked for."""
        place = torch.arange(number, device=self.centre.device)
        place = torch.where(place < len(self.centre), place, place % codes)
        return Gaussians(self.centre[place], self.root[place])


def find_modes(density: RowDensity, codes: Tensor, pieces: int = 1) -> Gaussians:
    """The maxima for each of the codes (C, W), and the Gaussians there, ``pieces`` times C of them or fewer.

    Newton's method begins at draws from the prior, the best in each part of their range. pieces: separate maxima are
    given apart up to so many, those of the first for all codes, then the second, and so on; where a row has fewer, its
    best stands in their places, too. Maxima beyond are in reach: their Gaussians are widened.
    """
    if len(density) > _ROWS:
        blocks = torch.arange(len(density), device=codes.device).split(_ROWS)
        parts = [find_modes(density.rows(some), codes, pieces) for some in blocks]
        number = max(len(one.centre) for one in parts)
        return Gaussians(
            *(torch.cat(one, 1) for one in zip(*(part.fill(number, len(codes)) for part in parts), strict=True))
        )
    density = density.at({name: value.detach() for name, value in density.params.items()})
    with torch.enable_grad():
        drawn, spread = _draw_prior(density)
        value = _at_draws(density, codes, drawn)
        starts = _starts(value, drawn)
        if drawn.shape[-1] == 1:
            starts = torch.cat([starts, _scan(density, codes, drawn)])
        number = len(starts)
        every = codes.repeat(number, 1)
        found = _newton(density, every, starts.flatten(0, 1), spread)
    with torch.no_grad():
        top = _finite(density.real(every[:, None], found.centre))
        shape = number, len(codes), len(density)
        centre, root = (one.reshape(*shape, *one.shape[2:]) for one in found)
        kept = _separate(top.reshape(shape), centre, root, pieces)
        points = torch.cat([drawn[None].expand(len(codes), -1, -1, -1), centre.transpose(0, 1)], 1)
        values = torch.cat([value, top.reshape(shape).transpose(0, 1)], 1)
        return _widen(kept, points, values)


def _newton(density: RowDensity, codes: Tensor, u: Tensor, spread: Tensor) -> Gaussians:
    for _ in range(_MOST):
        value, slope, curvature = _expand(density, codes, u)
        root = _root(curvature, spread)
        step = (root @ (root.mT @ slope.unsqueeze(-1))).squeeze(-1)
        gain = (slope * step).sum(-1)
        if float(gain.max()) < _GAIN:
            break
        length = torch.linalg.norm(step / spread, dim=-1, keepdim=True)
        u = _climb(density, codes, u, value, step * (_LONGEST / length.clamp_min(_LONGEST)), gain >= _GAIN)
    else:
        root = _root(_expand(density, codes, u)[2], spread)
    return Gaussians(u.detach(), root.detach())


def _starts(value: Tensor, drawn: Tensor) -> Tensor:
    """(B, C, N, R): of the draws (S, N, R), whose densities are ``value`` (C, S, N), the best of all and the best in
    each of some parts of their range."""
    size = drawn.shape[-1]
    bins = _BINS.get(size, 1)
    rank = drawn.argsort(0).argsort(0) * bins // len(drawn)
    part = (rank * bins ** torch.arange(size, device=rank.device)).sum(-1)  # (S, N)
    masks = [torch.ones_like(part, dtype=torch.bool)]
    masks += [part == number for number in range(bins**size)] if bins > 1 else []
    best = torch.stack([value.masked_fill(~mask, -torch.inf).argmax(1) for mask in masks])
    return drawn[best, torch.arange(drawn.shape[1], device=best.device)]


def _scan(density: RowDensity, codes: Tensor, drawn: Tensor) -> Tensor:
    """(B, C, N, 1): the highest local maxima among places along the line, about the draws and far beyond them."""
    with torch.no_grad():
        t = torch.linspace(-_FAR, _FAR, _PLACES, dtype=drawn.dtype, device=drawn.device)
        low, middle, high = drawn.sort(0).values[[len(drawn) // 4, len(drawn) // 2, 3 * len(drawn) // 4]]
        place = middle + (high - low).clamp_min(1e-300) * torch.sinh(t)[:, None, None]  # (P, N, 1)
        value = _at_draws(density, codes, place)
        edge = torch.full_like(value[:, :1], -torch.inf)
        higher = torch.maximum(torch.cat([edge, value[:, :-1]], 1), torch.cat([value[:, 1:], edge], 1)) > value
        best = value.masked_fill(higher, -torch.inf).topk(_MAXIMA, dim=1).indices.movedim(1, 0)  # (B, C, N)
        return place[best, torch.arange(place.shape[1], device=best.device)]


def _separate(value: Tensor, centre: Tensor, root: Tensor, pieces: int) -> Gaussians:
    """Keep the maxima (B, C, N, R) of a row that are apart, best first, at most ``pieces`` for each code."""
    order = value.argsort(0, descending=True)
    value = value.gather(0, order)
    centre = centre.gather(0, order[..., None].expand_as(centre))
    root = root.gather(0, order[..., None, None].expand_as(root))
    kept = [Gaussians(centre[0], root[0])] * pieces
    rank = torch.zeros_like(order[0])
    for number in range(1, len(value) if pieces > 1 else 1):
        far = torch.stack([
            torch.maximum(*(_distance(width, centre[number] - one.centre) for width in (one.root, root[number])))
            for one in kept
        ]).amin(0)  # fmt: skip
        new = (far > _APART) & (value[number] > value[0] - _IN_SIGHT) & (rank < pieces - 1)
        rank = rank + new
        for k in range(1, pieces):
            here = (new & (rank == k))[..., None]
            kept[k] = Gaussians(
                torch.where(here, centre[number], kept[k].centre),
                torch.where(here[..., None], root[number], kept[k].root),
            )
    kept = kept[: int(rank.max()) + 1]
    return Gaussians(torch.cat([one.centre for one in kept]), torch.cat([one.root for one in kept]))


def _distance(root: Tensor, apart: Tensor) -> Tensor:
    """How many standard deviations a step is."""
    return torch.linalg.norm(torch.linalg.solve(root, apart.unsqueeze(-1)).squeeze(-1), dim=-1)


def _widen(about: Gaussians, points: Tensor, values: Tensor) -> Gaussians:
    """Gaussians that reach to places of high density (C, P, N, R) that none of them is near: the nearest is widened."""
    number = len(points)
    pieces = len(about.centre) // number
    far = torch.stack(
        [
            _distance(about.root[k * number :][:number, None], points - about.centre[k * number :][:number, None])
            for k in range(pieces)
        ]
    )  # (K, C, P, N) fmt: skip
    nearest, piece = far.min(0)
    seen = (values > values.amax(1, keepdim=True) - _IN_SIGHT) & (nearest > _AWAY)
    factors = [torch.where(seen & (piece == k), nearest / _NEAR, 1.0).amax(1) for k in range(pieces)]
    return Gaussians(about.centre, about.root * torch.cat(factors)[..., None, None])


def log_shares(about: Gaussians, number: int, u: Tensor) -> Tensor | None:
    """How much of the density at real numbers u (K C, Q, N, R) the K Gaussians of a code answer for, in logarithms
    (K C, Q, N): q_k / sum_j q_j with wider Gaussians q, so that the parts add up to the density, and each has one
    maximum. None of one Gaussian a code."""
    pieces = len(about.centre) // number
    if pieces == 1:
        return None
    own = u.reshape(pieces, number, *u.shape[1:])
    log_q = []
    for k in range(pieces):
        part = slice(k * number, (k + 1) * number)
        inverse = torch.linalg.inv(about.root[part])
        scaled = torch.einsum("cnrs,pcqns->pcqnr", inverse, own - about.centre[part][:, None])
        height = torch.linalg.slogdet(about.root[part])[1]
        log_q.append(-0.5 * scaled.square().sum(-1) / _OVERLAP**2 - height[:, None])
    every = torch.stack(log_q)
    return (every.diagonal(dim1=0, dim2=1).movedim(-1, 0) - every.logsumexp(0)).flatten(0, 1)


def _at_draws(density: RowDensity, codes: Tensor, drawn: Tensor) -> Tensor:
    """The density (C, S, N) of every code at draws (S, N, R)."""
    number, (draws, rows, _) = len(codes), drawn.shape
    value = density.real(codes.repeat_interleave(draws, 0)[:, None], drawn.repeat(number, 1, 1))
    return _finite(value).reshape(number, draws, rows)


def _finite(value: Tensor) -> Tensor:
    """Infinite densities, at ends that real numbers are rounded to, are those of no place."""
    return torch.where(value.isfinite(), value, -torch.inf)


def _draw_prior(density: RowDensity) -> tuple[Tensor, Tensor]:
    """Real numbers drawn from the program (S, N, R), and their standard deviations (R,)."""
    with torch.no_grad():
        drawn = torch.stack([density.unconstrain(density.draw(seed)) for seed in range(_PRIOR_DRAWS)])
    spread = drawn.flatten(0, 1).std(0)
    return drawn, torch.where(spread.isfinite() & (spread > 0), spread, torch.ones_like(spread))


def _expand(density: RowDensity, codes: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value (C, N), slope (C, N, R) and minus the second derivatives (C, N, R, R) at u."""
    at = u.detach().requires_grad_()
    value = density.real(codes[:, None], at)
    (slope,) = torch.autograd.grad(value.sum(), at, create_graph=True)
    rows = []
    for k in range(at.shape[-1]):
        constant = not slope.requires_grad
        (row,) = (torch.zeros_like(at),) if constant else torch.autograd.grad(
            slope[..., k].sum(), at, retain_graph=True, allow_unused=True
        )  # fmt: skip
        rows.append(torch.zeros_like(at) if row is None else row)
    curvature = -torch.stack(rows, -1)
    return value.detach(), slope.detach().nan_to_num(0.0, 0.0, 0.0), curvature.detach().nan_to_num(0.0, 0.0, 0.0)


def _root(curvature: Tensor, spread: Tensor) -> Tensor:
    """A root of the inverse: no wider than a few standard deviations of the prior, whatever the curvature's sign."""
    scaled = spread[:, None] * curvature * spread
    value, vector = torch.linalg.eigh((scaled + scaled.mT) / 2)
    value = value.abs().clamp_min(1 / _WIDEST**2)
    return spread[:, None] * vector * value.rsqrt().unsqueeze(-2)


def _climb(density: RowDensity, codes: Tensor, u: Tensor, value: Tensor, step: Tensor, waiting: Tensor) -> Tensor:
    """The first part of the step, row by row, that raises the density, of rows that are ``waiting`` for one."""
    moved = u.detach().clone()
    with torch.no_grad():
        for part in _PARTS:
            tried = u + part * step
            found = _finite(density.real(codes[:, None], tried))
            better = waiting & ((found > value) | ~value.isfinite() & found.isfinite())
            moved = torch.where(better.unsqueeze(-1), tried, moved)
            waiting = waiting & ~better
            if not bool(waiting.any()):
                break
    return moved.detach()
