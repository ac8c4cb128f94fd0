"""Updates of the posteriors of a compiled program's globals by expected features of its blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.compiled.bayes.beliefs import find_root, update_conjugate, update_joint, update_on_grid
from custom_inference.compiled.bayes.global_beliefs import GlobalBeliefs, moments_of, roles_of
from custom_inference.compiled.bayes.moments import Moments, expect_parameters, standing_parameters
from custom_inference.compiled.bayes.open_beliefs import climb_open, compare_spreads
from custom_inference.compiled.laws import COUNTED, Said
from custom_inference.compiled.sources import Entries
from custom_inference.compiled.steps import Steps, steps_of
from custom_inference.compiled.structure import Bound, flatten
from custom_inference.core.posteriors import ContinuousPosterior
from custom_inference.core.states import Params
from ppl_models import Model


@dataclass(frozen=True)
class Updates:
    """Updates of the posteriors of all sites by the expected features of every block."""

    model: Model
    rows: Bound
    counted: Sequence[Tensor]

    @property
    def steps(self) -> Steps:
        return steps_of(self.model, self.rows)

    @cached_property
    def roles(self) -> dict[str, str]:
        return roles_of(self.model, self.steps)

    @property
    def entries(self) -> Entries:
        return self.rows.structure.entries

    def begin(self, params: Params) -> GlobalBeliefs:
        """Return the posteriors given expected features at values of the globals."""
        flat, model = flatten(self.rows, params), self.model
        chance = torch.zeros_like(flat, dtype=torch.bool)
        for site, part in self.entries.slices.items():
            chance[part] = model.supports[site] in (constraints.unit_interval, constraints.simplex)
        rest = torch.where(chance, torch.log1p(-flat), torch.nan)
        unknown = frozenset(model.unknown_sites)
        moments = Moments(flat, torch.log(flat), rest, flat**-2, {}, unknown, self.entries.slices)
        return self._advance({}, moments, params)

    def advance(self, state: GlobalBeliefs) -> GlobalBeliefs:
        """Return the posteriors given expected features under those of a state."""
        return self._advance(state.posteriors(self.model), self._moments(state.posteriors(self.model)))

    def _moments(self, posteriors: Mapping[str, ContinuousPosterior]) -> Moments:
        state = GlobalBeliefs.of_posteriors(posteriors)
        return moments_of(self.model, self.entries, state, self.steps, self.rows.like)

    def _advance(
        self, before: Mapping[str, ContinuousPosterior], moments: Moments, params: Params | None = None
    ) -> GlobalBeliefs:
        """params: values to begin at, where there are no posteriors before."""
        roles = self.roles
        found = dict[str, ContinuousPosterior]()
        every = [site for site in roles if roles[site] not in ("linear", "spread", "open")]
        found |= self._update(every, roles, moments)
        for site in (site for site in roles if roles[site] == "linear"):
            moments = self._moments({**before, **found}) if before else moments
            found[site] = self._update_linear(site, moments)
        spread = [site for site in roles if roles[site] == "spread"]
        if spread:
            whole = {**before, **found}
            known = all(site in whole for site in roles if roles[site] != "open")
            moments = self._moments(whole) if known else _with_means(moments, found)
            found |= self._update(spread, roles, moments)
        opened = [site for site in roles if roles[site] == "open"]
        if opened:
            found |= self._climb(opened, found, before, params)
        return GlobalBeliefs.of_posteriors({site: found[site] for site in roles})

    def _climb(
        self, sites: list[str], found: Mapping[str, ContinuousPosterior], before: Mapping[str, ContinuousPosterior],
        params: Params | None,
    ) -> dict[str, ContinuousPosterior]:  # fmt: skip
        """Climb the bound in sites without counts; of the others what stands for their posteriors is held."""
        moments = self._moments(found) if found else None
        standing = {site: value.double() for site, value in (params or {}).items()}
        standing |= {site: one.mean.double() for site, one in before.items()}
        for site, one in found.items():
            standing[site] = one.mean.double()
            if self.roles[site] == "spread" and moments is not None:
                precision = moments.precision[self.entries.slices[site]].reshape(self.entries.shapes[site])
                standing[site] = precision.rsqrt().double()
        standing |= {site: value.double().expand(self.entries.shapes[site]) for site, value in self.model.known.items()}
        start = {site: before[site] if site in before else standing[site] for site in sites}
        return climb_open(self.model, self.steps, self.rows, self.counted, standing, start, sites)

    def _update(
        self, sites: Sequence[str], roles: Mapping[str, str], moments: Moments
    ) -> dict[str, ContinuousPosterior]:
        """Return the posteriors of sites with counts."""
        total = self._count(sites, roles, moments)
        found = {}
        for site in sites:
            shape, role = self.entries.shapes[site], roles[site]
            own = {name: total[name][self.entries.slices[site]].reshape(shape) for name in COUNTED[role]}
            plain = role != "spread" and (site in self.steps.closed or site not in self.steps.roles)
            update = update_conjugate if plain else update_on_grid
            found[site] = update(self.model, site, role, own)
        return found

    def _count(self, sites: Sequence[str], roles: Mapping[str, str], moments: Moments) -> dict[str, Tensor]:
        """Sum what is counted of every entry of some sites over all places where it stands."""
        like = moments.value
        total = {name: torch.zeros_like(like) for site in sites for name in COUNTED[roles[site]]}
        shares = torch.where(moments.shares.isnan(), moments.value, moments.shares)
        for block, counted in zip(self.rows.blocks, self.counted, strict=True):
            if not block.sites & set(sites):
                continue
            said = block.law.say(counted, standing_parameters(block, moments))
            divided = standing_parameters(block, moments, shares=True)
            if block.law.by_value:
                said["scale"] = _with_variance(said["scale"], expect_parameters(block, moments)["loc"][1])
            sizes = [max(size, 1) for size in block.law.sizes]
            for name, source, part in zip(block.law.names, block.sources, divided.split(sizes, -1), strict=True):
                if name in said and source.sites & set(sites):
                    source.count(said[name], part, shares, total)
        return total

    def _update_linear(self, site: str, moments: Moments) -> ContinuousPosterior:
        """Return the normal of a site of linear predictors, given the means of the others."""
        column, size, names = self._columns(site)
        matrix = torch.zeros(size, size, dtype=torch.float64)
        right = torch.zeros(size, dtype=torch.float64)
        for place, predictors in self.steps.predictors.items():
            block = self.rows.blocks[place]
            if site not in block.sites:
                continue
            said = block.law.say(self.counted[place], standing_parameters(block, moments))["loc"]
            whole, pull = predictors.equations(said, moments.value)
            others = torch.cat([moments.value[self.entries.slices[name]] for name in names]).double()
            own = column
            matrix += whole[own, own]
            keep = others.clone()
            keep[own] = 0
            right += pull[own] - (whole @ keep)[own]
        if len(names) > 1:
            self._note_dependence(names, moments)
        like = self.rows.like.new_zeros(self.entries.shapes[site])
        return update_joint(self.model, site, matrix, right, like)

    def _note_dependence(self, names: Sequence[str], moments: Moments) -> None:
        """Note by how much the sites of linear predictors depend on each other, which their posteriors do not know."""
        state = {s: moments.value[part].reshape(self.entries.shapes[s]) for s, part in self.entries.slices.items()}
        matrix = self.steps.system(self.counted, state, names)[0]
        sizes = {name: state[name].numel() for name in names}
        self.steps.dependence.update(compare_spreads(matrix, sizes, joint=True))

    def _columns(self, site: str) -> tuple[slice, int, list[str]]:
        """Return which unknowns of the linear system a site has, how many these are, and the sites of all."""
        names, start = self.steps.sites_in("linear"), 0
        sizes = {name: torch.Size(self.entries.shapes[name]).numel() for name in names}
        for name in names:
            if name == site:
                break
            start += sizes[name]
        return slice(start, start + sizes[site]), sizes[site], names


def _with_variance(said: Said, variance: Tensor) -> Said:
    kind, (squares, number) = said
    return kind, (squares + variance * number, number)


def _with_means(moments: Moments, posteriors: Mapping[str, ContinuousPosterior]) -> Moments:
    """Return moments at values, but for what has posteriors."""
    value, roots = moments.value.clone(), dict(moments.roots)
    for site, one in posteriors.items():
        root = find_root(one)
        if root is not None:
            value[moments.spans[site]] = one.mean.reshape(-1)
            roots[site] = root
    return Moments(value, moments.log, moments.rest, moments.precision, roots, moments.unknown, moments.spans)
