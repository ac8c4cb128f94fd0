"""Whether the objective of EM has a maximum where a fit under hierarchical priors went.

With weight_j ~ Normal(0, tau), j = 1..J, the log joint gains J for every e-fold that tau and the weights shrink by, and
where tau may be 0 it has no maximum. Tested is the engine's own objective, along each hyper-parameter, of which the
globals below it go along: they keep their places in their priors, in standard deviations from the means.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributions import biject_to, constraints

from custom_inference.core.engine import Engine, Params, Warm
from custom_inference.core.process_group import Pool
from custom_inference.core.states import values_of
from custom_inference.core.unbounded import RATE, rises_steadily
from custom_inference.em.any_prior import with_values
from custom_inference.em.loop import Run
from custom_inference.em.rows import FitRows
from custom_inference.em.steps import EMStep, Position
from ppl_models import Model
from ppl_models.core.hierarchy import arguments_of
from ppl_models.core.priors import support_of

#: Elements of a hyper-parameter up to which each is tried alone too.
_ELEMENTS = 16
#: A step so short that at a maximum the objective falls on it, or hardly rises.
_FIRST = 0.1
#: Coordinates are kept this near to 0, so that squares of scales are numbers.
_ROOM = 200.0


class _Surroundings:
    """The objective about the values that a run came to."""

    def __init__(self, step: EMStep, model: Model, run: Run, warm: Warm):
        self.step, self.model, self.run, self.warm = step, model, run, warm
        self.values = {site: value.double() for site, value in values_of(model, run.state).items()}
        self.hypers = [site for site in model.hyper_sites if site in model.unknown_sites]
        self.followers = {
            site: set(arguments_of(model.priors[site]))
            for site in model.unknown_sites
            if support_of(model.prior(site, values=self.values)) is constraints.real
        }

    def find(self) -> tuple[str, ...]:
        """Return a hyper-parameter, with those below it, along which the objective rises without end; () without."""
        for site in self.hypers:
            below = [name for name, above in self.followers.items() if site in above]
            for way in self._ways(site) if below else ():
                start = self.level(site, below, 0.0 * way)
                if self.level(site, below, _FIRST * way) - start > RATE * _FIRST and rises_steadily(
                    lambda place, way=way, below=below, site=site: self.level(site, below, place * way)
                ):
                    return (site, *below)
        return ()

    def _ways(self, site: str) -> Iterator[Tensor]:
        """Yield the ways along a site, down and up: all of its elements together, and each alone."""
        value = self.values[site]
        for sign in (-1.0, 1.0):
            yield torch.full_like(value, sign)
            if 1 < value.numel() <= _ELEMENTS:
                yield from (sign * torch.eye(value.numel()).to(value)).view(-1, *value.shape)

    def level(self, site: str, below: list[str], moved: Tensor) -> float:
        """Evaluate the objective with the coordinates of a site moved, and those below it with their priors."""
        to = biject_to(support_of(self.model.prior(site, values=self.values)))
        place = to.inv(self.values[site]).clamp(-_ROOM, _ROOM) + moved
        values: Params = {**self.values, site: to(place)}
        for name in below:
            before, after = (self.model.prior(name, values=at) for at in (self.values, values))
            values[name] = after.mean + (values[name] - before.mean) * (after.stddev / before.stddev)
        like = values_of(self.model, self.run.state)
        state = with_values(self.run.state, {name: value.to(like[name]) for name, value in values.items()})
        return self.step.take(Position.at(state), (state, self.warm), 1.0).value


def find_unbounded(engine: Engine, model: Model, rows: FitRows, processes: Pool, run: Run) -> tuple[str, ...]:
    """Return the sites along which the objective of a run rises without end from where it is; () where it has a maximum
    there, or none is in sight. Of rows that are read block by block it is that of those in memory."""
    if engine.plain is engine or not model.hyper_sites or run.interrupted:
        return ()
    step = EMStep(engine, model, rows.search_rows if rows.streamed else rows, processes, torch.Generator())
    try:
        return _Surroundings(step, model, run, None if rows.streamed else run.step.locals).find()
    except (ValueError, NotImplementedError):  # a value without a density, or a prior without a mean
        return ()
