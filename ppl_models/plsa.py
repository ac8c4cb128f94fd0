"""Probabilistic latent semantic analysis (PLSA).

Sources 004 (slides "Probabilistic Latent Semantic Analysis" 1-8; Hofmann, *Probabilistic latent semantic indexing*,
SIGIR 1999) and 002, below eq. 27.13. Every token w of document d has an aspect z of its own:

    P(w | d) = sum_z P(w | z) P(z | d)

The program of LDA without its priors: P(z | d) is a parameter of every document, estimated as a point. The most
probable values of LDA under flat priors are PLSA's maximum of the likelihood (Girolami & Kaban, SIGIR 2003).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ppl_models.core.document_model import DocumentModel, TopicAdmixture
from ppl_models.core.model import Example
from ppl_models.lda import LDA


@dataclass(frozen=True, kw_only=True, eq=False)
class PLSA(TopicAdmixture):
    """Probabilistic latent semantic analysis: LDA's program with flat priors, fitted by points.

    Sites
    -----
    topic: P(w | z) (K, V); flat by default.
    topic_proportion: P(z | d) (N, K), local, estimated as points (``Fit.params`` holds them); flat by default.
    x: (N, V), observed, word counts.

    New documents are folded in: their proportions are estimated with the topics fixed. Priors above flat
    (``with_concentration(gamma=1.01)``) make it the maximum a posteriori.
    """

    def default_priors(self) -> dict[str, Any]:
        return DocumentModel.default_priors(self)  # the flat ones

    @classmethod
    def example(cls) -> Example:
        """That of LDA."""
        example = LDA.example()
        return Example(model=cls(num_topics=3, vocabulary_size=9), data=example.data, truth=example.truth)
