"""Categorical and softmax PCA: logits of categories, or of words, that are linear in a few Gaussian scores.

Murphy (2012), 27.2.2, with a bias of every category, or word. Of categorical responses, features r = 1..R of C_r
categories each (eq. 27.7):

    s_n        ~ Normal(0, I_K)                                                   n = 1..N
    eta_nr     = b_r + sum_k s_nk w_kr    in R^C_r
    x_nr | s_n ~ Cat(softmax(eta_nr))

Of documents i, tokens l = 1..L_i, words v (eqs. 27.6 and 27.8):

    s_i        ~ Normal(0, I_K)
    y_il | s_i ~ Cat(softmax(b + sum_k s_ik w_k))                 so that of the counts n_iv of the words
    log p(y_i | s_i) = sum_v n_iv eta_iv - L_i log sum_v e^eta_iv,   eta_i = b + sum_k s_ik w_k

The lengths L_i are given. The topics of LDA mix probabilities; here logits add up, so that a component may also take
words away (a product of experts). A number added to all logits of a feature, or of the words, changes nothing: the
priors of weights and biases say where they lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.answer_models import ABSENT, AnswerModel
from ppl_models.core.document_model import COUNTS, WordCounts
from ppl_models.core.errors import ModelError
from ppl_models.core.linear_scores import LinearScores
from ppl_models.core.model import Example
from ppl_models.core.plates import DocumentPlate, Plate
from ppl_models.core.row_models import Response
from ppl_models.core.sites import Site
from ppl_models.data.matrix import Data
from ppl_models.distributions.tokens import SoftmaxTokens
from ppl_models.likelihoods import Multinomial


@dataclass(frozen=True, kw_only=True, eq=False)
class CategoricalPCA(LinearScores, AnswerModel):
    """Categorical PCA: the logits of the categories of x are linear in K Gaussian scores.

    num_categories: of every feature, one number or a tuple of D; each at least 2. C is the largest.

    Sites
    -----
    weight: w (K, D, C); Normal(0, 1) by default.
    bias: b (D, C), the logits at score 0; Normal(0, 10) by default.
    score: s (N, K), one event vector a row; Normal(0, 1) by default.
    x: (N, D), observed, whole numbers 0..C_j - 1; NaN for missing ones.

    Categories that a feature lacks have probability 0, and their weights and biases no influence but by the prior.

    Raises ModelError for numbers of categories that are no whole numbers above 1, or not one a feature, and for more
    components than the logits have dimensions.
    """

    information: ClassVar[float] = 0.25
    sites: ClassVar[Mapping[str, Site]] = {
        "weight": Site("global", ("component", "feature", "category")),
        "bias": Site("global", ("feature", "category")),
        "score": LinearScores.sites["score"],
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_components > self.num_natural:
            found = f"num_components = {self.num_components} exceeds the {self.num_natural} dimensions of the logits"
            raise ModelError(f"{found}: the weights span no more; expected at most as many")

    @property
    def num_natural(self) -> int:
        return sum(size - 1 for size in self.categories)

    def default_priors(self) -> dict[str, Any]:
        return {"weight": dist.Normal(0.0, 1.0), "bias": dist.Normal(0.0, 10.0), "score": dist.Normal(0.0, 1.0)}

    def __call__(self, x: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        weight = self.sample("weight")
        bias = self.sample("bias")
        with self.rows(x, **plate) as rows:
            score = self.sample("score")
            return rows.observe("x", Response(logits=self.logits(weight, bias, score)))

    def logits(self, weight: Tensor, bias: Tensor, score: Tensor) -> Tensor:
        """Return eta (..., N, D, C) of rows with scores (..., N, K), far below all others for absent categories."""
        eta = bias + (score @ weight.flatten(1)).unflatten(-1, weight.shape[1:])
        return torch.where(self.present(eta), eta, torch.full_like(eta, ABSENT))

    @classmethod
    def example(cls) -> Example:
        """Two components over four features of two to four categories, fifty-two rows."""
        generator = torch.Generator().manual_seed(29)
        model = cls(num_components=2, num_features=4, num_categories=(3, 2, 4, 3))
        present = model.present(torch.ones(()))
        truth = {
            "weight": torch.randn((2, 4, 4), generator=generator) * present,
            "bias": 0.5 * torch.randn((4, 4), generator=generator) * present,
            "score": torch.randn((52, 2), generator=generator),
        }
        chance = torch.softmax(model.logits(**truth), -1)
        x = torch.multinomial(chance.flatten(0, 1), 1, generator=generator).view(52, 4).to(chance)
        return Example(model=model, data=Data(x=x), truth=truth)


@dataclass(frozen=True, kw_only=True, eq=False)
class SoftmaxPCA(LinearScores, WordCounts):
    """Softmax PCA: the logits of a document's words are linear in K Gaussian scores.

    document_length: tokens of a document that the program generates. The length of observed documents is given.

    Sites
    -----
    weight: w (K, V); Normal(0, 1) by default.
    bias: b (V,), the logits at score 0; Normal(0, 5) by default.
    score: s (N, K), one event vector a document; Normal(0, 1) by default.
    x: (N, V), observed, word counts, dense or sparse. log p(x) is that of the tokens in their order.

    Raises ModelError for K > V: the weights would not be identified.
    """

    num_components: int
    num_features: int
    document_length: int = 100

    wide_reason: ClassVar[str | None] = "the weights span no more than V dimensions"
    axes: ClassVar[Mapping[str, str]] = {"component": "num_components", "word": "num_features"}
    whole_fields: ClassVar[tuple[str, ...]] = ("document_length",)
    sites: ClassVar[Mapping[str, Site]] = {
        "weight": Site("global", ("component", "word")),
        "bias": Site("global", ("word",)),
        "score": Site("latent", ("component",), ("document",), constraints.real),
        "x": COUNTS,
    }

    @property
    def likelihood(self) -> Multinomial:  # pyright: ignore[reportIncompatibleVariableOverride]
        return Multinomial(self.document_length, self.coefficient)

    @property
    def information(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The mean count of a word in a document of ``document_length`` tokens."""
        return self.document_length / self.num_features

    @property
    def num_natural(self) -> int:
        return self.num_features - 1

    def default_priors(self) -> dict[str, Any]:
        return {"weight": dist.Normal(0.0, 1.0), "bias": dist.Normal(0.0, 5.0), "score": dist.Normal(0.0, 1.0)}

    def __call__(self, x: Tensor | None = None, **plate: Unpack[DocumentPlate]) -> Tensor:
        weight = self.sample("weight")
        bias = self.sample("bias")
        with self.documents(x, **plate) as documents:
            score = self.sample("score")
            words = SoftmaxTokens(bias + score @ weight, documents.lengths, coefficient=self.coefficient)
            return documents.observe("x", words)

    @classmethod
    def example(cls) -> Example:
        """Two components over seven words, fifty-two documents of fifteen to thirty tokens."""
        rng = np.random.default_rng(31)
        ends = [1.2, 1.0, 0.8, 0.0, -0.8, -1.0, -1.2]
        truth = {
            "weight": np.array([ends, [0.5, -0.8, 0.8, -1.0, 1.0, -0.8, 0.3]]),
            "bias": np.array([0.4, -0.2, 0.0, 0.5, -0.5, 0.2, 0.0]),
            "score": rng.standard_normal((52, 2)),
        }
        logit = truth["bias"] + truth["score"] @ truth["weight"]
        chance = np.exp(logit) / np.exp(logit).sum(1, keepdims=True)
        x = np.stack([rng.multinomial(n, p) for n, p in zip(rng.integers(15, 31, 52), chance, strict=True)])
        return Example.of(cls(num_components=2, num_features=7), x, truth)
