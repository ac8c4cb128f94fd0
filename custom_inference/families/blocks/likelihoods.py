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
from custom_inference.families.common import beta, gamma
from ppl_models import SBM, DegreeCorrectedSBM, Model
from ppl_models.core.priors import is_flat

#: Probabilities and rates are kept this far from 0 (probabilities from 1 too).
FLOOR = 1e-10
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class _Blocks:
    """The density of a dyad given the blocks of its ends. ``model`` has the priors, in double precision (K, K)."""

    model: Any
    site: ClassVar[str]
    #: The name of this likelihood.
    kind: ClassVar[str]
    #: Reads a conjugate prior; KL of a posterior from it; its posteriors, and symmetric ones.
    read_prior: ClassVar[Callable[..., Pair]]
    divergences: ClassVar[Callable[[Pair, Pair], Tensor]]
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

    def prior(self) -> Pair:
        """Return the prior's two parameters, (K, K) each; MethodError where it is not conjugate."""
        pair = self.read_prior(self.model, self.site, torch.zeros(self.shape, dtype=torch.float64))
        first, second = (part.double().expand(self.shape) for part in pair)
        return (first, second) if self.model.directed else (mirror(first), mirror(second))

    def divergence(self, parameters: Pair) -> Tensor:
        """Compute the KL divergence of the posterior with these parameters from the prior, ()."""
        return self.free(self.divergences(parameters, self.prior())).sum()

    def posterior(self, parameters: Pair) -> ContinuousPosterior:
        directed, symmetric = self.posteriors
        return (directed if self.model.directed else symmetric)(*parameters)


class BernoulliBlocks(_Blocks):
    """Edges or none: Bernoulli."""

    site = "edge_probability"
    kind = "bernoulli"
    read_prior = staticmethod(beta.beta_prior)
    divergences = staticmethod(beta.beta_divergence)
    posteriors = (BetaPosterior, SymmetricBetaPosterior)

    def check_mode(self) -> None:
        """Raises MethodError for a prior without a mode."""
        beta.beta_parameters(self.model, self.site, torch.zeros((), dtype=torch.float64))

    def natural(self, value: Tensor) -> Pair:
        """Return A and B at given values of the site."""
        inside = beta.interior(value)
        base = torch.log1p(-inside)
        return torch.log(inside) - base, base

    def mode(self, edges: Tensor, exposure: Tensor) -> Tensor:
        """Return the site by maximum a posteriori."""
        return beta.beta_mode(edges, exposure, self.prior(), floor=FLOOR)

    def log_prior(self, value: Tensor) -> Tensor:
        """Compute the log prior density that ``mode`` goes with, ()."""
        if is_flat(self.model.priors[self.site]):
            return value.new_zeros(())
        return self.free(beta.beta_log_density(beta.interior(value), self.prior())).sum()

    def log_marginals(self, edges: Tensor, exposure: Tensor) -> Tensor:
        """Compute the log of the integral of every entry's likelihood over the prior, (K, K)."""
        return beta.beta_log_marginal(edges, exposure - edges, self.prior())

    def update(self, edges: Tensor, exposure: Tensor) -> Pair:
        """Return the posterior's two parameters."""
        on, off = self.prior()
        return on + edges, off + (exposure - edges).clamp(min=0)

    def mean_natural(self, parameters: Pair) -> Pair:
        """Return E[A] and E[B] under the posterior with these parameters."""
        on, off = parameters
        return torch.digamma(on) - torch.digamma(off), torch.digamma(off) - torch.digamma(on + off)


class PoissonBlocks(_Blocks):
    """Counts of edges: Poisson, with the methods of :class:`BernoulliBlocks`."""

    site = "edge_rate"
    kind = "poisson"
    read_prior = staticmethod(gamma.gamma_prior)
    divergences = staticmethod(gamma.gamma_divergence)
    posteriors = (GammaPosterior, SymmetricGammaPosterior)

    def check_mode(self) -> None:
        """Accept every prior: there is always a mode, in one of two bases."""

    def natural(self, value: Tensor) -> Pair:
        return torch.log(value.clamp(min=torch.finfo(value.dtype).tiny)), -value

    def mode(self, edges: Tensor, exposure: Tensor) -> Tensor:
        return gamma.gamma_mode(edges, exposure, self.prior(), floor=FLOOR)

    def log_prior(self, value: Tensor) -> Tensor:
        shape, rate = self.prior()
        return gamma.gamma_log_density(self.free(value), (self.free(shape), self.free(rate)))

    def log_marginals(self, edges: Tensor, exposure: Tensor) -> Tensor:
        return gamma.gamma_log_marginal(edges, exposure, self.prior())

    def update(self, edges: Tensor, exposure: Tensor) -> Pair:
        shape, rate = self.prior()
        return shape + edges, rate + exposure

    def mean_natural(self, parameters: Pair) -> Pair:
        shape, rate = parameters
        return gamma.expected_log_gamma(shape, rate), -shape / rate


def likelihood_of(model: Model) -> BernoulliBlocks | PoissonBlocks:
    """Return the likelihood of a model's block matrix, with its prior."""
    return (BernoulliBlocks if isinstance(model, SBM) else PoissonBlocks)(model)


def partition_likelihood(model: Model) -> str:
    """Return the name of the model's likelihood among those that divisions of the nodes are scored by."""
    return "degree_corrected" if isinstance(model, DegreeCorrectedSBM) else likelihood_of(model).kind
