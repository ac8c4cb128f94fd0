"""Online and batch variational Bayes: held-out perplexity against documents seen (Murphy, section 27.3.7, Fig. 27.9).

    python -m benchmarks.quality.topics_online [--quick] [--data DIR]

Writes ``benchmarks/results/topics_online.{md,json}`` and a figure. The source's figure is of Wikipedia, up to millions
of documents; here are a corpus drawn from LDA and NIPS papers. All runs begin at one random start, and no E step
remembers the documents' topics from before (algorithm 27.1, line 14). Online: rho_t = (t + 2)^-.6.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality._common import add_data_option, quiet_and_single_threaded, require_data
from benchmarks.quality._topic_data import Documents, generated, nips
from benchmarks.quality._topic_figures import lines, save
from benchmarks.speed._topic_evaluator import Corpus, halved, perplexity
from benchmarks.speed._topic_trace import Trace, recorded
from custom_inference.core.engine import EStep
from custom_inference.em.loop import run_em
from custom_inference.em.stepwise import run_stepwise
from custom_inference.families.topics.vb import LdaVB, TopicPosteriors
from ppl_models import LDA

ALPHA, GAMMA = 0.1, 0.05


class Curve(NamedTuple):
    """Perplexity after so many documents and CPU seconds."""

    documents: list[float]
    seconds: list[float]
    perplexity: list[float]


@dataclass(frozen=True, kw_only=True)
class FreshVB(LdaVB):
    """Every E step starts over at equal proportions, as algorithm 27.1 has it (line 14): no memory of the documents."""

    def e_step(
        self, model: Any, state: Any, rows: Any, warm: dict[str, torch.Tensor] | None = None, **settings: Any
    ) -> EStep:
        del warm
        return super().e_step(model, state, rows, None, **settings)


def random_start(shape: tuple[int, int], seed: int) -> TopicPosteriors:
    """Gamma(100, 1/100), as Hoffman, Blei & Bach (2010) start: topics that differ by a tenth."""
    drawn = np.random.default_rng(seed).gamma(100.0, 0.01, shape)
    return TopicPosteriors(torch.as_tensor(drawn))


def curve(corpus: Corpus, size: int, batch: int | None, passes: int, seed: int = 0) -> Curve:
    number, words = corpus.train.shape
    model = LDA(num_topics=size, vocabulary_size=words).with_concentration(alpha=ALPHA, gamma=GAMMA)
    steps = FreshVB()
    rows, start = steps.rows(model, model.prepare(corpus.train, dtype=torch.float64)), random_start((size, words), seed)
    settings: dict[str, Any] = {"max_iterations": passes, "tolerance": 1e-9}
    settings["generator"] = torch.Generator().manual_seed(seed)
    with recorded(Trace(number), FreshVB) as trace, torch.no_grad():
        if batch is None:
            run_em(steps, model, rows, start, **settings)
        else:
            run_stepwise(steps, model, rows, start, batch_size=batch, **settings)
    # What stepwise EM does after its passes, two whole iterations, is not part of the online method.
    each = np.diff(trace.passes, prepend=0.0) * number
    steps_made = int((each < (batch or number) + 0.5).sum())
    chosen = sorted({min(steps_made - 1, round(1.35**i) - 1) for i in range(60)})
    scores = [perplexity(trace.topics[i], corpus) for i in chosen]
    return Curve([trace.passes[i] * number for i in chosen], [trace.seconds[i] for i in chosen], scores)


def first_below(found: Curve, level: float) -> tuple[float, float] | None:
    """Documents and CPU seconds at the first state that scores no more than ``level``."""
    at = next((i for i, value in enumerate(found.perplexity) if value <= level), None)
    return None if at is None else (found.documents[at], found.seconds[at])


def corpus_table(documents: Documents, size: int, batches: list[int], passes: tuple[int, int]) -> tuple[Table, dict]:
    observed, held_out = halved(documents.test.astype(np.int64))
    corpus = Corpus(documents.train, observed, held_out, ALPHA, GAMMA, np.ones((size, 1)))
    found = {"batch": curve(corpus, size, None, passes[0])}
    for batch in batches:
        found[f"online, batches of {batch}"] = curve(corpus, size, batch, passes[1])
    number = documents.train.shape[0]
    level = 1.05 * min(found["batch"].perplexity)
    table = Table(
        f"{documents.title}, K = {size}",
        ["method", "after a pass", "at the end", "passes", f"documents to {level:.0f}", f"CPU s to {level:.0f}", "all"],
        note=(
            f"Perplexity per token in document completion. {level:.0f}: 5% above the best of batch VB. {documents.cut}"
            f"{'.' if documents.cut else ''} alpha = {ALPHA}, gamma = {GAMMA}."
        ),
    )
    for name, one in found.items():
        once = one.perplexity[max(i for i, seen in enumerate(one.documents) if i == 0 or seen <= number + 0.5)]
        reached = first_below(one, level)
        shown = ("never", "never") if reached is None else (f"{reached[0]:.0f}", f"{reached[1]:.2f}")
        ends = [f"{one.perplexity[-1]:.0f}", f"{one.documents[-1] / number:.0f}", *shown, f"{one.seconds[-1]:.1f}"]
        table.rows.append([name, f"{once:.0f}", *ends])
        print(table.rows[-1], flush=True)
    return table, {name: (one.documents, one.perplexity) for name, one in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few documents and passes: does it run?")
    add_data_option(parser)
    arguments = parser.parse_args()
    folder = require_data(parser, arguments)
    quiet_and_single_threaded()
    quick = arguments.quick
    results = QUICK if quick else RESULTS
    problems = [
        (generated(1000 if quick else 20_000), 20, [64, 256, 1024], (4, 1) if quick else (30, 3)),
        (nips(folder, 500 if quick else 2000), 20, [64, 256], (4, 1) if quick else (40, 10)),
    ]
    tables, panels = [], {}
    for documents, size, batches, passes in problems:
        table, found = corpus_table(documents, size, batches, passes)
        tables.append(table)
        panels[documents.title] = found
    figure = lines(panels, "documents seen", "perplexity of held-out tokens", ceiling=3.0)
    tables[0].figures = [save(figure, results, "topics_online")]
    print(write_report("topics_online", "Online and batch variational Bayes", tables, intro=INTRO, folder=results))


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
