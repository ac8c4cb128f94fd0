"""One chain of collapsed Gibbs sampling of latent Dirichlet allocation: the state that the compiled sweeps change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_inference.core.threads import count_shards, cut_evenly, map_in_threads
from custom_inference.families.common.explicit import Explicit, notes
from custom_inference.families.conjugate.dirichlet import Dirichlet, log_marginal_of_table
from custom_inference.families.conjugate.learn import update_concentration
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.gibbs.protocol import Chain, Params
from ppl_models import Model
from ppl_models.core.document_model import TopicAdmixture
from ppl_models.core.errors import warn_of_data

#: Single precision holds no smaller concentrations in products with others.
_SMALLEST = 1e-30
#: Topics are padded to whole blocks of so many: ``gibbs_kernels.LANES``, without loading the compiler.
_LANES = 16
#: Starts are sampled from at most so many tokens, or so many a stored cell: texts have fewer.
_TOKENS_OF_STARTS, _TOKENS_A_CELL = 50_000, 16
#: Chains of more are warned of.
_MANY_TOKENS = 1_000_000
#: Tokens that are worth a thread to count.
_COUNTED = 2**17


@dataclass(frozen=True)
class TokenList:
    """The tokens of a corpus, document by document and in each in the order of the words.

    word: (T,) int32. start: (N + 1,) int64, where each document begins. vocabulary_size: V.
    """

    word: NDArray[np.int32]
    start: NDArray[np.int64]
    vocabulary_size: int

    @classmethod
    def of(cls, rows: DocumentRows) -> TokenList:
        """List all tokens; warns where there are so many more of them than stored cells that methods other than
        samplers are better."""
        cells, number = rows.counts.values().numel(), float(rows.lengths.sum())
        if number > max(_MANY_TOKENS, _TOKENS_A_CELL * cells):
            found = f"{number:.3g} tokens in {cells} cells: every sweep draws each of them anew"
            warn_of_data(f"{found}; methods that go by cells, as VariationalEM does, take less time if there are any")
        word = rows.tokens()[1].cpu().numpy().astype(np.int32)
        start = np.concatenate([[0], rows.lengths.long().cpu().numpy().cumsum()])
        return cls(word, start, rows.counts.shape[1])

    @classmethod
    def for_start(cls, rows: DocumentRows, generator: torch.Generator) -> tuple[TokenList, Tensor | None]:
        """Return the tokens that starts are sampled from, and the share of each word's tokens that these are, (V,);
        None: all.

        Of many more tokens than stored cells a part of each cell, drawn at random: a binomial number of it, with the
        same probability for all of one word, lowest for the most frequent ones. Topics of what is left are those of
        all, their words weighed by these shares: counts divided by them are counts of all.
        """
        values, most = rows.counts.values(), max(_TOKENS_OF_STARTS, _TOKENS_A_CELL * rows.counts.values().numel())
        if float(values.sum()) <= most:
            return cls.of(rows), None
        column = rows.counts.col_indices()
        total = torch.zeros(rows.counts.shape[1], dtype=torch.float64).index_add_(
            0, column.cpu(), values.double().cpu()
        )
        share = (_level(total, most) / total.clamp(min=1)).clamp(max=1.0)
        rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        kept = rng.binomial(values.long().cpu().numpy(), share[column.cpu()].numpy())
        crow = rows.counts.crow_indices().cpu().numpy()
        start = np.concatenate([[0], kept.cumsum()])[crow]
        word = np.repeat(column.cpu().numpy().astype(np.int32), kept)
        return cls(word, start, rows.counts.shape[1]), share

    def __len__(self) -> int:
        return len(self.word)

    @cached_property
    def document(self) -> NDArray[np.int64]:
        """The document of every token, (T,)."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    def count_topics(self, topic: NDArray[np.int32], num_topics: int) -> NDArray[np.int64]:
        """Count the tokens of every topic in every document, c_ik (N, K), at these topics of the tokens, (T,)."""

        def count(documents: tuple[int, int]) -> NDArray[np.int64]:
            first, last = documents
            own = slice(*self.start[[first, last]])
            index = (self.document[own] - first) * num_topics + topic[own]
            return np.bincount(index, minlength=(last - first) * num_topics)

        parts = cut_evenly(self.start, count_shards(len(self), 0, _COUNTED))
        return np.concatenate(map_in_threads(count, parts)).reshape(-1, num_topics)


def _level(total: Tensor, most: float) -> float:
    """Find c with sum_v min(total_v, c) = most, for totals that add up to more."""
    ordered = torch.sort(total).values
    left, below = len(ordered) - torch.arange(len(ordered)), torch.cat([total.new_zeros(1), ordered.cumsum(0)[:-1]])
    levels = (most - below) / left
    return float(levels[(levels <= ordered).nonzero()[0]])


