"""Base classes of the models of documents: sizes, reading of counts, and the statement of the tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import pyro.distributions as dist
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.model_priors import WithPriors
from ppl_models.core.plates import Documents
from ppl_models.core.priors import dirichlet
from ppl_models.core.row_models import RowModel
from ppl_models.core.sites import Site
from ppl_models.data import sparse as _sparse
from ppl_models.data.columns import warn_of_ids
from ppl_models.data.documents.counts import as_documents, check_documents
from ppl_models.data.held import Reading, Source
from ppl_models.data.matrix import Data

#: Concentrations of a Dirichlet prior, one number or one for each place; None: those of the model.
Concentration = float | Sequence[Any] | NDArray[Any] | Tensor | None
#: Word counts, dense or sparse: sparse counts stay sparse in every method.
COUNTS = Site("observed", ("word",), ("document",), constraints.nonnegative_integer, sparse=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class WordCounts(RowModel):
    """A model of word counts x (N, V), the last of whose axes is "word": the door for its data."""

    #: Whether p(n) is that of the counts (Murphy 2012, eq. 27.11) or of the tokens in their order (27.13).
    coefficient: ClassVar[bool] = False
    #: Tokens of a document that the program generates; a field of the models.
    document_length: ClassVar[int] = 100

    def documents(
        self, x: Tensor | None, mask: Tensor | None = None, batch_size: int | None = None, num_rows: int = 1,
        num_tokens: Tensor | int | None = None,
    ) -> Documents:  # fmt: skip
        """Return the plate "data" of the program's documents, in which their latents and word counts are stated.

        x: (N, V), dense or CSR, or None to generate ``num_rows`` documents of ``num_tokens`` tokens, by default
        ``document_length``. mask: (N, V); the tokens of masked entries are left out of their documents.
        """
        num_tokens = self.document_length if num_tokens is None else num_tokens
        return Documents(self, x, mask, batch_size, num_rows, num_tokens)

    @property
    def data_kind(self) -> str:
        return "documents"

    def prepare(self, data: Source, **reading: Unpack[Reading]) -> Data:
        """Word counts; sparse ones stay sparse. Raises DataError for anything that is no count."""
        return as_documents(data, vocabulary_size=self.sizes["word"], **reading)

    def prepare_new(self, data: Source, like: Data, **reading: Unpack[Reading]) -> Data:
        """Prepare new documents in the vocabulary of ``like``; unknown words are dropped with a warning."""
        words, size = like.coords.get("feature"), self.sizes["word"]
        cut = like.recipe.get("texts")
        return as_documents(data, vocabulary=words, vocabulary_size=size, cut=cut, **reading)

    def check_for_fitting(self, data: Data) -> None:
        """Refuses a corpus without any token; warns of empty documents and of words that never occur."""
        check_documents(data)
        warn_of_ids(data)

    def given(self, data: Data) -> dict[str, Any]:
        """The documents' lengths: copies of them have as many tokens."""
        return {**super().given(data), "num_tokens": _sparse.row_sums(data.observed_x).long()}


class WithTopics(WithPriors):
    """K topics over V words, in proportions of every document's own."""

    num_topics: int
    vocabulary_size: int

    #: The site whose Dirichlet prior ``with_concentration(alpha=...)`` sets.
    proportion_site: ClassVar[str] = "topic_proportion"

    def proportions(self, local: Tensor) -> Tensor:
        """The topics' proportions of documents, (..., N, K), from values of the local site; by default these values."""
        return local

    def with_concentration(self, *, alpha: Concentration = None, gamma: Concentration = None) -> Self:
        """Return a copy of the model with Dirichlet priors of these concentrations.

        alpha: of the proportions of the topics, (K,) or one number. gamma: of ``topic``, (V,) or one number, or (K, V)
        for topics with words of their own, which fits then have in this order.

        Raises ModelError for values that are not positive and finite, or of other shapes.
        """
        priors = {}
        if alpha is not None:
            priors[self.proportion_site] = dirichlet(self.proportion_site, alpha, self.num_topics)
        if gamma is not None:
            priors["topic"] = dirichlet("topic", gamma, self.vocabulary_size, self.num_topics)
        return self.with_priors(**priors)


@dataclass(frozen=True, kw_only=True, eq=False)
class DocumentModel(WithTopics, WordCounts):
    """A model of word counts x (N, V) with K topics.

    document_length: tokens of a document that the program generates. The length of observed documents is given, not
        modelled; this has no influence on inference.
    """

    num_topics: int
    vocabulary_size: int
    document_length: int = 100  # pyright: ignore[reportIncompatibleVariableOverride]

    axes: ClassVar[Mapping[str, str]] = {"component": "num_topics", "word": "vocabulary_size"}
    whole_fields: ClassVar[tuple[str, ...]] = ("document_length",)
    sites: ClassVar[Mapping[str, Site]] = {
        "topic": Site("global", ("component", "word"), support=constraints.simplex),
        "x": COUNTS,
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class TopicAdmixture(DocumentModel):
    """Documents whose every token has a topic of its own, drawn from the document's proportions.

    By default topic ~ Dirichlet(.05, ..., .05) and topic_proportion ~ Dirichlet(.1, ..., .1).
    """

    sites: ClassVar[Mapping[str, Site]] = {
        **DocumentModel.sites,
        "topic_proportion": Site("latent", ("component",), ("document",), constraints.simplex),
    }

    def default_priors(self) -> dict[str, Any]:
        return {
            "topic": dist.Dirichlet(torch.full((self.vocabulary_size,), 0.05)),
            "topic_proportion": dist.Dirichlet(torch.full((self.num_topics,), 0.1)),
        }


def example_topics(low: float, high: tuple[float, float, float], *shared: tuple[int, int]) -> np.ndarray:
    """Three topics over nine words, (3, 9), each with three words of its own. shared: (topic, word), .2 there."""
    topic = np.full((3, 9), low)
    for k in range(3):
        topic[k, 3 * k : 3 * k + 3] = high
    for place in shared:
        topic[place] = 0.2
    return topic / topic.sum(1, keepdims=True)
