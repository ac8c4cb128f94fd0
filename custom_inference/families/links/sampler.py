"""The sampler of relational topic models, and its chain for the additive link on the proportions.

There every link has a topic that both documents drew, as a word more. With a topic l for every link, p(l = k) ~ w_k
pi_ik pi_jk and p(none) ~ w_0, links are counts of topics in both of their documents, beside those of the tokens, and
the proportions are integrated out as in LDA:

    p(q_il = k | rest) ~ (c_vk + gamma_v) (c_ik + m_ik + alpha_k) / (c_k + sum gamma)           (Murphy 2012, eq. 27.37)
    p(l_ij = k | rest) ~ w_k (c_ik + m_ik + alpha_k) (c_jk + m_jk + alpha_k)

with m the counts of the other links. That leaves out the factor exp(-s_ij) of the pairs, by which pairs without a link
speak: they speak of the weights alone, given the means of the proportions (``RTM.negatives = 0``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.local_inference import Local, solve_local
from custom_inference.families.common.explicit import first_values
from custom_inference.families.common.hyper import with_hyper_parameters
from custom_inference.families.links.gibbs import LinkChain
from custom_inference.families.links.pairs import Array, LinkedRows
from custom_inference.families.topics.chain import LdaChain, vector
from custom_inference.families.topics.gibbs import LdaSampler, topic_priors
from custom_inference.gibbs.protocol import Chain, Params
from ppl_models import RTM, Data, PriorError

#: Numbers of the proportions of all draws that are kept, at most.
_KEPT = 2**22


class ProportionsChain(LinkChain):
    """LDA's chain with a topic for every link; a link of ``link_copies`` has as many.

    label: (L,), K for none and before the first sweep. linked: m, (N, K).
    """

    def __init__(self, model: RTM, rows: LinkedRows, seed: int, start: Params | None, **settings: Any):
        pairs, topics = rows.pairs, model.num_topics
        copies = (pairs.y * model.link_copies).astype(int)
        self._links = pairs.first.repeat(copies), pairs.second.repeat(copies)
        self.label = np.full(len(self._links[0]), topics)
        self.linked = np.zeros((len(rows), topics))
        super().__init__(model, rows, seed, start, **settings)

    @property
    def document_topic(self) -> Any:
        """c + m, (N, K)."""
        return super().document_topic + self.linked

    @property
    def share(self) -> Array:
        """E[pi | rest], (N, K)."""
        mass = self.document_topic + self.alpha
        return mass / mass.sum(1, keepdims=True)

    def _weights(self) -> tuple[Array, Array, Array]:
        mass = self.alpha + self.linked
        return mass, mass, np.ones(self.num_topics)

    def sweep(self) -> None:
        LdaChain.sweep(self)
        if self.plain_sweeps > 0:
            self.plain_sweeps -= 1
            return
        mass = self._move_topics_of_links()
        if self.weights.known is None or self.bias.known is None:
            self.move_links(mass / mass.sum(1, keepdims=True))

    def _move_topics_of_links(self) -> Array:
        """alpha + c + m, (N, K), after it."""
        from custom_inference.families.links import kernels

        mass = self.document_topic + self.alpha
        weight, bias = self.weights.value.numpy(), float(self.bias.value)
        settings: Any = *self._links, self.label, mass, weight, bias, self._rng
        kernels.sweep_links_of_proportions(*settings)
        size, topics = self.linked.shape
        some = self.label < topics
        ends = [np.bincount(part[some] * topics + self.label[some], minlength=size * topics) for part in self._links]
        self.linked = (ends[0] + ends[1]).reshape(size, topics).astype(np.float64)
        return mass

    def _numbers(self, share: Array) -> Array:
        """Links of every topic and of none, (K + 1,)."""
        return np.bincount(self.label, minlength=self.num_topics + 1).astype(np.float64)

    def log_joint(self) -> float:
        """log p(y, q, l | w), the expected number of links at the means of the proportions, and the log priors."""
        weight, bias = self.weights.value.numpy(), float(self.bias.value)
        of_weight, of_bias = self.pairs.exposure(self.share)
        rate = np.log(np.maximum(np.append(weight, bias), 1e-300))
        links = self._numbers(self.share) @ rate - self.copies * (of_weight @ weight + of_bias * bias)
        own = sum(one.log_prior(one.value) for one in (self.weights, self.bias))
        return LdaChain.log_joint(self) + float(links) + self.copies * self.pairs.constant + own


class LinkSampler(LdaSampler):
    """Chains of :class:`LinkChain`, and of :class:`ProportionsChain` where links are on the proportions."""

    def check(self, model: RTM, data: Data) -> None:
        if model.link_on != "tokens" and (model.link != "additive" or model.negatives != 0):
            found = f"link={model.link!r}, negatives={model.negatives}"
            raise PriorError(
                f"links on the proportions with {found} have no collapsed sampler, which takes link='additive' with "
                "negatives=0; use SVI or NUTS"
            )
        topic_priors(model)

    def propose(self, model: RTM, data: Data, seed: int) -> None:
        """The chain's own sweeps of LDA come first."""

    def chain(self, model: RTM, data: Data, seed: int, start: Params | None) -> Chain:
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

    def keep_each(
        self, means: list[Params], draws: list[dict[str, list[Tensor]]], locals_: list[list[Tensor]]
    ) -> Params:
        """Keep each chain's topics, and the weights, bias and mean proportions of its draws, or, where these are many
        numbers, of all of them together; in single precision."""
        share = [torch.stack(one) / torch.stack(one).sum(-1, keepdim=True) for one in locals_]
        sites, beside = (
            {site: torch.stack([one[site] for one in means]) for site in means[0]},
            ("link_weight", "link_bias"),
        )
        least = min(len(one) for one in share)
        whole = all(
            len(one.get(site, ())) == len(each) for site in beside for one, each in zip(draws, share, strict=True)
        )
        if whole and len(share) * least * share[0][0].numel() <= _KEPT:
            sites |= {site: torch.stack([torch.stack(one[site][:least]) for one in draws]) for site in beside}
            shares = torch.stack([one[:least] for one in share])
        else:
            shares = torch.stack([one.mean(0) for one in share])
        return {f"each_{name}": sites[name].float() for name in ("topic", *beside)} | {"each_share": shares.float()}

    def local_posterior(self, model: RTM, params: Params, data: Data, *, seed: int = 0) -> Local:
        """Infer the locals by the variational engine, which leaves the links out where it has no bound for them."""
        return solve_local(model, params, data, seed=seed)
