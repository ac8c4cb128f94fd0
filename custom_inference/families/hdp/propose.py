"""Starts of the hierarchical Dirichlet process: sampled with many topics, merged as long as that gains likelihood."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from custom_inference.core.engine import Params
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.chain import LdaChain, TokenList
from custom_inference.families.topics.propose import TopicProposals, merge_topics

#: Passes of the chain, and the concentrations it samples under.
_SWEEPS, _ALPHA, _MOST_GAMMA = 40, 1.0, 0.05


class HdpProposals(TopicProposals):
    """Starts of the engine."""

    def propose(self, model: Any, rows: DocumentRows, generator: torch.Generator, attempt: int) -> Params:
        del attempt
        gamma = self.engine.words_prior(model, rows.like.values())
        start = propose_number(model, rows, gamma if gamma.ndim == 1 else gamma.mean(0), generator)
        one = torch.ones((), dtype=torch.float64)
        values = {**start, "concentration": one, "stick_concentration": one}
        return {site: value.to(rows.like) for site, value in values.items()}


def propose_number(model: Any, rows: DocumentRows, gamma: Tensor, generator: torch.Generator) -> Params:
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
