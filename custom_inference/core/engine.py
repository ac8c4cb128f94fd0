"""What an engine must provide for the EM driver to run it."""

from __future__ import annotations

import abc
import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from custom_inference.core.posteriors import ContinuousPosterior, LocalPosterior
from custom_inference.core.process_group import ALONE, Pool
from ppl_models import Data, Model

Params = dict[str, Tensor]

#: Codes of up to this many bits are summed out exactly unless a bound is asked for.
EXACT_UP_TO = 14
#: The name under which families are registered that estimate the locals as points: no bound on the evidence.
POINT = "map"


class EStep(NamedTuple):
    """What an E step returns.

    statistics: expected sufficient statistics, ADDITIVE over rows: those of two blocks of rows add up to those of
        both, which is what minibatches and several processes rest on.
    locals: per-row state that warm-starts the next E step (leading axis: rows).
    bound: (N,) lower bound on, or exactly, log p(x_n | params).
    """

    statistics: dict[str, Tensor]
    locals: dict[str, Tensor]
    bound: Tensor


class ReadRows(abc.ABC):
    """Rows that are read anew for every E step. Has ``len`` and ``like``, as rows in memory have."""

    @abc.abstractmethod
    def e_step(self, steps: Engine, params: Params, locals_: dict[str, Tensor] | None, **settings: Any) -> EStep:
        """The statistics of all rows, and the sum of their bounds (1,)."""

    @abc.abstractmethod
    def pieces(self, steps: Engine, locals_: dict[str, Tensor]) -> Iterator[tuple[Any, dict[str, Tensor]]]:
        """The rows block by block, each with its locals of the E step that gave ``locals_``."""


