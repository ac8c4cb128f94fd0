"""What is asked of priors: their supports, whether they are flat, and that they suit their sites."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import ModelError
from ppl_models.distributions import Flat


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return tuple(torch.broadcast_shapes(shape, target)) == target
    except RuntimeError:
        return False


def moved_like(prior: Any, like: Tensor | None) -> Any:
    """The distribution with its parameters on the dtype and device of ``like``."""
    if isinstance(prior, Flat):
        return Flat(moved_like(prior.proposal, like))
    names = getattr(prior, "arg_constraints", {})
    if like is None or not names:
        return prior
    arguments = {n: getattr(prior, n) for n in names if n in getattr(prior, "__dict__", {}) or hasattr(type(prior), n)}
    # Not ``v.to(like)``: where Pyro tracks what a site depends on, that would make it depend on ``like``.
    kind: Any = {"dtype": like.dtype, "device": like.device}
    moved = {n: v.to(**kind) if isinstance(v, Tensor) else v for n, v in arguments.items()}
    if all(v is moved[n] for n, v in arguments.items()):
        return prior
    if "probs" in moved and "logits" in moved:
        del moved["logits"]
    return type(prior)(**moved, validate_args=False)


def is_flat(prior: Any) -> bool:
    """Whether a prior moves no maximum (``Flat``, uniform on [0, 1] or on the simplex): ``log_prior`` leaves it out."""
    if isinstance(prior, Flat):
        return True
    if isinstance(prior, torch.distributions.Dirichlet):
        return bool((prior.concentration == 1).all())
    if isinstance(prior, torch.distributions.Beta):
        return bool((prior.concentration1 == 1).all() and (prior.concentration0 == 1).all())
    return isinstance(prior, torch.distributions.Uniform) and bool((prior.low == 0).all() and (prior.high == 1).all())


def support_of(prior: Any) -> Any:
    """The support of one element of a distribution, whatever of its axes are events; None where it has none."""
    support = getattr(prior, "support", None)
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support


def require_unit_interval(model: Any, *sites: str) -> None:
    """Refuse priors with mass outside [0, 1] for sites that are probabilities."""
    _require_within(model, sites, 1.0, "a probability", "[0, 1]")


def require_positive(model: Any, *sites: str) -> None:
    """Refuse priors with mass below 0 for sites that are rates or scales."""
    _require_within(model, sites, math.inf, "positive", "(0, inf)")


def _require_within(model: Any, sites: tuple[str, ...], highest: float, what: str, interval: str) -> None:
    for site in sites:
        support = support_of(model.priors[site])
        lower, upper = getattr(support, "lower_bound", None), getattr(support, "upper_bound", math.inf)
        if lower is None or bool((torch.as_tensor(lower) < 0).any() or (torch.as_tensor(upper) > highest).any()):
            name = type(model.priors[site]).__name__
            raise ModelError(f"'{site}' is {what}; the prior {name} has support {support}, not within {interval}")


def require_simplex(model: Any, site: str) -> None:
    """Refuse priors over anything but the simplex for a site that is a vector of proportions."""
    prior, size = model.priors[site], model._shape_of(site)[-1]
    on_simplex = isinstance(getattr(prior, "support", None), type(constraints.simplex))
    if not on_simplex or tuple(getattr(prior, "event_shape", ())) != (size,):
        name = type(prior).__name__
        raise ModelError(f"'{site}' is a point of the simplex of {size}; expected a Dirichlet or the like, not {name}")
