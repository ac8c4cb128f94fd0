"""Variational Bayes of a compiled program: posteriors over its globals, exact ones of the latents of every row.

    q = prod over sites q(site) prod_n q(latents of row n),
    log p(x) >= sum_n log sum over latents exp(E[log factors]) - sum over sites KL(q(site) || p(site)).

Latents are summed out by elimination as in exact EM, with expected natural parameters in place of those at values
(``moments``); the statistics are the same, and give every site its best posterior (``beliefs``). Linear predictors of
normals have one normal a site. Sites that are neither of these have no steps here (Attias, UAI 1999; Winn & Bishop,
*Variational message passing*, JMLR 6, 2005).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.compiled.beliefs import (
    diverge,
    expect_entries,
    find_root,
    update_conjugate,
    update_joint,
    update_on_grid,
)
from custom_inference.compiled.engine import CompiledExact
from custom_inference.compiled.expectations import solve_at
from custom_inference.compiled.laws import COUNTED, NormalLaw
from custom_inference.compiled.moments import Moments, expect_natural, expect_parameters, standing_parameters
from custom_inference.compiled.posterior import FactorPosterior
from custom_inference.compiled.sources import Entries
from custom_inference.compiled.steps import Steps, steps_of
from custom_inference.compiled.structure import Bound, flatten
from custom_inference.core.engine import EStep, InitialStep, Objective, Params, Warm
from custom_inference.core.posteriors import POSTERIORS, ContinuousPosterior, LocalPosterior
from custom_inference.core.states import State
from custom_inference.em.rows import FitRows
from ppl_models import MethodError, Model, PriorError
from ppl_models.core.priors import is_flat

#: Iterations of exact EM before variational Bayes: the expected logarithms of what a value has not yet seen are so low
#: that few rows move.
_EXACT_FIRST = 15
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


@dataclass(frozen=True, kw_only=True)
class CompiledVB(CompiledExact):
    """Variational Bayes over the globals, exact sums over latents."""

    integrates_globals = True
    name = "vb"
    objective: ClassVar[Objective] = "bound"
    accelerate = None
    state: ClassVar[type[State]] = GlobalBeliefs

    def local(self) -> CompiledExact:
        """Return the exact engine at given values of the globals."""
        return CompiledExact()

    def rows(self, model: Model, data: Any) -> Bound:
        """Read the rows. Raises NotCompiled where the program is no product of factors; MethodError for sites without
        steps; PriorError for improper priors."""
        rows = super().rows(model, data)
        self.check(model, rows)
        return rows

    def check(self, model: Model, rows: Bound) -> None:
        name, roles = type(model).__name__, roles_of(model, steps_of(model, rows))
        for site in model.unknown_sites:
            if site not in roles:
                raise MethodError(
                    f"variational Bayes has no steps for '{site}' of {name}, whose entries are neither probabilities, "
                    "rates, means and standard deviations by themselves nor linear predictors of normals under a "
                    "normal prior; expected method='gibbs', 'svi_normal' or 'nuts', or a prior by which it is known"
                )
            if is_flat(model.priors[site]) and roles[site] not in ("chance", "proportion"):
                found = f"the prior of '{site}' of {name} is improper (Flat)"
                raise PriorError(f"{found}; expected a proper one, or use EM")

    def e_step(
        self, model: Model, state: Any, rows: Bound, warm: Warm = None, *, temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        return solve_at(self._naturals(model, state, rows), rows, None, temperature)

    def e_step_weighted(
        self, model: Model, state: Any, rows: Bound, weights: Tensor, warm: Warm = None, *, temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        return solve_at(self._naturals(model, state, rows), rows, weights, temperature)

    def _naturals(self, model: Model, state: GlobalBeliefs, rows: Bound) -> list[Tensor]:
        moments = moments_of(model, rows.structure.entries, state, steps_of(model, rows), rows.like)
        return [expect_natural(block, moments) for block in rows.blocks]

    def m_step(self, model: Model, state: Any, step: EStep, rows: Bound | FitRows) -> Any:
        own: Any = getattr(rows, "first_rows", rows)  # of blocks the first, which is as all are
        counted = self.counted(own, step)
        updates = Updates(model, own, counted)
        return updates.advance(state)

    def from_point(self, model: Model, params: Params, rows: Any, e_step: InitialStep) -> GlobalBeliefs:
        """Return the posteriors of the globals after one exact E step at their given values."""
        own: Any = getattr(rows, "first_rows", rows)
        return Updates(model, own, self.counted(own, e_step())).begin(params)

    def prior_term(self, model: Model, state: Any) -> Tensor:
        terms = [-diverge(model, site, one) for site, one in state.posteriors(model).items()]
        return sum(terms[1:], terms[0])

    def canonical(self, model: Model, params: Any, locals_: Params) -> tuple[Any, Params]:
        return params, locals_

    def suggest_tolerance(self, model: Model, num_rows: int) -> float:
        return 1e-6

    def posterior(self, model: Model, state: Any, rows: Bound, step: EStep | None = None) -> LocalPosterior:
        flat = flatten(rows, state.values(model))
        return FactorPosterior.of(rows, flat, self._naturals(model, state, rows))

    def log_evidence(self, model: Model, params: Params, rows: Bound) -> Tensor:
        return CompiledExact().log_evidence(model, params, rows)

    def initial(self, model: Model, rows: Bound, generator: torch.Generator) -> Any:
        return self.start_from(model, self.local().initial(model, rows, generator), rows)

    def propose(self, model: Model, rows: Bound, generator: torch.Generator, attempt: int) -> Any:
        """Start with some iterations of the exact engine."""
        exact = self.local()
        params = exact.propose(model, rows, generator, attempt)
        for _ in range(_EXACT_FIRST):
            params = exact.m_step(model, params, exact.e_step(model, params, rows), rows)
        return self.start_from(model, params, rows)

    def refine(self, model: Model, rows: Bound, params: Any, generator: torch.Generator, agreed: bool) -> Any:
        """Move places of the exact engine's solution; go back where that does not help."""
        moved = self.local().refine(model, rows, params.values(model), generator, agreed)
        other = self.start_from(model, moved, rows)
        for _ in range(_EXACT_FIRST):
            other = self.m_step(model, other, self.e_step(model, other, rows), rows)
        before, after = (self.objective_at(model, one, self.e_step(model, one, rows).bound) for one in (params, other))
        return other if after > before else params

    def same_solution(self, model: Model, first: Any, second: Any) -> bool:
        return super().same_solution(model, first.values(model), second.values(model))


