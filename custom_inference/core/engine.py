"""The protocol of engines that the EM driver runs."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar, cast

import torch
from torch import Tensor

from custom_inference.core.posteriors import LocalPosterior
from custom_inference.core.process_group import Pool
from custom_inference.core.states import Params as Params
from custom_inference.core.states import State, values_of
from ppl_models import Data, Model

#: The locals of an earlier E step on the same rows, which the next one goes on from.
Warm = dict[str, Tensor] | None

#: Codes of up to this many bits are summed out exactly unless a bound is asked for.
EXACT_UP_TO = 14
#: The name under which engines are registered that estimate the locals as points.
POINT = "map"
#: What an objective is beside its prior term: the evidence; a lower bound on it; the log joint of globals and locals
#: (up to constants of flat priors); or an estimate that may lie on either side of the evidence. Of a fit whose
#: objective is the evidence and a prior term other than 0: the log posterior of the globals, up to a constant.
Objective = Literal["evidence", "bound", "log joint", "estimate", "log posterior"]


class EStep(NamedTuple):
    """The result of an E step.

    statistics: expected sufficient statistics, ADDITIVE over rows: those of two blocks of rows add up to those of
        both, which is what minibatches and several processes rest on.
    locals: per-row results that warm-start the next E step (leading axis: rows).
    bound: (N,) lower bound on, or exactly, log p(x_n | globals); see ``Engine.objective``.
    """

    statistics: dict[str, Tensor]
    locals: dict[str, Tensor]
    bound: Tensor


#: Takes an E step of all rows.
InitialStep = Callable[[], EStep]
_Rows = TypeVar("_Rows")
#: Values of the global sites, or a :class:`~custom_inference.core.states.State` of the engine's own.
_Iterated = TypeVar("_Iterated")


class Engine(abc.ABC, Generic[_Rows, _Iterated]):
    """E and M step of one model under one family of local posteriors: settings, and five methods.

    The model comes with every call. A *state* is what the iterations change: values of the global sites, or a
    :class:`~custom_inference.core.states.State` of the engine's own. Everything below the five abstract methods has a
    default that suits most engines; an engine says only where it differs.
    """

    #: What guides, methods and fits call it: "exact" where its bound is the evidence.
    name: ClassVar[str]
    objective: ClassVar[Objective] = "bound"
    #: Site -> the families of priors that its M step has a closed form for, where these are not those that its support
    #: suggests (Beta, Dirichlet, Gamma, Normal); of others the first stands in (``em.surrogate_priors``).
    conjugate: ClassVar[Mapping[str, tuple[type, ...]]] = {}
    #: Sites whose priors, of whatever kind, and whose known values its M step takes as they are.
    any_prior_of: ClassVar[tuple[str, ...]] = ()
    #: Whether it gives way to the model's first engine of point estimates under priors without closed-form steps.
    gives_way: ClassVar[bool] = False

    #: The class of its states, where they are not values of the global sites.
    state: ClassVar[type[State] | None] = None
    #: Whether the state is a posterior over the globals: the objective is then about log p(x), not at given globals.
    integrates_globals: ClassVar[bool] = False
    #: What the prior term is called of an engine that has a posterior of globals which it does not report; "": by its
    #: values.
    globals_part: ClassVar[str] = ""
    #: Whether locals are estimated as points (``point_locals``).
    has_point_locals: ClassVar[bool] = False
    #: Whether one E step finds the posterior at given globals, whatever it starts from.
    solves_at_once: ClassVar[bool] = False
    #: Whether ``posterior`` takes None in place of an E step, so that nothing that only the evidence needs (a log
    #: normaliser) is computed where the posterior alone is asked for.
    reads_off: ClassVar[bool] = False

    #: Whether the statistics alone determine the M step, which minibatches and weights of rows rest on.
    additive: ClassVar[bool] = True
    #: Whether the M step takes the rows as :class:`~custom_inference.core.all_rows.AllRows`, so that they need not be
    #: in memory at once, or in one process.
    reads_rows: ClassVar[bool] = False
    #: Whether all rows are needed in one process. Of other engines processes take rows of their own.
    one_process: ClassVar[bool] = False
    #: Whether several processes each have all data, take their parts of the sums and add them up themselves
    #: (``divide_rows``).
    shares_work: ClassVar[bool] = False
    #: Whether an E step takes rows in turn, each by what the ones before it left. Several processes, each going through
    #: its own rows, then take other steps than one process, to the same fixed points (not always to the same of them).
    sequential: ClassVar[bool] = False
    #: Whether it multiplies what each row adds to the statistics by a weight itself (``e_step_weighted``). The driver
    #: does so for others, by as many E steps as there are different weights.
    weighs_rows: ClassVar[bool] = False

    #: How runs are accelerated unless told otherwise: "squarem", "anderson" or not at all.
    accelerate: ClassVar[str | None] = None
    #: Names of the locals that accelerations extrapolate beside the state.
    extrapolated: ClassVar[tuple[str, ...]] = ()
    #: Whether searches hand on the locals of a solution with its state, in the precision that they have: an E step
    #: without them would lose what the ones before it gained.
    hands_on_locals: ClassVar[bool] = False
    #: Whether M steps may lower the objective: the driver takes such a step back, and again once ``tighten`` made it
    #: shorter.
    may_lower: ClassVar[bool] = False
    #: Whether a step that lowers the objective is a fault. Not where the M step goes by estimates of its own.
    ascends: ClassVar[bool] = True

    @abc.abstractmethod
    def rows(self, model: Any, data: Data) -> _Rows:
        """Return the data as the engine reads them.

        They have ``len``, ``select(index)``, ``to(dtype)`` and ``like``, a tensor with the data's dtype and device.
        """

    @abc.abstractmethod
    def initial(self, model: Any, rows: _Rows, generator: torch.Generator) -> _Iterated:
        """Draw a random state to start from."""

    @abc.abstractmethod
    def e_step(
        self,
        model: Any,
        state: _Iterated,
        rows: _Rows,
        warm: Warm = None,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:
        """Find the posterior over the locals at ``state``; with a temperature the likelihood is raised to it.

        warm: the locals of an earlier E step on the same rows, to go on from.
        """

    @abc.abstractmethod
    def m_step(self, model: Any, state: _Iterated, step: EStep, rows: _Rows) -> _Iterated:
        """Return the state that raises the expected log joint plus log prior, from the statistics."""

    @abc.abstractmethod
    def posterior(self, model: Any, state: _Iterated, rows: _Rows, step: EStep) -> LocalPosterior:
        """Return the posterior that an E step arrived at."""

    def check(self, model: Any, rows: _Rows) -> None:
        """Refuse at once what cannot be run: too many codes, priors without closed-form updates."""
        del model, rows

    def settles_order(self, model: Model) -> bool:
        """Say whether its steps find the best order of components themselves, where one is better than another."""
        del model
        return False

    def feasible(self, model: Any) -> bool:
        """Say whether it is cheap enough to be a default at this size."""
        del model
        return True

    def feasible_on(self, model: Model, data: Data) -> bool:
        """Say whether it is cheap enough to be a default on these data: of most engines the model alone tells."""
        del data
        return self.feasible(model)

    def prior_term(self, model: Any, state: _Iterated) -> Tensor | float:
        """Return what the objective adds to the sum of the rows' bounds: by default the log density of the model's
        priors. Else that density in the basis that the M step maximises in; or minus the divergence of a posterior of
        the globals from the prior."""
        return model.log_prior(values_of(model, state))

    def prior_term_at(self, model: Any, state: _Iterated) -> float:
        """Return ``prior_term`` as a number."""
        return float(self.prior_term(model, state))

    def objective_at(self, model: Any, state: _Iterated, bound: Tensor) -> float:
        """Return what EM climbs: the sum of the rows' bounds, plus the prior term."""
        # Summed in double precision: in single, the sum over many rows would not show what an iteration gains.
        return float(bound.double().sum() + self.prior_term(model, state))

    def from_point(self, model: Any, params: Params, rows: _Rows, e_step: InitialStep) -> _Iterated:
        """Return the state from values of the globals (``init``), by default these values.

        e_step: takes an E step of all rows at these values, by ``local()``; only where it is needed.
        """
        del model, rows, e_step
        return cast(_Iterated, params)

    def start_from(self, model: Any, params: Params, rows: _Rows) -> _Iterated:
        """Return the state from values of the globals, by one E step of rows in memory where one is needed."""
        return self.from_point(model, params, rows, lambda: self.local().e_step(model, params, rows))

    def state_from(self, tensors: dict[str, Tensor]) -> _Iterated:
        """Return the state with these tensors, as ``states.tensors_of`` names them."""
        return cast(_Iterated, tensors if self.state is None else self.state.of(tensors))

    @property
    def plain(self) -> Engine:
        """The engine itself; of one that adapts another to priors without closed-form steps that other."""
        return self

    def wrap(self, plain: Engine) -> Engine:
        """Return an engine, adapted to any priors where this one is."""
        return plain

    def local(self) -> Engine:
        """Return the engine that infers the locals of new rows at given values of the globals, which are its state."""
        return self

    def at_length(self) -> Engine:
        """Return the engine whose E step goes on until hardly anything moves: while the globals move, E steps may end
        early."""
        return self

    @property
    def patience(self) -> int:
        """For how many E steps in a row the objective must stand still before it counts as settled."""
        return 1

    def suggest_tolerance(self, model: Model, num_rows: int) -> float:
        """Return the gain a row below which a fit has converged, where the method does not say."""
        del model, num_rows
        return 1e-5

    def tighten(self, factor: float) -> None:
        """Take shorter M steps from now on by a factor above 1, longer ones by one below."""
        del factor

    def project(self, model: Any, state: _Iterated, locals_: Params) -> tuple[_Iterated, Params]:
        """Return the nearest valid values to extrapolated ones; by default they are taken as they are."""
        del model
        return state, locals_

    def canonical(self, model: Any, params: Any, locals_: Params) -> tuple[Any, Params]:
        """Return the values to report, where many are equally good (a rotation, ...)."""
        del model
        return params, locals_

    def point_locals(self, step: EStep) -> Params:
        """Return the local sites that are estimated as points, (N, ...): they are reported beside the globals."""
        del step
        return {}

    def floors(self, model: Any, step: EStep) -> Params:
        """Return site -> its floor, a number, of scales that are kept above one: under flat priors the likelihood has
        no upper bound where residuals vanish."""
        del model, step
        return {}

    @property
    def saved_settings(self) -> dict[str, Any]:
        """The settings, JSON-able, without which a saved fit's locals of new rows would come out differently."""
        return {}

    def e_step_weighted(
        self, model: Any, state: _Iterated, rows: _Rows, weights: Tensor, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        """Take an E step whose statistics of rows are weighted by (N,); locals and bounds are the rows' own. Only where
        the engine ``weighs_rows``."""
        raise NotImplementedError(f"{type(self).__name__} does not weigh rows")

    def divide_rows(self, rows: _Rows, processes: Pool) -> _Rows:
        """Return the rows, of which a process takes its part where the engine ``shares_work``."""
        del processes
        return rows

    def configure(self, rows: _Rows, total: Callable[..., tuple[Tensor, ...]]) -> Self:
        """Return the engine with what it decides by looking at all rows; ``total`` sums over processes, so that all
        decide alike."""
        del rows, total
        return self


def get_class_attributes(kind: type[Engine]) -> list[str]:
    """Return the names of what engines say by attributes of their class."""
    return [name for name, stated in kind.__annotations__.items() if str(stated).startswith("ClassVar")]


class ExactEngine(Engine[_Rows, _Iterated]):
    """An engine whose bound is the evidence."""

    name: ClassVar[str] = "exact"
    objective: ClassVar[Objective] = "evidence"
    solves_at_once: ClassVar[bool] = True

    def feasible(self, model: Any) -> bool:
        """Say whether it is cheap enough to be a default at this size; for codes, up to ``EXACT_UP_TO`` bits."""
        return model.code_bits is None or model.code_bits <= EXACT_UP_TO

    def log_evidence(self, model: Any, params: Params, rows: Any) -> Tensor:
        """Return log p(x_n | params), (N,)."""
        return self.e_step(model, cast(_Iterated, params), rows).bound
