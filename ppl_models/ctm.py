"""Correlated topic models: the logits of a document's topic proportions are Gaussian, so that topics go together.

Murphy (2012), section 27.4.1 (Blei & Lafferty, *A correlated topic model of Science*, Annals of Applied Statistics
2007):

    z_i ~ Normal(mu, Sigma)                         logits of the document's topic proportions           (eq. 27.51)
    pi_i = softmax(z_i)                                                                                  (eq. 27.52)
    p(y_il = v | pi_i) = sum_k pi_ik b_kv           its tokens, their topics summed out              (eqs. 27.53-55)

With covariates u_i of the documents the prior mean is mu + W'(u_i - m), W (P, K), m (P,) their centre: the
prevalence part of the structural topic model (Roberts, Stewart & Airoldi, *A model of text for experimentation in the
social sciences*, JASA 2016).

A number added to all logits of a document changes nothing: of mu and Sigma the data see C mu and C Sigma C alone, with
C = I - 1 1'/K. Their priors say the rest.

Random-effects LDA, the mixture of experts with random effects of section 27.4.4.2, Fig. 27.16b, gives every document
weights of its own. With covariates u_i (P,), d_i = (u_i - centre) / unit in each's units (s_p):

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

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.document_model import DocumentModel, example_topics
from ppl_models.core.errors import DataError, require_whole
from ppl_models.core.model import Example
from ppl_models.core.plates import DocumentPlate
from ppl_models.core.scales import beside_an_intercept
from ppl_models.core.sites import Site
from ppl_models.distributions import InverseWishart, Tokens
from ppl_models.kinds.given_documents import AverageDocuments


def rows_times(rows: Tensor, weight: Tensor) -> Tensor:
    """Return d_n'W, (..., N, K), of rows (N, P) and weights (..., P, K), whose leading axes are those of draws."""
    return (rows.unsqueeze(-2) @ weight).squeeze(-2)


