"""The objective of SVI: a program, a guide of it, and a loss; its steps, and its value on all rows."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from pyro import poutine
from pyro.infer import ELBO
from pyro.infer import SVI as PyroSVI
from pyro.optim import PyroLRScheduler, PyroOptim
from pyro.poutine.messenger import Messenger
from torch import Tensor

from custom_inference.core.ended import Ended
from custom_inference.core.enumeration import ROW_PLATE
from custom_inference.core.optimize.lbfgs import minimise
from custom_inference.core.progress import Progress
from ppl_models import Data, MethodError, PPLError
from ppl_models.core.errors import own_cause

#: Draws that the last objective is a mean over, a part of the number of steps, and at most so many.
_EVALUATIONS, _MOST_EVALUATIONS = 0.05, 100
#: Pairs of steps and gradients that L-BFGS keeps.
_HISTORY = 20


@dataclass(frozen=True)
class Objective:
    """A loss of a program and its guide.

    size: rows or dyads a step, None for all. seen: how many there are. of_rows: whether these are rows, so that all of
    them are seen in turn; dyads are drawn. plates: the names of the plates of rows.
    """

    program: Any
    guide: Any
    loss: Any
    data: Data
    mask: Tensor | None
    size: int | None
    seen: int
    of_rows: bool = True
    plates: frozenset[str] = frozenset({ROW_PLATE})

    def keywords(self, size: int | None) -> dict[str, Any]:
        return {"mask": self.mask, "batch_size": size, **self.data.others}

    def at(self, guide: Callable[..., Any]) -> Objective:
        """Return the objective with another guide."""
        return replace(self, guide=guide)

    def step(self, inference: PyroSVI) -> float:
        value: Any = inference.step(self.data.x, **self.keywords(self.size))
        return -float(value)

    def _value(
        self, size: int | None, program: Callable[..., Any] | None = None, guide: Callable[..., Any] | None = None
    ) -> float:
        loss: Any = getattr(self.loss, "loss", self.loss)  # of an ELBO, or a function
        program, guide = program or self.program, guide or self.guide
        return -float(loss(program, guide, self.data.x, **self.keywords(size)))

    @torch.no_grad()
    def once(self) -> float:
        """An estimate (exact where nothing is drawn) from all rows, in blocks of so many as a step sees; of a sample
        of dyads the mean over so many samples as have as many dyads as there are.

        The terms of the globals are in each block's value, and those of its rows scaled to all rows: weighted by the
        blocks' sizes, the values add up to the objective.
        """
        if self.size is None:
            return self._value(None)
        if not self.of_rows:
            number = min(_MOST_EVALUATIONS, math.ceil(self.seen / self.size))
            return sum(self._value(self.size) for _ in range(number)) / number
        total = 0.0
        for index in torch.arange(self.seen, device=self.data.x.device).split(self.size):
            program, guide = (Rows(index, self.plates)(one) for one in (self.program, self.guide))
            total += self._value(len(index), program, guide) * len(index) / self.seen
        return total

    def evaluate(self, steps: int) -> tuple[float, float]:
        """The objective on all rows, and its standard error: 0 where nothing is drawn, else the mean over draws."""
        found = []
        for _ in range(2):
            getattr(self.loss, "settle", int)()  # two integrals with all care are the same; one that goes on is not
            found.append(self.once())
        if abs(found[0] - found[1]) <= _same(self.loss) * max(1.0, abs(found[0])):
            return found[1], 0.0
        passes = 1 if self.size is None else math.ceil(self.seen / self.size)
        number = min(_MOST_EVALUATIONS, math.ceil(_EVALUATIONS * steps / passes))
        found += [self.once() for _ in range(number - len(found))]
        return float(np.mean(found)), float(np.std(found, ddof=1) / math.sqrt(len(found)))


def _same(loss: Any) -> float:
    """The part of their value by which two evaluations of a loss without draws may differ."""
    return getattr(loss, "same", 1e-9)


class Rows(Messenger):
    """Runs a program, or a guide, on given rows: those are what its plates of rows, of these names, draw."""

    def __init__(self, index: Tensor, plates: frozenset[str]):
        super().__init__()
        self.index, self.plates = index, plates

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self.plates and type(msg["fn"]).__name__ == "_Subsample":
            msg["value"], msg["done"] = self.index, True


@dataclass
class Trace:
    """The objective of every step so far, and how the steps ended."""

    values: list[float] = field(default_factory=list)
    outcome: str = ""
    ended: Ended = Ended.COMPLETE
    #: Whether a line search met values at which the program has no density.
    met_edge: bool = False


def make_loss(loss: Any, **settings: Any) -> Any:
    """A loss object or function as it is; of a class one with settings of Pyro's objectives (num_particles, ...)."""
    return loss(**settings) if isinstance(loss, type | functools.partial) else loss


def check_loss(loss: Any, num_particles: int, vectorize_particles: bool) -> None:
    """Refuse what is no loss, and settings that an object has already."""
    if isinstance(loss, type) and not issubclass(loss, ELBO):
        raise MethodError(f"loss = {loss.__name__} is no ELBO of Pyro; expected one, its class, or a function")
    if loss is not None and not callable(loss):
        raise MethodError(f"loss = {loss!r}; expected one of Pyro's ELBOs, its class, or a function")
    if isinstance(loss, ELBO) and (num_particles != 1 or vectorize_particles):
        raise MethodError("num_particles and vectorize_particles are those of the loss object; set them there")


