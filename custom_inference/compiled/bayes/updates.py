"""Updates of the posteriors of a compiled program's globals by expected features of its blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.compiled.bayes.beliefs import expect_entries, update_conjugate, update_on_grid
from custom_inference.compiled.bayes.global_beliefs import GlobalBeliefs, moments_of, roots_of
from custom_inference.compiled.bayes.moments import Moments, expect_parameters, standing_parameters
from custom_inference.compiled.bayes.open_beliefs import climb_open
from custom_inference.compiled.laws import COUNTED, Said
from custom_inference.compiled.newton import solve_normal
from custom_inference.compiled.sources import Entries
from custom_inference.compiled.steps import Steps, steps_of
from custom_inference.compiled.structure import Bound, flatten
from custom_inference.core.posteriors import ContinuousPosterior, JointNormalPosterior
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
        roles, found = self.steps.belief_roles, dict[str, ContinuousPosterior]()
        linear, spread, opened = (
            [site for site in roles if roles[site] == role] for role in ("linear", "spread", "open")
        )
        found |= self._update([site for site in roles if site not in (*linear, *spread, *opened)], moments)
        if linear:
            found |= self._update_linear(linear, self._stand(found, before, params))
        if spread:
            whole = {**before, **found}
            known = all(site in whole for site in roles if site not in opened)
            moments = self._moments(whole) if known else _with_means(moments, found, roles)
            found |= self._update(spread, moments)
        if opened:
            start: dict[str, Any] = {site: before[site] if before else (params or {})[site] for site in opened}
            standing = self._stand(found, before, params)
            found |= climb_open(self.model, self.steps, self.rows, self.counted, standing, start, opened)
        return GlobalBeliefs.of_posteriors(_share_noise({site: found[site] for site in roles}, linear))

    def _stand(
        self, found: Mapping[str, ContinuousPosterior], before: Mapping[str, ContinuousPosterior], params: Params | None
    ) -> Params:
        """Return values of all sites that stand for their posteriors, those found or those before: means, and what has
        the expected precision."""
        standing = {site: value.double() for site, value in (params or {}).items()}
        for site, one in {**before, **found}.items():
            role = self.steps.belief_roles[site]
            said = expect_entries(one, role)
            standing[site] = (said["precision"].rsqrt() if role == "spread" else said["value"]).double()
        known = {site: value.double().expand(self.entries.shapes[site]) for site, value in self.model.known.items()}
        return {**standing, **known}

    def _update(self, sites: Sequence[str], moments: Moments) -> dict[str, ContinuousPosterior]:
        """Return the posteriors of sites with counts."""
        found, roles = {}, self.steps.belief_roles
        total = self._count(sites, roles, moments)
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
            for name, source, part in block.take_apart(divided):
                if name in said and source.sites & set(sites):
                    source.count(said[name], part, shares, total)
        return total

    def _update_linear(self, sites: Sequence[str], standing: Params) -> dict[str, ContinuousPosterior]:
        """Return the one normal of all sites of linear predictors."""
        mean, root = solve_normal(*self.steps.system(self.counted, standing, sites))
        shapes = [self.entries.shapes[site] for site in sites]
        sizes, like = [torch.Size(shape).numel() for shape in shapes], self.rows.like
        parts = zip(sites, shapes, mean.split(sizes), root.split(sizes), strict=True)
        return {
            site: JointNormalPosterior(own.reshape(shape).to(like), part.to(like)) for site, shape, own, part in parts
        }


def _with_variance(said: Said, variance: Tensor) -> Said:
    kind, (squares, number) = said
    return kind, (squares + variance * number, number)


def _with_means(moments: Moments, posteriors: Mapping[str, ContinuousPosterior], roles: Mapping[str, str]) -> Moments:
    """Return moments at values, but for the means of normals that have posteriors."""
    value, roots = moments.value.clone(), roots_of(posteriors, roles, moments.value)
    for site in roots:
        value[moments.spans[site]] = posteriors[site].mean.reshape(-1)
    return replace(moments, value=value, roots=roots)


def _share_noise(posteriors: Mapping[str, Any], linear: Sequence[str]) -> dict[str, ContinuousPosterior]:
    """Return the posteriors with roots of the same noise: first that of linear predictors, then that of the others."""
    together = {site: one for site, one in posteriors.items() if one.drawn_together}
    number = sum(len(one.root) for one in together.values())
    made = dict(posteriors)
    for site, one in together.items():
        blank = one.root.new_zeros(len(one.root), number - one.root.shape[1])
        made[site] = replace(one, root=torch.cat([one.root, blank] if site in linear else [blank, one.root], 1))
    return made
