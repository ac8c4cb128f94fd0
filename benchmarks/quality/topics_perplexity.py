"""Perplexity against K: unigram, mixture of unigrams, PLSA with folding-in, LDA (Murphy, section 27.3.3 and Fig. 27.6).

    python -m benchmarks.quality.topics_perplexity [--quick] [--data DIR]

Writes ``benchmarks/results/topics_perplexity.{md,json}`` and a figure. The source's figure (that of Blei, Ng &
Jordan 2003, Fig. 9) is of newswire articles; here are NIPS papers and newsgroups.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality._common import add_data_option, quiet_and_single_threaded, require_data
from benchmarks.quality._topic_data import Documents, folded_in, newsgroups, nips
from benchmarks.quality._topic_figures import lines, save
from benchmarks.speed._topic_evaluator import halved
from custom_inference import EM, Fit, Search, VariationalBayes, VariationalEM
from ppl_models import LDA, PLSA, MixtureOfMultinomials

Array = NDArray[np.float64]
ALPHA, GAMMA = 0.1, 0.05
ONE = Search(restarts=1)
COLUMNS = (
    "K", "model", "test, per document", "test, per token", "completion, per document", "completion, per token",
    "training, per token", "CPU s",
)  # fmt: skip


class Halves(NamedTuple):
    """Test documents, whole, and in two halves of their tokens."""

    whole: Any
    observed: Any
    held_out: Any


class Scores(NamedTuple):
    """log p of every document's tokens: test documents; their second halves given the first; training documents."""

    test: Array
    completion: Array
    train: Array


def lengths(counts: Any) -> Array:
    return np.asarray(counts.sum(1), dtype=float).ravel()


def per_document(log_p: Array, counts: Any) -> float:
    """exp(-mean_i (1 / L_i) log p_i), natural logarithm: eq. 27.29."""
    size = lengths(counts)
    return float(np.exp(-np.mean(log_p[size > 0] / size[size > 0])))


def per_token(log_p: Array, counts: Any) -> float:
    """exp(-sum_i log p_i / sum_i L_i): every token the same weight."""
    return float(np.exp(-log_p.sum() / lengths(counts).sum()))


def words_at(counts: Any, proportion: Array, topic: Array) -> Array:
    """sum_v n_iv log sum_k pi_ik b_kv of every document; the tiniest number for words that have none."""
    cells = counts.tocoo()
    p = np.einsum("ck,ck->c", proportion[cells.row], topic.T[cells.col])
    each = cells.data * np.log(np.maximum(p, np.finfo(float).tiny))
    return np.bincount(cells.row, each, minlength=counts.shape[0])


def unigram(documents: Documents, halves: Halves) -> Scores:
    """The mode of one multinomial, in the softmax basis as that of the mixture: b_v ~ gamma + n_v."""
    total = np.asarray(documents.train.sum(0)).ravel() + GAMMA
    topic = (total / total.sum())[None]
    every = [words_at(x, np.ones((x.shape[0], 1)), topic) for x in (halves.whole, halves.held_out, documents.train)]
    return Scores(*every)


def mixture(documents: Documents, halves: Halves, size: int, seed: int = 0) -> Scores:
    """Maximum a posteriori with LDA's prior of the topics, as the source says; log p(y) is exact (eq. 27.2)."""
    model = MixtureOfMultinomials(num_topics=size, vocabulary_size=len(documents.words))
    model = model.with_concentration(gamma=GAMMA)
    fit = EM(search=ONE, tolerance=1e-3).fit(model, documents.train, seed=seed, progress=False)
    return Scores(_exact(fit, halves.whole), _exact_rest(fit, halves), _exact(fit, documents.train))


def _exact(fit: Fit, counts: Any) -> Array:
    return fit.log_likelihood(counts).numpy()


def _exact_rest(fit: Fit, halves: Halves) -> Array:
    """log p(second half | first half)."""
    return _exact(fit, halves.whole) - _exact(fit, halves.observed)


def plsa(documents: Documents, halves: Halves, size: int, seed: int = 0) -> Scores:
    """Maximum likelihood; test documents are folded in: their mixes are fitted to the very tokens that are scored."""
    model = PLSA(num_topics=size, vocabulary_size=len(documents.words))
    method = VariationalEM(guide="map", search=ONE, tolerance=1e-2, max_iterations=150)
    fit = method.fit(model, documents.train, seed=seed, progress=False)
    topic = fit.params["topic"].numpy()
    own, part = (folded_in(fit, x) for x in (halves.whole, halves.observed))
    trained = fit.params["topic_proportion"].numpy()
    pairs = ((halves.whole, own), (halves.held_out, part), (documents.train, trained))
    return Scores(*(words_at(x, mix, topic) for x, mix in pairs))


