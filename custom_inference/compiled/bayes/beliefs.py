"""Posteriors over the sites of a compiled program, each independent of the others: what they are updated by, their
moments, and their divergence from the prior.

With the counts of ``counts`` under the posteriors of all else the best posterior of a site is in closed form under
conjugate priors; of single numbers under any prior it is known up to a constant, and kept on a grid.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, biject_to, constraints

from custom_inference.core.posteriors import (
    BetaPosterior,
    ContinuousPosterior,
    DirichletPosterior,
    GammaPosterior,
    GridPosterior,
    NormalPosterior,
)
from custom_inference.families.conjugate.beta import Beta
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.conjugate.gamma import Gamma
from custom_inference.families.conjugate.normal import Normal
from ppl_models import MethodError, Model
from ppl_models.core.priors import is_flat

#: Points of a grid, the rounds in which its ends are found, and how far below its top a density ends, in nats.
_POINTS, _ROUNDS, _BELOW = 161, 6, 45.0
#: How far grids reach at first, on scales of logarithms and logits; and on the reals in standard deviations, with how
#: many draws of the prior.
_REACH, _DEVIATIONS, _DRAWS = 60.0, 60.0, 200

#: What is counted of the entries of a site, by name (``laws.COUNTED``).
Counts = Mapping[str, Tensor]


def update_conjugate(model: Model, site: str, role: str, counts: Counts) -> ContinuousPosterior:
    """Return the posterior of a site under its conjugate prior. counts: each of the site's shape."""
    first = next(iter(counts.values()))
    if role == "chance":
        on, off = Beta.of(model, site, first).update(counts["on"], counts["on"] + counts["off"])
        return BetaPosterior(on, off)
    if role == "proportion":
        return DirichletPosterior((_dirichlet_prior(model, site, first) + counts["count"]).expand_as(first))
    if role == "rate":
        shape, rate = Gamma.of(model, site, first).update(counts["events"], counts["exposure"])
        return GammaPosterior(shape.expand_as(first), rate.expand_as(first))
    normal = Normal.of(model, site, tuple(first.shape), first)
    precision = normal.precision + counts["precision"]
    return NormalPosterior((normal.precision * normal.mean + counts["pull"]) / precision, precision.rsqrt())


def entry_prior(model: Model, site: str, like: Tensor) -> Any:
    """Return the prior of every entry by itself."""
    prior: Any = model.prior(site, like=like)
    while type(prior).__name__ == "Independent":  # the density of each entry is asked, not of all together
        prior = prior.base_dist
    return prior


def update_on_grid(model: Model, site: str, role: str, counts: Counts) -> GridPosterior:
    """Return the posterior of single numbers under any prior: prior times the exponential of what is counted, at points
    that are even on the unconstrained scale and reach as far as the density does."""
    parts = [part.double().unsqueeze(-1) for part in counts.values()]
    prior = entry_prior(model, site, parts[0])
    transform: Any = biject_to(constraints.real if role == "place" else prior.support)
    shape = parts[0].shape[:-1]
    prior = prior.expand(shape)

    def log_density(free: Tensor) -> tuple[Tensor, Tensor]:
        """Return values (..., G), and their log densities on the unconstrained scale."""
        value = transform(free)
        volume = transform.log_abs_det_jacobian(free, value)
        of_prior = prior.log_prob(value.movedim(-1, 0)).movedim(0, -1)
        found = SAID[role](parts, value) + of_prior + volume
        return value, torch.where(found.isnan(), -torch.inf, found)

    low, high = _span(role, parts, prior, shape)
    unit = torch.linspace(0, 1, _POINTS, dtype=torch.float64)
    for _ in range(_ROUNDS):
        free = low.unsqueeze(-1) + (high - low).unsqueeze(-1) * unit
        value, density = log_density(free)
        inside = density > density.amax(-1, keepdim=True) - _BELOW
        first, last = inside.long().argmax(-1), _POINTS - 1 - inside.flip(-1).long().argmax(-1)
        low, high = (
            free.gather(-1, place.clamp(0, _POINTS - 1).unsqueeze(-1))[..., 0] for place in (first - 1, last + 1)
        )
        low, high = torch.minimum(low, high - 1e-12 * (1 + high.abs())), high
    log_weight = torch.log_softmax(density, -1)
    step = (free[..., 1] - free[..., 0]).log().unsqueeze(-1)
    volume = transform.log_abs_det_jacobian(free, value)
    like = next(iter(counts.values()))
    return GridPosterior(value.to(like), (log_weight - step - volume).to(like), log_weight.to(like))


