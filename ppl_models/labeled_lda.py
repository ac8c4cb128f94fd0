"""Labelled latent Dirichlet allocation: a topic for every label, documents whose topics are those of their labels.

Murphy (2012), section 27.4.4.2, below eq. 27.72 (Ramage, Hall, Nallapati & Manning, *Labeled LDA*, EMNLP 2009). With
the labels x_i in {0, 1}^L of document i, and a_i in {0, 1}^K the topics that these labels may use:

    pi_i | x_i ~ Dirichlet(alpha * a_i)     a_ik = x_il for topics k of label l, 1 for the topics common to all
    q_il | pi_i ~ Categorical(pi_i),   y_il | q_il, b ~ Categorical(b_{q_il}),   b_k ~ Dirichlet(gamma)    (as LDA)

A concentration of 0 is a topic that the document does not have. Topics 0, 1, ..., L - 1 are those of the labels in
their order; those after them are common. Of a document without any label nothing is known: it may use every topic. So
new documents are inferred without their labels, and documents without labels teach the topics too.

Partially labelled LDA (Ramage, Manning & Dumais, *Partially labeled topic models for interpretable text mining*, KDD
2011) is the same program with several topics for every label, which the words tell apart.

Without labels, or with all of them in every document, it is LDA. With one label a document and no common topic it is
the multinomial mixture whose classes are known, the naive Bayes classifier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core import doors
from ppl_models.core.document_model import TopicAdmixture, example_topics
from ppl_models.core.errors import ModelError, warn_of_absent
from ppl_models.core.model import Example
from ppl_models.core.plates import DocumentPlate
from ppl_models.core.sites import Site
from ppl_models.data.matrix import Data
from ppl_models.distributions import FaceDirichlet, Tokens
from ppl_models.kinds.given_documents import LabelledDocuments


@dataclass(frozen=True, kw_only=True, eq=False)
class LabeledLDA(LabelledDocuments, TopicAdmixture):
    """Labelled LDA: a topic for every label; a document's words come from the topics of its labels.

    num_topics: K, of the labels and, beyond ``num_labels``, common to all documents.

    Sites
    -----
    topic: b (K, V), word probabilities; Dirichlet(.05, ..., .05) by default. Topic l is that of label l.
    topic_proportion: pi (N, K), local; Dirichlet(.1, ..., .1) over the topics of the document's labels by default, 0 of
        the others.
    labels: x (N, L), given, 0 or 1: ``fit(model, words, labels=...)``. One label a document may also be given by its
        number 0, ..., L - 1, (N,); NaN or -1 where it is unknown. Or by names: a list of a name or a list of names for
        each document, or a table of 0 and 1 whose columns have names; topic l is that of the l-th name, in the order of
        the letters or of the columns. A document without labels may use every topic.
    x: (N, V), observed, word counts.

    ``fit.predict(words)`` gives the probability of each label, (N, L); with ``names=True`` the names of those that are
    more probable than not.

    A topic that a document lacks is exactly 0 in its proportions: there is no density that SVI or NUTS could follow.

    Raises ModelError for fewer topics than labels need, and for a prior of the proportions that is no Dirichlet.
    """

    num_labels: int

    given_size: ClassVar[str] = "num_labels"
    named_axis: ClassVar[str] = "label"
    axes: ClassVar[Mapping[str, str]] = {**TopicAdmixture.axes, "label": "num_labels"}
    sites: ClassVar[Mapping[str, Site]] = {
        "topic": TopicAdmixture.sites["topic"],
        "topic_proportion": TopicAdmixture.sites["topic_proportion"],
        "labels": Site("given", ("label",), ("document",), constraints.boolean),
        "x": TopicAdmixture.sites["x"],
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_common_topics < 0:
            needed = f"{self.num_labels} labels need {self.num_labels * self.label_topics}"
            raise ModelError(f"num_topics = {self.num_topics}, but {needed}; more of them are common to all documents")
        if not isinstance(self.priors["topic_proportion"], dist.Dirichlet):
            raise ModelError("the prior of 'topic_proportion' is cut to the labels' topics; expected a Dirichlet")

    @classmethod
    def number_for(cls, data: Data, settings: Mapping[str, Any]) -> int | None:
        """Return the number of topics that the labels need, and none beyond them: those that are given."""
        labels = settings.get("num_labels") or cls.count_given(data.others.get("labels"))
        each = settings.get("topics_per_label", doors.default_of(cls, "topics_per_label") or 1)
        return None if labels is None else labels * each

    @property
    def has_atoms(self) -> bool:
        """True: a topic that a document lacks is exactly 0."""
        return True

    @property
    def label_topics(self) -> int:
        """Return how many topics a label has."""
        return 1

    @property
    def num_common_topics(self) -> int:
        """Return how many topics are those of no label."""
        return self.num_topics - self.num_labels * self.label_topics

    @property
    def component_kinds(self) -> Tensor:
        """Return the topics' labels: those of different ones are in different documents."""
        return self.label_of_topic()

    def label_of_topic(self) -> Tensor:
        """Return the label of every topic, (K,); -1 of common ones."""
        own = torch.arange(self.num_labels).repeat_interleave(self.label_topics)
        return torch.cat([own, own.new_full((self.num_common_topics,), -1)])

    def allowed(self, labels: Tensor) -> Tensor:
        """Return a (N, K): 1 for the topics that documents with these labels (N, L) may use, all for those without."""
        own = labels.repeat_interleave(self.label_topics, -1)
        common = labels.new_ones(*labels.shape[:-1], self.num_common_topics)
        return torch.where((labels > 0).any(-1, keepdim=True), torch.cat([own, common], -1), 1.0)

    def __call__(
        self, x: Tensor | None = None, *, labels: Tensor | None = None, **plate: Unpack[DocumentPlate]
    ) -> Tensor:
        topic = self.sample("topic")
        with self.documents(x, **plate) as documents:
            law, own = self.prior("topic_proportion", like=topic), documents.of(labels)
            if own is not None:
                law = FaceDirichlet(law.concentration * self.allowed(own), validate_args=False)
            proportion = pyro.sample("topic_proportion", law)
            return documents.observe("x", Tokens(proportion, topic, documents.lengths))

    def check_without_labels(self) -> None:
        warn_of_absent("labels", "every topic is open to each, as in LDA", "labels=..., those of each document")

    @classmethod
    def example(cls) -> Example:
        """Return two labels and a common topic over nine words, and forty documents, ten of them unlabelled."""
        model = cls(num_topics=3, vocabulary_size=9, num_labels=2)
        return draw_example(model, np.array([[1, 0], [0, 1], [1, 1], [0, 0]])[np.arange(40) % 4], seed=12)


