"""The posterior of all latents of a row, given by factors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from custom_inference.compiled.structure import Bound
from custom_inference.core.posteriors import CodePosterior, LocalPosterior, TablePosterior
from custom_inference.core.posteriors.protocol import draw_slots
from ppl_models import CapacityError

#: Values of all latents together up to which a posterior is a table of them.
_TABLE = 2**12
#: Entries of such a table, over all rows.
_ENTRIES = 2**25


@dataclass(frozen=True)
class FactorPosterior(LocalPosterior):
    """p(latents of row n | x_n, globals), in factors: exact means, draws and most probable values by elimination.

    flat: the entries of all globals.
    """

    bound: Bound
    flat: Tensor

    stored = False
    tabulated = False

    @classmethod
    def of(cls, bound: Bound, flat: Tensor) -> LocalPosterior:
        """Return the posterior: a table where there are few values."""
        layout = bound.structure.variables.layout
        found = cls(bound, flat.detach())
        if layout.num_configurations > _TABLE or layout.num_configurations * len(bound) > _ENTRIES:
            return found
        codes, log_weight = found.table()
        return (CodePosterior if layout.is_boolean else TablePosterior)(codes, log_weight)

    def _tables(self) -> list[Tensor]:
        return self.bound.tables(self.bound.naturals(self.flat))

    @property
    def log_evidence(self) -> Tensor:
        """log p(x_n | globals), (N,)."""
        return self.bound.log_evidence(self.flat)

    @cached_property
    def probabilities(self) -> list[Tensor]:
        """Return the probabilities (N, S) of the values of every variable."""
        variables, rows = self.bound.structure.variables, len(self.bound)
        tables = self._tables()
        # A further factor of every variable, of no effect, in every row: its marginals are those of the variable.
        ones = [self.flat.new_zeros(rows, size) for size in variables.sizes]
        plan = type(self.bound.plan).of([*self._scopes, *((v,) for v in range(len(variables)))], variables.sizes)
        return plan.marginals([*tables, *ones])[1][len(tables) :]

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

        drawn = self.bound.plan.decode(tables, choose, "sum", num_samples)
        return self._codes(drawn).reshape(num_samples, len(self.bound), -1)

    def log_prob(self, source: Tensor) -> Tensor:
        """Evaluate the log-probability of codes (N, W), giving (N,)."""
        variables = self.bound.structure.variables
        chosen = [
            (source[:, None, place].to(options) == options).all(-1).long().argmax(-1)
            for place, options in zip(variables.places, variables.options, strict=True)
        ]
        joint = self.bound.log_joint(self.flat, torch.stack(chosen, -1))
        return joint - self.log_evidence

    def divergence_from(self, q: LocalPosterior, *, seed: int = 0) -> Tensor:
        """Return KL(q || this) of every row, (N,): exact between posteriors of the same factors, at other globals."""
        if not isinstance(q, FactorPosterior) or self._scopes != q._scopes or len(q.bound) != len(self.bound):
            return super().divergence_from(q, seed=seed)
        # Tables of all rows together are those of every row, so that each has marginals of its own.
        own, other = ([t.expand(len(self.bound), *t.shape[1:]) for t in one._tables()] for one in (q, self))
        total, share = q.bound.plan.marginals(own)
        found = self.bound.plan.total(other) - total
        for weight, one, two in zip(share, own, other, strict=True):
            found = found + (weight * (one - two)).flatten(1).sum(-1)
        return found.clamp_min(0)

    @property
    def _scopes(self) -> list[tuple[int, ...]]:
        """The variables that each factor is about."""
        return [scope for block in self.bound.blocks for scope in block.scopes]

    def table(self) -> tuple[Tensor, Tensor]:
        variables, number = self.bound.structure.variables, self.bound.structure.variables.layout.num_configurations
        if number > _TABLE:
            raise CapacityError(f"a table of {number:.3g} values a row; at most {_TABLE} are tabulated")
        total, plan = None, self.bound.plan
        every = tuple(range(len(variables)))
        for table, scope in zip(self._tables(), self._scopes, strict=True):
            part = plan._align(table, scope, every)
            total = part if total is None else total + part
        assert total is not None
        flat = total.expand(len(self.bound), *variables.sizes).flatten(1)
        codes = variables.layout.configurations(self.flat)
        return codes, torch.log_softmax(flat, -1)

    def _codes(self, chosen: Tensor) -> Tensor:
        return self.bound.structure.variables.codes(chosen, self.flat)

    def rows(self, index: Tensor | slice) -> Any:
        return replace(self, bound=self.bound.select(index))

    def to(self, device: torch.device | str) -> Any:
        return self
