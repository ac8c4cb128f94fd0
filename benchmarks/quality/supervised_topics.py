"""Topics that predict a response: political blogs and reviews of films, and recovery on documents of known weights.

    python -m benchmarks.quality.supervised_topics [--data DIR] [--parts poliblog,movie_reviews,recovery] [--folds 0-9]
        [--afresh]

The default of the model, prediction-constrained training, chooses its weight within the fit, by the squared error on a
third of the responses; its seconds are in those of the fit. Every fold is written when it is done, and what is there is
not measured again but with ``--afresh``: a run that was cut short goes on where it was. Parts that are not run keep
their tables.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from benchmarks._report import QUICK, RESULTS, Table, read_tables, write_report
from benchmarks.quality._common import add_data_option, cpu_seconds, quiet_and_single_threaded, require_data
from custom_inference import CollapsedGibbs, match_components
from custom_inference import fit as default_fit
from ppl_models import DiscriminativeLDA, SupervisedLDA

INTRO = (
    "Accuracy and R2 = 1 - sum (y - p)^2 / sum (y - mean)^2 of the probability p, means over the folds; y is 0 or 1. "
    "CPU seconds of one thread and one fold's fit. The generative model is fitted to "
    "words and responses together, by an exact sampler (one chain, predictions averaged over draws) or by a bound; "
    "prediction-constrained training optimises how well the words alone predict, and is no posterior. LDA + "
    "logistic is the same search with the responses left out of the topics (weight 0). Discriminative LDA gives the "
    "probability of the class by the evidence of hundreds of words, which is too certain for a good R2; its learned "
    "matrices make the words more probable than topics divided among the classes do, and say less of the classes."
)
COLUMNS = ("method", "folds", "accuracy", "R2", "CPU s", "CPU s of the choice")
BY_FOLD = ("method", "fold", *COLUMNS[2:])
CHOSEN = "prediction-constrained, weight chosen"


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


#: Part -> what reads it.
CORPORA: dict[str, Callable[[Path], Corpus]] = {"poliblog": poliblog, "movie_reviews": movie_reviews}


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


def monte_carlo(corpus: Corpus, x: Any, y: Any, new: Any) -> Any:
    settings: dict[str, Any] = {"method": "monte_carlo_em", "learn": True, "progress": False}
    return default_fit(model_of(corpus), x, response=y, **settings).predict(new).numpy()


def bounded(corpus: Corpus, x: Any, y: Any, new: Any) -> Any:
    settings: dict[str, Any] = {"method": "dirichlet", "max_iterations": 30, "progress": False}
    return default_fit(model_of(corpus), x, response=y, **settings).predict(new).numpy()


def bag_of_words(corpus: Corpus, x: Any, y: Any, new: Any) -> Any:
    """Logistic regression, C = 10, on the logarithms of 1 + counts in rows of length 1."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import normalize

    learner = LogisticRegression(C=10, max_iter=2000).fit(normalize(x.log1p()), y)
    return learner.predict_proba(normalize(new.log1p()))[:, 1]


def tomotopy(corpus: Corpus, x: Any, y: Any, new: Any) -> Any:
    """Its SLDAModel of a binary response, 500 sweeps."""
    import tomotopy as tp  # pyright: ignore[reportMissingImports]

    settings: dict[str, Any] = {"vars": "b", "mu": [0.0], "nu_sq": [10.0], "glm_param": [10.0]}
    model = tp.SLDAModel(k=corpus.topics, alpha=0.1, eta=0.05, seed=0, **settings)
    for words, value in zip(_words(x), y, strict=True):
        model.add_doc(words, y=[float(value)])
    model.train(500, workers=1)
    documents = [model.make_doc(words) for words in _words(new)]
    model.infer(documents, iterations=200, workers=1)
    return np.array([model.estimate(one)[0] for one in documents])


