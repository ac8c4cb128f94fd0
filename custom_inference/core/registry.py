"""The registry: one record for each model, with what the suite knows beside its program, looked up by type.

A subclass has the record of its nearest ancestor exactly when it overrides nothing that the program, its sites or its
data come from; otherwise an engine derived for another program would be run, and the generic methods serve instead.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Dirichlet

from custom_inference.core.engine import POINT, Engine, Objective
from custom_inference.core.presentation import Presentation
from custom_inference.core.proposals import Proposals
from custom_inference.families import ROOMS
from ppl_models import Data, GraphModel, MethodError, Model
from ppl_models.core.errors import unknown_name
from ppl_models.core.hierarchy import is_function
from ppl_models.core.priors import describe_prior
from ppl_models.data.held import is_text

#: Exact EM is the default of models of binary codes up to so many bits.
EXACT_EM_UP_TO = 10
_Any = TypeVar("_Any")
#: The stages before engines whose records name none.
_RANDOM = ("random starts",)
#: The stages before compiled engines.
_COMPILED = ("races of means of columns with rows as centres", "merges and splits")
_OF_GRAPHS = ("divisions of the nodes by several views of the edges", "merges and splits")
#: The engines that are compiled from programs and whose objective is a bound.
_COMPILED_BOUNDS = ("vb", "conjugate")
#: What those of rows with shares do before.
_OF_SHARES = ("components sampled from words",)
#: What a subclass may override and keep its ancestor's record: how it is described, its default values, its examples.
_HARMLESS = {"default_priors", "example", "for_data", "summary", "check_for_fitting", "num_parameters", "_abc_impl"}


@dataclass(frozen=True, kw_only=True)
class Family:
    """The record of one model.

    engines: name -> closed-form engine; "exact" where its bound is the evidence. The first after "exact" serves where
        the exact sum is not feasible.
    default: the engine that ``fit(model, x)`` uses: its name, or a rule that gives it from the model and its data
        (None: unknown so far).
    by_size: (data) -> the name of the engine that fits data of this size in the default's place, and why; None, "": the
        default does.
    stand_in: the engine that fits in the default's place where that takes no weights of rows, where data are read block
        by block, or where its locals do not fit into memory.
    search: makes the proposals that a search for starting values of an engine goes by; by the engine's name where
        they differ.
    stages: what a fit does before its engine, in order, as ``Fit.stages`` names it: what starts are made by, and what
        the best of them is refined by, if it is; by the engine's name where they differ.
    sampler: makes the sampler of ``CollapsedGibbs``.
    guides: name -> Pyro guide (settings) of this model alone, for ``SVI(guide=name)``.
    methods: name -> method of this model alone, for ``fit(method=name)``; ``alone``: there are no others.
    result: what its fits are, where they say more than :class:`custom_inference.Fit`.
    estimates: name -> (model, params, data, seed=) -> Local, estimates of log p(x_n | params) beside those of the
        engines: ``log_likelihood(bound=name)``. The first stands in where the exact one is not feasible.
    chains: (model, params, data) -> chains over the locals for annealing, faster than those of the program; None where
        they do not serve.
    estimator: (model, params, data) -> what estimates log p(x_n) in another way than by annealing, or None.
    above: (model, params, data, exact_ones=) -> an upper bound on log p(x_n) (N,), and in which rows it is exact (N,).
    reach: (model, data) -> the seconds (N,) that the exact sums of the rows take, where that depends on the row;
        infinite where they are out of reach.
    presentation: what figures and reports say of the model.
    predict: (fit, data) -> the posterior mean of what the model responds with, for ``Fit.predict``; where it
        ``reads_queries``, (fit, query, ...) with what ``Fit.predict`` is given, as it is.
    recommend: (fit, users, n, ...) -> a table of the items that are best for users, for ``Fit.recommend``.
    partition: (model, data, seed) -> blocks (N,) of a graph's nodes that are likely whatever the globals are, which
        generic methods start from; that of ``GraphModel`` serves all models of graphs.
    own_threads: whether fits divide their work among threads themselves (``core.threads``), libraries having one each;
        or the names of the engines whose fits do.
    tokens: (fit, data) -> a frame of what the fit says of every token, for ``Fit.tokens``.
    compiled: whether the engines are compiled from the program.
    otherwise: the record that serves instead where the prior of the main latent is no Dirichlet, which the engines and
        the sampler of this one need, with this one's presentation; None: they take any.
    """

    model: type[Model]
    engines: Mapping[str, Callable[..., Engine]] = field(default_factory=dict)
    default: str | Callable[[Any, Data | None], str] | None = None
    by_size: Callable[[Data], tuple[str | None, str]] | None = None
    stand_in: str | None = None
    search: Callable[[Any], Proposals] | Mapping[str, Callable[[Any], Proposals]] = Proposals
    stages: tuple[str, ...] | Mapping[str, tuple[str, ...]] = _RANDOM
    sampler: Callable[[], Any] | None = None
    guides: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    methods: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    alone: bool = False
    result: type[Any] | None = None
    estimates: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    chains: Callable[..., Any] | None = None
    estimator: Callable[..., Any] | None = None
    above: Callable[..., tuple[Tensor, Tensor]] | None = None
    reach: Callable[[Any, Data], Tensor] | None = None
    presentation: Presentation = field(default_factory=Presentation)
    predict: Callable[..., Any] | None = None
    reads_queries: bool = False
    recommend: Callable[..., Any] | None = None
    partition: Callable[[GraphModel, Data, int], NDArray[np.int64]] | None = None
    own_threads: bool | tuple[str, ...] = False
    tokens: Callable[..., Any] | None = None
    compiled: bool = False
    otherwise: Family | None = None

    def for_priors(self, model: Model) -> Family:
        """The record at the model's priors: this one, or ``otherwise``; of latents whose prior is a function of other
        sites, for which nothing is derived, one without engines."""
        prior = model.priors.get(model.local_site)
        if is_function(prior):
            return Family(model=self.model, presentation=self.presentation, predict=self.predict)
        other = prior is not None and not isinstance(prior, Dirichlet)
        return self if self.otherwise is None or not other else replace(self.otherwise, presentation=self.presentation)

    def divides_work(self, engine: str | None) -> bool:
        """Tell whether fits by an engine, or by a method without one, divide their work among threads themselves."""
        return self.own_threads is True or (self.own_threads is not False and engine in self.own_threads)

    def stages_before(self, engine: str) -> tuple[str, ...]:
        """Return the names of what a fit does before an engine."""
        return _of_engine(self.stages, engine, _RANDOM)


def _of_engine(given: Any, engine: str, default: _Any) -> _Any:
    """Return what a record has for an engine: the same for all, or by the engine's name."""
    return given.get(engine, default) if isinstance(given, Mapping) else given


