"""What only some engines do: mixins beside ``core.engine.Engine``, which the driver looks for."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self

from torch import Tensor

from custom_inference.core.engine import EXACT_UP_TO, Engine, EStep, Objective
from custom_inference.core.process_group import Pool
from custom_inference.core.states import Params, State, values_of
from ppl_models import Model


class Checked:
    """Refuses what it cannot run."""

    def check(self, model: Any, rows: Any) -> None:
        """Refuse at once what cannot be run: too many codes, priors without closed-form updates."""


class Exact(Engine):
    """An engine whose bound is the evidence."""

    name: ClassVar[str] = "exact"
    objective: ClassVar[Objective] = "evidence"

    def feasible(self, model: Any) -> bool:
        """Whether it is cheap enough to be a default at this size; for codes, up to ``EXACT_UP_TO`` bits."""
        return model.code_bits is None or model.code_bits <= EXACT_UP_TO

    def log_evidence(self, model: Any, params: Params, rows: Any) -> Tensor:
        """log p(x_n | params), (N,)."""
        return self.e_step(model, params, rows).bound


class ReadOff:
    """The posterior of the locals follows from the globals and the rows: ``posterior`` takes None in place of an E
    step, so that nothing that only the evidence needs (a log normaliser) is computed where it alone is asked for."""


class LocalEngine(abc.ABC):
    """Infers the locals of new rows at given values of the globals by another engine, or by other settings."""

    @abc.abstractmethod
    def local(self) -> Engine:
        """Return the engine of the locals, which takes values of the globals as its state."""


#: Takes an E step of all rows.
InitialStep = Callable[[], EStep]


class OwnState(abc.ABC):
    """Iterations change a :class:`State` of the engine's own, not values of the sites."""

    #: Which.
    state: ClassVar[type[State]]

    @abc.abstractmethod
    def from_point(self, model: Any, params: Params, rows: Any, e_step: InitialStep) -> State:
        """The state from values of the globals (``init``).

        e_step: takes an E step of all rows at these values, by ``local_engine``; only where it is needed.
        """


class GlobalPosterior(OwnState):
    """The state is a posterior over the globals: the objective is then about log p(x), not at given globals."""


class PriorTerm(abc.ABC):
    """What the objective adds to the bounds of the rows is not the density of the model's priors at the state."""

    @abc.abstractmethod
    def prior_term(self, model: Any, state: Any) -> Tensor | float:
        """The log prior density, in the basis that the M step maximises in; or minus the divergence of a posterior of
        the globals from the prior."""


class Tightened(abc.ABC):
    """M steps may lower the objective: the driver takes such a step back, and takes it again shorter."""

    @abc.abstractmethod
    def tighten(self, factor: float) -> None:
        """Shorter steps from now on by a factor above 1, longer ones by one below."""


class PointLocals(abc.ABC):
    """Locals are estimated as points."""

    @abc.abstractmethod
    def point_locals(self, step: EStep) -> Params:
        """Local sites, (N, ...): they are reported beside the globals."""


class Accelerated:
    """Runs are accelerated unless told otherwise."""

    #: "squarem", "anderson", or None where only ``project`` is of use.
    accelerate: ClassVar[str | None] = None
    #: Names of the locals that are extrapolated beside the state.
    extrapolated: ClassVar[tuple[str, ...]] = ()

    def project(self, model: Any, state: Any, locals_: Params) -> tuple[Any, Params]:
        """The nearest valid values to extrapolated ones; by default they are taken as they are."""
        del model
        return state, locals_


class Patient(abc.ABC):
    """The objective may stand still for some iterations without being settled."""

    @property
    @abc.abstractmethod
    def patience(self) -> int:
        """The number of successive E steps without progress after which the objective has converged."""


class Brief(abc.ABC):
    """An E step ends early, as the globals will move: where these stay it may as well go on."""

    @abc.abstractmethod
    def at_length(self) -> Engine:
        """The engine whose E step goes on until hardly anything moves."""


class Canonical(abc.ABC):
    """Many values are equally good (a rotation, ...)."""

    @abc.abstractmethod
    def canonical(self, model: Any, params: Params, locals_: Params) -> tuple[Params, Params]:
        """The one that is reported."""


class NeedsRows:
    """The statistics alone do not determine the M step: no minibatches."""


class ReadsRows:
    """The M step takes the rows as :class:`AllRows`, so that they need not be in memory at once, or in one process."""


class OneProcess:
    """All rows are needed in one process. Other engines have processes take rows of their own; the driver adds up."""


class Sequential:
    """An E step takes rows in turn, each by what the ones before it left. Several processes, each going through its own
    rows, then take other steps than one process, to the same fixed points (not always to the same of them)."""


