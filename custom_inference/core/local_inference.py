"""Local inference at given globals: the posterior of the local latents and a bound on (or the exact) evidence.

``Fit.transform``, ``Fit.log_likelihood`` and ``compare`` go through this module: by the model's closed-form engines,
where the registry has some, else by enumeration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_inference.compiled.programs import engines_of_program
from custom_inference.compiled.reading import NotCompiled
from custom_inference.core.annealing.estimate import Budget
from custom_inference.core.annealing.local import anneal_locals, posterior_of
from custom_inference.core.engine import POINT, Engine, EStep, Objective, Params
from custom_inference.core.enumeration import enumerate_log_joint
from custom_inference.core.latent_values import is_own_of_rows
from custom_inference.core.posteriors import CodePosterior, ContinuousPosterior, LabellingPosterior, LocalPosterior
from custom_inference.core.programs.reference import best_reference, find_reference, is_cheap
from custom_inference.core.registry import engine_for, engines_of, family_of, objective_named
from custom_inference.core.states import State, move_state
from ppl_models import CapacityError, Data, MethodError, Model

#: What the estimates by importance sampling and by annealing are called.
IMPORTANCE, ANNEALED = "importance", "ais"
#: The family of posteriors by annealing.
ANNEALING = "annealing"

#: What posteriors are, by the objective of the engine that finds them.
WHAT: dict[Objective, str] = {
    "evidence": "exact", "bound": "variational", "log joint": "point", "estimate": "estimate",
}  # fmt: skip
#: What posteriors are whose bound was not asked for, and not computed.
ALONE = "without its evidence"


class Local(NamedTuple):
    """A posterior over the locals of some rows, and its bound (N,) on log p(x_n | params); NaN where it has none, or
    none was asked for.

    standard_error: (N,), of bounds that are Monte Carlo estimates, independent between rows; None of others.
    what: "exact", "enumeration" (exact too, by Pyro), "variational", "point", "draws", "estimate", or ``ALONE``.
    family: the family of posteriors that it is from; posteriors of the same family at the same globals are the same.
    """

    posterior: LocalPosterior
    bound: Tensor
    standard_error: Tensor | None = None
    what: str = ""
    family: str = ""

    def to(self, device: torch.device | str) -> Local:
        """Move the posterior and its bound to another device."""
        error = None if self.standard_error is None else self.standard_error.to(device)
        return self._replace(posterior=self.posterior.to(device), bound=self.bound.to(device), standard_error=error)

    def but(self, how: str) -> Local:
        """Add to ``what`` how the method departed from its usual way."""
        return self._replace(what=f"{self.what}, {how}")


def local_of(engine: Engine, model: Model, state: State | Params, rows: Any, step: EStep) -> Local:
    """What an E step arrived at; a log joint is no bound, nor is an estimate that is not one at given globals."""
    of_rows = engine.objective == "estimate" and not engine.integrates_globals
    kept = of_rows or engine.objective in ("evidence", "bound")
    bound = step.bound if kept else torch.full_like(step.bound, torch.nan)
    posterior, what = engine.posterior(model, state, rows, step), WHAT[engine.objective]
    if posterior is None:
        found = f"{type(engine.plain).__name__}.posterior returned None"
        raise MethodError(f"{found}; expected a LocalPosterior, such as CodePosterior(values, log_weights)")
    return Local(posterior, bound, what=what, family=_family(engine, model))


def _family(engine: Engine, model: Model) -> str:
    """The engine's name, with the settings in which it differs from what the name alone stands for."""
    name, make = engine.name, engines_of(model).get(engine.name)
    if make is None or engine.objective == "evidence" or not is_dataclass(engine):
        return name
    usual = make().local()
    if type(usual) is not type(engine) or usual == engine:
        return name
    pairs = [(one.name, getattr(engine, one.name)) for one in fields(engine)]
    others = [f"{setting}={value!r}" for setting, value in pairs if value != getattr(usual, setting)]
    return f"{name}({', '.join(others)})"


@dataclass(frozen=True, kw_only=True)
class LocalSolver:
    """Repeats a family's E step at fixed globals until its bound settles."""

    engine: Engine
    max_iterations: int = 200
    tolerance: float = 1e-8

    def solve(
        self,
        model: Model,
        params: Params,
        data: Data,
        *,
        seed: int = 0,
        posteriors: Mapping[str, ContinuousPosterior] | None = None,
        evidence: bool = True,
    ) -> Local:
        """posteriors: of the globals, which engines that integrate these take in place of ``params`` where they can.
        evidence: whether the bound is asked for; engines whose posterior needs none then leave it out (NaN)."""
        engine, state = self.engine.local(), None
        if posteriors and self.engine.state is not None:
            state = self.engine.state.of_posteriors(posteriors)
            engine = engine if state is None else self.engine
        rows = engine.rows(model, data)
        # Engines that go node by node read the data on the CPU; the answer is where the question was.
        params = move_state(params if state is None else state, rows.like.device)
        own = engine
        if not evidence and own.reads_off:
            no_step: Any = None
            posterior = own.posterior(model, params, rows, no_step)
            none = rows.like.new_full((len(rows),), torch.nan)
            return Local(posterior, none, what=ALONE, family=_family(engine, model)).to(data.x.device)
        generator = torch.Generator().manual_seed(seed)
        engine = engine.at_length()
        step = engine.e_step(model, params, rows, generator=generator)
        patience = engine.patience
        stalled = patience if engine.solves_at_once else 0
        for _ in range(self.max_iterations):
            if stalled >= patience:
                break
            before = step.bound
            step = engine.e_step(model, params, rows, step.locals, generator=generator)
            stalled = stalled + 1 if float((step.bound - before).abs().max()) < self.tolerance else 0
        return local_of(own, model, params, rows, step).to(data.x.device)


