"""Starts of labelled LDA: sampled with the labels, and without them first; the more probable run goes on.

Sampled with the labels, a topic common to all documents is easily learned several times, once for each label, and its
own place is taken by a topic of some label; the sampler does not leave that soon. LDA's topics know nothing of labels.
Each goes to a place, a label's or a common one, so that as many tokens as possible are in documents that may use their
topic: with n_ik tokens of topic k in document i, and a_ij whether it may use place j, that is the assignment with the
largest sum of (n'a)_kj. From there it is sampled with the labels too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from custom_inference.core.engine import Params
from custom_inference.core.states import values_of
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.chain import LdaChain, TokenList
from custom_inference.families.topics.propose import TopicProposals, propose_topics
from ppl_models import Model

#: Two starts found a topic in common where their word probabilities have at least this cosine.
_SAME = 0.9
#: Starts of a search where some label has several topics, or several topics are common.
_STARTS = 3
#: Sweeps without the labels, with them, and those whose counts are averaged.
_FREE_SWEEPS, _SWEEPS, _AVERAGED = 20, 40, 20


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
        """Return one start where every topic has a label of its own: there is nothing to search for."""
        settled = model.label_topics == 1 and model.num_common_topics == 0
        return (1, num_rows) if settled else (_STARTS, super().search_size(model, num_rows)[1])

    def same_solution(self, model: Model, first: Any, second: Any) -> bool:
        """Tell whether two solutions are the same: topics of one label may be exchanged, those of two may not."""
        one, other = (torch.nn.functional.normalize(values_of(model, s)["topic"], dim=-1) for s in (first, second))
        label: Tensor = model.label_of_topic()  # pyright: ignore[reportAttributeAccessIssue]
        alike = torch.where(label[:, None] == label, one.cpu() @ other.cpu().T, 0.0)
        return bool((alike.amax(1) > _SAME).all() and (alike.amax(0) > _SAME).all())


def propose_labelled(
    model: Any, rows: DocumentRows, alpha: Tensor, gamma: Tensor, generator: torch.Generator
) -> Tensor:
    """Return expected tokens of every word in every topic, (K, V). alpha (K,); gamma (V,) or one number."""
    if rows.weight is None:
        return propose_topics(rows, alpha, gamma, generator)
    order = torch.randperm(len(rows), generator=generator)
    allowed = rows.weight[order].double()
    seed = int(torch.randint(2**62, (), generator=generator))
    tokens, share = TokenList.for_start(rows.select(order), generator)
    own, size = alpha.double() * allowed, len(alpha)
    free = LdaChain(tokens, size, float(alpha.mean()), gamma, seed)
    _swept(free, _FREE_SWEEPS)
    given = torch.as_tensor(_order_topics(free, allowed)) + gamma.double().cpu()
    runs = [
        LdaChain(tokens, size, own, gamma, seed, given=each) for each in (None, given / given.sum(-1, keepdim=True))
    ]
    for run in runs:
        _swept(run, _SWEEPS)
    found = _swept(max(runs, key=LdaChain.log_joint), _AVERAGED)
    return (found if share is None else found / share).to(rows.like.values())


def _swept(chain: LdaChain, sweeps: int) -> Tensor:
    """The tokens of every word in every topic (K, V), their average over the sweeps."""
    total = torch.zeros(chain.word_topic.T.shape, dtype=torch.float64)
    for _ in range(sweeps):
        chain.sweep()
        total += torch.as_tensor(chain.word_topic.T)
    return total / sweeps


def _order_topics(chain: LdaChain, allowed: Tensor) -> NDArray[np.float64]:
    """Return the chain's counts (K, V), each topic's in its place. allowed: a (N, K)."""
    source, place = linear_sum_assignment(-(chain.document_topic.T @ allowed.cpu().numpy()))
    found = np.zeros(chain.word_topic.T.shape)
    found[place] = chain.word_topic.T[source]
    return found
