"""This project's methods for topics on the clock: what a fit had found after how many passes and CPU seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import custom_inference
from benchmarks.speed._topic_evaluator import Corpus
from benchmarks.speed._topic_trace import Trace, recorded, recorded_sweeps
from custom_inference import CollapsedGibbs, Fit, VariationalEM
from custom_inference.families.topics.chain import LdaChain
from custom_inference.families.topics.cvb0 import LdaCvb0
from custom_inference.families.topics.map import LdaMap
from custom_inference.families.topics.vb import LdaVB
from ppl_models import LDA, PLSA, Data

#: Engine whose topics are recorded after every M step.
_STEPS = (LdaVB, LdaCvb0, LdaMap)


class Timed(NamedTuple):
    """A fit, what it went through, and its CPU seconds without the recording."""

    fit: Fit
    trace: Trace
    seconds: float


def timed(call: Callable[[], Fit], rows: int, *, sweeps: bool = False) -> Timed:
    """sweeps: record a sampler's sweeps instead of M steps."""
    trace = Trace(rows)
    with recorded_sweeps(trace, LdaChain) if sweeps else recorded(trace, *_STEPS):
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
