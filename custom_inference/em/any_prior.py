"""Any prior of the globals with any closed-form engine of point estimates.

:func:`with_any_prior` returns an engine whose M step replaces priors without a closed form by conjugate ones matched at
the current iterate (``surrogate_priors``), keeps known sites at their values, and then updates hyper-parameters by
L-BFGS on the program's log prior. The objective is that of the program, and the driver takes back steps that lower it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyro.distributions as dist
import torch
from scipy.optimize import minimize
from torch import Tensor, distributions
from torch.distributions import biject_to, constraints

from custom_inference.core.capabilities import Exact, OwnState, PriorTerm, Tightened, integrates_globals
from custom_inference.core.engine import Engine, EStep, Params
from custom_inference.core.registry import engines_of
from custom_inference.core.states import PointsWithLocals, values_of
from custom_inference.em.surrogate_priors import MATCHED, alike, centre_of, certain, inside, slopes_of
from ppl_models import Model, PriorError
from ppl_models.core.hierarchy import arguments_of, is_function, typical_values
from ppl_models.core.priors import is_flat, support_of, value_if_known
from ppl_models.distributions import Flat, InverseWishart

#: Families with closed-form M steps of sites, by what the sites' supports are; the first stands in for others.
_CONJUGATE: dict[Any, tuple[type, ...]] = {
    constraints.unit_interval: (distributions.Beta,),
    constraints.simplex: (distributions.Dirichlet,),
    constraints.positive: (distributions.Gamma, distributions.Exponential),
    constraints.positive_definite: (InverseWishart,),
    None: (distributions.Normal,),
}
#: Matchings of one M step, at most, and the largest change between two that counts as none.
_ROUNDS, _SETTLED = 8, 1e-7


def families_of(engine: Any, model: Model, site: str) -> tuple[type, ...]:
    """Return the families of priors for which a site has closed-form steps."""
    declared = model.sites[site].support
    return engine.conjugate.get(site) or _CONJUGATE[None if declared is constraints.real else declared]


def without_closed_form(engine: Any, model: Model) -> tuple[str, ...]:
    """Return the sites (not hyper-parameters) without a closed-form step: known ones, those whose priors are functions
    or of another family, and those that other priors depend on."""
    asked = {name for prior in model.priors.values() for name in arguments_of(prior)}
    found = []
    for site in model.global_sites:
        if site in model.hyper_sites or site in engine.any_prior_of:
            continue
        prior, families = model.priors[site], families_of(engine, model, site)
        plain = is_flat(prior) or isinstance(prior, (*families, Flat))
        if is_function(prior) or value_if_known(prior) is not None or site in asked or not plain:
            found.append(site)
    return tuple(found)


def with_any_prior(engine: Engine, model: Model) -> Engine:
    """Return the engine itself if the priors of the model have closed-form steps, else one that takes any priors.

    Engines that integrate the globals are replaced by the model's first engine of point estimates.
    Raises PriorError where there is none, and for priors of latents that are functions.
    """
    sites = without_closed_form(engine, model)
    if not sites and not model.hyper_sites:
        return engine
    for site in model.sites_of("latent"):
        if is_function(model.priors.get(site)):
            raise PriorError(f"the prior of the latent '{site}' is a function of other sites; use SVI or NUTS for it")
    if integrates_globals(engine) or getattr(engine, "gives_way", False):
        engine = _of_points(model, engine.name, sites)
    if isinstance(engine, OwnState) and not issubclass(engine.state, PointsWithLocals):
        said = ", ".join(sites or model.hyper_sites)
        raise PriorError(f"{engine.name!r} has no steps for these priors of {said}; use SVI or NUTS")
    for site in sites:
        families = families_of(engine, model, site)
        if families[0] not in MATCHED:
            kind = type(model.priors[site]).__name__
            if isinstance(model.priors[site], families):  # it is that of other sites' priors too
                raise PriorError(
                    f"closed-form steps need priors that do not depend on '{site}'; use a method for these"
                )
            raise PriorError(f"closed-form steps need a {families[0].__name__} prior for '{site}', not {kind}")
    return _adapt(engine)


def _of_points(model: Model, name: str, sites: tuple[str, ...]) -> Engine:
    for make in engines_of(model).values():
        found = make()
        if not integrates_globals(make) and not (isinstance(found, Exact) and not found.feasible(model)):
            return found
    said = ", ".join(sites)
    raise PriorError(f"{name!r} integrates the globals, which needs conjugate priors for {said}; use SVI or NUTS")


def _adapt(engine: Engine) -> Engine:
    """Return the engine with ``AnyPrior`` before its own class."""
    return _of_class(_any_prior(type(engine)), engine)


@functools.cache
def _any_prior(kind: type) -> type:
    return type(f"AnyPrior{kind.__name__}", (AnyPrior, kind), {"plain": kind})


def _of_class(kind: type, engine: Any) -> Any:
    made = object.__new__(kind)
    vars(made).update(vars(engine))
    return made


class AnyPrior(Tightened, PriorTerm):
    """Mixin before an engine's class: its steps under any priors."""

    #: The engine's class.
    plain: Any
    #: What matched priors are tightened by (``surrogate_priors``).
    tightness: float = 0.0

    def __reduce__(self) -> Any:
        return _adapt, (self.undo_adapting(),)

    def undo_adapting(self) -> Any:
        """Return the engine under its own class."""
        return _of_class(self.plain, self)

    def configure(self, rows: Any, total: Any) -> Any:
        return _adapt(self.undo_adapting().configure(rows, total))

    def tighten(self, factor: float) -> None:
        tightness = self.tightness * factor
        object.__setattr__(self, "tightness", max(1.0, tightness) if factor > 1 else tightness)

    def check(self, model: Model, rows: Any) -> None:
        getattr(super(), "check", lambda *_: None)(for_starts(self, model), rows)

    def initial(self, model: Model, rows: Any, generator: torch.Generator) -> Any:
        plain = for_starts(self, model)
        return complete_state(self, model, super().initial(plain, rows, generator))  # pyright: ignore

    def e_step(self, model: Model, state: Any, rows: Any, warm: Any = None, **settings: Any) -> EStep:
        return super().e_step(for_starts(self, model), state, rows, warm, **settings)  # pyright: ignore

    def posterior(self, model: Model, state: Any, rows: Any, step: EStep) -> Any:
        return super().posterior(for_starts(self, model), state, rows, step)  # pyright: ignore

    def project(self, model: Model, state: Any, locals_: Params) -> Any:
        return super().project(for_starts(self, model), state, locals_)  # pyright: ignore

    def canonical(self, model: Model, params: Params, locals_: Params) -> tuple[Params, Params]:
        """Leave globals and locals unchanged: other priors may distinguish values that the likelihood does not."""
        return params, locals_

    def prior_term(self, model: Model, state: Any) -> Tensor:
        """Return the log prior: the engine's for sites with closed-form steps, which may be in another basis, and the
        model's for the others."""
        values = {site: value.double() for site, value in values_of(model, state).items()}
        flat, sites = _with_flat(self, model), (*model.hyper_sites, *without_closed_form(self, model))
        try:
            rest = super().prior_term(flat, state) if issubclass(self.plain, PriorTerm) else flat.log_prior(values)  # pyright: ignore
            return rest + model.log_prior(values, sites)
        except ValueError:  # an extrapolation out of a support
            return next(iter(values.values())).new_tensor(-torch.inf)

    def m_step(self, model: Model, state: Any, step: EStep, rows: Any) -> Any:
        state = complete_state(self, model, state)
        sites, hypers = without_closed_form(self, model), list(model.hyper_sites)
        before = after = dict(values_of(model, state))
        new = state
        for _ in range(_ROUNDS):
            plain = self._match_priors(model, sites, after) if sites else for_starts(self, model)
            inner = with_values(state, {site: v for site, v in before.items() if site not in hypers})
            new = super().m_step(plain, inner, step, rows)  # pyright: ignore[reportAttributeAccessIssue]
            found = {**after, **values_of(plain, new)}
            found |= _restrict_to_priors(model, sites, found)
            change = max(float((found[site] - after[site]).abs().max()) for site in sites) if sites else 0.0
            after = found
            if change <= _SETTLED:
                break
        if hypers:
            after = _update_hypers(model, after)
        return with_values(new, after)

    def _match_priors(self, model: Model, sites: tuple[str, ...], values: Params) -> Model:
        """Replace the priors by conjugate ones matched to them at the values."""
        priors: dict[str, Any] = {}
        free = [site for site in sites if value_if_known(model.priors[site]) is None]
        slopes = slopes_of(model, free, values)
        for site in sites:
            value, at, family = value_if_known(model.priors[site]), values[site], families_of(self, model, site)[0]
            if value is not None:
                priors[site] = certain(family, value.to(at).expand_as(at))
            else:
                priors[site] = MATCHED[family](at, *slopes[site], self.tightness, centre_of(model, site, values))
        plain = for_starts(self, model)
        return replace(plain, priors={**plain.priors, **priors})


