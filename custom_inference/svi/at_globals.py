"""The posteriors of the locals that guides have at given globals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer import SVI as PyroSVI
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoDelta
from pyro.optim import ClippedAdam
from torch import Tensor

from custom_inference.core.engine import POINT
from custom_inference.core.isolation import default_dtype, isolated, own_store
from custom_inference.core.local_inference import Local, solve_local
from custom_inference.core.posterior_bounds import evaluate_posterior
from custom_inference.core.posteriors import PointPosterior
from custom_inference.core.registry import engines_of
from custom_inference.svi.guides.at_globals import make_at_globals, posterior_of_guide, require_program
from custom_inference.svi.guides.bases import with_modes
from custom_inference.svi.initialisation import clamp_to_interior
from custom_inference.svi.objective import Trace
from ppl_models import Data, Model

#: Steps by which several starts of the locals at given globals are compared.
_BRIEF_STEPS = 50


@dataclass(frozen=True)
class PosteriorAt:
    """The posterior of the locals that the guide of ``method``, an ``SVI``, has at given values of the globals."""

    method: Any
    model: Model
    params: dict[str, Tensor]
    data: Data
    seed: int

    def find(self) -> Local:
        """Fit the guide there, or solve for the locals that it sums out."""
        method, model, params, data = self.method, self.model, self.params, self.data
        if method.sums_codes:
            points = model.has_continuous_locals and method.guide == "delta" and not method.integrates(model)
            if points and POINT not in engines_of(model):
                return self._find_points()
            if points:
                return solve_local(model, params, data, bound=POINT, seed=self.seed)
            return solve_local(model, params, data, bound="exact", seed=self.seed).but("not fitted")
        if method.is_own:
            return self._fit_own_guide()
        params = clamp_to_interior(model, params, 1e-12)
        with isolated(self.seed), default_dtype(data.x.dtype):
            program = pyro.condition(model, data=params)
            guide, trace = self._make_guide(program, params), Trace()
            if not guide.by_coordinates:
                method.minimise(method.objective(model, program, guide, data), trace)
                method.require_finite(trace)
            posterior = guide.posterior(data, params)
        return evaluate_posterior(model, params, data, posterior, family=method.name)

    def _fit_own_guide(self) -> Local:
        """Fit the parameters of a caller's guide, whose statements of globals are held at given values."""
        method, model, data = self.method, self.model, self.data
        require_program(model, method.name)
        params = clamp_to_interior(model, self.params, 1e-12)
        with isolated(self.seed), default_dtype(data.x.dtype):
            program, trace = pyro.condition(model, data=params), Trace()
            guide = make_at_globals(method.guide, model, program, params, data)
            if not guide.nodes:  # it has nothing of the rows: their latents are summed out
                return solve_local(model, params, data, bound="exact", seed=self.seed).but("not fitted")
            method.minimise(method.objective(model, program, guide, data), trace)
            method.require_finite(trace)
            guide.keep(pyro.get_param_store().get_state())
            posterior = posterior_of_guide(guide, model, params, data, self.seed)
        return evaluate_posterior(model, params, data, posterior, family=method.name)

    def _make_guide(self, program: Callable[..., Any], params: dict[str, Tensor]) -> Any:
        """Make a guide of the locals there. Most starts of graphs end in local optima: the best after a while."""
        method, model, data = self.method, self.model, self.data
        brief = replace(method, steps=_BRIEF_STEPS, learning_rate=4 * method.learning_rate)
        starts, found = method.data_seen(model).local_starts(data), []
        for start in starts:
            guide = method.make_guide(model, data, {**params, **start}, None)
            if len(starts) == 1:
                return guide
            with own_store():  # parameters of all guides have the same names
                trace = Trace()
                brief.minimise(method.objective(model, program, guide, data), trace)
            found.append((sum(trace.values[-10:]), len(found), guide))
        return max(found)[2]

    def _find_points(self) -> Local:
        """Find the locals that maximise log p(locals, x | params) by AutoDelta, without closed-form steps."""
        method, model, params, data = self.method, self.model, self.params, self.data
        site = model.local_site
        with isolated(self.seed), default_dtype(data.x.dtype):
            program = pyro.condition(with_modes(model, [site]), data=params)
            guide = AutoDelta(poutine.block(program, expose=[site]))
            optimizer = ClippedAdam({"lr": method.learning_rate, "lrd": 0.1 ** (1 / method.steps)})
            inference = PyroSVI(program, guide, optimizer, Trace_ELBO())
            for _ in range(method.steps):
                inference.step(data.x, **data.arguments)
            with torch.no_grad():
                point = PointPosterior(guide.median()[site].detach().clone())
        return evaluate_posterior(model, params, data, point, family=POINT)