def _words(x: Any) -> list[list[str]]:
    pairs = zip(x.indptr[:-1], x.indptr[1:], strict=True)
    return [np.repeat(x.indices[a:b], x.data[a:b].astype(int)).astype(str).tolist() for a, b in pairs]


def discriminative(corpus: Corpus, x: Any, y: Any, new: Any, *, own: bool = False) -> Any:
    model = DiscriminativeLDA(num_topics=corpus.topics, vocabulary_size=x.shape[1], num_classes=2)
    model = model.with_own_topics() if own else model
    return default_fit(model, x, labels=y, progress=False).predict(new)[:, 1].numpy()


#: Line -> how it predicts, and how many folds it is run on: None, all of them.
LINES: dict[str, tuple[Callable[..., Any], int | None]] = {
    "bag of words, logistic": (bag_of_words, None),
    "LDA + logistic": (partial(constrained, weight=0.0), None),
    "prediction-constrained, weight 100": (partial(constrained, weight=100.0), None),
    CHOSEN: (by_default, None),
    "tomotopy SLDA, binary": (tomotopy, None),
    "generative, sampled (Gibbs)": (sampled, 5),
    "generative, Monte Carlo EM": (monte_carlo, 5),
    "generative, bound (variational EM)": (bounded, 1),
    "discriminative LDA": (discriminative, 5),
    "discriminative LDA, each class with topics of its own": (partial(discriminative, own=True), 5),
}


def measured(corpus: Corpus, folds: range, before: Table | None, report: Callable[[Table, Table], None]) -> None:
    """Adds the folds that are missing; ``report`` is given the means and the folds after each."""
    rows = [] if before is None else list(before.rows)
    done, last = {(row[0], row[1]) for row in rows}, int(corpus.fold.max()) + 1
    for name, (predict, most) in LINES.items():
        for fold in range(min(last, most or last)):
            if fold not in folds or (name, fold) in done or (predict is tomotopy and not _installed("tomotopy")):
                continue
            rows.append([name, fold, *_fold(corpus, fold, predict)])
            print(corpus.name, rows[-1], flush=True)
            report(*_tables(corpus, rows))


def _tables(corpus: Corpus, rows: list[Any]) -> tuple[Table, Table]:
    note = "" if _installed("tomotopy") else "tomotopy is not installed: its lines are left out."
    means = Table(titles_of(corpus.name)[0], COLUMNS, note=note)
    ordered = [row for name in LINES for row in rows if row[0] == name]
    for name in dict.fromkeys(row[0] for row in ordered):
        own = np.array([row[2:] for row in ordered if row[0] == name], float)
        *figures, choice = own.mean(0).tolist()
        means.rows.append([name, len(own), *figures, choice if choice else None])
    return means, Table(titles_of(corpus.name)[1], BY_FOLD, ordered)


def titles_of(part: str) -> list[str]:
    """Of the tables of a part."""
    topics = {"poliblog": 10, "movie_reviews": 20}
    return [f"{part}, {topics[part]} topics", f"{part}, by fold"] if part in topics else ["Recovery"]


def _fold(corpus: Corpus, fold: int, predict: Callable[..., Any]) -> tuple[float, ...]:
    """Accuracy, R2, CPU seconds, and none of a choice apart from the fit."""
    test = corpus.fold == fold
    x, y, new, truth = corpus.x[~test], corpus.y[~test], corpus.x[test], corpus.y[test]
    chance, seconds = cpu_seconds(lambda: predict(corpus, x, y, new))
    r2 = 1 - ((truth - chance) ** 2).sum() / ((truth - truth.mean()) ** 2).sum()
    return float(((chance > 0.5) == truth).mean()), float(r2), seconds, 0.0


