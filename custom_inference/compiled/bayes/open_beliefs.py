"""Posteriors of sites without counts: one normal of all their entries on the unconstrained scale, by fixed draws.

What is said of them has no closed form, but is a mean over draws u = location + root e that stay the same, so that the
bound is a smooth function of the location and the root, and climbed (Giordano, Ingram & Broderick, *Black box
variational inference with a deterministic objective*, JMLR 25, 2024). The draws of every number of e divide the
normal's probability evenly; those of two numbers are uncorrelated where these are fewer than the draws.

So few draws cannot say what the whole root is. It is R diag(s) with R R' the inverse of the curvature at the location,
which says how entries depend on each other, and s is climbed: a normal in the basis in which the density is about
round. Of more entries than their curvature is computed of R is a diagonal, and entries are independent.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
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
    JointLogitNormalPosterior,
    JointLogNormalPosterior,
    JointNormalPosterior,
    LogitNormalPosterior,
    LogNormalPosterior,
    NormalPosterior,
)
from custom_inference.core.posteriors.entries import gauss_hermite
from ppl_models import Model

#: Draws that stand for a normal, iterations of a climb in one update, and the scale that posteriors begin with.
_FIXED, _ITERATIONS, _FIRST = 24, 5, 0.1
#: Entries up to which they have one normal.
_TOGETHER = 300
#: The least curvature along a direction, on scales on which that of every entry is 1.
_FLAT = 1e-10
#: How far curvatures may be from 1 in the basis of a root before it is found anew.
_STALE = 0.1
#: Support -> the posterior of sites without counts: of their entries together, and of independent ones.
OPEN: dict[Any, tuple[type[ContinuousPosterior], type[ContinuousPosterior]]] = {
    constraints.real: (JointNormalPosterior, NormalPosterior),
    constraints.positive: (JointLogNormalPosterior, LogNormalPosterior),
    constraints.unit_interval: (JointLogitNormalPosterior, LogitNormalPosterior),
}


@functools.cache
def make_noise(size: int) -> Tensor:
    """Return standard normal noise (S, size), always the same."""
    from scipy.stats import qmc  # takes long to load, and is needed by few

    make: Any = qmc.LatinHypercube
    sampler = make(size, scramble=False, seed=np.random.default_rng(0))
    noise = torch.as_tensor(ndtri(sampler.random(_FIXED)))
    if size >= _FIXED:
        return noise / noise.square().mean(0).sqrt()
    value, vector = torch.linalg.eigh(noise.mT @ noise / _FIXED)
    return noise @ (vector * value.rsqrt()) @ vector.mT  # squares and products are what they are of normals


def transform_of(model: Model, site: str) -> Any:
    """Return the transform from the unconstrained scale to a site's support."""
    return biject_to(model.supports[site])


def draw_free(location: Tensor, root: Tensor) -> Tensor:
    """Return the unconstrained values (S, M) that stand for a normal of all entries: location (M,); root (M, M) of its
    covariance, or of independent entries its diagonal (M,)."""
    noise = make_noise(len(location)).to(location)
    return location + (noise * root if root.ndim == 1 else noise @ root.mT)


def split_values(model: Model, sites: Sequence[str], free: Tensor) -> dict[str, Tensor]:
    """Return the values (S, *shape) of sites from the unconstrained values (S, M) of all of them."""
    parts = free.split([torch.Size(model.shapes[site]).numel() for site in sites], -1)
    return {
        site: transform_of(model, site)(part.reshape(-1, *model.shapes[site]))
        for site, part in zip(sites, parts, strict=True)
    }


