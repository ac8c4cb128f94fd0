"""Dirichlet-multinomial regression (DMR): LDA in which covariates of a document say how probable its topics are.

Source 002, section 27.4.4.2, eqs. 27.71-27.72 (Mimno & McCallum, *Topic models conditioned on arbitrary features with
Dirichlet-multinomial regression*, UAI 2008), with a bias of every topic. With covariates u_i (P,) of document i:

    alpha_i = exp(c + W'(u_i - m))           W (P, K), c (K,), m (P,)                             (eq. 27.71)
    pi_i ~ Dirichlet(alpha_i)                                                                     (eq. 27.72)
    q_il | pi_i ~ Categorical(pi_i),   y_il | q_il, b ~ Categorical(b_{q_il}),   b_k ~ Dirichlet(gamma)    (as LDA)

m, the centre of the covariates, is a number of the program, and c the intercept there: years may count from 0 or from
1990. Both what topics a document with such covariates has and how even its mix is follow from them. The words still
tell what the document's own mix is. With W = 0, or without covariates, it is LDA with the concentration exp(c), which
is learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyro.distributions as dist
from torch import Tensor

from ppl_models.core.document_model import example_topics
from ppl_models.core.given_documents import RegressedAdmixture
from ppl_models.core.model import Example

#: The logarithms of concentrations are within these, so that far from the documents that were learned from they stay
#: numbers: no document has e^18 tokens, which more strength would tell from these.
WEAKEST, STRONGEST = -60.0, 18.0


def concentrations(eta: Tensor) -> Tensor:
    """exp(eta), (..., K); where one exceeds e^18 all of its row in proportion, and none below e^-60."""
    return (eta - (eta.amax(-1, keepdim=True) - STRONGEST).clamp(min=0)).clamp(min=WEAKEST).exp()


@dataclass(frozen=True, kw_only=True, eq=False)
class DirichletMultinomialRegression(RegressedAdmixture):
    """Dirichlet-multinomial regression: topics whose prevalence depends on covariates of the documents.

    centre, unit: m and s, of each covariate, its origin and its scale; by default from the data that are fitted: the
        mean, and the distance of two values where it has but two, else the standard deviation.

    Sites
    -----
    topic: b (K, V), word probabilities; Dirichlet(.05, ..., .05) by default.
    prevalence_bias: c (K,), log concentrations of documents whose covariates are m; Normal(-2, 2) by default.
    prevalence_weight: W (P, K), what a covariate adds to them for each unit of the data;
        Normal(0, 1 / s_p) by default: 1 for each s_p.
    topic_proportion: pi (N, K), local, Dirichlet(exp(c + W'(u - m))): its prior is what the weights say.
    covariates: u (N, P), given, finite numbers: ``fit(model, words, covariates=u)``; the
        centre where none are given.
    x: (N, V), observed, word counts.
    """

    bias_prior: ClassVar[tuple[float, float]] = (-2.0, 2.0)

    def concentration(self, site: Mapping[str, Tensor], covariates: Tensor | None) -> Tensor:
        """alpha (N, K) of documents with these covariates (eq. 27.71, within :func:`concentrations`); (K,) of documents
        without."""
        return concentrations(self.predictor(site, covariates))

    def proportion_prior(self, site: Mapping[str, Tensor], given: Tensor | None) -> Any:
        return dist.Dirichlet(self.concentration(site, given), validate_args=False)

    @classmethod
    def example(cls) -> Example:
        """Two topics over six words, one covariate that moves them apart, forty documents of six to fourteen tokens."""
        rng = np.random.default_rng(14)
        topic = example_topics(0.02, (0.4, 0.3, 0.2))[:2, :6]
        topic /= topic.sum(1, keepdims=True)
        truth = {"topic": topic, "prevalence_bias": np.array([-0.5, 0.0]), "prevalence_weight": np.array([[1.2, -0.8]])}
        covariates = rng.normal(size=(40, 1))
        alpha = np.exp(truth["prevalence_bias"] + covariates @ truth["prevalence_weight"])
        weight = rng.gamma(alpha).clip(1e-6)
        truth["topic_proportion"] = weight / weight.sum(1, keepdims=True)
        lengths = rng.integers(6, 15, 40)
        x = np.stack([rng.multinomial(n, p) for n, p in zip(lengths, truth["topic_proportion"] @ topic, strict=True)])
        return Example.of(
            cls(num_topics=2, vocabulary_size=6, num_covariates=1, centre=0.0, unit=1.0),
            x,
            truth,
            covariates=covariates,
        )
