"""The state of variational Bayes of a compiled program: posteriors of its globals, and their moments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.compiled.bayes.beliefs import expect_entries
from custom_inference.compiled.bayes.moments import Moments
from custom_inference.compiled.bayes.open_beliefs import draw_free, split_values, stack_open
from custom_inference.compiled.sources import Entries
from custom_inference.compiled.steps import Steps
from custom_inference.core.posteriors import POSTERIORS, ContinuousPosterior
from custom_inference.core.states import Params, State
from ppl_models import Model


@dataclass(frozen=True)
class GlobalBeliefs(State):
    """Posteriors of the globals: parts: their tensors, which alone states hold. The name of each says what it is of:
    "site/class of its posterior/field"."""

    parts: dict[str, Tensor] = field(default_factory=dict)

    def posteriors(self, model: Model) -> dict[str, ContinuousPosterior]:
        found = dict[tuple[str, str], dict[str, Tensor]]()
        for name, value in self.parts.items():
            site, kind, parameter = name.rsplit("/", 2)
            found.setdefault((site, kind), {})[parameter] = value
        made: dict[str, Any] = {site: POSTERIORS[kind](**parts) for (site, kind), parts in found.items()}
        return made

    def values(self, model: Model) -> Params:
        """Return the means, and known values."""
        means = {site: posterior.mean for site, posterior in self.posteriors(model).items()}
        like = next(iter(means.values()))
        known = {site: value.to(like).expand(model.shapes[site]) for site, value in model.known.items()}
        return {site: {**means, **known}[site] for site in model.global_sites}

    @classmethod
    def of_posteriors(cls, posteriors: Mapping[str, ContinuousPosterior]) -> Self:
        found: dict[str, Tensor] = {}
        for site, one in posteriors.items():
            found |= {f"{site}/{type(one).__name__}/{name}": getattr(one, name) for name in one.layout()}
        return cls(found)


def moments_of(model: Model, entries: Entries, state: GlobalBeliefs, steps: Steps, like: Tensor) -> Moments:
    """Return the moments of all entries under the posteriors of a state."""
    roles, posteriors = steps.belief_roles, state.posteriors(model)
    size = sum(torch.Size(shape).numel() for shape in entries.shapes.values())
    value = {name: like.new_full((max(size, 1),), torch.nan) for name in ("value", "log", "rest", "precision")}
    for site, number in model.known.items():
        number = number.to(like).expand(entries.shapes[site]).reshape(-1)
        value["value"][entries.slices[site]] = number
        value["log"][entries.slices[site]] = torch.log(number)
        if model.supports[site] in (constraints.unit_interval, constraints.simplex):
            value["rest"][entries.slices[site]] = torch.log1p(-number)
        value["precision"][entries.slices[site]] = number**-2
    for site, posterior in posteriors.items():
        for name, moment in expect_entries(posterior, roles[site]).items():
            value[name][entries.slices[site]] = moment.to(like).reshape(-1)
    opened = [site for site in posteriors if roles[site] == "open"]
    draws = list[Tensor]()
    if opened:
        drawn = split_values(model, opened, draw_free(*stack_open([posteriors[site] for site in opened])))
        for number in range(len(drawn[opened[0]])):
            draws.append(value["value"].clone())
            for site in opened:
                draws[-1][entries.slices[site]] = drawn[site][number].to(like).reshape(-1)
    spreads = {"roots": roots_of(posteriors, roles, like), "open": frozenset(opened), "draws": tuple(draws)}
    return Moments(**value, unknown=frozenset(posteriors), spans=entries.slices, **spreads)


def roots_of(posteriors: Mapping[str, Any], roles: Mapping[str, str], like: Tensor) -> dict[str, Tensor]:
    """Return the roots of the covariance of the entries of means of normals: (M,) of independent ones; (M, L) of those
    of linear predictors, which have L entries in all."""
    number = sum(len(one.root) for site, one in posteriors.items() if roles[site] == "linear")
    linear = {site: one.root[:, :number] for site, one in posteriors.items() if roles[site] == "linear"}
    places = [site for site in posteriors if roles[site] == "place"]
    return {s: root.to(like) for s, root in linear.items()} | {
        site: posteriors[site].variance.sqrt().reshape(-1).to(like) for site in places
    }
