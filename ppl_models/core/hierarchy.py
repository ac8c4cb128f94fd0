"""Priors that are no distributions: values (the site is known), and functions of earlier sites (hyper-priors).

A function's arguments are names of sites. A name that is not a site of the model is a hyper-parameter, a global site of
its own with the prior that is given under that name:

    model.with_priors(strength=dist.Gamma(2.0, 1.0), source_prior=lambda strength: dist.Beta(strength, 1.0))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch
from pyro.distributions import Delta
from torch import Tensor
from torch.distributions import Distribution, constraints

from ppl_models.core.errors import ModelError, a_value_of, digits, is_real, list_some, unknown_name
from ppl_models.core.priors import is_law, require_prior, require_support, support_of, value_if_known
from ppl_models.core.sites import Site


class SitesOf:
    """A model's ``sites``, a mapping or a property, with its hyper-parameters in front."""

    def __init__(self, own: Any):
        self.own = own

    def __get__(self, model: Any, kind: type | None = None) -> Any:
        if isinstance(self.own, property):
            if model is None:
                return self
            assert self.own.fget is not None
            return {**model.hyper_sites, **self.own.fget(model)}
        return self.own if model is None or not model.hyper_sites else {**model.hyper_sites, **self.own}


def find_twice(sites: Mapping[str, Site] | property, axes: Mapping[str, str] | property) -> dict[str, str]:
    """Return the fields of axes that a site has twice, by the names of their second ones; none where sites or axes are
    properties."""
    own, fields = (cast(Any, {} if type(given) is property else given) for given in (sites, axes))
    named = {axis for site in own.values() for axis in site.dims if axis not in fields}
    return {axis: fields[axis[3:]] for axis in named if axis.startswith("to_") and axis[3:] in fields}


def is_function(prior: Any) -> bool:
    """Whether a prior is a function of earlier sites. Pyro's distributions can be called too."""
    return callable(prior) and not is_law(prior) and not isinstance(prior, type)


def arguments_of(prior: Any) -> tuple[str, ...]:
    """The sites that a prior depends on: the arguments of a function that have no default; () of a distribution."""
    if not is_function(prior):
        return ()
    parameters = inspect.signature(prior).parameters.values()
    return tuple(p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))


def at(prior: Any, values: Mapping[str, Any]) -> Any:
    """The distribution that a prior is at the values of earlier sites."""
    names = arguments_of(prior)
    if not is_function(prior):
        return prior
    found = prior(**{name: values[name] for name in names})
    return found if is_law(found) else point_mass(found)


def prior_at(site: str, prior: Callable[..., Any] | Distribution, values: Mapping[str, Tensor]) -> Any:
    """Return the distribution of a site at the values of earlier ones. Raises ModelError where there is none."""
    try:
        return at(prior, values)
    except ValueError as error:
        shown = {name: torch.as_tensor(values[name]).detach().flatten() for name in arguments_of(prior)}
        found = ", ".join(f"{name} = {list_some(value.tolist(), 3, show=digits)}" for name, value in shown.items())
        expected = f"one at every value within the support of {', '.join(shown)}"
        raise ModelError(
            f"the prior of '{site}' is no distribution at {found}; expected {expected} ({error})"
        ) from error


def point_mass(value: Any) -> Any:
    """A value as a prior: all mass on it. In the precision of a tensor or an array, numbers in double: programs take it
    in that of their data."""
    found = value if torch.is_tensor(value) else torch.as_tensor(np.asarray(value))
    return Delta(found if found.is_floating_point() else found.to(torch.float64))


def as_prior(value: Any) -> Any:
    """Convert what users give as a prior to a distribution or a function."""
    known = value_if_known(value)
    if known is not None:
        return point_mass(known)
    number = is_real(value) or torch.is_tensor(value) or type(value).__module__ == "numpy"
    return point_mass(value) if number else value


