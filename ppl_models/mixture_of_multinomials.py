"""Mixture of multinomials, or of unigrams: every document has one topic.

Source 002: Murphy, *Machine Learning: a Probabilistic Perspective*, section 27.2.1. Documents i, words v, topics k:

    q_i ~ Categorical(pi)                                          the topic of the document
    p(y_i | q_i = k) = prod_l Cat(y_il | b_k) = prod_v b_kv^n_iv   its tokens in their order              (eq. 27.1)
    p(y_i) = sum_k pi_k prod_v b_kv^n_iv                                                                  (eq. 27.2)
    p(n_i | L_i, q_i = k) = Mu(n_i | L_i, b_k)                     as counts: L_i! / prod_v n_iv! times it (eq. 27.4)

The two have the same posterior, and evidences that differ by the multinomial coefficient. One topic is the unigram
model. Nigam, McCallum, Thrun & Mitchell, *Text classification from labeled and unlabeled documents using EM*, 2000.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyro.distributions as dist
import torch
from torch.distributions import constraints

from ppl_models.core.document_model import DocumentModel, example_topics
from ppl_models.core.model import Example
from ppl_models.core.row_models import MixtureOf
from ppl_models.core.sites import Site
from ppl_models.likelihoods import Multinomial


@dataclass(frozen=True, kw_only=True, eq=False)
class MixtureOfMultinomials(MixtureOf, DocumentModel):
    """Mixture of multinomials: all tokens of a document come from one of K topics.

    Sites
    -----
    mixing_proportion: pi (K,) on the simplex; flat (Dirichlet of ones) by default.
    topic: b (K, V), word probabilities; Dirichlet(.05, ..., .05) by default, as LDA's.
    assignment: q (N, K), one-hot.
    x: (N, V), observed, word counts. log p(x) is that of the tokens in their order;
        :class:`MixtureOfMultinomialCounts` has the multinomial coefficient too.

    Swap priors with ``with_concentration(gamma=1)``, which makes EM maximum likelihood. A concentration below 1 adds to
    the counts: b_kv is proportional to gamma + sum_i r_ik n_iv (the mode in the softmax basis, MacKay 1998).
    """

    sites: ClassVar[Mapping[str, Site]] = {
        "mixing_proportion": MixtureOf.sites["mixing_proportion"],
        "assignment": Site("latent", ("component",), ("document",), constraints.one_hot),
        **DocumentModel.sites,
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "topic": dist.Dirichlet(torch.full((self.vocabulary_size,), 0.05))}

    @property
    def likelihood(self) -> Multinomial:
        return Multinomial(self.document_length, self.coefficient)

    @classmethod
    def example(cls) -> Example:
        """Three topics over nine words, forty documents of three to eight tokens."""
        rng = np.random.default_rng(7)
        proportion = np.array([0.45, 0.35, 0.2])
        topic = example_topics(0.04, (0.4, 0.2, 0.15), (1, 0))
        assignment = np.eye(3)[rng.choice(3, 40, p=proportion)]
        lengths = rng.integers(3, 9, 40)
        x = np.stack([rng.multinomial(n, p) for n, p in zip(lengths, assignment @ topic, strict=True)])
        truth = {"mixing_proportion": proportion, "topic": topic, "assignment": assignment}
        return Example.of(cls(num_topics=3, vocabulary_size=9), x, truth)


@dataclass(frozen=True, kw_only=True, eq=False)
class MixtureOfMultinomialCounts(MixtureOfMultinomials):
    """Mixture of multinomials as a distribution over word counts.

    :class:`MixtureOfMultinomials` with the multinomial coefficient (002, eq. 27.4).
    """

    coefficient: ClassVar[bool] = True