def roles_of(model: Model, steps: Steps) -> dict[str, str]:
    """Return the part that every site plays that has steps; of those that nothing is said of by their supports."""
    used = {site for block in steps.blocks for site in block.sites}
    found = {}
    for site in model.unknown_sites:
        role = steps.roles.get(site, "")
        if site not in used:
            role = next((own for support, own in _UNUSED.items() if model.sites[site].support is support), "")
        if role:
            found[site] = role
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
        if model.sites[site].support in (constraints.unit_interval, constraints.simplex):
            value["rest"][entries.slices[site]] = torch.log1p(-number)
        value["precision"][entries.slices[site]] = number**-2
    for site, posterior in posteriors.items():
        for name, moment in expect_entries(roles[site], posterior).items():
            value[name][entries.slices[site]] = moment.to(like).reshape(-1)
    roots = {
        site: root.to(like)
        for site, one in posteriors.items()
        if roles[site] in ("place", "linear") and (root := find_root(one)) is not None
    }
    return Moments(**value, roots=roots, unknown=frozenset(posteriors), spans=entries.slices)


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
            chance[part] = model.sites[site].support in (constraints.unit_interval, constraints.simplex)
        rest = torch.where(chance, torch.log1p(-flat), torch.nan)
        unknown = frozenset(model.unknown_sites)
        return self._advance({}, Moments(flat, torch.log(flat), rest, flat**-2, {}, unknown, self.entries.slices))

    def advance(self, state: GlobalBeliefs) -> GlobalBeliefs:
        """Return the posteriors given expected features under those of a state."""
        return self._advance(state.posteriors(self.model), self._moments(state.posteriors(self.model)))

    def _moments(self, posteriors: Mapping[str, ContinuousPosterior]) -> Moments:
        state = GlobalBeliefs.of_posteriors(posteriors)
        return moments_of(self.model, self.entries, state, self.steps, self.rows.like)

    def _advance(self, before: Mapping[str, ContinuousPosterior], moments: Moments) -> GlobalBeliefs:
        roles = roles_of(self.model, self.steps)
        found = dict[str, ContinuousPosterior]()
        every = [site for site in roles if roles[site] not in ("linear", "spread")]
        found |= self._update(every, roles, moments)
        for site in (site for site in roles if roles[site] == "linear"):
            moments = self._moments({**before, **found}) if before else moments
            found[site] = self._update_linear(site, moments)
        spread = [site for site in roles if roles[site] == "spread"]
        if spread:
            whole = {**before, **found}
            moments = self._moments(whole) if set(whole) == set(roles) else _with_means(moments, found)
            found |= self._update(spread, roles, moments)
        return GlobalBeliefs.of_posteriors(found)

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
            if isinstance(block.law, NormalLaw):
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
        like = self.rows.like.new_zeros(self.entries.shapes[site])
        return update_joint(self.model, site, matrix, right, like)

    def _columns(self, site: str) -> tuple[slice, int, list[str]]:
        """Return which unknowns of the linear system a site has, how many these are, and the sites of all."""
        names, start = self.steps.sites_in("linear"), 0
        sizes = {name: torch.Size(self.entries.shapes[name]).numel() for name in names}
        for name in names:
            if name == site:
                break
            start += sizes[name]
        return slice(start, start + sizes[site]), sizes[site], names


def _with_variance(said: Any, variance: Tensor) -> Any:
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
