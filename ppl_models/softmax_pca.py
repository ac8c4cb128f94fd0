"""Softmax PCA: documents whose word logits are linear in a few Gaussian scores.

Source 002, section 27.2.2, eqs. 27.6 and 27.8, with a bias of every word. Documents i, tokens l = 1..L_i, words v:

    s_i        ~ Normal(0, I_K)
    y_il | s_i ~ Cat(softmax(b + sum_k s_ik w_k))                 so that of the counts n_iv of the words
    log p(y_i | s_i) = sum_v n_iv eta_iv - L_i log sum_v e^eta_iv,   eta_i = b + sum_k s_ik w_k

The lengths L_i are given. The topics of LDA mix probabilities; here logits add up, so that a component may also take
words away (a product of experts). A number added to all logits changes nothing: the priors say where they lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.document_model import COUNTS, WordCounts
from ppl_models.core.model import Example
from ppl_models.core.sites import Site
from ppl_models.distributions.tokens import SoftmaxTokens
from ppl_models.exponential_family_pca import LinearScores
from ppl_models.likelihoods import Multinomial


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

    def observe_rows(
        self, site: Mapping[str, Tensor], local: Tensor, x: Tensor | None, mask: Tensor | None, index: Tensor | None,
        num_tokens: Tensor | int | None = None,
    ) -> Tensor:  # fmt: skip
        """The statement of x (N, V), dense or CSR; the tokens of masked entries are left out of their documents.

        num_tokens: of each generated document; ``document_length`` by default.
        """
        rows, lengths = self.counts_and_lengths(x, mask, index, num_tokens, self.document_length)
        tokens: Any = SoftmaxTokens(self.natural(site, local), lengths, coefficient=self.coefficient)
        return pyro.sample(self.observed_site, tokens, obs=rows)

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
