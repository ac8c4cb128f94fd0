"""M steps of compiled programs of graphs: those of rows, with symmetric sites learned by their entries on and above the
diagonal."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.compiled.blocks import Part
from custom_inference.compiled.graphs.structure import GraphStructure
from custom_inference.compiled.open_sites import OpenSites
from custom_inference.compiled.steps import Steps
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.conjugate.gamma import Gamma
from ppl_models import GraphModel


@dataclass(frozen=True, kw_only=True)
class GraphSteps(Steps):
    """The M step of the program of a graph.

    mirrored: the symmetric sites. whole: the model, whose priors of these are those of symmetric matrices; that of the
    steps has every entry for itself. apart: sites that have steps of their own.
    """

    mirrored: tuple[str, ...]
    whole: GraphModel
    apart: frozenset[str]

    @classmethod
    def of_graph(cls, model: GraphModel, structure: GraphStructure) -> GraphSteps:
        """Find which sites have closed forms."""
        whole = copy.copy(model)  # the model itself would be held for ever
        alone = copy.copy(model)
        object.__setattr__(alone, "pair_sites", ())
        found = Steps.of(alone, structure.entries, (structure.nodes, structure.dyads))
        own = {name: getattr(found, name) for name in ("model", "entries", "blocks", "units")}
        apart = frozenset(structure.propensities.ends) & set(model.unknown_sites)
        roles = {site: role for site, role in found.roles.items() if site not in apart} | dict.fromkeys(apart, "rate")
        climbing = tuple(site for site in found.climbing if site not in apart)
        return cls(**own, roles=roles, climbing=climbing, mirrored=structure.mirrored, whole=whole, apart=apart)

    def advance(
        self, state: Mapping[str, Tensor], statistics: Sequence[Tensor], rows: float, parts: Sequence[Part | None]
    ) -> dict[str, Tensor]:
        found = super().advance(state, statistics, rows, parts)
        held = {site: state[site] for site in self.apart}
        return {**found, **held, **{site: mirror(found[site]) for site in self.mirrored}}

    def log_prior(self, state: Mapping[str, Tensor]) -> Tensor:
        own, others = self._priced
        total = self.whole.log_prior(dict(state), others) if others else next(iter(state.values())).new_zeros(())
        return sum((self._log_density(site, state[site]) for site in own), total)

    def prior_of_rates(self, site: str, value: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return powers and rates (K, K) of the prior of a matrix of rates, of entries that are learned; None where it
        has no closed form."""
        if self.roles.get(site) != "rate" or site not in self.closed or value.ndim != 2:
            return None
        prior = self._pair(site, value)
        once = torch.ones_like(value).triu() if site in self.mirrored else torch.ones_like(value)
        return once * prior.powers, once * prior.rate

    def _log_density(self, site: str, value: Tensor) -> Tensor:
        if site not in self.mirrored:
            return super()._log_density(site, value)
        prior, (row, column) = self._pair(site, value), torch.triu_indices(*value.shape[:2])
        if type(prior) is Gamma:
            return prior.log_density(value).expand_as(value)[row, column].sum()
        if self.model.supports[site] is constraints.unit_interval:
            value = torch.stack([value, 1 - value], -1)
        return Dirichlet(prior.concentration.expand_as(value)[row, column]).log_density(value[row, column])

    def _climb(
        self, state: dict[str, Tensor], statistics: Sequence[Tensor], rows: float, parts: Sequence[Part | None]
    ) -> dict[str, Tensor]:
        state = {**state, **{site: mirror(state[site]) for site in self.mirrored}}
        return Steps._climb(replace(self, model=self.whole), state, statistics, rows, parts)

    def open_sites(
        self, state: dict[str, Tensor], statistics: Sequence[Tensor], parts: Sequence[Part | None],
        sites: tuple[str, ...] = (),
    ) -> OpenSites:  # fmt: skip
        state = {**state, **{site: mirror(state[site]) for site in self.mirrored}}
        return Steps.open_sites(replace(self, model=self.whole), state, statistics, parts, sites)


def mirror(value: Tensor) -> Tensor:
    """Return a matrix (K, K, ...) with the entries above its diagonal below it, too."""
    place = torch.arange(len(value))
    return value[torch.minimum(place[:, None], place), torch.maximum(place[:, None], place)]
