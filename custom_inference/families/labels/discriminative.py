"""Discriminative LDA by variational EM: given its class a document has LDA's law with the topics A_c b.

A token of component j and class c has topic k with probability A_cjk (Murphy 2012, eq. 27.67), and word v with
probability

    beta_cjv = sum_k A_cjk b_kv

so the E step is LDA's sweeps (``topics.dirichlet``), class by class, with beta_c for b. With N_cjv expected tokens of
word v and component j in the documents of class c, the topics behind them have shares A_cjk b_kv / beta_cjv, and

    b_kv    proportional to  b_kv sum_cj A_cjk N_cjv / beta_cjv   + the prior's pseudo-counts
    A_cjk   proportional to  A_cjk sum_v b_kv N_cjv / beta_cjv    + the prior's pseudo-counts

Where a class is unknown beta is the mean over the classes, and so are the shares.

Starts: LDA's topics, and matrices by how much the documents of each class use these (``leaning``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.fit import Fit
from custom_inference.core.presentation import Params as Values
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.labels.engines import weigh_labels
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.common import FLOOR
from custom_inference.families.topics.dirichlet import LdaDirichlet, TopicScores, sweep_documents
from custom_inference.families.topics.propose import TopicProposals
from ppl_models import Data, DiscriminativeLDA, MethodError

#: Returns the topics' shares of the tokens of a model's documents, at given globals and local means.
Share: TypeAlias = Callable[[Any, Values, Data, Tensor], Tensor]
#: What of every row of a start's matrices is mixed in from all topics.
_MIXED = 0.1


@dataclass(frozen=True)
class ClassRows(DocumentRows):
    """Documents with indicators of their classes (N, C), 0 where unknown."""

    labels: Tensor = None  # pyright: ignore[reportAssignmentType]

    @classmethod
    def read(cls, model: DiscriminativeLDA, data: Data) -> ClassRows:
        counts = DocumentRows.of(data).counts
        given = data.others.get("labels", counts.values().new_zeros(len(data), model.num_classes))
        return cls(counts, labels=given.to(counts.dtype))

    def groups(self) -> list[tuple[Tensor, Tensor]]:
        """The documents of every class, and those of none: their places, and their indicators (C,)."""
        number = torch.where(self.labels.any(-1), self.labels.argmax(-1), -1)
        places = [(number == one).nonzero().flatten() for one in number.unique()]
        return [(each, self.labels[each[0]]) for each in places]


@dataclass(frozen=True, kw_only=True)
class ClassDirichlet(LdaDirichlet):
    """Dirichlet posteriors of the proportions; topics and matrices as points."""

    def rows(self, model: DiscriminativeLDA, data: Data) -> ClassRows:
        return ClassRows.read(model, data)

    def check(self, model: DiscriminativeLDA, rows: DocumentRows) -> None:
        super().check(model, rows)
        Dirichlet.of(model, "transformation", rows.like.values())

    def complete(self, model: DiscriminativeLDA, params: Params, counts: Tensor | None = None) -> Params:
        return leaning(model, params, None)

    def e_step(
        self, model: DiscriminativeLDA, params: Params, rows: ClassRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        topic, matrix, alpha = params["topic"], params["transformation"], self.alpha(model, params["topic"])
        words, moves = torch.zeros_like(topic), torch.zeros_like(matrix)
        concentration, bound = alpha.expand(len(rows), -1).clone(), torch.zeros_like(rows.lengths)
        start, sweeps = (warm["concentration"], self.sweeps) if warm else (None, self.cold_sweeps)
        for places, labels in rows.groups():
            share = model.shares(labels.unsqueeze(0), topic).squeeze(0)
            mixed = torch.einsum("c,cjk->jk", share, matrix)
            beta = mixed @ topic
            part, at = rows.select(places), None if start is None else start[places]
            scores = TopicScores.of(temperature * beta.log())
            found = sweep_documents(part, scores, alpha, at, sweeps, self.threshold, self.cold_sweeps)
            ratio = found.counts / beta.clamp_min(torch.finfo(beta.dtype).tiny)
            words += topic * (mixed.T @ ratio)
            moves += share[:, None, None] * matrix * (ratio @ topic.T)
            concentration[places], bound[places] = found.concentration, found.bound
        return EStep({"topic": words, "transformation": moves}, {"concentration": concentration}, bound)

    def m_step(self, model: DiscriminativeLDA, params: Params, step: EStep, rows: DocumentRows) -> Params:
        prior = Dirichlet.of(model, "transformation", params["transformation"]).concentration
        moved = Dirichlet(prior).mode(step.statistics["transformation"], floor=FLOOR)
        topic = self.best_topics(model, step.statistics["topic"])
        return {**params, **topic, "transformation": moved}

    def prior_term(self, model: DiscriminativeLDA, params: Params) -> Tensor | float:
        """Sum the log prior densities in the bases in which the M steps take their modes."""
        topic, matrix = params["topic"], params["transformation"]
        density = Dirichlet(self.words_prior(model, topic)).log_density(topic).double()
        return density + Dirichlet.of(model, "transformation", matrix).log_density(matrix).double()

    def responsibilities(self, model: DiscriminativeLDA, params: Params, rows: DocumentRows, warm: Params) -> Tensor:
        raise MethodError("tokens of DiscriminativeLDA have a component and a topic; use transform")


class ClassProposals(TopicProposals):
    """Starts of :class:`ClassDirichlet`."""

    def propose(self, model: DiscriminativeLDA, rows: ClassRows, generator: torch.Generator, attempt: int) -> Params:  # pyright: ignore[reportIncompatibleMethodOverride]
        params = super().propose(model, rows, generator, attempt)
        alpha, scores = self.engine.alpha(model, params["topic"]), TopicScores.of(params["topic"].log())
        plain = DocumentRows(rows.counts)
        usage = sweep_documents(plain, scores, alpha, None, 20, 1e-2).concentration
        return leaning(model, params, rows.labels.T @ (usage / usage.sum(-1, keepdim=True)))


def leaning(model: DiscriminativeLDA, params: Params, usage: Tensor | None) -> Params:
    """Add the matrices to start from, by how much the classes use the topics (C, K). A component that a class uses as
    much as any other class does is mostly its own topic; one that it does not use is a mixture of what it does use.
    None: all alike."""
    topic = params["topic"]
    size, identity = len(topic), torch.eye(len(topic)).to(topic)
    usage = topic.new_ones(model.num_classes, size) if usage is None else usage + FLOOR
    share = usage / usage.sum(-1, keepdim=True)
    own, rest = (share / share.amax(0)).unsqueeze(-1), share.unsqueeze(1)
    matrix = (1 - _MIXED) * (own * identity + (1 - own) * rest) + _MIXED * (rest + 1 / size) / 2
    return {**params, "transformation": matrix / matrix.sum(-1, keepdim=True)}


def predict_classes(fit: Fit, data: Data) -> Tensor:
    """Compute P(class | words), (N, C), proportional to p(c) p(words | c): p(c) by how many training documents had the
    class (one more counted for each), p(words | c) at the fit's globals, as ``weigh_labels`` has it."""
    count = fit.data.others["labels"].sum(0)
    each = torch.eye(len(count))
    return weigh_labels(ClassDirichlet(), fit, data, each, count, each)


def token_share(share: Share | None) -> Share:
    """Compute LDA's share of the topics, at the proportions A_c pi of the tokens' topics."""
    assert share is not None

    def of_topics(model: DiscriminativeLDA, params: Values, data: Data, mean: Tensor) -> Tensor:
        labels = data.others.get("labels")
        return share(model, params, data, model.token_proportions(params["transformation"], mean, labels))

    return of_topics