class Engine(abc.ABC):
    """E and M step of one model under one family of local posteriors.

    Subclasses must say what ``EStep.bound`` bounds with and give the abstract methods; the rest has defaults that
    serve until something better is known.
    """

    #: What guides, methods and fits call it: "exact" where its bound is the evidence.
    name: ClassVar[str]
    #: Whether the statistics alone determine the M step (minibatches need that).
    additive: ClassVar[bool] = True
    #: Whether an M step that does need the rows takes them by ``pieces``, so that they need not be in memory at once.
    by_pieces: ClassVar[bool] = False
    #: The acceleration that runs of these steps use unless told otherwise: None, "squarem" or "anderson".
    accelerate: ClassVar[str | None] = None
    #: Whether the globals have a posterior too: the bound is then one on log p(x), none at given globals.
    integrates_globals: ClassVar[bool] = False
    #: Whether the bound is one: an objective may also lie above log p(x).
    is_bound: ClassVar[bool] = True
    #: Names of the locals that accelerations extrapolate beside the parameters, with ``project`` to bring them back.
    extrapolated: ClassVar[tuple[str, ...]] = ()
    #: What processes that fit together share: "rows" (each has its own; the driver adds the statistics up), "work"
    #: (each has all data, takes its part of the sums and adds them up itself), or None: the steps are for one process.
    shares: ClassVar[str | None] = "rows"
    #: Whether an E step takes rows in turn, each by what the ones before it left. Several processes, each going through
    #: its own rows, then take other steps than one process, to the same fixed points (not always to the same of them).
    sequential: ClassVar[bool] = False
    #: The processes that this one fits together with, see ``pooled``.
    pool: Pool = ALONE

    def pooled(self, pool: Pool) -> Self:
        """These steps, for one of several processes. Sums over rows that an M step takes itself are ``pool.total``."""
        steps = copy.copy(self)
        object.__setattr__(steps, "pool", pool)  # no field: it is no setting
        return steps

    def attuned(self, rows: Any) -> Self:
        """These steps with what they decide by looking at all rows, so that every process, which has some, decides
        alike (``pool.total``); by default nothing."""
        return self

    def gathered(self, step: EStep) -> EStep:
        """An E step with the statistics of all processes, and the sum of all bounds (1,) in place of the bounds."""
        if self.pool.size == 1 or self.shares != "rows":
            return step
        total = step.bound.double().sum().reshape(1)
        names = list(step.statistics)
        *sums, bound = self.pool.total(*(step.statistics[name] for name in names), total)
        return EStep(dict(zip(names, sums, strict=True)), step.locals, bound)

    def e_steps(
        self,
        params: Params,
        rows: Any,
        locals_: dict[str, Tensor] | None = None,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:
        """The E step of rows in memory, or of rows that are read block by block (:class:`ReadRows`)."""
        settings: dict[str, Any] = {"temperature": temperature, "generator": generator}
        if isinstance(rows, ReadRows):
            return rows.e_step(self, params, locals_, **settings)
        return self.e_step(params, rows, locals_, **settings)

    def pieces(self, rows: Any, locals_: dict[str, Tensor]) -> Iterable[tuple[Any, dict[str, Tensor]]]:
        """This process's rows and their locals, to sum over in an M step: block by block, or, in memory, at once."""
        return rows.pieces(self, locals_) if isinstance(rows, ReadRows) else [(rows, locals_)]

    def looked(self, params: Params, rows: Any) -> EStep:
        """What all rows, of all processes, say at given values of the globals: what ``starting`` begins with."""
        local = self.local().pooled(self.pool)
        return local.gathered(local.e_steps(params, rows))

    def num_rows(self, rows: Any) -> int:
        """The rows of all processes."""
        return len(rows) if self.shares != "rows" else round(self.pool.count(len(rows)))

    def for_model(self, model: Model) -> Engine:
        """These steps with what an E step must know of the model: the priors of local sites; by default nothing."""
        return self

    def local(self) -> Engine:
        """These steps as they infer the locals of rows at fixed parameters; by default as they are."""
        return self

    @property
    def kept(self) -> dict[str, Any]:
        """Settings (JSON-able) without which a saved fit's locals of new rows would come out differently."""
        return {}

    @property
    def patience(self) -> int:
        """For how many E steps in a row the bound must stand still before it counts as settled."""
        return 1

    @abc.abstractmethod
    def rows(self, data: Data) -> Any:
        """The data as the steps read them.

        Has ``len``, ``select(index)``, ``to(dtype)`` and ``like``, a tensor with the data's dtype and device.
        """

    @abc.abstractmethod
    def initial(self, model: Model, rows: Any, generator: torch.Generator) -> Params:
        """A random start."""

    @abc.abstractmethod
    def e_step(
        self,
        params: Params,
        rows: Any,
        locals_: dict[str, Tensor] | None = None,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:
        """Posterior over the locals at ``params``; with a temperature the likelihood is raised to it."""

    @abc.abstractmethod
    def m_step(self, model: Model, params: Params, step: EStep, rows: Any) -> Params:
        """Parameters that raise the expected log joint plus log prior, from the statistics."""

    @abc.abstractmethod
    def posterior(self, params: Params, rows: Any, step: EStep) -> LocalPosterior:
        """The posterior that an E step arrived at."""

    def objective(self, model: Model, params: Params, bound: Tensor) -> float:
        """What the driver climbs: the bound on the log-likelihood, plus the log prior density of the globals.

        Engine whose parameters are those of a posterior of the globals subtract its divergence from the prior instead.
        """
        # Summed in double precision: in single, the sum over many rows would not show what an iteration gains.
        return float(bound.double().sum() + model.log_prior(params))

    def starting(self, model: Model, params: Params, rows: Any) -> Params:
        """The steps' own parameters from given values of the globals (``init``); by default these."""
        return params

    def reported(self, model: Model, params: Params) -> tuple[Params, Mapping[str, ContinuousPosterior]]:
        """Values of the globals, and their posteriors where the steps have them, from the steps' own parameters."""
        return params, {}

    def fitted_model(self, model: Model, params: Params) -> Model:
        """The model with what was learned of its priors; by default as it is."""
        return model

    def log_evidence(self, params: Params, rows: Any) -> Tensor:
        """log p(x_n | params), (N,), for steps whose bound is exact."""
        return self.e_step(params, rows).bound

    def point_locals(self, step: EStep) -> dict[str, Tensor]:
        """Local sites that the family estimates as points, (N, ...): they are reported beside the globals."""
        return {}

    def project(self, params: Params, locals_: dict[str, Tensor]) -> tuple[Params, dict[str, Tensor]]:
        """The nearest valid values to extrapolated ones (accelerated EM); by default they are taken as they are."""
        return params, locals_

    def canonical(self, params: Params, locals_: dict[str, Tensor]) -> tuple[Params, dict[str, Tensor]]:
        """The one that is reported of all equally good values (a rotation, ...); by default as they are."""
        return params, locals_

    def feasible(self, model: Model) -> bool:
        """Whether the steps are cheap enough to be a default at this size; for codes, up to ``EXACT_UP_TO`` bits."""
        return model.code_bits is None or model.code_bits <= EXACT_UP_TO

    def check(self, model: Model, rows: Any) -> None:  # noqa: B027 - an empty default is meant
        """Refuse at once what cannot be run: too many codes, priors without closed-form updates."""
