"""The sampler of relational topic models: which chain, under which priors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from custom_inference.core.local_inference import Local, solve_local
from custom_inference.families.common.explicit import first_values
from custom_inference.families.common.hyper import with_hyper_parameters
from custom_inference.families.links.gibbs import LinkChain
from custom_inference.families.links.pairs import LinkedRows
from custom_inference.families.links.proportions import ProportionsChain
from custom_inference.families.topics.chain import vector
from custom_inference.families.topics.gibbs import LdaSampler, topic_priors
from custom_inference.gibbs.protocol import Chain, Params
from ppl_models import Data, PriorError


class LinkSampler(LdaSampler):
    """Chains of :class:`LinkChain`, and of :class:`ProportionsChain` where links are on the proportions."""

    def check(self, model: Any, data: Data) -> None:
        if model.link_on != "tokens" and (model.link != "additive" or model.negatives != 0):
            found = f"link={model.link!r}, negatives={model.negatives}"
            raise PriorError(
                f"links on the proportions with {found} have no collapsed sampler, which takes link='additive' with "
                "negatives=0; use SVI or NUTS"
            )
        topic_priors(model)

    def propose(self, model: Any, data: Data, seed: int) -> None:
        """The chain's own sweeps of LDA come first."""

    def chain(self, model: Any, data: Data, seed: int, start: Params | None) -> Chain:
        rows = LinkedRows.with_links(model, data)
        alpha, gamma, topics = topic_priors(model)
        rows = replace(rows, pairs=rows.pairs.regularise(vector(alpha, model.num_topics)))
        settings: Any = {"given": None if start is None else start["topic"], "explicit": topics}
        at = model.at(first_values(model)) if model.has_functions else model
        kind = LinkChain if model.link_on == "tokens" else ProportionsChain
        chain = kind(at, rows, seed, start, alpha=alpha, gamma=gamma, **settings)
        explicit: Any = {"link_weight": chain.weights, "link_bias": chain.bias}
        explicit |= {} if topics is None else {"topic": topics}
        return with_hyper_parameters(model, chain, explicit, seed, start)

    def local_posterior(self, model: Any, params: Params, data: Data, *, seed: int = 0) -> Local:
        """Infer the locals by the variational engine, which leaves the links out where it has no bound for them."""
        return solve_local(model, params, data, seed=seed)