_REGISTERED: dict[type[Model], Family] = {}


def register(family: Family) -> None:
    """Make the record of a model of one's own known.

    Raises MethodError for a record that could not serve: of what is no class of models, with an engine that is none or
    lacks some of its methods, with a default that is neither of its engines nor of its methods.
    """
    if not (inspect.isclass(family.model) and issubclass(family.model, Model)):
        raise MethodError(f"model = {family.model!r} in a Family, expected a class of models, such as LDA")
    for name, make in family.engines.items():
        _require_engine(f"engines[{name!r}] of {family.model.__name__}", make)
    known = {**family.engines, **family.methods}
    if not callable(family.default) and family.default not in (None, *known):
        raise MethodError(unknown_name(f"default of {family.model.__name__}", family.default, known))
    if is_text(family.stages):
        raise MethodError(f"stages = {family.stages!r}, expected a tuple of names, such as ({family.stages!r},)")
    _REGISTERED[family.model] = family


def _require_engine(what: str, make: Callable[..., Engine]) -> None:
    """Raise MethodError for what makes no engine, and for a class of engines without some of their methods."""
    if not callable(make) or (inspect.isclass(make) and not issubclass(make, Engine)):
        raise MethodError(f"{what} is {make!r}, expected a subclass of Engine or ExactEngine, or what makes one")
    missing = sorted(getattr(make, "__abstractmethods__", ()))
    if missing:
        raise MethodError(f"{what} is {make.__name__}, which lacks {', '.join(missing)}; define what an engine needs")


def family_of(model: Model) -> Family:
    """The record of a model: an empty one where there is none."""
    kind = type(model.summed_out)
    for place, ancestor in enumerate(kind.__mro__):
        found = _record(ancestor)
        if found is not None:
            inherits = not any(_overrides(one, ancestor) for one in kind.__mro__[:place])
            return found.for_priors(model) if inherits else _of_program(model.summed_out)
    return _of_program(model.summed_out)