def _installed(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def recovery(draws: int) -> Table:
    """Documents of known topics and weights: 5 topics over 200 words, 500 documents of 60 tokens, every kind."""
    note = "Medians over the draws: total variation of topics, root mean square error of weights against their spread."
    table = Table("Recovery", ("response", "method", "draws", "topic TV", "weight error / spread", "CPU s"), note=note)
    for kind in ("binary", "categorical", "real", "counts"):
        for name, method in {"variational EM": "dirichlet", "Gibbs": _CHAIN}.items():
            found = np.median([_recovered(kind, method, seed) for seed in range(draws)], 0).tolist()
            table.rows.append([kind, name, draws, *found])
            print(table.rows[-1], flush=True)
    return table


_CHAIN = CollapsedGibbs(chains=1, threads=1, num_samples=20, warmup=40, thin=2)


def _recovered(kind: str, method: Any, seed: int) -> tuple[float, float, float]:
    rng = np.random.default_rng(seed)
    topic, weight = rng.dirichlet(np.full(200, 0.05), 5), np.array([4.0, 2.0, 0.0, -2.0, -4.0])
    weight = weight / 2 if kind == "counts" else weight
    tokens = np.stack([rng.multinomial(60, p) for p in rng.dirichlet(np.full(5, 0.2), 500)])
    x = np.sum([[rng.multinomial(n, topic[k]) for n in tokens[:, k]] for k in range(5)], 0).astype(float)
    eta = tokens / 60 @ weight
    drawn = {
        "binary": lambda: rng.random(500) < 1 / (1 + np.exp(-eta)),
        "real": lambda: eta + 0.5 * rng.normal(size=500),
        "counts": lambda: rng.poisson(np.exp(eta)),
        "categorical": lambda: (np.stack([eta, 0 * eta, -eta], 1) + rng.gumbel(size=(500, 3))).argmax(1),
    }[kind]()
    classes: dict[str, Any] = {"num_classes": 3} if kind == "categorical" else {}
    model = SupervisedLDA(num_topics=5, vocabulary_size=200, response=kind, **classes)
    response = np.asarray(drawn, float)
    settings: dict[str, Any] = {"response": response, "progress": False, "seed": seed, "method": method}
    fit, seconds = cpu_seconds(lambda: default_fit(model, x, **settings))
    order = match_components(torch.as_tensor(topic), fit.params["topic"]).order
    found = fit.params["response_weight"][..., order].numpy()
    found = (found[0] - found[2]) / 2 if kind == "categorical" else found
    apart = np.abs(fit.params["topic"][order].numpy() - topic).sum(1).mean() / 2
    return float(apart), float(np.sqrt(((found - weight) ** 2).mean()) / weight.std()), seconds


def main(arguments: Sequence[str] | None = None, *, results: Path | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_option(parser)
    parser.add_argument("--parts", default="poliblog,movie_reviews,recovery")
    parser.add_argument("--folds", default="0-9", help="the first and the last of them")
    parser.add_argument("--afresh", action="store_true", help="measure again what is there")
    given = parser.parse_args(arguments)
    smoke = bool(os.environ.get("PPL_SMOKE"))
    results = results or (QUICK if smoke else RESULTS)
    folder, parts = require_data(parser, given), given.parts.split(",")
    first, last = map(int, given.folds.split("-"))
    folds = range(1) if smoke else range(first, last + 1)
    quiet_and_single_threaded()
    found = read_tables("supervised_topics", folder=results)
    for title in (title for part in parts for title in titles_of(part) if given.afresh):
        found.pop(title, None)

    def report(*tables: Table) -> None:
        found.update({table.title: table for table in tables})
        titles = [title for part in (*CORPORA, "recovery") for title in titles_of(part) if title in found]
        shown = [found[title] for title in sorted(titles, key=lambda title: title.endswith("by fold"))]
        write_report("supervised_topics", "Topics that predict a response", shown, intro=INTRO, folder=results)

    for part in parts:
        if part == "recovery":
            report(recovery(1 if smoke else 10))
        else:
            measured(CORPORA[part](folder), folds, found.get(titles_of(part)[1]), report)


if __name__ == "__main__":
    main()
