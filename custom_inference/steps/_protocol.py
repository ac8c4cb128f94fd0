"""What an engine must provide for the EM driver to run it."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from custom_inference.posterior import LocalPosterior
from ppl_models import Data, Model

Params = dict[str, Tensor]


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


class Steps(Protocol):
    """E and M step of one model under one family of local posteriors."""

    @property
    def additive(self) -> bool:
        """Whether the statistics alone determine the M step (minibatches need that)."""
        ...

    @property
    def bound_name(self) -> str:
        """The name of what ``EStep.bound`` bounds with: "evidence" where it is exact."""
        ...

    @property
    def patience(self) -> int:
        """For how many E steps in a row the bound must stand still before it counts as settled."""
        ...

    def rows(self, data: Data) -> Any:
        """The data as the steps read them; has ``len``, ``select(index)``, ``to(dtype)`` and the tensor ``ones``."""
        ...

    def check(self, model: Model, rows: Any) -> None:
        """Refuse at once what cannot be run: too many codes, priors without closed-form updates."""
        ...

    def initial(self, model: Model, rows: Any, generator: torch.Generator) -> Params:
        """A random start."""
        ...

    def propose(self, model: Model, rows: Any, generator: torch.Generator, attempt: int) -> Params:
        """An informed start, different for every ``attempt``."""
        ...

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """How many starts, on how many rows, the default search should make."""
        ...

    def same_solution(self, first: Params, second: Params) -> bool:
        """Whether two starts found the same components, in whatever order."""
        ...

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
        ...

    def m_step(self, model: Model, params: Params, step: EStep, rows: Any) -> Params:
        """Parameters that raise the expected log joint plus log prior, from the statistics."""
        ...

    def posterior(self, params: Params, rows: Any, step: EStep) -> LocalPosterior:
        """The posterior that an E step arrived at."""
        ...
