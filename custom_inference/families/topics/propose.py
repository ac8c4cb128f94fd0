"""Starts for topic models and profiles of users: sampled topics, more than asked for and merged (``merge``)."""

from __future__ import annotations

from typing import Any

import torch

from custom_inference.core.align import match_components
from custom_inference.core.engine import Params
from custom_inference.core.proposals import Proposals
from custom_inference.core.states import values_of
from custom_inference.families.common.dirichlet import dirichlet_prior
from custom_inference.families.common.documents import DocumentRows
from custom_inference.families.mixtures.common import same_classes
from custom_inference.families.topics.dirichlet import LdaDirichlet
from custom_inference.families.topics.merge import propose_topics
from custom_inference.families.topics.user_rating_profile import response_prior
from ppl_models import Model

#: Two starts found a topic in common where their word probabilities have at least this cosine.
_SAME = 0.9
#: Documents that a start looks at: at least the first, and the second for every topic.
_SEARCH_ROWS, _SEARCH_ROWS_A_TOPIC = 5000, 200
#: The largest concentrations that starts are sampled under.
_SPARSE_ALPHA, _SPARSE_GAMMA = 0.1, 0.05
#: Fewer documents than this have this many starts.
_FEW_DOCUMENTS, _STARTS_OF_FEW = 500, 12
#: Concentration at which the proportions are inferred whose logarithms correlated topics start from.
_LOGIT_ALPHA = 0.3
#: The largest concentrations that starts of profiles are sampled under.
_PROFILE_ALPHA, _PROFILE_GAMMA = 0.3, 0.5


class TopicProposals(Proposals):
    """Starts of the engines of LDA and PLSA."""

    def propose(self, model: Model, rows: DocumentRows, generator: torch.Generator, attempt: int) -> Params:
        """Sampled topics, more than asked for and merged; see ``merge``. Every attempt draws its own.

        Under flat priors a sampler hardly tells topics apart: it is given sparser ones.
        """
        del attempt
        like = rows.like.values()
        alpha = self.engine.alpha(model, like).clamp(max=_SPARSE_ALPHA)
        gamma = dirichlet_prior(model, "topic", like).clamp(max=_SPARSE_GAMMA)
        return self.engine.from_counts(model, propose_topics(rows, alpha, gamma, generator))

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """Three starts; on so many documents that they show every topic often."""
        return 3, min(num_rows, max(_SEARCH_ROWS, _SEARCH_ROWS_A_TOPIC * model.shapes["topic"][0]))

    def same_solution(self, model: Model, first: Any, second: Any) -> bool:
        """Every topic has its counterpart."""
        one, other = (values_of(model, state)["topic"] for state in (first, second))
        return bool((match_components(one, other).similarity > _SAME).all())


class PointProposals(TopicProposals):
    """Starts of point estimates of topics and proportions."""

    def propose(self, model: Model, rows: DocumentRows, generator: torch.Generator, attempt: int) -> Params:
        """Sampled topics; of few documents, two times in three, random ones: the likelihood has other optima there."""
        if attempt % 3 and len(rows) < _FEW_DOCUMENTS:
            return self.engine.initial(model, rows, generator)
        return super().propose(model, rows, generator, attempt)

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """Few documents have many optima, and starts are cheap there."""
        starts, size = super().search_size(model, num_rows)
        return (_STARTS_OF_FEW if num_rows < _FEW_DOCUMENTS else starts), size


class ProfileProposals(Proposals):
    """Starts of the engines of user rating profiles."""

    def propose(self, model: Model, rows: DocumentRows, generator: torch.Generator, attempt: int) -> Params:
        """Sampled as LDA's topics are, of which nothing says that every response is there once."""
        del attempt
        like = rows.like.values()
        alpha = self.engine.alpha(model, like).clamp(max=_PROFILE_ALPHA)
        gamma = response_prior(model, like).mean(0).clamp(max=_PROFILE_GAMMA)
        return self.engine.from_counts(model, propose_topics(rows, alpha, gamma, generator))

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """Three starts on all rows."""
        return 3, num_rows

    def same_solution(self, model: Model, first: Any, second: Any) -> bool:
        """Every profile has its counterpart: their differences from the mean profile have cosines above .95."""
        tables = (values_of(model, one)["response"].flatten(1) for one in (first, second))
        return same_classes(*((table, torch.full_like(table[:, 0], 1 / len(table))) for table in tables))


class CorrelatedProposals(TopicProposals):
    """Starts of the correlated topic model."""

    def propose(self, model: Model, rows: DocumentRows, generator: torch.Generator, attempt: int) -> Params:
        """LDA's sampled topics, and the mean and covariance of the logarithms of its proportions."""
        like, size = rows.like.values(), model.shapes["topic"][0]
        gamma = dirichlet_prior(model, "topic", like).clamp(max=_SPARSE_GAMMA)
        alpha = like.new_full((size,), _SPARSE_ALPHA)
        start = self.engine.from_counts(model, propose_topics(rows, alpha, gamma, generator))
        lda, alpha = LdaDirichlet(), like.new_full((size,), _LOGIT_ALPHA)
        share = lda.documents(rows, lda.scores(start), alpha, None).locals["concentration"]
        logit = (share / share.sum(-1, keepdim=True)).log()
        logit = logit - logit.mean(-1, keepdim=True)
        covariance = torch.atleast_2d(torch.cov(logit.T)) + 0.1 * torch.eye(logit.shape[1]).to(logit)
        return {**start, "mean": logit.mean(0), "covariance": covariance}


class SupervisedProposals(TopicProposals):
    """Starts of supervised LDA: LDA's, with weights of 0."""

    def propose(self, model: Model, rows: DocumentRows, generator: torch.Generator, attempt: int) -> Params:
        return self.engine.unweighted(super().propose(model, rows, generator, attempt))
