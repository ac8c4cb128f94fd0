"""Pyro's stochastic variational inference, for any model and any guide."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer import SVI as PyroSVI
from pyro.infer import Trace_ELBO, TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoDelta
from pyro.optim import ClippedAdam, PyroOptim
from torch import Tensor

from custom_inference.core.align import align_draws
from custom_inference.core.engine import POINT, Objective
from custom_inference.core.fit import Fit
from custom_inference.core.guide import Guide
from custom_inference.core.isolation import default_dtype, isolated
from custom_inference.core.local_inference import Local, evaluated, solve_local
from custom_inference.core.method import Call, Method
from custom_inference.core.posteriors import PointPosterior
from custom_inference.core.progress import Progress
from custom_inference.core.registry import engines_of, family_of
from custom_inference.svi.guides import protocol
from custom_inference.svi.guides.amortized import Amortized
from custom_inference.svi.guides.mean_field import MeanField
from custom_inference.svi.initialisation import clamp_to_interior
from custom_inference.svi.minibatches import OfGraph, OfRows, RowAdam
from ppl_models import Data, MethodError, Model
from ppl_models.core.errors import unknown_name

#: Guides of the globals alone: the codes are summed out by enumeration.
_GLOBAL_GUIDES = ("delta", "normal")
#: Guides of the locals that serve many models; families have more of their own.
_LOCAL_GUIDES: dict[str, Callable[[], Guide]] = {"mean_field": MeanField, "amortized": Amortized}
#: Learning rates of logarithms of concentrations, which move over many orders of magnitude, relative to the others':
#: those of the globals, and those of documents, each of which few minibatches see.
_RATES = {"_concentration": 4.0, "local_parameters": 8.0}
#: Steps by which several starts of the locals at given globals are compared.
_BRIEF_STEPS = 50


@dataclass(frozen=True, kw_only=True)
class SVI(Method):
    """Generic SVI.

    guide: "mean_field", "amortized", "factorized", or a guide with settings (locals by that family), or
        "delta" / "normal" (globals by AutoDelta / AutoNormal with the codes summed out exactly), or any Pyro
        guide: a callable with the model's arguments.
    globals_: how the globals are treated beside a local guide: "delta" (ML/MAP), "normal" (AutoNormal), "dirichlet"
        (Dirichlets of simplices, points for other sites; ``Fit.global_posterior``), or "auto": "dirichlet" where a
        Dirichlet prior is unbounded at the edge (a concentration below 1), so that it has no maximum a posteriori, else
        "delta". Points under such priors are the maximum in the softmax basis (of Beta and Gamma: logit, logarithm).
    steps, learning_rate: ClippedAdam, the rate decaying to a tenth over the steps; logarithms of concentrations move
        at four times the rate, those of single documents, each of which few steps see, at eight times.
    batch_size: rows per step (subsampled in the model's plate); None for all; "auto" for all, or for so many that a
        step sums over at most 2^20 (code, row, feature) triples where all rows would take more than 2^22, and that the
        words of a minibatch of documents cost about as much as a draw of all topics.
    num_particles: samples per ELBO gradient where it is not exact.
    loss: a Pyro ELBO; by default FactorizedBound for the factorized guide, TraceEnum_ELBO where codes can be
        summed, ClosedFormELBO (divergences from the priors in closed form) for documents and Dirichlets, else
        TraceGraph_ELBO.
    """

    guide: str | Guide | Callable[..., Any] = "mean_field"
    globals_: str = "auto"
    steps: int = 1500
    learning_rate: float = 0.05
    batch_size: int | str | None = "auto"
    num_particles: int = 1
    loss: Any = None

    def __post_init__(self) -> None:
        if self.steps < 1 or self.learning_rate <= 0 or self.num_particles < 1:
            raise MethodError("steps and num_particles must be at least 1 and learning_rate positive")
        if not (self.batch_size in (None, "auto") or (isinstance(self.batch_size, int) and self.batch_size >= 1)):
            raise MethodError(f'batch_size = {self.batch_size!r}, expected a whole number from 1, None or "auto"')
        if self.globals_ not in protocol.GLOBAL_GUIDES:
            raise MethodError(unknown_name("treatment of the globals", self.globals_, protocol.GLOBAL_GUIDES))

    @property
    def name(self) -> str:
        return f"SVI({self._family})"

    @property
    def sums_codes(self) -> bool:
        return isinstance(self.guide, str) and self.guide in _GLOBAL_GUIDES

    @property
    def _family(self) -> str:
        """The name of the guide."""
        if isinstance(self.guide, str):
            return self.guide
        return self.guide.name if isinstance(self.guide, Guide) else "custom"

    def _local_guide(self, model: Model) -> Guide:
        """The guide of the locals. Raises MethodError for a name that no guide of this model has."""
        if isinstance(self.guide, Guide):
            return self.guide
        known = {**_LOCAL_GUIDES, **family_of(model).guides}
        if self.guide not in known:
            valid = (*_GLOBAL_GUIDES, *known)
            raise MethodError(unknown_name(f"guide of {type(model).__name__}", str(self.guide), valid))
        return known[str(self.guide)]()

    def check(self, model: Model) -> None:
        if isinstance(self.guide, str) and not self.sums_codes:
            self._local_guide(model)

    def _bound_name(self, model: Model) -> str:
        """What the objective bounds."""
        kind = self._kind(model)
        if self.sums_codes and model.has_continuous_locals:
            return POINT if kind == "delta" else "elbo"
        if self.sums_codes:
            return "exact" if kind == "delta" else "elbo (codes summed out)"
        names = {"delta": self._family, "normal": f"elbo ({self._family})", "custom": "elbo"}
        return names.get(kind, f"elbo ({self._family}, globals dirichlet)")

    def _objective(self, model: Model, guide: Any) -> Objective:
        """What kind of number the objective is; where globals or locals are drawn, an estimate of a bound."""
        known: dict[str, Objective] = {"exact": "evidence", POINT: "log joint"}
        summed = isinstance(guide, protocol.LocalGuide) and (guide.sum_codes or guide.own_loss is not None)
        drawn = self._kind(model) != "delta" or self.loss is not None or not summed
        return known.get(self._bound_name(model), "estimate" if drawn else "bound")

    def _kind(self, model: Model) -> str:
        """How the globals are treated, by name."""
        if self.sums_codes:
            return str(self.guide)
        return protocol.global_kind(model, self.globals_) if isinstance(self.guide, str | Guide) else "custom"

    def has_global_posterior(self, model: Model) -> bool:
        kind, simplices = self._kind(model), protocol.simplices_of(model)
        return kind in ("normal", "custom") or (kind == "dirichlet" and simplices == [*model.global_sites])

    def _data(self, model: Model) -> OfRows:
        """What the steps see of the data."""
        summed_by = str(self.guide) if self.sums_codes else None
        enumerates = self.sums_codes or not isinstance(self.guide, str | Guide) or self._local_guide(model).enumerates
        return (OfGraph if model.is_graph else OfRows)(model, self.batch_size, summed_by, enumerates)

    def _fit(self, model: Model, data: Data, call: Call) -> Fit:
        seen = self._data(model)
        data = seen.as_read(data)
        with isolated(call.seed), default_dtype(call.dtype):
            start, kind = seen.start(data, call.init, call.seed), self._kind(model)
            points = [*model.global_sites, *([model.local_site] if self.sums_codes else [])]
            program = protocol.with_modes(model, points) if kind == "delta" else model
            guide = self._guide(program, data, kind, start)
            trace: list[float] = []
            outcome = f"ran {self.steps} steps"
            try:
                self._optimise(model, program, guide, data, call.progress, trace)
            except KeyboardInterrupt:
                if not trace:
                    raise
                outcome = f"interrupted after {len(trace)} steps; this is the state at that point"
            return self._result(model, data, guide, trace, outcome, call.seed)

    def _guide(self, model: Model, data: Data, globals_: Any, start: dict[str, Tensor] | None) -> Any:
        if self.sums_codes:
            return protocol.global_guide(model, str(self.guide), start, data, locals_=True).to(data.x.device)
        if isinstance(self.guide, str | Guide):
            return self._local_guide(model).bind(model, data, globals_=globals_, init=start).to(data.x.device)
        return self.guide

    def _loss(self, guide: Any, enumerates: bool) -> Any:
        """enumerates: whether the program marks sites to be summed out."""
        if self.loss is not None:
            return self.loss
        kind = TraceEnum_ELBO if enumerates else Trace_ELBO
        if isinstance(guide, protocol.LocalGuide):
            kind = guide.loss_kind(enumerates)
        nesting: Any = {"max_plate_nesting": 1} if kind is TraceEnum_ELBO else {}
        return kind(num_particles=self.num_particles, **nesting)

    def _optimise(self, model: Model, program: Any, guide: Any, data: Data, progress: bool, trace: list[float]) -> None:
        """Minimise the loss of a guide of the model's program; the objective of every step is added to ``trace``."""
        codes = self.sums_codes and not model.has_continuous_locals
        enumerates = codes or model.summed_out is not model
        loss = self._loss(guide, enumerates)
        program, size, mask = self._data(model).batches(program, data)
        program = config_enumerate(program, default="parallel") if codes else program
        inference = PyroSVI(program, guide, self._optimizer(guide, size), loss)
        with Progress(self.steps, self.name, enabled=progress) as bar:
            for _ in range(self.steps):
                value: Any = inference.step(data.x, mask=mask, batch_size=size, **data.others)
                trace.append(-float(value))
                bar.advance(trace[-1] / len(data))

    def _require_finite(self, trace: list[float]) -> None:
        if not math.isfinite(trace[-1]):
            raise MethodError(f"{self.name}: the ELBO became {trace[-1]} at step {len(trace)}; lower the learning rate")

    def _optimizer(self, guide: Any, batch_size: int | None) -> PyroOptim:
        decay = 0.1 ** (1 / self.steps)
        if not (isinstance(guide, protocol.LocalGuide) and guide.analytic):
            return ClippedAdam({"lr": self.learning_rate, "lrd": decay, "clip_norm": 1e3})
        guide.sparse_gradient = batch_size is not None

        def rate(name: str) -> float:
            return self.learning_rate * next((by for ending, by in _RATES.items() if name.endswith(ending)), 1.0)

        return RowAdam(rate, decay=decay)

    def _result(self, model: Model, data: Data, guide: Any, trace: list[float], outcome: str, seed: int) -> Fit:
        self._require_finite(trace)
        tail = max(1, len(trace) // 20)
        if len(trace) >= 3 * tail:
            recent, earlier = (sum(part) / len(part) for part in (trace[-tail:], trace[-2 * tail : -tail]))
            outcome += f" (mean ELBO over the last twentieth changed by {(recent - earlier) / len(data):.2g} a row)"
        params, draws = self._globals(model, guide, data)
        posterior: Any = PointPosterior(params[model.local_site]) if model.local_site in params else None
        inner = None
        if isinstance(guide, protocol.LocalGuide):
            posterior, inner = guide.posterior(data, params), guide.globals_guide
        return Fit(
            model=model,
            params=params,
            elbo=torch.tensor(trace, dtype=torch.float64),
            bound_name=self._bound_name(model),
            objective=self._objective(model, guide),
            status=outcome,
            method=self.name,
            data=data,
            seed=seed,
            local=None if posterior is None else evaluated(model, params, data, posterior, self.name),
            global_posterior=dict(inner.posterior()) if isinstance(inner, protocol.DirichletGlobals) else {},
            draws=draws,
            guide=guide,
        )

    def _globals(self, model: Model, guide: Any, data: Data) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
        """Point estimates from AutoDelta; draws (1 chain) and their mean from anything else."""
        inner: Any = guide.globals_guide if isinstance(guide, protocol.LocalGuide) else guide
        with torch.no_grad():
            if self._kind(model) in ("delta", "dirichlet"):
                return {k: v.detach().clone() for k, v in inner.median().items() if k in model.dims}, None
            samples = [inner(data.x, **data.arguments) for _ in range(500)]
        sites = [site for site in model.dims if site in samples[0]]
        draws = {site: torch.stack([s[site] for s in samples])[None].detach() for site in sites}
        draws = align_draws(draws, model.dims, site=model.component_site)
        return {site: value.mean((0, 1)) for site, value in draws.items()}, draws

    def local_posterior(self, model: Model, params: dict[str, Tensor], data: Data, *, seed: int = 0) -> Local:
        """The guide's posterior over the locals at fixed globals (what ``compare`` compares)."""
        if self.sums_codes:
            points = model.has_continuous_locals and self.guide == "delta"
            if points and POINT not in engines_of(model):
                return self._point_locals(model, params, data, seed)
            if points:
                return solve_local(model, params, data, bound=POINT, seed=seed)
            return solve_local(model, params, data, bound="exact", seed=seed).but("not fitted")
        if not isinstance(self.guide, str | Guide):
            raise MethodError("a custom Pyro guide has no posterior at given globals")
        params = clamp_to_interior(model, params, 1e-12)
        with isolated(seed), default_dtype(data.x.dtype):
            program = pyro.condition(model, data=params)
            guide = self._guide_at(model, program, params, data)
            trace: list[float] = []
            self._optimise(model, program, guide, data, False, trace)
            self._require_finite(trace)
            posterior = guide.posterior(data, params)
        return evaluated(model, params, data, posterior, family=self.name)

    def _guide_at(self, model: Model, program: Any, params: dict[str, Tensor], data: Data) -> Any:
        """A guide of the locals at given globals. Most starts of graphs end in local optima: the best after a while."""
        brief = replace(self, steps=_BRIEF_STEPS, learning_rate=4 * self.learning_rate)
        starts, found = self._data(model).local_starts(data), []
        for start in starts:
            guide = self._guide(model, data, {**params, **start}, None)
            if len(starts) == 1:
                return guide
            with pyro.get_param_store().scope():  # parameters of all guides have the same names
                trace: list[float] = []
                brief._optimise(model, program, guide, data, False, trace)
            found.append((sum(trace[-10:]), len(found), guide))
        return max(found)[2]

    def _point_locals(self, model: Model, params: dict[str, Tensor], data: Data, seed: int) -> Local:
        """The locals that maximise log p(locals, x | params), by AutoDelta, for models without closed-form steps."""
        site = model.local_site
        with isolated(seed), default_dtype(data.x.dtype):
            program = pyro.condition(protocol.with_modes(model, [site]), data=params)
            guide = AutoDelta(poutine.block(program, expose=[site]))
            optimizer = ClippedAdam({"lr": self.learning_rate, "lrd": 0.1 ** (1 / self.steps)})
            inference = PyroSVI(program, guide, optimizer, Trace_ELBO())
            for _ in range(self.steps):
                inference.step(data.x, **data.arguments)
            with torch.no_grad():
                point = PointPosterior(guide.median()[site].detach().clone())
        return evaluated(model, params, data, point, family=POINT)
