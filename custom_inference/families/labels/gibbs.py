"""Collapsed Gibbs sampling of labelled LDA: LDA's sampler, with concentrations of 0 where a topic is not allowed.

Starts, of the engines too, are sampled with the labels, and without them first; the more probable run goes on. Sampled
with the labels, a topic common to all documents is easily learned several times, once for each label, and its own place
is taken by a topic of some label; the sampler does not leave that soon. LDA's topics know nothing of labels. Each goes
to a place, a label's or a common one, so that as many tokens as possible are in documents that may use their topic:
with n_ik tokens of topic k in document i, and a_ij whether it may use place j, that is the assignment with the largest
sum of (n'a)_kj. From there it is sampled with the labels too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from custom_inference.core.local_inference import Local
from custom_inference.core.states import values_of
from custom_inference.families.conjugate.dirichlet import normalise
from custom_inference.families.labels.engines import restrict_to_labels
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.chain import LdaChain, TokenList
from custom_inference.families.topics.gibbs import LdaSampler, add_hyper_parameters, local_draws, topic_priors
from custom_inference.families.topics.propose import TopicProposals, average_counts, propose_topics
from custom_inference.gibbs.protocol import Chain, Params
from ppl_models import Data, LabeledLDA, Model


class LabelledChain(LdaChain):
    """LDA's chain, whose topics are matched within their label only.

    alpha: (N, K), 0 of topics that a document lacks. label: that of every topic (K,), -1 of common ones.
    """

    def __init__(self, tokens: TokenList, alpha: Tensor, gamma: Tensor, seed: int, label: Tensor, **settings: Any):
        self._label = torch.nn.functional.one_hot(label + 1).double()
        super().__init__(tokens, alpha.shape[1], alpha, gamma, seed, **settings)

    def profile(self) -> Tensor:
        """Topics of different labels have nothing in common by which they could be exchanged."""
        topic = torch.nn.functional.normalize(self.means()["topic"], dim=-1)
        return torch.cat([topic, self._label.to(topic)], -1)

    def with_fitted_priors(self, model: LabeledLDA) -> Model:
        gamma = None if self.explicit is not None else torch.as_tensor(self.gamma)
        return model.with_concentration(alpha=torch.as_tensor(self.alpha.max(0)), gamma=gamma)


class LabelledSampler(LdaSampler):
    """Chains of :class:`LabelledChain`."""

    def chain(self, model: LabeledLDA, data: Data, seed: int, start: Params | None) -> Chain:
        rows = restrict_to_labels(model, data)
        alpha, gamma, explicit = topic_priors(model)
        own = torch.as_tensor(concentrations(model, rows.weight, alpha, len(rows)))
        settings: Any = {"given": None if start is None else start["topic"], "explicit": explicit}
        chain = LabelledChain(TokenList.of(rows), own, gamma, seed, model.label_of_topic(), **settings)
        return add_hyper_parameters(model, chain, seed, start)

    def propose(self, model: LabeledLDA, data: Data, seed: int) -> Params:
        """Propose topics from a short run within every label, with some to spare, merged down."""
        alpha, gamma, _ = topic_priors(model)
        generator = torch.Generator().manual_seed(seed % 2**63)
        counts = propose_labelled(
            model, restrict_to_labels(model, data), alpha.expand(model.num_topics), gamma, generator
        )
        return {"topic": normalise(counts.double() + gamma)}

    def local_posterior(self, model: LabeledLDA, params: Params, data: Data, *, seed: int = 0) -> Local:
        rows = restrict_to_labels(model, data)
        own = concentrations(model, rows.weight, topic_priors(model)[0], len(rows))
        return self.local_of_draws(model, data, local_draws(rows, own, params["topic"], seed))


def concentrations(model: LabeledLDA, weight: Tensor | None, alpha: Tensor, size: int) -> NDArray[np.float64]:
    """Return (N, K): alpha, 0 where a topic is not allowed."""
    own = alpha.double().expand(size, model.num_topics)
    return np.ascontiguousarray((own if weight is None else own * weight.double()).numpy())


#: Two starts found a topic in common where their word probabilities have at least this cosine.
_SAME = 0.9
#: Starts of a search where some label has several topics, or several topics are common.
_STARTS = 3
#: Sweeps without the labels, with them, and those whose counts are averaged.
_FREE_SWEEPS, _SWEEPS, _AVERAGED = 20, 40, 20


class LabelledProposals(TopicProposals):
    """Starts of the engines of labelled LDA."""

    def propose(self, model: LabeledLDA, rows: DocumentRows, generator: torch.Generator, attempt: int) -> Params:
        del attempt
        like = rows.like.values()
        gamma = self.engine.words_prior(model, like)
        gamma = (gamma if gamma.ndim == 1 else gamma.mean(0)).clamp(max=self.most_gamma)
        alpha = self.engine.alpha(model, like).clamp(max=self.most_alpha)
        return self.engine.from_counts(model, propose_labelled(model, rows, alpha, gamma, generator))

    def search_size(self, model: LabeledLDA, num_rows: int) -> tuple[int, int]:
        """Return one start where every topic has a label of its own: there is nothing to search for."""
        settled = model.label_topics == 1 and model.num_common_topics == 0
        return (1, num_rows) if settled else (_STARTS, super().search_size(model, num_rows)[1])

    def same_solution(self, model: LabeledLDA, first: Any, second: Any) -> bool:
        """Tell whether two solutions are the same: topics of one label may be exchanged, those of two may not."""
        one, other = (torch.nn.functional.normalize(values_of(model, s)["topic"], dim=-1) for s in (first, second))
        label: Tensor = model.label_of_topic()  # pyright: ignore[reportAttributeAccessIssue]
        alike = torch.where(label[:, None] == label, one.cpu() @ other.cpu().T, 0.0)
        return bool((alike.amax(1) > _SAME).all() and (alike.amax(0) > _SAME).all())


def propose_labelled(
    model: LabeledLDA, rows: DocumentRows, alpha: Tensor, gamma: Tensor, generator: torch.Generator
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
    average_counts(free, _FREE_SWEEPS)
    given = torch.as_tensor(_order_topics(free, allowed)) + gamma.double().cpu()
    runs = [
        LdaChain(tokens, size, own, gamma, seed, given=each) for each in (None, given / given.sum(-1, keepdim=True))
    ]
    for run in runs:
        average_counts(run, _SWEEPS)
    found = average_counts(max(runs, key=LdaChain.log_joint), _AVERAGED)
    return (found if share is None else found / share).to(rows.like.values())


def _order_topics(chain: LdaChain, allowed: Tensor) -> NDArray[np.float64]:
    """Return the chain's counts (K, V), each topic's in its place. allowed: a (N, K)."""
    source, place = linear_sum_assignment(-(chain.document_topic.T @ allowed.cpu().numpy()))
    found = np.zeros(chain.word_topic.T.shape)
    found[place] = chain.word_topic.T[source]
    return found