def _span(role: str, parts: list[Tensor], prior: Distribution, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Return between which points of the unconstrained scale the density certainly lies, (...) each."""
    if role != "place":
        reach = torch.full(shape, _REACH, dtype=torch.float64)
        return -reach, reach
    pull, precision = (part[..., 0] for part in parts)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        drawn = prior.sample(torch.Size([_DRAWS]))
    ends = [drawn.amin(0), drawn.amax(0)]
    spread = ends[1] - ends[0]
    stands = precision > 0
    mean = torch.where(stands, pull / precision.clamp(min=1e-300), ends[0])
    width = torch.minimum(torch.where(stands, _DEVIATIONS * precision.clamp(min=1e-300).rsqrt(), spread), 20 * spread)
    return torch.minimum(ends[0] - spread, mean - width), torch.maximum(ends[1] + spread, mean + width)


#: The part that entries play -> what is said of values by what is counted.
SAID: dict[str, Any] = {
    "chance": lambda parts, v: torch.xlogy(parts[0], v) + torch.xlogy(parts[1], 1 - v),
    "rate": lambda parts, v: torch.xlogy(parts[0], v) - parts[1] * v,
    "place": lambda parts, v: parts[0] * v - 0.5 * parts[1] * v.square(),
    "spread": lambda parts, v: -parts[1] * torch.log(v) - 0.5 * parts[0] / v.square(),
}


@functools.singledispatch
def diverge(posterior: ContinuousPosterior, model: Model, site: str) -> Tensor:
    """Return KL(posterior || prior) of a site, all entries together. Raises MethodError of other kinds."""
    raise MethodError(f"no divergence of the {type(posterior).__name__} of '{site}' of {type(model).__name__}")


@diverge.register
def _(posterior: BetaPosterior, model: Model, site: str) -> Tensor:
    return Beta(posterior.on, posterior.off).kl(Beta.of(model, site, posterior.on)).sum()


@diverge.register
def _(posterior: DirichletPosterior, model: Model, site: str) -> Tensor:
    own = posterior.concentration
    return Dirichlet(own).kl(_dirichlet_prior(model, site, own).expand_as(own)).sum()


@diverge.register
def _(posterior: GammaPosterior, model: Model, site: str) -> Tensor:
    return Gamma(posterior.shape, posterior.rate).kl(Gamma.of(model, site, posterior.shape)).sum()


@diverge.register
def _(posterior: GridPosterior, model: Model, site: str) -> Tensor:
    value = posterior.value.double().movedim(-1, 0)
    of_prior = entry_prior(model, site, value).expand(posterior.mean.shape).log_prob(value).movedim(0, -1)
    weight = posterior.log_weight.double().exp()
    return torch.where(weight > 0, weight * (posterior.log_density.double() - of_prior), 0.0).sum()


def _dirichlet_prior(model: Model, site: str, like: Tensor) -> Tensor:
    """Return the concentrations of a Dirichlet or flat prior."""
    return torch.ones_like(like) if is_flat(model.priors[site]) else Dirichlet.of(model, site, like).concentration


@functools.singledispatch
def expect_entries(posterior: ContinuousPosterior, role: str) -> dict[str, Tensor]:
    """Return the moments (``moments``) of the entries of a site that play a part, each of the site's shape."""
    del role
    return {"value": posterior.mean}


@expect_entries.register
def _(posterior: BetaPosterior, role: str) -> dict[str, Tensor]:
    del role
    log, rest = Beta(posterior.on, posterior.off).expected()
    return {"value": posterior.mean, "log": log, "rest": rest}


@expect_entries.register
def _(posterior: DirichletPosterior, role: str) -> dict[str, Tensor]:
    del role
    return {"value": posterior.mean, "log": Dirichlet(posterior.concentration).expected()}


@expect_entries.register
def _(posterior: GammaPosterior, role: str) -> dict[str, Tensor]:
    del role
    return {"value": posterior.mean, "log": Gamma(posterior.shape, posterior.rate).expected()[0]}


@expect_entries.register
def _(posterior: GridPosterior, role: str) -> dict[str, Tensor]:
    found = {"value": posterior.mean}
    value, limits = posterior.value, torch.finfo(posterior.value.dtype)
    if role != "place":
        found["log"] = posterior.expect(torch.log(value.clamp(min=limits.tiny)))
    if role == "chance":
        found["rest"] = posterior.expect(torch.log1p(-value.clamp(max=1 - limits.eps)))
    if role == "spread":
        found["precision"] = posterior.expect(value.clamp(min=limits.tiny**0.25) ** -2)
    return found