@dataclass(frozen=True, kw_only=True, eq=False)
class LogisticNormalTopics(AverageDocuments):
    """Topic models whose logits are Gaussian, Normal(B'd_i, s_i Sigma) at a design d_i and a scale s_i of the document.

    The design has covariates in their units (``core.scales``), and B the rows of the globals ``location_sites``, one
    below the other, times the units of their columns.
    """

    axes: ClassVar[Mapping[str, str]] = {**DocumentModel.axes, "to_component": "num_topics"}
    _covariates: ClassVar[Site] = Site("given", ("covariate",), ("document",), constraints.real)

    @property
    def location_sites(self) -> tuple[str, ...]:
        """The globals whose rows are B."""
        return ("mean",)

    def design(self, covariates: Tensor | None, rows: int, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return d (N, P') and s (N,) of documents with these covariates (N, P); None: s = 1."""
        raise NotImplementedError

    def location(self, site: Mapping[str, Tensor]) -> Tensor:
        """Return B (..., P', K)."""
        parts = {name: site[name] for name in self.location_sites}
        wide = [value if len(self.sites[name].dims) == 2 else value.unsqueeze(-2) for name, value in parts.items()]
        return torch.cat(wide, -2) * self.location_units(wide[0])

    def location_units(self, like: Tensor) -> Tensor:
        """Return the units of the columns of the design, (P', 1), the first of which is an intercept."""
        unit = self.scale_of_columns(like)[1]
        return torch.cat([unit.new_ones(1), unit]).unsqueeze(-1)

    def default_priors(self) -> dict[str, Any]:
        return {
            "topic": dist.Dirichlet(torch.full((self.vocabulary_size,), 0.05)),
            "mean": dist.Normal(0.0, 3.0),
            "covariance": InverseWishart(self.num_topics + 1.0, torch.eye(self.num_topics)),
        }

    def proportions(self, local: Tensor) -> Tensor:
        """Return softmax(z) of logits z (eq. 27.52)."""
        return torch.softmax(local, -1)

    def fill_covariates(self, covariates: Tensor | None, rows: int, like: Tensor) -> Tensor:
        """Return covariates (N, P) in the type of ``like``; where there are none, those of average documents."""
        return self.average(rows, like) if covariates is None else covariates.to(like)

    def num_unseen(self, num_rows: int) -> int:
        """Count what the proportions do not show: a number added to all logits, in the rows of B, the covariance and
        the documents."""
        unknown = set(self.unknown_sites)
        rows = sum(math.prod(self.shapes[s][:-1]) for s in ("mean", "prevalence_weight") if s in unknown)
        return num_rows + rows + self.num_topics * ("covariance" in unknown)


@dataclass(frozen=True, kw_only=True, eq=False)
class CTM(LogisticNormalTopics):
    """Correlated topic model: LDA with Gaussian logits of the topics, which may go together.

    num_covariates: P, of the structural topic model; 0 by default.
    centre, unit: m and s, of each covariate, its origin and its scale; by default from the data that are fitted: the
        mean, and the distance of two values where it has but two, else the standard deviation.

    Sites
    -----
    topic: b (K, V), word probabilities; Dirichlet(.05, ..., .05) by default.
    mean: mu (K,), of the topic logits; Normal(0, 3) by default.
    prevalence_weight: W (P, K), where there are covariates, of each unit of the data; Normal(0, 1 / s_p) by default.
    covariance: Sigma (K, K), positive definite; InverseWishart(K + 1, I) by default. A prior is one of whole matrices.
    topic_logit: z (N, K), local, Normal(mu + W'(u - m), Sigma): its prior is what the globals say.
    covariates: u (N, P), given, finite numbers: ``fit(model, words, covariates=u)``. Without them u = m.
    x: (N, V), observed, word counts. log p(x) is that of the tokens in their order.

    Raises ModelError for a prior of ``covariance`` that is not over positive definite matrices.
    """

    num_covariates: int = 0

    @property
    def sites(self) -> Mapping[str, Site]:  # pyright: ignore[reportIncompatibleVariableOverride]
        several = self.num_covariates > 0
        return {
            "topic": DocumentModel.sites["topic"],
            "mean": Site("global", ("component",)),
            **({"prevalence_weight": Site("global", ("covariate", "component"))} if several else {}),
            "covariance": Site("global", ("component", "to_component"), support=constraints.positive_definite),
            "topic_logit": Site("latent", ("component",), ("document",), constraints.real),
            **({"covariates": self._covariates} if several else {}),
            "x": DocumentModel.sites["x"],
        }

    def __post_init__(self) -> None:
        require_whole({"num_covariates": self.num_covariates}, 0)
        super().__post_init__()

    @property
    def location_sites(self) -> tuple[str, ...]:
        return ("mean", "prevalence_weight") if self.num_covariates else ("mean",)

    def default_priors(self) -> dict[str, Any]:
        weights = {"prevalence_weight": self.of_weights(1.0)} if self.num_covariates else {}
        return {**super().default_priors(), **weights}

    @property
    def sizes(self) -> dict[str, int]:
        return super().sizes | ({"covariate": self.num_covariates} if self.num_covariates else {})

    def __call__(
        self, x: Tensor | None = None, *, covariates: Tensor | None = None, **plate: Unpack[DocumentPlate]
    ) -> Tensor:
        topic = self.sample("topic")
        mean = self.sample("mean")
        weight = self.sample("prevalence_weight") if self.num_covariates else None
        covariance = self.sample("covariance")
        location, centre = mean, self.scale_of_columns(mean)[0]
        with self.documents(x, **plate) as documents:
            if weight is not None:
                known = self.fill_covariates(documents.of(covariates), documents.number, mean)
                location = mean + rows_times(known - centre, weight)
            logit = pyro.sample("topic_logit", dist.MultivariateNormal(location, covariance))
            return documents.observe("x", Tokens(torch.softmax(logit, -1), topic, documents.lengths))

    def design(self, covariates: Tensor | None, rows: int, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the rows (1, (u_n - m) / s), with u = m where there are none, and no scale."""
        ones = torch.ones(rows, 1, dtype=like.dtype, device=like.device)
        if not self.num_covariates:
            return ones, None
        return torch.cat([ones, self.standard(self.fill_covariates(covariates, rows, like))], 1), None

    @classmethod
    def example(cls) -> Example:
        """Return three topics over nine words, two of which go together, sixty documents of twenty tokens."""
        rng = np.random.default_rng(6)
        topic = example_topics(0.02, (0.4, 0.3, 0.2))
        covariance = 2.25 * np.array([[1.0, 0.8, -0.5], [0.8, 1.0, -0.5], [-0.5, -0.5, 1.0]])
        logit = rng.multivariate_normal(np.zeros(3), covariance, 60)
        proportion = np.exp(logit - logit.max(1, keepdims=True))
        proportion /= proportion.sum(1, keepdims=True)
        x = np.stack([rng.multinomial(20, p) for p in proportion @ topic])
        truth = {"topic": topic, "mean": np.zeros(3), "covariance": covariance, "topic_logit": logit}
        return Example.of(cls(num_topics=3, vocabulary_size=9), x, truth)


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
        """Return the centre; one unit where that is 0, as of an intercept."""
        centre, unit = self.scale_of_columns(like)
        return torch.where(centre == 0, unit, centre).expand(rows, -1)

    def check_given(self, given: Tensor) -> None:
        """Refuse documents all of whose covariates are 0, or at the centre: their logits would have no spread."""
        empty = (self.standard(given) == 0).all(1).nonzero().flatten()
        if len(empty):
            where = "at the centre" if bool((self.scale_of_columns(given)[0] != 0).any()) else "0"
            found = f"all covariates of {len(empty)} documents are {where} (the first: {int(empty[0])})"
            raise DataError(found, site="covariates", expected="another value in each, such as an intercept of 1")

    def measure_scale(self, value: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return centres and units of covariates (N, P): about means beside an intercept, about 0 without one."""
        return beside_an_intercept(value, weights)

    def location_units(self, like: Tensor) -> Tensor:
        return self.scale_of_columns(like)[1].unsqueeze(-1)

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "mean": self.of_weights(3.0)}

    def design(self, covariates: Tensor | None, rows: int, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return d_n and |d_n|^2."""
        given = self.standard(self.fill_covariates(covariates, rows, like))
        return given, given.square().sum(1)

    def __call__(
        self, x: Tensor | None = None, *, covariates: Tensor | None = None, **plate: Unpack[DocumentPlate]
    ) -> Tensor:
        topic = self.sample("topic")
        mean = self.sample("mean")
        covariance = self.sample("covariance")
        with self.documents(x, **plate) as documents:
            known = self.standard(self.fill_covariates(documents.of(covariates), documents.number, mean))
            location = rows_times(known, mean * self.location_units(mean))
            factor = torch.linalg.cholesky(covariance) * known.norm(dim=-1)[:, None, None]
            logit = pyro.sample("topic_logit", dist.MultivariateNormal(location, scale_tril=factor))
            return documents.observe("x", Tokens(torch.softmax(logit, -1), topic, documents.lengths))

    @classmethod
    def count_given(cls, given: Tensor | None) -> int | None:
        """Return the number of covariates. Raises DataError where there are none."""
        if given is None:
            expected = "covariates=..., a row for each document; a column of ones is an intercept alone"
            raise DataError("documents without covariates", site="covariates", expected=expected)
        return super().count_given(given)

    @classmethod
    def example(cls) -> Example:
        """Return three topics over nine words, an intercept and another covariate, 48 documents of fifteen tokens."""
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
