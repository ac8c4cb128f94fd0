"""Priors: their supports, whether they are flat, and checks that they suit their sites."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyro.distributions as dist
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import ModelError, a_value_of
from ppl_models.distributions import Flat


def move_prior(prior: Any, like: Tensor | None) -> Any:
    """The distribution with its parameters on the dtype and device of ``like``."""
    if isinstance(prior, Flat):
        return Flat(move_prior(prior.proposal, like))
    if like is None:
        return prior
    if isinstance(prior, torch.distributions.MixtureSameFamily):
        parts = (move_prior(part, like) for part in (prior.mixture_distribution, prior.component_distribution))
        return type(prior)(*parts, validate_args=False)
    if isinstance(prior, torch.distributions.Independent):
        base = move_prior(prior.base_dist, like)
        return base if prior.reinterpreted_batch_ndims == 0 else base.to_event(prior.reinterpreted_batch_ndims)
    names = getattr(prior, "arg_constraints", {})
    if not names and isinstance(prior, torch.distributions.TransformedDistribution):
        return type(prior)(move_prior(prior.base_dist, like), prior.transforms, validate_args=False)
    if not names:
        return prior
    arguments = {n: getattr(prior, n) for n in names if n in getattr(prior, "__dict__", {}) or hasattr(type(prior), n)}
    # Not ``v.to(like)``: where Pyro tracks what a site depends on, that would make it depend on ``like``.
    kind: Any = {"dtype": like.dtype, "device": like.device}
    moved = {n: v.to(**kind) if torch.is_tensor(v) else v for n, v in arguments.items()}
    if all(v is moved[n] for n, v in arguments.items()):
        return prior
    if "probs" in moved and "logits" in moved:
        del moved["logits"]
    if "scale_tril" in moved:  # a normal's other two follow from it
        moved = {n: v for n, v in moved.items() if n not in ("covariance_matrix", "precision_matrix")}
    return type(prior)(**moved, validate_args=False)


def is_law(prior: Any) -> bool:
    """Whether a prior is a distribution."""
    return isinstance(prior, torch.distributions.Distribution)


def element_of(prior: Any) -> Any:
    """Return the distribution of one element of a prior whose axes are events."""
    while isinstance(prior, torch.distributions.Independent):
        prior = prior.base_dist
    return prior


def describe_prior(prior: Any) -> str:
    """A distribution with its numbers: "Beta(2, 9)"; of tensors that are not all alike their shapes."""
    value = value_if_known(prior)
    if value is not None:
        return f"known {float(value):g}" if value.numel() == 1 else f"known, shape {tuple(value.shape)}"
    if not is_law(prior):
        return f"a function of {', '.join(inspect.signature(prior).parameters)}"
    values = []
    other = {"logits": "probs", "probs": "logits"}  # one of them follows from the other
    for name in getattr(prior, "arg_constraints", {}):
        value = None if other.get(name) in vars(prior) else getattr(prior, name, None)
        if torch.is_tensor(value):
            same = value.numel() and bool((value == value.flatten()[0]).all())
            values.append(f"{float(value.flatten()[0]):g}" if same else f"{name} {tuple(value.shape)}")
    name = type(prior).__name__
    return f"{name}({', '.join(values)})" if values else name


def value_if_known(prior: Any) -> Tensor | None:
    """The value of a known site, of a prior with all mass on it; None of any other prior."""
    return prior.v if isinstance(prior, dist.Delta) else None


#: Kinds of distributions -> the parameters with which they are flat.
_FLAT: dict[type, dict[str, float]] = {
    Flat: {},
    torch.distributions.Dirichlet: {"concentration": 1.0},
    torch.distributions.Beta: {"concentration1": 1.0, "concentration0": 1.0},
    torch.distributions.Uniform: {"low": 0.0, "high": 1.0},
}


def is_flat(prior: Any) -> bool:
    """Whether a prior moves no maximum (``Flat``, uniform on [0, 1] or on the simplex): ``log_prior`` leaves it out."""
    known = next((parameters for kind, parameters in _FLAT.items() if isinstance(prior, kind)), None)
    return known is not None and all(bool((getattr(prior, name) == value).all()) for name, value in known.items())


def support_of(prior: Any) -> Any:
    """The support of one element of a distribution, whatever of its axes are events; None where it has none."""
    support = getattr(prior, "support", None)
    while isinstance(support, constraints.independent | constraints.MixtureSameFamilyConstraint):
        support = support.base_constraint
    return support


def is_bounded(prior: Any) -> bool:
    """Whether the support of one element of a distribution ends somewhere."""
    support = support_of(prior)
    return any(getattr(support, end, None) is not None for end in ("lower_bound", "upper_bound"))


def require_prior(site: str, prior: Any, shape: tuple[int, ...]) -> None:
    """Raises ModelError for what is no distribution of one element of the site, cannot be drawn from, or does not
    broadcast to its shape."""
    if not (is_law(prior) and hasattr(prior, "to_event")):
        expected = "expected a Pyro distribution such as pyro.distributions.Beta(1., 9.)"
        raise ModelError(f"prior of '{site}' is {a_value_of(type(prior))}, {expected}")
    element = element_of(prior)
    if type(element_of(getattr(element, "proposal", element))) is dist.ImproperUniform:
        expected = "expected ppl_models.distributions.Flat of a distribution with this support, which draws come from"
        raise ModelError(f"prior of '{site}' is ImproperUniform, which programs cannot draw from; {expected}")
    event, found = tuple(prior.event_shape), tuple(prior.batch_shape)
    if isinstance(prior, torch.distributions.Dirichlet) and not bool((prior.concentration > 0).all()):
        worst = float(prior.concentration.min())
        raise ModelError(f"prior of '{site}' has a concentration of {worst:g}, expected positive numbers")
    batch = shape[: max(0, len(shape) - len(event))]
    try:
        fits = batch + event == shape and tuple(np.broadcast_shapes(found, batch)) == batch
    except ValueError:
        fits = False
    if not fits:
        expected = f"expected a distribution of one element, or one that broadcasts to {shape}"
        raise ModelError(f"prior of '{site}' has batch shape {found} and event shape {event}; {expected}")


#: Supports of which a prior must not have mass below 0.
_BELOW_0_REFUSED = (constraints.unit_interval, constraints.positive, constraints.nonnegative)


def require_support(site: str, prior: Any, support: constraints.Constraint | None, shape: tuple[int, ...]) -> None:
    """Raises ModelError for a prior with mass outside the support that its site of this shape declares."""
    name, found = type(prior).__name__, getattr(prior, "support", None)
    value = value_if_known(prior)
    if value is not None:
        ok = torch.isfinite(value).all() if support is None else support.check(value.expand(shape)).all()
        if not bool(ok):
            raise ModelError(f"the known value of '{site}' is not within its support, {support}")
    elif support is constraints.simplex:
        if support_of(prior) is not support or tuple(prior.event_shape) != shape[-1:]:
            expected = "expected a Dirichlet or the like"
            raise ModelError(f"'{site}' is a point of the simplex of {shape[-1]}; {expected}, not {name}")
    elif support is constraints.positive_definite:
        if found is not support:
            raise ModelError(f"the prior {name} of '{site}' is not over positive definite matrices")
    elif getattr(found, "is_discrete", False) and not getattr(support, "is_discrete", True):
        raise ModelError(f"'{site}' has {support} for its support; the prior {name} is discrete, expected a density")
    elif support in _BELOW_0_REFUSED or getattr(support, "has_atom", False):
        what, highest = ("a probability", 1.0) if support is constraints.unit_interval else ("positive", math.inf)
        found = support_of(prior)
        lower, upper = getattr(found, "lower_bound", None), getattr(found, "upper_bound", math.inf)
        if lower is None or bool((torch.as_tensor(lower) < 0).any() or (torch.as_tensor(upper) > highest).any()):
            raise ModelError(f"'{site}' is {what}; the prior {name} has support {found}, not within [0, {highest:g}]")


def dirichlet(
    site: str, value: float | Sequence[Any] | NDArray[Any] | Tensor, size: int, rows: int | None = None
) -> Any:
    """The Dirichlet of these concentrations: one number, (size,), or where there are several, (rows, size).

    Raises ModelError for others, and none above 0.
    """
    own = f"{size} of them" + ("" if rows is None else f", or ({rows}, {size})")
    try:
        concentration = torch.as_tensor(value, dtype=torch.get_default_dtype())
    except (TypeError, ValueError, RuntimeError):
        raise ModelError(f"concentration of '{site}' = {value!r}, expected one number or {own}") from None
    shape = tuple(concentration.shape)
    if shape not in ((), (size,), (rows, size)):
        raise ModelError(f"concentration of '{site}' of shape {shape}, expected one number or {own}")
    if not bool(((concentration > 0) & torch.isfinite(concentration)).all()):
        worst = float(concentration.min())
        raise ModelError(f"concentration of '{site}' is {worst:g}, expected positive finite numbers")
    return dist.Dirichlet(concentration.expand(shape or (size,)).clone())
