"""Noise for starts, in the units of what it moves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from custom_inference.compiled.steps import Steps


def draw_noise(steps: Steps, statistics: Sequence[Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    """Draw noise for what normals' means and other linear predictors are made of, of such a size that predictors
    move as much as what they predict varies, whatever the units of covariates and of the data."""
    found = dict[str, Tensor]()
    deviation = _find_deviation(steps, statistics)
    newton = [] if steps.newton is None else [one.matrix for one in steps.newton.predictors]
    linear = [one.matrix for one in steps.predictors.values()]
    for sites, matrices, size in ((steps.sites_in("linear"), linear, deviation), (steps.climbing, newton, 1.5)):
        if matrices:
            gram = sum((one.T @ one for one in matrices[1:]), matrices[0].T @ matrices[0])
            gram = gram / sum(map(len, matrices))
            root = torch.linalg.cholesky(gram + torch.diag(1e-9 * gram.diagonal() + 1e-300))
            drawn = torch.randn(len(gram), 1, generator=generator, dtype=torch.float64)
            moved = torch.linalg.solve_triangular(root.T, drawn, upper=True)[:, 0] * size / len(gram) ** 0.5
            shapes = [steps.entries.shapes[site] for site in sites]
            parts = moved.split([torch.Size(shape).numel() for shape in shapes])
            found |= {site: p.reshape(s) for site, p, s in zip(sites, parts, shapes, strict=True)}
    for site in steps.sites_in("place"):
        shape = steps.entries.shapes[site]
        found[site] = deviation * torch.randn(shape, generator=generator, dtype=torch.float64)
    return found


def _find_deviation(steps: Steps, statistics: Sequence[Tensor]) -> float:
    """Return the standard deviation of what normals are observed to be, all of it together; 1 without such."""
    every = [s.double().sum((0, 1, 2)) for b, s in zip(steps.blocks, statistics, strict=True) if b.law.by_value]
    spread = [float(squares / number - (sums / number) ** 2) for squares, sums, number in every if number > 0]
    return max(max(spread, default=1.0), 1e-300) ** 0.5
