"""Methods by name, the default of each model, and ``fit(model, x)``."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch

from custom_inference.checks.exact import Exact
from custom_inference.compiled.default import ByDensity, is_compilable, is_compiled_by_default, within_reach
from custom_inference.compiled.programs import engines_of_program, is_sampled_by_choices, is_sampled_by_sums
from custom_inference.compiled.reading import NotCompiled
from custom_inference.core.engine import EXACT_UP_TO
from custom_inference.core.fit import Fit
from custom_inference.core.instead import Instead
from custom_inference.core.latent_values import is_own_of_rows
from custom_inference.core.local_inference import Local, is_feasible
from custom_inference.core.method import Method, refusal
from custom_inference.core.programs.reference import EXACTLY, best_reference, count_configurations, count_reals
from custom_inference.core.registry import EXACT_EM_UP_TO, engines_of, family_of
from custom_inference.em.method import EM, VariationalEM
from custom_inference.gibbs import CollapsedGibbs
from custom_inference.mcmc import NUTS
from custom_inference.svi.guides.programs import takes_values_of
from custom_inference.svi.method import SVI
from ppl_models import MODELS, CapacityError, Data, MethodError, Model, PPLError, PriorError
from ppl_models.core.errors import unknown_name
from ppl_models.core.model import require_model, size_model
from ppl_models.data.row_blocks import RowBlocks

#: Starts of models without closed-form steps: of points by L-BFGS, and of guides of the locals.
_POINT_STARTS, _GUIDE_STARTS, _INTEGRATED_STARTS = 8, 3, 12
#: Real numbers of a row that are integrated out while globals are learned, at most.
_INTEGRATED = 2
#: No more of the points' starts once so many came as far as the best.
_AGREE = 3


def default_method(model: Model, data: Data | None) -> Any:
    """The best-known method for a model and a size: what its record in the registry says.

    Models without a record have what their sites suggest: points of the globals, by L-BFGS from several starts, with
    choices and codes of up to ``EXACT_EM_UP_TO`` bits summed out; guides of the locals beyond.
    """
    rule = family_of(model).default
    if rule is None:
        compiled = is_compiled_by_default(model)
        return _by_engine(next(iter(engines_of_program(model))))() if compiled else _by_density(model)
    name = rule(model, data) if callable(rule) else rule
    return family_of(model).methods.get(name, _by_engine(name))()


def _by_density(model: Model) -> SVI:
    """The method of a program that is not compiled: its density is all that is used."""
    if is_own_of_rows(model) and model.has_continuous_locals:
        if is_feasible(model) and count_reals(model) <= _INTEGRATED:
            return SVI(guide="delta", optimizer="lbfgs", restarts=_INTEGRATED_STARTS, agree=_AGREE)
        if model.data_kind != "documents":
            return SVI(guide="gaussian", optimizer="lbfgs", restarts=_GUIDE_STARTS)
    codes = model.code_bits is not None and model.code_bits > EXACT_EM_UP_TO
    if codes or model.has_continuous_locals or not model.rows_are_independent:
        return SVI(guide="mean_field", restarts=_GUIDE_STARTS)
    return SVI(guide="delta", optimizer="lbfgs", restarts=_POINT_STARTS, agree=_AGREE)


def fit(model: Model, x: Any, *, seed: int = 0, method: Any = None, **arguments: Any) -> Fit:
    """Fit a model with the default, best-known method for it and for the size at hand.

    method: a method object, or one of the names that :func:`custom_inference.methods_for` gives for the model.
    arguments: those of every method's ``fit`` (mask, seed, device, dtype, init, progress, weights of rows, and what the
        model observes beside x), and fields of the method.
    Missing entries: NaN, or ``mask`` (True = observed).

    Under priors that the default has no steps for, the first method that takes them fits instead; the status says so.
    """
    model, x = size_model(model, x, arguments, arguments.get("init"))
    chosen = default_method(model, None) if method is None else resolve_method(method, model=model)
    names = _settings_of(chosen)
    if method is None and is_compilable(model) and set(arguments) & (set(_settings_of(SVI)) - set(names)):
        chosen = _by_density(model)  # whose settings these are
        names = _settings_of(chosen)
    settings = {name: arguments.pop(name) for name in names if name in arguments}
    _refuse_unknown(chosen, arguments, (*_ARGUMENTS, *model.other_sites), beside=names, model=model)
    configured = with_settings(chosen, settings)
    if method is None:
        configured, x, arguments = _that_takes_the_size(model, configured, settings, x, arguments)
    try:
        return configured.fit(model, x, seed=seed, **arguments)
    except (NotCompiled, CapacityError) as error:
        if method is not None:
            raise
        return _replace_refused(model, settings, error).fit(model, x, seed=seed, **arguments)


def _that_takes_the_size(
    model: Model, default: Any, settings: Mapping[str, Any], x: Any, arguments: dict[str, Any]
) -> tuple[Any, Any, dict[str, Any]]:
    """The default for the priors, or what the family fits data like these by; the data, and the arguments left.

    Data are read where the family goes by their size. A method that lacks the settings asked for is not taken.
    """
    chosen, family = _that_takes_the_priors(model, default, settings), family_of(model)
    by_size, in_blocks = family.by_size, isinstance(x, RowBlocks)
    if chosen is default and family.stand_in is not None:
        if in_blocks or arguments.get("weights") is not None:
            why = "rows are read block by block" if in_blocks else "rows have weights"
            chosen = _stand_in(family.stand_in, settings, why)
        return chosen, x, arguments
    if arguments.get("weights") is not None and type(chosen) is not Instead:
        chosen = _that_weighs_rows(model, chosen, settings)
    if by_size is None or chosen is not default or in_blocks:
        return chosen, x, arguments
    reading = {name: arguments[name] for name in arguments if name in (*_READING, *model.other_sites)}
    as_read: dict[str, Any] = {"dtype": torch.float64, **reading}
    data = model.prepare(x, **as_read)
    left = {name: value for name, value in arguments.items() if name not in reading or name in ("dtype", "device")}
    name, why = by_size(data)
    other = default if name is None else _by_engine(name)()
    if name is None or not set(settings) <= set(_settings_of(other)) or refusal(other, model) is not None:
        return default, data, left
    made = with_settings(other, dict(settings))
    return default if made == default else Instead(made, why), data, left


def _that_takes_the_priors(model: Model, default: Any, settings: Mapping[str, Any]) -> Any:
    """The default, or under priors that it has no steps for the first method that has, with the same settings.

    Raises PriorError where there is none.
    """
    refused = refusal(default, model)
    if not isinstance(refused, PriorError):
        return default
    for other in _in_its_place(model):
        if set(settings) <= set(_settings_of(other)) and refusal(other, model) is None:
            return Instead(with_settings(other, dict(settings)), f"since the default refuses: {refused}")
    if settings:
        return default  # which says why it refuses; without its settings others may take the priors
    raise PriorError(f"no method of {type(model).__name__} has steps for its priors; the default refuses: {refused}")


def _that_weighs_rows(model: Model, chosen: Method, settings: Mapping[str, Any]) -> Any:
    """The method, or the first of the model's engines that weighs rows, where that one does not and these do."""
    if _weighs_rows(chosen, model):
        return chosen
    for name in engines_of(model):
        other = _by_engine(name)()
        taken = set(settings) <= set(_settings_of(other)) and refusal(other, model) is None
        if taken and _weighs_rows(other, model):
            return Instead(with_settings(other, dict(settings)), "since the default cannot weigh rows")
    return chosen


