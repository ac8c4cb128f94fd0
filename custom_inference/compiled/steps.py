"""M steps of compiled programs: modes in closed form where the entries of globals have counts, else a climb.

With the expected features S (G, C, U, F) of every block, the expected log joint is linear in the natural parameters,

    Q(globals) = sum over blocks <S, natural(parameters(globals))>.

Sites that play one of the parts of ``counts`` everywhere have their modes in closed form under conjugate priors, by a
root under others; means of normals that are linear predictors of several sites solve one system. The other sites climb
Q plus their log prior by L-BFGS, from where they are.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, distributions
from torch.distributions import biject_to, constraints

from custom_inference.compiled.blocks import Block, Part
from custom_inference.compiled.counts import LEAST, Predictors, find_least, parts_in
from custom_inference.compiled.laws import COUNTED
from custom_inference.compiled.newton import Newton, find_mode, solve_scaled
from custom_inference.compiled.open_sites import OpenSites
from custom_inference.compiled.sources import Entries
from custom_inference.compiled.structure import Bound
from custom_inference.core.optimize.lbfgs import maximise
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.conjugate.gamma import Gamma
from custom_inference.families.conjugate.normal import Normal
from ppl_models import Model
from ppl_models.core.hierarchy import arguments_of, is_function
from ppl_models.core.priors import is_flat
from ppl_models.distributions import Flat

#: Probabilities are kept this far from 0 and 1.
FLOOR = 1e-6
#: Iterations of a climb in one M step.
_ITERATIONS = 6
#: Entries of linear predictors that are solved for together, at most.
_MOST_LINEAR = 1500
#: The part that entries play -> the supports of their sites, the priors under which it has a closed form, and whether
#: others, of single numbers, have a mode by a root.
_CONJUGATE: dict[str, tuple[Any, tuple[type, ...], bool]] = {
    "chance": (constraints.unit_interval, (distributions.Beta, Flat), True),
    "proportion": (constraints.simplex, (distributions.Dirichlet, Flat), False),
    "rate": (constraints.positive, (distributions.Gamma, distributions.Exponential, Flat), True),
    "place": (constraints.real, (distributions.Normal, Flat), True),
    "linear": (constraints.real, (distributions.Normal, Flat), False),
    "spread": (constraints.positive, (Flat,), True),
}


@dataclass(frozen=True)
class Steps:
    """The M step of a program.

    roles: site -> the part that its entries play, of sites with closed forms; the others of the sites that are
    learned, ``climbing``, are climbed.
    """

    model: Model
    entries: Entries
    blocks: tuple[Block, ...]
    roles: dict[str, str]
    climbing: tuple[str, ...]
    units: Mapping[str, Tensor | float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: Model, entries: Entries, blocks: Sequence[Block], units: Mapping[str, Tensor | float] | None = None
    ) -> Steps:
        """Find which sites have closed forms. units: of the entries of sites that climb."""
        parts = dict[str, set[str]]()
        for block in blocks:
            for site, part in parts_in(block, model, entries):
                parts.setdefault(site, set()).add(part)
        asked = {name for prior in model.priors.values() for name in arguments_of(prior)}
        roles: dict[str, str] = {}
        for site in model.unknown_sites:
            found, prior = parts.get(site, set()), model.priors[site]
            role = "linear" if found == {"place", "linear"} else next(iter(found)) if len(found) == 1 else ""
            support, families, others = _CONJUGATE.get(role, ("none", (), False))
            if site in asked or is_function(prior) or model.supports[site] is not support:
                continue
            if is_flat(prior) or issubclass(type(prior), families) or (others and prior.event_dim == 0):
                roles[site] = role
        if sum(torch.Size(entries.shapes[s]).numel() for s, role in roles.items() if role == "linear") > _MOST_LINEAR:
            roles = {site: role for site, role in roles.items() if role != "linear"}
        # Of a simplex of one, and of what nothing is said of under a flat prior, there is nothing to be learned.
        idle = {site for site in model.unknown_sites if site not in parts and is_flat(model.priors[site])}
        climbing = tuple(site for site in model.unknown_sites if site not in roles and site not in idle)
        return cls(model, entries, tuple(blocks), roles, climbing, units or {})

    def sites_in(self, *roles: str) -> list[str]:
        """The sites that play some parts."""
        return [site for site, role in self.roles.items() if role in roles]

    def advance(
        self, state: Mapping[str, Tensor], statistics: Sequence[Tensor], rows: float, parts: Sequence[Part | None]
    ) -> dict[str, Tensor]:
        """Return the values that raise Q plus the log prior, from the expected features of every block.

        rows: how many they are of. parts: what laws without features read of these.
        """
        found = dict(state)
        first = self.sites_in("chance", "proportion", "rate", "place")
        if first:
            sums = self._sums(statistics, found, first)
            found |= {site: self._mode(site, sums, found[site]) for site in first}
        linear, spread = self.sites_in("linear"), self.sites_in("spread")
        if linear:
            found |= self._solve(statistics, found, linear)
        if spread:
            sums = self._sums(statistics, found, spread)
            floors = self.entries.unflatten(self.find_floors(statistics, self.entries.flatten(found)))
            found |= {site: self._mode(site, sums, found[site], floors[site]) for site in spread}
        return self._climb(found, statistics, rows, parts) if self.climbing else found

    def find_floors(self, statistics: Sequence[Tensor], flat: Tensor) -> Tensor:
        """Find the least that entries may be which are standard deviations, (entries,)."""
        return find_least(self.blocks, statistics, flat)

    def log_prior(self, state: Mapping[str, Tensor]) -> Tensor:
        """Return the log density of the priors, in the basis in which modes are taken."""
        own, others = self._priced
        total = self.model.log_prior(dict(state), others) if others else next(iter(state.values())).new_zeros(())
        return sum((self._log_density(site, state[site]) for site in own), total)

    def _log_density(self, site: str, value: Tensor) -> Tensor:
        """Return the log density of a Dirichlet, Beta or Gamma prior in the basis of its mode."""
        prior = self._pair(site, value)
        if type(prior) is Gamma:
            return prior.log_density(value).expand_as(value).sum()
        beta = not issubclass(type(self.model.priors[site]), distributions.Dirichlet)
        return prior.log_density(torch.stack([value, 1 - value], -1) if beta else value).sum()

    @cached_property
    def _priced(self) -> tuple[list[str], list[str]]:
        """The sites whose priors are no constants: those that have a basis of their own, and the others."""
        found = [site for site in self.model.unknown_sites if not is_flat(self.model.priors[site])]
        based = (*self.sites_in("proportion", "chance", "rate"), *self.climbing)
        families = (distributions.Dirichlet, distributions.Beta, distributions.Gamma, distributions.Exponential)
        own = [site for site in found if site in based and issubclass(type(self.model.priors[site]), families)]
        return own, [site for site in found if site not in own]

    @cached_property
    def closed(self) -> frozenset[str]:
        """The sites whose priors have closed forms for the parts that they play."""
        pairs = [(site, self.model.priors[site], _CONJUGATE[role][1]) for site, role in self.roles.items()]
        return frozenset(site for site, prior, own in pairs if is_flat(prior) or issubclass(type(prior), own))

    def _pair(self, site: str, value: Tensor) -> Any:
        """The conjugate prior of a site, made once for values of a type: a Beta as the proportions of two."""
        key = site, value.dtype, value.device
        if key not in self._pairs:
            self._pairs[key] = self._make_pair(site, value)
        return self._pairs[key]

    def _make_pair(self, site: str, value: Tensor) -> Dirichlet | Gamma | Normal:
        prior, role = self.model.priors[site], self.roles.get(site)
        if role == "place":
            return Normal.of(self.model, site, tuple(value.shape), value)
        if role == "rate" or issubclass(type(prior), (distributions.Gamma, distributions.Exponential)):
            return Gamma.of(self.model, site, value)
        if issubclass(type(prior), distributions.Beta):
            return Dirichlet(torch.stack([prior.concentration1.to(value), prior.concentration0.to(value)], -1))
        if is_flat(prior):
            return Dirichlet(value.new_ones(2) if role == "chance" else torch.ones_like(value))
        return Dirichlet.of(self.model, site, value)

    @cached_property
    def _pairs(self) -> dict[tuple[object, ...], Any]:
        return {}

    @cached_property
    def belief_roles(self) -> dict[str, str]:
        """The parts that all sites play which are learned, where they have posteriors: of those that nothing is said of
        by their supports; "open" of sites without counts, and of what is said in one with these."""
        used, model = {site for block in self.blocks for site in block.sites}, self.model
        usual = {support: role for role, (support, *_) in reversed(_CONJUGATE.items())}
        found = {
            site: (self.roles.get(site, "") if site in used else usual.get(model.supports[site], "")) or "open"
            for site in model.unknown_sites
        }
        for block in [*self.blocks] * len(found):  # what is open may make others so
            unknown = block.sites & set(found)
            if any(found[site] == "open" for site in unknown):
                spread = block.sources[1].sites if block.law.by_value else frozenset[str]()
                apart = spread if all(found[s] != "open" for s in spread & unknown) else frozenset[str]()
                found |= dict.fromkeys(unknown - apart, "open")
        return found

    @cached_property
    def narrowest(self) -> dict[str, float | None]:
        """Sites of standard deviations -> the least that they may be, where some were so in the last M step."""
        return {}

    def _mode(self, site: str, sums: Mapping[str, Tensor], value: Tensor, floor: Tensor | None = None) -> Tensor:
        """Return the mode of the entries of a site; floor: of standard deviations."""
        role, model = self.roles[site], self.model
        own = [sums[name][self.entries.slices[site]].reshape(value.shape) for name in COUNTED[role]]
        if role == "spread":
            assert floor is not None
            found = torch.where(own[1] > 0, torch.maximum((own[0] / own[1]).sqrt(), floor), value)
            if site not in self.closed:
                found = find_mode(role, model.prior(site, like=value.double()), constraints.positive, own, value, floor)
            least = floor[(found <= 1.001 * floor) & (own[1] > 0.5)]
            self.narrowest[site] = float(least.max()) if len(least) else None
            return found
        if site not in self.closed:
            return find_mode(role, model.prior(site, like=value.double()), model.supports[site], own, value, None)
        prior = self._pair(site, value)
        if role == "chance":
            return prior.mode(torch.stack(own, -1), floor=FLOOR)[..., 0]
        if role == "proportion":
            return prior.mode(own[0], floor=FLOOR)
        if role == "rate":
            return prior.mode(own[0], own[1], floor=LEAST)
        precision = own[1] + prior.precision
        return torch.where(precision > 0, (own[0] + prior.precision * prior.mean) / precision, value)

    def _sums(
        self, statistics: Sequence[Tensor], state: Mapping[str, Tensor], sites: Sequence[str]
    ) -> dict[str, Tensor]:
        """Sum what is counted of every entry of some sites over all places where it stands; each name (entries,)."""
        flat = self.entries.flatten(state)
        total = {name: torch.zeros_like(flat) for site in sites for name in COUNTED[self.roles[site]]}
        for block, counted in zip(self.blocks, statistics, strict=True):
            if block.sites & set(sites):
                parameters = block.parameters(flat)
                said = block.law.say(counted, parameters)
                for name, source, part in block.take_apart(parameters):
                    if name in said and source.sites & set(sites):
                        source.count(said[name], part, flat, total)
        return total

    def _solve(
        self, statistics: Sequence[Tensor], state: Mapping[str, Tensor], sites: Sequence[str]
    ) -> dict[str, Tensor]:
        """Solve for the entries of linear predictors of the means of normals, together."""
        matrix, right = self.system(statistics, state, sites)
        # By steps from where they are, so that what nothing is said of stays.
        now = torch.cat([state[site].double().reshape(-1) for site in sites])
        solved = now + solve_scaled(matrix, right - matrix @ now)
        parts = solved.split([state[site].numel() for site in sites])
        return {site: part.reshape(state[site].shape).to(state[site]) for site, part in zip(sites, parts, strict=True)}

    def system(
        self, statistics: Sequence[Tensor], state: Mapping[str, Tensor], sites: Sequence[str]
    ) -> tuple[Tensor, Tensor]:
        """Return the matrix (L, L) and the right-hand side (L,) whose solution linear predictors have at the mode: the
        precision of their normal given the rest, and that times its mean."""
        flat, number = self.entries.flatten(state), sum(state[site].numel() for site in sites)
        matrix, right = torch.zeros(number, number, dtype=torch.float64), torch.zeros(number, dtype=torch.float64)
        for place, predictors in self.predictors.items():
            block = self.blocks[place]
            own = predictors.equations(block.law.say(statistics[place], block.parameters(flat))["loc"], flat)
            matrix, right = matrix + own[0], right + own[1]
        priors = [Normal.of(self.model, site, tuple(state[site].shape), state[site].double()) for site in sites]
        precision = torch.cat([prior.precision.reshape(-1) for prior in priors])
        right = right + precision * torch.cat([prior.mean.reshape(-1) for prior in priors])
        matrix = matrix + torch.diag(precision)
        return matrix, right

    @cached_property
    def predictors(self) -> dict[int, Predictors]:
        """The blocks that have means of normals which are solved for, by their places."""
        sites = self.sites_in("linear")
        column, start = torch.full((sum(torch.Size(s).numel() for s in self.entries.shapes.values()),), -1), 0
        for site in sites:
            part = self.entries.slices[site]
            column[part] = torch.arange(start, start := start + part.stop - part.start)
        return {
            place: Predictors.of(sums, column, start)
            for place, block in enumerate(self.blocks)
            if block.law.names[:1] == ("loc",) and block.sources[0].sites & set(sites)
            if (sums := block.sources[0].as_sums()) is not None
        }

    def _climb(
        self, state: dict[str, Tensor], statistics: Sequence[Tensor], rows: float, parts: Sequence[Part | None]
    ) -> dict[str, Tensor]:
        """Climb Q plus the log prior in the sites without closed forms, on unconstrained scales."""
        climb = self.open_sites(state, statistics, parts)
        if self.newton is not None:
            wide = [counted.double() for counted in statistics]
            return self.newton.climb(self.entries, self.blocks, wide, state, climb.log_prior)
        found, _ = maximise(lambda free: climb.density(free) / max(rows, 1.0), climb.start, _ITERATIONS)
        return {**state, **{site: value.to(state[site]) for site, value in climb.values(found).items()}}

    def open_sites(
        self, state: dict[str, Tensor], statistics: Sequence[Tensor], parts: Sequence[Part | None],
        sites: tuple[str, ...] = (),
    ) -> OpenSites:  # fmt: skip
        """Return Q plus the log prior as a function of some sites, by default of those without closed forms."""
        unknown = self.model.unknown_sites
        beside = [s for s in unknown if set(arguments_of(self.model.priors[s])) & set(self.climbing)]
        own, others = ([s for s in part if s in (*self.climbing, *beside)] for part in self._priced)

        def log_prior(values: dict[str, Tensor]) -> Tensor:
            like = next(iter(values.values()))
            total = self.model.log_prior(values, others) if others else like.new_zeros(())
            return sum((self._log_density(site, values[site]) for site in own), total)

        fixed = {site: value.double() for site, value in state.items()}
        like = next(iter(fixed.values())).new_zeros(0)
        involved = [
            (block.to(like), counted.double(), part if part is None or not block.is_direct else part.to(like))
            for block, counted, part in zip(self.blocks, statistics, parts, strict=True)
            if block.sites & set(sites or self.climbing)
        ]
        maps: dict[str, Any] = {s: biject_to(self.model.prior(s, values=fixed).support) for s in sites or self.climbing}
        units = {site: self.units.get(site, 1.0) for site in maps}
        return OpenSites(self.entries, fixed, involved, maps, units, log_prior)

    @cached_property
    def newton(self) -> Newton | None:
        """Newton steps for what is climbed, where all of it are linear predictors."""
        wide = next(iter(self.model.shapes), None)
        blocks = [block.to(torch.zeros(0, dtype=torch.float64)) for block in self.blocks]
        return None if wide is None else Newton.of(self.model, self.entries, blocks, self.climbing)


#: Model -> its M step on the rows that were read last.
_STEPS: weakref.WeakKeyDictionary[Model, Steps] = weakref.WeakKeyDictionary()


def steps_of(model: Model, rows: Bound) -> Steps:
    """Return the M step of a program on rows, found once."""
    structure, known = rows.structure, rows.steps
    if not structure.varying:  # else what rows are given makes blocks of their own
        known = structure.steps.setdefault(rows.like.dtype, weakref.WeakKeyDictionary())
    if model not in known:
        units = {site: structure.probe.unit_of(site) for site in structure.probe.spreads}
        own = copy.copy(model)  # the model itself would be held for ever
        known[model] = Steps.of(own, structure.entries, rows.blocks, units)
    _STEPS[model] = known[model]
    return _STEPS[model]


def steps_if_known(model: Model) -> Steps | None:
    """Return the M step of a program on the rows that were read last."""
    return _STEPS.get(model)
