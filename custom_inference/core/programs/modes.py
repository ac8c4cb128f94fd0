"""Where a row's latents have most of their probability: for every value of the finite ones the maximum of the density
of the real numbers that stand for the continuous ones, and the Gaussian of the same curvature there (Laplace)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from custom_inference.core.isolation import torch_seeded
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.latents import run

#: Draws from the prior among which Newton's method begins at the best, for each value of the finite latents.
_PRIOR_DRAWS = 12
#: Iterations at most, and the gain (in nats) that another one must promise.
_MOST, _GAIN = 60, 1e-9
#: Parts of a step that are tried until the density rises.
_PARTS = (1.0, 0.5, 0.2, 0.05, 0.005)
#: The longest step, and how far the Gaussian may reach, in standard deviations of the prior.
_LONGEST, _WIDEST = 4.0, 4.0


class Gaussians(NamedTuple):
    """Of C values of the finite latents and N rows: centre (C, N, R) and root (C, N, R, R) with root root^T the
    covariance."""

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
    return Gaussians(u.detach(), root.detach())


def _draw_prior(density: RowDensity) -> tuple[Tensor, Tensor]:
    """Real numbers drawn from the program (S, N, R), and their standard deviations (R,)."""
    found = []
    with torch.no_grad(), torch_seeded(0):
        for _ in range(_PRIOR_DRAWS):
            nodes = run(density.model, density.data, density.params)
            values = {name: nodes[name]["value"].expand(nodes[name]["fn"].shape()) for name in density.layout.names}
            found.append(density.layout.unconstrain(density.layout.encode(values, density.like)))
    drawn = torch.stack(found)
    spread = drawn.flatten(0, 1).std(0)
    return drawn, torch.where(spread.isfinite() & (spread > 0), spread, torch.ones_like(spread))


def _best_of(density: RowDensity, codes: Tensor, drawn: Tensor) -> Tensor:
    """(C, N, R): of the draws the best for every code and row."""
    number, (draws, rows, _) = len(codes), drawn.shape
    with torch.no_grad():
        every = drawn.repeat(number, 1, 1)
        value = density.real(codes.repeat_interleave(draws, 0)[:, None], every).nan_to_num(nan=-torch.inf)
        best = value.reshape(number, draws, rows).argmax(1)
        return drawn[best, torch.arange(rows, device=best.device)]


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
