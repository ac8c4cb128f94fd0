"""Labels of documents: which group a message of four newsgroups is from, and completion, by the same topics.

    python -m benchmarks.quality.labelled_topics [--data DIR]

CPU seconds are of one thread and of fitting alone, after a first fit that compiles. PPL_SMOKE=1: two lines, one seed,
no result.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality._common import add_data_option, cpu_seconds, quiet_and_single_threaded, require_data
from benchmarks.quality._correlated_data import labelled_newsgroups, perplexity, split, under_dirichlet
from custom_inference import fit
from ppl_models import LDA, DirichletMultinomialRegression, LabeledLDA, PartiallyLabeledLDA

Array = NDArray[Any]
NAME, TITLE = "labelled_topics", "Labels of four newsgroups"
COLUMNS = ("method", "topics", "seeds", "accuracy", "lowest accuracy", "perplexity", "highest perplexity", "CPU s")
GROUPS = 4


class Corpus(NamedTuple):
    """Counts and groups of training and test documents; the observed and the held-out half of the tokens of these."""

    x: Any
    y: Array
    new: Any
    truth: Array
    seen: Any
    held: Any


class Found(NamedTuple):
    """The probability of every group (N, 4) of the test documents; the perplexity of their held-out halves, None where
    the method has no topics; CPU seconds of fitting."""

    chance: Array
    perplexity: float | None
    seconds: float


def read(folder: Path) -> Corpus:
    x, new, y, truth = labelled_newsgroups(folder)
    return Corpus(x, y, new, truth, *split(new, 0.5, most=None))


def completed(data: Corpus, topic: Array, alpha: Array) -> float:
    return perplexity(under_dirichlet(topic, alpha, data.seen), topic, data.held)


def _fitted(model: Any, data: Corpus, seed: int, **others: Any) -> tuple[Any, Array, float]:
    found, seconds = cpu_seconds(lambda: fit(model, data.x, seed=seed, progress=False, **others))
    return found, found.params["topic"].double().numpy(), seconds


def bag_of_words(data: Corpus, seed: int) -> Found:
    """Logistic regression, C = 10, on the logarithms of 1 + counts in rows of length 1."""
    del seed
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import normalize

    x, new = (normalize(part.astype(float).log1p()) for part in (data.x, data.new))
    made, seconds = cpu_seconds(lambda: LogisticRegression(C=10, max_iter=2000).fit(x, data.y))
    return Found(made.predict_proba(new), None, seconds)


def naive_bayes(data: Corpus, seed: int) -> Found:
    """Multinomial, .1 added to the counts."""
    del seed
    from sklearn.naive_bayes import MultinomialNB

    made, seconds = cpu_seconds(lambda: MultinomialNB(alpha=0.1).fit(data.x, data.y))
    return Found(made.predict_proba(data.new), None, seconds)


def lda(data: Corpus, seed: int, size: int = 20) -> Found:
    """Topics without the labels, logistic regression on the proportions."""
    from sklearn.linear_model import LogisticRegression

    found, topic, seconds = _fitted(LDA(num_topics=size, vocabulary_size=data.x.shape[1]), data, seed)
    alpha = np.full(size, 0.1)
    share = found.transform().numpy()
    made, more = cpu_seconds(lambda: LogisticRegression(C=10, max_iter=2000).fit(share, data.y))
    chance = made.predict_proba(under_dirichlet(topic, alpha, data.new))
    return Found(chance, completed(data, topic, alpha), seconds + more)


def labelled(data: Corpus, seed: int, own: int = 1, common: int = 1) -> Found:
    """``own`` topics a group and ``common`` ones; the group is predicted by the evidence of the words."""
    size: dict[str, int] = {"num_topics": GROUPS * own + common, "vocabulary_size": data.x.shape[1]}
    kind: Any = LabeledLDA if own == 1 else partial(PartiallyLabeledLDA, topics_per_label=own)
    found, topic, seconds = _fitted(kind(**size, num_labels=GROUPS), data, seed, labels=data.y)
    return Found(found.predict(data.new).numpy(), completed(data, topic, np.full(len(topic), 0.1)), seconds)


#: Documents, topics, seed -> the fit, which two lines share.
_REGRESSIONS: dict[tuple[int, int, int], tuple[Any, Array, float]] = {}


def regression(data: Corpus, seed: int, size: int = 20, *, told: bool = False) -> Found:
    """Concentrations by group. The group is predicted by the evidence of the words under each; completion knows it
    (``told``), or takes the mean concentrations."""
    model = DirichletMultinomialRegression(num_topics=size, vocabulary_size=data.x.shape[1], num_covariates=GROUPS)
    at = data.x.shape[0], size, seed
    if at not in _REGRESSIONS:
        _REGRESSIONS[at] = _fitted(model, data, seed, covariates=np.eye(GROUPS)[data.y])
    found, topic, seconds = _REGRESSIONS[at]
    alpha = (found.params["prevalence_bias"] + found.params["prevalence_weight"]).exp().double().numpy()
    evidence = []
    for group in range(GROUPS):
        given = np.tile(np.eye(GROUPS)[group], (data.new.shape[0], 1))
        evidence.append(found.local_posterior(model.prepare(data.new, covariates=given)).bound)
    chance = torch.softmax(torch.stack(evidence, -1), -1).double().numpy()
    return Found(chance, completed(data, topic, alpha[data.truth] if told else alpha.mean(0)), seconds)


class Line(NamedTuple):
    """What finds it, and the number of its topics as it is shown; whether it depends on a seed."""

    find: Callable[[Corpus, int], Found]
    topics: str = ""
    random: bool = True


LINES: dict[str, Line] = {
    "bag of words, logistic": Line(bag_of_words, random=False),
    "naive Bayes": Line(naive_bayes, random=False),
    "LDA, then logistic": Line(lda, "20"),
    "labelled LDA": Line(labelled, "4 + 1"),
    "partially labelled LDA, 4 each": Line(partial(labelled, own=4, common=4), "4 x 4 + 4"),
    "partially labelled LDA, 15 each": Line(partial(labelled, own=15, common=5), "4 x 15 + 5"),
    "DMR": Line(regression, "20"),
    "DMR, completion told the group": Line(partial(regression, told=True), "20"),
}
INTRO = (
    "2330 messages to learn from and 1525 later ones of the same four groups, 4763 words, 268,003 tokens. Accuracy of "
    "the most probable group by the words alone; perplexity of half of a message's tokens given the other half, by "
    "the same topics without the group. Means over the seeds, and the worst."
)


def measured(name: str, data: Corpus, seeds: int) -> list[Any]:
    line = LINES[name]
    found = [line.find(data, seed) for seed in range(seeds if line.random else 1)]
    right = [float((one.chance.argmax(1) == data.truth).mean()) for one in found]
    score = [one.perplexity for one in found if one.perplexity is not None]
    beside = (float(np.mean(score)), max(score)) if score else (None, None)
    seconds = float(np.median([one.seconds for one in found]))
    return [name, line.topics, len(found), float(np.mean(right)), min(right), *beside, seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_option(parser)
    data = read(require_data(parser, parser.parse_args()))
    quiet_and_single_threaded()
    names, seeds, results = [*LINES], 3, RESULTS
    if os.environ.get("PPL_SMOKE"):
        names, seeds, results = names[1:4:2], 1, QUICK
    x, y, new, truth = data[:4]
    few = Corpus(x[::20], y[::20], new[::20], truth[::20], *split(new[::20], 0.5, most=None))
    table = Table(TITLE, COLUMNS)
    for name in names:
        if LINES[name].random:
            LINES[name].find(few, 0)  # compiles
        table.rows.append(measured(name, data, seeds))
        print(table.rows[-1], flush=True)
    write_report(NAME, "Topics and labels", [table], intro=INTRO, folder=results)


if __name__ == "__main__":
    main()
