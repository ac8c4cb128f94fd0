"""Collapsed Gibbs sampling of mixtures: the class of every row, proportions and components integrated out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln
from torch import Tensor

from custom_inference.core.local_inference import Local
from custom_inference.core.posteriors import BetaPosterior, CodePosterior, DirichletPosterior, GammaPosterior
from custom_inference.families.common.dirichlet import dirichlet_prior
from custom_inference.families.mixtures.common import Density
from custom_inference.families.mixtures.densities import Rates, density_of
from custom_inference.families.mixtures.engines import MixtureExact
from custom_inference.families.mixtures.rows import MixtureRows
from custom_inference.gibbs.protocol import Chain, Params, Sampler, no_bound
from ppl_models import Data, MethodError, Model
from ppl_models.data import sparse as _sparse
from ppl_models.distributions import Flat


class MixtureChain(Chain):
    """The classes of all rows.

    assignment: (N,) int64, -1 before the first sweep. responsibility: (N, K), what each was last drawn with.
    given: log p(x_n, z_n = k) at values of the globals that the first classes are drawn from; without it the first
        sweep draws each given those before it.
    """

    def __init__(self, model: Model, density: Density, rows: MixtureRows, seed: int, given: Tensor | None = None):
        self.density, self.rows = density, rows
        self.prior = density.prior(model, rows.like)
        self.alpha = _array(dirichlet_prior(model, "mixing_proportion", rows.like).expand(model.local_shape))
        self._rng = np.array([seed % 2**64], np.uint64)
        self._generator = np.random.default_rng(seed % 2**64)
        self.assignment = np.full(len(rows), -1, np.int64)
        self.responsibility = np.zeros((len(rows), len(self.alpha)))
        if given is not None:
            odds = _array(torch.softmax(given, -1)).cumsum(1)
            below = odds < self._generator.random((len(rows), 1)) * odds[:, -1:]
            self.assignment = below.sum(1).clip(max=len(self.alpha) - 1)
        self._arguments = self._of_rates() if isinstance(density, Rates) else self._of_simplices()

    def sweep(self) -> None:
        """One new class for every row; other threads may run meanwhile."""
        from custom_inference.families.mixtures import gibbs_kernels as kernels

        sweep: Any = kernels.sweep_rates if isinstance(self.density, Rates) else kernels.sweep_simplices
        sweep(*self._arguments, self.responsibility, self._rng)

    def _of_simplices(self) -> tuple[NDArray[Any], ...]:
        """What the compiled sweep of words, categories or successes takes."""
        size, *statistics = self._statistics()
        density: Any = self.density
        rows, prior, counts, groups = density.cells(self.rows, self.prior, *statistics)
        layout = (_whole(part) for part in (rows.crow_indices(), rows.col_indices(), rows.values()))
        group = np.repeat(np.arange(groups), counts.shape[1] // groups)
        prior, table = _turned(prior), _turned(counts).astype(np.int64)
        mass, totals = (value.reshape(groups, -1, value.shape[1]).sum(1) for value in (prior, table))
        return *layout, group, self.assignment, self.alpha, prior, mass, _whole(size), table, totals

    def _of_rates(self) -> tuple[NDArray[Any], ...]:
        """What the compiled sweep of events takes."""
        size, counts, observed = self._statistics()
        x, mask = _sparse.dense(self.rows.counts), self.rows.mask
        seen = torch.ones_like(x) if mask is None else mask
        events, exposure = (_turned(value.expand_as(counts)).astype(np.int64) for value in (counts, observed))
        prior = (_turned(part) for part in self.prior)
        return _whole(x), _whole(seen), self.assignment, self.alpha, *prior, _whole(size), events, exposure

    def _statistics(self) -> tuple[Tensor, Tensor, Tensor]:
        """n (K,), S (K, F) and M (K, D) of the present classes; rows without one count in none."""
        classes = torch.arange(len(self.alpha))
        chosen = (torch.as_tensor(self.assignment)[:, None] == classes).to(self.rows.like)
        counts, observed = self.rows.collect(chosen), self.rows.observed(chosen)
        return chosen.sum(0), counts, chosen.sum(0).unsqueeze(-1) if observed is None else observed

    def log_joint(self) -> float:
        """log p(x, z) = log p(z | alpha) + sum_k log m(S_k, M_k), and what does not depend on the classes."""
        size, counts, observed = self._statistics()
        number, mass = _array(size), self.alpha.sum()
        proportions = gammaln(self.alpha + number) - gammaln(self.alpha)
        marginal = self.density.log_marginal(self.prior, counts, observed).double().sum()
        constant = self.rows.base.double().sum() + gammaln(mass) - gammaln(mass + number.sum())
        return float(proportions.sum() + marginal + constant)

    def _posteriors(self) -> dict[str, Any]:
        size, counts, observed = self._statistics()
        alpha = torch.as_tensor(self.alpha).to(size)
        components = self.density.posterior(self.density.update(self.prior, counts, observed))
        return {"mixing_proportion": DirichletPosterior(size + alpha), self.density.site: components}

    def means(self) -> Params:
        """E[globals | z, x]."""
        return {site: posterior.mean.double() for site, posterior in self._posteriors().items()}

    def draw(self) -> Params:
        """From p(globals | z, x), by the chain's own random state."""
        return {site: _drawn(posterior, self._generator) for site, posterior in self._posteriors().items()}

    def locals(self) -> Tensor:
        """The probabilities that each row's class was last drawn with, (N, K): their mean over draws is less noisy than
        that of the classes themselves (Rao-Blackwell)."""
        return torch.as_tensor(self.responsibility.copy())

    def indicators(self) -> Tensor:
        """The class of every row, (N,)."""
        return torch.as_tensor(self.assignment.copy())