class WeighsRows(abc.ABC):
    """Multiplies what each row adds to the statistics by a weight itself. Of other engines whose statistics add up the
    driver does so, by as many E steps as there are different weights."""

    @abc.abstractmethod
    def e_step_weighted(
        self, model: Any, state: Any, rows: Any, weights: Tensor, warm: Any = None, *, temperature=1.0, generator=None
    ) -> EStep:
        """The E step with statistics of rows weighted by (N,); locals and bounds are the rows' own."""


class SharedWork(abc.ABC):
    """Several processes each have all data, take their parts of the sums and add them up themselves."""

    @abc.abstractmethod
    def divide_rows(self, rows: Any, processes: Pool) -> Any:
        """The rows, of which a process takes its part."""


class FromData(abc.ABC):
    """Decides something by looking at all rows."""

    @abc.abstractmethod
    def configure(self, rows: Any, total: Callable[..., tuple[Tensor, ...]]) -> Self:
        """The engine with what it decides; ``total`` sums over processes, so that all decide alike."""


class Floored(abc.ABC):
    """Keeps scales above a floor: under flat priors the likelihood has no upper bound where residuals vanish."""

    @abc.abstractmethod
    def floors(self, model: Any, step: EStep) -> Params:
        """Site -> its floor, a number."""


class SavedSettings(abc.ABC):
    """Has settings without which a saved fit's locals of new rows would come out differently."""

    @property
    @abc.abstractmethod
    def saved_settings(self) -> dict[str, Any]:
        """These, JSON-able."""


class AllRows:
    """The rows of all processes, as an M step that needs them reads them: those of this one, and sums over all."""

    def __init__(self, rows: Any):
        self.rows = rows

    @property
    def weights(self) -> Tensor | None:
        """How often each row counts, (N,), of rows in memory that have weights: what is summed over rows goes by it."""
        return None

    def pieces(self, warm: Params) -> Iterable[tuple[Any, Params]]:
        """This process's rows, each with their locals of the E step that gave ``warm``: in memory, at once."""
        return [(self.rows, warm)]

    def total(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The sums over the processes."""
        return values

    @classmethod
    def of(cls, rows: Any) -> AllRows:
        """Rows in memory are taken as they are."""
        return rows if isinstance(rows, AllRows) else cls(rows)


def local_engine(engine: Engine) -> Engine:
    """The engine that infers the locals of new rows at given values of the globals; by default the same."""
    return engine.local() if isinstance(engine, LocalEngine) else engine


def check(engine: Engine, model: Model, rows: Any) -> None:
    """Refuse at once what the engine cannot run."""
    if isinstance(engine, Checked):
        engine.check(model, rows)


def state_from(engine: Engine, tensors: dict[str, Tensor]) -> Any:
    """An engine's state, from its tensors by their names (``states.tensors_of``)."""
    return engine.state.of(tensors) if isinstance(engine, OwnState) else tensors


def additive(engine: Engine) -> bool:
    """Whether the statistics alone determine the M step (minibatches need that)."""
    return not isinstance(engine, NeedsRows)


def objective_at(engine: Engine, model: Model, state: Any, bound: Tensor) -> float:
    """What the driver climbs: the sum of the rows' bounds, plus the log prior density of the globals (or minus the
    divergence of their posterior from it)."""
    # Summed in double precision: in single, the sum over many rows would not show what an iteration gains.
    return float(bound.double().sum() + _prior_term(engine, model, state))


def prior_term_at(engine: Engine, model: Model, state: Any) -> float:
    """What the objective adds to the sum of the rows' bounds: the log prior density of the globals, 0 of flat ones; or
    minus the divergence of their posterior from their priors."""
    return float(_prior_term(engine, model, state))


def _prior_term(engine: Engine, model: Model, state: Any) -> Tensor | float:
    return (
        engine.prior_term(model, state) if isinstance(engine, PriorTerm) else model.log_prior(values_of(model, state))
    )


def patience_of(engine: Engine) -> int:
    """Return the number of successive E steps without progress after which the objective has converged."""
    return engine.patience if isinstance(engine, Patient) else 1


def acceleration_of(engine: Engine) -> str | None:
    """The acceleration that runs use unless told otherwise."""
    return engine.accelerate if isinstance(engine, Accelerated) else None


def locals_to_extrapolate(engine: Engine) -> tuple[str, ...]:
    """Names of the locals that accelerations extrapolate."""
    return engine.extrapolated if isinstance(engine, Accelerated) else ()


def integrates_globals(engine: object) -> bool:
    """Whether an engine, or a class of engines, integrates the globals."""
    return issubclass(engine if isinstance(engine, type) else type(engine), GlobalPosterior)


def from_point(engine: Engine, model: Model, params: Params, rows: Any) -> Any:
    """The state of an engine from values of the globals, by one E step of rows in memory there."""
    if not isinstance(engine, OwnState):
        return params
    return engine.from_point(model, params, rows, lambda: local_engine(engine).e_step(model, params, rows))
