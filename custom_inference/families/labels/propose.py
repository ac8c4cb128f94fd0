"""Starts of labelled LDA: topics that are found without the labels, and then given to these.

Sampled with the labels, a topic common to all documents is easily learned several times, once for each label, and its
own place is taken by a topic of some label; the sampler does not leave that soon. LDA's topics know nothing of labels.
Each goes to a place, a label's or a common one, so that as many tokens as possible are in documents that may use their
topic: with n_ik tokens of topic k in document i, and a_ij whether it may use place j, that is the assignment with the
largest sum of (n'a)_kj.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from custom_inference.core.engine import Params
from custom_inference.core.states import values_of
from custom_inference.families.common.documents import DocumentRows
from custom_inference.families.topics.dirichlet import Scores, sweep_documents
from custom_inference.families.topics.propose import TopicProposals, propose_topics
from ppl_models import Model

#: Two starts found a topic in common where their word probabilities have at least this cosine.
_SAME = 0.9
#: Starts of a search where some label has several topics, or several topics are common.
_STARTS = 6


class LabelledProposals(TopicProposals):
    """Starts of the engines of labelled LDA."""

    def propose(self, model: Any, rows: DocumentRows, generator: torch.Generator, attempt: int) -> Params:
        del attempt
        like = rows.like.values()
        gamma = self.engine.words_prior(model, like)
        gamma = (gamma if gamma.ndim == 1 else gamma.mean(0)).clamp(max=self.most_gamma)
        alpha = self.engine.alpha(model, like).clamp(max=self.most_alpha)
        return self.engine.from_counts(model, propose_labelled(model, rows, alpha, gamma, generator))

    def search_size(self, model: Any, num_rows: int) -> tuple[int, int]:
        """One start where every topic has a label of its own: there is nothing to search for."""
        settled = model.label_topics == 1 and model.num_common_topics == 0
        return (1, num_rows) if settled else (_STARTS, super().search_size(model, num_rows)[1])

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
    if rows.weight is None:
        return propose_topics(rows, alpha, gamma, generator)
    free, even = replace(rows, weight=None), torch.full_like(alpha, float(alpha.mean()))
    counts = propose_topics(free, even, gamma, generator)
    topic = counts + gamma.to(counts)
    scores = Scores.of(torch.log(topic / topic.sum(-1, keepdim=True)))
    usage = sweep_documents(free, scores, even.to(counts), None, sweeps=20, threshold=1e-2).concentration - even
    source, place = linear_sum_assignment(-(usage.T @ rows.weight.to(usage)).double().cpu().numpy())
    found = torch.zeros_like(counts)
    found[torch.as_tensor(place)] = counts[torch.as_tensor(source)]
    return found
