"""Inference methods by name: what ``fit(method="...")`` and the command line take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch

from custom_inference.engines import Local, engines_of
from custom_inference.exact import Exact
from custom_inference.fit import Fit
from custom_inference.gibbs import CollapsedGibbs, has_sampler
from custom_inference.mcmc import NUTS
from custom_inference.svi import SVI
from custom_inference.tempered import TemperedEM
from custom_inference.vem import EM, VariationalEM, named_guide
from ppl_models import Data, MethodError, Model
from ppl_models._errors import unknown_name
from ppl_models._model import require_model
from ppl_models._row_blocks import RowBlocks


@dataclass(frozen=True, kw_only=True)
class Default:
    """Whatever ``custom_inference.fit`` takes for the model and the size at hand, as a method object.

    settings: fields of the method that it turns out to be.
    """

    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return "default"

    def _chosen(self, model: Model, data: Data | None) -> Any:
        from custom_inference.default import default_method

        return with_settings(default_method(model, data), self.settings)

    def has_global_posterior(self, model: Model) -> bool:
        """Whether fits hold draws, or a posterior, of the globals rather than points."""
        from custom_inference.default import default_method

        return default_method(model, None).has_global_posterior(model)

    def fit(self, model: Model, data: Any, *, mask: Any = None, dtype: Any = torch.float64, **arguments: Any) -> Fit:
        """Fit with the method that the default is here; arguments as those of every method."""
        require_model(model)
        if isinstance(data, RowBlocks):
            return self._chosen(model, None).fit(model, data, mask=mask, dtype=dtype, **arguments)
        checked = model.prepare(data, mask=mask, dtype=dtype)
        return self._chosen(model, checked).fit(model, checked, dtype=dtype, **arguments)

    def local_posterior(self, model: Model, params: dict[str, Any], data: Data, *, seed: int = 0) -> Local:
        """The local posterior of that method at given globals."""
        return self._chosen(model, data).local_posterior(model, params, data, seed=seed)


#: Name -> what makes the method.
METHODS: dict[str, Callable[..., Any]] = {
    "default": Default,
    "exact": Exact,
    "em": EM,
    "factorized": partial(VariationalEM, guide="factorized"),
    "mean_field": partial(VariationalEM, guide="mean_field"),
    "truncated": partial(VariationalEM, guide="truncated"),
    "map": partial(VariationalEM, guide="map"),
    "dirichlet": partial(VariationalEM, guide="dirichlet"),
    "vb": partial(VariationalEM, guide="vb"),
    "cvb0": partial(VariationalEM, guide="cvb0"),
    "gaussian": partial(VariationalEM, guide="gaussian"),
    "svi": partial(SVI, guide="mean_field"),
    "svi_factorized": partial(SVI, guide="factorized"),
    "amortized": partial(SVI, guide="amortized"),
    "svi_delta": partial(SVI, guide="delta"),
    "svi_normal": partial(SVI, guide="normal"),
    "nuts": NUTS,
    "gibbs": CollapsedGibbs,
    "tempered": TemperedEM,
}


def named_method(method: Any, **settings: Any) -> Any:
    """A method object from its name, or the object given, with some of its settings exchanged.

    Raises
    ------
    MethodError: an unknown name, something that is not a method, or a setting that the method does not have;
        the valid ones are listed.
    """
    if not isinstance(method, str):
        if isinstance(method, type) or not hasattr(method, "fit"):
            raise MethodError(f"{method!r} is not a method; expected a name, or an object such as EM()")
        return with_settings(method, settings) if settings else method
    if method not in METHODS:
        raise MethodError(unknown_name("method", method, METHODS))
    if method == "default":
        return Default(settings=settings)
    return with_settings(METHODS[method](), settings)


def with_settings(method: Any, settings: dict[str, Any]) -> Any:
    valid = [f.name for f in fields(method)] if is_dataclass(method) and not isinstance(method, type) else []
    for name in settings:
        if name not in valid:
            raise MethodError(unknown_name(f"setting of {type(method).__name__}", name, valid))
    return replace(method, **settings) if settings else method  # pyright: ignore[reportArgumentType]


def has_local_guides(model: Model) -> bool:
    """Whether Pyro guides of the local latents exist: for binary codes, continuous latents, and nodes of graphs."""
    return model.code_bits is not None or model.has_continuous_locals or model.is_graph


def methods_for(model: Model) -> list[str]:
    """The names of the methods that apply to a model: it has the closed-form steps, or the latents, that they need.

    They are what ``fit(model, x, method=...)`` and the command line take. Raises ModelError for what is no model.
    """
    require_model(model)
    engines, names = engines_of(model), []
    for name, make in METHODS.items():
        method = make()
        guide = getattr(method, "guide", None)
        if isinstance(method, SVI) and not method.sums_codes and not has_local_guides(model):
            continue
        if guide == "amortized" and model.is_graph:
            continue
        if isinstance(method, CollapsedGibbs) and not has_sampler(model):
            continue
        if isinstance(method, TemperedEM) and not method.applies(model):
            continue
        if isinstance(method, Exact) and model.has_continuous_locals and "evidence" not in engines:
            continue
        needs_steps = isinstance(method, VariationalEM) or guide == "factorized"
        if not needs_steps or (guide is not None and named_guide(guide).bound_name in engines):
            names.append(name)
    return names
