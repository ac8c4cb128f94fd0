"""The protocol of engines that the EM driver runs."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.posteriors import LocalPosterior
from custom_inference.core.states import Params as Params
from ppl_models import Data

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


class Engine(abc.ABC):
    """E and M step of one model under one family of local posteriors: settings, and five methods.

    The model comes with every call. A *state* is what the iterations change: values of the global sites, or a
    :class:`~custom_inference.core.states.State` of the engine's own. What only some engines do are mixins of
    :mod:`custom_inference.core.capabilities`, which the driver looks for.
    """

    #: What guides, methods and fits call it: "exact" where its bound is the evidence.
    name: ClassVar[str]
    objective: ClassVar[Objective] = "bound"
    #: Site -> the families of priors that its M step has a closed form for, where these are not those that its support
    #: suggests (Beta, Dirichlet, Gamma, Normal); of others the first stands in (``em.surrogate_priors``).
    conjugate: ClassVar[Mapping[str, tuple[type, ...]]] = {}
    #: Sites whose priors, of whatever kind, and whose known values its M step takes as they are.
    any_prior_of: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def rows(self, model: Any, data: Data) -> Any:
        """The data as the engine reads them.

        Has ``len``, ``select(index)``, ``to(dtype)`` and ``like``, a tensor with the data's dtype and device.
        """

    @abc.abstractmethod
    def initial(self, model: Any, rows: Any, generator: torch.Generator) -> Any:
        """A random state to start from."""

    @abc.abstractmethod
    def e_step(self, model: Any, state: Any, rows: Any, warm: Warm = None, *, temperature=1.0, generator=None) -> EStep:
        """Posterior over the locals at ``state``; with a temperature the likelihood is raised to it.

        warm: the locals of an earlier E step on the same rows, to go on from.
        """

    @abc.abstractmethod
    def m_step(self, model: Any, state: Any, step: EStep, rows: Any) -> Any:
        """The state that raises the expected log joint plus log prior, from the statistics."""

    @abc.abstractmethod
    def posterior(self, model: Any, state: Any, rows: Any, step: EStep) -> LocalPosterior:
        """The posterior that an E step arrived at."""