class LdaChain(Chain):
    """The topics of all tokens, and their counts, under LDA with the proportions and the topics integrated out.

    alpha: (K,), one number, or (N, K) where it differs by document: 0 of a topic that a document cannot have.
    gamma: (V,) or one number. seed: a whole number; a chain is a function of it.
    given: topics (K, V) to draw the first topics of the tokens from. Without them the first sweep draws each given
        those before it.
    explicit: the topics as a value of the state, where Dirichlet(gamma) only stands for their prior.
    shards: parts of the documents that are swept side by side after the first sweep, each of which sees the counts
        that the others had before (Newman, Asuncion, Smyth & Welling, *Distributed algorithms for topic models*, JMLR
        2009, AD-LDA): threads share them. More than one is an approximation of the sampler, good enough for starts.
    topic: (T,) int32, the topic of every token, -1 before the first sweep.
    """

    def __init__(
        self,
        tokens: TokenList,
        num_topics: int,
        alpha: Tensor | float,
        gamma: Tensor | float,
        seed: int,
        *,
        given: Tensor | None = None,
        constant: float = 0.0,
        explicit: Explicit | None = None,
        shards: int = 1,
    ):
        self.tokens, self.num_topics, self.constant, self.explicit = tokens, num_topics, constant, explicit
        self.alpha = vector(alpha, num_topics)
        self.gamma = vector(gamma, tokens.vocabulary_size)
        self._padded = -(-num_topics // _LANES) * _LANES
        self._rng = np.array([seed % 2**64], np.uint64)
        self._shards = cut_evenly(tokens.start, shards)
        streams = np.random.SeedSequence(seed % 2**64).spawn(len(self._shards))
        self._random = [one.generate_state(1, np.uint64) for one in streams]
        self._generator = np.random.default_rng(seed % 2**64)
        topic = np.full(len(tokens), -1, np.int32)
        if given is not None:
            sweep_topics(tokens, topic, self.alpha, given, self._rng)
        self.assign(topic)
        self._begun = given is not None
        if explicit is not None and self._begun:
            explicit.begin(self._word_counts(), self._generator)
            explicit.update(self._word_counts(), self._generator)

    def assign(self, topic: NDArray[np.int32]) -> None:
        """Set the topics of the tokens and recount."""
        self.topic = topic
        self._word_topic = np.zeros((self.tokens.vocabulary_size, self._padded), np.int32)
        known = topic >= 0
        np.add.at(self._word_topic, (self.tokens.word[known], topic[known]), 1)
        self._total = self._word_topic.sum(0, dtype=np.int32)

    def sweep(self) -> None:
        """Draw new topics of all tokens, then new values of explicit topics; other threads may run meanwhile."""
        if self.explicit is not None and self._begun:
            self._draw_given(self.explicit.value)
            self.explicit.update(self._word_counts(), self._generator)
            return
        self._sweep_integrated()
        if self.explicit is not None:
            self.explicit.begin(self._word_counts(), self._generator)
        self._begun = True

    def _draw_given(self, topics: Tensor) -> None:
        """Draw the topics of the tokens at given topics (K, V)."""
        sweep_topics(self.tokens, self.topic, self._weights()[0], topics, self._rng)
        self.assign(self.topic)

    def _sweep_integrated(self) -> None:
        from custom_inference.families.topics import gibbs_kernels as kernels

        alpha, first, factor = (self._in_single(part) for part in self._weights())
        gamma = self.gamma.clip(_SMALLEST).astype(np.float32)
        alpha, first, tokens = np.atleast_2d(alpha), np.atleast_2d(first), self.tokens

        def sweep(documents: tuple[int, int], *state: NDArray[Any]) -> None:
            low, high = documents
            own = slice(low, high) if len(alpha) > 1 else slice(None)
            given: Any = (tokens.word, self.topic, tokens.start[low : high + 1], alpha[own], first[own], factor, gamma)
            kernels.sweep(*given, *state)

        self._sweep_shards(sweep)

    def _sweep_shards(self, sweep: Callable[..., None]) -> None:
        """Call ``sweep`` with the documents (first, last) of every shard, and the counts and random numbers
        that it changes; add up what they changed."""

        def sweep_shard(number: int) -> NDArray[np.int32]:
            counts, total = self._word_topic.copy(), self._total.copy()
            sweep(self._shards[number], counts, total, self._random[number])
            return counts

        if len(self._shards) == 1 or not self._begun:
            sweep((0, len(self.tokens.start) - 1), self._word_topic, self._total, self._rng)
            return
        found = map_in_threads(sweep_shard, range(len(self._shards)))
        self._word_topic *= 1 - len(found)
        for counts in found:
            self._word_topic += counts
        self._total = self._word_topic.sum(0, dtype=np.int32)

    def _in_single(self, part: NDArray[np.float64]) -> NDArray[np.float32]:
        """Convert (..., K) to single precision, padded with 0; what is 0 stays 0."""
        padded = np.zeros((*part.shape[:-1], self._padded), np.float32)
        padded[..., : self.num_topics] = np.where(part > 0, part.clip(_SMALLEST), 0.0)
        return padded

    def _weights(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return what topics are drawn by beside counts: alpha with tokens in the document and without, and a factor
        (K,)."""
        return self.alpha, self.alpha, np.ones(self.num_topics)

    @property
    def word_topic(self) -> NDArray[np.int32]:
        """The counts c_vk (V, K), a view."""
        return self._word_topic[:, : self.num_topics]

    @property
    def document_topic(self) -> NDArray[np.int64]:
        """The counts c_ik (N, K), counted anew."""
        return self.tokens.count_topics(self.topic, self.num_topics)

    def _word_counts(self) -> tuple[Tensor]:
        """Return the counts c_k. (K, V) that explicit topics are drawn by."""
        return (torch.as_tensor(self.word_topic.T, dtype=torch.float64),)

    def list_sampled(self) -> dict[str, str]:
        return {} if self.explicit is None else notes({"topic": self.explicit})

    def _values(self) -> Params:
        return {} if self.explicit is None else {"topic": self.explicit.value}

    def _concentrations(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return gamma + c_k. (K, V) and alpha + c_i. (N, K), of p(b_k | q, y) and p(pi_i | q) (eqs. 27.32 and
        27.31)."""
        return self.word_topic.T + self.gamma, self.document_topic + self.alpha

    def log_joint(self) -> float:
        """log p(y, q | alpha, gamma) = log p(q | alpha) + log p(y | q, gamma) (Murphy, eqs. 27.34 and 27.36, gamma for
        the source's beta), and the multinomial coefficient where the model has it. Explicit topics: with log p(y | q,
        topics) + log p(topics) instead."""
        if self.explicit is not None:
            return self.constant + self._log_documents() + self.explicit.log_joint(self._word_counts())
        return self.constant + self._log_documents() + log_marginal_of_table(self.word_topic.T, self.gamma)

    def _log_documents(self) -> float:
        """Compute log p(q | alpha)."""
        return log_marginal_of_table(self.document_topic, self.alpha)

    def means(self) -> Params:
        """Return E[b_k | q, y] = (c_vk + gamma_v) / (c_k + sum gamma) and E[pi_i | q] = (c_ik + alpha_k) / (L_i + sum
        alpha)."""
        sites = zip(("topic", "topic_proportion"), self._concentrations(), strict=True)
        return {site: torch.as_tensor(value / value.sum(1, keepdims=True)) for site, value in sites} | self._values()

    def draw(self) -> Params:
        sites = zip(("topic", "topic_proportion"), self._concentrations(), strict=True)
        return {site: Dirichlet(torch.as_tensor(value)).draw(self._generator) for site, value in sites} | self._values()

    def locals(self) -> Tensor:
        """Return the concentrations of the documents' proportions, alpha + c_i, (N, K)."""
        return torch.as_tensor(self.document_topic + self.alpha)

    def indicators(self) -> Tensor:
        return torch.as_tensor(self.topic.astype(np.int64))

    def learn(self, *, latents: bool = True, components: bool = True) -> None:
        """Take a step of Minka's fixed point for alpha and for a symmetric gamma; not for one that topics do not
        have."""
        if latents:
            self.alpha = update_concentration(self.document_topic, self.alpha)
        if components and self.explicit is None:
            self.gamma = update_concentration(self.word_topic.T, self.gamma, symmetric=True)

    def with_fitted_priors(self, model: TopicAdmixture) -> Model:
        gamma = None if self.explicit is not None else torch.as_tensor(self.gamma)
        return model.with_concentration(alpha=torch.as_tensor(self.alpha), gamma=gamma)


def sweep_topics(
    tokens: TokenList,
    topic: NDArray[np.int32],
    alpha: NDArray[np.float64],
    given: Tensor,
    rng: NDArray[np.uint64],
    *,
    passes: int = 1,
    first: NDArray[np.float64] | None = None,
    weight: NDArray[np.float64] | None = None,
) -> None:
    """Draw new topics of the tokens, in place, at given topics (K, V). alpha: (K,) or (N, K). first (N, K): alpha of a
    topic without tokens in the document; weight (N, K): factors of the conditional; by default alpha, and 1."""
    from custom_inference.families.topics import gibbs_kernels as kernels

    by_word = np.ascontiguousarray(given.detach().cpu().double().numpy().T)
    size = len(tokens.start) - 1, alpha.shape[-1]
    parts = alpha, alpha if first is None else first, 1.0 if weight is None else weight
    of_rows = [np.ascontiguousarray(np.broadcast_to(part, size)) for part in parts]
    state: Any = (tokens.word, topic, tokens.start, *of_rows, by_word, rng)
    for _ in range(passes):
        kernels.sweep_given(*state)


def vector(value: Tensor | float, size: int) -> NDArray[np.float64]:
    """Expand a concentration to (K,), or to (N, K) where it has rows."""
    found = torch.as_tensor(value, dtype=torch.float64).cpu().numpy()
    return np.broadcast_to(found, (*found.shape[:-1], size)).copy()
