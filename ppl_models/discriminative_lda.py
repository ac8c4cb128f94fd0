"""Discriminative latent Dirichlet allocation (discLDA): the class of a document transforms its topics' proportions.

Murphy (2012), section 27.4.4.2 (Lacoste-Julien, Sha & Jordan, *DiscLDA: discriminative learning for dimensionality
reduction and classification*, NIPS 2008). With the class c_i in 0, ..., C - 1 of document i, which is given:

    pi_i ~ Dirichlet(alpha)
    q_il | pi_i, c_i = c ~ Categorical(A_c pi_i)              A_c: K x K, stochastic            (eq. 27.67, of pi_i)
    y_il | q_il, b ~ Categorical(b_{q_il}),   b_k ~ Dirichlet(gamma)                                     (as LDA)

The source writes A_c with columns that sum to 1. Here row j of ``transformation[c]`` is that column: the probabilities
of the topics of a token of component j. Given the class it is LDA with the topics A_c'b, so the classes share their
topics' words and differ in how their documents mix them. With all A_c the identity it is LDA, whatever the classes are.

Components and topics are two lists, tied by nothing but A: with other components of a class, and the rows of its A_c
in their order, it is the same model. A prior that leans to the identity ties them, but then says of a component that no
document of a class uses that it would be its topic, and the words of other classes seem as probable as their own.

It is a model of the words given the class. New documents are classified by p(c | words), proportional to
p(c) p(words | c). Of a document whose class is not known the tokens are drawn with the mean of the matrices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.document_model import TopicAdmixture, example_topics
from ppl_models.core.errors import ModelError
from ppl_models.core.model import Example
from ppl_models.core.plates import DocumentPlate
from ppl_models.core.sites import Site
from ppl_models.distributions.tokens import Tokens
from ppl_models.kinds.given_documents import ClassifiedDocuments


@dataclass(frozen=True, kw_only=True, eq=False)
class DiscriminativeLDA(ClassifiedDocuments, TopicAdmixture):
    """Discriminative LDA: topics that every class of documents mixes in a way of its own.

    num_classes: C, at least 2.

    Sites
    -----
    topic: b (K, V), word probabilities; Dirichlet(.05, ..., .05) by default.
    transformation: A (C, K, K); row j of A_c are the topics' probabilities of a token of component j. By default
        Dirichlet(1.1, ..., 1.1), so that no topic is impossible.
    topic_proportion: pi (N, K), local, of the components; Dirichlet(.1, ..., .1) by default.
    labels: c (N,), given: ``fit(model, words, labels=...)``, numbers 0, ..., C - 1, or indicators (N, C); NaN, -1 or no
        indicator where the class is unknown. Or names, None where it is unknown: classes are in the order of letters.
    x: (N, V), observed, word counts.

    ``fit.predict(words)`` gives the probability of each class, (N, C); with ``names=True`` the name of the most
    probable one.
    """

    axes: ClassVar[Mapping[str, str]] = {**TopicAdmixture.axes, "to_component": "num_topics", "class": "num_classes"}
    sites: ClassVar[Mapping[str, Site]] = {
        "topic": TopicAdmixture.sites["topic"],
        "transformation": Site("global", ("class", "component", "to_component"), support=constraints.simplex),
        "topic_proportion": TopicAdmixture.sites["topic_proportion"],
        "labels": Site("given", ("class",), ("document",), constraints.boolean),
        "x": TopicAdmixture.sites["x"],
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_classes < 2:
            raise ModelError(f"num_classes = {self.num_classes}, expected at least 2")

    def default_priors(self) -> dict[str, Any]:
        nearly_flat = dist.Dirichlet(torch.full((self.num_topics,), 1.1))
        return {**super().default_priors(), "transformation": nearly_flat}

    def with_own_topics(self, shared: int = 0) -> Self:
        """Return the same model with known matrices: ``shared`` topics serve all classes, which divide the others.

        A class has its share of (K - shared) / C topics and the shared ones, and its components are these in turns.
        Learned matrices say little of the classes: what makes words most probable is that all documents use all topics,
        and the same topics in other components of each class. Raises ModelError where a class is left without a topic.
        """
        own = (self.num_topics - shared) // self.num_classes
        if shared < 0 or own < 1:
            expected = f"at most num_topics - num_classes = {self.num_topics - self.num_classes}, and 0 at least"
            raise ModelError(f"shared = {shared}, expected {expected}")
        matrix = torch.zeros(self.num_classes, self.num_topics, self.num_topics)
        for c, each in enumerate(matrix):
            first = shared + c * own
            topics = torch.tensor([*range(shared), *range(first, first + own)])
            each[torch.arange(self.num_topics), topics.repeat(self.num_topics)[: self.num_topics]] = 1
        return self.with_priors(transformation=matrix)

    def shares(self, labels: Tensor | None, like: Tensor) -> Tensor:
        """Return what each A_c counts for in documents of these classes, (N, C) or (1, C): 1 for their own, 1 / C for
        all where it is unknown."""
        even = like.new_full((1, self.num_classes), 1 / self.num_classes)
        return even if labels is None else torch.where((labels > 0).any(-1, keepdim=True), labels.to(like), even)

    def token_proportions(self, transformation: Tensor, proportion: Tensor, labels: Tensor | None) -> Tensor:
        """Return A_c pi (eq. 27.67): the probabilities of the topics of each document's tokens, (..., N, K)."""
        each = torch.einsum("...nj,...cjk->...nck", proportion.to(transformation), transformation)
        return (self.shares(labels, proportion).unsqueeze(-1) * each).sum(-2)

    def __call__(
        self, x: Tensor | None = None, *, labels: Tensor | None = None, **plate: Unpack[DocumentPlate]
    ) -> Tensor:
        topic = self.sample("topic")
        transformation = self.sample("transformation")
        with self.documents(x, **plate) as documents:
            proportion = self.sample("topic_proportion")
            mixed = self.token_proportions(transformation, proportion, documents.of(labels))
            return documents.observe("x", Tokens(mixed, topic, documents.lengths))

    def given_rows(self, num_rows: int) -> dict[str, Any]:
        """Return labels of documents of all classes in turns."""
        number = torch.arange(num_rows) % self.num_classes
        return {"labels": torch.nn.functional.one_hot(number, self.num_classes).to(torch.get_default_dtype())}

    @classmethod
    def example(cls) -> Example:
        """Return two classes, three topics over nine words, and forty documents of 6 to 14 tokens, four unlabelled."""
        rng = np.random.default_rng(15)
        topic = example_topics(0.02, (0.4, 0.3, 0.2))
        first, second, shared = [0.85, 0.1, 0.05], [0.05, 0.1, 0.85], [0.1, 0.8, 0.1]
        transformation = np.array([[first, shared, first], [second, shared, second]])
        proportion, classes = rng.dirichlet([0.5] * 3, 40), np.arange(40) % 2
        labels = np.eye(2)[classes] * (np.arange(40) >= 4)[:, None]
        mixed = np.einsum("nj,njk->nk", proportion, transformation[classes])
        lengths = rng.integers(6, 15, 40)
        x = np.stack([rng.multinomial(n, p) for n, p in zip(lengths, mixed @ topic, strict=True)])
        truth = {"topic": topic, "transformation": transformation, "topic_proportion": proportion}
        return Example.of(cls(num_topics=3, vocabulary_size=9, num_classes=2), x, truth, labels=labels)
