"""Topics that predict a response: political blogs and reviews of films.

    python -m benchmarks.quality.supervised_topics [--data DIR]

The default of the model, prediction-constrained training, chooses its weight within the fit, by the squared error on
responses that are held out; its seconds are in those of the fit. PPL_SMOKE=1: one fold, no result.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality._common import add_data_option, cpu_seconds, quiet_and_single_threaded, require_data
from custom_inference import CollapsedGibbs
from custom_inference import fit as default_fit
from ppl_models import DiscriminativeLDA, SupervisedLDA

INTRO = (
    "Accuracy and R2 = 1 - sum (y - p)^2 / sum (y - mean)^2 of the probability p, means over the folds; y is 0 or 1. "
    "CPU seconds of one thread and one fold's fit. The generative model is fitted to "
    "words and responses together, by an exact sampler (one chain, predictions averaged over draws); "
    "prediction-constrained training optimises how well the words alone predict, and is no posterior. LDA + "
    "logistic is the same search with the responses left out of the topics (weight 0). Discriminative LDA gives the "
    "probability of the class by the evidence of hundreds of words, which is too certain for a good R2."
)
COLUMNS = ("method", "folds", "accuracy", "R2", "CPU s")
#: How many folds are left out in turn.
_FOLDS = 3


@dataclass(frozen=True)
class Corpus:
    """Counts (N, V), responses (N,) of 0 and 1, the fold of every document; the number of topics."""

    name: str
    x: Any
    y: Any
    fold: Any
    topics: int


def poliblog(folder: Path) -> Corpus:
    """773 blogs of 2008, liberal or conservative; five folds."""
    with np.load(folder / "poliblog" / "poliblog.npz") as archive:
        x, y = _counts(archive), (archive["rating"] > 0).astype(float)
    return Corpus("poliblog", x, y, np.random.default_rng(0).permutation(len(y)) % 5, 10)


def movie_reviews(folder: Path) -> Corpus:
    """2000 reviews, negative or positive; the authors' ten folds."""
    with np.load(folder / "movie_reviews" / "movie_reviews.npz") as archive:
        return Corpus("movie_reviews", _counts(archive), archive["y"].astype(float), archive["cv_fold"], 20)


def _counts(archive: Any) -> Any:
    parts = archive["data"].astype(float), archive["indices"], archive["indptr"]
    return sp.csr_matrix(parts, tuple(archive["shape"]))


def model_of(corpus: Corpus) -> SupervisedLDA:
    return SupervisedLDA(num_topics=corpus.topics, vocabulary_size=corpus.x.shape[1])


def constrained(corpus: Corpus, x: Any, y: Any, new: Any, *, weight: float, **settings: Any) -> Any:
    settings = {**settings, "weight": weight, "method": "prediction_constrained"}
    return default_fit(model_of(corpus), x, response=y, progress=False, **settings).predict(new).numpy()


def by_default(corpus: Corpus, x: Any, y: Any, new: Any) -> Any:
    """The two lines: ``fit(SupervisedLDA(...), x, response=y)`` and ``predict``."""
    return default_fit(model_of(corpus), x, response=y, progress=False).predict(new).numpy()


def sampled(corpus: Corpus, x: Any, y: Any, new: Any) -> Any:
    method = CollapsedGibbs(chains=1, threads=1, num_samples=20, warmup=60, thin=2, search=False, learn=True)
    return method.fit(model_of(corpus), x, response=y, progress=False).predict(new).numpy()


def bag_of_words(corpus: Corpus, x: Any, y: Any, new: Any) -> Any:
    """Logistic regression, C = 10, on the logarithms of 1 + counts in rows of length 1."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import normalize

    learner = LogisticRegression(C=10, max_iter=2000).fit(normalize(x.log1p()), y)
    return learner.predict_proba(normalize(new.log1p()))[:, 1]


def discriminative(corpus: Corpus, x: Any, y: Any, new: Any) -> Any:
    """Each class has topics of its own."""
    model = DiscriminativeLDA(num_topics=corpus.topics, vocabulary_size=x.shape[1], num_classes=2).with_own_topics()
    return default_fit(model, x, labels=y, progress=False).predict(new)[:, 1].numpy()


#: Line -> how it predicts.
LINES: dict[str, Callable[..., Any]] = {
    "bag of words, logistic": bag_of_words,
    "LDA + logistic": partial(constrained, weight=0.0),
    "fit(SupervisedLDA(...), x, response=y)": by_default,
    "prediction-constrained, weight 100": partial(constrained, weight=100.0),
    "generative, sampled (Gibbs)": sampled,
    "discriminative LDA, each class with topics of its own": discriminative,
}
#: The line that takes minutes a fold on reviews of films, and is run on blogs alone.
_ON_BLOGS = "generative, sampled (Gibbs)"


def measured(corpus: Corpus, folds: int) -> Table:
    """The means over the first folds."""
    table = Table(f"{corpus.name}, {corpus.topics} topics", COLUMNS)
    for name, predict in LINES.items():
        if corpus.name == "poliblog" or name != _ON_BLOGS:
            found = np.mean([_fold(corpus, fold, predict) for fold in range(folds)], axis=0)
            table.rows.append([name, folds, *found.tolist()])
            print(corpus.name, table.rows[-1], flush=True)
    return table


def _fold(corpus: Corpus, fold: int, predict: Callable[..., Any]) -> tuple[float, float, float]:
    """Accuracy, R2 and CPU seconds."""
    test = corpus.fold == fold
    x, y, new, truth = corpus.x[~test], corpus.y[~test], corpus.x[test], corpus.y[test]
    chance, seconds = cpu_seconds(lambda: predict(corpus, x, y, new))
    r2 = 1 - ((truth - chance) ** 2).sum() / ((truth - truth.mean()) ** 2).sum()
    return float(((chance > 0.5) == truth).mean()), float(r2), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_option(parser)
    folder = require_data(parser, parser.parse_args())
    quiet_and_single_threaded()
    folds, results = (1, QUICK) if os.environ.get("PPL_SMOKE") else (_FOLDS, RESULTS)
    tables = [measured(read(folder), folds) for read in (poliblog, movie_reviews)]
    write_report("supervised_topics", "Topics that predict a response", tables, intro=INTRO, folder=results)


if __name__ == "__main__":
    main()
