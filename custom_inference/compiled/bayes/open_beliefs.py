"""Posteriors of sites without counts: a normal of every entry on the unconstrained scale, by fixed draws.

What is said of them has no closed form, but is a mean over draws u = location + scale e that stay the same, so that the
bound is a smooth function of location and scale, and climbed (Giordano, Ingram & Broderick, *Black box variational
inference with a deterministic objective*, JMLR 25, 2024). The draws of every entry divide the normal's probability
evenly; those of two entries have little to do with each other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor
from torch.distributions import biject_to, constraints

from custom_inference.compiled.bayes.beliefs import entry_prior
from custom_inference.compiled.open_sites import OpenSites
from custom_inference.compiled.steps import Steps
from custom_inference.compiled.structure import Bound
from custom_inference.core.optimize.lbfgs import maximise
from custom_inference.core.posteriors import (
    ContinuousPosterior,
    LogitNormalPosterior,
    LogNormalPosterior,
    NormalPosterior,
)
from ppl_models import Model

#: Draws that stand for a normal, iterations of a climb in one update, and the scale that posteriors begin with.
_FIXED, _ITERATIONS, _FIRST = 24, 5, 0.1
#: Numbers up to which scales begin by the curvature.
_CURVED = 300
#: Support -> the posterior of sites without counts.
OPEN: dict[Any, type[ContinuousPosterior]] = {
    constraints.real: NormalPosterior, constraints.positive: LogNormalPosterior,
    constraints.unit_interval: LogitNormalPosterior,
}  # fmt: skip


@functools.cache
def make_noise(size: int) -> Tensor:
    """Return standard normal noise (S, size), always the same."""
    from scipy.stats import qmc  # takes long to load, and is needed by few

    make: Any = qmc.LatinHypercube
    sampler = make(size, scramble=False, seed=np.random.default_rng(0))
    noise = torch.as_tensor(ndtri(sampler.random(_FIXED)))
    return noise / noise.square().mean(0).sqrt()


def transform_of(model: Model, site: str) -> Any:
    """Return the transform from the unconstrained scale to a site's support."""
    return biject_to(model.supports[site])


def draw_free(location: Tensor, scale: Tensor) -> Tensor:
    """Return the unconstrained values (S, *shape) that stand for the posterior of a site."""
    return location + scale * make_noise(location.numel()).reshape(-1, *location.shape).to(location)


def expect_log_prior(model: Model, site: str, location: Tensor, scale: Tensor) -> Tensor:
    """Return the expected log prior of a site, as a density of the unconstrained values."""
    free, transform = draw_free(location, scale), transform_of(model, site)
    value = transform(free)
    density = entry_prior(model, site, value).log_prob(value) + transform.log_abs_det_jacobian(free, value)
    return density.reshape(len(free), -1).sum(-1).mean()


def entropy_of(scale: Tensor) -> Tensor:
    """Return the entropy of independent normals."""
    return (torch.log(scale) + 0.5 * math.log(2 * math.pi * math.e)).sum()


def climb_open(
    model: Model, steps: Steps, rows: Bound, counted: Sequence[Tensor], standing: Mapping[str, Tensor],
    before: Mapping[str, Any], sites: Sequence[str],
) -> dict[str, ContinuousPosterior]:  # fmt: skip
    """Return posteriors of sites without counts that raise the bound, from those before.

    counted: the expected features of every block. standing: values of all sites that stand for the posteriors of the
    others. before: the posteriors, or values to begin at.
    """
    open_sites = steps.open_sites(dict(standing), counted, rows.parts, tuple(sites))
    location, scale = dict[str, Tensor](), dict[str, Tensor]()
    for site in sites:
        one = before[site]
        free = transform_of(model, site).inv(one.double()) if torch.is_tensor(one) else one.location.double()
        location[site] = free.nan_to_num(0.0, 20.0, -20.0)
        scale[site] = torch.full_like(free, torch.nan) if torch.is_tensor(one) else one.scale.double()
    if any(bool(part.isnan().any()) for part in scale.values()):
        scale = _find_scales(model, steps, open_sites, location)

    def place(moved: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
        """Locations and scales, of which all are moved in units of the scales before."""
        return {s: (location[s] + scale[s] * moved[f"{s}/shift"], scale[s] * moved[f"{s}/log"].exp()) for s in sites}

    def bound(moved: dict[str, Tensor]) -> Tensor:
        parts = place(moved)
        draws = {site: draw_free(*part) for site, part in parts.items()}
        values = {site: transform_of(model, site)(drawn) for site, drawn in draws.items()}
        expected = open_sites.expect_over(values)
        others = [expect_log_prior(model, site, *part) + entropy_of(part[1]) for site, part in parts.items()]
        return (expected.mean() + torch.stack(others).sum()) / max(1, len(rows))

    start = {f"{site}/{part}": torch.zeros_like(location[site]) for site in sites for part in ("shift", "log")}
    found, _ = maximise(bound, start, _ITERATIONS)
    made = dict[str, ContinuousPosterior]()
    for site, parts in place(found).items():
        kind: Any = OPEN[model.supports[site]]
        made[site] = kind(*(part.to(rows.like) for part in parts))
    return made


def _find_scales(
    model: Model, steps: Steps, open_sites: OpenSites, location: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return about the standard deviation of every entry given all others, by the curvature where they are; note by
    how much those of all others together are larger, which independent normals do not know."""
    sizes = [value.numel() for value in location.values()]

    def density(vector: Tensor) -> Tensor:
        parts = zip(location.items(), vector.split(sizes), strict=True)
        free = {site: part.reshape(value.shape) for (site, value), part in parts}
        none = {site: torch.zeros_like(value) for site, value in free.items()}
        prior = [expect_log_prior(model, site, value, none[site]) for site, value in free.items()]
        values = {site: transform_of(model, site)(value) for site, value in free.items()}
        return open_sites.expect_at(values) + torch.stack(prior).sum()

    vector = torch.cat([value.reshape(-1) for value in location.values()])
    own = torch.full_like(vector, _FIRST)
    if len(vector) <= _CURVED:
        with torch.enable_grad():
            slopes: Any = torch.autograd.functional.hessian(density, vector)
        curvature = -slopes.diagonal()
        known = curvature.isfinite() & (curvature > 0)
        own = torch.where(known, curvature.clamp(min=1e-300).rsqrt(), own)
        if bool(known.all()):
            steps.dependence.update(compare_spreads(-slopes, dict(zip(location, sizes, strict=True))))
    return {
        site: part.reshape(value.shape) for (site, value), part in zip(location.items(), own.split(sizes), strict=True)
    }


def compare_spreads(precision: Tensor, sizes: Mapping[str, int], *, joint: bool = False) -> dict[str, float]:
    """Return how many times larger standard deviations are under a normal of this precision (M, M) than given all other
    entries, with ``joint`` given the other sites, at most of those of each site."""
    scale = precision.diagonal().clamp(min=1e-300).rsqrt()
    scaled = scale[:, None] * precision * scale  # whatever the units are
    whole = torch.linalg.pinv(scaled, hermitian=True).diagonal().clamp(min=0).sqrt()
    found, start = dict[str, float](), 0
    for site, size in sizes.items():
        part = slice(start, start := start + size)
        alone = torch.linalg.pinv(scaled[part, part], hermitian=True).diagonal().clamp(min=1e-300).sqrt()
        found[site] = float((whole[part] / (alone if joint else 1.0)).max()) if size else 1.0
    return found
