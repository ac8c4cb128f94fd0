"""Gibbs sampling of PMF with learned priors (Bayesian PMF) as the sampler of ``CollapsedGibbs``.

Nothing is integrated out but by Rao-Blackwell: the state has all rows, gains and priors (``gibbs``). Chains start at
draws from variational fits of their own, and are compared by what no rotation, shift or scale of factors changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import Local
from custom_inference.core.posteriors import GaussianPosterior
from custom_inference.core.settings import require_whole
from custom_inference.families.ratings import gibbs as _gibbs
from custom_inference.families.ratings.incidence import Array
from custom_inference.families.ratings.priors import settings_of, units_of_rows
from custom_inference.families.ratings.sides import Pool
from custom_inference.families.ratings.translate import (
    RatingsProblem,
    Values,
    bins_of,
    log_volume,
    sites_of,
    variational_draws,
)
from custom_inference.families.ratings.variational import RatingFactors
from custom_inference.families.ratings.vb import feedback_details, require_flag, require_ratings
from custom_inference.gibbs import Chain, CollapsedGibbs, Sampler
from custom_inference.gibbs.protocol import Params, no_bound
from ppl_models import Data, MethodError, Model


class RatingsChain(Chain):
    """One chain from a variational fit. target (I, K): the factors of items that those of draws are turned to."""

    def __init__(self, problem: RatingsProblem, at: RatingFactors, target: Array, seed: int):
        self.problem, self.target, self.ridges = problem, target, list[list[float]]()
        self.interrupted = at.interrupted
        self._generator, self._pool = np.random.default_rng(seed), Pool(1)
        self._chain = _gibbs.Chain.of(at, variational_draws(at, 1, self._generator)[0])

    def sweep(self) -> None:
        _gibbs.sweep(self._chain, self._pool, self._generator)

    def log_joint(self) -> float:
        model, data = self.problem.model, self.problem.data
        return _gibbs.log_joint(self._chain) + log_volume(model, data) + self._log_volume()

    def _log_volume(self) -> float:
        """Compute the log volume of the density of the state: rows, what they are regressed on and precisions, as
        ``gibbs`` has them, the overall mean and biases of bins."""
        chain, model = self._chain, self.problem.model
        unit, units = math.log(model.units[1]), units_of_rows(model)
        found = 0.0 if chain.outcomes is not None else 2 * unit  # tau is of 1 / unit^2
        for side, own in ((chain.user, units["user"]), (chain.item, units["item"])):
            assert side.prior is not None
            rows = len(side.mean) + len(side.prior.coefficient) - (len(own) + 1)  # d (D L D) / d L = |D|^(d + 1)
            found -= rows * float(own.log().sum())
        if chain.drift is not None:
            found -= unit * sum(one.mean.size for one in chain.drift.bins.values())
        return found - unit * (chain.settings.centre is not None and chain.settings.centre[1] > 0)

    def means(self) -> Params:
        """Return the state of the chain; as everything is drawn, :meth:`draw`, which the caller asks for next, gives
        the same."""
        chain, model = self._chain, self.problem.model
        assert chain.user.prior is not None and chain.item.prior is not None
        rows, gains = (chain.user.mean, chain.item.mean), (chain.user.gain, chain.item.gain)
        priors = chain.user.prior, chain.item.prior
        values = Values(chain.tau, rows, gains, priors, chain.scale, bins_of(chain.drift)).rotate_to(self.target)
        self._sites = sites_of(model, self.problem.data, values, chain)
        self.ridges.append(values.ridges)
        return self._sites

    def draw(self) -> Params:
        return self._sites

    def indicators(self) -> Tensor:
        raise MethodError("PMF has no discrete latents: use indicators=False")

    def locals(self) -> Tensor:
        return self._sites[self.problem.model.local_site]

    def watch(self) -> dict[str, float]:
        (centre, unit), found = self.problem.model.units, _gibbs.summaries(self._chain)
        return {name: unit * value + centre * (name == "mean prediction") for name, value in found.items()}


@dataclass(frozen=True)
class RatingsSampler(Sampler):
    """Makes the chains. start_sweeps: of the variational fits that they start from; the rest as in ``RatingsGibbs``."""

    start_sweeps: int = 10
    rank: int = 75
    implicit: bool = False

    matched: ClassVar[bool] = False
    entries: ClassVar[int] = 2**25
    target: ClassVar[str] = "log p(x, profiles, globals)"

    def check(self, model: Model, data: Data) -> None:
        settings_of(require_ratings("Gibbs", model), self.rank)

    def chains(self, model: Any, data: Data, seeds: Sequence[int], starts: Sequence[Params | None]) -> list[Chain]:
        """Make the chains, which share the columns of their features."""
        problem = RatingsProblem.of(model, data, self.rank, self.implicit)
        start = problem.start(starts[0])  # the same for all chains, which draw apart from there
        fits = problem.fits([seed % 2**63 for seed in seeds], sweeps=self.start_sweeps, start=start)
        target = fits[0].item.mean[:, 1:]
        pairs = zip(fits, seeds, strict=False)  # fewer after Ctrl-C
        return [RatingsChain(problem, at, target, seed) for at, seed in pairs]

    def chain(self, model: Any, data: Data, seed: int, start: Params | None) -> Chain:
        return self.chains(model, data, [seed], [start])[0]

    def local_of_draws(self, model: Model, data: Data, locals_: Tensor) -> Local:
        """Return the Normal with the mean and covariance of the draws."""
        mean = locals_.mean(0)
        centred = locals_ - mean
        covariance = torch.einsum("snk,snl->nkl", centred, centred) / max(1, len(centred) - 1)
        posterior = GaussianPosterior(mean, covariance + 1e-9 * torch.eye(mean.shape[1]).to(mean))
        return Local(posterior, no_bound(len(data), mean), what="draws", family="Gibbs")


@dataclass(frozen=True, kw_only=True)
class RatingsGibbs(CollapsedGibbs):
    """Gibbs sampling of PMF with learned priors (Bayesian PMF): ``CollapsedGibbs`` with settings of ratings.

    start_sweeps: of the variational fits from which chains start. rank: of covariates the principal coordinates that
    are used. implicit: learn from who rated what, too, as in variational Bayes.

    The status has the R-hat and effective size of sigma and of mean and size of the predictions of all pairs, which do
    not tell rotations apart, and of the log joint, which needs longer chains than predictions do.

    Salakhutdinov & Mnih, *Bayesian probabilistic matrix factorization using MCMC*, ICML 2008.
    """

    num_samples: int = 100
    warmup: int = 100
    chains: int = 2
    start_sweeps: int = 10
    rank: int = 75
    implicit: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("start_sweeps", "rank"):
            require_whole(name, getattr(self, name), 1)
        require_flag(self.implicit)

    @property
    def name(self) -> str:
        return "Gibbs"

    def sampler(self, model: Model) -> Sampler:
        return RatingsSampler(self.start_sweeps, self.rank, self.implicit)

    def check(self, model: Model) -> None:
        settings_of(require_ratings(self.name, model), self.rank)

    def _result(self, records: list[Any], data: Data, seed: int, interrupted: bool) -> Fit:
        """New users and items have the median ridge of feedback over the draws."""
        fit = super()._result(records, data, seed, interrupted)
        ridges = np.median([one for record in records for one in record.chain.ridges], 0).tolist()
        fit.details |= feedback_details(self.implicit, self.rank, [ridges])
        return fit
