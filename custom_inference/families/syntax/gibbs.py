"""Collapsed Gibbs sampling of topics and syntax, sentence by sentence: the sampler of ``CollapsedGibbs``."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_inference.core.local_inference import Local
from custom_inference.core.posteriors import DirichletDraws
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.syntax.dirichlet import SyntaxDirichlet, SyntaxVB, share_of, tables_of
from custom_inference.families.syntax.propose import SyntaxProposals
from custom_inference.families.syntax.rows import Array, SentenceRows, array
from custom_inference.gibbs.protocol import Chain, Params, Sampler, no_bound
from ppl_models import LDAHMM, Data

_ENGINE = SyntaxDirichlet()
#: Iterations of variational Bayes before the first sweep.
_PASSES = 40


class SyntaxChain(Chain):
    """The states and topics of all tokens, everything else integrated out.

    start: values of the globals that the first states and topics are drawn at, token by token; without them the first
    sweep draws each sentence given those before it.
    state, topic: (T,) int32; topic -1 where the state is not that of content.
    """

    def __init__(self, model: LDAHMM, rows: SentenceRows, seed: int, start: Params | None):
        self.model, self.rows = model, rows
        like = torch.zeros((), dtype=torch.float64)
        self.priors = {s: _ENGINE.prior(model, s, like) for s in model.global_sites}
        self.priors["topic_proportion"] = _ENGINE.alpha(model, like)
        self._rng = np.array([seed % 2**64], np.uint64)
        self._generator = np.random.default_rng(seed % 2**64)
        tokens = len(rows.words[0])
        self.state, self.topic = np.full(tokens, -1, np.int32), np.full(tokens, -1, np.int32)
        if start is not None:
            self._begin(start)
        self._priors = self._prior_tables()
        self.assign(self.state, self.topic)

    def _begin(self, start: Params) -> None:
        values = {site: start[site].double() for site in self.model.global_sites}
        tables = tables_of(values)
        share = share_of(_ENGINE.run_passes(self.rows, tables, self.priors["topic_proportion"]))
        chance = np.zeros((len(self.state), len(tables.initial)))
        self.rows.compute_expectations(tables, share, state=chance)
        self.state = _draw_by_weight(chance, self._generator)
        topic = _draw_by_weight(share[self.rows.document] * tables.topic[self.rows.words[0]], self._generator)
        self.topic = np.where(self.state == 0, topic, -1).astype(np.int32)

    def _prior_tables(self) -> list[Array]:
        """The priors' concentrations as the kernel reads them: of words in topics (V, K), of topics in documents (1,
        K), of words in classes (V, S), of moves (S + 1, S), the last of which are the first states."""
        beta, moves = np.ones((self.rows.num_words, 1)), np.ones((2, 1))
        if self.model.num_states > 1:
            beta = np.concatenate([beta, array(self.priors["emission"].T)], 1)
            moves = np.concatenate([array(self.priors["transition"]), array(self.priors["initial"])[None]])
        return [array(self.priors["topic"].T), array(self.priors["topic_proportion"])[None], beta, moves]

    def assign(self, state: NDArray[np.int32], topic: NDArray[np.int32]) -> None:
        """Go on from these states and topics of the tokens."""
        self.state, self.topic = state, topic
        (word, start, _), document = self.rows.words, self.rows.document
        states, known = self.model.num_states, state >= 0
        before = np.append(0, state[:-1])
        before[start[:-1]] = states
        content, syntax = known & (state == 0), known & (state > 0)
        shapes = [self._priors[0].shape, (len(self.rows), self.model.num_topics), *(p.shape for p in self._priors[2:])]
        places = (word[content], topic[content]), (document[content], topic[content])
        places += (word[syntax], state[syntax]), (before[known], state[known])
        self._tables = []
        for axis, shape, prior, place in zip((0, 1, 0, 1), shapes, self._priors, places, strict=True):
            counts = np.zeros(shape)
            np.add.at(counts, place, 1)
            table = counts + prior
            self._tables.append(np.concatenate([table, table.sum(axis, keepdims=True)], axis))

    def sweep(self) -> None:
        """A pass over all sentences; other threads may run meanwhile."""
        from custom_inference.families.syntax.kernels import sweep

        self.accepted = sweep(self.rows.words, self.state, self.topic, tuple(self._tables), self._rng)

    @property
    def counts(self) -> dict[str, Array]:
        """The numbers of tokens and moves by site, and ``topic_proportion`` (N, K)."""
        words, share, classes, moves = self._tables
        tables = words[:-1], share[:, :-1], classes[:-1], moves[:, :-1]
        words, share, classes, moves = (np.rint(t - p) for t, p in zip(tables, self._priors, strict=True))
        found = {"topic": words.T, "emission": classes[:, 1:].T, "initial": moves[-1], "transition": moves[:-1]}
        return {
            site: (found | {"topic_proportion": share})[site] for site in (*self.model.global_sites, "topic_proportion")
        }

    def _concentrations(self) -> dict[str, Tensor]:
        return {site: self.priors[site] + torch.as_tensor(value) for site, value in self.counts.items()}

    def log_joint(self) -> float:
        """log p(y, z, q): Dirichlet and multinomial factors of every site."""
        return sum(
            float(Dirichlet(self.priors[site].expand(value.shape)).log_marginal(torch.as_tensor(value.copy())).sum())
            for site, value in self.counts.items()
        )

    def means(self) -> Params:
        return {site: value / value.sum(-1, keepdim=True) for site, value in self._concentrations().items()}

    def draw(self) -> Params:
        return {site: Dirichlet(value).draw(self._generator) for site, value in self._concentrations().items()}

    def locals(self) -> Tensor:
        """alpha + n_i, (N, K): the concentrations of the documents' proportions."""
        return self._concentrations()["topic_proportion"]

    def indicators(self) -> Tensor:
        """The topics of the tokens, -1 of those that are not content."""
        return torch.as_tensor(self.topic.astype(np.int64))


def _draw_by_weight(chance: Array, generator: np.random.Generator) -> NDArray[np.int32]:
    """Draw a place of every row by its weights."""
    summed = chance.cumsum(1)
    left = generator.random((len(chance), 1)) * summed[:, -1:]
    return (summed[:, :-1] <= left).sum(1).astype(np.int32)


class SyntaxSampler(Sampler):
    """Chains of :class:`SyntaxChain`. All start near the same mode: classes of syntax have no order of their own, and
    chains from the same start give them the same numbers."""

    def check(self, model: LDAHMM, data: Data) -> None:
        _ENGINE.check(model, _ENGINE.rows(model, data))

    def chain(self, model: LDAHMM, data: Data, seed: int, start: Params | None) -> Chain:
        return SyntaxChain(model, _ENGINE.rows(model, data), seed, start)

    def starts(self, model: LDAHMM, data: Data, seeds: list[int]) -> list[Params | None]:
        """The mean of the posterior after some variational Bayes; the chains draw their own states there."""
        generator, engine = torch.Generator().manual_seed(seeds[0] % 2**63), SyntaxVB()
        rows = engine.rows(model, data)
        state = SyntaxProposals(engine).propose(model, rows, generator, 0)
        step = engine.e_step(model, state, rows)
        for _ in range(_PASSES):
            state = engine.m_step(model, state, step, rows)
            step = engine.e_step(model, state, rows, step.locals)
        return [state.values(model)] * len(seeds)

    def local_of_draws(self, model: LDAHMM, data: Data, locals_: Tensor) -> Local:
        return Local(DirichletDraws(locals_.to(data.x)), no_bound(len(data), data.x))
