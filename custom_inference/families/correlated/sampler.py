"""Gibbs sampling of correlated topic models, the words' topics integrated out: the sampler of ``CollapsedGibbs``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from custom_inference.core.local_inference import Local, solve_local
from custom_inference.core.posteriors import GaussianPosterior
from custom_inference.families.common.explicit import Explicit, with_references
from custom_inference.families.common.hyper import with_hyper_parameters
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.correlated.chain import CorrelatedChain
from custom_inference.families.correlated.common import CorrelatedRows
from custom_inference.families.correlated.propose import propose_globals
from custom_inference.families.correlated.seen import SeenGaussian
from custom_inference.gibbs.protocol import Chain, Params, Sampler, no_bound
from ppl_models import Data, Model, PriorError
from ppl_models.core.hierarchy import is_function


class CorrelatedSampler(Sampler):
    """Chains of :class:`CorrelatedChain`."""

    def check(self, model: Any, data: Data) -> None:
        for site in (*model.location_sites, "covariance"):
            if is_function(model.priors[site]):
                raise PriorError(f"collapsed Gibbs sampling takes no prior of '{site}' that is a function; use NUTS")
        SeenGaussian(model)
        _topics(model)

    def chain(self, model: Any, data: Data, seed: int, start: Params | None) -> Chain:
        gamma, explicit = _topics(model)
        chain = CorrelatedChain(model, CorrelatedRows.read(model, data), gamma, seed, start, explicit)
        return with_hyper_parameters(model, chain, {} if explicit is None else {"topic": explicit}, seed, start)

    def propose(self, model: Any, data: Data, seed: int) -> Params:
        """Topics from the best of short runs of EM, and the moments of their logits."""
        generator = torch.Generator().manual_seed(seed % 2**63)
        return propose_globals(model, CorrelatedRows.read(model, data).to(torch.float64), _topics(model)[0], generator)

    def local_of_draws(self, model: Model, data: Data, locals_: Tensor) -> Local:
        """The Gaussian with the draws' mean and covariance; of few draws drawn to its diagonal."""
        draws = locals_.double()
        mean, number, size = draws.mean(0), len(draws), draws.shape[-1]
        off = draws - mean
        covariance = torch.einsum("snk,snl->nkl", off, off) / max(number - 1, 1)
        trust = number / (number + size + 1)
        own = covariance.diagonal(dim1=-2, dim2=-1).clamp_min(1e-6)
        shrunk = trust * covariance + (1 - trust) * torch.diag_embed(own)
        return Local(GaussianPosterior(mean.to(data.x), shrunk.to(data.x)), no_bound(len(data), data.x))

    def local_posterior(self, model: Model, params: Params, data: Data, *, seed: int = 0) -> Local:
        """Infer the locals at given globals by the Gaussian of the variational engine, with its bound."""
        return solve_local(model, params, data, bound="gaussian", seed=seed)


def _topics(model: Any) -> tuple[Tensor, Explicit | None]:
    """gamma, of the topics' Dirichlet prior or what stands for it, and the topics where they are explicit."""
    conjugate, explicit = with_references(model, shared=("topic",))
    gamma = Dirichlet.of(conjugate, "topic", torch.zeros((), dtype=torch.float64)).concentration
    return gamma if gamma.ndim < 2 else gamma.mean(0), explicit.get("topic")