def stack_open(posteriors: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Return the location (M,) and the root of the normal that posteriors of sites without counts are of."""
    location = torch.cat([one.location.reshape(-1) for one in posteriors]).double()
    if posteriors[0].drawn_together:  # the first numbers of the noise are those of linear predictors
        return location, torch.cat([one.root for one in posteriors])[:, -len(location) :].double()
    return location, torch.cat([one.scale.reshape(-1) for one in posteriors]).double()


def expect_log_prior(model: Model, site: str, location: Tensor, root: Tensor) -> Tensor:
    """Return the expected log prior of a site, as a density of the unconstrained values, whose normal has a location
    (M,), and a root (M, L) of its covariance, or of independent entries its diagonal (M,)."""
    transform, prior = transform_of(model, site), entry_prior(model, site, location)
    if prior.event_dim:
        covariance = torch.diag(root.square()) if root.ndim == 1 else root @ root.mT
        free, weight = draw_free(location, torch.linalg.cholesky(covariance)), location.new_tensor(1 / _FIXED)
    else:
        node, weight = (part.to(location) for part in gauss_hermite())
        free = location + (root if root.ndim == 1 else root.square().sum(-1).sqrt()) * node.unsqueeze(-1)
    free = free.reshape(-1, *model.shapes[site])
    value = transform(free)
    density = prior.log_prob(value) + transform.log_abs_det_jacobian(free, value)
    return (weight * density.reshape(len(free), -1).sum(-1)).sum()


def entropy_of(root: Tensor) -> Tensor:
    """Return the entropy of a normal, from a root (M, M) of its covariance or its diagonal (M,)."""
    log_det = root.abs().log().sum() if root.ndim == 1 else torch.linalg.slogdet(root)[1]
    return log_det + 0.5 * len(root) * math.log(2 * math.pi * math.e)


def climb_open(
    model: Model, steps: Steps, rows: Bound, counted: Sequence[Tensor], standing: Mapping[str, Tensor],
    before: Mapping[str, Any], sites: Sequence[str],
) -> dict[str, ContinuousPosterior]:  # fmt: skip
    """Return posteriors of sites without counts that raise the bound, from those before.

    counted: the expected features of every block. standing: values of all sites that stand for the posteriors of the
    others. before: the posteriors, or values to begin at.
    """
    open_sites = steps.open_sites(dict(standing), counted, rows.parts, tuple(sites))
    sizes = [torch.Size(model.shapes[site]).numel() for site in sites]

    def expect(location: Tensor, root: Tensor) -> Tensor:
        """Return the expected log joint; at the location itself where the root is 0."""
        free = draw_free(location, root) if bool(root.any()) else location.unsqueeze(0)
        expected = open_sites.expect_over(split_values(model, sites, free)).mean()
        parts = zip(sites, location.split(sizes), root.split(sizes), strict=True)
        return expected + torch.stack([expect_log_prior(model, site, *part) for site, *part in parts]).sum()

    def bound(location: Tensor, root: Tensor) -> Tensor:
        return (expect(location, root) + entropy_of(root)) / max(1, len(rows))

    def density(vector: Tensor) -> Tensor:
        return expect(vector, torch.zeros_like(vector))

    if torch.is_tensor(before[sites[0]]):
        free = [transform_of(model, site).inv(before[site].double()).reshape(-1) for site in sites]
        location = torch.cat(free).nan_to_num(0.0, 20.0, -20.0)
        best = torch.full_like(location, _FIRST) if len(location) > _TOGETHER else _find_root(density, location)
    else:
        location, best = stack_open([before[site] for site in sites])
        if best.ndim == 2 and _is_stale(density, location, best):
            again = _find_root(density, location)
            best = again if bool(bound(location, again) > bound(location, best)) else best

    def place(moved: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the location and the root, moved in the basis of the root."""
        shift = best * moved["shift"] if best.ndim == 1 else best @ moved["shift"]
        return location + shift, best * moved["log"].exp()

    start = {name: torch.zeros_like(location) for name in ("shift", "log")}
    location, root = place(maximise(lambda moved: bound(*place(moved)), start, _ITERATIONS)[0])
    made = dict[str, ContinuousPosterior]()
    for site, mean, part in zip(sites, location.split(sizes), root.split(sizes), strict=True):
        shape, like = model.shapes[site], rows.like
        kind: Any = OPEN[model.supports[site]][root.ndim == 1]
        made[site] = kind(mean.reshape(shape).to(like), (part.reshape(shape) if root.ndim == 1 else part).to(like))
    return made


def _is_stale(density: Callable[[Tensor], Tensor], location: Tensor, root: Tensor) -> bool:
    """Tell whether the curvature is another than that which a root is of, by one product with it."""
    noise = make_noise(len(location))[0].sign()
    with torch.enable_grad():
        product: Any = torch.autograd.functional.hvp(density, location, root @ noise)[1]
    return not bool(((root.mT @ product + noise).abs() <= _STALE).all())


def _find_root(density: Callable[[Tensor], Tensor], location: Tensor) -> Tensor:
    """Return R (M, M) with R R' the inverse of the curvature of a density, whatever the units of its numbers."""
    with torch.enable_grad():
        slopes: Any = torch.autograd.functional.hessian(density, location)
    curvature = -0.5 * (slopes + slopes.mT).nan_to_num(0.0, 0.0, 0.0)
    own = curvature.diagonal()
    scale = torch.where(own > 0, own, _FIRST**-2).clamp(min=1e-300).rsqrt()
    value, vector = torch.linalg.eigh(scale[:, None] * curvature * scale)
    return scale[:, None] * vector * value.abs().clamp(min=_FLAT).rsqrt()