def is_feasible(model: Model, data: Data | None = None) -> bool:
    """Whether exact local posteriors are the default: codes of few bits, locals of a few values, cheap integrals; where
    ``data`` are given, sums that are cheap on these rows."""
    engines = engines_of(model)
    if engines:
        if "exact" not in engines:
            return False
        exact = engines["exact"]()
        return exact.feasible(model) if data is None else exact.feasible_on(model, data)
    return is_cheap(model, data) if is_own_of_rows(model) else not model.has_continuous_locals


def bounds_of(model: Model) -> list[str]:
    """The names of the bounds on, estimates of, or the exact log p(x_n | params) that the model's engines give; of
    programs without engines what serves any program. The estimate "ais" is there for every model."""
    if is_own_of_rows(model):
        how = best_reference(model)
        below = [name for name in engines_of_program(model) if name != "exact" and not _integrates(model, name)]
        return [*([] if how is None else [IMPORTANCE if how == "estimate" else "exact"]), *below]
    return [name for name, make in engines_of(model).items() if name != POINT and not make().integrates_globals]


def _integrates(model: Model, name: str) -> bool:
    """Whether a compiled engine has a posterior of the globals."""
    return engines_of_program(model)[name]().integrates_globals


def describe_stand_in(model: Model, name: str) -> str:
    """Say what a name of :func:`bounds_of` stands for in place of log p(x_n | params)."""
    bounds = objective_named(model, name) == "bound"
    return f"the lower bound '{name}'" if bounds else f"the estimate '{name}', no bound: it may lie above"


def _list_stand_ins(model: Model) -> tuple[str, str]:
    """Return what ``bound=`` may be in place of "exact": lower bounds, and estimates, which may lie above."""
    names = [name for name in bounds_of(model) if name != "exact"]
    below = [name for name in names if objective_named(model, name) == "bound"]
    listed = ([name for name in names if (name in below) == wanted] for wanted in (True, False))
    bounds, estimates = (" or ".join(f"bound='{name}'" for name in one) for one in listed)
    return bounds, estimates


def scalable_bound(model: Model) -> str:
    """The family that is used by default where the exact sum is not feasible: the first that is registered for it."""
    known = bounds_of(model)
    return next((name for name in known if name != "exact"), "exact" if known else "truncated")


def estimate_in_place(model: Model, data: Data | None = None) -> str | None:
    """The estimate of log p(x_n | params) in place of the exact one, where that is not feasible and there is one."""
    estimates = family_of(model).estimates
    return None if not estimates or is_feasible(model, data) else next(iter(estimates))


def name_in_place(model: Model, data: Data) -> str:
    """The bound, estimate or "exact" that locals are inferred by where none is named."""
    return estimate_in_place(model, data) or ("exact" if is_feasible(model, data) else scalable_bound(model))


def enumerate_local(model: Model, params: Mapping[str, Tensor], data: Data) -> Local:
    """The exact local posterior of a program with finite locals, by Pyro's parallel enumeration.

    Raises MethodError where a local has no finite support.
    """
    values, table = enumerate_log_joint(model, params, data.dense())
    codes = torch.cat([value.reshape(len(value), -1) for value in values.values()], -1)
    log_weight = torch.log_softmax(table, -1)
    if model.rows_are_independent:
        posterior: LocalPosterior = CodePosterior(codes.to(table), log_weight)
    else:
        blocks = torch.tensor(model.local_shape[0], device=table.device)
        posterior = LabellingPosterior(codes.long(), log_weight[0], blocks)
    return Local(posterior, table.logsumexp(-1), what="enumeration", family="exact")


def anneal_local(
    model: Model, params: Mapping[str, Tensor], data: Data, budget: Budget | None = None, *, seed: int = 0
) -> Local:
    """The posterior of the locals of any model and log p(x_n), by annealed importance sampling; (1,) where the
    rows depend on each other."""
    found = anneal_locals(model, params, data, budget or Budget(), seed=seed)
    posterior = posterior_of(model, params, data, found)
    return Local(posterior, found.log_evidence, found.standard_error, "estimate", ANNEALING)


