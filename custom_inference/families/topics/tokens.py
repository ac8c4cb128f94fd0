"""log p(w) of documents and draws from their posteriors by the topics of the tokens, the proportions integrated out.

Particles take the tokens one after the other, as in the "left to right" of Wallach, Murray, Salakhutdinov & Mimno
(*Evaluation methods for topic models*, ICML 2009), but with what Gibbs sampling says of the tokens to come: their
expected topics stand among the concentrations, as if a part of each had been seen, until they are taken. What they are
weighted by changes little then, whatever the order. Where topics have much in common what is to come is not known so
well: how large the part is is chosen for every document, by the mean of log estimates of p(w), which is the higher the
less these vary, and 0 is among the choices. Kept along a draw from the posterior such particles estimate 1 / p(w)
without bias (Andrieu, Doucet & Holenstein, J. Royal Statistical Society B 72, 2010; Grosse, Ghahramani & Adams, 2015):
along Gibbs chains they say where the others miss something.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.annealing.chains import draw_places, draw_proportions, draw_seed
from custom_inference.core.annealing.estimate import Budget, Estimated, Sandwich, standard_error_of, summarise_looks
from custom_inference.core.annealing.local import Estimator
from custom_inference.core.annealing.tempering import resample
from custom_inference.core.engine import Params
from custom_inference.families.topics.admixture import Admixture, read_admixture
from ppl_models import Data, Model
from ppl_models.data import sparse

#: Numbers in the table of all tokens at most.
_MOST = 2**28
#: Parts of every token that may be known about before it is taken, and runs by which one of them is chosen.
_AHEAD, _CHOOSING = (0.0, 0.03, 0.1, 0.35), 4
#: Gibbs chains that say where topics of tokens are, their sweeps, those before, and the part of the seconds for them.
_CHAINS, _SWEEPS, _BEFORE, _SHARE = 16, 40, 10, 0.25
#: Runs of the filter that make an estimate; those that plan it, and their particles; particles at most; runs that are
#: kept along chains.
_RUNS, _PLANNING, _FEW, _MANY, _BACK = 16, 8, 32, 2**14, 4
#: Looks at chains at the posterior, and sweeps between two.
_LOOKS, _APART = 8, 2


@dataclass(frozen=True)
class TokenFilter(Estimator):
    """Particle filters over the topics of the tokens of N documents, P in all.

    length: (N,) tokens of a document. word: (P, K) b_kw of the tokens, one document after the other. alpha: (N, K)
    concentrations of the proportions. constant: (N,) what is added to log p(w). ahead: (P, K) what is known about the
    tokens before they are taken.
    """

    length: Tensor
    word: Tensor
    alpha: Tensor
    constant: Tensor
    ahead: Tensor

    @classmethod
    def of(cls, said: Admixture) -> TokenFilter:
        """Take the documents of an admixture, and know nothing ahead."""
        (document, word), length = said.rows.tokens(), said.rows.lengths.long()
        mixed = torch.rand(len(word), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        word = word[(document + mixed).argsort()]  # one word several times would say little about what is to come
        words = said.topic.mT[said.group[document], word].contiguous()
        constant = said.rows.log_coefficient.double()
        return cls(length, words, said.alpha.contiguous(), constant, torch.zeros_like(words))

    def __len__(self) -> int:
        return len(self.length)

    @property
    def sizes(self) -> Tensor:
        return self.length * max(1, self.word.shape[1] // 16) + 1

    @property
    def document(self) -> Tensor:
        """The documents (P,) of the tokens."""
        return torch.arange(len(self)).repeat_interleave(self.length)

    def rows(self, index: Tensor) -> TokenFilter:
        length, ends = self.length[index], self.length.cumsum(0)
        shift = (ends - self.length)[index] - (length.cumsum(0) - length)
        token = torch.arange(int(length.sum())) + shift.repeat_interleave(length)
        return TokenFilter(length, self.word[token], self.alpha[index], self.constant[index], self.ahead[token])

    def draw_topics(self, proportion: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the topics (P,) of the tokens given proportions (N, K)."""
        return draw_places(self.word * proportion[self.document], (), generator).to(torch.int32)

    def sweep(self, topic: Tensor, generator: torch.Generator, often: Tensor | None = None) -> None:
        """Move the topics (C, P) of all chains, in place; what is drawn is added to ``often`` (P, K)."""
        from custom_inference.families.topics.token_kernels import sweep_topics

        often = self.word.new_empty(0, self.word.shape[1]) if often is None else often
        given = (one.numpy() for one in (topic, self.length, self.word, self.alpha, often))
        sweep_topics(*given, draw_seed(generator))

    def look_ahead(self, seconds: float, generator: torch.Generator) -> TokenFilter:
        """Find the expected topics of the tokens by Gibbs sampling, in about so many seconds."""
        share = self.alpha / self.alpha.sum(-1, keepdim=True)
        topic = torch.stack([self.draw_topics(share, generator) for _ in range(_CHAINS)])
        often, begin = torch.zeros_like(self.word), time.perf_counter()
        for sweep in range(_SWEEPS):
            self.sweep(topic, generator, often)
            if sweep + 1 == _BEFORE:
                often.zero_()
            if sweep >= _BEFORE and time.perf_counter() - begin > seconds:
                break
        return self._choose_part(often / often.sum(-1, keepdim=True), generator)

    def _choose_part(self, expected: Tensor, generator: torch.Generator) -> TokenFilter:
        """Choose for each document how much of the expected topics (P, K) of its tokens is known about ahead."""
        few, score = torch.full((len(self),), _FEW), []
        for part in _AHEAD:
            filters = replace(self, ahead=part * expected)
            score.append(torch.stack([filters.run(few, generator)[0] for _ in range(_CHOOSING)]).mean(0))
        chosen = torch.tensor(_AHEAD, dtype=torch.float64)[torch.stack(score).argmax(0)]
        return replace(self, ahead=chosen[self.document].unsqueeze(-1) * expected)

    def run(
        self, particles: Tensor, generator: torch.Generator, *, kept: Tensor | None = None, draws: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Run the filter with so many particles (N,) of the documents, along topics (P,) that are kept.

        Returns an estimate of log p(w), (N,), and topics (draws, P).
        """
        from custom_inference.families.topics.token_kernels import filter_tokens

        found, drawn = torch.zeros(len(self), dtype=torch.float64), torch.zeros(draws, len(self.word)).int()
        kept = torch.zeros(0, dtype=torch.int32) if kept is None else kept
        parts = (self.word, self.length, self.alpha, self.ahead, particles, kept, found, drawn)
        most, longest, size = int(particles.max()), int(self.length.max()), self.alpha.shape[1]
        whole = [(most, size), (most, size), (most,), (3, most, size)]
        room: list[Any] = [np.empty(shape, np.int32) for shape in whole]
        room += [
            np.empty(most),
            np.empty(max(most, draws), np.int32),
            np.empty((longest if draws else 0, most, 2), np.int32),
        ]
        room += [np.empty((size, longest + 1)), np.empty(size), np.empty(size), np.empty(size, np.int32)]
        filter_tokens(*(one.numpy() for one in parts), *room, draw_seed(generator))
        return found + self.constant, drawn

    def estimate(self, budget: Budget, seed: int) -> Estimated:
        generator = torch.Generator().manual_seed(seed)
        runs = budget.runs or _RUNS
        ahead, particles, expected, topic = self._plan(budget, runs, generator)
        each = torch.stack([ahead.run(particles, generator)[0] for _ in range(runs)])
        evidence, error = each.logsumexp(0) - math.log(runs), standard_error_of(each, expected)
        looks, drawn = [], []
        for _ in range(_LOOKS):
            for _ in range(_APART):
                self.sweep(topic, generator)
            count = self._count(topic) + self.alpha
            looks.append(count / count.sum(-1, keepdim=True))
            drawn.append(draw_proportions(count, generator))
        error = torch.hypot(error, self._find_missing(ahead, particles, topic, each, generator))
        return Estimated(evidence, error, self.length, runs * particles, *summarise_looks(looks, drawn))

    def _find_missing(
        self, filters: TokenFilter, particles: Tensor, topic: Tensor, each: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Return by how much (N,) the estimates along chains (C, P) are above the runs (R, N), beyond two standard
        errors of the difference: what no run has met, has no part in their spread."""
        back = torch.stack([filters.run(particles, generator, kept=kept)[0] for kept in topic[:_BACK]])
        above = math.log(len(back)) - (-back).logsumexp(0)
        spread = each.std(0) * math.sqrt(1 / len(each) + 1 / len(back))
        gap = above - each.logsumexp(0) + math.log(len(each)) - 2 * spread
        return gap.clamp_min(0.0).nan_to_num(nan=0.0, posinf=0.0)

    def _plan(
        self, budget: Budget, runs: int, generator: torch.Generator
    ) -> tuple[TokenFilter, Tensor, Tensor, Tensor]:
        """Look ahead, and find by a few runs how many particles (N,) make the error of so many small enough, or as
        small as the seconds allow, the variance (N,) of a run then, and topics drawn by weight, (C, P)."""
        begin = time.perf_counter()
        ahead, few = self.look_ahead(_SHARE * budget.seconds, generator), torch.full((len(self),), _FEW)
        start, each = time.perf_counter(), max(1, budget.chains // _PLANNING)
        found = [ahead.run(few, generator, draws=each) for _ in range(_PLANNING)]
        now = time.perf_counter()
        weight = torch.stack([one for one, _ in found])
        topic = torch.stack([drawn for _, drawn in found])  # (runs, each, P)
        chosen = resample(weight.repeat_interleave(each, 0), generator)[:, self.document]
        topic = topic.flatten(0, 1).gather(0, chosen).contiguous()
        variance = weight.var(0).nan_to_num(nan=0.0)
        variance = (variance + variance.mean()) / 2
        wanted = max(1.0, 1 / (runs * budget.error**2))  # at least so many that runs differ by about a nat
        particles = (_FEW * variance * wanted).clamp_min(_FEW)
        cost = (now - start) / (_PLANNING * _FEW * float(self.length.sum().clamp_min(1)))
        left = max(budget.seconds - (now - begin), 0.1 * budget.seconds)
        share = left / (runs * cost * float((particles * self.length).sum().clamp_min(1)))
        particles = (particles * min(1.0, share)).clamp(_FEW / 2, _MANY).long()
        return ahead, particles, (_FEW * variance / particles).clamp_max(1.0), topic

    def bound(self, code: Tensor, budget: Budget, steps: int, seed: int) -> Sandwich:
        del steps
        generator = torch.Generator().manual_seed(seed)
        budget = replace(budget, seconds=budget.seconds / 2)
        ahead, particles, *_ = self._plan(budget, _RUNS, generator)
        forward = [ahead.run(particles, generator)[0] for _ in range(_RUNS)]
        backward = [ahead.run(particles, generator, kept=self.draw_topics(code, generator))[0] for _ in range(_RUNS)]
        return Sandwich.of(torch.stack(forward), torch.stack(backward))

    def _count(self, topic: Tensor) -> Tensor:
        """How often (C, N, K) topics stand in the documents."""
        count = torch.zeros(len(topic), *self.alpha.shape, dtype=torch.float64)
        place = (self.document * self.alpha.shape[1] + topic).long()
        return count.flatten(1).scatter_add_(1, place, torch.ones_like(place).double()).reshape(count.shape)


def token_filter(model: Model, params: Params, data: Data) -> TokenFilter | None:
    """Particle filters over the topics of tokens; None where the program is no admixture, of counts that are not whole,
    and of more tokens times topics than memory has room for."""
    said = read_admixture(model, params, data) if sparse.is_whole(data.observed_x) else None
    if said is None or float(said.rows.lengths.sum()) * said.topic.shape[1] > _MOST:
        return None
    return TokenFilter.of(said)