@dataclass(frozen=True, kw_only=True, eq=False)
class PartiallyLabeledLDA(LabeledLDA):
    """Partially labelled LDA: several topics for every label, and topics common to all documents.

    num_topics: K, of the labels and, beyond ``num_labels * topics_per_label``, common to all documents.
    topics_per_label: T. Topics l T, ..., (l + 1) T - 1 are those of label l.

    Sites
    -----
    topic: b (K, V), word probabilities; Dirichlet(.05, ..., .05) by default.
    topic_proportion: pi (N, K), local; Dirichlet(.1, ..., .1) over the topics of the document's labels by default, 0 of
        the others.
    labels: x (N, L), given, 0 or 1, or (N,) the number of the one label, or names: as those of :class:`LabeledLDA`.
    x: (N, V), observed, word counts.
    """

    topics_per_label: int = 2

    whole_fields: ClassVar[tuple[str, ...]] = (*LabeledLDA.whole_fields, "topics_per_label")
    sites: ClassVar[Mapping[str, Site]] = {**LabeledLDA.sites}

    @property
    def label_topics(self) -> int:
        return self.topics_per_label

    @classmethod
    def example(cls) -> Example:
        """Return a label of two topics and a common one over nine words, and forty documents, ten unlabelled."""
        model = cls(num_topics=3, vocabulary_size=9, num_labels=1, topics_per_label=2)
        return draw_example(model, (np.arange(40) % 4 > 0)[:, None].astype(float), seed=13)


def draw_example(model: LabeledLDA, labels: np.ndarray, *, seed: int) -> Example:
    """Draw documents with these labels (N, L), from three topics over nine words."""
    rng = np.random.default_rng(seed)
    topic = example_topics(0.02, (0.4, 0.3, 0.2))
    allowed = model.allowed(torch.as_tensor(labels, dtype=torch.float64)).numpy()
    weight = rng.gamma(0.8, size=allowed.shape) * allowed
    proportion = weight / weight.sum(1, keepdims=True)
    lengths = rng.integers(6, 15, len(labels))
    x = np.stack([rng.multinomial(n, p) for n, p in zip(lengths, proportion @ topic, strict=True)])
    return Example.of(model, x, {"topic": topic, "topic_proportion": proportion}, labels=labels)
