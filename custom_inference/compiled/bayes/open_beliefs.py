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
    return biject_to(model.sites[site].support)


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
    start, open_sites = dict[str, Tensor](), steps.open_sites(dict(standing), counted, rows.parts, tuple(sites))
    for site in sites:
        one = before[site]
        value = torch.is_tensor(one)
        location = transform_of(model, site).inv(one.double()) if value else one.location.double()
        start[f"{site}/location"] = location.nan_to_num(0.0, 20.0, -20.0)
        start[f"{site}/log_scale"] = torch.full_like(location, _FIRST).log() if value else one.scale.double().log()

    def bound(free: dict[str, Tensor]) -> Tensor:
        parts = {site: (free[f"{site}/location"], free[f"{site}/log_scale"].exp()) for site in sites}
        draws = {site: draw_free(*part) for site, part in parts.items()}
        values = {site: transform_of(model, site)(drawn) for site, drawn in draws.items()}
        expected = open_sites.expect_over(values)
        others = [expect_log_prior(model, site, *part) + entropy_of(part[1]) for site, part in parts.items()]
        return (expected.mean() + torch.stack(others).sum()) / max(1, len(rows))

    found, _ = maximise(bound, start, _ITERATIONS)
    like, made = rows.like, dict[str, ContinuousPosterior]()
    for site in sites:
        kind: Any = OPEN[model.sites[site].support]
        made[site] = kind(found[f"{site}/location"].to(like), found[f"{site}/log_scale"].exp().to(like))
    return made