def check_optimizer(optimizer: Any) -> None:
    """Refuse what cannot take SVI's steps."""
    expected = 'expected a class such as torch.optim.Adam, an optimiser of pyro.optim, "lbfgs" or None'
    if isinstance(optimizer, torch.optim.Optimizer):
        raise MethodError(f"optimizer = an instance of {type(optimizer).__name__} with parameters already; {expected}")
    if optimizer in (None, "lbfgs") or isinstance(optimizer, PyroOptim):
        return
    if optimizer is torch.optim.LBFGS:
        raise MethodError('torch.optim.LBFGS needs a closure, which SVI has not; use optimizer="lbfgs"')
    if not callable(optimizer):
        raise MethodError(f"optimizer = {optimizer!r}; {expected}")


def make_optimizer(optimizer: Any, learning_rate: float) -> PyroOptim:
    """An optimiser of this fit's own; a torch class, or a partial of one without a rate, gets the learning rate."""
    if isinstance(optimizer, PyroOptim):
        return copy.deepcopy(optimizer)
    settings: dict[str, Any] = {}
    kind = optimizer.func if isinstance(optimizer, functools.partial) else optimizer
    if inspect.isclass(kind) and "lr" not in getattr(optimizer, "keywords", {}):
        settings = {"lr": learning_rate}
    return PyroOptim(optimizer, settings)


def take_steps(
    objective: Objective, optimizer: PyroOptim, steps: int, trace: Trace, progress: Progress | None = None
) -> None:
    """Stochastic steps; the schedule of an optimiser that has one advances with each."""
    inference = PyroSVI(objective.program, objective.guide, optimizer, objective.loss)
    for _ in range(steps):
        trace.values.append(objective.step(inference))
        if isinstance(optimizer, PyroLRScheduler):
            plateau = optimizer.pt_scheduler_constructor is torch.optim.lr_scheduler.ReduceLROnPlateau
            optimizer.step(*([-trace.values[-1]] if plateau else []))
        if progress is not None:
            progress.advance(trace.values[-1] / len(objective.data))
    trace.outcome, trace.ended = f"ran {len(trace.values)} steps", Ended.COMPLETE


def climb(
    objective: Objective, iterations: int, trace: Trace, progress: Progress | None = None, tolerance: float = 1e-9
) -> None:
    """L-BFGS over the unconstrained parameters, for objectives without draws, until it gains less than a part
    ``tolerance`` of its value. An interrupt leaves the parameters of the last iteration.

    Raises MethodError where two evaluations at the same parameters differ.
    """
    surface = _Surface(objective)
    start = surface.start()

    def after(at: np.ndarray, value: float) -> None:
        surface.kept = at
        trace.values.append(-value)
        if progress is not None:
            progress.advance(trace.values[-1] / len(objective.data))

    limits: Any = {"maxiter": iterations, "maxfun": 3 * iterations, "maxcor": _HISTORY, "ftol": tolerance, "gtol": 1e-7}
    try:
        surface.kept, lowest, trace.ended = minimise(surface, start, callback=after, **limits)
        trace.values = trace.values or [-lowest]
        number = f"{len(trace.values)} iterations"
        at_limit = iterations if len(trace.values) >= iterations else 3 * iterations
        said = {
            Ended.CONVERGED: f"L-BFGS converged after {number}",
            Ended.LIMIT: f"L-BFGS stopped at the limit of {at_limit} "
            + ("iterations" if at_limit == iterations else f"evaluations, after {number}"),
            Ended.FAILED: f"L-BFGS stopped after {number}: its line search found no higher point on a slope",
        }
        trace.outcome = said[trace.ended]
    finally:
        trace.met_edge |= surface.met_edge
        surface.move(surface.kept)


class _Surface:
    """Minus the objective and its gradient, as a function of all unconstrained parameters in one vector."""

    def __init__(self, objective: Objective):
        self.objective, self.met_edge = objective, False
        self.parameters: list[Tensor] = []
        self.kept = np.zeros(0)

    def start(self) -> np.ndarray:
        with poutine.trace(param_only=True) as captured:
            self.loss()  # quadrature goes on from where the evaluation before was
        self.parameters, first = list(_parameters(captured.trace)), self.loss()
        same = getattr(self.objective.loss, "same_while_learning", _same(self.objective.loss))
        if abs(self.loss() - first) > same * max(1.0, abs(first)):
            raise MethodError(
                'optimizer="lbfgs" is for objectives without draws, such as those of points with the discrete latents '
                "summed out; this one differs between two evaluations"
            )
        self.kept = np.concatenate([np.zeros(0), *(p.detach().double().cpu().flatten() for p in self.parameters)])
        return self.kept

    def loss(self) -> float:
        found = self.objective
        return float(found.loss.loss_and_grads(found.program, found.guide, found.data.x, **found.keywords(None)))

    def move(self, at: np.ndarray) -> None:
        with torch.no_grad():
            parts = torch.as_tensor(at).split([p.numel() for p in self.parameters])
            for parameter, part in zip(self.parameters, parts, strict=True):
                parameter.copy_(part.view(parameter.shape))
                parameter.grad = None

    def __call__(self, at: np.ndarray) -> tuple[float, np.ndarray]:
        self.move(at)
        try:
            value = self.loss()
        except PPLError as error:  # the start has passed: a prior that is no distribution at the edge of a support
            if type(error.__cause__) is not ValueError:
                raise
            value, self.met_edge = math.inf, True
        except ValueError as error:  # a value that was rounded to the edge of its support
            if own_cause(error) is not None:
                raise
            value, self.met_edge = math.inf, True
        slopes = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        return value, np.concatenate([np.zeros(0), *(s.detach().double().cpu().flatten() for s in slopes)])


def _parameters(trace: Any) -> Iterator[Tensor]:
    """The unconstrained parameters of a run, each once."""
    found = {}
    for site in trace.nodes.values():
        value = site["value"].unconstrained()
        found[id(value)] = value
    yield from found.values()
