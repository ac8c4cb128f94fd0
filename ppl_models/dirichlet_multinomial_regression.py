"""Dirichlet-multinomial regression (DMR): LDA in which covariates of a document say how probable its topics are.

Source 002, section 27.4.4.2, eqs. 27.71-27.72 (Mimno & McCallum, *Topic models conditioned on arbitrary features with
Dirichlet-multinomial regression*, UAI 2008), with a bias of every topic. With covariates u_i (P,) of document i:

    alpha_i = exp(c + W'u_i)                 W (P, K), c (K,)                                     (eq. 27.71)
    pi_i ~ Dirichlet(alpha_i)                                                                     (eq. 27.72)
    q_il | pi_i ~ Categorical(pi_i),   y_il | q_il, b ~ Categorical(b_{q_il}),   b_k ~ Dirichlet(gamma)    (as LDA)

Both what topics a document with such covariates has and how even its mix is follow from them. The words still tell what
the document's own mix is. With W = 0, or without covariates, it is LDA with the concentration exp(c), which is learned.
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


@dataclass(frozen=True, kw_only=True, eq=False)
class DirichletMultinomialRegression(RegressedAdmixture):
    """Dirichlet-multinomial regression: topics whose prevalence depends on covariates of the documents.

    Sites
    -----
    topic: b (K, V), word probabilities; Dirichlet(.05, ..., .05) by default.
    prevalence_bias: c (K,), log concentrations of documents whose covariates are 0; Normal(-2, 2) by default.
    prevalence_weight: W (P, K), what a covariate adds to them; Normal(0, 1) by default.
    topic_proportion: pi (N, K), local, Dirichlet(exp(c + W'u)): its prior is what the weights say.
    covariates: u (N, P), given, finite numbers: ``fit(model, words, covariates=u)``; 0 where none are given. The bias
        is the intercept. Inputs are best centred and of unit variance, or indicators.
    x: (N, V), observed, word counts.
    """

    bias_prior: ClassVar[tuple[float, float]] = (-2.0, 2.0)

    def concentration(self, site: Mapping[str, Tensor], covariates: Tensor | None) -> Tensor:
        """alpha (N, K) of documents with these covariates (eq. 27.71); (K,) of documents without."""
        return self.predictor(site, covariates).exp()

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
        return Example.of(cls(num_topics=2, vocabulary_size=6, num_covariates=1), x, truth, covariates=covariates)