def hyper_parameters(kind: str, priors: Mapping[str, Any], native: Mapping[str, Any]) -> list[str]:
    """The names among ``priors`` that are no sites of the model, in an order in which none depends on a later one.

    Raises ModelError for names that no function takes, functions of what is no site, and circles.
    """
    extra = [name for name in priors if name not in native]
    used = {name for prior in priors.values() for name in arguments_of(prior)}
    for name in extra:
        if name not in used:
            raise ModelError(unknown_name(f"site of {kind}", name, native))
    ordered: list[str] = []
    while len(ordered) < len(extra):
        ready = [name for name in extra if name not in ordered and set(arguments_of(priors[name])) <= set(ordered)]
        if not ready:
            name = next(name for name in extra if name not in ordered)
            wanted = [one for one in arguments_of(priors[name]) if one not in ordered]
            raise ModelError(f"the prior of '{name}' is a function of {', '.join(wanted)}, which must come before it")
        ordered += ready
    return ordered


def require_order(priors: Mapping[str, Any], order: list[str]) -> None:
    """Raises ModelError for a function of a site that the program draws later, or that there is not."""
    for place, site in enumerate(order):
        for name in arguments_of(priors.get(site)):
            if name not in order[:place]:
                known = "is drawn later" if name in order else "is no site, and has no prior"
                before = ", ".join(order[:place]) or "none"
                raise ModelError(f"the prior of '{site}' is a function of '{name}', which {known}; before it: {before}")


def hyper_sites(names: list[str], priors: Mapping[str, Any]) -> tuple[dict[str, Site], dict[str, int]]:
    """The declarations of hyper-parameters, in their order, and the sizes of their axes: those of their priors."""
    sites, sizes, values = {}, {}, {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for name in names:
            prior = at(priors[name], values)
            if not hasattr(prior, "batch_shape"):
                raise ModelError(
                    f"prior of '{name}' is {a_value_of(type(prior))}, expected a distribution, a number or a function"
                )
            values[name] = _alike(prior.sample())
            axes = {f"{name}_{axis}": size for axis, size in enumerate(values[name].shape)}
            sites[name], sizes = Site("global", tuple(axes), support=support_of(prior)), sizes | axes
    return sites, sizes


def typical_values(model: Any, sites: tuple[str, ...] | None = None) -> dict[str, Tensor]:
    """Values of the globals: means of their priors, one after the other (medians of draws where there is none), and
    what is known. sites: of these, and of hyper-parameters, alone."""
    values: dict[str, Tensor] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for site in model.global_sites if sites is None else (*model.hyper_sites, *sites):
            middle = _middle(model.prior(site, values=values), model.sites[site].support is constraints.simplex)
            values[site] = _alike(middle)
    return values


def _alike(value: Tensor) -> Tensor:
    """Cast to the default dtype, which draws have: known values may be in double precision."""
    return value.to(torch.get_default_dtype()) if value.is_floating_point() else value


def _middle(prior: Any, simplex: bool) -> Tensor:
    try:
        mean = prior.mean
        if bool(torch.isfinite(mean).all()):
            return mean
    except NotImplementedError:
        pass
    draws = prior.sample(torch.Size([101]))
    return draws.mean(0) if simplex else draws.median(0).values


def check_functions(model: Any) -> None:
    """Raises ModelError for a function that fails at draws of the sites before it, or whose distribution does not suit
    its site. Nobody's random state moves."""
    values: dict[str, Any] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for site in (*model.global_sites, model.local_site):
            if site in model.priors and is_function(model.priors[site]):
                _require_prior_at(model, site, values)
            if site in model.global_sites:
                values[site] = _alike(model.prior(site, values=values).sample())


def _require_prior_at(model: Any, site: str, values: Mapping[str, Any]) -> None:
    """The distribution of a site whose prior is a function, at values of earlier sites."""
    try:
        prior = at(model.priors[site], values)
    except Exception as error:
        shapes = ", ".join(f"{name} {tuple(values[name].shape)}" for name in arguments_of(model.priors[site]))
        raise ModelError(f"the prior of '{site}', a function of {shapes}, failed: {error}") from error
    require_prior(site, prior, model.shape_of(site))
    require_support(site, prior, model.sites[site].support, model.shape_of(site))
