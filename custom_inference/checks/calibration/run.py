"""Simulation-based calibration: is a method's posterior right on average over the model's own data?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from custom_inference.checks.calibration.result import Calibration
from custom_inference.checks.calibration.simulate import Problem, Quantity, Simulated, require_proper, rows_of, simulate
from custom_inference.core.draws import has_global_posterior
from custom_inference.core.fit import Fit, check_values
from custom_inference.core.latent_values import is_own_of_rows
from custom_inference.core.method import Method
from custom_inference.core.processes import Surroundings, begin_worker, check_startable, context, pack, unpack
from custom_inference.core.progress import Progress
from custom_inference.core.settings import require_seed, require_whole
from custom_inference.methods import methods_of, resolve_method
from ppl_models import MethodError, Model
from ppl_models.core.errors import unknown_name
from ppl_models.core.model import require_model
from ppl_models.data.held import is_text

#: Draws of each posterior, at most: those of fits cost more.
_DRAWS = {"locals": 199, "globals": 99}


def simulation_based_calibration(
    model: Model,
    method: Method | str = "default",
    *,
    of: str = "auto",
    num_simulations: int = 100,
    num_rows: int | None = None,
    num_draws: int | None = None,
    at: Fit | Mapping[str, Tensor] | None = None,
    like: Any = None,
    quantities: Mapping[str, Quantity] | None = None,
    significance: float = 0.01,
    seed: int = 0,
    processes: int = 1,
    progress: bool = True,
    **settings: Any,
) -> Calibration:
    """Check a method on data from the model: the truth must rank uniformly among the posterior's draws.

    Talts, Betancourt, Simpson, Vehtari & Gelman, *Validating Bayesian inference algorithms with simulation-based
    calibration* (2018). Of (truth, data) from the joint law and draws from the exact posterior of these data, truth and
    draws are exchangeable, so that the rank of any quantity f(truth, data) among the f(draw, data) is uniform. A
    posterior that is too narrow has ranks at both ends, one that is too wide in the middle, a biased one on one side.

    method: an object, or a name with its ``settings``. Objects need ``local_posterior`` or ``fit``, by level:

    of = "locals": the method's posterior of the local latents at given globals, which are drawn from the prior for each
        simulation, or are ``at``. Everything is known here: exact engines must pass, and every approximation of the
        posterior shows. Given the globals rows are independent, in exact inference, so all their ranks count.
    of = "globals": whole fits. Globals, locals and data are drawn; the method is fitted; draws are those of
        :func:`custom_inference.posterior_draws`, nearly independent by their effective sample size. Refused where the
        method gives points of the globals, or a prior is improper.
    "auto": "globals" where the method gives a posterior of the globals and ``at`` is not given, else "locals".

    quantities: further ones by name, beside those that :class:`Calibration` lists: f(values, data) -> number, values
        being site -> tensor of all latents as the program holds them.
    num_rows: of each simulated data set (20; of graphs the model's nodes). like: data whose rows, lengths, missing
        entries and given sites these have; at a fit its own, unless num_rows is said.
    num_draws: of each posterior, at most (199 of locals, 99 of fits).
    processes: simulations that run at once, each in a process of its own; the result does not depend on it. A script
        that sets it must guard its entry point (``if __name__ == "__main__":``).
    seed: simulation i depends on (seed, i) alone. Ctrl-C keeps the simulations so far.

    Data sets that the method refuses are drawn anew (a rule about data alone leaves posteriors as they are).

    Raises ModelError for an improper prior, of whole fits; MethodError for methods and options that do not do.
    """
    model = require_model(model).on_scale_of(None)  # that of what the program draws, and not of each data set
    chosen = _method(method, settings, model)
    if isinstance(at, Fit):
        own = at.data if num_rows is None else None
        model, at, like = at.model, at.params, own if like is None else at.read(like)
    elif at is not None and not isinstance(at, Mapping):
        raise MethodError(f"at = {at!r}, expected a fit, or values of the globals by name")
    numbers = {"num_simulations": num_simulations, "num_draws": num_draws, "processes": processes}
    problem = _pose(model, chosen, of, at, like, num_rows, num_draws, quantities=dict(quantities or {}), seed=seed)
    _check_settings(problem, numbers, significance)
    done, interrupted = _run(problem, num_simulations, processes, progress)
    status = f"interrupted after {len(done)} of {num_simulations}" if interrupted else f"{len(done)}"
    return Calibration(_ranks(problem, done, f"{status} simulations"), significance)


def _pose(
    model: Model,
    method: Method,
    of: str,
    at: Mapping[str, Tensor] | None,
    like: Any,
    num_rows: int | None,
    num_draws: int | None,
    **given: Any,
) -> Problem:
    """What every simulation needs. Raises ModelError for an improper prior, of whole fits."""
    level = _level(of, method, model, at)
    if level == "globals":
        require_proper(model)
    prepared = None if like is None else model.prepare(like, dtype=torch.float64)
    values = None if at is None else {s: v.double() for s, v in check_values(model, at, called="at").items()}
    sizes = {"num_rows": rows_of(model, num_rows, prepared), "num_draws": num_draws or _DRAWS[level]}
    return Problem(model=model, method=method, of=level, at=values, like=prepared, **sizes, **given)


def _check_settings(problem: Problem, numbers: Mapping[str, int | None], significance: float) -> None:
    require_seed(problem.seed)
    for name, value in numbers.items():
        if value is not None:
            require_whole(name, value)
    taken = {*problem.model.dims, "log_likelihood", "log_joint"}
    for name in sorted(taken & set(problem.quantities)):
        raise MethodError(f"quantity '{name}' has a name that is taken; these are: {', '.join(sorted(taken))}")
    if not 0 < significance < 1:
        raise MethodError(f"significance = {significance!r}, expected a number between 0 and 1")


def _method(method: Method | str, settings: dict[str, Any], model: Model) -> Any:
    if is_text(method) or settings:
        own = is_text(method) and method in methods_of(model)
        return resolve_method(method, model=model if own else None, **settings)
    if isinstance(method, type) or not (hasattr(method, "fit") or hasattr(method, "local_posterior")):
        raise MethodError(f"{method!r} is not a method; expected a name, or an object such as EM()")
    return method


def _level(of: str, method: Method, model: Model, at: Mapping[str, Tensor] | None) -> str:
    if of not in ("auto", "locals", "globals"):
        raise MethodError(unknown_name("level", of, ("auto", "locals", "globals")))
    level = of
    if of == "auto":
        level = "globals" if at is None and has_global_posterior(method, model) else "locals"
    if level == "globals" and at is not None:
        raise MethodError('at= gives the globals, of which whole fits are a check; use of="locals"')
    needed = {"locals": "local_posterior", "globals": "fit"}[level]
    if not hasattr(method, needed):
        raise MethodError(f'{_name(method)} has no {needed}, which of="{level}" needs')
    return level


def _name(method: Method) -> str:
    name = getattr(method, "name", None)
    return name if isinstance(name, str) else type(method).__name__


def _run(problem: Problem, number: int, processes: int, progress: bool) -> tuple[dict[int, Simulated], bool]:
    """Number -> simulation, and whether Ctrl-C ended them."""
    done: dict[int, Simulated] = {}
    interrupted = False
    in_turn = ((index, _simulate(problem, index)) for index in range(number))
    with Progress(number, f"calibration of {_name(problem.method)}", enabled=progress) as bar:
        try:
            for index, found in in_turn if processes == 1 else _at_once(problem, number, done, processes):
                done[index] = found
                bar.advance()
        except KeyboardInterrupt:
            if not done:
                raise
            interrupted = True
    return dict(sorted(done.items())), interrupted


def _simulate(problem: Problem, index: int) -> Simulated:
    try:
        return simulate(problem, index)
    except Exception as error:
        error.add_note(f"in simulation {index} of simulation_based_calibration(..., seed={problem.seed})")
        raise


def _at_once(
    problem: Problem, number: int, done: dict[int, Simulated], processes: int
) -> Iterator[tuple[int, Simulated]]:
    """Run the simulations in processes; those already running when something ends them are put into ``done``."""
    check_startable()
    content = pack(problem)
    around = Surroundings.of(processes)._replace(threads=1)
    arguments: Any = {"initializer": begin_worker, "initargs": (around,)}
    with ProcessPoolExecutor(processes, mp_context=context(), **arguments) as pool:
        running: dict[Future[Simulated], int] = {pool.submit(_simulate_unpickled, content, i): i for i in range(number)}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        except BrokenProcessPool as error:
            raise MethodError(
                "a process that simulates died: of too little memory, or because a script starts processes at its top "
                'level, which every one of them runs again; put the call under\n    if __name__ == "__main__":'
            ) from error
        except BaseException:
            for future in running:
                future.cancel()
            pool.shutdown(wait=True)  # those that have begun end, and count
            for future, index in running.items():
                if not future.cancelled() and future.exception() is None:
                    done[index] = future.result()
            raise


def _simulate_unpickled(content: bytes, index: int) -> Simulated:
    return _simulate(unpack(content), index)


def _ranks(problem: Problem, done: dict[int, Simulated], status: str) -> xr.Dataset:
    model, first = problem.model, next(iter(done.values()))
    by_row = problem.of == "locals" and model.rows_are_independent
    variables = {}
    for name in first.ranks:
        axes, kind = _axes(problem, name)
        row = _axis(model, model.row_axis)
        attrs = {
            "kind": kind,
            "independent": f"simulation {row}" if by_row and row in axes else "simulation",
            "lines": axes[-1] if problem.of == "locals" and name in model.row_latents and axes[-1] != row else "",
        }
        variables[name] = (("simulation", *axes), np.stack([one.ranks[name] for one in done.values()]), attrs)
    each = {"num_draws": [one.num_draws for one in done.values()], "refused": [one.refused for one in done.values()]}
    coords: dict[str, Any] = {"simulation": list(done), **{name: ("simulation", v) for name, v in each.items()}}
    labels = {} if problem.like is None else {_axis(model, model.row_axis): problem.like.coords.get("row")}
    for axes, values, _ in variables.values():
        for axis, size in zip(axes, values.shape, strict=True):
            coords.setdefault(axis, labels.get(axis) or list(range(size)))
    about = {"model": type(model).__name__, "method": _name(problem.method), "of": problem.of, "seed": problem.seed}
    return xr.Dataset(variables, coords, attrs={**about, "status": status})


def _axes(problem: Problem, name: str) -> tuple[tuple[str, ...], str]:
    model, row = problem.model, _axis(problem.model, problem.model.row_axis)
    if name == model.local_site and not is_own_of_rows(model):
        return (row, "coordinate" if "coordinate" in model.dims[name] else "component"), "site"
    if name in model.sites:
        return tuple(_axis(model, axis) for axis in model.dims[name]), "site"
    if name in problem.quantities:
        return (), "quantity"
    return ((row,) if problem.of == "locals" and model.rows_are_independent else ()), "density"


def _axis(model: Model, name: str) -> str:
    """The axis's name in a file, where a site may not be called as an axis is: ``user_id``, as for ArviZ."""
    return f"{name}_id" if name in model.sites else name
