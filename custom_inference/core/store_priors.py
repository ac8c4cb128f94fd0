"""Priors as JSON: the name of a distribution and numbers. Nothing but distributions can be named."""

from __future__ import annotations

import functools
import inspect
import math
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from ppl_models import FileFormatError, distributions
from ppl_models.distributions import Flat


@functools.singledispatch
def prior_to_json(prior: Distribution) -> dict[str, Any]:
    """Return the name and the parameters of a distribution; of one that is made of others these."""
    names = _parameters(type(prior))
    if {"probs", "logits"} <= set(names):  # either will do, not both
        names.remove("probs" if "logits" in vars(prior) else "logits")
    if "scale_tril" in names:
        names = [name for name in names if name not in ("covariance_matrix", "precision_matrix")]
    arguments = {n: _numbers_to_json(torch.as_tensor(getattr(prior, n))) for n in names}
    return {"distribution": type(prior).__name__, "arguments": arguments}


@prior_to_json.register
def _(prior: Flat) -> dict[str, Any]:
    return {"flat": prior_to_json(prior.proposal)}


@prior_to_json.register
def _(prior: torch.distributions.Independent) -> dict[str, Any]:
    return {"independent": prior_to_json(prior.base_dist), "axes": prior.reinterpreted_batch_ndims}


@prior_to_json.register
def _(prior: torch.distributions.MixtureSameFamily) -> dict[str, Any]:
    return {"mixture": [prior_to_json(part) for part in (prior.mixture_distribution, prior.component_distribution)]}


@prior_to_json.register
def _(prior: torch.distributions.TransformedDistribution) -> dict[str, Any]:
    """Describe coordinates of stick-breaking, mapped to the simplex, by their law; others by their own parameters."""
    breaks_sticks = [type(one) for one in prior.transforms] == [torch.distributions.StickBreakingTransform]
    if breaks_sticks and not _parameters(type(prior)):
        return {"sticks": prior_to_json(prior.base_dist)}
    return prior_to_json.dispatch(object)(prior)


def prior_from_json(entry: Any, dtype: torch.dtype, *, most: int) -> Any:
    """The distribution that :func:`prior_to_json` described.

    most: numbers that a parameter may consist of. A file of a few bytes can ask for any number of equal ones.

    Raises FileFormatError for what is no distribution, and for parameters that it does not take.
    """
    if not isinstance(entry, dict):
        raise FileFormatError(f"prior {show(entry)}, expected a distribution with its arguments")
    if "flat" in entry:
        return Flat(prior_from_json(entry["flat"], dtype, most=most))
    if entry.keys() & _NESTED:
        return _read_nested(entry, dtype, most)
    name, given = entry.get("distribution"), entry.get("arguments")
    kind = getattr(dist, name, getattr(distributions, name, None)) if isinstance(name, str) else None
    if not (isinstance(kind, type) and issubclass(kind, Distribution)):
        raise FileFormatError(f"prior of unknown distribution {show(name)}")
    known = _parameters(kind)
    if not known or not isinstance(given, dict) or not set(given) <= set(known):
        raise FileFormatError(f"prior {name} with arguments {show(given)}, expected some of {known}")
    arguments: dict[str, Any] = {one: _numbers_from_json(value, dtype, most) for one, value in given.items()}
    try:
        return kind(**arguments, validate_args=True)  # refuses NaN and what lies outside of the parameter's support
    except (TypeError, ValueError, RuntimeError) as error:
        raise FileFormatError(f"prior {name} of unusable arguments: {str(error).splitlines()[0]}") from None


#: What priors that are made of others are stored by.
_NESTED = {"independent", "mixture", "sticks"}


def _read_nested(entry: dict[str, Any], dtype: torch.dtype, most: int) -> Any:
    kind, value = next((name, entry[name]) for name in entry if name in _NESTED)
    parts = value if kind == "mixture" else [value]
    if not isinstance(parts, list) or len(parts) != (2 if kind == "mixture" else 1):
        raise FileFormatError(f"prior {show(entry)}, expected the parts of a {kind}")
    found, axes = [prior_from_json(part, dtype, most=most) for part in parts], entry.get("axes", 0)
    try:
        if kind == "mixture":
            return dist.MixtureSameFamily(*found)
        if kind == "sticks":
            return dist.TransformedDistribution(found[0], [torch.distributions.StickBreakingTransform()])
        return found[0].to_event(axes)
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise FileFormatError(f"prior {show(entry)}: {str(error).splitlines()[0]}") from None


def refuse(wrong: bool, problem: str) -> None:
    """Raise FileFormatError where something is wrong."""
    if wrong:
        raise FileFormatError(problem)


def show(value: Any) -> str:
    """Show a value in at most 60 characters, for errors."""
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _parameters(kind: type) -> list[str]:
    """The tensors that a distribution is made of: parameters with a constraint that its constructor takes."""
    constraints = getattr(kind, "arg_constraints", {})
    accepted = inspect.signature(kind.__init__).parameters
    return [name for name in constraints if name in accepted] if isinstance(constraints, dict) else []


def _numbers_to_json(value: Tensor) -> Any:
    """Nested lists; of equal numbers (a symmetric Dirichlet over a vocabulary) the number and the shape."""
    first = value.flatten()[:1]
    if value.numel() > 1 and bool((value == first).all()):
        return {"all": first.item(), "shape": list(value.shape)}
    return value.tolist()


def _numbers_from_json(entry: Any, dtype: torch.dtype, most: int) -> Tensor:
    if not isinstance(entry, dict):
        try:
            return torch.tensor(entry, dtype=dtype)
        except (TypeError, ValueError, RuntimeError):
            raise FileFormatError(f"{show(entry)}, expected numbers") from None
    shape: Any = entry.get("shape")
    number = entry.get("all")
    sized = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    if not sized or not isinstance(number, int | float):
        raise FileFormatError(f"{show(entry)}, expected a number and a shape")
    if math.prod(shape) > most:
        raise FileFormatError(f"a parameter of shape {show(shape)} in a fit of {most} numbers")
    return torch.full(shape, number, dtype=dtype)
