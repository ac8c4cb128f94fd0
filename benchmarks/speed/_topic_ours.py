"""This project's methods for topics on the clock: what a fit had found after how many passes and CPU seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

import custom_inference
from benchmarks.speed._topic_evaluator import Array, Corpus
from custom_inference import CollapsedGibbs, Fit, VariationalEM
from custom_inference.steps.lda_cvb0 import LdaCvb0
from custom_inference.steps.lda_map import LdaMap
from custom_inference.steps.lda_vb import LdaVB
from ppl_models import LDA, PLSA, Data

#: Steps whose topics are recorded after every M step.
_STEPS = (LdaVB, LdaCvb0, LdaMap)


@dataclass
class Trace:
    """Topics after every M step; the clock stands still while they are copied.

    rows: documents of a whole pass. passes, seconds, topics: one entry an M step; ``whole``: over all rows.
    """

    rows: int
    begin: float = field(default_factory=time.process_time)
    stopped: float = 0.0
    passes: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    topics: list[Array] = field(default_factory=list)

    def now(self) -> float:
        return time.process_time() - self.begin - self.stopped

    def take(self, rows: int, topic: torch.Tensor) -> None:
        at, entered = self.now(), time.process_time()
        self.passes.append((self.passes[-1] if self.passes else 0.0) + rows / self.rows)
        self.seconds.append(at)
        self.topics.append(topic.to(torch.float32).numpy(force=True).copy())
        self.stopped += time.process_time() - entered


@contextmanager
def recorded(trace: Trace) -> Iterator[Trace]:
    """While this lasts, every M step of LDA's and PLSA's engines leaves its topics in ``trace``."""
    before = {kind: kind.__dict__.get("m_step") for kind in _STEPS}

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        def m_step(self: Any, model: Any, params: Any, step: Any, rows: Any) -> Any:
            result = original(self, model, params, step, rows)
            trace.take(len(rows), result["topic"])
            return result

        return m_step

    for kind in _STEPS:
        kind.m_step = wrapped(kind.m_step)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield trace
    finally:
        for kind, original in before.items():
            if original is None:
                del kind.m_step
            else:
                kind.m_step = original  # pyright: ignore[reportAttributeAccessIssue]


class Timed(NamedTuple):
    """A fit, what it went through, and its CPU seconds without the recording."""

    fit: Fit
    trace: Trace
    seconds: float


def timed(call: Callable[[], Fit], rows: int) -> Timed:
    with recorded(Trace(rows)) as trace:
        fit = call()
        return Timed(fit, trace, trace.now())


def data_of(corpus: Corpus) -> Data:
    """Through the door that users take."""
    return LDA(num_topics=1, vocabulary_size=corpus.train.shape[1]).prepare(corpus.train, dtype=torch.float64)


def lda_of(corpus: Corpus, num_topics: int | None = None) -> LDA:
    model = LDA(num_topics=num_topics or len(corpus.truth), vocabulary_size=corpus.train.shape[1])
    return model.with_concentration(alpha=corpus.alpha, gamma=corpus.gamma)


def plsa_of(corpus: Corpus) -> PLSA:
    return PLSA(num_topics=len(corpus.truth), vocabulary_size=corpus.train.shape[1])


def _fit(method: Any, corpus: Corpus, data: Data, seed: int) -> Fit:
    return method.fit(lda_of(corpus), data, seed=seed, progress=False)


#: Name -> a fit from a seed. Those from a random start have as many passes as scikit-learn is given.
METHODS: dict[str, Callable[[Corpus, Data, int], Fit]] = {
    "fit(model, x), the default": lambda c, x, seed: custom_inference.fit(lda_of(c), x, seed=seed, progress=False),
    "VB, batch, one random start": lambda c, x, seed: _fit(
        VariationalEM(guide="vb", search=None, max_iterations=100), c, x, seed
    ),
    "VB, online, batch 128": lambda c, x, seed: _fit(
        VariationalEM(guide="vb", search=None, batch_size=128, max_iterations=20), c, x, seed
    ),
    "CVB0": lambda c, x, seed: _fit(VariationalEM(guide="cvb0"), c, x, seed),
    "Gibbs, one sample": lambda c, x, seed: _fit(
        CollapsedGibbs(chains=1, warmup=450, num_samples=1, thin=1), c, x, seed
    ),
    "Gibbs, mean of 50 samples": lambda c, x, seed: _fit(
        CollapsedGibbs(chains=1, warmup=250, num_samples=50, thin=5), c, x, seed
    ),
    "MAP": lambda c, x, seed: _fit(VariationalEM(guide="map"), c, x, seed),
    "PLSA": lambda c, x, seed: custom_inference.fit(plsa_of(c), x, seed=seed, progress=False),
}
