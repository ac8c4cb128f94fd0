"""The evidence of mixtures by Chib's identity, from draws of their collapsed Gibbs sampler.

    log p(x) = log p(x | t) + log p(t) - log p(t | x),        p(t | x) = E[p(t | x, z) | x]

at one point t of the globals; the mean over draws z of the rows' classes is that of the conjugate posteriors given them
(Chib, *Marginal likelihood from the Gibbs output*, J. American Statistical Association 90, 1995). Chains do not visit
all K! labelings, so p(t | x) comes out too large by up to K! (Neal, *Erroneous results in "Marginal likelihood from the
Gibbs output"*, 1999). As the posterior does not know the labels, it is averaged over all relabelings of t (Berkhof, van
Mechelen & Gelman, *A Bayesian approach to the selection and testing of mixture models*, Statistica Sinica 13, 2003).
Components are independent given z, so that the sum over relabelings is the permanent of A_jk = p(component j of t |
class k), which is summed over the 2^K sets of classes rather than K! permutations: no term is left out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import gammaln, logsumexp
from torch import Tensor
from torch.nn.functional import one_hot

from custom_inference.checks.evidence.exact import is_mixture
from custom_inference.checks.evidence.labelings import expect_other
from custom_inference.checks.evidence.result import Array
from custom_inference.core.diagnostics import effective_size, r_hat
from custom_inference.core.exchangeable import exchangeable
from custom_inference.core.isolation import seed_of
from custom_inference.core.progress import Progress
from custom_inference.families.common.explicit import with_references
from custom_inference.families.conjugate.dirichlet import Dirichlet, group_sums
from custom_inference.families.conjugate.pair import Pair, array
from custom_inference.families.mixtures.densities import density_of
from custom_inference.families.mixtures.engines import MixtureExact
from custom_inference.families.mixtures.gibbs import MixtureChain, MixtureSampler
from ppl_models import Data, MethodError, Model, PriorError

#: Chains, sweeps before their draws, draws of each at least and at most.
CHAINS, _WARMUP, FEWEST, _MOST = 8, 200, 100, 2000
#: Components whose relabelings are all summed over at most.
_MOST_COMPONENTS = 12


class Chib(NamedTuple):
    """log_estimates (R,) of the chains; the worth of their draws, and whether they agree, in log p(t | x, z)."""

    log_estimates: Array
    ess: float
    r_hat: float
    draws: int


def has_chib(model: Model) -> bool:
    """Whether the estimate is defined for a model at its priors."""
    try:
        _require_mixture(model)
    except (MethodError, PriorError):
        return False
    return True


def estimate_by_chib(
    model: Model, data: Data, *, seed: int, deadline: float, progress: bool, enough: Callable[[Array], bool]
) -> Chib:
    """Run the chains of a mixture and estimate its evidence from each, until there is ``enough`` or the deadline.

    Raises MethodError for other models and more than 12 components; PriorError for priors that are not conjugate.
    """
    _require_mixture(model)
    sampler = MixtureSampler()
    chains = sampler.chains(model, data, [seed_of(seed, "chib", c) for c in range(CHAINS)], [None] * CHAINS)
    made: Any = chains
    with Progress(_WARMUP + _MOST, "evidence: Gibbs sampling", enabled=progress) as bar:
        for _ in range(_WARMUP):
            for chain in made:
                chain.sweep()
            bar.advance()
        best = max(made, key=lambda chain: chain.log_joint()).means()
        problem = _Problem(model, data, best)
        found: list[list[float]] = []
        while len(found) < _MOST and (len(found) < FEWEST or time.perf_counter() < deadline):
            for chain in made:
                chain.sweep()
            found.append([problem.log_density(chain) for chain in made])
            bar.advance()
            if len(found) % FEWEST == 0 and enough(problem.log_joint() - _average(found)):
                break
    log_density = np.array(found).T
    mean = _average(found)
    values = log_density[..., None]
    ess = float(effective_size(values)[0]) if np.ptp(log_density) else float(log_density.size)
    agree = float(r_hat(values)[0]) if np.ptp(log_density) else 1.0
    return Chib(problem.log_joint() - mean, ess, agree, log_density.size)


def _require_mixture(model: Model) -> None:
    name = type(model).__name__
    if not is_mixture(model):
        raise MethodError(
            f"Chib's estimate needs p(x | globals) and a Gibbs sampler with conjugate posteriors of the globals, which "
            f"mixtures have and {name} has not; {expect_other(model)}"
        )
    if model.has_functions or model.known or with_references(model)[1]:
        raise PriorError(f"Chib's estimate needs conjugate priors of {name}; expected them, or method='smc'")
    if model.local_shape[0] > _MOST_COMPONENTS:
        raise MethodError(
            f"Chib's estimate of {model.local_shape[0]} components would sum 2^{model.local_shape[0]} sets of them; "
            f"expected at most {_MOST_COMPONENTS}, or method='smc'"
        )


def _average(found: list[list[float]]) -> Array:
    """Average the densities of each chain; return their logarithms (R,)."""
    return np.asarray(logsumexp(found, 0)) - math.log(len(found))


class _Problem:
    """A mixture, its rows and the point t at which densities are evaluated."""

    def __init__(self, model: Model, data: Data, point: dict[str, Tensor]):
        self.model, self.point, engine = model, point, MixtureExact()
        self.density, self.rows = density_of(model), engine.rows(model, data)
        self.classes = model.local_shape[0]
        self.prior = self.density.prior(model, self.rows.like)
        self.proportions = Dirichlet.of(model, "mixing_proportion", self.rows.like).expand((self.classes,))
        self.log_proportion = point["mixing_proportion"].log()
        self.component = self.density.value_of_classes(point[self.density.site])
        sets = exchangeable(model)
        same = torch.eye(self.classes, dtype=torch.bool)
        for one in sets:
            same[torch.tensor(one)[:, None], torch.tensor(one)] = True
        self.same = same
        self.log_relabelings = float(sum(gammaln(len(one) + 1) for one in sets))

    def log_joint(self) -> float:
        """log p(x, t)."""
        evidence = MixtureExact().log_evidence(self.model, self.point, self.rows).double().sum()
        own = self._table(self.prior).diagonal().sum()
        concentration = self.proportions.concentration
        return float(evidence + own + _log_dirichlet(concentration, self.log_proportion))

    def log_density(self, chain: MixtureChain) -> float:
        """log p(t | x, z) at the chain's classes, averaged over the relabelings of t."""
        chosen = one_hot(torch.as_tensor(chain.assignment), self.classes).to(self.rows.like)
        counts, observed, size = self.rows.collect(chosen), self.rows.sum_observed(chosen), chosen.sum(0)
        posterior = self.density.update(self.prior, counts, size.unsqueeze(-1) if observed is None else observed)
        concentration = self.proportions.concentration + size
        table = self._table(posterior) + torch.outer(self.log_proportion, concentration - 1)
        normaliser = torch.lgamma(concentration.sum()) - torch.lgamma(concentration).sum()
        return (
            float(normaliser) + log_permanent(array(table.masked_fill(~self.same, -torch.inf))) - self.log_relabelings
        )

    def _table(self, pair: Pair) -> Tensor:
        """log density of component j of t under the prior or posterior of class k, (K, K)."""
        found, value = pair.expand(tuple(self.component.shape)).parameters, self.component.unsqueeze(1)
        if "concentration" in found:
            concentration = found["concentration"]
            mass = torch.lgamma(group_sums(concentration, getattr(pair, "groups", 1))).sum(-1)
            return torch.xlogy(concentration - 1, value).sum(-1) + mass - torch.lgamma(concentration).sum(-1)
        law = torch.distributions.Beta if "on" in found else torch.distributions.Gamma
        first, second = found.values()
        return law(first, second).log_prob(value).sum(-1)


def _log_dirichlet(concentration: Tensor, log_value: Tensor) -> Tensor:
    normaliser = torch.lgamma(concentration.sum()) - torch.lgamma(concentration).sum()
    return normaliser + ((concentration - 1) * log_value).sum()


def log_permanent(table: Array) -> float:
    """Compute the logarithm of the permanent of e^table (K, K), of positive entries, by sums over sets of columns."""
    size = len(table)
    found = np.full(1 << size, -np.inf)
    found[0] = 0.0
    for chosen in range(1, 1 << size):
        columns = [k for k in range(size) if chosen >> k & 1]
        found[chosen] = logsumexp([found[chosen ^ 1 << k] + table[len(columns) - 1, k] for k in columns])
    return float(found[-1])
