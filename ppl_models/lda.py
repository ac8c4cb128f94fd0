"""Latent Dirichlet allocation (LDA), and its view as counts, multinomial PCA.

Murphy (2012), section 27.3. With documents i, tokens l, topics k:

    pi_i ~ Dirichlet(alpha)                 topic proportions of the document                          (eq. 27.18)
    q_il | pi_i ~ Categorical(pi_i)         which topic the token comes from                           (eq. 27.19)
    b_k ~ Dirichlet(gamma)                  word probabilities of the topic                            (eq. 27.20)
    y_il | q_il, b ~ Categorical(b_{q_il})                                                             (eq. 27.21)

Summing q out leaves p(y_il = v | pi_i) = sum_k pi_ik b_kv (eq. 27.22): only the counts n_iv of the words matter. As a
distribution over these counts it has the multinomial coefficient too: multinomial PCA (eq. 27.11). The two have the
same posterior, and evidences that differ by the coefficient.

Probabilistic latent semantic analysis is the same program without its priors: P(z | d) is a parameter of every
document, estimated as a point (Hofmann, *Probabilistic latent semantic indexing*, SIGIR 1999; Murphy 2012, below
eq. 27.13):

    P(w | d) = sum_z P(w | z) P(z | d)

The most probable values of LDA under flat priors are PLSA's maximum of the likelihood (Girolami & Kaban, SIGIR 2003).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor

from ppl_models.core.document_model import DocumentModel, TopicAdmixture, example_topics
from ppl_models.core.model import Example
from ppl_models.core.plates import DocumentPlate, Plate, Rows
from ppl_models.core.sites import Site
from ppl_models.data import sparse as _sparse
from ppl_models.distributions.tokens import Tokens


@dataclass(frozen=True, kw_only=True, eq=False)
class LDA(TopicAdmixture):
    """Latent Dirichlet allocation: every token comes from one of K topics, in its text's mix.

    Sites
    -----
    topic: b (K, V), word probabilities; Dirichlet(.05, ..., .05) by default.
    topic_proportion: pi (N, K), local; Dirichlet(.1, ..., .1) by default.
    x: (N, V), observed, word counts. log p(x) is that of the tokens in their order; see :class:`MultinomialPCA`.

    The tokens' topics are summed out; :class:`LDAIndicator` keeps them. Swap priors with ``with_concentration(alpha=.5,
    gamma=.01)``, numbers or vectors, or with ``with_priors(topic=dist.Dirichlet(...))``.
    """

    def __call__(self, x: Tensor | None = None, **plate: Unpack[DocumentPlate]) -> Tensor:
        topic = self.sample("topic")
        with self.documents(x, **plate) as documents:
            proportion = self.sample("topic_proportion")
            words = Tokens(proportion, topic, documents.lengths, coefficient=self.coefficient)
            return documents.observe("x", words)

    @classmethod
    def example(cls) -> Example:
        """Three topics over nine words, forty documents of six to fourteen tokens."""
        rng = np.random.default_rng(5)
        topic = example_topics(0.02, (0.4, 0.3, 0.2), (2, 0))
        proportion = rng.dirichlet([0.5] * 3, 40)
        lengths = rng.integers(6, 15, 40)
        x = np.stack([rng.multinomial(n, p) for n, p in zip(lengths, proportion @ topic, strict=True)])
        truth = {"topic": topic, "topic_proportion": proportion}
        return Example.of(cls(num_topics=3, vocabulary_size=9), x, truth)


@dataclass(frozen=True, kw_only=True, eq=False)
class MultinomialPCA(LDA):
    """Multinomial PCA: latent Dirichlet allocation as a distribution over word counts.

    :class:`LDA` with the multinomial coefficient (Murphy 2012, eq. 27.11).
    """

    coefficient: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True, eq=False)
class LDAIndicator(LDA):
    """The same model with the topic of every token kept as a site, for enumeration and for sampling.

    indicator: q (T,), the topic of each of the T tokens (eq. 27.19), document by document and within each in the order
    of the words; marked for parallel enumeration. token: (T,), observed, the words (eq. 27.21). Summed out the
    indicators leave :class:`LDA`.
    """

    sites: ClassVar[Mapping[str, Site]] = {**LDA.sites, "indicator": Site("latent", (), ("token",), choice="component")}
    listed: ClassVar[bool] = False

    @property
    def summed_out(self) -> LDA:
        """:class:`LDA` with the same priors: what fits hold."""
        return LDA(**self.settings(), priors=self.priors)

    def __call__(
        self, x: Tensor | None = None, *, num_tokens: Tensor | int | None = None, **plate: Unpack[Plate]
    ) -> Tensor:
        topic = self.sample("topic")
        with self.rows(x, **plate) as documents:
            proportion = self.sample("topic_proportion")
        document, word = self._tokens(documents, num_tokens)
        with poutine.scale(scale=documents.plate.size / documents.number), pyro.plate("tokens", len(document), dim=-1):
            categorical = dist.Categorical(proportion[document])
            indicator = pyro.sample("indicator", categorical, infer={"enumerate": "parallel"})
            return pyro.sample("token", dist.Categorical(topic[indicator]), obs=word)

    def _tokens(self, documents: Rows, num_tokens: Tensor | int | None) -> tuple[Tensor, Tensor | None]:
        """Return the document, by its place in the plate, and the word of every token; no words where there is no x."""
        size, device = documents.number, documents.places.device
        if documents.x is None:
            length = torch.as_tensor(self.document_length if num_tokens is None else num_tokens, device=device)
            return torch.arange(size, device=device).repeat_interleave(length.expand(size)), None
        counts, mask = _sparse.dense(documents.of(documents.x)), documents.of(documents.mask)
        counts = counts if mask is None else torch.where(mask, counts, torch.zeros_like(counts))
        row, word = counts.nonzero(as_tuple=True)
        repeats = counts[row, word].long()
        return row.repeat_interleave(repeats), word.repeat_interleave(repeats)


@dataclass(frozen=True, kw_only=True, eq=False)
class PLSA(LDA):
    """Probabilistic latent semantic analysis: LDA's program with flat priors, fitted by points.

    Sites
    -----
    topic: P(w | z) (K, V); flat by default.
    topic_proportion: P(z | d) (N, K), local, estimated as points (``Fit.params`` holds them); flat by default.
    x: (N, V), observed, word counts.

    New documents are folded in: their proportions are estimated with the topics fixed. Priors above flat
    (``with_concentration(gamma=1.01)``) make it the maximum a posteriori.
    """

    def default_priors(self) -> dict[str, Any]:
        return DocumentModel.default_priors(self)  # the flat ones

    @classmethod
    def example(cls) -> Example:
        """The example of LDA."""
        example = LDA.example()
        return Example(model=cls(num_topics=3, vocabulary_size=9), data=example.data, truth=example.truth)
