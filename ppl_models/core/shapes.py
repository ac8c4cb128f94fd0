"""The sizes of a model that is to fit data: what the data say of them, and which are to be given."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from typing import Any

from torch.distributions import constraints

from ppl_models.core.errors import ModelError
from ppl_models.core.sites import Site
from ppl_models.data.matrix import Data


def sizes_for(kind: Any, data: Data, num_components: int | None, settings: Mapping[str, Any]) -> dict[str, int]:
    """Field -> size of the axes of a class of models, but those that ``settings`` say.

    Raises ModelError where data have not as many axes as x, for sizes that neither data nor settings say, and where it
    is not clear which is the number of components.
    """
    axes: Mapping[str, str] = kind.axes
    of_data = _of_data(kind, data)
    found = {axes[axis]: size for axis, size in of_data.items() if axis in axes}
    if num_components is not None:
        found[_field_of_components(kind, tuple(of_data), settings)] = num_components
    found = {field: size for field, size in found.items() if field not in settings}
    required = [one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING]
    told = {**found, **settings}
    missing = [field for field in dict.fromkeys(axes.values()) if field in required and field not in told]
    if missing:
        known = (
            ", ".join(f"{field} = {told[field]}" for field in dict.fromkeys(axes.values()) if field in told)
            or "no size"
        )
        wanted = ", ".join(f"{field}=..." for field in missing)
        raise ModelError(f"{kind.__name__} for these data: known {known}; give the other sizes, {wanted}")
    return found


def _sites_of(kind: Any) -> Mapping[str, Site]:
    """Return the sites of a class; none where they depend on its settings."""
    return kind.sites if isinstance(kind.sites, Mapping) else {}


def _of_data(kind: Any, data: Data) -> dict[str, int]:
    """Axis of x -> size. Where the sites of a class depend on its settings these are the first axes that are not of
    components."""
    sites = _sites_of(kind)
    if sites:
        axes = next((site.dims for site in sites.values() if site.role == "observed"), ())
    else:
        axes = tuple(axis for axis in kind.axes if "component" not in axis)[: data.x.ndim - 1]
    if len(axes) == 1 and data.x.ndim == 2:
        return {axes[0]: data.num_features}  # of sequences the words, which are no columns of x
    if data.x.ndim != 1 + len(axes):
        shape = f"(N, {', '.join(axes)})" if axes else "(N,)"
        raise ModelError(f"{kind.__name__} for data of shape {tuple(data.x.shape)}; expected {shape}")
    return dict(zip(axes, data.x.shape[1:], strict=True))


def _field_of_components(kind: Any, observed: tuple[str, ...], settings: Mapping[str, Any]) -> str:
    """The field that the number of components is: that of the axis "component", else of the one axis of the main latent
    that x has not. Raises ModelError where that is none, or several."""
    if "component" in kind.axes:
        return kind.axes["component"]
    sites = _sites_of(kind)
    latent = next((site for site in sites.values() if site.role == "latent"), Site("latent"))
    own = (latent.choice,) if latent.choice else latent.dims
    others = {axis: field for axis, field in kind.axes.items() if axis not in observed and field not in settings}
    free = dict.fromkeys(others[axis] for axis in own if axis in others)
    if len(free) == 1:
        return next(iter(free))
    wanted = ", ".join(f"{field}=..." for field in dict.fromkeys(others.values())) or "nothing"
    raise ModelError(
        f"which size of {kind.__name__} the number of components is, is not clear: no axis is called 'component', and "
        f"the latent has {', '.join(free) or 'no axis of its own'}; give {wanted} in place of it"
    )


def count_free(shape: tuple[int, ...], supports: Collection[constraints.Constraint]) -> int:
    """Count the free dimensions of values of this shape within all supports: a simplex has one less than entries, a
    positive definite matrix those on and below its diagonal."""
    if constraints.positive_definite in supports:
        return math.prod(shape[:-1]) * (shape[-1] + 1) // 2
    return math.prod(shape) - (math.prod(shape[:-1]) if constraints.simplex in supports else 0)
