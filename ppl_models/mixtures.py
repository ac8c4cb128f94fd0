"""Mixtures: every row belongs to one of K classes, and its entries are independent given the class.

    q_n        ~ Categorical(pi)                                                          n = 1..N
    x_nj | q_n ~ p(x_nj | the mean of entry j in class q_n)                               j = 1..D

p is Bernoulli, categorical, Poisson, or all entries of a row are one multinomial: the words of a document.

Bingham, Kaban & Fortelius, *The aspect Bernoulli model* (2007), have the mixture of Bernoullis as their baseline.
Murphy (2012, section 27.2.1) has the others:

    p(y_i | q_i = k) = prod_r Cat(y_ir | b_k^(r))                  responses r = 1..R, latent class analysis (eq. 27.3)
    p(n_i | q_i = k) = prod_j Poisson(n_ij | lambda_kj)            counts                                    (eq. 27.5)
    p(y_i | q_i = k) = prod_l Cat(y_il | b_k) = prod_v b_kv^n_iv   the tokens of a document in their order   (eq. 27.1)
    p(n_i | L_i, q_i = k) = Mu(n_i | L_i, b_k)                     as counts, with the coefficient          (eq. 27.4)

The last two have the same posterior, and evidences that differ by the multinomial coefficient. One topic is the unigram
model. Nigam, McCallum, Thrun & Mitchell, *Text classification from labeled and unlabeled documents using EM*, 2000.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.answer_models import ResponseModel, draw_responses
from ppl_models.core.document_model import DocumentModel, example_topics
from ppl_models.core.model import Example
from ppl_models.core.plates import DocumentPlate, Plate
from ppl_models.core.row_models import ComponentModel, Response, RowModel
from ppl_models.core.sites import Site
from ppl_models.data.matrix import Data
from ppl_models.distributions.tokens import Tokens
from ppl_models.likelihoods import Bernoulli, Multinomial, Poisson


@dataclass(frozen=True, kw_only=True, eq=False)
class Mixture(RowModel):
    """Rows that belong to one of K classes: what the mixtures have in common."""

    proportion_site: ClassVar[str] = "mixing_proportion"
    sites: ClassVar[Mapping[str, Site]] = {
        "mixing_proportion": Site("global", ("component",), support=constraints.simplex),
        "assignment": Site("latent", ("component",), ("row",), constraints.one_hot),
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class MixtureOfBernoullis(Mixture, ComponentModel):
    """Mixture of Bernoullis: each row is drawn from one of K classes.

    Sites
    -----
    mixing_proportion: pi (K,) on the simplex; flat (Dirichlet of ones) by default.
    probability: p (K, D), P(x_nt = 1 | class k); flat on [0, 1] by default.
    assignment: z (N, K), one-hot.
    x: (N, D), observed.

    With the flat default priors EM gives maximum likelihood, under which a feature that no row of a class shows has
    probability 0 there; posterior means, as variational Bayes (the default of ``fit``) gives them, keep off the edges.
    """

    likelihood: ClassVar[Any] = Bernoulli()
    sites: ClassVar[Mapping[str, Site]] = {
        **Mixture.sites,
        "probability": Site("global", ("component", "feature"), support=constraints.unit_interval),
        "x": Site("observed", ("feature",), ("row",), constraints.boolean),
    }

    def __call__(self, x: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        proportion = self.sample("mixing_proportion")
        probability = self.sample("probability")
        with self.rows(x, **plate) as rows:
            assignment = pyro.sample("assignment", dist.OneHotCategorical(proportion))
            return rows.observe("x", dist.Bernoulli(assignment @ probability))

    @classmethod
    def example(cls) -> Example:
        """Three classes over six features, eighty rows."""
        generator = torch.Generator().manual_seed(11)
        proportion = torch.tensor([0.5, 0.3, 0.2])
        probability = torch.tensor(
            [[0.9, 0.85, 0.8, 0.1, 0.1, 0.15], [0.1, 0.1, 0.2, 0.8, 0.9, 0.9], [0.8, 0.2, 0.1, 0.1, 0.15, 0.9]]
        )
        chosen = torch.multinomial(proportion, 80, replacement=True, generator=generator)
        assignment = torch.eye(3)[chosen]
        x = torch.bernoulli(assignment @ probability, generator=generator)
        truth = {"mixing_proportion": proportion, "probability": probability, "assignment": assignment}
        return Example(model=cls(num_components=3, num_features=6), data=Data(x=x), truth=truth)


@dataclass(frozen=True, kw_only=True, eq=False)
class MixtureOfPoissons(Mixture, ComponentModel):
    """Mixture of Poissons: each row of counts is drawn from one of K classes.

    Sites
    -----
    mixing_proportion: pi (K,) on the simplex; flat (Dirichlet of ones) by default.
    rate: lambda (K, D), expected counts in class k; Gamma(.1, .1) by default.
    assignment: q (N, K), one-hot.
    x: (N, D), observed, whole numbers of at least 0, dense or sparse; masked entries drop out of the product.

    The total L_n of a row is modelled too: L_n | q_n = k ~ Poisson(sum_j lambda_kj). Given the totals it is the mixture
    of multinomials with b_kj = lambda_kj / sum_j' lambda_kj', and proportions of the classes that depend on L_n.

    A Gamma(a, b) prior with a < 1 adds a events to b rows: EM's estimate is then
    (a + sum_n r_nk x_nj) / (b + sum_n r_nk m_nj), the mode in the basis of log lambda; with a >= 1 it is the mode of
    lambda, which has a - 1 in place of a.
    """

    likelihood: ClassVar[Any] = Poisson()
    keeps_sparse: ClassVar[bool] = True
    sites: ClassVar[Mapping[str, Site]] = {
        **Mixture.sites,
        "rate": Site("global", ("component", "feature"), support=constraints.positive),
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "rate": dist.Gamma(0.1, 0.1)}

    def __call__(self, x: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        proportion = self.sample("mixing_proportion")
        rate = self.sample("rate")
        with self.rows(x, **plate) as rows:
            assignment = pyro.sample("assignment", dist.OneHotCategorical(proportion))
            return rows.observe("x", dist.Poisson(assignment @ rate))

    @classmethod
    def example(cls) -> Example:
        """Three classes over six features, sixty rows."""
        generator = torch.Generator().manual_seed(4)
        proportion = torch.tensor([0.5, 0.3, 0.2])
        rate = torch.tensor(
            [[3.0, 2.0, 3.0, 0.5, 0.3, 0.5], [0.4, 0.3, 1.0, 3.0, 4.0, 2.0], [6.0, 4.5, 6.0, 4.0, 1.0, 1.0]]
        )
        assignment = torch.eye(3)[torch.multinomial(proportion, 60, replacement=True, generator=generator)]
        x = torch.poisson(assignment @ rate, generator=generator)
        truth = {"mixing_proportion": proportion, "rate": rate, "assignment": assignment}
        return Example(model=cls(num_components=3, num_features=6), data=Data(x=x), truth=truth)


@dataclass(frozen=True, kw_only=True, eq=False)
class MixtureOfCategoricals(ResponseModel, Mixture):
    """Mixture of categoricals: each row of responses is drawn from one of K classes.

    num_categories: of every response, one number or a tuple of R; each at least 2. C is the largest.

    Sites
    -----
    mixing_proportion: pi (K,) on the simplex; flat (Dirichlet of ones) by default.
    response: b (K, R, C), P(response r is c | class k), 0 of categories that a response has not; flat (Dirichlet of
        ones) by default. A prior states C concentrations, of which each response has those of its categories.
    assignment: q (N, K), one-hot.
    x: (N, R), observed, whole numbers 0..C_r - 1; NaN for missing responses, which drop out of the product.

    With the flat default priors EM gives maximum likelihood; the posterior means of variational Bayes (the default of
    ``fit``), or EM under ``with_priors(response=dist.Dirichlet(...))``, keep off the edges. A
    concentration below 1 adds to the counts (the mode in the softmax basis).
    """

    sites: ClassVar[Mapping[str, Site]] = {**Mixture.sites, **ResponseModel.sites}

    def __call__(self, x: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        proportion = self.sample("mixing_proportion")
        response = self.sample("response")
        with self.rows(x, **plate) as rows:
            assignment = pyro.sample("assignment", dist.OneHotCategorical(proportion))
            return rows.observe("x", Response(torch.tensordot(assignment, response, 1)))

    @classmethod
    def example(cls) -> Example:
        """Three classes, five questions of four answers, eighty rows."""
        generator = torch.Generator().manual_seed(3)
        proportion = torch.tensor([0.5, 0.3, 0.2])
        favourite = torch.tensor([[0, 1, 2, 3, 0], [3, 1, 0, 0, 2], [1, 3, 2, 1, 1]])
        response = torch.full((3, 5, 4), 0.1).scatter(-1, favourite.unsqueeze(-1), 0.7)
        assignment = torch.eye(3)[torch.multinomial(proportion, 80, replacement=True, generator=generator)]
        x = draw_responses(assignment, response, generator)
        truth = {"mixing_proportion": proportion, "response": response, "assignment": assignment}
        return Example(model=cls(num_components=3, num_features=5, num_categories=4), data=Data(x=x), truth=truth)


@dataclass(frozen=True, kw_only=True, eq=False)
class MixtureOfMultinomials(Mixture, DocumentModel):
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
        "mixing_proportion": Mixture.sites["mixing_proportion"],
        "assignment": Site("latent", ("component",), ("document",), constraints.one_hot),
        **DocumentModel.sites,
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "topic": dist.Dirichlet(torch.full((self.vocabulary_size,), 0.05))}

    @property
    def likelihood(self) -> Multinomial:
        return Multinomial(self.document_length, self.coefficient)

    def __call__(self, x: Tensor | None = None, **plate: Unpack[DocumentPlate]) -> Tensor:
        proportion = self.sample("mixing_proportion")
        topic = self.sample("topic")
        with self.documents(x, **plate) as documents:
            assignment = pyro.sample("assignment", dist.OneHotCategorical(proportion))
            words = Tokens(assignment, topic, documents.lengths, coefficient=self.coefficient)
            return documents.observe("x", words)

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

    :class:`MixtureOfMultinomials` with the multinomial coefficient (Murphy 2012, eq. 27.4).
    """

    coefficient: ClassVar[bool] = True