def lda(documents: Documents, halves: Halves, size: int, seed: int = 0) -> Scores:
    """Variational Bayes; the topics' posterior means plugged in, a lower bound on log p of each document (27.3.3.2)."""
    model = LDA(num_topics=size, vocabulary_size=len(documents.words)).with_concentration(alpha=ALPHA, gamma=GAMMA)
    method = VariationalEM(guide=VariationalBayes(), search=ONE, max_iterations=60, tolerance=1e-2)
    fit = method.fit(model, documents.train, seed=seed, progress=False)
    mix = fit.transform(halves.observed, bound="dirichlet").numpy()
    rest = words_at(halves.held_out, mix, fit.params["topic"].numpy())
    bounds = [fit.log_likelihood(x, bound="dirichlet").numpy() for x in (halves.whole, documents.train)]
    return Scores(bounds[0], rest, bounds[1])


MODELS = {"mixture of unigrams": mixture, "PLSA, folded in": plsa, "LDA": lda}


def corpus_table(documents: Documents, sizes: Sequence[int]) -> Table:
    whole = documents.test
    halves = Halves(whole, *halved(whole.astype(np.int64)))
    table = Table(
        documents.title,
        COLUMNS,
        note=(
            "Natural logarithms. Per document: eq. 27.29. Test: of whole documents. PLSA's is no probability of new "
            "documents, as their mixes are fitted to the very tokens that are scored; LDA's is an upper bound, from a "
            "lower bound on log p. Completion: of one half of a document's tokens, given the other half: the same task "
            f"for all. {documents.cut}. alpha = {ALPHA}, gamma = {GAMMA} (LDA's; the mixture and the unigram model "
            "have the same prior of the topics). One start each."
        ),
    )

    def line(size: int | str, name: str, scores: Scores, seconds: float | None) -> None:
        pairs = ((scores.test, halves.whole), (scores.completion, halves.held_out))
        cells = [f"{measure(p, x):.0f}" for p, x in pairs for measure in (per_document, per_token)]
        last = [f"{per_token(scores.train, documents.train):.0f}", seconds if seconds is None else f"{seconds:.1f}"]
        table.rows.append([size, name, *cells, *last])
        print(table.rows[-1], flush=True)

    line("", "unigram", unigram(documents, halves), None)
    for size in sizes:
        for name, model in MODELS.items():
            begin = time.process_time()
            scores = model(documents, halves, size)
            line(size, name, scores, time.process_time() - begin)
    return table


def panels_of(tables: Sequence[Table]) -> dict[str, dict[str, tuple[list[float], list[float]]]]:
    """Fig. 27.6: test perplexity per document; completion dashed beside it."""
    panels: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    for table in tables:
        name = table.title.split(":")[0]
        for column, label in ((2, "whole test documents"), (4, "completion")):
            found = panels[f"{name}, {label}"] = {}
            sizes = sorted({int(row[0]) for row in table.rows if row[0] != ""})
            flat = float(table.rows[0][column])
            found["unigram"] = ([*map(float, sizes)], [flat] * len(sizes))
            for model in MODELS:
                rows = [row for row in table.rows if row[1] == model]
                found[model] = ([float(row[0]) for row in rows], [float(row[column]) for row in rows])
    return panels


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="500 words, two values of K: does it run?")
    add_data_option(parser)
    arguments = parser.parse_args()
    folder = require_data(parser, arguments)
    quiet_and_single_threaded()
    words, sizes = (500, (2, 5)) if arguments.quick else (2000, (5, 10, 20, 50))
    results = QUICK if arguments.quick else RESULTS
    tables = [corpus_table(load(folder, words), sizes) for load in (nips, newsgroups)]
    labels = ("number of topics K", "perplexity per document (27.29)")
    figure = lines(panels_of(tables), *labels, dashed=("unigram",), ticks=sizes)
    tables[0].figures = [save(figure, results, "topics_perplexity")]
    print(
        write_report(
            "topics_perplexity", "Perplexity against the number of topics", tables, intro=INTRO, folder=results
        )
    )


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
