"""``partial_fit``: stepwise EM that gets its minibatches one after the other."""

from __future__ import annotations

import functools
from typing import Any

import torch

from custom_inference.core.ended import Ended
from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import LocalSolver
from custom_inference.core.method import Method
from custom_inference.core.progress import Progress
from custom_inference.core.registry import engines_of, proposals_for
from custom_inference.core.states import State, values_of
from custom_inference.em.method import VariationalEM
from custom_inference.em.rows import FitRows
from custom_inference.em.search import find_start
from custom_inference.em.stepwise import Rates, Stepwise, require_additive
from custom_inference.em.streaming import minibatches
from ppl_models import Data, MethodError, Model


@functools.cache
def takes_minibatches(kind: type[Model]) -> bool:
    """Whether a model has an engine whose statistics add up over rows."""
    model = kind.example().model
    return model.rows_are_independent and any(make().additive for make in engines_of(model).values())


def require_stepwise(method: Method, model: Model) -> VariationalEM:
    """Raises MethodError for what does not learn from one minibatch after the other."""
    if not isinstance(method, VariationalEM):
        found = f"partial_fit by {method.name}, which does not learn from minibatches one after the other"
        raise MethodError(f"{found}; expected EM or variational EM, of the engines {', '.join(engines_of(model))}")
    require_additive(method.engine(model))
    return method


def begin(method: VariationalEM, model: Model, data: Data, seed: int) -> Stepwise:
    """Begin learning at the best start of a search on the first rows, or at a random one."""
    engine, generator = method.engine(model), torch.Generator().manual_seed(seed)
    rows = engine.rows(model, data)
    engine.check(model, rows)
    state = find_start(method, engine, model, FitRows(rows), generator, Progress(None, "", enabled=False)).state
    if method.search is not None:
        engine = engine.wrap(proposals_for(model, engine).finishing())
    rates = Rates(delay=method.delay, forgetting=method.forgetting)
    return Stepwise(engine, model, len(data), state, rates, generator)


def resume(method: VariationalEM, fit: Fit, size: int) -> Stepwise:
    """Resume where a fit ended, with its rows' statistics, as if it had seen them in minibatches of ``size``."""
    model, engine, count = fit.model, method.engine(fit.model), len(fit.data)
    rows, posteriors = engine.rows(model, fit.data), fit.global_posterior
    if posteriors and engine.integrates_globals and hasattr(engine.state, "from_posterior"):
        state: Any = engine.state.from_posterior(model, posteriors[model.component_site])  # pyright: ignore
    else:
        state = engine.start_from(model, fit.globals, rows)
    generator = torch.Generator().manual_seed(fit.seed)
    statistics = engine.e_step(model, state, rows, generator=generator).statistics
    seen = [min(count, stop) for stop in range(size, count + size, size)]
    rates = Rates(delay=method.delay, forgetting=method.forgetting)
    return Stepwise(engine, model, count, state, rates, generator, statistics, seen=seen)


def learn(online: Stepwise, data: Data, size: int, total: float | None) -> None:
    """Make one pass over minibatches of ``size`` rows, of ``total`` rows in all; None: of those seen by then."""
    if total is not None and not total >= 1:
        raise MethodError(f"total_samples = {total}, expected at least 1, or None")
    before, rows = online.num_rows, online.engine.rows(online.model, data)
    online.num_rows = len(data) + (online.seen[-1] if online.seen else 0) if total is None else int(total)
    online.statistics = {name: value * (online.num_rows / before) for name, value in online.statistics.items()}
    one_pass = functools.partial(minibatches, rows, size)
    online.climb(one_pass, max_iterations=len(online.trace) + 1, tolerance=0.0)
    if online.interrupted:
        online.interrupted = False
        raise KeyboardInterrupt


def fit_of(online: Stepwise, method: VariationalEM, data: Data, seed: int) -> Fit:
    """Return the fit so far; ``data`` are the latest rows."""
    engine, model, state = online.engine, online.model, online.state
    own = isinstance(state, State)
    fitted = state.with_fitted_priors(model) if own else model
    return Fit(
        model=fitted,
        params=values_of(model, state),
        global_posterior=dict(state.posteriors(model)) if own else {},
        elbo=torch.tensor(online.trace, dtype=torch.float64),
        bound_name=engine.name,
        objective=engine.objective,
        prior_term=engine.prior_term_at(model, state),
        status=f"learned from {len(online.seen)} minibatches of {online.seen[-1]} rows in all; Fit.data are the latest",
        ended=Ended.COMPLETE,
        method=method,
        data=data,
        seed=seed,
        solver=LocalSolver(engine=method.engine(fitted)),
        details={"rows_seen": online.seen, "minibatch_bounds": online.bounds},
    )
