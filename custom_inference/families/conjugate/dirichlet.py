"""Dirichlet priors of proportions; statistics are counts.

``groups`` cuts the last axis into that many equal parts, or into parts of these sizes, each a point of a simplex of its
own: 1 for the words of a topic; the features of the simplex factor model (Murphy 2012, eq. 27.14), whose categories lie
side by side, are more. In the two bases (``pair``) the density and its mode are

    simplex:    sum_k (n_k + c_k - 1) log p_k,    p_k proportional to n_k + c_k - 1
    softmax:    sum_k (n_k + c_k) log p_k,        p_k proportional to n_k + c_k

The second is what Murphy (2012), eqs. 27.42 and 27.46 print.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln
from torch import Tensor

from custom_inference.families.conjugate.pair import (
    NOTHING,
    TINY,
    Pair,
    array,
    basis_shift,
    conjugate_prior,
    without_mode,
)
from ppl_models import Model

#: The number of parts of equal size, or the sizes of all.
Groups = int | tuple[int, ...]


@dataclass(frozen=True)
class Dirichlet(Pair):
    """The distribution Dirichlet(concentration) of every group of every row."""

    concentration: Tensor
    groups: Groups = 1

    @classmethod
    def of(cls, model: Model, site: str, like: Tensor, groups: Groups = 1) -> Self:
        """Read a Dirichlet prior, whatever its concentration. Raises PriorError for any other prior."""
        return cls(conjugate_prior(model, site, torch.distributions.Dirichlet).concentration.to(like), groups)

    @classmethod
    def with_mode(cls, model: Model, site: str, like: Tensor) -> Self:
        """Read a Dirichlet prior. Raises PriorError for any other, and for concentrations below 1, where the density is
        unbounded at the edge and has no mode."""
        found = cls.of(model, site, like)
        if basis_shift(found.concentration) == 0:
            raise without_mode("Dirichlet", site)
        return found

    @property
    def powers(self) -> Tensor:
        """The powers of the proportions in the density, in the basis of the mode."""
        return self.concentration - basis_shift(self.concentration)

    def update(self, counts: Tensor) -> Self:
        """Return the posterior."""
        return type(self)(self.concentration + counts, self.groups)

    def mode(self, counts: Tensor, *, floor: float = 0.0) -> Tensor:
        """Maximise sum_k counts_k log p_k + log prior in p, kept ``floor`` off the edges; see the module on the basis.
        Uniform where nothing was counted and the prior is flat: every point is a maximum there."""
        weight = counts + self.powers
        total = _expand_groups(group_sums(weight, self.groups), self.groups, weight)
        weight = torch.where(total > NOTHING, weight, torch.ones_like(weight))
        return normalise(normalise(weight, self.groups).clamp(min=floor), self.groups)

    @property
    def mean(self) -> Tensor:
        return normalise(self.concentration, self.groups)

    def expected(self) -> Tensor:
        """Compute E[log p_k] = psi(c_k) - psi(sum_j c_j); the sum runs over k's group (Murphy 2012, eq. 27.40)."""
        total = torch.digamma(group_sums(self.concentration, self.groups))
        return torch.digamma(self.concentration) - _expand_groups(total, self.groups, self.concentration)

    def log_density(self, value: Tensor) -> Tensor:
        """Sum the log density, in the basis of the mode, over rows and groups; 0 for a flat prior, which moves no
        maximum, as in ``Model.log_prior``."""
        if bool((self.concentration == 1).all()):
            return value.new_zeros(())
        whole = self.concentration.expand_as(value)
        normaliser = torch.lgamma(group_sums(whole, self.groups)).sum() - torch.lgamma(whole).sum()
        return normaliser + torch.xlogy(self.powers.expand_as(value), value).sum()

    def kl(self, other: Dirichlet | Tensor) -> Tensor:
        """Compute KL(self || other) of every row, summed over its groups, (...)."""
        prior = other if isinstance(other, Tensor) else other.concentration
        if prior.shape[-1:] != self.concentration.shape[-1:]:  # one of all rows needs no more than its own log-gammas
            prior = prior.expand_as(self.concentration)
        sums = [torch.lgamma(group_sums(one, self.groups)) for one in (self.concentration, prior)]
        each = torch.lgamma(prior) - torch.lgamma(self.concentration) + (self.concentration - prior) * self.expected()
        return (sums[0] - sums[1]).sum(-1) + each.sum(-1)

    def log_marginal(self, counts: Tensor) -> Tensor:
        """Compute log E[prod_k p_k^{n_k}], groups multiplied, (...) (Murphy 2012, eqs. 27.33 and 27.35)."""
        total, added = (group_sums(one, self.groups) for one in (self.concentration, counts))
        falling = (torch.lgamma(total) - torch.lgamma(total + added)).sum(-1)
        return log_rising(counts, self.concentration) + falling

    def draw(self, generator: np.random.Generator) -> Tensor:
        """Draw every group of every row, in double precision; 0 where the concentration is."""
        concentration = array(self.concentration)
        weight = generator.standard_gamma(concentration).clip(TINY) * (concentration > 0)
        return normalise(torch.as_tensor(weight), self.groups)


def normalise(weight: Tensor, groups: Groups = 1) -> Tensor:
    """Divide each group by its sum."""
    return weight / _expand_groups(group_sums(weight, groups), groups, weight)


def group_sums(value: Tensor, groups: Groups = 1) -> Tensor:
    """Sum over each group, (..., groups)."""
    if isinstance(groups, int):
        return value.unflatten(-1, (groups, -1)).sum(-1)
    return torch.stack([part.sum(-1) for part in value.split(groups, -1)], -1)


def log_rising(counts: Tensor, start: Tensor) -> Tensor:
    """Compute sum log [Gamma(start + counts) / Gamma(start)] over the last axis."""
    return (torch.lgamma(start + counts) - torch.lgamma(start)).sum(-1)


def log_marginal_of_table(counts: NDArray[Any], concentration: NDArray[np.float64]) -> float:
    """Sum :meth:`Dirichlet.log_marginal` over the rows of a table that is mostly 0, the concentration (K,) or by row;
    only what was counted is computed."""
    row, column = counts.nonzero()
    own, mass = np.broadcast_to(concentration, counts.shape)[row, column], concentration.sum(-1)
    rise = gammaln(counts[row, column] + own) - gammaln(own)
    return float(rise.sum() + (gammaln(mass) - gammaln(mass + counts.sum(1))).sum())


def _expand_groups(of_groups: Tensor, groups: Groups, like: Tensor) -> Tensor:
    """Repeat the value of each group (..., groups) at all its places, (..., D)."""
    if isinstance(groups, int):
        size = like.shape[-1] // groups
        return of_groups.unsqueeze(-1).expand(*of_groups.shape, size).flatten(-2)
    return of_groups.repeat_interleave(torch.tensor(groups, device=like.device), -1)