class MixtureSampler(Sampler):
    """Chains of :class:`MixtureChain`, for every mixture."""

    def check(self, model: Model, data: Data) -> None:
        density, like = density_of(model), torch.zeros((), dtype=data.x.dtype, device=data.x.device)
        dirichlet_prior(model, "mixing_proportion", like)
        density.prior(model, like)
        if isinstance(model.priors[density.site], Flat):
            raise MethodError(f"the prior of '{density.site}' is improper (Flat) and cannot be integrated out; use EM")

    def chain(self, model: Model, data: Data, seed: int, start: Params | None) -> MixtureChain:
        engine = MixtureExact()
        rows = engine.rows(model, data)
        given = None if start is None else engine.log_joint(model, {s: v.to(rows.like) for s, v in start.items()}, rows)
        return MixtureChain(model, density_of(model), rows, seed, given)

    def local_of_draws(self, model: Model, data: Data, locals_: Tensor) -> Local:
        probability = locals_.mean(0)
        posterior = CodePosterior(torch.eye(probability.shape[1]).to(data.x), torch.log(probability).to(data.x))
        return Local(posterior, no_bound(len(data), data.x))


def _drawn(posterior: Any, generator: np.random.Generator) -> Tensor:
    least = np.finfo(np.float64).tiny
    if isinstance(posterior, GammaPosterior):
        return torch.as_tensor((generator.standard_gamma(_array(posterior.shape)) / _array(posterior.rate)).clip(least))
    if isinstance(posterior, BetaPosterior):
        return torch.as_tensor(generator.beta(_array(posterior.on), _array(posterior.off)))
    weight = generator.standard_gamma(_array(posterior.concentration)).clip(least)
    return torch.as_tensor(weight / weight.sum(-1, keepdims=True))


def _array(value: Tensor) -> NDArray[np.float64]:
    return value.detach().cpu().double().numpy()


def _turned(value: Tensor) -> NDArray[np.float64]:
    """(K, F) as (F, K), contiguous."""
    return np.ascontiguousarray(_array(value).T)


def _whole(value: Tensor) -> NDArray[np.int64]:
    return value.cpu().numpy().astype(np.int64)
