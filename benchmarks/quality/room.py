"""Room to spare: what more topics, blocks or components than there are cost the default fits.

    PPL_DATA=/path/to/data python -m benchmarks.quality.room

Without PPL_DATA the corpus is left out. PPL_SMOKE=1: one seed and one size, no result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyro.distributions as dist
import torch
from numpy.typing import NDArray

from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality._common import cpu_seconds, quiet_and_single_threaded
from benchmarks.quality._topic_data import newsgroups
from benchmarks.quality._topics_truth import WORDS, hdp
from custom_inference import Fit, fit, perplexity
from ppl_models import HDP, LDA, SBM, InfiniteSBM, MixtureOfBernoullis

Array = NDArray[Any]
_SEEDS, _TOPICS, _TIMES = 5, (10, 20, 40, 60, 100), (1, 2, 4)
#: Documents of the corpus that are fitted and scored, and its most frequent words.
_FITTED, _SCORED, _WORDS = 150, 150, 600
#: Used are the fewest components that hold this share.
_HELD = 0.99
INTRO = (
    f"Medians over {_SEEDS} seeds (of the data too, where these are drawn), with the smallest and the largest. Used: "
    f"the fewest components that hold {_HELD:.0%} of what the fit gives to all. CPU seconds are of one thread."
)


def used(share: Array) -> int:
    held = np.sort(share)[::-1].cumsum() / share.sum()
    return int(np.searchsorted(held, _HELD) + 1)


def topics_used(found: Fit, x: Any) -> int:
    return used(np.asarray(found.transform()).T @ np.asarray(x.sum(1)).ravel())


def corpora(seeds: int) -> Iterator[tuple[str, Callable[[int], tuple[Any, Any, int]]]]:
    """Yield names, and (documents to fit, documents to score, number of words) by the seed."""

    def drawn(seed: int) -> tuple[Any, Any, int]:
        draw = hdp(seed, 5)
        return draw.x[:_FITTED], draw.fresh[:_SCORED], WORDS

    def news(seed: int) -> tuple[Any, Any, int]:
        documents, rng = newsgroups(Path(os.environ["PPL_DATA"]), _WORDS), np.random.default_rng(seed)
        parts = [(documents.train, _FITTED), (documents.test, _SCORED)]
        chosen = [part[rng.permutation(part.shape[0])[:size]] for part, size in parts]
        return chosen[0], chosen[1], documents.train.shape[1]

    yield f"{_FITTED} of five topics, drawn", drawn
    if "PPL_DATA" in os.environ:
        yield f"four newsgroups, {_FITTED} documents, {_WORDS} words", news


def spread(values: list[float]) -> str:
    return f"{np.median(values):.4g} ({min(values):.4g} .. {max(values):.4g})"


def of_topics(seeds: int, sizes: tuple[int, ...]) -> Iterator[list[Any]]:
    for name, make in corpora(seeds):
        for method in ("default", "gibbs"):
            for size in sizes:
                lines = []
                for seed in range(seeds):
                    x, fresh, words = make(seed)
                    run = partial(fit, HDP(max_topics=size, vocabulary_size=words), x, seed=seed, progress=False)
                    found, seconds = cpu_seconds(run if method == "default" else partial(run, method=method))
                    lines.append((topics_used(found, x), perplexity(found, fresh), seconds))
                count, score, seconds = (list(map(float, one)) for one in zip(*lines, strict=True))
                yield [name, method, size, spread(count), spread(score), float(np.median(seconds))]


def planted_rows(rng: np.random.Generator) -> tuple[Array, Array]:
    """300 rows, and as many to score, of four classes of twenty bits."""
    centre, label = rng.beta(0.5, 0.5, (4, 20)), rng.integers(4, size=600)
    x = (rng.random((600, 20)) < centre[label]).astype(float)
    return x[:300], x[300:]


def planted_graph(rng: np.random.Generator) -> tuple[Array, Array]:
    """100 nodes in four blocks, and which dyads are hidden: a tenth."""
    block = np.repeat(range(4), 25)
    probability = np.where(np.equal.outer(block, block), 0.35, 0.05)
    x = np.triu(rng.random((100, 100)) < probability, 1).astype(float)
    hidden = np.triu(rng.random((100, 100)) < 0.1, 1)
    return x + x.T, hidden | hidden.T


def fit_rows(seed: int, size: int, sparse: bool) -> tuple[float, float, float]:
    x, fresh = planted_rows(np.random.default_rng(seed))
    model = MixtureOfBernoullis(num_components=size, num_features=20)
    if sparse:
        model = model.with_priors(mixing_proportion=dist.Dirichlet(torch.full((size,), 1 / size)))
    found, seconds = cpu_seconds(partial(fit, model, x, seed=seed, progress=False))
    return used(np.asarray(found.transform()).sum(0)), float(found.log_likelihood(fresh).mean()), seconds


def fit_graph(seed: int, size: int, kind: Any) -> tuple[float, float, float]:
    x, hidden = planted_graph(np.random.default_rng(seed))
    model = kind(num_blocks=size, num_nodes=100, directed=False)
    run = partial(fit, model, np.where(hidden, np.nan, x), seed=seed, progress=False)
    found, seconds = cpu_seconds(run)
    mean, eta = found.transform().double().numpy(), found.params["edge_probability"].double().numpy()
    probability = (mean @ eta @ mean.T).clip(1e-12, 1 - 1e-12)
    score = np.where(x > 0, np.log(probability), np.log1p(-probability))[np.triu(hidden, 1)].mean()
    return used(mean.sum(0)), float(score), seconds


def fit_documents(seed: int, size: int) -> tuple[float, float, float]:
    draw = hdp(seed, 5)
    run = partial(fit, LDA(num_topics=size, vocabulary_size=WORDS), draw.x, seed=seed, progress=False)
    found, seconds = cpu_seconds(run)
    return topics_used(found, draw.x), -float(np.log(perplexity(found, draw.fresh))), seconds


#: Model -> true number, and (used, held-out log probability, CPU seconds) by seed and number.
OTHERS: dict[str, tuple[int, Callable[[int, int], tuple[float, float, float]]]] = {
    "InfiniteSBM": (4, partial(fit_graph, kind=InfiniteSBM)),
    "SBM": (4, partial(fit_graph, kind=SBM)),
    "MixtureOfBernoullis": (4, partial(fit_rows, sparse=False)),
    "MixtureOfBernoullis, proportions Dirichlet(1 / K)": (4, partial(fit_rows, sparse=True)),
    "LDA": (5, fit_documents),
}


def of_others(seeds: int, times: tuple[int, ...]) -> Iterator[list[Any]]:
    for name, (true, run) in OTHERS.items():
        for factor in times:
            lines = [run(seed, factor * true) for seed in range(seeds)]
            count, score, seconds = (list(map(float, one)) for one in zip(*lines, strict=True))
            yield [name, true, factor * true, spread(count), spread(score), float(np.median(seconds))]


def main() -> None:
    smoke = bool(os.environ.get("PPL_SMOKE"))
    seeds = 1 if smoke else _SEEDS
    quiet_and_single_threaded()
    topics = Table("HDP", ("documents", "method", "at most", "used", "held-out perplexity", "CPU s"))
    columns = ("default of", "true number", "given", "used", "held-out log probability", "CPU s")
    note = "Held-out: a dyad, a row, a token of the other half of a document. IRM is without a limit of clusters."
    others = Table("Other models", columns, note=note)
    for table, lines in (
        (others, of_others(seeds, _TIMES[:1] if smoke else _TIMES)),
        (topics, of_topics(seeds, _TOPICS[:1] if smoke else _TOPICS)),
    ):
        for line in lines:
            table.rows.append(line)
            print(line, flush=True)
    write_report("room", "Room to spare", [topics, others], intro=INTRO, folder=QUICK if smoke else RESULTS)


if __name__ == "__main__":
    main()
