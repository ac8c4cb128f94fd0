"""Fits of models whose globals are all known: nothing is learned but the locals, by one E step at these values.

The E step is that of the family asked for, at given globals, repeated until its bounds settle; where that family
integrates the globals, that of the family that it has for new rows. It reads no prior of a global, so that what an
engine refuses for its M steps (priors, learned ones of users, sites without closed-form steps) is no reason here.
"""

from __future__ import annotations

import torch

from custom_inference.core.ended import Ended
from custom_inference.core.engine import Engine
from custom_inference.core.fit import Fit
from custom_inference.core.latent_values import is_own_of_rows
from custom_inference.core.local_inference import LocalSolver
from custom_inference.core.method import Call, Method
from ppl_models import Data, Model


def has_points(engine: Engine) -> bool:
    """Whether the locals are points, which EM optimises with the globals."""
    local = engine.local()
    return local.has_point_locals or local.objective == "log joint"


def with_usual_priors(model: Model) -> Model:
    """Return the model with the default priors of its globals in place of known values; a prior of the locals that is a
    function of globals is evaluated at these."""
    plain = model.at(model.known)
    return plain.with_priors(**{s: prior for s, prior in plain.default_priors().items() if s in plain.global_sites})


def fit_at_known(method: Method, model: Model, data: Data, call: Call, engine: Engine) -> Fit:
    """Return the fit by a method of this name: ``engine``'s posterior of the locals at the known values."""
    call.start(model)  # refuses what are no values of the globals
    plain, like = with_usual_priors(model), data.x.values() if data.is_sparse else data.x
    params = {site: value.to(like) for site, value in model.known.items()}
    solver, used = LocalSolver(engine=engine), engine.local()
    with torch.no_grad():
        local = solver.solve(plain, params, data, seed=call.seed)
    return Fit(
        model=model,
        params=params,
        elbo=local.bound.sum().double().reshape(1),
        bound_name=used.name,
        objective=used.objective,
        status=f"all globals are known: the locals' posterior at these values, by '{used.name}' until it settled",
        ended=Ended.SOLVED,
        method=method,
        data=data,
        seed=call.seed,
        local=local,
        solver=None if is_own_of_rows(model) else solver,
    )
