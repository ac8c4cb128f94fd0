"""The places where a row's latents have most of their probability: for every value of the finite ones the maximum of
the density of the real numbers that stand for the continuous ones, and the Gaussian of the same curvature there
(Laplace).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from custom_inference.core.isolation import torch_seeded
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.statements import run

#: Draws from the prior among which Newton's method begins at the best, for each value of the finite latents.
_PRIOR_DRAWS = 32
#: Draws from the prior whose density is less than so many nats below the maximum belong to the posterior; where some
#: are more than so many standard deviations away, the Gaussian is widened until they are as near as that.
_IN_SIGHT, _AWAY, _NEAR = 14.0, 5.0, 3.0
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


def find_modes(density: RowDensity, codes: Tensor, start: Gaussians | None = None) -> Gaussians:
    """The maximum for each of the codes (C, W), and the Gaussian there; start: where to begin, by default at draws from
    the prior."""
    density = density.at({name: value.detach() for name, value in density.params.items()})
    with torch.enable_grad():
        drawn, spread = _draw_prior(density)
        u = _best_of(density, codes, drawn) if start is None else start.centre
        for _ in range(_MOST):
            value, slope, curvature = _expand(density, codes, u)
            root = _root(curvature, spread)
            step = (root @ (root.mT @ slope.unsqueeze(-1))).squeeze(-1)
            gain = (slope * step).sum(-1)
            if float(gain.max()) < _GAIN:
                break
            length = torch.linalg.norm(step / spread, dim=-1, keepdim=True)
            u = _climb(density, codes, u, value, step * (_LONGEST / length.clamp_min(_LONGEST)))
        else:
            root = _root(_expand(density, codes, u)[2], spread)
    return _widen(density, codes, Gaussians(u.detach(), root.detach()), drawn)


def _widen(density: RowDensity, codes: Tensor, about: Gaussians, drawn: Tensor) -> Gaussians:
    """Gaussians that reach to other modes: draws from the prior tell where such are."""
    with torch.no_grad():
        value = _at_draws(density, codes, drawn)
        best = torch.maximum(value.amax(1), density.real(codes[:, None], about.centre))
        apart = drawn[None] - about.centre[:, None]  # (C, S, N, R)
        scaled = torch.linalg.solve(about.root[:, None], apart.unsqueeze(-1)).squeeze(-1)
        far = torch.linalg.norm(scaled, dim=-1)
        seen = (value > best[:, None] - _IN_SIGHT) & (far > _AWAY)
        factor = torch.where(seen, far / _NEAR, torch.ones_like(far)).amax(1)
    return Gaussians(about.centre, about.root * factor[..., None, None])


def _at_draws(density: RowDensity, codes: Tensor, drawn: Tensor) -> Tensor:
    """The density (C, S, N) of every code at draws (S, N, R)."""
    number, (draws, rows, _) = len(codes), drawn.shape
    value = density.real(codes.repeat_interleave(draws, 0)[:, None], drawn.repeat(number, 1, 1))
    return value.nan_to_num(nan=-torch.inf).reshape(number, draws, rows)


def _draw_prior(density: RowDensity) -> tuple[Tensor, Tensor]:
    """Real numbers drawn from the program (S, N, R), and their standard deviations (R,)."""
    found = []
    with torch.no_grad(), torch_seeded(0):
        for number in range(_PRIOR_DRAWS):
            torch.default_generator.manual_seed(number)  # a run puts the state of random numbers back
            nodes = run(density.model, density.data, density.params)
            values = {name: nodes[name]["value"].expand(nodes[name]["fn"].shape()) for name in density.layout.names}
            found.append(density.layout.unconstrain(density.layout.encode(values, density.like)))
    drawn = torch.stack(found)
    spread = drawn.flatten(0, 1).std(0)
    return drawn, torch.where(spread.isfinite() & (spread > 0), spread, torch.ones_like(spread))


def _best_of(density: RowDensity, codes: Tensor, drawn: Tensor) -> Tensor:
    """(C, N, R): of the draws the best for every code and row."""
    with torch.no_grad():
        best = _at_draws(density, codes, drawn).argmax(1)
        return drawn[best, torch.arange(drawn.shape[1], device=best.device)]


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


def _climb(density: RowDensity, codes: Tensor, u: Tensor, value: Tensor, step: Tensor) -> Tensor:
    """The first part of the step, row by row, that raises the density."""
    moved, waiting = u.detach().clone(), torch.ones_like(value, dtype=torch.bool)
    with torch.no_grad():
        for part in _PARTS:
            tried = u + part * step
            found = density.real(codes[:, None], tried)
            better = waiting & ((found > value) | ~value.isfinite() & found.isfinite())
            moved = torch.where(better.unsqueeze(-1), tried, moved)
            waiting = waiting & ~better
            if not bool(waiting.any()):
                break
    return moved.detach()