def describe_priors(engine: Any, guide: Any, model: Model) -> str:
    """Say in a fit's status which priors had no closed-form steps."""
    if not isinstance(engine, AnyPrior):
        return ""
    asked = guide if isinstance(guide, str) else guide.name
    numerical = [s for s in without_closed_form(engine, model) if s in model.unknown_sites]
    name, parts = engine.plain.name, []
    if asked != name:
        parts.append(f"point estimates by '{name}', since '{asked}' integrates the globals")
    parts += [f"numerical M steps of {', '.join(numerical)}"] if numerical else []
    parts += [f"known: {', '.join(model.known)}"] if model.known else []
    return "".join(f"; {part}" for part in parts)


def _update_hypers(model: Model, values: Params) -> Params:
    """Maximise the log prior over the hyper-parameters given the sites: L-BFGS on the unconstrained scale, from the
    present values; never to a lower log prior."""
    names = [site for site in model.hyper_sites if value_if_known(model.priors[site]) is None]
    if not names:
        return values
    maps = {name: biject_to(model.prior(name, values=values).support) for name in names}
    start = {name: maps[name].inv(_off_edge(values[name].double())) for name in names}
    sizes = [start[name].numel() for name in names]

    def objective(flat: Any) -> tuple[float, Any]:
        with torch.enable_grad():
            free = torch.as_tensor(flat, dtype=torch.float64).clone().requires_grad_()
            parts = zip(names, free.split(sizes), strict=True)
            at = {**values, **{name: maps[name](part.reshape(start[name].shape)) for name, part in parts}}
            try:
                total = -model.log_prior({site: value.double() for site, value in at.items()})
            except ValueError:  # a line search that goes where no prior is defined
                return 1e300, np.zeros(len(flat))
            total.backward()
        assert free.grad is not None
        if not bool(torch.isfinite(total)):
            return 1e300, np.zeros(len(flat))
        return float(total.detach()), np.nan_to_num(free.grad.numpy())

    first = torch.cat([start[name].flatten() for name in names]).numpy()
    found = minimize(objective, first, jac=True, method="L-BFGS-B", options={"maxiter": 50})
    if not found.fun <= objective(first)[0]:
        return values
    parts = zip(names, torch.as_tensor(found.x).split(sizes), strict=True)
    moved = {name: maps[name](part.reshape(start[name].shape)).to(values[name]) for name, part in parts}
    return {**values, **moved}


