"""Random-effects LDA: topic proportions that covariates explain by weights of every document's own.

Source 002, section 27.4.4.2, Fig. 27.16b (mixture of experts with random effects). Document i with covariates u_i (P,),
d_i = (u_i - centre) / unit of them in each's units (s_p):

    W_ip ~ Normal(m_p s_p, Sigma),  p = 1..P         its weights for a unit, rows (K,) of W_i
    pi_i = softmax(W_i'd_i)                                                                        (eq. 27.68)
    p(y_il = v | pi_i) = sum_k pi_ik b_kv            its tokens, their topics summed out           (eq. 27.69)

Of the weights the tokens see z_i = W_i'd_i alone, Normal(B'd_i, |d_i|^2 Sigma) with rows m_p s_p of B; the program
states that, and given z_i

    W_i | z_i ~ MatrixNormal(B + d_i (z_i - B'd_i)' / |d_i|^2,  I - d_i d_i' / |d_i|^2,  Sigma).

Other than in eq. 27.70, tokens that are seen say what others will be. P = 1 and u_i = 1 gives the CTM (27.50-27.56).

There is no intercept but a column of equal numbers. With one, the others are taken about their means; without one the
logits are 0 where all covariates are, and covariates of another origin are another model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.document_model import DocumentModel, example_topics
from ppl_models.core.errors import DataError
from ppl_models.core.model import Example
from ppl_models.core.scales import beside_an_intercept
from ppl_models.core.sites import Site
from ppl_models.ctm import LogisticNormalTopics
from ppl_models.data.matrix import Data


@dataclass(frozen=True, kw_only=True, eq=False)
class RandomEffectsLDA(LogisticNormalTopics):
    """Random-effects LDA: topics whose logits are linear in covariates, with weights of every document's own.

    num_covariates: P, with the intercept: a column of ones, where one is wanted.
    centre, unit: of each covariate, its origin and its scale; by default from the data that are fitted: centre 0 and
        unit |c| of a column of equal numbers c; of others, where there is such a column, the mean, and the distance of
        two values where it has but two, else the standard deviation; where there is none, 0, and the root mean
        square.

    Sites
    -----
    topic: b (K, V), word probabilities; Dirichlet(.05, ..., .05) by default.
    mean: m (P, K), the weights' mean for each unit of the data; Normal(0, 3 / unit_p) by default.
    covariance: Sigma (K, K), positive definite, of each covariate's weights for its unit; InverseWishart(K + 1, I) by
        default.
    topic_logit: z (N, K), local, Normal(B'd, |d|^2 Sigma): the document's weights at its covariates.
    covariates: u (N, P), given, finite numbers, not all of a document at the centre. Without them u is the centre, and
        in columns whose centre is 0 one unit: an intercept of 1.
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
        """The centre; one unit where that is 0, as of an intercept."""
        centre, unit = self.scale_of_columns(like)
        return torch.where(centre == 0, unit, centre).expand(rows, -1)

    def check_covariates(self, covariates: Tensor) -> None:
        """Refuses documents all of whose covariates are 0, or at the centre: their logits would have no spread."""
        empty = (self.standard(covariates) == 0).all(1).nonzero().flatten()
        if len(empty):
            where = "at the centre" if bool((self.scale_of_columns(covariates)[0] != 0).any()) else "0"
            found = f"all covariates of {len(empty)} documents are {where} (the first: {int(empty[0])})"
            raise DataError(found, site="covariates", expected="another value in each, such as an intercept of 1")

    def measure_scale(self, value: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Centres and units of covariates (N, P): about means beside an intercept, about 0 without one."""
        return beside_an_intercept(value, weights)

    def location_units(self, like: Tensor) -> Tensor:
        return self.scale_of_columns(like)[1].unsqueeze(-1)

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "mean": self.of_weights(3.0)}

    def design(self, covariates: Tensor | None, rows: int, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """d_n and |d_n|^2."""
        given = self.standard(self.average(rows, like) if covariates is None else covariates.to(like))
        return given, given.square().sum(1)

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """As of CTM. Raises DataError without covariates where ``num_covariates`` does not say how many there are."""
        if "num_covariates" not in settings and "covariates" not in data.others:
            expected = "covariates=..., a row for each document; a column of ones is an intercept alone"
            raise DataError("documents without covariates", site="covariates", expected=expected)
        return super().for_data(data, num_components, **settings)

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
        model = cls(num_topics=3, vocabulary_size=9, num_covariates=2, centre=0.0, unit=1.0)
        return Example.of(model, x, truth, covariates=covariates)