def _weighs_rows(method: Method, model: Model) -> bool:
    try:
        method.check_weights(model)
    except MethodError:
        return False
    return True


def _stand_in(engine: str, settings: Mapping[str, Any], why: str) -> Instead:
    """What fits in the place of a default that does not suit the data, which the status will say."""
    return Instead(with_settings(_by_engine(engine)(), dict(settings)), f"since {why}")


def _replace_refused(model: Model, settings: Mapping[str, Any], error: NotCompiled | CapacityError) -> Instead:
    """What fits where the default needs more memory than there is, and a program that is not compiled. Raises the error
    where nothing does, or it lacks the settings that were asked for."""
    name, other = family_of(model).stand_in, _by_density(model)
    if type(error) is NotCompiled and set(settings) <= set(_settings_of(other)):
        return ByDensity(with_settings(other, dict(settings)), str(error))
    if name is None or type(error) is NotCompiled:
        raise error
    return _stand_in(name, settings, f"the default refuses: {error}")


def _in_its_place(model: Model) -> list[Any]:
    """The closed-form methods of a model that are feasible, then one that takes any prior: locals summed out where
    these are few."""
    few = model.rows_are_independent and not model.has_continuous_locals and (model.code_bits or 0) <= EXACT_UP_TO
    alone = model.has_atoms or family_of(model).alone
    generic = [] if alone else [SVI(guide="delta" if few else "mean_field")]
    engines = {name: make() for name, make in engines_of(model).items()}
    feasible = [name for name, one in engines.items() if one.feasible(model)]
    return [*(_by_engine(name)() for name in feasible), *generic]


