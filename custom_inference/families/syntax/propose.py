"""Starts for topics and syntax: states from the company that words keep, topics within each state in turn.

1. Words are placed by correspondence analysis of how often one follows the other (the ends of sentences are a word
   too), and gathered into clusters by k-means, several times.
2. Each clustering starts a plain hidden Markov model, fitted by EM; the likelihood picks one.
3. The HMM does not say which state is that of content. Each is tried: topics of its tokens, then some passes of
   variational Bayes of the whole model. The highest sum of the documents' bounds wins, without what the globals'
   posteriors cost: with many words that would favour states that have no use for topics.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from numpy.typing import NDArray

from custom_inference.core.engine import Params
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.syntax.dirichlet import SyntaxPosteriors, SyntaxVB
from custom_inference.families.syntax.rows import Array, SentenceRows, SyntaxTables
from custom_inference.families.topics.chain import LdaChain, TokenList
from custom_inference.families.topics.propose import TopicProposals, gibbs_counts, merge_topics
from ppl_models import LDAHMM
from ppl_models.data import sparse as _sparse

#: Dimensions of words on either side.
_DIMENSIONS = 7
#: Clusterings; iterations of EM of each, on so many tokens; those that go on, on all, and for how many.
_CLUSTERINGS, _FIRST, _FIRST_TOKENS, _BEST, _MORE = 12, 20, 20_000, 4, 20
#: The best of these goes on until an iteration gains less than this a token, or for so many.
_GAIN, _LAST = 1e-4, 200
#: Sweeps of LDA of a state's tokens, passes of the whole model, and how many states at most are tried.
_SWEEPS, _PASSES, _TRIED = 60, 12, 6
#: What every count of an HMM has added.
_SMOOTHING = 0.01
#: Tokens that a start looks at.
_SEARCH_TOKENS = 200_000
#: Fewer documents than this have this many starts.
_FEW_DOCUMENTS, _STARTS_OF_FEW = 100, 6


class SyntaxProposals(TopicProposals):
    """Starts of the engines of topics and syntax."""

    def propose(self, model: LDAHMM, rows: SentenceRows, generator: torch.Generator, attempt: int) -> Any:
        del attempt
        rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        some = _some_documents(rows, _SEARCH_TOKENS, rng)
        states = plain_hmm(some, model.num_states, rng) if model.num_states > 1 else None
        tried = [None] if states is None else content_states(some, states)
        found = [(_start(model, some, states, state, generator), state) for state in tried]
        first, state = max(found, key=lambda one: one[0][0])
        again = [_start(model, some, states, state, generator, spare=spare) for spare in (False, True)]
        best = max([first, *again], key=lambda one: one[0])[1]
        return self.engine.from_counts(model, best)

    def search_size(self, model: LDAHMM, num_rows: int) -> tuple[int, int]:
        """One start, which makes several itself; few documents have many optima, and starts are cheap there."""
        del model
        return (_STARTS_OF_FEW if num_rows < _FEW_DOCUMENTS else 1), num_rows


def _some_documents(rows: SentenceRows, most: int, rng: np.random.Generator) -> SentenceRows:
    """So many that they have about this number of tokens at most."""
    tokens = len(rows.words[0])
    if tokens <= most:
        return rows
    number = max(1, round(len(rows) * most / tokens))
    return rows.select(torch.as_tensor(np.sort(rng.choice(len(rows), number, replace=False))))


def embed_words(rows: SentenceRows) -> tuple[Array, Array]:
    """Return the words' places (V, 2 * 7) by their neighbours, and their frequencies (V,).

    Correspondence analysis of N (V + 1, V + 1), how often a word precedes another: the singular vectors of
    (N - r c' / n) / sqrt(r c'), divided by sqrt(r) and sqrt(c) and multiplied by the singular values.
    """
    word, start, _ = rows.words
    end, last = rows.num_words, np.zeros(len(word), bool)
    last[start[1:] - 1] = True
    after = np.where(last, end, np.append(word[1:], 0))
    left, right = np.concatenate([word, np.full(len(start) - 1, end)]), np.concatenate([after, word[start[:-1]]])
    count = scipy.sparse.coo_array((np.ones(len(left)), (left, right)), shape=(end + 1,) * 2).tocsr()
    sides = [np.maximum(np.asarray(count.sum(axis)).ravel(), 0.5) for axis in (1, 0)]
    scaled = scipy.sparse.diags(sides[0] ** -0.5) @ count @ scipy.sparse.diags(sides[1] ** -0.5)
    size = min(_DIMENSIONS + 1, end)
    if end <= 4 * size:
        u, s, v = np.linalg.svd(scaled.toarray())
    else:
        u, s, v = (np.asarray(part) for part in scipy.sparse.linalg.svds(scaled, size, v0=np.ones(end + 1)))
    order = np.argsort(-s)[1:size]  # the first is sqrt(r), sqrt(c)
    parts = [vectors[:, order] * s[order] / np.sqrt(side)[:, None]
             for vectors, side in zip((u, v.T), sides, strict=True)]  # fmt: skip
    return np.concatenate(parts, 1)[:end], np.bincount(word, minlength=end).astype(float)


def plain_hmm(rows: SentenceRows, size: int, rng: np.random.Generator) -> SyntaxTables:
    """A hidden Markov model of all words, classes (V, S), fitted by EM from clusterings of words."""
    from sklearn.cluster import KMeans

    place, frequency = embed_words(rows)
    seen = np.flatnonzero(frequency > 0)
    clusters = min(size, len(np.unique(place[seen], axis=0)))
    found: list[tuple[float, SyntaxTables]] = []
    some = _some_documents(rows, _FIRST_TOKENS, rng)
    for _ in range(_CLUSTERINGS):
        once: Any = 1
        means = KMeans(clusters, n_init=once, random_state=int(rng.integers(2**31)), max_iter=50)
        label = means.fit_predict(place[seen], sample_weight=frequency[seen])
        weight = np.full((rows.num_words, size), 0.1)
        weight[seen, label] += 1.0
        weight *= frequency[:, None] * rng.uniform(0.9, 1.1, weight.shape) + _SMOOTHING
        start = SyntaxTables(
            np.zeros((rows.num_words, 0)),
            weight / weight.sum(0),
            np.full((size, size), 1 / size),
            np.full(size, 1 / size),
        )
        found.append(_fit_tables(some, start, _FIRST))
    found.sort(key=lambda one: -one[0])
    best = max((_fit_tables(rows, tables, _MORE) for _, tables in found[:_BEST]), key=lambda one: one[0])[1]
    return _fit_tables(rows, best, _LAST, gain=_GAIN * len(rows.words[0]))[1]


def _fit_tables(
    rows: SentenceRows, tables: SyntaxTables, iterations: int, gain: float = 0.0
) -> tuple[float, SyntaxTables]:
    """Run EM; return the log likelihood before the last iteration, and the tables after it."""
    none, value = np.zeros((len(rows), 0)), -np.inf
    for _ in range(iterations):
        found = rows.compute_expectations(tables, none)
        before, value = value, float(found.log_evidence.sum())
        counts = (found.classes, found.transition, found.initial)
        classes, transition, initial = (part + _SMOOTHING for part in counts)
        tables = SyntaxTables(tables.topic, classes / classes.sum(0), transition / transition.sum(1, keepdims=True),
                        initial / initial.sum())  # fmt: skip
        if value - before < gain:
            break
    return value, tables


def content_states(rows: SentenceRows, states: SyntaxTables) -> list[int]:
    """The states whose words differ most between documents, by their log likelihood ratios less what chance gives."""
    size = len(states.initial)
    if size <= _TRIED:
        return list(range(size))
    state = state_of(rows, states)
    gain = []
    for c in range(size):
        counts: Any = _counts(rows, state == c)
        row, column = counts.nonzero()
        n, r, v = counts.data, np.asarray(counts.sum(1)).ravel(), np.asarray(counts.sum(0)).ravel()
        ratio = (n * np.log(n * n.sum() / (r[row] * v[column]))).sum() if len(n) else 0.0
        word = rows.words[0].copy()  # in a random order
        word[state == c] = np.random.default_rng(len(gain)).permutation(word[state == c])
        expected = scipy.sparse.csr_array(_counts(rows, state == c, word))
        other = expected.nonzero()
        m = expected.data
        chance = (m * np.log(m * m.sum() / (r[other[0]] * v[other[1]]))).sum() if len(m) else 0.0
        gain.append(ratio - chance)
    return np.argsort(gain)[::-1][:_TRIED].tolist()


def state_of(rows: SentenceRows, tables: SyntaxTables) -> NDArray[np.int64]:
    """The most probable state of every token."""
    state = np.zeros((len(rows.words[0]), len(tables.initial)))
    rows.compute_expectations(tables, np.zeros((len(rows), 0)), state=state)
    return state.argmax(1)


def _counts(rows: SentenceRows, chosen: NDArray[np.bool_], word: NDArray[Any] | None = None) -> Any:
    word = rows.words[0] if word is None else word
    parts = np.ones(chosen.sum()), (rows.document[chosen], word[chosen])
    return scipy.sparse.coo_array(parts, shape=(len(rows), rows.num_words)).tocsr()


def _start(
    model: LDAHMM,
    rows: SentenceRows,
    states: SyntaxTables | None,
    content: int | None,
    generator: torch.Generator,
    *,
    spare: bool = False,
) -> tuple[float, Params]:
    """The documents' bounds after some passes with ``content`` as the state of content, and what is expected there.

    spare: sample the first topics with some to spare, merged down, which misses fewer and is less exact.
    """
    engine = SyntaxVB()
    chosen = np.ones(len(rows.words[0]), bool) if states is None else state_of(rows, states) == content
    counts = _counts(rows, chosen)
    x = _sparse.from_scipy(counts, dtype=rows.like.dtype, device="cpu")
    alpha, gamma = engine.alpha(model, rows.like).cpu(), engine.prior(model, "topic", rows.like).mean(0).cpu()
    if spare:
        topic = _propose_topics(DocumentRows(x), alpha, gamma, generator)
    else:
        topic = gibbs_counts(DocumentRows(x), model.num_topics, alpha, gamma, generator, sweeps=_SWEEPS)
    found = {"topic": topic.to(rows.like)}
    if states is not None:
        found |= _order_states(rows, states, content, rows.like)
    return _passes(engine, model, engine.from_counts(model, found), rows)


def _propose_topics(
    rows: DocumentRows, alpha: torch.Tensor, gamma: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """Return tokens of every word in every topic (K, V): one draw with a third more topics, merged down."""
    size, seed = len(alpha) + max(2, round(0.3 * len(alpha))), int(torch.randint(2**62, (), generator=generator))
    chain = LdaChain(TokenList.of(rows), size, float(alpha.sum()) / size, gamma, seed)
    for _ in range(_SWEEPS):
        chain.sweep()
    words, usage = torch.as_tensor(chain.word_topic.T).double(), torch.as_tensor(chain.document_topic).double()
    return merge_topics(words, usage, alpha.mean(), gamma, len(alpha))


def _order_states(rows: SentenceRows, states: SyntaxTables, content: int | None, like: torch.Tensor) -> Params:
    """Return the numbers of classes and moves with the state of content first."""
    found = rows.compute_expectations(states, np.zeros((len(rows), 0)))
    order = [content, *(c for c in range(len(states.initial)) if c != content)]
    parts = {
        "emission": found.classes[:, order[1:]].T,
        "initial": found.initial[order],
        "transition": found.transition[order][:, order],
    }
    return {site: torch.as_tensor(np.ascontiguousarray(value)).to(like) for site, value in parts.items()}


def _passes(engine: SyntaxVB, model: LDAHMM, state: SyntaxPosteriors, rows: SentenceRows) -> tuple[float, Params]:
    """Some iterations of variational Bayes, the first from equal shares of the topics."""
    alpha = engine.alpha(model, rows.like)
    step = engine.e_step(model, state, rows, {"concentration": torch.ones(len(rows), 1).to(alpha) + alpha})
    for _ in range(_PASSES - 1):
        state = engine.m_step(model, state, step, rows)
        step = engine.e_step(model, state, rows, step.locals)
    return float(step.bound.double().sum()), {site: step.statistics[site] for site in model.global_sites}
