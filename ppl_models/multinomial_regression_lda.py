"""Multinomial regression LDA (MR-LDA): covariates of a document say what its topics' proportions are.

Source 002, section 27.4.4.2, eqs. 27.68-27.70 (Law, Settles & Mitchell, *Learning to tag from open vocabulary labels*,
ECML 2010), with a bias of every topic. With covariates u_i (P,) of document i:

    pi_i = softmax(c + W'(u_i - m))          W (P, K), c (K,), m (P,)                             (eq. 27.68)
    q_il | u_i ~ Categorical(pi_i)                                                                (eq. 27.69)
    y_il | q_il, b ~ Categorical(b_{q_il}),   b_k ~ Dirichlet(gamma)                                 (as LDA)

    p(y_i | u_i) = prod_l sum_k b_{k y_il} pi_ik                                                  (eq. 27.70)

m, the centre of the covariates, is a number of the program, and c the intercept there. It is a mixture of experts for
every token. The proportions are a function of the covariates: given these a document's tokens
are independent, its words say nothing more of each other, and log p(y_i | u_i) is exact. DirichletMultinomialRegression
draws the proportions about what the covariates say, and lets the words speak too. What the source calls q is the
tokens' topics; what it calls y_il, tags of an image with features x_i, are words here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyro
import torch
from torch import Tensor

from ppl_models.core.document_model import example_topics
from ppl_models.core.given_documents import RegressedAdmixture
from ppl_models.core.model import Example
from ppl_models.distributions import PointMass


@dataclass(frozen=True, kw_only=True, eq=False)
class MultinomialRegressionLDA(RegressedAdmixture):
    """Multinomial regression LDA: topics whose proportions are a function of covariates of the document.

    centre, unit: m and s, of each covariate, its origin and its scale; by default from the data that are fitted: the
        mean, and the distance of two values where it has but two, else the standard deviation.

    Sites
    -----
    topic: b (K, V), word probabilities; Dirichlet(.05, ..., .05) by default.
    prevalence_bias: c (K,), logits of the proportions where all covariates are m; Normal(0, 2) by default.
    prevalence_weight: W (P, K), what a covariate adds to them for each unit of the data;
        Normal(0, 1 / s_p) by default: 1 for each s_p.
    topic_proportion: pi (N, K), softmax(c + W'(u - m)): a local site that can have this one value.
    covariates: u (N, P), given, finite numbers: ``fit(model, words, covariates=u)``; the
        centre where none are given.
    x: (N, V), observed, word counts.

    ``fit.predict(covariates)`` gives the probability of each word, (N, V).
    """

    bias_prior: ClassVar[tuple[float, float]] = (0.0, 2.0)
    without_density: ClassVar[str] = "is a function of the covariates"

    @property
    def has_atoms(self) -> bool:
        """The proportions have one value."""
        return True

    def expected_proportion(self, site: Mapping[str, Tensor], covariates: Tensor | None) -> Tensor:
        """pi (N, K) of documents with these covariates (eq. 27.68); (K,) of documents without."""
        return torch.softmax(self.predictor(site, covariates), -1)

    def proportion_prior(self, site: Mapping[str, Tensor], given: Tensor | None) -> Any:
        return PointMass(self.expected_proportion(site, given))

    def latent_given(self, site: Mapping[str, Tensor], given: Tensor | None, rows: int) -> Any:
        law = self.proportion_prior(site, given)
        return law.expand(torch.broadcast_shapes(law.batch_shape, (rows,)))

    def draw_given(self, law: Any) -> Tensor:
        """State, as ``pyro.deterministic`` does, what is a function of other sites: no guide has anything to draw
        there, and what depends on it has its gradient."""
        # Masked by nothing: of such sites Pyro's pictures look at what is masked.
        return pyro.sample("topic_proportion", law.mask(True), obs=law.value, infer={"_deterministic": True})

    def num_parameters(self, num_rows: int) -> int:
        """The entries of the globals, one less for each topic; of c and of every row of W one less too, as a number
        added to all logits changes nothing."""
        del num_rows
        return super().num_parameters(0) - 1 - self.num_covariates

    @classmethod
    def example(cls) -> Example:
        """Two topics over six words, one covariate that moves them apart, forty documents of six to fourteen tokens."""
        rng = np.random.default_rng(16)
        topic = example_topics(0.02, (0.4, 0.3, 0.2))[:2, :6]
        topic /= topic.sum(1, keepdims=True)
        truth = {"topic": topic, "prevalence_bias": np.array([0.3, -0.3]), "prevalence_weight": np.array([[1.2, -0.8]])}
        covariates = rng.normal(size=(40, 1))
        weight = np.exp(truth["prevalence_bias"] + covariates @ truth["prevalence_weight"])
        truth["topic_proportion"] = weight / weight.sum(1, keepdims=True)
        lengths = rng.integers(6, 15, 40)
        x = np.stack([rng.multinomial(n, p) for n, p in zip(lengths, truth["topic_proportion"] @ topic, strict=True)])
        return Example.of(
            cls(num_topics=2, vocabulary_size=6, num_covariates=1, centre=0.0, unit=1.0),
            x,
            truth,
            covariates=covariates,
        )
