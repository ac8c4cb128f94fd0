"""Dirichlet-multinomial regression (DMR): LDA in which covariates of a document say how probable its topics are.

Murphy (2012), section 27.4.4.2, eqs. 27.71-27.72 (Mimno & McCallum, *Topic models conditioned on arbitrary features
with Dirichlet-multinomial regression*, UAI 2008), with a bias of every topic. With covariates u_i (P,) of document i:

    alpha_i = exp(c + W'(u_i - m))           W (P, K), c (K,), m (P,)                             (eq. 27.71)
    pi_i ~ Dirichlet(alpha_i)                                                                     (eq. 27.72)
    q_il | pi_i ~ Categorical(pi_i),   y_il | q_il, b ~ Categorical(b_{q_il}),   b_k ~ Dirichlet(gamma)    (as LDA)

m, the centre of the covariates, is a number of the program, and c the intercept there: years may count from 0 or from
1990. Both what topics a document with such covariates has and how even its mix is follow from them. The words still
tell what the document's own mix is. With W = 0, or without covariates, it is LDA with the concentration exp(c), which
is learned.

Multinomial regression LDA (MR-LDA; eqs. 27.68-27.70, Law, Settles & Mitchell, *Learning to tag from open vocabulary
labels*, ECML 2010) has the proportions themselves as a function of the covariates:

    pi_i = softmax(c + W'(u_i - m))          W (P, K), c (K,), m (P,)                             (eq. 27.68)
    q_il | u_i ~ Categorical(pi_i)                                                                (eq. 27.69)
    y_il | q_il, b ~ Categorical(b_{q_il}),   b_k ~ Dirichlet(gamma)                                 (as LDA)

    p(y_i | u_i) = prod_l sum_k b_{k y_il} pi_ik                                                  (eq. 27.70)

It is a mixture of experts for every token. Given the covariates a document's tokens are independent, its words say
nothing more of each other, and log p(y_i | u_i) is exact. DMR draws the proportions about what the covariates say, and
lets the words speak too. What the source calls q is the tokens' topics; what it calls y_il, tags of an image with
features x_i, are words here.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.document_model import TopicAdmixture, example_topics
from ppl_models.core.model import Example
from ppl_models.core.plates import DocumentPlate
from ppl_models.core.sites import Site
from ppl_models.distributions import PointMass, Tokens
from ppl_models.kinds.given_documents import CovariateDocuments


@dataclass(frozen=True, kw_only=True, eq=False)
class RegressedAdmixture(CovariateDocuments, TopicAdmixture):
    """Documents with covariates u (N, P), the prior of whose proportions depends on eta = c + W'(u - centre) (N, K)
    alone.

    prevalence_bias: c (K,). prevalence_weight: W (P, K), in row p Normal(0, 1 / unit_p) by default. covariates: given,
    finite numbers; the centre where none are given.
    """

    axes: ClassVar[Mapping[str, str]] = {**TopicAdmixture.axes, "covariate": "num_covariates"}
    sites: ClassVar[Mapping[str, Site]] = {
        "topic": TopicAdmixture.sites["topic"],
        "prevalence_bias": Site("global", ("component",)),
        "prevalence_weight": Site("global", ("covariate", "component")),
        "topic_proportion": TopicAdmixture.sites["topic_proportion"],
        "covariates": Site("given", ("covariate",), ("document",), constraints.real),
        "x": TopicAdmixture.sites["x"],
    }
    #: Mean and standard deviation of the default prior of c.
    bias_prior: ClassVar[tuple[float, float]]

    def default_priors(self) -> dict[str, Any]:
        return {
            "topic": super().default_priors()["topic"],
            "prevalence_bias": dist.Normal(*self.bias_prior),
            "prevalence_weight": self.of_weights(1.0),
        }

    @abc.abstractmethod
    def proportion_prior(self, site: Mapping[str, Tensor], covariates: Tensor | None) -> Any:
        """Return the prior of the proportions of documents with these covariates (N, P), or of one without."""

    def predictor(self, site: Mapping[str, Tensor], covariates: Tensor | None) -> Tensor:
        """Return eta (N, K) of documents with these covariates; (K,) of documents without."""
        return self.linear(site["prevalence_bias"], site["prevalence_weight"], covariates)

    def linear(self, bias: Tensor, weight: Tensor, covariates: Tensor | None) -> Tensor:
        """Return c + W'(u - m), (N, K), of documents with these covariates (N, P); (K,) of documents without."""
        centre, _ = self.scale_of_columns(weight)
        # Without covariates still a product, so that pictures show that the weights matter.
        away = torch.zeros_like(centre) if covariates is None else covariates - centre
        found = bias.unsqueeze(-2) + torch.atleast_2d(away) @ weight
        return found if away.ndim > 1 else found.squeeze(-2)

    def prior(self, site: str, *, like: Tensor | None = None, values: Mapping[str, Tensor] | None = None) -> Any:
        """Return the prior of a site; of the proportions that of documents without covariates, at these values or the
        means of the weights' priors."""
        if site != "topic_proportion":
            return super().prior(site, like=like, values=values)
        sites = ("prevalence_bias", "prevalence_weight")
        return self.proportion_prior(values or {s: self.prior(s, like=like).mean for s in sites}, None)


