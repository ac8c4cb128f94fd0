"""Replicated softmax beside LDA and the unigram distribution on two corpora (Murphy 2012, Fig. 27.32)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import custom_inference as ci
from benchmarks._report import Table
from benchmarks.quality._correlated_data import under_dirichlet
from benchmarks.quality._machines_data import perplexity
from benchmarks.quality._topic_data import Documents, newsgroups, nips
from benchmarks.speed._topic_evaluator import halved
from custom_inference.families.boltzmann.annealing import AnnealedLikelihood
from ppl_models import LDA, ReplicatedSoftmax

#: Whole test documents whose probability is estimated.
_WHOLE = 10
#: Temperatures and chains: the source's effort, and as much work spent on a finer path; seconds of LDA.
_EFFORTS, _SECONDS = ((500, 50), (2_500, 10)), (2.0, 4.0)
_NOTE = (
    f"The source's table: the perplexity of 50 test documents (here {_WHOLE}), exp of the mean of -log p / length,"
    " log p by annealed importance sampling. It has unigram 4385, LDA 50 3576, LDA 200 3391, replicated softmax "
    "50 3405 on NIPS, and 1335, 1091, 1058, 953 on 20 newsgroups, of other words and splits. Here by two efforts:"
    " 500 temperatures and 50 chains of replicated softmax (LDA at its topics: 2 s), and 2,500 temperatures "
    "and 10 chains (LDA: 4 s). An annealed log Z that has not converged is too small,"
    " which makes a replicated softmax look better than it is: where the second column is above the first, "
    "neither is the model's perplexity, and the order of the source's table is not shown. LDA's estimate errs the"
    " other way. What needs no log Z is completion: of the tokens of the second half of every test document, "
    "given the first half. Vocabularies as in the benchmark of topics' perplexity. All by their defaults, LDA "
    "with one start."
)


def part_perplexity(folder: Path) -> Table:
    """Perplexities of whole documents, by two efforts, and of second halves given the first."""
    columns = ["corpus", "method", "whole documents", "with a finer path", "completion"]
    table = Table("Figure 27.32 of Murphy (2012)", columns, note=_NOTE)
    for data in (nips(folder), newsgroups(folder)):
        rng = np.random.default_rng(0)
        some = data.test[np.sort(rng.choice(data.test.shape[0], _WHOLE, replace=False))]
        halves = halved(data.test)
        length = np.asarray(some.sum(1)).ravel()
        ways: dict[str, Callable[..., Any]] = {"unigram": _unigram}
        ways |= {f"LDA {topics}": partial(_lda, topics) for topics in (50, 200)}
        ways["replicated softmax 50"] = _softmax
        for name, way in ways.items():
            log_p, share = way(data, some, halves[0])
            whole = [float(np.exp(-np.mean(np.asarray(one) / length))) for one in log_p]
            table.rows.append([data.name, name, *whole, perplexity(share, halves[1])])
            print(table.rows[-1], flush=True)
    return table


def _unigram(data: Documents, some: Any, seen: Any) -> tuple[Any, Any]:
    share = np.asarray(data.train.sum(0)).ravel() + 0.5
    share = share / share.sum()
    return [some @ np.log(share)] * len(_EFFORTS), np.tile(share, (seen.shape[0], 1))


def _lda(topics: int, data: Documents, some: Any, seen: Any) -> tuple[Any, Any]:
    model = LDA(num_topics=topics, vocabulary_size=data.train.shape[1])
    fit = ci.fit(model, data.train, progress=False, search=ci.Search(restarts=1))
    log_p = [ci.held_out(fit, some, how="ais", seconds=seconds).log_probability for seconds in _SECONDS]
    topic = fit.params["topic"].numpy()
    return log_p, under_dirichlet(topic, np.full(topics, 0.1), seen) @ topic


def _softmax(data: Documents, some: Any, seen: Any) -> tuple[Any, Any]:
    model = ReplicatedSoftmax(num_hidden=50, num_features=data.train.shape[1])
    fit = ci.fit(model, data.train, progress=False)
    rows = model.prepare(some, dtype=fit.globals["weight"].dtype)
    estimates = (AnnealedLikelihood(chains=chains, temperatures=number) for number, chains in _EFFORTS)
    return [one(model, fit.globals, rows).bound.numpy() for one in estimates], ci.complete(fit, seen).numpy()