#: What data are read by.
_READING = ("mask", "dtype", "device")
#: What every method's ``fit`` takes beside the model and the data.
_ARGUMENTS = ("mask", "device", "dtype", "init", "progress", "weights")


@dataclass(frozen=True, kw_only=True)
class Default:
    """Whatever :func:`fit` takes for the model and the size at hand, as a method object.

    settings: fields of the method that it turns out to be.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    name: ClassVar[str] = "default"

    def has_global_posterior(self, model: Model) -> bool:
        return default_method(model, None).has_global_posterior(model)

    def _choose_method(self, model: Model, data: Data | None) -> Any:
        return with_settings(default_method(model, data), self.settings)

    def fit(self, model: Model, data: Any, **arguments: Any) -> Fit:
        """Fit with the method that the default is here; arguments as those of every method."""
        model = require_model(model)
        chosen = with_settings(default_method(model, None), self.settings)
        method, data, arguments = _that_takes_the_size(model, chosen, self.settings, data, arguments)
        try:
            return method.fit(model, data, **arguments)
        except (NotCompiled, CapacityError) as error:
            return _replace_refused(model, self.settings, error).fit(model, data, **arguments)

    def ask(self, model: Model) -> None:
        self.choose(model).ask(model)

    def choose(self, model: Model) -> Any:
        """The method that fits the model: the default, or what stands in for it at the model's priors."""
        return _that_takes_the_priors(model, self._choose_method(model, None), self.settings)

    def local_posterior(self, model: Model, params: dict[str, Any], data: Data, *, seed: int = 0) -> Local:
        """The local posterior of that method at given globals."""
        return self._choose_method(model, data).local_posterior(model, params, data, seed=seed)


def methods_of(model: Model) -> Mapping[str, Callable[..., Any]]:
    """Name -> what makes the method, of the methods that apply to a model."""
    family, continuous = family_of(model), model.has_continuous_locals
    found: dict[str, Callable[..., Any]] = {"default": Default}
    if family.alone:
        return {**found, **family.methods}
    own = is_own_of_rows(model)
    if (best_reference(model) in EXACTLY) if own else not continuous or "exact" in family.engines:
        found["exact"] = Exact
    found |= {"em" if name == "exact" else name: _by_engine(name) for name in family.engines}
    if is_compilable(model):
        found |= {"em" if name == "exact" else name: _by_engine(name) for name in engines_of_program(model)}
    if model.has_atoms:
        return {**found, **({} if family.sampler is None else {"gibbs": CollapsedGibbs}), **family.methods}
    found |= {f"svi_{name}": partial(SVI, guide=name) for name in family.guides}
    # Local guides are for binary codes, continuous latents and nodes of graphs; an encoder reads rows.
    if own:
        summed = count_configurations(model) <= 2.0**EXACT_EM_UP_TO  # the objective is then without noise
        climbs: dict[str, Any] = {"optimizer": "lbfgs", "restarts": _GUIDE_STARTS} if summed else {}
        climbs = {} if model.data_kind == "documents" else climbs  # their guides draw
        full = ("gaussian",) if continuous and climbs else ()
        if takes_values_of(model):
            found |= {name: partial(SVI, guide=name, **climbs) for name in ("mean_field", *full, "amortized")}
    elif model.code_bits is not None or continuous or not model.rows_are_independent:
        found["svi"] = partial(SVI, guide="mean_field")
        if model.rows_are_independent:
            found["amortized"] = partial(SVI, guide="amortized")
    found |= {"svi_delta": partial(SVI, guide="delta"), "svi_normal": partial(SVI, guide="normal"), "nuts": NUTS}
    if family.sampler or (is_compilable(model) and (is_sampled_by_sums(model) or is_sampled_by_choices(model))):
        found["gibbs"] = CollapsedGibbs
    return {**found, **family.methods}


