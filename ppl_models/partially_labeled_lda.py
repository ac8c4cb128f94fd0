"""Partially labelled latent Dirichlet allocation: several topics for every label, and topics common to all documents.

Source 002, section 27.4.4.2, below eq. 27.72 (Ramage, Manning & Dumais, *Partially labeled topic models for
interpretable text mining*, KDD 2011): labelled LDA in which every label has several topics, which the words tell apart.
See ``labeled_lda`` for the mathematics.

LDA (one label that every document has), labelled LDA (one topic a label) and the multinomial mixture (one label a
document, one topic a label, none in common) are its special cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ppl_models.core.model import Example
from ppl_models.core.sites import Site
from ppl_models.labeled_lda import LabeledLDA, example_with_labels


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
        """A label of two topics and a common one, over nine words, forty documents, a quarter of them unlabelled."""
        model = cls(num_topics=3, vocabulary_size=9, num_labels=1, topics_per_label=2)
        return example_with_labels(model, (np.arange(40) % 4 > 0)[:, None].astype(float), seed=13)
