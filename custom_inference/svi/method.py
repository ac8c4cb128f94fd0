"""Pyro's stochastic variational inference, for any model and any guide."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyro.infer import TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoDelta, AutoNormal
from pyro.optim import ClippedAdam, PyroOptim
from torch import Tensor

from custom_inference.core.fit import Fit
from custom_inference.core.guide import Globals, Guide
from custom_inference.core.isolation import default_dtype, isolated
from custom_inference.core.latent_values import is_own_of_rows, nesting_of, plates_of_rows
from custom_inference.core.local_inference import Local
from custom_inference.core.method import Call, Method
from custom_inference.core.programs.checked import check_minibatches
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.evidence import find_width
from custom_inference.core.programs.reference import EXACTLY, best_reference, describe_reals
from custom_inference.core.programs.row_plates import plate_depth
from custom_inference.core.progress import Progress
from custom_inference.core.registry import family_of
from custom_inference.core.settings import require_positive, require_whole
from custom_inference.svi.at_globals import PosteriorAt
from custom_inference.svi.fitting import Fitting
from custom_inference.svi.guides.amortized import Amortized
from custom_inference.svi.guides.mean_field import MeanField
from custom_inference.svi.guides.of_globals import GLOBAL_GUIDES, LearnedGuide, global_guide, global_kind, simplices_of
from custom_inference.svi.guides.own import check_guide, check_start, make_own
from custom_inference.svi.guides.programs import GaussianGuide
from custom_inference.svi.initialisation import draw_globals
from custom_inference.svi.marginal import MarginalBound, is_enumerated_by_pyro
from custom_inference.svi.minibatches import OfGraph, OfRows, RowAdam, require_codes
from custom_inference.svi.objective import (
    Objective,
    Trace,
    check_loss,
    check_optimizer,
    climb,
    make_loss,
    make_optimizer,
    take_steps,
)
from ppl_models import Data, MethodError, Model
from ppl_models.core.errors import unknown_name

#: Guides of the globals alone: the codes are summed out by enumeration.
_GLOBAL_GUIDES = ("delta", "normal")
#: Guides of the locals that serve many models; families have more of their own.
_LOCAL_GUIDES: dict[str, Callable[[], Guide]] = {
    "mean_field": MeanField, "amortized": Amortized, "gaussian": GaussianGuide,
}  # fmt: skip
#: Learning rates of logarithms of concentrations, which move over many orders of magnitude, relative to the others':
#: those of the globals, and those of documents, each of which few minibatches see.
_RATES = {"_concentration": 4.0, "local_parameters": 8.0}
#: Values of the finite latents of a row up to which a program is evaluated at all of them at once, which is faster than
#: Pyro's enumeration.
_FEW_VALUES = 256


@dataclass(frozen=True, kw_only=True)
class SVI(Method):
    """Generic SVI.

    guide: "mean_field", "amortized", "factorized", or a guide with settings (locals by that family), of programs
        without engines "gaussian" too (a full covariance of continuous locals), or "delta" / "normal" (globals by
        AutoDelta / AutoNormal with finite locals summed out exactly, and, of programs without engines, up to three real
        numbers a row integrated out by quadrature), or any Pyro guide: a function or PyroModule that is called with
        those of the model's arguments that it takes; one of Pyro's automatic guides or its class, over the globals and
        continuous locals. Latents of finitely many values that such a guide does not sample are summed out. A module
        is copied; ``Fit.guide`` is what was learned.
    globals_: how the globals are treated beside a local guide: "delta" (ML/MAP), "normal" (AutoNormal), "dirichlet"
        (Dirichlets of simplices, points for other sites; ``Fit.global_posterior``), or "auto": "dirichlet" where a
        Dirichlet prior is unbounded at the edge (a concentration below 1), so that it has no maximum a posteriori, else
        "delta". Points under such priors are the maximum in the softmax basis (of Beta and Gamma: logit, logarithm).
    steps, learning_rate: ClippedAdam, the rate decaying to a tenth over the steps; logarithms of concentrations move
        at four times the rate, those of single documents, each of which few steps see, at eight times.
    optimizer: another: a torch class or a partial of one (a class gets ``learning_rate``), or one of ``pyro.optim``,
        whose schedule advances with every step; or "lbfgs", for objectives without draws: points with the codes summed
        out, at most ``steps`` iterations.
    batch_size: rows per step (subsampled in the model's plate); None for all; "auto" for all, or for so many that a
        step sums over at most 2^20 (code, row, feature) triples where all rows would take more than 2^22, and that the
        words of a minibatch of documents cost about as much as a draw of all topics; all with a guide that holds values
        of the rows that it first saw, as automatic guides of locals do.
    num_particles, vectorize_particles: samples per ELBO gradient where it is not exact, and whether they are drawn at
        once, which only programs take that broadcast over a further batch axis.
    loss: a Pyro ELBO or its class; by default FactorizedBound for the factorized guide, TraceEnum_ELBO where codes can
        be summed, ClosedFormELBO (divergences from the priors in closed form) for documents and Dirichlets, else
        TraceGraph_ELBO.
    restarts: brief runs from so many starts, of a tenth of the steps at four times the rate (with L-BFGS: of
        100 steps of Adam and up to 80 iterations); the best by its objective on all rows goes on. Not with ``init``.
    agree: no further starts once four, which are random, or more have been made, and so many of them came as far as
        the best; None: all ``restarts``.

    The last of ``Fit.elbo`` is evaluated on all rows at what the fit holds: exact, or where the objective is an
    estimate by draws their mean, with ``Fit.details["objective_standard_error"]``.
    """

    guide: Any = "mean_field"
    globals_: str = "auto"
    steps: int = 1500
    learning_rate: float = 0.05
    batch_size: int | str | None = "auto"
    num_particles: int = 1
    vectorize_particles: bool = False
    optimizer: Any = None
    loss: Any = None
    restarts: int = 1
    agree: int | None = None

    needs_density = True

    def __post_init__(self) -> None:
        for name in ("steps", "num_particles", "restarts"):
            require_whole(name, getattr(self, name))
        if self.agree is not None:
            require_whole("agree", self.agree)
        require_positive("learning_rate", self.learning_rate)
        if self.batch_size not in (None, "auto"):
            require_whole("batch_size", self.batch_size, why=', None or "auto"')
        if self.globals_ not in GLOBAL_GUIDES:
            raise MethodError(unknown_name("treatment of the globals", self.globals_, GLOBAL_GUIDES))
        named = {AutoDelta: "delta", AutoNormal: "normal"}.get(self.guide) if isinstance(self.guide, type) else None
        object.__setattr__(self, "guide", named or self.guide)
        if self.is_own:
            check_guide(self.guide)
        check_loss(self.loss, self.num_particles, self.vectorize_particles)
        check_optimizer(self.optimizer)
        if self.optimizer == "lbfgs" and self.rows_asked is not None:
            raise MethodError(f'optimizer="lbfgs" takes all rows, not batch_size = {self.batch_size}')

    @property
    def rows_asked(self) -> int | None:
        """Rows a step, where the caller says how many."""
        return None if self.batch_size in (None, "auto") else int(self.batch_size)

    @property
    def name(self) -> str:
        return f"SVI({self.family})"

    @property
    def sums_codes(self) -> bool:
        return self.guide in _GLOBAL_GUIDES

    @property
    def is_own(self) -> bool:
        """Whether the guide is the caller's: neither one of the suite nor the name of one."""
        return not isinstance(self.guide, str | Guide)

    @property
    def family(self) -> str:
        """The name of the guide."""
        return "custom" if self.is_own else str(self.guide)

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
        if not (self.is_own or self.sums_codes):
            self._local_guide(model)

    def integrates(self, model: Model) -> bool:
        """Whether the latents of the rows of a program without engines are summed or integrated out."""
        exact = self.sums_codes and is_own_of_rows(model)
        return exact and best_reference(model) in EXACTLY

    def points_of(self, model: Model) -> list[str]:
        """The sites that are estimated as points beside, or by, guides of the globals."""
        locals_ = [model.local_site] if self.sums_codes and not self.integrates(model) else []
        return [*model.unknown_sites, *locals_]

    def kind_of(self, model: Model) -> str:
        """How the globals are treated, by name."""
        if self.sums_codes:
            return str(self.guide)
        return "custom" if self.is_own else global_kind(model, self.globals_)

    def has_global_posterior(self, model: Model) -> bool:
        kind, simplices = self.kind_of(model), simplices_of(model)
        return kind in ("normal", "custom") or (kind == "dirichlet" and simplices == [*model.unknown_sites])

    def data_seen(self, model: Model, guide: LearnedGuide | None = None) -> OfRows:
        """Return how the steps see the data: all of them or minibatches, of rows or of dyads."""
        summed_by = str(self.guide) if self.sums_codes else None
        if guide is not None and guide.summed:
            summed_by = "custom"
        enumerates = self.sums_codes or self.is_own or self._local_guide(model).enumerates
        all_rows = self.optimizer == "lbfgs" or (self.is_own and model.is_graph and self.batch_size == "auto")
        size = None if all_rows else self.batch_size
        return (OfGraph if model.is_graph else OfRows)(model, size, summed_by, enumerates)

    def check_init(self, model: Model, init: Fit | Mapping[str, Tensor] | None) -> None:
        """Beside what every method refuses, values to start from of guides that start elsewhere."""
        super().check_init(model, init)
        if init is not None and self.is_own:
            check_start(self.guide)

    def _fit(self, model: Model, data: Data, call: Call) -> Fit:
        data = self.data_seen(model).as_read(data)
        if self.integrates(model) and model.has_continuous_locals:
            self._require_all_rows(model, data)
        check_minibatches(model, data, self.data_seen(model).batch(data))
        with isolated(call.seed), default_dtype(call.dtype), Progress(None, self.name, enabled=call.progress) as bar:
            return Fitting(self, model, data, call, bar, self.kind_of(model), call.start(model)).fit()

    def make_guide(self, model: Model, data: Data, globals_: Globals, start: dict[str, Tensor] | None) -> Any:
        if self.sums_codes:
            locals_ = not self.integrates(model)
            if locals_ and is_own_of_rows(model) and len(model.row_latents) > 1:
                reals = describe_reals(model)
                raise MethodError(
                    f"{self.name} neither integrates nor maximises over {reals} of every row of "
                    f"{type(model).__name__}; use guide='gaussian'"
                )
            return global_guide(model, str(self.guide), start, data, locals_=locals_).to(data.x.device)
        if not self.is_own:
            return self._local_guide(model).bind(model, data, globals_=globals_, init=start).to(data.x.device)
        return make_own(self.guide, model, model, data, start)

    def objective(self, model: Model, program: Any, guide: Any, data: Data) -> Objective:
        """Return the objective to be minimised for a guide of the model's program."""
        own = guide.is_own
        if own and is_own_of_rows(model) and any(name in guide.summed for name in guide.inside):
            return self._marginal_objective(model, program, guide, data)
        if not own and self.integrates(model):
            density = RowDensity.of(model, draw_globals(program, data.x), data)
            values, batch = density.layout.num_configurations, self.data_seen(model).batch(data)
            sums = values <= _FEW_VALUES or find_width(model, data) is not None
            # Pyro's enumeration takes minibatches of rows, but lays all values out together.
            own_sums = self.loss is None and sums and (batch is None or values > _FEW_VALUES)
            if own_sums or not is_enumerated_by_pyro(density):
                return self._marginal_objective(model, program, guide, data)
        seen = self.data_seen(model, guide)
        codes = bool(guide.summed) if own else self.sums_codes and not model.has_continuous_locals
        run, size, mask = seen.batches(program, data)
        if own and size is not None and not guide.takes_minibatches(data, size, plates_of_rows(model, data)):
            if self.rows_asked is not None:
                local = f"values of {', '.join(guide.of_rows)} of all rows, whatever the minibatch"
                named = " or ".join(sorted(plates_of_rows(model, data)))
                instead = f"use batch_size=None, or a plate of rows in the guide that is called {named}, as the model's"
                raise MethodError(f"the guide draws {local}; {instead}")
            size = None
        enumerates = codes or model.summed_out is not model
        settings: dict[str, Any] = {}
        if codes:
            require_codes(model, len(data) if size is None else size, data.num_features)
            run = config_enumerate(run, default="parallel")
        kind = self.loss if self.loss is not None else guide.loss_kind(enumerates)
        if kind is TraceEnum_ELBO or self.vectorize_particles:
            settings["max_plate_nesting"] = max(nesting_of(model, data), plate_depth(guide.nodes) if own else 1)
        settings |= {"num_particles": self.num_particles, "vectorize_particles": self.vectorize_particles}
        loss = make_loss(kind, **settings)
        return Objective(
            run,
            guide,
            loss,
            data,
            mask,
            size,
            seen.total(data),
            of_rows=not model.is_graph,
            plates=plates_of_rows(model, data),
        )

    def _marginal_objective(self, model: Model, program: Model, guide: LearnedGuide, data: Data) -> Objective:
        """Return the objective where Pyro does not sum out the latents of the rows, or not rightly."""
        self._require_all_rows(program, data)
        if self.loss is not None:
            raise MethodError(f"{self.name} has a loss of its own for {type(program).__name__}; leave out loss=")
        loss = MarginalBound(program, data, model, num_particles=self.num_particles)
        return Objective(program, guide, loss, data, data.mask, None, len(data))

    def _require_all_rows(self, program: Model, data: Data) -> None:
        """Refuse minibatches where the latents of all rows are summed or integrated out at once."""
        if self.rows_asked is not None and self.rows_asked < len(data):
            raise MethodError(f"{self.name} integrates over all rows of {type(program).__name__}; use batch_size=None")

    def minimise(self, objective: Objective, trace: Trace, bar: Progress | None = None) -> None:
        """The method's steps; the objective of every one is added to ``trace``."""
        if self.optimizer == "lbfgs":
            guide = objective.guide
            # At given globals nothing but the rows' own parameters is learned.
            own = bool(getattr(guide, "fixed", None)) and not getattr(guide, "reads_rows", False)
            climb(objective, self.steps, trace, bar, tolerance=1e-10 if own else 1e-9)
        else:
            take_steps(objective, self._optimizer(objective.guide, objective.size), self.steps, trace, bar)

    def require_finite(self, trace: Trace) -> None:
        last = trace.values[-1]
        if not math.isfinite(last):
            found = f"the ELBO became {last} at step {len(trace.values)}"
            raise MethodError(f"{self.name}: {found}; lower the learning rate")

    def _optimizer(self, guide: Any, batch_size: int | None) -> PyroOptim:
        if self.optimizer is not None:
            return make_optimizer(self.optimizer, self.learning_rate)
        decay = 0.1 ** (1 / self.steps)
        if not guide.analytic:
            return ClippedAdam({"lr": self.learning_rate, "lrd": decay, "clip_norm": 1e3})
        guide.sparse_gradient = batch_size is not None

        def rate(name: str) -> float:
            return self.learning_rate * next((by for ending, by in _RATES.items() if name.endswith(ending)), 1.0)

        return RowAdam(rate, decay=decay)

    def local_posterior(self, model: Model, params: dict[str, Tensor], data: Data, *, seed: int = 0) -> Local:
        """Return the guide's posterior over the locals at fixed globals (which ``compare`` compares)."""
        return PosteriorAt(self, model, params, data, seed).find()
