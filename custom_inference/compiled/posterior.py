"""The posterior of all latents of a row, given by factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from custom_inference.compiled.elimination import Plan
from custom_inference.compiled.probes import combinations
from custom_inference.compiled.structure import Bound
from custom_inference.core.posteriors import CodePosterior, LocalPosterior, TablePosterior
from custom_inference.core.posteriors.protocol import draw_slots
from ppl_models import CapacityError

#: Values of all latents together up to which a posterior is a table of them.
_TABLE = 2**12
#: Entries of such a table, over all rows.
_ENTRIES = 2**25
#: Numbers that draws made at once take.
_DRAWN = 2**24
#: Draws that a divergence is estimated by where it is no sum.
_DRAWS = 200


@dataclass(frozen=True)
class FactorPosterior(LocalPosterior):
    """p(latents of row n | x_n, globals), in factors: exact means, draws and most probable values by elimination.

    flat: the entries of all globals. naturals: the natural parameters of every block, where these are not those of the
    entries, but expected under their posterior.
    """

    bound: Bound
    flat: Tensor
    naturals: tuple[Tensor, ...] | None = None

    stored = False
    tabulated = False

    @classmethod
    def of(cls, bound: Bound, flat: Tensor, naturals: Sequence[Tensor] | None = None) -> LocalPosterior:
        """Return the posterior: a table where there are few values."""
        layout = bound.structure.variables.layout
        found = cls(bound, flat.detach(), None if naturals is None else tuple(naturals))
        if layout.num_configurations > _TABLE or layout.num_configurations * len(bound) > _ENTRIES:
            return found
        codes, log_weight = found.table()
        return (CodePosterior if layout.is_boolean else TablePosterior)(codes, log_weight)

    def _tables(self) -> list[Tensor]:
        naturals = self.bound.naturals(self.flat) if self.naturals is None else [*self.naturals]
        return self.bound.tables(naturals)

    @property
    def log_evidence(self) -> Tensor:
        """log p(x_n | globals), (N,)."""
        return self.bound.plan.total(self._tables()) + self.bound.offset

    @cached_property
    def probabilities(self) -> list[Tensor]:
        """Return the probabilities (N, S) of the values of every variable."""
        return self.joint_probabilities([(v,) for v in range(len(self.bound.structure.variables))])

    def joint_probabilities(self, asked: Sequence[tuple[int, ...]]) -> list[Tensor]:
        """Return, of several sets of variables, the probabilities (N, *sizes) of their values together."""
        sizes, tables = self.bound.structure.variables.sizes, self._tables()
        # A further factor of every set, of no effect, in every row: its marginals are those of the variables.
        ones = [self.flat.new_zeros(len(self.bound), *(sizes[v] for v in scope)) for scope in asked]
        return Plan.of([*self.bound.scopes, *asked], sizes).marginals([*tables, *ones])[1][len(tables) :]

    def table_of(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Return the values (S, w) of one latent, and their log-probabilities (N, S); None where there are too many."""
        variables = self.bound.structure.variables
        own = variables.of_site(name)
        sizes = tuple(variables.sizes[v] for v in own)
        if math.prod(sizes) > _TABLE:
            return None
        values = combinations(sizes)
        parts = [variables.options[v][values[:, place]] for place, v in enumerate(own)]
        share = self.joint_probabilities([tuple(own)])[0]
        return torch.cat(parts, 1).to(self.flat), share.flatten(1).log()

    @property
    def mean(self) -> Tensor:
        return self._expect(1)

    @property
    def variance(self) -> Tensor:
        """The posterior variance of every entry of the code, (N, W)."""
        return (self._expect(2) - self.mean.square()).clamp_min(0)

    def _expect(self, power: int) -> Tensor:
        variables = self.bound.structure.variables
        found = self.flat.new_zeros(len(self.bound), variables.layout.width)
        for place, options, share in zip(variables.places, variables.options, self.probabilities, strict=True):
            found[:, place] = share @ options.to(share) ** power
        return found

    @property
    def mode(self) -> Tensor:
        """The most probable values of all latents together."""
        return self._codes(self.bound.plan.decode(self._tables(), lambda weight: weight.argmax(-1), "max"))

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        generator, tables = torch.Generator().manual_seed(seed), self._tables()

        def choose(weight: Tensor) -> Tensor:
            return draw_slots(torch.log_softmax(weight, -1), 1, generator)[:, 0]

        drawn, step = list[Tensor](), max(1, int(_DRAWN / (max(1, len(self.bound)) * self.bound.plan.width)))
        for start in range(0, num_samples, step):
            copies = min(step, num_samples - start)
            chosen = self.bound.plan.decode(tables, choose, "sum", copies)
            drawn.append(self._codes(chosen).unflatten(0, (copies, -1)))
        return torch.cat(drawn)

    def log_prob(self, source: Tensor) -> Tensor:
        """Evaluate the log-probability of codes (..., N, W), giving (..., N); minus infinity of what is no value."""
        variables = self.bound.structure.variables
        same = [
            (source[..., None, place].to(options) == options).all(-1)
            for place, options in zip(variables.places, variables.options, strict=True)
        ]
        known = torch.stack([one.any(-1) for one in same]).all(0)
        chosen = torch.stack([one.long().argmax(-1) for one in same], -1)
        prior, likelihood = self.bound.look_up(self._tables(), chosen)
        joint = prior + likelihood - self.log_evidence
        return torch.where(known, joint, torch.full_like(joint, -torch.inf))

    def divergence_from(self, q: LocalPosterior, *, seed: int = 0) -> Tensor:
        """Return KL(q || this), (N,): exact where q has a table, or the same factors; else the mean over draws."""
        if type(q) is FactorPosterior and q.bound.scopes == self.bound.scopes:
            return self._from_factors(q)
        if q.tabulated and not q.continuous:
            codes, log_q = q.table()
            log_p = self.log_prob(codes[:, None].expand(-1, len(self.bound), -1)).T
            apart = torch.where(log_q > -torch.inf, log_q - log_p, torch.zeros_like(log_p))
            return (log_q.exp() * apart).sum(-1)
        return estimate_divergence(q, self, seed=seed)

    def _from_factors(self, q: FactorPosterior) -> Tensor:
        """Return the divergence from a posterior of the same factors at other globals: expectations of their logs."""
        total = self.log_evidence - q.log_evidence + q.bound.offset - self.bound.offset
        shares = q.joint_probabilities(q.bound.scopes)
        for share, own, other in zip(shares, q._tables(), self._tables(), strict=True):
            apart = torch.where(share > 0, own - other, torch.zeros_like(share))
            total = total + (share * apart).flatten(1).sum(1)
        return total

    def table(self) -> tuple[Tensor, Tensor]:
        variables, number = self.bound.structure.variables, self.bound.structure.variables.layout.num_configurations
        if number > _TABLE:
            raise CapacityError(f"a table of {number:.3g} values a row; at most {_TABLE} are tabulated")
        flat = self.bound.join(self._tables()).expand(len(self.bound), -1)
        return variables.layout.configurations(self.flat), torch.log_softmax(flat, -1)

    def _codes(self, chosen: Tensor) -> Tensor:
        return self.bound.structure.variables.codes(chosen, self.flat)

    def rows(self, index: Tensor | slice) -> Any:
        return replace(self, bound=self.bound.select(index))

    def to(self, device: torch.device | str) -> Any:
        return self


def estimate_divergence(q: LocalPosterior, p: LocalPosterior, *, seed: int = 0) -> Tensor:
    """Return the mean over draws of q of log q - log p, (N,); p evaluates all draws at once."""
    if not q.stored:  # which takes all draws at once, too
        draws, log_q = q.sample_with_density(_DRAWS, seed=seed)
    else:
        draws = q.sample(_DRAWS, seed=seed)
        log_q = torch.stack([q.log_prob(one) for one in draws])
    return (log_q - p.log_prob(draws)).mean(0)
