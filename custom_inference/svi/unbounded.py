"""Whether the objective of points has a maximum where a fit went.

Under hierarchical priors the log joint may have none: with tau ~ Exponential and slope_j ~ Normal(0, tau), j = 1..J,
it gains J for every e-fold that tau and the slopes shrink by, and with lift ~ Gamma(tau, 1) it gains 1 - tau as lift
goes to 0. A climb then ends at the edge of floating-point numbers, or wherever its line search gives up. What tells
such an end from a maximum is what lies ahead: the objective goes on rising, by as much for every e-fold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from pyro.distributions import Delta
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import biject_to, constraints

from custom_inference.core.isolation import torch_seeded
from custom_inference.core.unbounded import AHEAD, RATE, rises_steadily
from custom_inference.svi.objective import Objective
from ppl_models import Model
from ppl_models.core.hierarchy import arguments_of
from ppl_models.core.priors import support_of


class _AtPoints(Messenger):
    """Run a guide with given values in place of its points."""

    def __init__(self, values: Mapping[str, Tensor]):
        super().__init__()
        self.values = values

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self.values and not msg["done"] and not msg["is_observed"]:
            msg["fn"] = Delta(self.values[msg["name"]], event_dim=msg["fn"].event_dim)


class _Surroundings:
    """The objective about the points that a guide holds, in unconstrained coordinates.

    Values of real sites whose priors are functions of others go to the means of these priors when the others move.
    """

    def __init__(self, objective: Objective, program: Model, params: Mapping[str, Tensor], seed: int):
        self.objective, self.program, self.seed = objective, program, seed
        self.params = {site: params[site].detach() for site in program.global_sites}
        self.parents = {
            s: set(arguments_of(program.priors[s])) & {*program.unknown_sites} for s in program.unknown_sites
        }
        supports = {site: support_of(program.prior(site, values=self.params)) for site in program.unknown_sites}
        self.followers = [s for s, of in self.parents.items() if of and supports[s] is constraints.real]
        self.transforms = {s: biject_to(v) for s, v in supports.items() if s not in self.followers}
        self.start = {site: to.inv(self.params[site]) for site, to in self.transforms.items()}
        for site, value in self.start.items():
            if supports[site] not in (constraints.real, constraints.real_vector):  # with room ahead for the numbers
                kind = torch.finfo(value.dtype)
                self.start[site] = value.clamp(math.log(kind.tiny) + AHEAD[-1] + 1, -math.log(kind.eps) - AHEAD[-1] - 1)

    def find(self) -> tuple[str, ...]:
        """Return the sites that one way ahead moves, on which the objective rises without end; () without such."""
        zero = {site: torch.zeros_like(value) for site, value in self.start.items()}
        slopes = self._slopes(zero, 0.0)
        moving = {site: slope.sign() for site, slope in slopes.items() if bool((slope.abs() > RATE).any())}
        for sites in _groups(moving, self.parents):
            way = {site: moving[site] * (slopes[site].abs() > RATE) for site in sites}
            for place in AHEAD[1::2]:  # what does not rise any more there stays where it is
                found = self._slopes(way, place)
                way = {site: value * (found[site] * value > RATE) for site, value in way.items()}
            way = {site: value for site, value in way.items() if bool(value.any())}
            if way and rises_steadily(lambda place, way=way: self._level(way, place)):
                return (*way, *(site for site in self.followers if self.parents[site] & way.keys()))
        return ()

    def _slopes(self, way: Mapping[str, Tensor], place: float) -> dict[str, Tensor]:
        """Differentiate the objective by the coordinates at a place of a way."""
        free = {site: value.clone().requires_grad_() for site, value in self._coordinates(way, place).items()}
        found = self.objective
        with torch_seeded(self.seed), torch.enable_grad(), _AtPoints(self._values(free, way, place)):
            found.loss.loss_and_grads(found.program, found.guide, found.data.x, **found.keywords(found.size))
        return {site: torch.zeros_like(v) if v.grad is None else -v.grad for site, v in free.items()}

    def _level(self, way: Mapping[str, Tensor], place: float) -> float:
        """Evaluate the objective at a place of a way."""
        with torch_seeded(self.seed), _AtPoints(self._values(self._coordinates(way, place), way, place)):
            return self.objective.once()

    def _coordinates(self, way: Mapping[str, Tensor], place: float) -> dict[str, Tensor]:
        return {site: value + place * way[site] if site in way else value for site, value in self.start.items()}

    def _values(self, coordinates: Mapping[str, Tensor], way: Mapping[str, Tensor], place: float) -> dict[str, Tensor]:
        values = self.params | {site: to(coordinates[site]) for site, to in self.transforms.items()}
        for site in self.followers:
            if self.parents[site] & way.keys():
                mean = self.program.prior(site, values=values).mean.detach()
                values[site] = mean + (values[site] - mean) * math.exp(-place)
        return values


def find_unbounded(objective: Objective, program: Model, params: Mapping[str, Tensor], seed: int) -> tuple[str, ...]:
    """Return the sites along which the objective of a guide of points rises without end from where it is; () where it
    has a maximum there, or none is in sight."""
    try:
        return _Surroundings(objective, program, params, seed).find()
    except ValueError:  # of a value at which the program has no density: nothing rises there
        return ()


def _groups(sites: dict[str, Tensor], parents: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """Yield the sites that are moved together: each alone, the last first, and those of one hierarchy."""
    yield from ([site] for site in reversed(sites))
    for child, above in parents.items():
        together = [site for site in sites if site == child or site in above]
        if len(together) > 1:
            yield together
