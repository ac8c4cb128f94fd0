"""Posteriors of the globals of programs of shares, where all of their priors are conjugate: what variational Bayes
needs of them, and its M step.

An entry v of a global stands in the E step as exp(E log v), as 1 - v does, and as E v in what rates are exposed to; the
M step adds what is counted of every entry to its prior's parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, distributions
from torch.distributions import constraints

from custom_inference.compiled.blocks import Block
from custom_inference.compiled.counts import parts_in
from custom_inference.compiled.laws import COUNTED
from custom_inference.compiled.sources import Entries, EntrySource
from custom_inference.core.posteriors import BetaPosterior, DirichletPosterior, GammaPosterior
from custom_inference.core.states import State
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.conjugate.gamma import Gamma
from ppl_models import Model
from ppl_models.core.hierarchy import arguments_of, is_function
from ppl_models.core.priors import is_flat

#: Parameters of posteriors are kept above this.
LEAST = 1e-9
#: A logarithm of nothing, and how far from 1 probabilities may sum to.
_NOTHING, _SUMS = -1e30, 1e-6
#: The priors that a support has posteriors under.
_PRIORS: dict[Any, tuple[str, tuple[type, ...]]] = {
    constraints.simplex: ("proportion", (distributions.Dirichlet,)),
    constraints.unit_interval: ("chance", (distributions.Beta,)),
    constraints.positive: ("rate", (distributions.Gamma, distributions.Exponential)),
}


def part_of(model: Model, site: str) -> str:
    """Return the part whose posterior a global has under its prior, "" where it has none."""
    prior = model.priors[site]
    part, kinds = _PRIORS.get(model.supports[site], ("", ()))
    asked = {name for one in model.priors.values() for name in arguments_of(one)}
    if not part or is_function(prior) or site in asked:
        return ""
    flat = is_flat(prior) and part != "rate"  # the flat prior of a rate is improper
    return part if flat or issubclass(type(prior), kinds) else ""


@dataclass(frozen=True)
class GlobalPosteriors(State):
    """Dirichlets, Betas and Gammas: site -> the parameters, of Betas for 1 and 0 along a last axis."""

    concentration: dict[str, Tensor] = field(default_factory=dict)
    chance: dict[str, Tensor] = field(default_factory=dict)
    shape: dict[str, Tensor] = field(default_factory=dict)
    rate: dict[str, Tensor] = field(default_factory=dict)

    def values(self, model: Model) -> dict[str, Tensor]:
        """Return the means of the posteriors, and the known values."""
        means = super().values(model)
        like = next(iter(means.values()))
        return {site: means[site] if site in means else model.known[site].to(like) for site in model.shapes}

    def posteriors(self, model: Model) -> Mapping[str, Any]:
        del model
        return {
            **{site: DirichletPosterior(one) for site, one in self.concentration.items()},
            **{site: BetaPosterior(one[..., 0], one[..., 1]) for site, one in self.chance.items()},
            **{site: GammaPosterior(self.shape[site], self.rate[site]) for site in self.shape},
        }

    @classmethod
    def of_posteriors(cls, posteriors: Mapping[str, Any]) -> Self:
        """Return the state with these posteriors."""
        found = cls()
        for site, one in posteriors.items():
            if type(one) is DirichletPosterior:
                found.concentration[site] = one.concentration
            elif type(one) is BetaPosterior:
                found.chance[site] = torch.stack([one.on, one.off], -1)
            else:
                found.shape[site], found.rate[site] = one.shape, one.rate
        return found

    def clamp(self) -> Self:
        """Return the nearest parameters that are positive."""
        return type(self).of({name: value.clamp(min=LEAST) for name, value in self.tensors().items()})


class Expected(NamedTuple):
    """E log v, E log(1 - v) and E v of all entries, (entries,) each."""

    log: Tensor
    log1m: Tensor
    mean: Tensor

    @classmethod
    def of(cls, model: Model, state: GlobalPosteriors, entries: Entries) -> Expected:
        """Compute them from the posteriors; of known entries by their values."""
        log, log1m, mean = dict[str, Tensor](), dict[str, Tensor](), dict[str, Tensor]()
        like = next(iter(state.tensors().values()))
        for site in entries.shapes:
            if site in state.concentration:
                log[site], mean[site] = (own := Dirichlet(state.concentration[site])).expected(), own.mean
            elif site in state.chance:
                both, own = Dirichlet(state.chance[site]).expected(), Dirichlet(state.chance[site]).mean
                log[site], log1m[site], mean[site] = both[..., 0], both[..., 1], own[..., 0]
            elif site in state.shape:
                log[site], mean[site] = Gamma(state.shape[site], state.rate[site]).expected()
            else:
                mean[site] = model.known[site].to(like).expand(entries.shapes[site])
                log[site] = mean[site].log().clamp(min=_NOTHING)
                log1m[site] = torch.log1p(-mean[site]).nan_to_num(_NOTHING, neginf=_NOTHING)
            log1m.setdefault(site, torch.full_like(mean[site], _NOTHING))
        return cls(*(entries.flatten(one) for one in (log, log1m, mean)))

    def log_of(self, source: EntrySource, turned: bool = False) -> Tensor:
        """Return E log of parameters (G, C, U, P) that are entries, or of 1 less these."""
        slope, shift = (-source.slope, 1 - source.shift) if turned else (source.slope, source.shift)
        whole = self.log[source.index] + torch.log(slope.clamp(min=LEAST))
        rest = torch.where((slope < 0) & (shift == 1), self.log1m[source.index], shift.log().clamp(min=_NOTHING))
        return torch.where((slope > 0) & (shift == 0), whole, rest)

    def natural(self, block: Block) -> Tensor:
        """Return the expected natural parameters (K, U, F) of a block."""
        (source,) = block.sources
        made: Any = source
        part = block.law.kinds[block.law.names[0]]
        if part == "proportion":
            return self.log_of(made)[0]
        if part == "chance":
            return torch.cat([self.log_of(made), self.log_of(made, turned=True)], -1)[0]
        return torch.cat([self.log_of(made), -(made.shift + made.slope * self.mean[made.index])], -1)[0]


def why_not_integrated(model: Model, entries: Entries, blocks: Sequence[Block], flat: Tensor) -> str:
    """Say why the globals have no posteriors in closed form; "" where they have. flat: values of all entries."""
    for site in model.unknown_sites:
        if not part_of(model, site):
            return f"the prior of '{site}' is not conjugate"
    for block in blocks:
        plain = len(block.sources) == 1 and all(one.of_entries for one in block.sources)
        known = list(block.law.kinds) == [block.law.names[0]]
        if not (plain and known) or block.law.names[0] not in ("probs", "rate"):
            return f"the parameters of {block.law.kind.__name__} are no entries of globals"
        source: Any = block.sources[0]
        slope, shift = source.slope, source.shift
        for site, part in parts_in(block, model, entries):
            if site in model.unknown_sites and part != part_of(model, site):
                return f"what '{site}' is in {block.law.kind.__name__} has no posterior in closed form"
        usual = ((slope > 0) & (shift == 0)) | ((slope == -1) & (shift == 1)) | (slope == 0)
        sums = block.parameters(flat).sum(-1)
        if block.law.kinds[block.law.names[0]] == "proportion" and not bool(((sums - 1).abs() < _SUMS).all()):
            return f"the probabilities of {block.law.kind.__name__} are entries that do not sum to 1"
        if not bool(usual.all()):
            return f"the parameters of {block.law.kind.__name__} are sums of entries"
    return ""


def prior_of_site(model: Model, site: str, like: Tensor, shape: tuple[int, ...]) -> Dirichlet | Gamma:
    """Return the prior of a site as the pair that posteriors are of: a Beta as the Dirichlet of two."""
    prior, part = model.priors[site], part_of(model, site)
    made: Any = prior
    if part == "rate":
        return Gamma.of(model, site, like).expand(shape)
    if part == "chance":
        both = torch.ones(2).to(like) if is_flat(prior) else torch.stack([made.concentration1, made.concentration0], -1)
        return Dirichlet(both.to(like).expand(*shape, 2))
    return Dirichlet(like.new_ones(shape) if is_flat(prior) else made.concentration.to(like).expand(shape))


def update(model: Model, entries: Entries, blocks: Sequence[Block], statistics: Sequence[Tensor]) -> GlobalPosteriors:
    """Return the posteriors of the globals, from the expected features (1, K, U, F) of every block."""
    like = statistics[0]
    names = {name for site in model.unknown_sites for name in COUNTED[part_of(model, site)]}
    flat = like.new_zeros(max(1, sum(torch.Size(shape).numel() for shape in entries.shapes.values())))
    total = {name: torch.zeros_like(flat) for name in names}
    for block, counted in zip(blocks, statistics, strict=True):
        for name, said in block.law.say(counted, counted).items():
            assert name == block.law.names[0]
            block.sources[0].count(said, counted, flat, total)
    found = GlobalPosteriors()
    for site in model.unknown_sites:
        shape, part = entries.shapes[site], part_of(model, site)
        own = [total[name][entries.slices[site]].reshape(shape) for name in COUNTED[part]]
        prior: Any = prior_of_site(model, site, like, shape)
        if part == "rate":
            found.shape[site], found.rate[site] = prior.update(*own)
        elif part == "chance":
            found.chance[site] = prior.concentration + torch.stack(own, -1)
        else:
            found.concentration[site] = prior.concentration + own[0]
    return found


def divergence(model: Model, state: GlobalPosteriors) -> Tensor:
    """Return KL(posteriors of the globals || priors), summed."""
    parts = [(site, Dirichlet(one)) for site, one in {**state.concentration, **state.chance}.items()]
    parts += [(site, Gamma(state.shape[site], state.rate[site])) for site in state.shape]
    total = torch.zeros((), dtype=torch.float64)
    for site, own in parts:
        like = next(iter(own))
        shape = tuple(like.shape[:-1]) if site in state.chance else tuple(like.shape)
        made: Any = own
        total = total + made.kl(prior_of_site(model, site, like, shape)).double().sum()
    return total
