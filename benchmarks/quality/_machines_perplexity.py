"""Replicated softmax beside LDA and the unigram distribution on two corpora (source 002, Fig. 27.32)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import custom_inference as ci
from benchmarks._report import Table
from benchmarks.quality._common import cpu_seconds
from benchmarks.quality._correlated_data import under_dirichlet
from benchmarks.quality._machines_data import perplexity
from benchmarks.quality._topic_data import Documents, newsgroups, nips
from benchmarks.speed._topic_evaluator import halved
from custom_inference.families.boltzmann.annealing import AnnealedLikelihood
from ppl_models import LDA, ReplicatedSoftmax

#: Whole test documents whose probability is estimated, chains and temperatures of each.
_WHOLE, _CHAINS, _TEMPERATURES = 50, 50, 500
_NOTE = (
    "The source's table: the perplexity of 50 test documents, exp of the mean of -log p / length, "
    "log p by annealed importance sampling (here 500 temperatures, 50 chains of replicated softmax, 10 of LDA at its "
    "topics). It has unigram 4385, LDA 50 3576, LDA 200 3391, replicated softmax 50 3405 on NIPS, and 1335, "
    "1091, 1058, 953 on 20 newsgroups, of other words and splits. An annealed log Z tends to be too small, which is to "
    "the advantage of replicated softmax. Completion: of the tokens of the second half of every test document, given "
    "the first half: a probability of words that needs no log Z. Vocabularies as in the benchmark of topics' "
    "perplexity. All by their defaults, LDA with one start."
)


def part_perplexity(folder: Path) -> Table:
    """Perplexities of whole documents, and of second halves given the first."""
    columns = ["corpus", "method", "whole documents", "completion", "CPU s"]
    table = Table("Figure 27.32 of source 002", columns, note=_NOTE)
    for data in (nips(folder), newsgroups(folder)):
        rng = np.random.default_rng(0)
        some = data.test[np.sort(rng.choice(data.test.shape[0], _WHOLE, replace=False))]
        halves = halved(data.test)
        ways: dict[str, Callable[..., Any]] = {"unigram": _unigram}
        ways |= {f"LDA {topics}": partial(_lda, topics) for topics in (50, 200)}
        ways["replicated softmax 50"] = _softmax
        for name, way in ways.items():
            log_p, share, seconds = way(data, some, halves[0])
            length = np.asarray(some.sum(1)).ravel()
            whole = float(np.exp(-np.mean(log_p / length)))
            table.rows.append([data.name, name, whole, perplexity(share, halves[1]), seconds])
            print(table.rows[-1], flush=True)
    return table


def _unigram(data: Documents, some: Any, seen: Any) -> tuple[Any, Any, Any]:
    share = np.asarray(data.train.sum(0)).ravel() + 0.5
    share = share / share.sum()
    return some @ np.log(share), np.tile(share, (seen.shape[0], 1)), None


def _lda(topics: int, data: Documents, some: Any, seen: Any) -> tuple[Any, Any, float]:
    model = LDA(num_topics=topics, vocabulary_size=data.train.shape[1])
    fit, seconds = cpu_seconds(lambda: ci.fit(model, data.train, progress=False, search=ci.Search(restarts=1)))
    log_p = ci.held_out(fit, some, how="annealed", temperatures=_TEMPERATURES).log_probability
    topic = fit.params["topic"].numpy()
    return np.asarray(log_p), under_dirichlet(topic, np.full(topics, 0.1), seen) @ topic, seconds


def _softmax(data: Documents, some: Any, seen: Any) -> tuple[Any, Any, float]:
    model = ReplicatedSoftmax(num_hidden=50, num_features=data.train.shape[1])
    fit, seconds = cpu_seconds(lambda: ci.fit(model, data.train, progress=False))
    estimate = AnnealedLikelihood(chains=_CHAINS, temperatures=_TEMPERATURES)
    found = estimate(model, fit.globals, model.prepare(some, dtype=fit.globals["weight"].dtype))
    return found.bound.numpy(), ci.complete(fit, seen).numpy(), seconds
