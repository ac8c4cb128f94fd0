"""Annealed importance sampling as a method: the posterior of the locals and log p(x_n) of any model at any size."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from custom_inference.core.annealing.estimate import Budget
from custom_inference.core.fit import Fit, check_globals
from custom_inference.core.local_inference import Local, anneal_local
from custom_inference.core.method import Call, Method
from custom_inference.core.reader import read_at
from custom_inference.core.settings import require_positive, require_whole
from ppl_models import Data, MethodError, Model


@dataclass(frozen=True, kw_only=True)
class AIS(Method):
    """Estimates log p(x_n | globals) and the posterior of the locals by annealed importance sampling (Neal 2001).

    ``local_posterior(model, params, data)`` gives draws from the posterior, and as its bound the estimate of
    log p(x_n | params) with its standard error, for every model, those of one's own too: bits are flipped, other finite
    latents drawn, real numbers moved along slopes. The topics of the tokens of documents go by particles that take one
    token after the other. Of rows that depend on each other, as the nodes of a graph, the bound is one number for all.
    It learns no globals.

    Parameters
    ----------
    standard_error
        That of log p(x_n), in nats, which is small enough.
    seconds
        How long it may take, for all rows; where that is too short the standard errors are larger.
    chains
        How many run side by side for every row.

    Examples
    --------
    >>> import torch, custom_inference as ci
    >>> from ppl_models import NOCA
    >>> example = NOCA.example()
    >>> found = ci.AIS(seconds=5.0).local_posterior(example.model, example.truth, example.data)
    >>> bool((found.standard_error < 0.2).all())
    True
    """

    standard_error: float = 0.05
    seconds: float = 60.0
    chains: int = 32

    def __post_init__(self) -> None:
        require_whole("chains", self.chains, least=8)
        require_positive("standard_error", self.standard_error)
        require_positive("seconds", self.seconds)

    @property
    def budget(self) -> Budget:
        return Budget(self.standard_error, self.seconds, self.chains)

    def check(self, model: Model) -> None:
        """Raises MethodError: the method learns no globals."""
        raise MethodError(
            f"{self.name} estimates log p(x_n) of {type(model).__name__} at given globals and learns none; fit by "
            f'another method, then ask for fit.log_likelihood(bound="ais") or {self.name}().local_posterior'
        )

    def _fit(self, model: Model, data: Data, call: Call) -> Fit:
        raise NotImplementedError  # ``check`` refuses every model

    def local_posterior(self, model: Model, params: dict[str, Tensor], data: Data, *, seed: int = 0) -> Local:
        """Estimate the posterior of the locals and log p(x_n | params).

        Raises MethodError for latents that nothing moves; ModelError for globals that the model cannot have.
        """
        data = read_at(model, params, data, None, {})
        model, values = check_globals(model, params, data, called="params")
        return anneal_local(model, values, data, self.budget, seed=seed)


@dataclass(frozen=True, kw_only=True)
class SMC(AIS):
    """Estimates log p(x_n | globals) and the posterior of the locals by tempered sequential Monte Carlo.

    As :class:`AIS`, but the chains are resampled by their weights on the way, at temperatures that keep nine tenths of
    them effective (Del Moral, Doucet & Jasra, *Sequential Monte Carlo samplers*, 2006). Independent runs along one path
    give the standard error, as large as it is: ``standard_error`` is not aimed at.

    Parameters
    ----------
    runs
        How many independent runs there are, at least 4.
    chains
        How many go side by side for every row, in each of them.

    Examples
    --------
    >>> import torch, custom_inference as ci
    >>> from ppl_models import NOCA
    >>> example = NOCA.example()
    >>> found = ci.SMC(chains=32).local_posterior(example.model, example.truth, example.data)
    >>> bool((found.standard_error < 0.5).all())
    True
    """

    chains: int = 64
    runs: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("runs", self.runs, least=4)

    @property
    def budget(self) -> Budget:
        return Budget(self.standard_error, self.seconds, self.chains, self.runs)
