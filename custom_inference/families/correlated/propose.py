"""Starts of correlated topic models: short runs of EM for LDA, from random topics and from anchor words.

Several runs, of which the better part goes on, and of these again: documents of many topics have many optima, that a
single run, or sampling with topics to spare, seldom leaves. Proportions are posterior means under Dirichlet(.3), as in
CVB0; the moments of their logarithms start the Gaussian.
"""

from __future__ import annotations

from operator import methodcaller

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.engine import Params
from custom_inference.core.threads import map_in_threads
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.correlated.common import (
    CorrelatedRows,
    LocationPrior,
    Moments,
    solve_location,
    split_location,
)
from custom_inference.families.correlated.spectral import anchor_topics
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.propose import TopicProposals
from ppl_models.ctm import LogisticNormalTopics
from ppl_models.data import sparse

#: Concentration of the proportions, and the most that the topics' are taken to have.
_ALPHA, _MOST_GAMMA = 0.3, 0.05
#: Rounds: runs that are left, and the passes that each of them makes. The last of the first round is from anchor words.
_ROUNDS = ((8, 40), (4, 60), (2, 80))
#: What is added to the logits' variances: their estimates are shrunk.
_RIDGE = 0.1


class CorrelatedProposals(TopicProposals):
    """Starts of all engines and of the sampler."""

    def propose(
        self, model: LogisticNormalTopics, rows: CorrelatedRows, generator: torch.Generator, attempt: int
    ) -> Params:
        """Every attempt makes runs of its own."""
        gamma = Dirichlet.of(model, "topic", rows.like.values()).concentration
        return propose_globals(model, rows, gamma if gamma.ndim < 2 else gamma.mean(0), generator)

    def search_size(self, model: LogisticNormalTopics, num_rows: int) -> tuple[int, int]:
        """Two starts, each the best of several runs."""
        return 2, super().search_size(model, num_rows)[1]


def propose_globals(
    model: LogisticNormalTopics, rows: CorrelatedRows, gamma: Tensor, generator: torch.Generator
) -> Params:
    """Propose values of the globals near a good mode; gamma (V,) or one number: the concentration of the topics'
    prior."""
    size = model.num_topics
    if size == 1:
        topic, share = sparse.column_sums(rows.counts)[None] + gamma, torch.ones(len(rows), 1)
        return with_logits(model, rows, topic / topic.sum(1, keepdim=True), share.to(topic))
    prior = gamma.double().cpu().clamp(1e-3, _MOST_GAMMA).expand(rows.counts.shape[1]).numpy().astype(np.float32)
    starts = [_random(rows, size, generator) for _ in range(_ROUNDS[0][0] - 1)]
    runs = [_EmRun(rows, topic, prior) for topic in (*starts, anchor_topics(rows, size, generator) + 1e-4)]
    for left, passes in _ROUNDS:
        runs = sorted(runs, key=lambda run: -run.level)[:left]
        map_in_threads(methodcaller("go_on", passes), runs)
    best = max(runs, key=lambda run: run.level)
    topic, share = (torch.from_numpy(part).to(rows.like) for part in (best.topic.T.copy(), best.share))
    return with_logits(model, rows, topic, share)


def _random(rows: DocumentRows, size: int, generator: torch.Generator) -> Tensor:
    """The words' frequencies, each multiplied by an exponential variable in every topic."""
    frequency = sparse.column_sums(rows.counts).double().cpu() + 1
    noise = torch.rand((size, len(frequency)), generator=generator, dtype=torch.float64)
    return frequency * -torch.log1p(-noise * (1 - 1e-9))


class _EmRun:
    """EM for LDA at topics (V, K) and proportions (N, K)."""

    def __init__(self, rows: DocumentRows, topic: Tensor, gamma: np.ndarray):
        counts = rows.counts.cpu()
        self._parts = (counts.crow_indices().numpy(), counts.col_indices().numpy(), counts.values().float().numpy())
        self._gamma = gamma[:, None]
        start = topic.double().cpu().T.numpy()
        self.topic = np.ascontiguousarray(start / start.sum(0), np.float32)
        self.share = np.full((len(rows), start.shape[1]), 1 / start.shape[1], np.float32)
        self.level = 0.0

    def go_on(self, passes: int) -> None:
        from custom_inference.families.correlated import kernels

        for _ in range(passes):
            words = np.zeros_like(self.topic)
            self.level = kernels.expectation_pass(*self._parts, self.topic, np.float32(_ALPHA), self.share, words)
            words += self._gamma
            self.topic = words / words.sum(0)


def with_logits(model: LogisticNormalTopics, rows: CorrelatedRows, topic: Tensor, share: Tensor) -> Params:
    """The topics (K, V) with the moments of the logarithms of proportions (N, K)."""
    logit = share.log()
    logit = logit - logit.mean(-1, keepdim=True)
    eye = torch.eye(logit.shape[1]).to(logit)
    moments = Moments.of(rows, logit, logit.new_zeros(len(rows), *eye.shape))
    weak = LocationPrior(torch.zeros_like(moments.cross), torch.full_like(moments.cross, 1e-3))
    location = solve_location(moments, eye, weak)
    covariance = moments.scatter(location) / moments.rows + _RIDGE * eye
    return {"topic": topic, **split_location(model, location), "covariance": covariance}
