"""Correlated topic model (CTM): the logits of a document's topic proportions are Gaussian, so that topics go together.

Source 002, section 27.4.1 (Blei & Lafferty, *A correlated topic model of Science*, Annals of Applied Statistics 2007):

    z_i ~ Normal(mu, Sigma)                         logits of the document's topic proportions           (eq. 27.51)
    pi_i = softmax(z_i)                                                                                  (eq. 27.52)
    p(y_il = v | pi_i) = sum_k pi_ik b_kv           its tokens, their topics summed out              (eqs. 27.53-55)

A number added to all logits of a document changes nothing: of mu and Sigma the data see C mu and C Sigma C alone, with
C = I - 1 1'/K. Their priors say the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.document_model import DocumentModel, example_topics
from ppl_models.core.model import Example
from ppl_models.core.sites import Site
from ppl_models.distributions import InverseWishart


@dataclass(frozen=True, kw_only=True, eq=False)
class CTM(DocumentModel):
    """Correlated topic model: LDA with Gaussian logits of the topics, which may go together.

    Sites
    -----
    topic: b (K, V), word probabilities; Dirichlet(.05, ..., .05) by default.
    mean: mu (K,), of the topic logits; Normal(0, 3) by default.
    covariance: Sigma (K, K), positive definite; InverseWishart(K + 1, I) by default. A prior is one of whole matrices.
    topic_logit: z (N, K), local, Normal(mu, Sigma): its prior is what mean and covariance say.
    x: (N, V), observed, word counts. log p(x) is that of the tokens in their order.

    Raises ModelError for a prior of ``covariance`` that is not over positive definite matrices.
    """

    axes: ClassVar[Mapping[str, str]] = {**DocumentModel.axes, "to_component": "num_topics"}
    sites: ClassVar[Mapping[str, Site]] = {
        "topic": DocumentModel.sites["topic"],
        "mean": Site("global", ("component",)),
        "covariance": Site("global", ("component", "to_component"), support=constraints.positive_definite),
        "topic_logit": Site("latent", ("component",), ("document",), constraints.real),
        "x": DocumentModel.sites["x"],
    }

    def default_priors(self) -> dict[str, Any]:
        return {
            "topic": dist.Dirichlet(torch.full((self.vocabulary_size,), 0.05)),
            "mean": dist.Normal(0.0, 3.0),
            "covariance": InverseWishart(self.num_topics + 1.0, torch.eye(self.num_topics)),
        }

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        factor = torch.linalg.cholesky(site["covariance"])
        return pyro.sample("topic_logit", dist.MultivariateNormal(site["mean"], scale_tril=factor))

    def proportions(self, local: Tensor) -> Tensor:
        """softmax(z) of logits z (eq. 27.52)."""
        return torch.softmax(local, -1)

    def num_parameters(self, num_rows: int) -> int:
        """K (V - 1) + (K - 1) + K (K - 1) / 2: of mean and covariance what the data can see."""
        k = self.num_topics
        return k * (self.vocabulary_size - 1) + (k - 1) + k * (k - 1) // 2

    @classmethod
    def example(cls) -> Example:
        """Three topics over nine words, two of which go together, sixty documents of twenty tokens."""
        rng = np.random.default_rng(6)
        topic = example_topics(0.02, (0.4, 0.3, 0.2))
        covariance = 2.25 * np.array([[1.0, 0.8, -0.5], [0.8, 1.0, -0.5], [-0.5, -0.5, 1.0]])
        logit = rng.multivariate_normal(np.zeros(3), covariance, 60)
        proportion = np.exp(logit - logit.max(1, keepdims=True))
        proportion /= proportion.sum(1, keepdims=True)
        x = np.stack([rng.multinomial(20, p) for p in proportion @ topic])
        truth = {"topic": topic, "mean": np.zeros(3), "covariance": covariance, "topic_logit": logit}
        return Example.of(cls(num_topics=3, vocabulary_size=9), x, truth)
