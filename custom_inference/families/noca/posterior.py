"""NOCA's log joint of every code, and its exact posterior of rows with many sources: marginals, draws and probabilities
of codes, and no table of them.

The evidence turns any other posterior's bound into its divergence, KL(q || p(s | x)) = log p(x) - ELBO(q).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.engine import Params
from custom_inference.core.posterior_bounds import bound_of
from custom_inference.core.posteriors import LocalPosterior
from custom_inference.core.posteriors.protocol import draw_slots
from custom_inference.families.common.enumerated import codes_of
from custom_inference.families.noca.common import thetas
from custom_inference.families.noca.subsets import Subsets
from custom_inference.families.rows.matrix import BinaryRows
from ppl_models import CapacityError, Data, Model
from ppl_models.distributions import BernoulliVector, log1mexp


class SourceTables(NamedTuple):
    """What the log joint of every one of the 2^K codes needs: codes (C, K), L1 - L0 and -L0 (C, D), the rest (C,).

    With A = theta_0 + C theta (2^K, D) for the codes C, log p(x_n | c) is two matrix products with
    L1 = log(1 - e^{-A}) and L0 = -A.
    """

    codes: Tensor
    lift: Tensor
    activation: Tensor
    constant: Tensor

    @classmethod
    def of(cls, params: Params, rows: BinaryRows, temperature: float = 1.0) -> SourceTables:
        """Tabulate all codes; with a temperature the likelihood is raised to it."""
        codes = codes_of(len(params["source_prior"]), rows.ones.dtype, rows.ones.device)
        theta, theta0 = thetas(params)
        activation = codes @ theta + theta0
        lift = log1mexp(activation) + activation
        prior = BernoulliVector(params["source_prior"], validate_args=False).log_prob(codes)
        if temperature != 1.0:
            lift, activation = temperature * lift, temperature * activation
        return cls(codes, lift, activation, prior if rows.mask is not None else prior - activation.sum(-1))

    def joint(self, rows: BinaryRows) -> Tensor:
        """Compute log p(x_n, c) (N, C): minus the activation for every observed entry, and the lift for every one."""
        lifted = torch.addmm(self.constant, rows.ones, self.lift.T)
        return lifted if rows.mask is None else lifted.addmm_(rows.mask.to(lifted), self.activation.T, alpha=-1)


#: Draws among which the mode is looked for; entries of the table of codes at a time.
_TRIED, _ENTRIES = 32, 2**22


@dataclass(frozen=True)
class NoisyOrPosterior(LocalPosterior):
    """p(s_n | x_n) of every row, at given globals.

    marginal: E[s_n] (N, K); log_evidence: log p(x_n) (N,); by_codes: the rows that are summed over all codes, (N,).
    """

    model: Model
    params: dict[str, Tensor]
    data: BinaryRows
    marginal: Tensor
    log_evidence: Tensor
    by_codes: Tensor

    stored = False
    tabulated = False

    @property
    def mean(self) -> Tensor:
        return self.marginal

    @property
    def variance(self) -> Tensor:
        return self.marginal * (1 - self.marginal)

    @property
    def mode(self) -> Tensor:
        """The most probable code among draws and the means' own, and what changes of single sources lead to from there:
        nothing proves that no other is more probable."""
        tried = torch.cat([(self.marginal > 0.5).to(self.marginal)[None], self.sample(_TRIED)])
        score = torch.stack([self.log_prob(one) for one in tried])
        best = tried[score.argmax(0), torch.arange(len(self.marginal), device=tried.device)]
        active = torch.arange(len(best), device=best.device)
        while len(active):
            some: Any = self.rows(active)
            better = some._change_sources(best[active])
            moved = (better != best[active]).any(-1)
            best[active] = better
            active = active[moved]
        return best

    def _change_sources(self, code: Tensor) -> Tensor:
        """Change one source after the other, where that makes codes (N, K) more probable."""
        highest = self.log_prob(code)
        for source in range(code.shape[1]):
            other = code.clone()
            other[:, source] = 1 - other[:, source]
            found = self.log_prob(other)
            higher = found > highest + 1e-9
            code, highest = torch.where(higher[:, None], other, code), torch.where(higher, found, highest)
        return code

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        drawn = self.marginal.new_empty(num_samples, *self.marginal.shape)
        some, every = ~self.by_codes, self.by_codes.nonzero().flatten()
        if bool(some.any()):
            drawn[:, some] = Subsets.of(self.params, self.data.select(some)).draw(num_samples, seed).to(drawn)
        if len(every):
            generator = torch.Generator().manual_seed(seed)
            tables = SourceTables.of(self.params, self.data)
            for block in every.split(max(1, _ENTRIES // len(tables.codes))):
                log_weight = torch.log_softmax(tables.joint(self.data.select(block)), -1)
                drawn[:, block] = tables.codes[draw_slots(log_weight, num_samples, generator).T]
        return drawn

    def log_prob(self, source: Tensor) -> Tensor:
        """Return log p(s_n | x_n) of codes (..., N, K), (..., N)."""
        theta, theta0 = thetas(self.params)
        source = source.to(self.marginal)
        activation = source @ theta + theta0
        of_ones = torch.where(self.data.ones > 0, log1mexp(activation), 0.0)
        prior = BernoulliVector(self.params["source_prior"], validate_args=False).log_prob(source)
        return (of_ones - self.data.zeros * activation).sum(-1) + prior - self.log_evidence

    def table(self) -> tuple[Tensor, Tensor]:
        rows, bits = self.marginal.shape
        raise CapacityError(
            f"a table of 2^{bits} codes a row; this posterior has marginals, draws and probabilities of codes",
            needed_bytes=8.0 * rows * 2.0**bits,
            allowed_bytes=8.0 * rows * 2.0**16,
        )

    def divergence_from(self, q: LocalPosterior, *, seed: int = 0) -> Tensor:
        """Compute KL(q || p) = log p(x) - ELBO(q) of every row, (N,); as exact as that ELBO is."""
        del seed
        data = Data(x=self.data.ones, mask=self.data.mask)
        return self.log_evidence - bound_of(self.model, self.params, data, q)

    def rows(self, index: Tensor | slice) -> LocalPosterior:
        parts = {name: getattr(self, name)[index] for name in ("marginal", "log_evidence", "by_codes")}
        return replace(self, data=self.data.select(index), **parts)

    def to(self, device: torch.device | str) -> Any:
        if self.marginal.device == torch.device(device):
            return self
        moved: dict[str, Any] = {
            name: getattr(self, name).to(device) for name in ("marginal", "log_evidence", "by_codes")
        }
        mask = None if self.data.mask is None else self.data.mask.to(device)
        params = {site: value.to(device) for site, value in self.params.items()}
        return replace(self, params=params, data=BinaryRows(self.data.ones.to(device), mask), **moved)
