"""What tells the likelihoods of block models apart: the entries of the block matrix, with their conjugate priors.

Given the blocks a, b of its ends, with w = w_i w'_j, the log-likelihood of a dyad is x A_ab + w B_ab + terms of nodes:

    Bernoulli(eta)          A = log eta - log(1 - eta)    B = log(1 - eta)
    Poisson(w eta)          A = log eta                   B = -eta               (and x log w - log x!)

Under a posterior of eta, A and B are expectations. With edges m_ab and exposures n_ab:

    Beta(a, b)      eta = (m + a - 1) / (n + a + b - 2),         q(eta) = Beta(a + m, b + n - m)
    Gamma(a, b)     eta = (m + a - 1) / (n + b), or (m + a) / (n + b) in the basis of log eta (a < 1);
                    q(eta) = Gamma(a + m, b + n)

Of undirected models the entries a <= b are the free ones; priors and posteriors are symmetric.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from custom_inference.core.posteriors import (
    BetaPosterior,
    ContinuousPosterior,
    GammaPosterior,
    SymmetricBetaPosterior,
    SymmetricGammaPosterior,
)
from custom_inference.core.posteriors.continuous import mirror
from custom_inference.families.conjugate.beta import Beta, interior
from custom_inference.families.conjugate.gamma import Gamma
from ppl_models.block_models import BlockModel

#: Probabilities and rates are kept this far from 0 (probabilities from 1 too).
FLOOR = 1e-10
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class _Blocks(abc.ABC):
    """The density of a dyad given the blocks of its ends. ``model`` has the priors, in double precision (K, K)."""

    model: BlockModel
    site: ClassVar[str]
    #: The name of this likelihood.
    kind: ClassVar[str]
    #: The conjugate pair of the block matrix; the posteriors that are reported, and symmetric ones.
    pair: ClassVar[type[Any]]
    posteriors: ClassVar[tuple[Callable[..., ContinuousPosterior], Callable[..., ContinuousPosterior]]]

    @property
    def shape(self) -> tuple[int, int]:
        return (self.model.num_blocks, self.model.num_blocks)

    def free(self, value: Tensor) -> Tensor:
        """Select the entries of a matrix that are parameters of their own, (F,)."""
        if self.model.directed:
            return value.flatten()
        row, column = torch.triu_indices(*self.shape)
        return value[row, column]

    def prior(self) -> Any:
        """Return the prior, its parameters (K, K); PriorError where it is not conjugate."""
        found = self.pair.of(self.model, self.site, torch.zeros((), dtype=torch.float64))
        same = all(part.numel() == 1 for part in found.parameters.values())  # in every block, so symmetric
        found = found.expand(self.shape)
        return found if self.model.directed or same else found.map(mirror)

    def posterior(self, parameters: Any) -> ContinuousPosterior:
        directed, symmetric = self.posteriors
        return (directed if self.model.directed else symmetric)(*parameters)

    def check_mode(self) -> None:  # noqa: B027 - an empty default is meant
        """Raises PriorError for a prior without a mode; by default there is one in some basis."""

    @abc.abstractmethod
    def natural(self, value: Tensor) -> Pair:
        """Return A and B at given values of the site."""

    @abc.abstractmethod
    def mean_natural(self, parameters: Any) -> Pair:
        """Return E[A] and E[B] under the posterior with these parameters."""

    def mode(self, edges: Tensor, exposure: Tensor) -> Tensor:
        """Return the site by maximum a posteriori."""
        return self.prior().mode(edges, exposure, floor=FLOOR)

    def log_prior(self, value: Tensor) -> Tensor:
        """Compute the log prior density that ``mode`` goes with, ()."""
        return self.free(self.prior().log_density(value)).sum()


class BernoulliBlocks(_Blocks):
    """Edges or none: Bernoulli."""

    site = "edge_probability"
    kind = "bernoulli"
    pair = Beta
    posteriors = (BetaPosterior, SymmetricBetaPosterior)

    def check_mode(self) -> None:
        Beta.with_mode(self.model, self.site, torch.zeros((), dtype=torch.float64))

    def natural(self, value: Tensor) -> Pair:
        inside = interior(value)
        base = torch.log1p(-inside)
        return torch.log(inside) - base, base

    def mean_natural(self, parameters: Beta) -> Pair:
        on, off = parameters.expected()
        return on - off, off

    def log_prior(self, value: Tensor) -> Tensor:
        return super().log_prior(interior(value))


class PoissonBlocks(_Blocks):
    """Counts of edges: Poisson."""

    site = "edge_rate"
    kind = "poisson"
    pair = Gamma
    posteriors = (GammaPosterior, SymmetricGammaPosterior)

    def natural(self, value: Tensor) -> Pair:
        return torch.log(value.clamp(min=torch.finfo(value.dtype).tiny)), -value

    def mean_natural(self, parameters: Gamma) -> Pair:
        log, mean = parameters.expected()
        return log, -mean


def likelihood_of(model: BlockModel) -> BernoulliBlocks | PoissonBlocks:
    """Return the likelihood of a model's block matrix, with its prior."""
    return (BernoulliBlocks if model.component_site == BernoulliBlocks.site else PoissonBlocks)(model)


def partition_likelihood(model: BlockModel) -> str:
    """Return the name of the model's likelihood among those that divisions of the nodes are scored by."""
    return "degree_corrected" if model.propensity_sites else likelihood_of(model).kind