def _of_program(model: Model) -> Family:
    """The record of a program for which nothing is derived by hand: what is compiled divides its work itself; graphs
    whose nodes choose one of the blocks each have engines that are compiled from their programs."""
    kind = type(model)
    if not issubclass(kind, GraphModel):
        shares = dict.fromkeys(_COMPILED_BOUNDS, _OF_SHARES)
        stages = {"exact": _COMPILED, **shares} if model.has_continuous_locals else _COMPILED
        return Family(model=kind, own_threads=("exact",), stages=stages)
    site = model.sites[model.local_site]
    chosen = site.choice is not None and model.sizes[site.choice] == model.sizes.get("component") and not site.dims
    if not chosen or site.plates != ("node",) or len(model.row_latents) > 1:
        return Family(model=kind)
    return Family(
        model=kind, engines=_of_graphs().ENGINES, sampler=_of_graphs().SAMPLER, stages=_OF_GRAPHS, compiled=True
    )


@functools.cache
def _of_graphs() -> Any:
    """The engines and the sampler of programs of graphs. Loaded by name: they are made of what block models have."""
    return importlib.import_module("custom_inference.compiled.graphs")


def _record(kind: type) -> Family | None:
    if kind in _REGISTERED or kind.__module__.partition(".")[0] != "ppl_models" or kind.__name__ not in ROOMS:
        return _REGISTERED.get(kind)
    return _room(ROOMS[kind.__name__]).get(kind)


@functools.cache
def _room(name: str) -> dict[type[Model], Family]:
    """The records of a room. Loaded by name: rooms import this module, and loading one takes time."""
    return {one.model: one for one in importlib.import_module(f"custom_inference.families.{name}").FAMILIES}


def _overrides(kind: type, ancestor: type) -> bool:
    """Whether a class redefines what it inherits, beside what is harmless."""
    inherited = {name for name in vars(kind) if any(name in vars(base) for base in ancestor.__mro__[:-1])}
    return any(name == "__call__" or not name.startswith("__") for name in inherited - _HARMLESS)


def propose_partition(model: GraphModel, data: Data, seed: int) -> NDArray[np.int64]:
    """Divide a graph's nodes into blocks, (N,), by the nearest record that says how, whatever the model overrides."""
    records = (_record(kind) for kind in type(model).__mro__)
    divide = next(one.partition for one in records if one is not None and one.partition is not None)
    return divide(model, data, seed)


def presentation_of(model: Model) -> Presentation:
    """Return the presentation of a model in figures and reports."""
    return family_of(model).presentation


def engines_of(model: Model) -> Mapping[str, Callable[..., Engine]]:
    """Name -> closed-form engine, for the models that have such."""
    return family_of(model).engines


def under_prior(model: Model) -> str:
    """Name the prior of the memberships for messages, where it decides which engines and samplers there are."""
    prior = model.priors.get(model.local_site) if model.has_continuous_locals else None
    if prior is None or isinstance(prior, Dirichlet):
        return ""
    return f" under the prior of '{model.local_site}', {describe_prior(prior)},"


def engine_for(model: Model, name: str, **settings: Any) -> Engine:
    """The engine of a model, by its name. Raises MethodError where there is none, with the names that there are."""
    engines, kind = engines_of(model), type(model).__name__ + under_prior(model)
    if not engines:
        others = ", ".join([*family_of(model).methods, "Exact", "SVI"])
        raise MethodError(f"{kind} has no closed-form engine; use {others} or NUTS")
    if name not in engines:
        one = repr(next(iter(engines)))
        how = f"VariationalEM(guide={one}) fits with it, bound={one} scores with it"
        estimate = "'ais' as a bound estimates log p(x)"
        raise MethodError(f"{kind} has no engine {name!r}; valid: {', '.join(engines)}; {how}; {estimate}")
    return engines[name](**settings)


def objective_named(model: Model, bound_name: str) -> Objective:
    """Return the kind of number that an objective of this name is (``Fit.bound_name``)."""
    made = engines_of(model).get(bound_name)
    if made is not None:
        return made().objective
    of_name: dict[str, Objective] = {
        "exact": "evidence",
        POINT: "log joint",
        **dict.fromkeys(_COMPILED_BOUNDS, "bound"),
    }
    return of_name.get(bound_name, "log joint" if bound_name.startswith("log") else "estimate")


def proposals_for(model: Model, engine: Engine) -> Proposals:
    """How a search finds starting values for an engine of the model."""
    engine = engine.plain
    if isinstance(engine, Proposals):
        return engine
    return _of_engine(family_of(model).search, engine.name, Proposals)(engine)
