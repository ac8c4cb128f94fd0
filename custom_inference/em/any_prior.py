"""Any prior of the globals with any closed-form engine of point estimates.

:func:`with_any_prior` returns an engine whose M step replaces priors without a closed form by conjugate ones matched at
the current iterate (``surrogate_priors``), keeps known sites at their values, and then updates hyper-parameters by
L-BFGS on the program's log prior. The objective is that of the program, and the driver takes back steps that lower it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, distributions
from torch.distributions import constraints

from custom_inference.core.engine import Engine, EStep, InitialStep, Params, get_class_attributes
from custom_inference.core.registry import engines_of
from custom_inference.core.states import PointsWithLocals, values_of
from custom_inference.em.hyper_steps import move_hypers
from custom_inference.em.surrogate_priors import MATCHED, alike, centre_of, certain, inside, slopes_of
from ppl_models import Data, Model, PriorError
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
    if engine.integrates_globals or engine.gives_way:
        engine = _of_points(model, engine.name, sites)
    if engine.state is not None and not issubclass(engine.state, PointsWithLocals):
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
    return AnyPriorEngine(engine)


def _of_points(model: Model, name: str, sites: tuple[str, ...]) -> Engine:
    for make in engines_of(model).values():
        found = make()
        if not found.integrates_globals and found.feasible(model):
            return found
    said = ", ".join(sites)
    raise PriorError(f"{name!r} integrates the globals, which needs conjugate priors for {said}; use SVI or NUTS")


class AnyPriorEngine(Engine):
    """Another engine's steps under any priors: it holds that engine, and asks it for all that priors do not change.

    Values are reported as they are (``canonical`` is not the engine's): other priors than its own may tell apart what
    its likelihood does not.

    plain: the engine. tightness: what matched priors are tightened by (``surrogate_priors``).
    """

    def __init__(self, plain: Engine):
        self._plain, self.tightness = plain, 0.0
        for name in get_class_attributes(Engine):
            setattr(self, name, getattr(plain, name))
        setattr(self, "may_lower", True)  # noqa: B010 (of the class elsewhere)

    def __reduce__(self) -> Any:
        return AnyPriorEngine, (self._plain,)

    def __getattr__(self, name: str) -> Any:
        """Settings of the engine's own."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._plain, name)

    @property
    def plain(self) -> Engine:
        return self._plain

    def wrap(self, plain: Engine) -> Engine:
        return AnyPriorEngine(plain)

    def local(self) -> Engine:
        found = self._plain.local()
        return self if found is self._plain else found

    def at_length(self) -> Engine:
        return AnyPriorEngine(self._plain.at_length())

    def configure(self, rows: Any, total: Any) -> Any:
        return AnyPriorEngine(self._plain.configure(rows, total))

    def rows(self, model: Model, data: Any) -> Any:
        return self._plain.rows(model, data)

    def divide_rows(self, rows: Any, processes: Any) -> Any:
        return self._plain.divide_rows(rows, processes)

    def feasible(self, model: Model) -> bool:
        return self._plain.feasible(model)

    def feasible_on(self, model: Model, data: Data) -> bool:
        return self._plain.feasible_on(model, data)

    @property
    def patience(self) -> int:
        return self._plain.patience

    def point_locals(self, step: EStep) -> Params:
        return self._plain.point_locals(step)

    def floors(self, model: Model, step: EStep) -> Params:
        return self._plain.floors(model, step)

    @property
    def saved_settings(self) -> dict[str, Any]:
        return self._plain.saved_settings

    def tighten(self, factor: float) -> None:
        tightness = self.tightness * factor
        self.tightness = max(1.0, tightness) if factor > 1 else tightness

    def check(self, model: Model, rows: Any) -> None:
        self._plain.check(for_starts(self, model), rows)

    def initial(self, model: Model, rows: Any, generator: torch.Generator) -> Any:
        return complete_state(self, model, self._plain.initial(for_starts(self, model), rows, generator))

    def from_point(self, model: Model, params: Params, rows: Any, e_step: InitialStep) -> Any:
        return self._plain.from_point(model, params, rows, e_step)

    def e_step(self, model: Model, state: Any, rows: Any, warm: Any = None, **settings: Any) -> EStep:
        return self._plain.e_step(for_starts(self, model), state, rows, warm, **settings)

    def e_step_weighted(
        self, model: Model, state: Any, rows: Any, weights: Tensor, warm: Any = None, **settings: Any
    ) -> EStep:
        return self._plain.e_step_weighted(for_starts(self, model), state, rows, weights, warm, **settings)

    def posterior(self, model: Model, state: Any, rows: Any, step: EStep) -> Any:
        return self._plain.posterior(for_starts(self, model), state, rows, step)

    def project(self, model: Model, state: Any, locals_: Params) -> Any:
        return self._plain.project(for_starts(self, model), state, locals_)

    def prior_term(self, model: Model, state: Any) -> Tensor:
        """Return the log prior as the program says it; of sites with closed-form steps as the engine does, which may be
        in another basis."""
        values = {site: value.double() for site, value in values_of(model, state).items()}
        flat, sites = _with_flat(self, model), (*model.hyper_sites, *without_closed_form(self, model))
        try:
            return self._plain.prior_term(flat, with_values(state, values)) + model.log_prior(values, sites)
        except ValueError:  # an extrapolation out of a support
            return next(iter(values.values())).new_tensor(-torch.inf)

    def m_step(self, model: Model, state: Any, step: EStep, rows: Any) -> Any:
        state = complete_state(self, model, state)
        sites, hypers = without_closed_form(self, model), list(model.hyper_sites)
        before = after = dict(values_of(model, state))
        new = state
        for _ in range(_ROUNDS):
            plain = self._matched(model, sites, after) if sites else for_starts(self, model)
            inner = with_values(state, {site: v for site, v in before.items() if site not in hypers})
            new = self._plain.m_step(plain, inner, step, rows)
            found = {**after, **values_of(plain, new)}
            found |= _restrict_to_priors(model, sites, found)
            change = max(float((found[site] - after[site]).abs().max()) for site in sites) if sites else 0.0
            after = found
            if change <= _SETTLED:
                break
        if hypers:
            after = move_hypers(model, after)
        return with_values(new, after)

    def _matched(self, model: Model, sites: tuple[str, ...], values: Params) -> Model:
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
    if engine.plain is engine:
        return ""
    asked = guide if isinstance(guide, str) else guide.name
    numerical = [s for s in without_closed_form(engine, model) if s in model.unknown_sites]
    name, parts = engine.plain.name, []
    if asked != name:
        parts.append(f"point estimates by '{name}', since '{asked}' integrates the globals")
    parts += [f"numerical M steps of {', '.join(numerical)}"] if numerical else []
    parts += [f"known: {', '.join(model.known)}"] if model.known else []
    return "".join(f"; {part}" for part in parts)


def for_starts(engine: Any, model: Model) -> Model:
    """Return the model with conjugate priors similar to its own, for the search for starts (E steps read no prior of a
    global)."""
    sites = without_closed_form(engine, model)
    if not sites and not model.hyper_sites:
        return model
    cached = vars(model).setdefault("_for_starts", {})
    key = type(engine.plain)
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
    key = type(engine.plain)
    if key not in cached:
        flat: dict[str, Any] = {}
        for site in sites:
            family, ones = families_of(engine, model, site)[0], torch.ones(model.shapes[site])
            flat[site] = Flat(plain.priors[site])
            if family is distributions.Beta:
                flat[site] = dist.Beta(ones, ones)
            elif family is distributions.Dirichlet:
                flat[site] = dist.Dirichlet(ones)
        cached[key] = replace(plain, priors={**plain.priors, **flat})
    return cached[key]


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
