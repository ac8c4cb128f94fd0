"""Chains of ``chain`` as the sampler of ``CollapsedGibbs``."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from custom_inference.core.exchangeable import exchangeable
from custom_inference.core.local_inference import Local
from custom_inference.families.common.explicit import Explicit, dependent_sites
from custom_inference.families.conjugate.dirichlet import normalise
from custom_inference.families.hdp.chain import HdpChain, begin, without_order
from custom_inference.families.hdp.engine import LEAST, SITES, HdpDirichlet, has_sticks
from custom_inference.families.hdp.propose import propose_counts
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.chain import TokenList
from custom_inference.families.topics.gibbs import LdaSampler, add_hyper_parameters, local_draws, words_prior
from custom_inference.gibbs.protocol import Chain, Params
from ppl_models import HDP, Data, PriorError


class HdpSampler(LdaSampler):
    """Chains of :class:`HdpChain`."""

    learns = False

    def exchangeable(self, model: HDP) -> list[list[int]]:
        """All topics under sticks, whose order the chain does not keep, unless some have names of their own."""
        unordered = exchangeable(without_order(model))
        return unordered if unordered == [[*range(model.sizes["component"])]] else exchangeable(model)

    def check(self, model: HDP, data: Data) -> None:
        """Raises PriorError for a prior of the shares other than sticks or a Dirichlet, and for functions."""
        dependent = [site for site in dependent_sites(model) if site in SITES]
        if dependent:
            raise PriorError(f"collapsed Gibbs takes no prior of '{dependent[0]}' that is a function; use NUTS")
        prior = model.priors["topic_weight"]
        dirichlet = isinstance(prior, torch.distributions.Dirichlet)
        if not (has_sticks(model) or dirichlet or "topic_weight" in model.known):
            raise PriorError(f"collapsed Gibbs sampling takes sticks or a Dirichlet for 'topic_weight', not {prior}")
        _topics_prior(model)

    def chain(self, model: HDP, data: Data, seed: int, start: Params | None) -> Chain:
        gamma, explicit = _topics_prior(model)
        at = begin(model) | (start or {}) | model.known
        settings: Any = {"given": at.get("topic"), "explicit": explicit}
        chain = HdpChain(model, TokenList.of(DocumentRows.of(data)), gamma, seed, at, **settings)
        return add_hyper_parameters(model, chain, seed, start)

    def propose(self, model: HDP, data: Data, seed: int) -> Params:
        gamma, _ = _topics_prior(model)
        counts = propose_counts(model, DocumentRows.of(data), gamma, torch.Generator().manual_seed(seed % 2**63))
        return HdpDirichlet().complete(model, {"topic": normalise(counts + gamma)}, counts)

    def local_posterior(self, model: HDP, params: Params, data: Data, *, seed: int = 0) -> Local:
        alpha = (params["concentration"] * params["topic_weight"]).clamp_min(LEAST).double().numpy()
        return self.local_of_draws(model, data, local_draws(DocumentRows.of(data), alpha, params["topic"], seed))


def _topics_prior(model: HDP) -> tuple[Tensor, Explicit | None]:
    """gamma, or what stands for it, and the topics where they are explicit."""
    others: dict[str, Any] = dict.fromkeys(SITES[1:], dist.Gamma(1.0, 1.0))
    others["topic_weight"] = dist.Dirichlet(torch.ones(model.max_topics))
    return words_prior(model.with_priors(**others))[1:]