def _by_engine(name: str) -> Callable[..., Any]:
    return EM if name == "exact" else partial(VariationalEM, guide=name)


def methods_for(model: Model) -> list[str]:
    """The names of the methods that apply to a model at its priors: it has the closed-form engines, or the latents,
    that they need, and they have steps for its priors.

    They are what ``fit(model, x, method=...)`` and the command line take. Raises ModelError for what is no model.
    """
    model = require_model(model)
    return [name for name, make in within_reach(model, methods_of(model)).items() if refusal(make(), model) is None]


@functools.cache
def every_method() -> dict[str, Callable[..., Any]]:
    """Name -> what makes the method, of all methods that apply to some model of the suite."""
    return {name: make for kind in MODELS.values() for name, make in methods_of(kind.example().model).items()}


def resolve_method(method: Any, *, model: Model | None = None, **settings: Any) -> Any:
    """A method object from its name, or the object given, with some of its settings exchanged.

    model: the model that the method is for; by default any of the suite's. Raises MethodError for an unknown name,
    something that is not a method, or a setting that the method does not have; the valid ones are listed.
    """
    if not isinstance(method, str):
        if isinstance(method, type) or not hasattr(method, "fit"):
            raise MethodError(f"{method!r} is not a method; expected a name, or an object such as EM()")
        return with_settings(method, settings)
    known = every_method() if model is None else methods_of(model)
    if method == "svi" and "mean_field" in known:  # of programs without engines the name says what the guide is
        known = {**known, "svi": partial(SVI, guide="mean_field")} if "svi" not in known else known
    if method not in known:
        kind = "method" if model is None else f"method of {type(model).__name__}"
        raise MethodError(unknown_name(kind, method, known) + ("" if model is None else _where_known(method, model)))
    if method == "default":
        return Default(settings=settings)
    return with_settings(known[method](), settings)


def _where_known(method: str, model: Model) -> str:
    """Say by which setting of the model, if turned on or off, there is a method that it does not have."""
    kind, chosen, found = type(model), model.chosen_settings(), list[str]()
    names = [one.name for one in fields(kind) if str(one.type).startswith("bool")]
    for name, value in itertools.product(names, (True, False)):
        with contextlib.suppress(PPLError):
            if method in methods_of(kind(**{**chosen, name: value})):
                found.append(f"{name}={value}")
    return f"; {kind.__name__} has {method!r} with {' or '.join(found)}" if found else ""


def _settings_of(method: Any) -> list[str]:
    return [f.name for f in fields(method)] if is_dataclass(method) else []


def with_settings(method: Any, settings: dict[str, Any]) -> Any:
    """The method with some of its settings exchanged. Raises MethodError for one that it does not have."""
    _refuse_unknown(method, settings, _settings_of(method))
    return replace(method, **settings) if settings else method


def _refuse_unknown(
    method: Any, given: Iterable[str], valid: Sequence[str], beside: Sequence[str] = (), model: Model | None = None
) -> None:
    """Raises MethodError for a name that is not valid; the valid ones, and those beside them, are listed. Of settings
    of the model it says that they are such."""
    for name in given:
        if name in valid:
            continue
        if model is not None and name in {one.name for one in fields(model) if one.init}:
            kind = type(model).__name__
            raise MethodError(f"{name} is a setting of the model {kind}, not of its fits; expected {kind}({name}=...)")
        raise MethodError(unknown_name(f"setting of {_public_name(method)}", name, (*beside, *valid)))


def _public_name(method: Any) -> str:
    """Return the name of a method's class, or, of a model's own method, the one that its fits have."""
    kind = type(method)
    return str(method.name) if kind.__module__.startswith("custom_inference.families.") else kind.__name__
