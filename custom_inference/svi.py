"""Pyro's stochastic variational inference, for any model and any guide."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyro
import torch
from pyro.infer import SVI as PyroSVI
from pyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, config_enumerate
from pyro.optim import ClippedAdam, PyroOptim
from torch import Tensor
from torch.distributions import constraints

from custom_inference._capacity import require_labelings
from custom_inference._dyads import DyadSample
from custom_inference._graph_starts import graph_start, random_locals
from custom_inference._isolation import default_dtype, isolated
from custom_inference._points import point_locals
from custom_inference._progress import Progress
from custom_inference._row_adam import RowAdam
from custom_inference._starts import documents_a_step, initial_values, off_the_edges
from custom_inference.align import align_draws
from custom_inference.engines import Local, bound_of, engines_of, solve_local
from custom_inference.fit import Fit, check_init
from custom_inference.guides import FactorizedBound, FactorizedNoisyOr, Guide
from custom_inference.guides._dirichlet import ClosedFormELBO
from custom_inference.guides._globals import GLOBAL_GUIDES, DirichletGlobals, global_guide, global_kind, with_modes
from custom_inference.guides._protocol import ENUMERATE_UP_TO, LocalGuide
from custom_inference.guides.graphs import LabellingBound, LabellingGuide
from custom_inference.posterior import PointPosterior
from custom_inference.steps._protocol import POINT
from custom_inference.vem import named_guide
from ppl_models import Data, GraphModel, MethodError, Model
from ppl_models._errors import unknown_name
from ppl_models._model import support_of

#: Guides of the globals alone: the codes are summed out by enumeration.
_GLOBAL_GUIDES = ("delta", "normal")
#: Learning rates of logarithms of concentrations, which move over many orders of magnitude, relative to the others':
#: those of the globals, and those of documents, each of which few minibatches see.
_RATES = {"_concentration": 4.0, "local_parameters": 8.0}
#: A step sees at most about so many (dyad, block of one end, block of the other) terms of a graph by default; of
#: memberships (dyad, block) terms. And no fewer dyads than the second number.
_DYAD_TERMS, _FEWEST_DYADS = 2**21, 2**12
#: Starts of a graph's nodes at given globals beside the matched partition, and steps by which they are judged.
_RANDOM_STARTS, _BRIEF_STEPS = 5, 50


@dataclass(frozen=True, kw_only=True)
class SVI:
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
        if isinstance(self.guide, str) and self.guide not in _GLOBAL_GUIDES:
            named_guide(self.guide)
        if self.globals_ not in GLOBAL_GUIDES:
            raise MethodError(unknown_name("treatment of the globals", self.globals_, GLOBAL_GUIDES))

    @property
    def name(self) -> str:
        if isinstance(self.guide, str):
            return f"SVI({self.guide})"
        return f"SVI({self.guide.bound_name if isinstance(self.guide, Guide) else 'custom'})"

    @property
    def sums_codes(self) -> bool:
        return isinstance(self.guide, str) and self.guide in _GLOBAL_GUIDES

    @property
    def bound_name(self) -> str:
        """What the objective bounds, for models whose locals can be summed out; see also ``_bound_name``."""
        if self.sums_codes:
            return "evidence" if self.guide == "delta" else "elbo (codes summed out)"
        if isinstance(self.guide, str | Guide):
            family = named_guide(self.guide)
            return family.bound_name if self.globals_ in ("auto", "delta") else f"elbo ({family.bound_name})"
        return "elbo"

    def _bound_name(self, model: Model) -> str:
        if self.sums_codes and model.has_continuous_locals:
            return POINT if self.guide == "delta" else "elbo"
        if self._kind(model) == "dirichlet":
            return f"elbo ({named_guide(self.guide).bound_name}, globals dirichlet)"  # pyright: ignore[reportArgumentType]
        return self.bound_name

    def _kind(self, model: Model) -> str:
        """How the globals are treated, by name."""
        if self.sums_codes:
            return str(self.guide)
        return global_kind(model, self.globals_) if isinstance(self.guide, str | Guide) else "custom"

    def has_global_posterior(self, model: Model) -> bool:
        """Whether fits hold draws, or a posterior, of the globals rather than points."""
        kind = self._kind(model)
        simplices = [s for s in model.global_sites if support_of(model.priors[s]) is constraints.simplex]
        return kind in ("normal", "custom") or (kind == "dirichlet" and set(simplices) == set(model.global_sites))

    # ----- fitting ----------------------------------------------------------------------------------------

    def fit(
        self,
        model: Model,
        data: Any,
        *,
        mask: Any = None,
        seed: int = 0,
        device: Any = None,
        dtype: torch.dtype = torch.float64,
        init: Fit | Mapping[str, Tensor] | None = None,
        progress: bool = True,
    ) -> Fit:
        """Fit globals and guide. ``init`` gives starting values of the globals (another fit, or a mapping)."""
        prepared = model.prepare(data, mask=mask, dtype=dtype, device=device)
        model.check_for_fitting(prepared)
        checked = self._as_read(model, prepared)
        begin = time.perf_counter()
        with isolated(seed), default_dtype(dtype):
            start = self._start(model, checked, init, seed)
            program = self._program(model)
            guide = self._guide(program, checked, self._kind(model), start)
            trace, outcome = self._optimise(model, program, guide, checked, progress)
            fit = self._result(model, checked, guide, trace, outcome, seed)
        fit.details["seconds"] = round(time.perf_counter() - begin, 3)
        return fit

    def _start(self, model: Model, data: Data, init: Any, seed: int) -> dict[str, Tensor]:
        """Random starting values: at the priors' medians the components are equal, a saddle point."""
        given = check_init(model, init)
        if given is None:
            is_graph = isinstance(model, GraphModel)
            return graph_start(model, data, seed) if is_graph else initial_values(model, data, seed)
        start = off_the_edges(model, {site: value.to(data.x) for site, value in given.items()}, 1e-6)
        values = init.params if isinstance(init, Fit) else init
        local = values.get(model.local_site) if model.is_graph else None
        if local is not None and len(local) == len(data):
            local = off_the_edges(model, {model.local_site: torch.as_tensor(local)}, 1e-6)[model.local_site]
            start[model.local_site] = local.to(data.x if local.is_floating_point() else data.x.device)
        return start

    def _program(self, model: Model) -> Model:
        """The model with priors that points have a maximum under."""
        points = [*model.global_sites, *([model.local_site] if self.sums_codes else [])]
        return with_modes(model, points) if self._kind(model) == "delta" else model

    def _guide(self, model: Model, data: Data, globals_: Any, start: dict[str, Tensor] | None) -> Any:
        if self.sums_codes:
            return global_guide(model, str(self.guide), start, data, locals_=True).to(data.x.device)
        if isinstance(self.guide, str | Guide):
            return named_guide(self.guide).bind(model, data, globals_=globals_, init=start).to(data.x.device)
        return self.guide

    def _as_read(self, model: Model, data: Data) -> Data:
        """What the program reads; a graph in minibatches of dyads stays sparse, hidden dyads being never drawn."""
        if isinstance(model, GraphModel) and self._batch(model, data) is not None:
            return data
        return model.as_read(data)

    def _batch(self, model: Model, data: Data) -> int | None:
        if isinstance(model, GraphModel):
            return self._dyads_a_step(model, data)
        if self.sums_codes and model.has_continuous_locals:
            # Pyro's automatic guides hold the locals of the rows that they first saw, and no others.
            if isinstance(self.batch_size, int) and self.batch_size < len(data):
                found = f'guide="{self.guide}" keeps a value of the {model.local_site} of every row'
                raise MethodError(f'{found} and takes no minibatches; use batch_size=None or guide="mean_field"')
            return None
        if not isinstance(self.batch_size, str):
            return self.batch_size if self.batch_size is None or self.batch_size < len(data) else None
        if "num_tokens" in model.given(data):
            return documents_a_step(model, data)
        factorized = isinstance(self.guide, FactorizedNoisyOr) or self.guide == "factorized"
        if model.code_bits is None or factorized or (model.code_bits > ENUMERATE_UP_TO and not self.sums_codes):
            return None
        per_row = 2**model.code_bits * data.num_features
        return None if per_row * len(data) <= 2**22 else max(16, 2**20 // per_row)

    def _dyads_a_step(self, model: GraphModel, data: Data) -> int | None:
        """All, unless they times the values of their ends are more than ``_DYAD_TERMS``."""
        total = model.num_dyads(len(data))
        if self.batch_size == "auto":
            size = max(_FEWEST_DYADS, _DYAD_TERMS // model.num_blocks ** (1 if model.has_continuous_locals else 2))
        else:
            size = total if self.batch_size is None else int(self.batch_size)
        if size >= total:
            return None
        if model.summed_out is not model or (self.sums_codes and not model.has_continuous_locals):
            if self.batch_size == "auto":
                return None
            raise MethodError("where blocks are enumerated there are no minibatches of dyads; use batch_size=None")
        return size

    def _loss(self, guide: Any, enumerates: bool) -> Any:
        if self.loss is not None:
            return self.loss
        if isinstance(guide, LocalGuide):
            if isinstance(self.guide, FactorizedNoisyOr) or self.guide == "factorized":
                return FactorizedBound()
            if isinstance(guide, LabellingGuide):
                return LabellingBound(num_particles=self.num_particles)
            if enumerates:  # sites that the program marks for it
                return TraceEnum_ELBO(max_plate_nesting=1, num_particles=self.num_particles)
            if guide.analytic:
                return ClosedFormELBO(num_particles=self.num_particles)
            if guide.model_spec.has_continuous_locals:
                return Trace_ELBO(num_particles=self.num_particles)
            if guide.num_bits > ENUMERATE_UP_TO:
                return TraceGraph_ELBO(num_particles=self.num_particles)
            guide.sum_codes = True
            return TraceEnum_ELBO(max_plate_nesting=1, num_particles=self.num_particles)
        if enumerates:
            return TraceEnum_ELBO(max_plate_nesting=1, num_particles=self.num_particles)
        return Trace_ELBO(num_particles=self.num_particles)

    def _optimise(
        self, model: Model, program: Any, guide: Any, data: Data, progress: bool
    ) -> tuple[list[float], str]:
        """Minimise the loss of a guide of the model's program; returns the objective's trace and how it ended."""
        batch_size = self._batch(model, data)
        codes = self.sums_codes and not model.has_continuous_locals
        enumerates = codes or model.summed_out is not model
        loss = self._loss(guide, enumerates)
        if codes:
            if isinstance(model, GraphModel):
                require_labelings(model, len(data), instead='guide="mean_field"')
            program = config_enumerate(program, default="parallel")
        mask = data.mask
        if isinstance(model, GraphModel) and batch_size is not None:
            sample = DyadSample(model, data, batch_size)
            program, batch_size, mask = sample(program), sample.batch_size, None
        inference = PyroSVI(program, guide, self._optimizer(guide, batch_size), loss)
        trace: list[float] = []
        outcome = f"ran {self.steps} steps"
        try:
            with Progress(self.steps, self.name, enabled=progress) as bar:
                for _ in range(self.steps):
                    value: Any = inference.step(data.x, mask=mask, batch_size=batch_size)
                    trace.append(-float(value))
                    bar.advance(trace[-1] / len(data))
        except KeyboardInterrupt:
            if not trace:
                raise
            outcome = f"interrupted after {len(trace)} steps; this is the state at that point"
        if not torch.isfinite(torch.tensor(trace[-1])):
            raise MethodError(f"{self.name}: the ELBO became {trace[-1]} at step {len(trace)}; lower the learning rate")
        tail = max(1, len(trace) // 20)
        if len(trace) >= 3 * tail:
            recent, earlier = (sum(part) / len(part) for part in (trace[-tail:], trace[-2 * tail : -tail]))
            outcome += f" (mean ELBO over the last twentieth changed by {(recent - earlier) / len(data):.2g} a row)"
        return trace, outcome

    def _optimizer(self, guide: Any, batch_size: int | None) -> PyroOptim:
        decay = 0.1 ** (1 / self.steps)
        if not (isinstance(guide, LocalGuide) and guide.analytic):
            return ClippedAdam({"lr": self.learning_rate, "lrd": decay, "clip_norm": 1e3})
        guide.sparse_gradient = batch_size is not None

        def rate(name: str) -> float:
            factor = next((value for ending, value in _RATES.items() if name.endswith(ending)), 1.0)
            return self.learning_rate * factor

        return RowAdam(rate, decay=decay)

    def _result(self, model: Model, data: Data, guide: Any, trace: list[float], outcome: str, seed: int) -> Fit:
        params, draws = self._globals(model, guide, data)
        inner = guide.globals_guide if isinstance(guide, LocalGuide) else None
        posteriors: dict[str, Any] = dict(inner.posterior()) if isinstance(inner, DirichletGlobals) else {}
        local = None
        if isinstance(guide, LocalGuide):
            posterior = guide.posterior(data, params)
            local = Local(posterior, bound_of(model, params, data, posterior))
        elif model.local_site in params:
            point = PointPosterior(params[model.local_site])
            local = Local(point, bound_of(model, params, data, point))
        return Fit(
            model=model,
            params=params,
            elbo=torch.tensor(trace, dtype=torch.float64),
            bound_name=self._bound_name(model),
            status=outcome,
            method=self.name,
            data=data,
            seed=seed,
            local=local,
            global_posterior=posteriors,
            draws=draws,
            guide=guide,
        )

    def _globals(
        self, model: Model, guide: Any, data: Data
    ) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
        """Point estimates from AutoDelta; draws (1 chain) and their mean from anything else."""
        inner: Any = guide.globals_guide if isinstance(guide, LocalGuide) else guide
        with torch.no_grad():
            if self._kind(model) in ("delta", "dirichlet"):
                return {k: v.detach().clone() for k, v in inner.median().items() if k in model.dims}, None
            samples = [inner(data.x, mask=data.mask) for _ in range(500)]
        sites = [site for site in model.dims if site in samples[0]]
        draws = {site: torch.stack([s[site] for s in samples])[None].detach() for site in sites}
        draws = align_draws(draws, model.dims, site=model.component_site)
        return {site: value.mean((0, 1)) for site, value in draws.items()}, draws

    def _best_start(self, model: GraphModel, program: Any, params: dict[str, Tensor], data: Data) -> Any:
        """A guide of the nodes at given globals: of a matched partition and of random starts the best after a while.

        Whatever the globals are, most starts end in local optima.
        """
        brief, found = replace(self, steps=_BRIEF_STEPS, learning_rate=4 * self.learning_rate), []
        for local in (None, *random_locals(model, data, _RANDOM_STARTS)):
            given = params if local is None else {**params, model.local_site: local}
            guide = self._guide(model, data, given, None)
            with pyro.get_param_store().scope():  # parameters of all guides have the same names
                trace, _ = brief._optimise(model, program, guide, data, False)
            found.append((sum(trace[-10:]), len(found), guide))
        return max(found)[2]

    # ----- locals at given globals ------------------------------------------------------------------------

    def local_posterior(self, model: Model, params: dict[str, Tensor], data: Data, *, seed: int = 0) -> Local:
        """The guide's posterior over the locals at fixed globals (what ``compare`` compares)."""
        if self.sums_codes:
            points = model.has_continuous_locals and self.guide == "delta"
            if points and POINT not in engines_of(model):
                settings: Any = {"steps": self.steps, "learning_rate": self.learning_rate}
                return point_locals(model, params, data, seed=seed, **settings)
            return solve_local(model, params, data, bound=POINT if points else "evidence", seed=seed)
        if not isinstance(self.guide, str | Guide):
            raise MethodError("a custom Pyro guide has no posterior at given globals")
        params = off_the_edges(model, params, 1e-12)
        with isolated(seed), default_dtype(data.x.dtype):
            program = pyro.condition(model, data=params)
            guide = self._best_start(model, program, params, data) if isinstance(model, GraphModel) else None
            guide = guide or self._guide(model, data, params, None)
            self._optimise(model, program, guide, data, False)
            posterior = guide.posterior(data, params)
        return Local(posterior, bound_of(model, params, data, posterior))
