"""Starts of the engines and of the sampler: a short run of the process, topics merged while the bound gains."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from custom_inference.families.hdp.chain import HdpChain, begin
from custom_inference.families.hdp.variational import HdpVB
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.chain import TokenList
from custom_inference.families.topics.propose import Cells, TopicProposals, merge_topics
from ppl_models import HDP

#: Passes of the chain, and the largest concentration of the topics that it samples under.
_SWEEPS, _MOST_GAMMA = 40, 0.05
#: It starts with a topic for so many tokens: of more with few tokens each it makes none in so few passes.
_TOKENS = 200
#: Passes of variational Bayes, after the first, before topics are merged.
_PASSES = 10
#: Tokens of a topic below which it has none.
_NONE = 1e-6
#: Shares of topics in cells that mergers look at, at most: of more documents those of some.
_SHARES = 2**22


class HdpProposals(TopicProposals):
    """Starts of the engines."""

    def propose(self, model: HDP, rows: DocumentRows, generator: torch.Generator, attempt: int) -> Any:
        """Sample and merge topics, every other time from half as many as the time before: what chains find in a few
        passes depends on how many they start with, however many there may be."""
        gamma = self.engine.words_prior(model, rows.like.values())
        gamma = gamma if gamma.ndim == 1 else gamma.mean(0)
        counts = propose_counts(model, rows, gamma, generator, _TOKENS * 2**attempt)
        return self.engine.from_counts(model, counts.to(rows.like))


def propose_counts(
    model: HDP, rows: DocumentRows, gamma: Tensor, generator: torch.Generator, tokens_of_topic: int = _TOKENS
) -> Tensor:
    """Sample tokens of every word in every topic, (K, V), the largest topic first; of those that the documents do not
    ask for none. tokens_of_topic: of how many tokens there is a topic when sampling begins."""
    seed = int(torch.randint(2**62, (), generator=generator))
    gamma = gamma.double().clamp(max=_MOST_GAMMA).expand(model.vocabulary_size)
    order = torch.randperm(len(rows), generator=generator)
    tokens, share = TokenList.for_start(rows.select(order), generator)
    usual = HDP(max_topics=model.max_topics, vocabulary_size=model.vocabulary_size)
    usual = usual.with_priors(topic=dist.Dirichlet(gamma))
    start, size = begin(usual), max(1, len(tokens) // tokens_of_topic)
    start["topic_weight"][size:] = 0
    start["topic_weight"] /= start["topic_weight"].sum()
    chain = HdpChain(usual, tokens, gamma, seed, start)
    for _ in range(_SWEEPS):
        chain.sweep()
    words = torch.as_tensor(chain.word_topic.T).double() / (1.0 if share is None else share)
    merged = _merge(usual, rows, words.to(rows.like), generator)
    merged = merged[torch.argsort(merged.sum(-1), descending=True)]
    counts = words.new_zeros(words.shape)
    counts[: len(merged)] = merged
    return counts


def _merge(model: HDP, rows: DocumentRows, words: Tensor, generator: torch.Generator) -> Tensor:
    """Return the tokens of the words in the topics (K', V) that variational Bayes makes of sampled ones (K, V), merged
    while its bound gains."""
    engine = HdpVB()
    state: Any = engine.from_counts(model, words)
    step = engine.e_step(model, state, rows)
    for _ in range(_PASSES):
        state = engine.m_step(model, state, step, rows)
        step = engine.e_step(model, state, rows, step.locals)
    counts = step.locals["counts"]
    used, number = counts.sum(0) > _NONE, max(1, rows.counts.values().numel())
    size = max(1, min(len(rows), _SHARES * len(rows) // (number * model.max_topics)))
    some = torch.randperm(len(rows), generator=generator)[:size].sort().values.to(counts.device)
    looked = rows.select(some)
    shares = engine.responsibilities(model, state, looked, {"counts": counts[some]})
    tokens = looked.counts.values() * (rows.lengths.sum() / looked.lengths.sum().clamp(min=1))
    alpha, cells = engine.document_alpha(model, state, rows)[used], Cells(shares.T[used], tokens)
    gamma = engine.words_prior(model, words)
    return merge_topics(step.statistics["topic"][used], counts[:, used], alpha, gamma, 1, cells).cpu().double()
