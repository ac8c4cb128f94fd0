"""Topics and syntax (LDA-HMM): a hidden Markov model writes sentences, and leaves the words of content to topics.

Murphy (2012), section 27.4.3 (Griffiths, Steyvers, Blei & Tenenbaum, *Integrating topics and syntax*, NIPS 2004). With
documents i, tokens l, topics k, and states c = 0, ..., C, of which 0 is that of content:

    pi_i ~ Dirichlet(alpha)                                        topic proportions of the document      (eq. 27.61)
    q_il | pi_i ~ Categorical(pi_i)                                which topic a word of content is from  (eq. 27.62)
    z_i1 ~ Categorical(a),   z_il | z_{i,l-1} ~ Categorical(A_{z_{i,l-1}})  within each sentence          (eq. 27.63)
    y_il | q_il, z_il = 0 ~ Categorical(b_{q_il}),    y_il | z_il = c ~ Categorical(B_c)                  (eq. 27.64)

The program sums topics and states out exactly, by the forward algorithm of every sentence. (The source has one chain a
document; here each sentence begins a new one, as in the paper.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.document_model import WithTopics
from ppl_models.core.model import Example
from ppl_models.core.plates import Plate
from ppl_models.core.sites import Site
from ppl_models.data import sparse as _sparse
from ppl_models.data.matrix import Data
from ppl_models.data.sequences.data import Sequences
from ppl_models.distributions.hidden_markov import SyntaxTokens
from ppl_models.kinds.sequences import SequenceModel, num_words

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
class LDAHMM(WithTopics, SequenceModel):
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

    def default_priors(self) -> dict[str, Any]:
        flat = {site: prior for site, prior in super().default_priors().items() if site in _SYNTAX}
        emission = {"emission": dist.Dirichlet(torch.full((self.vocabulary_size,), 0.1))}
        return {
            **flat,
            "topic": dist.Dirichlet(torch.full((self.vocabulary_size,), 0.05)),
            **(emission if self.num_states > 1 else {}),
            "topic_proportion": dist.Dirichlet(torch.full((self.num_topics,), 0.3)),
        }

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """Return the model of the data's vocabulary; by default of ten states, fewer where there are few words."""
        words = num_words(data)
        settings.setdefault("num_states", max(2, min(10, words // 3)))
        settings.setdefault("document_length", data.x.shape[1])
        return cls(num_topics=num_components, vocabulary_size=words, **settings)

    def __call__(self, x: Tensor | None = None, *, layout: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        """Run the program. layout: (N, L), where generated documents have words."""
        topic = self.sample("topic")
        emission = initial = transition = None
        if self.num_states > 1:
            emission = self.sample("emission")
            initial = self.sample("initial")
            transition = self.sample("transition")
        with self.rows(x, **plate) as rows:
            proportion = self.sample("topic_proportion")
            words = rows.of(x)
            if words is not None and rows.mask is not None:
                words = torch.where(rows.of(rows.mask), words, torch.zeros_like(words))
            places = self.places_of_words(words, layout, proportion)
            tokens: Any = SyntaxTokens(proportion, topic, emission, transition, initial, places)
            return pyro.sample("x", tokens, obs=words)

    def places_of_words(self, words: Tensor | None, layout: Tensor | None, proportion: Tensor) -> Tensor:
        """Return where the documents have words, bool (..., B, L): as x says, else as ``layout``, else the settings."""
        if words is not None:
            layout = _sparse.dense(words) != 0
        elif layout is None:
            place = torch.arange(self.document_length, device=proportion.device) + 1
            layout = place % (self.sentence_length + 1) != 0
        return layout.expand(*proportion.shape[:-1], -1)

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
