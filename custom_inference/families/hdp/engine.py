"""The hierarchical Dirichlet process by variational EM: ``topics.learned`` with alpha = a beta for all documents.

beta, a and c are points. The logits of the sticks v_k and the logarithms of a and c are unbounded coordinates; the
maximum is of the density of these, in which the stick-breaking prior has no edge that it piles up at. The volume is
prod_k beta_k, that of the softmax basis (``conjugate.pair``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from custom_inference.core.all_rows import AllRows
from custom_inference.core.engine import Params
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.chain import LdaChain, TokenList
from custom_inference.families.topics.learned import LearnedConcentration, log_prevalence, maximise
from custom_inference.families.topics.propose import TopicProposals, merge_topics
from ppl_models import HDP
from ppl_models.distributions import StickBreaking

#: Shares of topics are kept above this, and sticks that far from 0 and 1.
_LEAST = 1e-10
#: What concentrations are kept within.
_RANGE = 1e-3, 1e4


@dataclass(frozen=True, kw_only=True)
class HdpDirichlet(LearnedConcentration):
    """Dirichlet posteriors of the proportions; topics, their shares and the concentrations as points."""

    conjugate: ClassVar[Any] = {
        "topic_weight": (torch.distributions.Dirichlet, StickBreaking),
        "stick_concentration": (torch.distributions.Gamma,),
        "concentration": (torch.distributions.Gamma,),
    }

    def document_alpha(self, model: HDP, state: Params, rows: DocumentRows) -> Tensor:
        return (state["concentration"] * state["topic_weight"]).clamp_min(_LEAST)

    def complete(self, model: HDP, params: Params, counts: Tensor | None = None) -> Params:
        """Add shares by the topics' numbers of tokens, equal ones where these are unknown; and a and c of 1."""
        topic, share = params["topic"], params["topic"].new_ones(len(params["topic"]))
        if counts is not None:
            sizes = counts.sum(-1)
            share = sizes.to(topic) + 1e-3 * sizes.sum() / len(topic) + 1e-6
        one = topic.new_ones(())
        return {**params, "topic_weight": share / share.sum(), "concentration": one, "stick_concentration": one.clone()}

    def learn_concentration(self, model: HDP, params: Params, rows: AllRows, warm: Params) -> Params:
        """Update beta, a and c so that they climb the likelihood of the expected counts, with their priors."""
        parts = [each["counts"] for _, each in rows.pieces(warm)]

        def term(point: Tensor) -> Tensor:
            weight, a, _ = _values(point)
            return sum((log_prevalence((a * weight).clamp_min(_LEAST), n) for n in parts), point.new_zeros(()))

        def prior(point: Tensor) -> Tensor:
            return log_density(model, *_values(point))

        weight, a, c = _values(maximise(term, prior, _point(params), rows))
        return {"topic_weight": weight, "concentration": a, "stick_concentration": c}

    def prior_term(self, model: HDP, params: Params) -> Tensor:
        topic = self.topics(model, params)
        density = Dirichlet(self.words_prior(model, topic)).log_density(topic).double()
        weight, a, c = (params[site] for site in ("topic_weight", "concentration", "stick_concentration"))
        return density + log_density(model, weight, a, c)


def log_density(model: HDP, weight: Tensor, a: Tensor, c: Tensor) -> Tensor:
    """Compute the log density of the logits of sticks and of log a and log c, under the priors of the values."""
    found = model.prior("topic_weight", like=weight, values={"stick_concentration": c}).log_prob(weight)
    found = found + weight.clamp_min(torch.finfo(weight.dtype).tiny).log().sum()
    for site, value in (("concentration", a), ("stick_concentration", c)):
        found = found + model.prior(site, like=value).log_prob(value) + value.log()
    return found


def _point(params: Params) -> Tensor:
    weight = params["topic_weight"].clamp_min(_LEAST)
    left = weight.flip(0).cumsum(0).flip(0)
    stick = (weight / left)[:-1].clamp(_LEAST, 1 - _LEAST)
    ends = [params[site].clamp(*_RANGE).log().reshape(1) for site in ("concentration", "stick_concentration")]
    return torch.cat([torch.logit(stick), *ends])


def _values(point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """beta (K,), a and c."""
    stick = torch.sigmoid(point[:-2]).clamp(_LEAST, 1 - _LEAST)
    left = torch.cat([stick.new_ones(1), torch.cumprod(1 - stick, 0)])
    weight = torch.cat([stick * left[:-1], left[-1:]])
    a, c = point[-2:].exp().clamp(*_RANGE)
    return weight, a, c


#: Passes of the chain, and the concentrations it samples under.
_SWEEPS, _ALPHA, _MOST_GAMMA = 40, 1.0, 0.05


class HdpProposals(TopicProposals):
    """Starts of the engine."""

    def propose(self, model: HDP, rows: DocumentRows, generator: torch.Generator, attempt: int) -> Params:
        del attempt
        gamma = self.engine.words_prior(model, rows.like.values())
        start = propose_number(model, rows, gamma if gamma.ndim == 1 else gamma.mean(0), generator)
        one = torch.ones((), dtype=torch.float64)
        values = {**start, "concentration": one, "stick_concentration": one}
        return {site: value.to(rows.like) for site, value in values.items()}


def propose_number(model: HDP, rows: DocumentRows, gamma: Tensor, generator: torch.Generator) -> Params:
    """Topics (K, V) and their shares (K,); topics beyond those that were found have next to no share."""
    size = model.max_topics
    alpha = torch.full((size,), _ALPHA / size, dtype=torch.float64)
    seed = int(torch.randint(2**62, (), generator=generator))
    gamma = gamma.double().clamp(max=_MOST_GAMMA)
    order = torch.randperm(len(rows), generator=generator)
    tokens, share = TokenList.for_start(rows.select(order), generator)
    chain = LdaChain(tokens, size, alpha, gamma, seed)
    for _ in range(_SWEEPS):
        chain.sweep()
    words, usage = torch.as_tensor(chain.word_topic.T).double(), torch.as_tensor(chain.document_topic).double()
    used = words.sum(1) > 0
    merged = merge_topics(words[used], usage[:, used], alpha[0], gamma, 1, while_it_gains=True)
    merged = merged[torch.argsort(merged.sum(-1), descending=True)]
    counts = torch.zeros(size, words.shape[1], dtype=torch.float64)
    counts[: len(merged)] = merged if share is None else merged / share
    weight = counts.sum(-1) + 1e-6 * counts.sum() / size
    topic = counts + gamma
    return {"topic": topic / topic.sum(-1, keepdim=True), "topic_weight": weight / weight.sum()}
