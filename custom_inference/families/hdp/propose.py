"""Starts of the engines and of the sampler: a short run of the process, topics merged while that gains."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from custom_inference.families.hdp.chain import HdpChain, begin
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.chain import TokenList
from custom_inference.families.topics.propose import TopicProposals, merge_topics
from ppl_models import HDP

#: Passes of the chain, and the largest concentration of the topics that it samples under.
_SWEEPS, _MOST_GAMMA = 40, 0.05
#: It starts with a topic for so many tokens, of more with few tokens each it makes none in so few passes.
_TOKENS = 200


class HdpProposals(TopicProposals):
    """Starts of the engines."""

    def propose(self, model: HDP, rows: DocumentRows, generator: torch.Generator, attempt: int) -> Any:
        del attempt
        gamma = self.engine.words_prior(model, rows.like.values())
        counts = propose_counts(model, rows, gamma if gamma.ndim == 1 else gamma.mean(0), generator)
        return self.engine.from_counts(model, counts.to(rows.like))


def propose_counts(model: HDP, rows: DocumentRows, gamma: Tensor, generator: torch.Generator) -> Tensor:
    """Sample tokens of every word in every topic, (K, V), the largest topic first; of those that the documents do not
    ask for none."""
    seed = int(torch.randint(2**62, (), generator=generator))
    gamma = gamma.double().clamp(max=_MOST_GAMMA)
    order = torch.randperm(len(rows), generator=generator)
    tokens, share = TokenList.for_start(rows.select(order), generator)
    usual = HDP(max_topics=model.max_topics, vocabulary_size=model.vocabulary_size)
    start, size = begin(usual), max(1, len(tokens) // _TOKENS)
    start["topic_weight"][size:] = 0
    start["topic_weight"] /= start["topic_weight"].sum()
    chain = HdpChain(usual, tokens, gamma, seed, start)
    for _ in range(_SWEEPS):
        chain.sweep()
    words, usage = torch.as_tensor(chain.word_topic.T).double(), torch.as_tensor(chain.document_topic).double()
    used = words.sum(1) > 0
    alpha = torch.tensor(chain.concentration / int(used.sum())).double()
    merged = merge_topics(words[used], usage[:, used], alpha, gamma, 1, while_it_gains=True)
    merged = merged[torch.argsort(merged.sum(-1), descending=True)]
    counts = torch.zeros(model.max_topics, words.shape[1], dtype=torch.float64)
    counts[: len(merged)] = merged if share is None else merged / share
    return counts
