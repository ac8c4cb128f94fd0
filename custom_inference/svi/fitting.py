"""One fit by SVI: its starts, its steps, and the result."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyro
import torch
from torch import Tensor

from custom_inference.compiled.labels import settle_labels
from custom_inference.core.ended import Ended
from custom_inference.core.engine import POINT
from custom_inference.core.engine import Objective as Kind
from custom_inference.core.fit import Fit
from custom_inference.core.isolation import keep_handlers, seed_of
from custom_inference.core.latent_values import is_own_of_rows
from custom_inference.core.method import Call
from custom_inference.core.posterior_bounds import evaluate_posterior
from custom_inference.core.posteriors import PointPosterior
from custom_inference.core.progress import Progress
from custom_inference.core.states import Params
from custom_inference.core.unbounded import warn_of_unbounded
from custom_inference.svi.guides.at_globals import hold_globals, posterior_of_guide
from custom_inference.svi.guides.bases import with_modes
from custom_inference.svi.guides.of_globals import LearnedGuide
from custom_inference.svi.guides.own import OwnGuide, is_guide_class, laplace
from custom_inference.svi.initialisation import clamp_to_interior
from custom_inference.svi.marginal import prior_term
from custom_inference.svi.minibatches import RowAdam
from custom_inference.svi.objective import Objective, Trace, take_steps
from custom_inference.svi.restarts import Attempt, begins_at_best, draw_one_component, search
from custom_inference.svi.unbounded import find_unbounded
from ppl_models import Data, MethodError, Model

#: Steps of a brief run, as a part of all, and at least so many; their learning rate relative to that of the others.
_BRIEF, _FEWEST, _FASTER = 0.1, 50, 4.0
#: Before L-BFGS climbs from one of several starts, in at most so many iterations, Adam takes so many steps at that many
#: times the rate: the first long steps of L-BFGS go to the edges of the supports, where poor optima are.
_BRIEF_CLIMB, _BEFORE, _BEFORE_FASTER = 80, 100, 2.0
#: Fewer where an objective is an integral: its steps cost more, and it has fewer poor optima.
_BEFORE_INTEGRALS = 30
#: Points of programs without engines are moved so far inside their supports: at the edges densities are no numbers.
_INSIDE = 1e-10


@dataclass
class Fitting:
    """method: the settings, an ``SVI``; kind: how the globals are treated, by name; start: the caller's values."""

    method: Any
    model: Model
    data: Data
    call: Call
    bar: Progress
    kind: str
    start: dict[str, Tensor] | None = None
    outcome: str = ""
    interrupted: bool = False
    details: dict[str, Any] = field(default_factory=dict)

    def fit(self) -> Fit:
        """Ctrl-C ends it with the best state so far."""
        if self.method.sums_codes and not self.model.unknown_sites:
            said = "all globals are known: the locals' posterior at these values"
            known = Trace([math.nan], outcome=said, ended=Ended.SOLVED)
            return self._result(self._guide(0, None), known)
        self._start_on_some_rows()
        if self.method.restarts == 1 or self.start is not None:
            return self._from(self._guide(0, None), Trace(), self.method)
        settings = {"rows": len(self.data), "agree": self.method.agree}
        found = search(self.method.restarts, self.call.seed, self._attempt, self.bar, **settings)
        self.details["start_scores"] = [one.score / len(self.data) for one in found.attempts]
        self.outcome = f"; {found.agreement(len(self.data))}"
        best = found.best
        with pyro.get_param_store().scope(best.parameters):
            if found.interrupted:
                self.outcome = f"interrupted after {len(found.attempts)} starts; this is the best of them"
                best.trace.outcome, best.trace.ended = "", Ended.INTERRUPTED
                return self._result(best.guide, best.trace)
            return self._from(best.guide, best.trace, self.method)

    def _start_on_some_rows(self) -> None:
        """Start minibatches from the optimum of L-BFGS on some rows, where a step over all rows would be too large."""
        method = self.method
        if method.optimizer != "lbfgs" or self.kind != "delta" or not self.model.rows_are_independent:
            return
        stochastic = replace(method, optimizer=None)
        size = stochastic.data_seen(self.model).batch(self.data) if method.batch_size == "auto" else None
        if size is None:
            return
        if self.start is None:
            part = self.data.rows(torch.randperm(len(self.data))[:size].to(self.data.x.device))
            settings = replace(method, batch_size=None)
            found = replace(self, method=settings, data=part, call=replace(self.call, init=None)).fit()
            self.start, self.outcome = found.globals, f", from a start on {size} rows ({found.status})"
            self.interrupted = found.interrupted
        self.method = replace(stochastic, restarts=1)

    def _guide(self, number: int, kept: Mapping[str, Tensor] | None) -> Any:
        """The guide that the start of a number begins with; kept: values of which it keeps all but one component."""
        method, model, seed, program = self.method, self.model, self.call.seed, self._program
        if self.kind == "custom" and not is_guide_class(method.guide):
            return method.make_guide(program, self.data, self.kind, self.start)
        init = self.start if self.start is not None else self.call.init
        start = method.data_seen(model).start(self.data, init, seed if number == 0 else seed_of(seed, "start", number))
        if kept is not None:
            start = draw_one_component(model, start, kept)
        return method.make_guide(program, self.data, self.kind, start)

    @property
    def _program(self) -> Model:
        """The program that is fitted: of points with priors that have modes."""
        points = self.method.points_of(self.model)
        return with_modes(self.model, points) if self.kind == "delta" else self.model

    def _objective(self, guide: LearnedGuide) -> Objective:
        return self.method.objective(self.model, self._program, guide, self.data)

    def _attempt(self, number: int, best: Attempt | None) -> Attempt:
        kept = best.centre if best is not None and begins_at_best(self.model, number) else None
        guide, trace, method = self._guide(number, kept), Trace(), self.method
        few = _BRIEF_CLIMB if method.optimizer == "lbfgs" else max(_FEWEST, int(_BRIEF * method.steps))
        brief = replace(method, steps=min(few, method.steps), learning_rate=_FASTER * method.learning_rate)
        objective = self._objective(guide)
        if method.optimizer == "lbfgs":
            rate = _BEFORE_FASTER * method.learning_rate
            steps = _BEFORE_INTEGRALS if method.integrates(self.model) and self.model.has_continuous_locals else _BEFORE
            take_steps(objective, RowAdam(lambda _: rate), steps, trace)
        brief.minimise(objective, trace)
        score, error = objective.evaluate(brief.steps)
        self.bar.advance(score / len(self.data))
        unbounded = self._find_unbounded(objective, trace)
        return Attempt(guide, {}, score, error, trace, guide.points(), random=kept is None, unbounded=unbounded)

    def _find_unbounded(self, objective: Objective, trace: Trace) -> tuple[str, ...]:
        """Return the sites along which the log joint of points rises without end; () where it need not be asked."""
        if self.kind != "delta" or not (self.model.has_functions or trace.met_edge):
            return ()
        points = objective.guide.points() or {}
        known = {site: value.to(self.data.x) for site, value in self.model.known.items()}
        return find_unbounded(objective, self._program, {**known, **points}, self.call.seed)

    def _from(self, guide: LearnedGuide, trace: Trace, method: Any) -> Fit:
        try:
            objective = self._objective(guide)
            with keep_handlers():  # the state at an interrupt is evaluated by the same program
                method.minimise(objective, trace, self.bar)
        except KeyboardInterrupt:
            if not trace.values:
                raise
            done = len(trace.values)
            trace.outcome = f"interrupted after {done} steps; this is the state at that point"
            trace.ended = Ended.INTERRUPTED
        method.require_finite(trace)
        trace.outcome += _describe_convergence(trace.values, len(self.data)) + self.outcome
        return self._result(guide, trace)

    def _result(self, guide: Any, trace: Trace) -> Fit:
        model, data = self.model, self.data
        objective = self._objective(guide)
        if guide.is_own and guide.is_laplace:
            guide = laplace(guide, objective)
            objective = objective.at(guide)
            trace.outcome += "; the steps' objective is the log joint, the last the ELBO of Laplace's Gaussian"
        error = 0.0
        try:
            trace.values[-1], error = objective.evaluate(self.method.steps)
            if error:
                self.details["objective_standard_error"] = error
        except KeyboardInterrupt:
            trace.outcome = f"interrupted after {len(trace.values)} steps, before the objective on all rows was known"
            trace.ended = Ended.INTERRUPTED
        params, draws = self._globals(guide)
        if self.kind == "delta" and is_own_of_rows(model):
            params = clamp_to_interior(model, params, _INSIDE)
        params = {site: value.to(data.x) for site, value in model.known.items()} | params
        unbounded = self._find_unbounded(objective, trace)
        if unbounded:
            ended = trace.outcome.replace("L-BFGS converged", "L-BFGS ended", 1)
            trace.outcome = ended + warn_of_unbounded(unbounded)
            trace.ended = Ended.UNBOUNDED
        posterior, learned = guide.posterior(data, params), guide
        if model.local_site in params and posterior is None:
            posterior = PointPosterior(params[model.local_site])
        if guide.is_own:
            guide.keep(pyro.get_param_store().get_state())
            learned = guide.learned
            if guide.of_rows and is_own_of_rows(model):
                at = {site: params[site] for site in model.global_sites}
                params, posterior = at, None
                with contextlib.suppress(MethodError):  # globals and locals in one vector: there are draws of both
                    posterior = posterior_of_guide(hold_globals(guide, at), model, at, data, self.call.seed)
        bound = self._bound_name(guide, draws)
        points = self.kind == "delta" or (self.kind == "custom" and draws is None)
        kinds: dict[str, Kind] = {"exact": "evidence", POINT: "log joint"}
        return Fit(
            model=model,
            params=params,
            elbo=torch.tensor(trace.values, dtype=torch.float64),
            bound_name=bound,
            objective=kinds.get(bound, "estimate" if error else "bound"),
            prior_term=prior_term(
                self._program, guide, data, objective.loss, self.call.seed, params if points else None
            ),
            status=trace.outcome or self.outcome,
            ended=Ended.INTERRUPTED if self.interrupted else trace.ended,
            method=self.method,
            data=data,
            seed=self.call.seed,
            local=None if posterior is None else evaluate_posterior(model, params, data, posterior, self.method.name),
            global_posterior=guide.global_posterior(),
            draws=draws,
            guide=learned,
            details=self.details,
        )

    def _bound_name(self, guide: LearnedGuide, draws: Params | None) -> str:
        """Name what the objective bounds."""
        method, kind = self.method, self.kind
        continuous = self.model.has_continuous_locals and not method.integrates(self.model)
        summed = bool(guide.summed) if guide.is_own else method.sums_codes and not continuous
        if kind == "custom" and draws is None:
            return "exact" if summed else POINT
        if kind == "delta" and method.sums_codes:
            return "exact" if summed else POINT
        if kind == "custom" or method.sums_codes:
            codes = guide.is_own or not self.model.has_continuous_locals
            how = "codes summed out" if codes else "latents integrated out"
            return f"elbo ({how})" if summed else "elbo"
        names = {"delta": method.family, "normal": f"elbo ({method.family})"}
        return names.get(kind, f"elbo ({method.family}, globals dirichlet)")

    def _globals(self, guide: LearnedGuide) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
        """Point estimates from points; draws (1 chain) and their mean from anything else."""
        model, data = self.model, self.data
        inner = guide.of_globals
        with torch.no_grad():
            if self.kind in ("delta", "dirichlet"):
                return {k: v.detach().clone() for k, v in inner.median().items() if k in model.dims}, None
            own = inner if inner.is_own else OwnGuide(inner)
            draws = {site: value for site, value in own.draws(data).items() if site in model.dims}
        if is_own_of_rows(model) and inner.is_own:
            points = {site: value for site, value in draws.items() if site in model.shapes}
            if all(torch.equal(value[:, :1].expand_as(value), value) for value in points.values()):
                return {site: value[0, 0] for site, value in points.items()}, None
        if next(iter(draws.values())).shape[1] == 1:
            return {site: value[0, 0] for site, value in draws.items()}, None
        draws = settle_labels(model, data, draws)
        return {site: value.mean((0, 1)) for site, value in draws.items()}, draws


def _describe_convergence(values: list[float], rows: int) -> str:
    """Say by how much the mean objective still changed at the end."""
    tail = max(1, len(values) // 20)
    if len(values) < 3 * tail:
        return ""
    recent, earlier = (sum(part) / len(part) for part in (values[-tail:], values[-2 * tail : -tail]))
    return f" (mean objective over the last twentieth changed by {(recent - earlier) / rows:.2g} a row)"