def _off_edge(value: Tensor) -> Tensor:
    return torch.where(value == 0, torch.full_like(value, 1e-12), value)


def for_starts(engine: Any, model: Model) -> Model:
    """Return the model with conjugate priors similar to its own, for the search for starts (E steps read no prior of a
    global)."""
    sites = without_closed_form(engine, model)
    if not sites and not model.hyper_sites:
        return model
    cached = vars(model).setdefault("_for_starts", {})
    key = getattr(engine, "plain", type(engine))
    if key not in cached:
        values = typical_values(model)
        plain, priors = model.at(values), {}
        for site in sites:
            families = families_of(engine, model, site)
            value = value_if_known(model.priors[site])
            if value is not None:
                priors[site] = certain(families[0], value.expand(model.shapes[site]))
            else:
                priors[site] = alike(families[0], model.prior(site, values=values))
        cached[key] = replace(plain, priors={**plain.priors, **priors})
    return cached[key]


def _with_flat(engine: Any, model: Model) -> Model:
    """Return the model with flat priors on the sites that have no closed-form steps."""
    plain, sites = for_starts(engine, model), without_closed_form(engine, model)
    if not sites:
        return plain
    cached = vars(model).setdefault("_with_flat", {})
    if engine.plain not in cached:
        flat: dict[str, Any] = {}
        for site in sites:
            family, ones = families_of(engine, model, site)[0], torch.ones(model.shapes[site])
            flat[site] = Flat(plain.priors[site])
            if family is distributions.Beta:
                flat[site] = dist.Beta(ones, ones)
            elif family is distributions.Dirichlet:
                flat[site] = dist.Dirichlet(ones)
        cached[engine.plain] = replace(plain, priors={**plain.priors, **flat})
    return cached[engine.plain]


def complete_state(engine: Any, model: Model, state: Any) -> Any:
    """Complete a state: hyper-parameters start at typical values, known sites get their values, and the others are
    moved into the supports of their priors."""
    sites = without_closed_form(engine, model)
    if not sites and not model.hyper_sites:
        return state
    values = dict(values_of(model, state))
    like = next(iter(values.values()))
    if not set(model.hyper_sites) <= set(values):
        values |= {site: typical_values(model)[site].to(like) for site in model.hyper_sites if site not in values}
    return with_values(state, {**values, **_restrict_to_priors(model, sites, values)})


def _restrict_to_priors(model: Model, sites: Iterable[str], values: Params) -> Params:
    """Set known sites to their values, and move the others into the supports of their priors."""
    found = {}
    for site in sites:
        value, at = value_if_known(model.priors[site]), values[site]
        support = support_of(model.prior(site, values=values))
        found[site] = inside(at, support) if value is None else value.to(at).expand_as(at)
    return found


def with_values(state: Any, values: Mapping[str, Tensor]) -> Any:
    """Return a state of point estimates with new values of the sites."""
    return replace(state, sites=dict(values)) if isinstance(state, PointsWithLocals) else dict(values)
