"""Starts of correlated topic models: short runs of EM for LDA, from random topics and from anchor words.

Several runs, of which the better part goes on, and of these again: documents of many topics have many optima, that a
single run, or sampling with topics to spare, seldom leaves. Proportions are posterior means under Dirichlet(.3), as in
CVB0; the moments of their logarithms start the Gaussian.

Topics from anchor words (Arora, Ge, Halpern, Mimno, Moitra, Sontag, Wu & Zhu, *A practical algorithm for topic
modeling with provable guarantees*, ICML 2013).

With n_d the counts of a document of L_d tokens, two different tokens of which are words v and w with probability

    Q_vw = 1/D sum_d (n_dv n_dw - n_dv [v = w]) / (L_d (L_d - 1)),    Qbar_vw = Q_vw / p_v,  p_v = sum_w Q_vw.

Where every topic has a word that no other has (an anchor), every row of Qbar is a convex combination of the anchors'
rows, with weights p(topic | v). Anchors are found by Gram and Schmidt: each the row farthest from the span of those
before it. Weights minimise the squared distance on the simplex, and

    b_kv = p(v | k)  proportional to  p(k | v) p_v.

Rows are projected to few dimensions at random, so that no matrix of words by words is made.
"""

from __future__ import annotations

from operator import methodcaller
from typing import Any

import numpy as np
import scipy.sparse
import torch
from scipy.linalg import solve_triangular
from scipy.optimize import nnls
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
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.propose import TopicProposals
from ppl_models.ctm import LogisticNormalTopics
from ppl_models.data import sparse
from ppl_models.data import sparse as _sparse

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


#: Dimensions that rows are projected to.
_DIMENSIONS = 400
#: Anchors occur in at least so many documents, and in at least this share of them, where enough words do.
_DOCUMENTS, _SHARE = 5, 0.01
#: How much more a sum of 1 weighs than the distance.
_HEAVY = 1e3


def anchor_topics(rows: DocumentRows, num_topics: int, generator: torch.Generator) -> Tensor:
    """b (K, V) >= 0; a word that never occurs has 0, and where too few rows differ topics are alike.

    generator: of the projection; the result hardly depends on it.
    """
    counts: Any = _sparse.to_scipy(rows.counts).astype(np.float64)
    length = np.asarray(counts.sum(1)).ravel()
    counts, length = counts[length >= 2], length[length >= 2]
    if counts.shape[0] == 0:
        even = torch.full((num_topics, rows.like.shape[1]), 1 / rows.like.shape[1])  # dense, which ``like`` may not be
        return even.to(rows.like)
    weight = 1 / (length * (length - 1)) / len(length)
    scaled = scipy.sparse.diags(weight) @ counts
    own = np.asarray(scaled.sum(0)).ravel()
    p = np.asarray(counts.T @ (weight * length)).ravel() - own
    words = int(counts.shape[1])
    size = min(_DIMENSIONS, words)
    noise = torch.randn(words, size, generator=generator, dtype=torch.float64).numpy() / np.sqrt(size)
    projected = scaled.T @ (counts @ noise) - own[:, None] * noise
    projected = projected / np.maximum(p, np.finfo(float).tiny)[:, None]
    anchors = _anchors(projected, _candidates(counts, num_topics), num_topics)
    topic = _weights(projected, projected[anchors]) * np.maximum(p, 0)[:, None]
    topic = topic / np.maximum(topic.sum(0), np.finfo(float).tiny)
    return torch.from_numpy(np.ascontiguousarray(topic.T)).to(rows.like)


def _candidates(counts: Any, num_topics: int) -> np.ndarray:
    """Words that may be anchors: rows of rare words are noise, and far from everything."""
    documents = np.bincount(counts.indices, weights=counts.data > 0, minlength=counts.shape[1])
    most = np.argsort(-documents, kind="stable")
    enough = int((documents >= max(_DOCUMENTS, _SHARE * counts.shape[0])).sum())
    return most[: max(enough, num_topics)]


def _anchors(rows: np.ndarray, candidates: np.ndarray, num_topics: int) -> np.ndarray:
    rest = rows[candidates].copy()
    first = int((rest**2).sum(1).argmax())
    rest -= rest[first]
    found = [first]
    for _ in range(num_topics - 1):
        far = (rest**2).sum(1)
        far[found] = -1.0
        at = int(far.argmax())
        direction = rest[at] / max(np.linalg.norm(rest[at]), np.finfo(float).tiny)
        rest -= np.outer(rest @ direction, direction)
        found.append(at)
    return candidates[found]


def _weights(rows: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """Find for every row the nearest convex combination of anchors (V, K): nonnegative least squares with a heavy row
    that asks for a sum of 1."""
    gram, cross = anchors @ anchors.T, rows @ anchors.T
    size = max(float(np.trace(gram)), np.finfo(float).tiny)
    heavy = _HEAVY * size
    factor = np.linalg.cholesky(gram + heavy + 1e-9 * size * np.eye(len(gram)))
    right = solve_triangular(factor, cross.T + heavy, lower=True).T
    weight = np.array([nnls(factor.T, one)[0] for one in right])
    return weight / np.maximum(weight.sum(1, keepdims=True), np.finfo(float).tiny)
