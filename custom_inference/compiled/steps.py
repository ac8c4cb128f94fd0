"""M steps of compiled programs: modes in closed form where entries of globals are selected, else a climb.

With the expected features S (G, C, U, F) of every block, the expected log joint is linear in the natural parameters,

    Q(globals) = sum over blocks <S, natural(parameters(globals))>.

Where the parameters of exponential families are entries, Q is a sum of count log(entry), count log(1 - entry), events
log(entry) - exposure entry, or of squares: under conjugate priors each entry has its mode in closed form, from sums of S
over all places where it stands. The other sites climb Q plus their log prior by L-BFGS, from where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributions
from torch.distributions import biject_to, constraints

from custom_inference.compiled.blocks import Block
from custom_inference.compiled.laws import (
    BernoulliLaw,
    CategoricalLaw,
    ExponentialLaw,
    NormalLaw,
    PoissonLaw,
    ZeroInflatedPoissonLaw,
    clamped,
)
from custom_inference.compiled.sources import Entries, EntrySource
from custom_inference.core.optimize.lbfgs import maximise
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.conjugate.gamma import Gamma
from custom_inference.families.conjugate.normal import Normal
from ppl_models import Model
from ppl_models.core.hierarchy import arguments_of, is_function
from ppl_models.core.priors import is_flat
from ppl_models.distributions import Flat

#: Probabilities are kept this far from 0, rates and scales above it.
FLOOR = 1e-6
#: Iterations of a climb in one M step.
_ITERATIONS = 12

#: What is counted of an entry, by the part that it plays: of probabilities, of points of simplexes, of rates, of means
#: of normals, of their standard deviations.
Roles = dict[str, str]
#: The names of what is summed, in every role.
_COUNTED = {
    "chance": ("on", "off"), "proportion": ("count",), "rate": ("events", "exposure"), "place": ("pull", "precision"),
    "spread": ("squares", "number"),
}  # fmt: skip
#: Support of a site -> the part that its entries may play, and the priors under which that has a closed form.
_PARTS: dict[Any, tuple[str, tuple[type, ...]]] = {
    constraints.unit_interval: ("chance", (distributions.Beta,)),
    constraints.simplex: ("proportion", (distributions.Dirichlet,)),
    constraints.positive: ("rate", (distributions.Gamma, distributions.Exponential)),
    constraints.real: ("place", (distributions.Normal,)),
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
    roles: Roles
    climbing: tuple[str, ...]

    @classmethod
    def of(cls, model: Model, entries: Entries, blocks: Sequence[Block]) -> Steps:
        """Find which sites have closed forms."""
        free, parts = list(model.unknown_sites), dict[str, set[str]]()
        for block in blocks:
            for site, role in _parts_in(block, model, entries):
                parts.setdefault(site, set()).add(role)
        asked = {name for prior in model.priors.values() for name in arguments_of(prior)}
        roles = {}
        for site in free:
            found, prior = parts.get(site, {"none"}), model.priors[site]
            role = next(iter(found)) if len(found) == 1 else "mixed"
            if site not in asked and not is_function(prior) and _is_conjugate(role, model.sites[site].support, prior):
                roles[site] = role
        climbing = tuple(site for site in free if site not in roles)
        return cls(model, entries, tuple(blocks), roles, climbing)

    def advance(self, state: Mapping[str, Tensor], statistics: Sequence[Tensor], rows: float) -> dict[str, Tensor]:
        """Return the values that raise Q plus the log prior, from the expected features of every block."""
        found = dict(state)
        flat = self.entries.flatten(found)
        places = [site for site, role in self.roles.items() if role != "spread"]
        sums = self._sums(statistics, flat)
        found |= {site: self._mode(site, sums, found[site]) for site in places}
        if any(role == "spread" for role in self.roles.values()):
            sums = self._sums(statistics, self.entries.flatten(found))
            found |= {s: self._mode(s, sums, found[s]) for s, role in self.roles.items() if role == "spread"}
        return self._climb(found, statistics, rows) if self.climbing else found

    def log_prior(self, state: Mapping[str, Tensor]) -> Tensor:
        """Return the log density of the priors, in the basis in which modes are taken."""
        total = self.model.log_prior(dict(state), self.climbing)
        for site, role in self.roles.items():
            value = state[site]
            if role == "proportion" and not isinstance(self.model.priors[site], Flat):
                total = total + Dirichlet.of(self.model, site, value).log_density(value).sum()
            elif role == "chance":
                both = torch.stack([value, 1 - value], -1)
                total = total + self._beta(site, value).log_density(both).sum()
            elif role == "rate":
                total = total + Gamma.of(self.model, site, value).log_density(value).expand_as(value).sum()
            elif role == "place":
                total = total + self.model.log_prior(dict(state), [site])
        return total

    def _beta(self, site: str, like: Tensor) -> Dirichlet:
        """A Beta prior as that of the proportions of two."""
        prior = self.model.priors[site]
        if is_flat(prior):
            return Dirichlet(like.new_ones(2))
        both = torch.stack([prior.concentration1.to(like), prior.concentration0.to(like)], -1)
        return Dirichlet(both)

    def _mode(self, site: str, sums: Mapping[str, Tensor], value: Tensor) -> Tensor:
        """Return the mode of the entries of a site."""
        role, model = self.roles[site], self.model
        own = [sums[name][self.entries.slices[site]].reshape(value.shape) for name in _COUNTED[role]]
        if role == "chance":
            return self._beta(site, value).mode(torch.stack(own, -1), floor=FLOOR)[..., 0]
        if role == "proportion":
            flat = isinstance(model.priors[site], Flat)
            prior = Dirichlet(torch.ones_like(value)) if flat else Dirichlet.of(model, site, value)
            return prior.mode(own[0], floor=FLOOR)
        if role == "rate":
            return Gamma.of(model, site, value).mode(own[0], own[1], floor=1e-9)
        if role == "place":
            prior = Normal.of(model, site, value.shape, value)
            precision = own[1] + prior.precision
            moved = (own[0] + prior.precision * prior.mean) / precision
            return torch.where(precision > 0, moved, value)
        return torch.where(own[1] > 0, (own[0] / own[1].clamp(min=1e-30)).clamp(min=1e-12).sqrt(), value)

    def _sums(self, statistics: Sequence[Tensor], flat: Tensor) -> dict[str, Tensor]:
        """Sum what is counted of every entry over all places where it stands; each name (entries,)."""
        names = {name for role in self.roles.values() for name in _COUNTED[role]}
        total = {name: torch.zeros_like(flat) for name in names}
        for block, counted in zip(self.blocks, statistics, strict=True):
            if block.source.sites & set(self.roles):
                _count(block, counted, flat, total)
        return total

    def _climb(self, state: dict[str, Tensor], statistics: Sequence[Tensor], rows: float) -> dict[str, Tensor]:
        """Climb Q plus the log prior in the sites without closed forms, on unconstrained scales."""
        involved = [
            (block, counted.double())
            for block, counted in zip(self.blocks, statistics, strict=True)
            if block.source.sites & set(self.climbing)
        ]
        fixed = {site: value.double() for site, value in state.items()}
        maps: dict[str, Any] = {
            site: biject_to(self.model.prior(site, values=fixed).support) for site in self.climbing
        }
        start = {site: maps[site].inv(fixed[site]) for site in self.climbing}
        if not all(bool(value.isfinite().all()) for value in start.values()):
            start = {site: value.nan_to_num(0.0, 20.0, -20.0) for site, value in start.items()}
        wide = involved[0][1].new_zeros(0) if involved else next(iter(start.values()))
        doubled = [(block.to(wide), counted) for block, counted in involved]

        def objective(free: dict[str, Tensor]) -> Tensor:
            values = {**fixed, **{site: maps[site](value) for site, value in free.items()}}
            flat = self.entries.flatten(values)
            terms = [(block.natural(flat) * counted).sum() for block, counted in doubled]
            try:
                prior = self.model.log_prior(values, (*self.climbing, *self._beside))
            except ValueError:
                return flat.new_tensor(torch.inf)
            return sum(terms, prior) / max(rows, 1.0)

        found, _ = maximise(objective, start, _ITERATIONS)
        return {**state, **{site: maps[site](value).to(state[site]) for site, value in found.items()}}

    @property
    def _beside(self) -> tuple[str, ...]:
        """Sites whose priors depend on those that are climbed."""
        return tuple(s for s in self.model.unknown_sites if set(arguments_of(self.model.priors[s])) & set(self.climbing))


def _is_conjugate(role: str, support: Any, prior: Any) -> bool:
    """Whether the entries of a site that play a part have a closed form under a prior."""
    if role == "none" or role == "mixed":
        return False
    if role == "spread":
        return is_flat(prior) or isinstance(prior, Flat)
    own, families = _PARTS.get(support, ("", ()))
    return own == role and (is_flat(prior) or isinstance(prior, (*families, Flat)))


def _parts_in(block: Block, model: Model, entries: Entries) -> Iterable[tuple[str, str]]:
    """The parts that the entries of sites play in a block: "mixed" where they have no closed form there."""
    source = block.source
    if not isinstance(source, EntrySource):
        yield from ((site, "mixed") for site in source.sites)
        return
    for site, part in entries.slices.items():
        if site not in source.sites:
            continue
        support = model.sites[site].support
        for place in range(source.index.shape[-1]):
            used = (source.slope[..., place] != 0) & (source.index[..., place] >= part.start)
            used &= source.index[..., place] < part.stop
            if bool(used.any()):
                pair = source.shift[..., place][used], source.slope[..., place][used]
                yield site, _part(block, place, support, *pair)


def _part(block: Block, place: int, support: Any, shift: Tensor, slope: Tensor) -> str:
    """The part that entries play as a parameter of a law, each as shift + slope entry."""
    law = block.law
    plain, turned = (shift == 0) & (slope == 1), (shift == 1) & (slope == -1)
    if isinstance(law, CategoricalLaw | BernoulliLaw) and law.names == ("probs",):
        if support is constraints.unit_interval and bool((plain | turned).all()):
            return "chance"
        if support is constraints.simplex and isinstance(law, CategoricalLaw) and bool(plain.all()):
            return "proportion"
    if isinstance(law, ZeroInflatedPoissonLaw) and place == 1:
        return "chance" if support is constraints.unit_interval and bool((plain | turned).all()) else "mixed"
    if isinstance(law, PoissonLaw | ExponentialLaw | ZeroInflatedPoissonLaw) and place == 0:
        return "rate" if support is constraints.positive and bool(((shift == 0) & (slope > 0)).all()) else "mixed"
    if isinstance(law, NormalLaw):
        if place == 0 and support is constraints.real:
            return "place"
        if place == 1 and support is constraints.positive and bool(((shift == 0) & (slope > 0)).all()):
            return "spread"
    return "mixed"


def _count(block: Block, counted: Tensor, flat: Tensor, total: dict[str, Tensor]) -> None:
    """Add what a block counts of entries (G, C, U, F) to the totals."""
    source, law = block.source, block.law
    if not isinstance(source, EntrySource):
        return
    here = source.slope != 0

    def add(name: str, place: int, value: Tensor, where: Tensor | None = None) -> None:
        if name in total:
            used = here[..., place] if where is None else where & here[..., place]
            total[name] = total[name].index_add(0, source.index[..., place][used], value[used].to(flat))

    def chance(place: int, on: Tensor, off: Tensor) -> None:
        turned = source.slope[..., place] < 0
        add("on", place, torch.where(turned, off, on))
        add("off", place, torch.where(turned, on, off))

    parameters = source.parameters(flat)
    if isinstance(law, CategoricalLaw):
        none = torch.zeros_like(counted[..., 0])
        for place in range(counted.shape[-1]):
            add("count", place, counted[..., place])
            chance(place, counted[..., place], none)
    elif isinstance(law, BernoulliLaw):
        on, off = counted.unbind(-1)
        chance(0, on, off)
    elif isinstance(law, PoissonLaw | ExponentialLaw):
        add("events", 0, counted[..., 0])
        add("exposure", 0, source.slope[..., 0] * counted[..., 1])
    elif isinstance(law, ZeroInflatedPoissonLaw):
        zero, events, rest = counted.unbind(-1)
        rate, gate = parameters.unbind(-1)
        gate = clamped(gate)
        excess = zero * gate / (gate + (1 - gate) * torch.exp(-rate))
        chance(1, excess, zero - excess + rest)
        add("events", 0, events)
        add("exposure", 0, source.slope[..., 0] * (zero - excess + rest))
    elif isinstance(law, NormalLaw):
        squares, sums, number = counted.unbind(-1)
        loc, scale = parameters.unbind(-1)
        shift, slope = source.shift[..., 0], source.slope[..., 0]
        precision = scale**-2
        add("pull", 0, slope * precision * (sums - shift * number))
        add("precision", 0, slope.square() * precision * number)
        apart = (squares - 2 * loc * sums + loc.square() * number).clamp(min=0)
        add("squares", 1, apart / source.slope[..., 1].square().clamp(min=1e-30))
        add("number", 1, number)
