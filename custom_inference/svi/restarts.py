"""Several starts of SVI: brief runs from different values, of which the best by its objective on all rows goes on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.core.isolation import own_store, seed_of
from custom_inference.core.progress import Progress
from custom_inference.svi.objective import Trace
from ppl_models import MethodError, Model
from ppl_models.core.errors import list_some

#: The first starts are random; of the later ones two of three keep all but one component of the best so far.
_RANDOM_STARTS = 4
#: Starts count as the same optimum up to so much a row, and so many standard errors of the objective.
_SAME, _ERRORS = 1e-3, 3.0


@dataclass
class Attempt:
    """A start after its brief run: the guide, Pyro's parameters, the objective on all rows and its standard error, and
    the point values of the guide, where it has such: parameters of all guides have the same names, so that none is run
    among those of another. random: whether it began at values that no other start knew. unbounded: the sites along
    which its objective rises without end."""

    guide: Any
    parameters: Any
    score: float
    error: float = 0.0
    trace: Trace = field(default_factory=Trace)
    centre: Mapping[str, Tensor] | None = None
    random: bool = True
    unbounded: tuple[str, ...] = ()

    @property
    def rank(self) -> tuple[bool, float]:
        """What attempts are compared by: any that is about to find a maximum is better than those that find none."""
        return not self.unbounded, self.score


@dataclass
class Found:
    """The best start, what all scored, and whether an interrupt ended the search."""

    best: Attempt
    attempts: list[Attempt]
    interrupted: bool = False

    def agreement(self, rows: int) -> str:
        """How many of the random starts came as far as the best of all."""
        random = sum(one.random for one in self.attempts)
        starts = "starts" if random == len(self.attempts) else "random starts"
        said = f"{agreeing(self.attempts, rows)} of {random} {starts} came within {_SAME:g} a row of the best"
        lost = [one for one in self.attempts if one.unbounded and not self.best.unbounded]
        along = list_some(sorted({site for one in lost for site in one.unbounded}), show=repr)
        return said + (f"; {len(lost)} rose without end along {along}, and do not count" if lost else "")


def agreeing(attempts: list[Attempt], rows: int) -> int:
    """How many random attempts have the objective of the best, up to what is no difference. Those that began at most
    of the best one's components agree because they began alike, and do not count."""
    best = max(attempts, key=lambda one: one.rank)
    slack = _SAME * rows + _ERRORS * best.error
    same = [one for one in attempts if one.random and bool(one.unbounded) == bool(best.unbounded)]
    return sum(best.score - one.score <= slack + _ERRORS * one.error for one in same)


def search(
    number: int,
    seed: int,
    attempt: Callable[[int, Attempt | None], Attempt],
    bar: Progress,
    *,
    rows: int,
    agree: int | None = None,
) -> Found:
    """So many attempts, each with parameters and random numbers of its own; ``attempt`` is given the number of the
    start and the best before it. Ctrl-C ends the search with the best of those that are done, and so do ``agree`` that
    came as far as the best, once all starts that are random have been made.

    Raises MethodError where none has a finite objective.
    """
    done: list[Attempt] = []
    best, interrupted = None, False
    try:
        for i in range(number):
            bar.label_start(i, number)
            with own_store() as parameters:
                torch.manual_seed(seed_of(seed, "start", i))
                one = attempt(i, best)
            one.parameters = parameters
            one.score = one.score if math.isfinite(one.score) else -math.inf
            done.append(one)
            best = one if best is None or one.rank > best.rank else best
            if agree is not None and len(done) >= _RANDOM_STARTS and agreeing(done, rows) >= agree:
                break
    except KeyboardInterrupt:
        if best is None:
            raise
        interrupted = True
    assert best is not None
    if best.score == -math.inf:
        raise MethodError(f"none of {number} starts has a finite objective; lower the learning rate")
    return Found(best, done, interrupted)


def begins_at_best(model: Model, number: int) -> bool:
    """Whether the start of a number keeps all but one component of the best before it: two of three of the later ones
    do, of models that have components."""
    has_components = any("component" in model.dims[site] for site in model.unknown_sites)
    return has_components and number >= _RANDOM_STARTS and number % 3 != 0


def draw_one_component(model: Model, drawn: Mapping[str, Tensor], best: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Starting values: the best so far with those drawn for a random component. An optimum that misses one component is
    common, and from random starts all have to be found at once."""
    chosen, start = int(torch.randint(model.sizes["component"], ())), {}
    for site, value in drawn.items():
        start[site], dims = best.get(site, value).clone(), list(model.dims[site])
        for axis in (i for i, name in enumerate(dims) if name in ("component", "to_component")):
            start[site].select(axis, chosen).copy_(value.select(axis, chosen))
            if axis == value.ndim - 1 and model.supports[site] is constraints.simplex:
                start[site] = start[site] / start[site].sum(-1, keepdim=True)
    return start
