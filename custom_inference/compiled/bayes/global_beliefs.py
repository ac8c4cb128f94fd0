"""The state of variational Bayes of a compiled program: posteriors of its globals, and their moments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.compiled.bayes.beliefs import expect_entries, find_root
from custom_inference.compiled.bayes.moments import Moments
from custom_inference.compiled.bayes.open_beliefs import draw_free, transform_of
from custom_inference.compiled.sources import Entries
from custom_inference.compiled.steps import Steps
from custom_inference.core.posteriors import POSTERIORS, ContinuousPosterior
from custom_inference.core.states import Params, State
from ppl_models import Model

#: The part that entries of a support play where nothing is said of them.
_UNUSED = {
    constraints.unit_interval: "chance", constraints.simplex: "proportion", constraints.positive: "rate",
    constraints.real: "place",
}  # fmt: skip


@dataclass(frozen=True)
class GlobalBeliefs(State):
    """Posteriors of the globals: parts: "site/Kind/parameter" -> its tensor."""

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


def roles_of(model: Model, steps: Steps) -> dict[str, str]:
    """Return the part that every site plays that has a posterior; of those that nothing is said of by their supports;
    "open" of sites without counts, and of what is said in one with these."""
    used = {site for block in steps.blocks for site in block.sites}
    found = {}
    for site in model.unknown_sites:
        role = steps.roles.get(site, "")
        if site not in used:
            role = next((own for support, own in _UNUSED.items() if model.supports[site] is support), "")
        found[site] = role or "open"
    for block in [*steps.blocks] * len(found):  # what is open may make others so
        unknown = block.sites & set(found)
        if any(found[site] == "open" for site in unknown):
            apart = set[str]()
            if block.law.by_value and all(found[s] != "open" for s in block.sources[1].sites & unknown):
                apart = set(block.sources[1].sites)
            found |= dict.fromkeys(unknown - apart, "open")
    return found


def moments_of(model: Model, entries: Entries, state: GlobalBeliefs, steps: Steps, like: Tensor) -> Moments:
    """Return the moments of all entries under the posteriors of a state."""
    roles, posteriors = roles_of(model, steps), state.posteriors(model)
    size = sum(torch.Size(shape).numel() for shape in entries.shapes.values())
    value = {name: like.new_full((max(size, 1),), torch.nan) for name in ("value", "log", "rest", "precision")}
    for site, number in model.known.items():
        number = number.to(like).expand(entries.shapes[site]).reshape(-1)
        value["value"][entries.slices[site]] = number
        value["log"][entries.slices[site]] = torch.log(number)
        if model.supports[site] in (constraints.unit_interval, constraints.simplex):
            value["rest"][entries.slices[site]] = torch.log1p(-number)
        value["precision"][entries.slices[site]] = number**-2
    opened = [site for site in posteriors if roles[site] == "open"]
    for site, posterior in posteriors.items():
        for name, moment in expect_entries(posterior, roles[site]).items():
            value[name][entries.slices[site]] = moment.to(like).reshape(-1)
    roots = {
        site: root.to(like)
        for site, one in posteriors.items()
        if roles[site] in ("place", "linear") and (root := find_root(one)) is not None
    }
    draws = _draw_entries(model, entries, value["value"], {site: posteriors[site] for site in opened})
    return Moments(
        **value, roots=roots, unknown=frozenset(posteriors), spans=entries.slices, open=frozenset(opened), draws=draws
    )


def _draw_entries(model: Model, entries: Entries, value: Tensor, posteriors: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Return values of all entries at the fixed draws of some sites."""
    drawn = {site: transform_of(model, site)(draw_free(one.location, one.scale)) for site, one in posteriors.items()}
    found = []
    for number in range(len(next(iter(drawn.values()))) if drawn else 0):
        flat = value.clone()
        for site, own in drawn.items():
            flat[entries.slices[site]] = own[number].to(flat).reshape(-1)
        found.append(flat)
    return tuple(found)
