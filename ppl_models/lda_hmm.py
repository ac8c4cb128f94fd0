"""Topics and syntax (LDA-HMM): a hidden Markov model writes sentences, and leaves the words of content to topics.

Source 002, section 27.4.3 (Griffiths, Steyvers, Blei & Tenenbaum, *Integrating topics and syntax*, NIPS 2004). With
documents i, tokens l, topics k, and states c = 0, ..., C, of which 0 is that of content:

    pi_i ~ Dirichlet(alpha)                                        topic proportions of the document      (eq. 27.61)
    q_il | pi_i ~ Categorical(pi_i)                                which topic a word of content is from  (eq. 27.62)
    z_i1 ~ Categorical(a),   z_il | z_i,l-1 ~ Categorical(A_{z_i,l-1})      within each sentence          (eq. 27.63)
    y_il | q_il, z_il = 0 ~ Categorical(b_{q_il}),    y_il | z_il = c ~ Categorical(B_c)                  (eq. 27.64)

The program sums topics and states out exactly, by the forward algorithm of every sentence. (The source has one chain a
document; here each sentence begins a new one, as in the paper.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import DataError, about
from ppl_models.core.model import Example
from ppl_models.core.priors import dirichlet
from ppl_models.core.row_models import RowModel
from ppl_models.core.sites import Site
from ppl_models.data import sparse as _sparse
from ppl_models.data.matrix import Data, as_matrix
from ppl_models.data.sequences.data import Sequences
from ppl_models.data.sequences.door import sequences
from ppl_models.distributions.hidden_markov import SyntaxTokens

#: The sites that there are only with classes of syntax.
_SYNTAX = ("emission", "initial", "transition")
_SITES: Mapping[str, Site] = {
    "topic": Site("global", ("component", "word"), support=constraints.simplex),
    "emission": Site("global", ("class", "word"), support=constraints.simplex),
    "initial": Site("global", ("state",), support=constraints.simplex),
    "transition": Site("global", ("state", "to_state"), support=constraints.simplex),
    "topic_proportion": Site("latent", ("component",), ("document",), constraints.simplex),
    "x": Site("observed", ("place",), ("document",), constraints.nonnegative_integer, sparse=True),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class LDAHMM(RowModel):
    """Topics and syntax: a hidden Markov model of sentences, one of whose states draws its words from topics.

    num_states: S = C + 1, the state of content and C classes of syntax. With 1 the model is LDA.
    document_length, sentence_length: places of a document that the program generates, and words of its sentences. Those
        of observed documents are given, not modelled.

    Sites
    -----
    topic: b (K, V), word probabilities of the topics; Dirichlet(.05, ..., .05) by default.
    emission: B (C, V), word probabilities of the classes of syntax; Dirichlet(.1, ..., .1) by default.
    initial: a (S,), of the state of a sentence's first word; transition: A (S, S); flat by default. State 0 is that of
        content. Without classes the model has none of these three.
    topic_proportion: pi (N, K), local; Dirichlet(.3, ..., .3) by default.
    x: (N, L), observed: 1 + the number of the word at each place of the documents, 0 where there is none, which ends a
        sentence; as ``sequences(texts)`` makes it. A missing entry ends a sentence too.

    ``fit.tokens()`` has the state and the topic of every token.
    """

    num_topics: int
    num_states: int
    vocabulary_size: int
    document_length: int = 99
    sentence_length: int = 9

    axes: ClassVar[Mapping[str, str]] = {
        "component": "num_topics", "word": "vocabulary_size", "state": "num_states", "to_state": "num_states"
    }  # fmt: skip
    whole_fields: ClassVar[tuple[str, ...]] = ("document_length", "sentence_length")

    @property
    def sites(self) -> Mapping[str, Site]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return _SITES if self.num_states > 1 else {n: site for n, site in _SITES.items() if n not in _SYNTAX}

    @property
    def sizes(self) -> dict[str, int]:
        return {**super().sizes, "class": self.num_states - 1}

    @property
    def feature_axis(self) -> str:
        """Columns of the components are words; those of x are places."""
        return "word"

    @property
    def data_kind(self) -> str:
        return "sequences"

    def default_priors(self) -> dict[str, Any]:
        flat = {site: prior for site, prior in super().default_priors().items() if site in _SYNTAX}
        emission = {"emission": dist.Dirichlet(torch.full((self.vocabulary_size,), 0.1))}
        return {
            **flat,
            "topic": dist.Dirichlet(torch.full((self.vocabulary_size,), 0.05)),
            **(emission if self.num_states > 1 else {}),
            "topic_proportion": dist.Dirichlet(torch.full((self.num_topics,), 0.3)),
        }

    def proportions(self, local: Tensor) -> Tensor:
        """The topics' proportions of documents, (..., N, K)."""
        return local

    def with_concentration(self, *, alpha: Any = None, gamma: Any = None) -> Self:
        """The same model with Dirichlet priors of these concentrations, numbers or vectors.

        alpha: of the proportions of the topics, (K,) or one number. gamma: of ``topic``, (V,) or one number.
        """
        given = {"topic_proportion": (alpha, self.num_topics), "topic": (gamma, self.vocabulary_size)}
        return self.with_priors(**{s: dirichlet(s, *one) for s, one in given.items() if one[0] is not None})

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """The model of the data's vocabulary; by default of ten states, fewer where there are few words."""
        words = data.num_words if isinstance(data, Sequences) else max(1, int(_values(data.x).max()))
        settings.setdefault("num_states", max(2, min(10, words // 3)))
        settings.setdefault("document_length", data.x.shape[1])
        return cls(num_topics=num_components, vocabulary_size=words, **settings)

    # ----- the program ------------------------------------------------------------------------------------

    def observe_rows(
        self, site: Mapping[str, Tensor], local: Tensor, x: Tensor | None, mask: Tensor | None, index: Tensor | None,
        layout: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """The statement of x (N, L), dense or CSR. layout: (N, L), where generated documents have words."""
        rows = x if x is None or index is None else _sparse.select_rows(x, index)
        if rows is not None and mask is not None:
            rows = torch.where(mask if index is None else mask[index], rows, torch.zeros_like(rows))
        if rows is not None:
            layout = _sparse.dense(rows) != 0
        elif layout is None:
            place = torch.arange(self.document_length, device=local.device) + 1
            layout = place % (self.sentence_length + 1) != 0
        layout = layout.expand(*local.shape[:-1], -1)
        tokens: Any = SyntaxTokens(
            local, site["topic"], site.get("emission"), site.get("transition"), site.get("initial"), layout
        )
        return pyro.sample("x", tokens, obs=rows)

    def given(self, data: Data) -> dict[str, Any]:
        """Where the documents have words: copies of them have as many, in sentences as long."""
        return {"layout": _sparse.dense(data.observed_x) != 0}

    # ----- data -------------------------------------------------------------------------------------------

    def prepare(self, data: Any, *, mask: Any = None, dtype=None, device=None) -> Sequences:
        """What :func:`ppl_models.sequences` makes, or takes; or a matrix (N, L) as x is, NaN where nothing is.

        Raises DataError for what is neither, and for words beyond the vocabulary.
        """
        with about("x"):
            made = self._read(data, mask, dtype)
            value = _values(made.x)
            wrong = (value < 0) | (value > self.vocabulary_size) | (value != value.round())
            if bool(wrong.any()):
                found = f"{int(wrong.sum())} entries that are no word (the first: {float(value[wrong][0]):g})"
                expected = f"whole numbers from 0 to vocabulary_size = {self.vocabulary_size}: 1 + the word's number"
                raise DataError(found, axis="word", expected=expected)
            return made.to(dtype=dtype, device=device)

    def _read(self, data: Any, mask: Any, dtype: torch.dtype | None) -> Sequences:
        size = self.vocabulary_size
        if isinstance(data, Data):
            if isinstance(data, Sequences) and data.num_words != size:
                found = f"{data.num_words} words where the model has vocabulary_size = {size}"
                raise DataError(found, axis="word", expected=f"{size}; sequences(..., vocabulary=)")
            if mask is not None:
                raise DataError("a mask was given beside data that already carry theirs")
            x, coords = data.observed_x if data.mask is not None else data.x, data.coords
        elif not _is_matrix(data):
            return self._read(sequences(data, vocabulary_size=_of_numbers(data, size), dtype=dtype), mask, dtype)
        else:
            checked = as_matrix(data, mask=mask, dtype=dtype, keep_sparse=True)
            x, coords = checked.observed_x, checked.coords
        words = coords.get("feature")  # of a matrix as wide as the vocabulary, or not the words
        kept = {axis: names for axis, names in coords.items() if axis == "row" or len(words or ()) == size}
        return Sequences(x=x, num_words=size, coords=kept)

    def prepare_new(self, data: Any, like: Data, *, mask: Any = None, dtype=None, device=None) -> Sequences:
        """As :meth:`prepare`, in the vocabulary of the documents ``like``; unknown words are left out, and said."""
        held = isinstance(data, Data) or _is_matrix(data)
        words = data.coords.get("feature") if isinstance(data, Sequences) else None
        if not held or (isinstance(data, Sequences) and words != like.coords.get("feature")):
            data = sequences(data, like, dtype=dtype)
        return self.prepare(data, mask=mask, dtype=dtype, device=device)

    def check_for_fitting(self, data: Data) -> None:
        """Refuses data without any word."""
        if not bool((_values(data.x) != 0).any()):
            raise DataError("no words", site="x", axis="document", expected="at least one sentence with a word")

    @classmethod
    def example(cls) -> Example:
        """Two topics of three words, two classes of syntax; thirty-two documents of two short sentences."""
        rng = np.random.default_rng(4)
        truth: dict[str, Any] = {
            "topic": np.array([[0.42, 0.3, 0.2, 0.02, 0.02, 0.01, 0.01, 0.01, 0.01],
                               [0.02, 0.02, 0.02, 0.42, 0.3, 0.18, 0.02, 0.01, 0.01]]),
            "emission": np.array([[0.01] * 6 + [0.6, 0.33, 0.01], [0.02] * 6 + [0.02, 0.06, 0.8]]),
            "initial": np.array([0.2, 0.7, 0.1]),
            "transition": np.array([[0.2, 0.3, 0.5], [0.8, 0.1, 0.1], [0.3, 0.6, 0.1]]),
            "topic_proportion": rng.dirichlet([0.4, 0.4], 32),
        }  # fmt: skip
        x = np.zeros((32, 9))
        for n, proportion in enumerate(truth["topic_proportion"]):
            words = np.vstack([proportion @ truth["topic"], truth["emission"]])
            for begin in (0, 5):
                chance = truth["initial"]
                for place in range(begin, begin + rng.integers(2, 5)):
                    state = rng.choice(3, p=chance)
                    x[n, place], chance = 1 + rng.choice(9, p=words[state]), truth["transition"][state]
        model = cls(num_topics=2, num_states=3, vocabulary_size=9, document_length=9)
        data = Sequences(x=torch.as_tensor(x).to(torch.get_default_dtype()), num_words=9)
        return Example.of(model, data, truth)


def _values(x: Tensor) -> Tensor:
    return x.values() if _sparse.is_sparse(x) else x


def _is_matrix(data: Any) -> bool:
    """Whether something is a matrix, rather than lists, arrays of tokens or a file."""
    return hasattr(data, "shape") and len(data.shape) == 2


def _of_numbers(data: Any, size: int) -> int | None:
    """The size of the vocabulary, for tokens by number."""
    return size if not isinstance(data, str) else None
