"""Collapsed Gibbs sampling of topics and syntax, sentence by sentence: the sampler of ``CollapsedGibbs``.

Globals whose priors are not Dirichlet, known ones among them, are values of the chain's state (``common.explicit``).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from custom_inference.core.local_inference import Local
from custom_inference.core.posteriors import DirichletDraws
from custom_inference.families.common.explicit import Explicit, notes, with_references
from custom_inference.families.common.hyper import with_hyper_parameters
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.syntax.dirichlet import SyntaxDirichlet, SyntaxVB, share_of, tables_of
from custom_inference.families.syntax.propose import SyntaxProposals
from custom_inference.families.syntax.rows import Array, SentenceRows, array
from custom_inference.gibbs.protocol import Chain, Params, Sampler, no_bound
from ppl_models import LDAHMM, Data

_ENGINE = SyntaxDirichlet()
#: Iterations of variational Bayes before the first sweep.
_PASSES = 40
#: Classes of which all orders are compared, at most; the sites that have an axis of classes.
_ORDERED, _OF_CLASSES = 5, ("emission", "initial", "transition")


class SyntaxChain(Chain):
    """The states and topics of all tokens, everything else integrated out but what is explicit.

    start: values of the globals that the first states and topics are drawn at, token by token; without them the first
    sweep draws each sentence given those before it.
    explicit: globals that are values of the state; ``model`` has conjugate priors in their place.
    state, topic: (T,) int32; topic -1 where the state is not that of content.
    """

    def __init__(
        self,
        model: LDAHMM,
        rows: SentenceRows,
        seed: int,
        start: Params | None,
        explicit: Mapping[str, Explicit] | None = None,
    ):
        self.model, self.rows, self.explicit = model, rows, explicit or {}
        like = torch.zeros((), dtype=torch.float64)
        self.priors = {s: _ENGINE.prior(model, s, like) for s in model.global_sites}
        self.priors["topic_proportion"] = _ENGINE.alpha(model, like)
        self._rng = np.array([seed % 2**64], np.uint64)
        self._generator = np.random.default_rng(seed % 2**64)
        tokens = len(rows.words[0])
        self.state, self.topic = np.full(tokens, -1, np.int32), np.full(tokens, -1, np.int32)
        self._begun = False
        if start is not None:
            self._begin(start)
        self.assign(self.state, self.topic)
        if start is not None:
            self._draw_explicit()

    def _begin(self, start: Params) -> None:
        values = {site: start[site].double() for site in self.model.global_sites}
        tables = tables_of(values)
        share = share_of(_ENGINE.run_passes(self.rows, tables, self.priors["topic_proportion"]))
        chance = np.zeros((len(self.state), len(tables.initial)))
        self.rows.compute_expectations(tables, share, state=chance)
        self.state = _draw_by_weight(chance, self._generator)
        topic = _draw_by_weight(share[self.rows.document] * tables.topic[self.rows.words[0]], self._generator)
        self.topic = np.where(self.state == 0, topic, -1).astype(np.int32)

    def assign(self, state: NDArray[np.int32], topic: NDArray[np.int32]) -> None:
        """Go on from these states and topics of the tokens.

        The tables of the kernel have the priors' concentrations and the numbers of tokens and moves; those of explicit
        sites have their values, which tokens do not add to.
        """
        self.state, self.topic = state, topic
        values = {site: one.value for site, one in self.explicit.items()} if self._begun else {}
        counts = {site: torch.as_tensor(value) for site, value in self.counts.items()}
        sums = {site: self.priors[site] + counts[site] for site in counts}
        self._tables = self._tables_of(sums | values)
        counted = {*counts} - {*values}
        self._steps = np.array([float(site in counted) for site in ("topic", "emission", "transition", "initial")])

    def _tables_of(self, values: Params) -> list[Array]:
        """Values by site as the kernel reads them, each with its sums at the end: of words in topics (V + 1, K), of
        topics in documents (N, K + 1), of words in classes (V + 1, S), of moves (S + 1, S + 1), whose last row is of
        the first states."""
        classes, moves = np.ones((self.rows.num_words, 1)), np.ones((2, 1))
        if self.model.num_states > 1:
            classes = np.concatenate([classes, array(values["emission"].T)], 1)
            moves = np.concatenate([array(values["transition"]), array(values["initial"])[None]])
        tables = array(values["topic"].T), array(values["topic_proportion"]), classes, moves
        pairs = zip((0, 1, 0, 1), tables, strict=True)
        return [np.concatenate([table, table.sum(axis, keepdims=True)], axis) for axis, table in pairs]

    def sweep(self) -> None:
        """A pass over all sentences, then new values of explicit sites; other threads may run meanwhile."""
        from custom_inference.families.syntax.kernels import sweep

        self.accepted = sweep(self.rows.words, self.state, self.topic, tuple(self._tables), self._steps, self._rng)
        self._draw_explicit()

    def _draw_explicit(self) -> None:
        """Draw new values of what is explicit, given states and topics; the sweeps to come are at these."""
        if not self.explicit:
            return
        counts = self.counts
        for site, one in self.explicit.items():
            statistics = (torch.as_tensor(counts[site]),)
            if not self._begun:
                one.begin(statistics, self._generator)
            one.update(statistics, self._generator)
        self._begun = True
        self.assign(self.state, self.topic)

    @property
    def counts(self) -> dict[str, Array]:
        """The numbers of tokens and moves by site, and ``topic_proportion`` (N, K)."""
        (word, start, _), document, states = self.rows.words, self.rows.document, self.model.num_states
        known, before = self.state >= 0, np.append(0, self.state[:-1])
        before[start[:-1]] = states
        content, syntax = known & (self.state == 0), known & (self.state > 0)
        sizes = (self.model.num_topics, self.rows.num_words), (states - 1, self.rows.num_words)
        sizes += (states + 1, states), (len(self.rows), self.model.num_topics)
        places = (self.topic[content], word[content]), (self.state[syntax] - 1, word[syntax])
        places += (before[known], self.state[known]), (document[content], self.topic[content])
        tables = [np.zeros(size) for size in sizes]
        for table, place in zip(tables, places, strict=True):
            np.add.at(table, place, 1)
        topic, emission, moves, share = tables
        found = {"topic": topic, "emission": emission, "initial": moves[-1], "transition": moves[:-1]}
        return {site: found[site] for site in self.model.global_sites} | {"topic_proportion": share}

    def _concentrations(self) -> dict[str, Tensor]:
        return {site: self.priors[site] + torch.as_tensor(value) for site, value in self.counts.items()}

    def list_sampled(self) -> dict[str, str]:
        return notes(self.explicit)

    def _values(self) -> Params:
        return {site: one.value for site, one in self.explicit.items()}

    def log_joint(self) -> float:
        """log p(y, z, q): Dirichlet and multinomial factors of every site; of explicit ones their prior and the
        likelihood at their values instead."""
        counts = {site: torch.as_tensor(value) for site, value in self.counts.items()}
        explicit = sum(one.log_joint((counts.pop(site),)) for site, one in self.explicit.items())
        return explicit + sum(
            float(Dirichlet(self.priors[site].expand(value.shape)).log_marginal(value).sum())
            for site, value in counts.items()
        )

    def means(self) -> Params:
        sums = self._concentrations().items()
        return {site: value / value.sum(-1, keepdim=True) for site, value in sums} | self._values()

    def draw(self) -> Params:
        sums = self._concentrations().items()
        return {site: Dirichlet(value).draw(self._generator) for site, value in sums} | self._values()

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


def _in_their_places(counts: Params, priors: Params) -> Params:
    """Return expected numbers with topics and classes in the order that is most probable under the priors.

    Topics, and classes of which there are many, are assigned to places by their words alone; of few classes all orders
    are compared, by the moves too.
    """
    found = dict(counts)
    found["topic"] = found["topic"][_assign(found["topic"], priors["topic"])]
    size = len(found.get("emission", ()))
    if size < 2:
        return found
    many = size > _ORDERED
    orders = [_assign(found["emission"], priors["emission"])] if many else itertools.permutations(range(size))
    return max(
        ({**found, **_rename_classes(found, list(order))} for order in orders),
        key=lambda one: sum(float(Dirichlet(priors[s]).log_marginal(one[s]).sum()) for s in _OF_CLASSES),
    )


def _rename_classes(counts: Params, order: list[int]) -> Params:
    states = [0, *(1 + c for c in order)]
    moved = counts["emission"][order], counts["initial"][states], counts["transition"][states][:, states]
    return dict(zip(_OF_CLASSES, moved, strict=True))


def _assign(counts: Tensor, prior: Tensor) -> list[int]:
    """Return which row of the numbers (K, V) goes to each place: the best sum of log marginals, by assignment."""
    score = Dirichlet(prior.unsqueeze(1)).log_marginal(counts.unsqueeze(0).expand(len(counts), *counts.shape))
    return linear_sum_assignment(array(score), maximize=True)[1].tolist()


class SyntaxSampler(Sampler):
    """Chains of :class:`SyntaxChain`. All start near the same mode: classes of syntax have no order of their own, and
    chains from the same start give them the same numbers."""

    def check(self, model: LDAHMM, data: Data) -> None:
        _ENGINE.check(with_references(model)[0], _ENGINE.rows(model, data))

    def chain(self, model: LDAHMM, data: Data, seed: int, start: Params | None) -> Chain:
        conjugate, explicit = with_references(model)
        chain = SyntaxChain(conjugate, _ENGINE.rows(model, data), seed, start, explicit)
        return with_hyper_parameters(model, chain, explicit, seed, start)

    def starts(self, model: LDAHMM, data: Data, seeds: list[int]) -> list[Params | None]:
        """The mean of the posterior after some variational Bayes; the chains draw their own states there.

        It is proposed under the usual priors of explicit sites, which name no class. Topics and classes that priors or
        known values tell apart are then given the places where these fit best."""
        conjugate, explicit = with_references(model)
        generator, engine = torch.Generator().manual_seed(seeds[0] % 2**63), SyntaxVB()
        rows, usual = engine.rows(conjugate, data), conjugate.default_priors()
        plain = conjugate.with_priors(**{site: usual[site] for site in explicit})
        state = SyntaxProposals(engine).propose(plain, rows, generator, 0)
        step = engine.e_step(plain, state, rows)
        priors = {site: engine.prior(conjugate, site, rows.like) for site in conjugate.global_sites}
        state = engine.from_counts(conjugate, _in_their_places(step.statistics, priors))
        step = engine.e_step(conjugate, state, rows)
        for _ in range(_PASSES):
            state = engine.m_step(conjugate, state, step, rows)
            step = engine.e_step(conjugate, state, rows, step.locals)
        return [state.values(conjugate)] * len(seeds)

    def local_of_draws(self, model: LDAHMM, data: Data, locals_: Tensor) -> Local:
        return Local(DirichletDraws(locals_.to(data.x)), no_bound(len(data), data.x))