def infer_exactly(
    model: Model, params: Mapping[str, Tensor], data: Data, *, estimates: bool = False, seed: int = 0
) -> Local:
    """The posterior of all latents of the rows of a program without engines: by the sum over finite ones, by quadrature
    over up to three real numbers; where ``estimates`` may stand in, by importance sampling beyond."""
    if not is_own_of_rows(model):
        return enumerate_local(model, params, data)
    found = find_reference(model, params, data, estimates=estimates, seed=seed)
    family = "importance sampling" if found.how == "estimate" else "exact"
    return Local(found.posterior, found.log_evidence, found.standard_error, found.how, family)


def solve_local(
    model: Model,
    params: Params,
    data: Data,
    *,
    bound: str | None = None,
    fallback: LocalSolver | None = None,
    seed: int = 0,
    evidence: bool = True,
) -> Local:
    """The local posterior under the named family; by default exact where feasible, else the fallback's family.

    evidence: whether its bound is asked for too; False spares what only that needs, such as a log normaliser.

    A fallback that estimates the locals as points is the default wherever it is given: the globals were fitted with
    those estimates.
    """
    engines = engines_of(model)
    if bound == ANNEALED and bound not in family_of(model).estimates:
        return anneal_local(model, params, data, seed=seed)
    if not engines and bound in (None, "exact", IMPORTANCE):
        if bound is None and fallback is not None and not is_feasible(model, data):
            return fallback.solve(model, params, data, seed=seed, evidence=evidence)
        bounded = not evidence and bound is None and scalable_bound(model) in engines_of_program(model)
        if bounded and not is_feasible(model, data):
            return solve_local(model, params, data, bound=scalable_bound(model), seed=seed, evidence=evidence)
        return infer_exactly(model, params, data, estimates=bound != "exact", seed=seed)
    points = fallback is not None and fallback.engine.objective == "log joint"
    if bound is None and fallback is not None and (points or not is_feasible(model, data)):
        return fallback.solve(model, params, data, seed=seed, evidence=evidence)
    if bound is not None and bound in engines_of_program(model):
        compiled = LocalSolver(engine=engines_of_program(model)[bound]())
        return compiled.solve(model, params, data, seed=seed, evidence=evidence)
    name = bound or name_in_place(model, data)
    if name in family_of(model).estimates:
        exact = engine_for(model, "exact") if "exact" in engines else None
        if not evidence and exact is not None and exact.reads_off:  # the estimate is of the evidence alone
            return LocalSolver(engine=exact).solve(model, params, data, seed=seed, evidence=False)
        return family_of(model).estimates[name](model, params, data, seed=seed)
    engine = _exact_engine(model) if name == "exact" else engine_for(model, name)
    try:
        return LocalSolver(engine=engine).solve(model, params, data, seed=seed, evidence=evidence)
    except NotCompiled:
        if name != "exact":
            raise
        return enumerate_local(model, params, data)


def _exact_engine(model: Model) -> Any:
    """The engine whose bound is the evidence. Raises MethodError where there is none."""
    if "exact" not in engines_of(model):
        raise _no_evidence(model)
    return engine_for(model, "exact")


def _no_evidence(model: Model) -> MethodError:
    """Return the error that says that log p(x_n) is not available, and which bounds are."""
    bounds, estimates = _list_stand_ins(model)
    instead = bounds or "the ELBO of a fit by SVI() with a guide of the locals, fit.local.bound"
    more = f"{estimates} or " if estimates else ""
    return MethodError(
        f"log p(x_n) of {type(model).__name__} has no closed form here; lower bounds: {instead}; estimates, which may "
        f"lie above it: {more}bound='{ANNEALED}'"
    )


def log_likelihood(model: Model, params: Params, data: Data, *, bound: str | None = None, seed: int = 0) -> Tensor:
    """log p(x_n | params), (N,): exact (``bound`` None or "exact"), or the named lower bound or estimate.

    Where the exact sum is not feasible None is the estimate of it that the model's family has, if any.
    """
    if bound == POINT:
        what = f"'{POINT}' is no bound on log p(x_n); valid: {', '.join(bounds_of(model))}"
        raise MethodError(f"{what}. The likelihood at point estimates of the locals is plugin_log_likelihood")
    name = bound or estimate_in_place(model, data)
    if name is not None and name in family_of(model).estimates:
        return family_of(model).estimates[name](model, params, data, seed=seed).bound
    if bound not in (None, "exact") or not engines_of(model):
        return solve_local(model, params, data, bound=bound, seed=seed).bound
    exact = _exact_engine(model)
    try:
        return exact.log_evidence(model, params, exact.rows(model, data))
    except NotCompiled:
        return enumerate_local(model, params, data).bound
    except CapacityError as error:
        bounds, estimates = _list_stand_ins(model)
        more = f"; estimates, which may lie above: {estimates}" if estimates else ""
        raise CapacityError(f"{error}. Lower bounds available: {bounds or 'none'}{more}", **vars(error)) from None
