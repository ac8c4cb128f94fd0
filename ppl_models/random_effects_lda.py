"""Random-effects LDA: topic proportions that covariates explain by weights of every document's own.

Source 002, section 27.4.4.2, Fig. 27.16b (mixture of experts with random effects). Document i with covariates u_i (P,):

    W_ip ~ Normal(m_p, Sigma),  p = 1..P             its weights, rows (K,) of W_i
    pi_i = softmax(W_i'u_i)                                                                        (eq. 27.68)
    p(y_il = v | pi_i) = sum_k pi_ik b_kv            its tokens, their topics summed out           (eq. 27.69)

Of the weights the tokens see z_i = W_i'u_i alone, Normal(m'u_i, |u_i|^2 Sigma); the program states that, and given z_i

    W_i | z_i ~ MatrixNormal(m + u_i (z_i - m'u_i)' / |u_i|^2,  I - u_i u_i' / |u_i|^2,  Sigma).

Other than in eq. 27.70, tokens that are seen say what others will be. P = 1 and u_i = 1 gives the CTM (27.50-27.56).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.document_model import DocumentModel, example_topics
from ppl_models.core.errors import DataError
from ppl_models.core.model import Example
from ppl_models.core.sites import Site
from ppl_models.ctm import LogisticNormalTopics


@dataclass(frozen=True, kw_only=True, eq=False)
class RandomEffectsLDA(LogisticNormalTopics):
    """Random-effects LDA: topics whose logits are linear in covariates, with weights of every document's own.

    num_covariates: P, with the intercept: a column of ones, where one is wanted.

    Sites
    -----
    topic: b (K, V), word probabilities; Dirichlet(.05, ..., .05) by default.
    mean: m (P, K), the weights' mean; Normal(0, 3) by default.
    covariance: Sigma (K, K), positive definite, of each covariate's weights; InverseWishart(K + 1, I) by default.
    topic_logit: z (N, K), local, Normal(m'u, |u|^2 Sigma): the document's weights at its covariates.
    covariates: u (N, P), given, finite numbers, not all of a document 0. Without them u = 1.
    x: (N, V), observed, word counts. log p(x) is that of the tokens in their order.
    """

    axes: ClassVar[Mapping[str, str]] = {**LogisticNormalTopics.axes, "covariate": "num_covariates"}
    sites: ClassVar[Mapping[str, Site]] = {
        "topic": DocumentModel.sites["topic"],
        "mean": Site("global", ("covariate", "component")),
        "covariance": Site("global", ("component", "to_component"), support=constraints.positive_definite),
        "topic_logit": Site("latent", ("component",), ("document",), constraints.real),
        "covariates": LogisticNormalTopics._covariates,
        "x": DocumentModel.sites["x"],
    }

    def average(self, rows: int, like: Tensor) -> Tensor:
        """Ones."""
        return torch.ones(rows, self.num_covariates, dtype=like.dtype, device=like.device)

    def check_covariates(self, covariates: Tensor) -> None:
        """Refuses documents all of whose covariates are 0: their logits would have no spread."""
        empty = (covariates == 0).all(1).nonzero().flatten()
        if len(empty):
            found = f"all covariates of {len(empty)} documents are 0 (the first: {int(empty[0])})"
            raise DataError(found, site="covariates", expected="another value in each, such as an intercept of 1")

    def design(self, covariates: Tensor | None, rows: int, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """u_n and |u_n|^2."""
        given = self.average(rows, like) if covariates is None else covariates.to(like)
        return given, given.square().sum(1)

    @classmethod
    def example(cls) -> Example:
        """Three topics over nine words, an intercept and another covariate, 48 documents of fifteen tokens."""
        rng = np.random.default_rng(8)
        topic = example_topics(0.02, (0.4, 0.3, 0.2))
        covariance = 0.8 * np.array([[1.0, 0.6, -0.4], [0.6, 1.0, -0.4], [-0.4, -0.4, 1.0]])
        mean = np.array([[0.3, 0.0, -0.3], [1.0, -1.0, 0.0]])
        covariates = np.stack([np.ones(48), rng.normal(size=48)], 1)
        noise = rng.multivariate_normal(np.zeros(3), covariance, 48)
        logit = covariates @ mean + np.sqrt((covariates**2).sum(1, keepdims=True)) * noise
        proportion = np.exp(logit - logit.max(1, keepdims=True))
        proportion /= proportion.sum(1, keepdims=True)
        x = np.stack([rng.multinomial(15, p) for p in proportion @ topic])
        truth = {"topic": topic, "mean": mean, "covariance": covariance, "topic_logit": logit}
        model = cls(num_topics=3, vocabulary_size=9, num_covariates=2)
        return Example.of(model, x, truth, covariates=covariates)
