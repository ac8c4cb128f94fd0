"""Starts of labelled LDA: sampled with topics to spare for every label, merged down label by label."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from custom_inference.core.engine import Params
from custom_inference.core.states import values_of
from custom_inference.families.common.documents import DocumentRows
from custom_inference.families.topics.chain import LdaChain, TokenList
from custom_inference.families.topics.propose import TopicProposals, merge_topics
from ppl_models import Model

#: Topics to spare, as a share of a label's.
_SPARE = 0.3
#: Passes of the chain, and over how many of the last counts are averaged.
_SWEEPS, _AVERAGE = 30, 5
#: Two starts found a topic in common where their word probabilities have at least this cosine.
_SAME = 0.9


class LabelledProposals(TopicProposals):
    """Starts of the engines of labelled LDA."""

    def propose(self, model: Any, rows: DocumentRows, generator: torch.Generator, attempt: int) -> Params:
        del attempt
        like = rows.like.values()
        gamma = self.engine.words_prior(model, like)
        gamma = (gamma if gamma.ndim == 1 else gamma.mean(0)).clamp(max=self.most_gamma)
        alpha = self.engine.alpha(model, like).clamp(max=self.most_alpha)
        return self.engine.from_counts(model, propose_labelled(model, rows, alpha, gamma, generator).to(like))

    def search_size(self, model: Any, num_rows: int) -> tuple[int, int]:
        """One start where every label has one topic: there is nothing to search for; else as of LDA."""
        starts, size = super().search_size(model, num_rows)
        settled = model.label_topics == 1 and model.num_common_topics <= 1
        return (1 if settled else starts), (num_rows if settled else size)

    def same_solution(self, model: Model, first: Any, second: Any) -> bool:
        """Topics of one label may be exchanged, those of two may not."""
        one, other = (torch.nn.functional.normalize(values_of(model, s)["topic"], dim=-1) for s in (first, second))
        label: Tensor = model.label_of_topic()  # pyright: ignore[reportAttributeAccessIssue]
        alike = torch.where(label[:, None] == label, one.cpu() @ other.cpu().T, 0.0)
        return bool((alike.amax(1) > _SAME).all() and (alike.amax(0) > _SAME).all())


def propose_labelled(
    model: Any, rows: DocumentRows, alpha: Tensor, gamma: Tensor, generator: torch.Generator
) -> Tensor:
    """Expected tokens of every word in every topic, (K, V). alpha (K,); gamma (V,) or one number."""
    label = model.label_of_topic()
    groups = [(label == one).nonzero().flatten() for one in label.unique(sorted=True).tolist()]
    sizes = [len(group) + (round(_SPARE * len(group) + 0.5) if len(group) > 1 else 0) for group in groups]
    source = torch.cat([group[:1].expand(size) for group, size in zip(groups, sizes, strict=True)])
    spread = [alpha[group].sum() / size for group, size in zip(groups, sizes, strict=True)]
    concentration = torch.cat([one.expand(size) for one, size in zip(spread, sizes, strict=True)]).double()
    rows = rows.select(torch.randperm(len(rows), generator=generator))
    allowed = concentration.new_ones(len(rows), len(source)) if rows.weight is None else rows.weight[:, source].double()
    seed = int(torch.randint(2**62, (), generator=generator))
    chain = LdaChain(TokenList.of(rows), len(source), concentration * allowed, gamma, seed)
    total = torch.zeros(len(source), rows.counts.shape[1], dtype=torch.float64)
    for sweep in range(_SWEEPS):
        chain.sweep()
        if sweep >= _SWEEPS - _AVERAGE:
            total += torch.as_tensor(chain.word_topic.T) / _AVERAGE
    usage, found = torch.as_tensor(chain.document_topic), torch.zeros(len(label), total.shape[1], dtype=torch.float64)
    for group, words, documents in zip(groups, total.split(sizes), usage.split(sizes, 1), strict=True):
        merged = merge_topics(words, documents, alpha[group].mean(), gamma, len(group))
        found[group] = merged[torch.argsort(merged.sum(-1), descending=True)]
    return found