#: The logarithms of concentrations are within these, so that far from the documents that were learned from they stay
#: numbers: no document has e^18 tokens, which more strength would tell from these.
WEAKEST, STRONGEST = -60.0, 18.0


def concentrations(eta: Tensor) -> Tensor:
    """Return exp(eta), (..., K); where one exceeds e^18 all of its row in proportion, and none below e^-60."""
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
        """Return alpha (N, K) of documents with these covariates (eq. 27.71, within :func:`concentrations`); (K,) of
        documents without."""
        return concentrations(self.predictor(site, covariates))

    def proportion_prior(self, site: Mapping[str, Tensor], covariates: Tensor | None) -> Any:
        return dist.Dirichlet(self.concentration(site, covariates), validate_args=False)

    def __call__(
        self, x: Tensor | None = None, *, covariates: Tensor | None = None, **plate: Unpack[DocumentPlate]
    ) -> Tensor:
        topic = self.sample("topic")
        bias = self.sample("prevalence_bias")
        weight = self.sample("prevalence_weight")
        with self.documents(x, **plate) as documents:
            alpha = concentrations(self.linear(bias, weight, documents.of(covariates)))
            proportion = pyro.sample("topic_proportion", dist.Dirichlet(alpha, validate_args=False))
            return documents.observe("x", Tokens(proportion, topic, documents.lengths))

    @classmethod
    def example(cls) -> Example:
        """Return two topics over six words, a covariate that moves them apart, and forty documents."""
        return _draw_example(cls, 14, np.array([-0.5, 0.0]), lambda rng, alpha: rng.gamma(alpha).clip(1e-6))


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
        """True: the proportions have one value."""
        return True

    def expected_proportion(self, site: Mapping[str, Tensor], covariates: Tensor | None) -> Tensor:
        """Return pi (N, K) of documents with these covariates (eq. 27.68); (K,) of documents without."""
        return torch.softmax(self.predictor(site, covariates), -1)

    def proportion_prior(self, site: Mapping[str, Tensor], covariates: Tensor | None) -> Any:
        return PointMass(self.expected_proportion(site, covariates))

    def __call__(
        self, x: Tensor | None = None, *, covariates: Tensor | None = None, **plate: Unpack[DocumentPlate]
    ) -> Tensor:
        topic = self.sample("topic")
        bias = self.sample("prevalence_bias")
        weight = self.sample("prevalence_weight")
        with self.documents(x, **plate) as documents:
            value = torch.softmax(self.linear(bias, weight, documents.of(covariates)), -1)
            law: Any = PointMass(value)
            law = law.expand(torch.broadcast_shapes(law.batch_shape, (documents.number,)))
            # Stated as ``pyro.deterministic`` does: no guide has anything to draw there, and what depends on it has its
            # gradient. Masked by nothing: of such sites Pyro's pictures look at what is masked.
            certain: Any = {"_deterministic": True}
            proportion = pyro.sample("topic_proportion", law.mask(True), obs=law.value, infer=certain)
            return documents.observe("x", Tokens(proportion, topic, documents.lengths))

    def num_unseen(self, num_rows: int) -> int:
        """Count a number that may be added to all logits, in c and in every row of W; and the proportions, which follow
        from these."""
        rows = {"prevalence_bias": 1, "prevalence_weight": self.num_covariates}
        return sum(rows[s] for s in rows if s in self.unknown_sites) + num_rows * (self.num_topics - 1)

    @classmethod
    def example(cls) -> Example:
        """Return two topics over six words, a covariate that moves them apart, and forty documents."""
        return _draw_example(cls, 16, np.array([0.3, -0.3]), lambda rng, weight: weight)


def _draw_example(
    kind: type[RegressedAdmixture], seed: int, bias: np.ndarray,
    draw: Callable[[np.random.Generator, np.ndarray], np.ndarray],
) -> Example:  # fmt: skip
    """Draw documents whose proportions are in proportion to what ``draw`` makes of exp(c + W'u), (N, K)."""
    rng = np.random.default_rng(seed)
    topic = example_topics(0.02, (0.4, 0.3, 0.2))[:2, :6]
    topic /= topic.sum(1, keepdims=True)
    truth = {"topic": topic, "prevalence_bias": bias, "prevalence_weight": np.array([[1.2, -0.8]])}
    covariates = rng.normal(size=(40, 1))
    weight = draw(rng, np.exp(bias + covariates @ truth["prevalence_weight"]))
    truth["topic_proportion"] = weight / weight.sum(1, keepdims=True)
    lengths = rng.integers(6, 15, 40)
    x = np.stack([rng.multinomial(n, p) for n, p in zip(lengths, truth["topic_proportion"] @ topic, strict=True)])
    model = kind(num_topics=2, vocabulary_size=6, num_covariates=1, centre=0.0, unit=1.0)
    return Example.of(model, x, truth, covariates=covariates)
