"""How fast are topics found, and how good are they? LDA by every method; tokens a second of Gibbs sampling.

    python -m benchmarks.speed.topics_speed [--peer-python EXE] [--quick]

--peer-python is a Python with tomotopy, whose sampler is timed in the same run; without it, it is left out. Writes
``benchmarks/results/topics_speed.{md,json}``. All times are CPU seconds of one thread. The corpus is drawn from LDA
(V = 2000, K = 20, 2000 + 500 documents of about 100 tokens, alpha = .1, gamma = .05). Perplexity: document completion
with one deterministic fold-in for all (``_topic_evaluator``), natural logarithm, per token.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality._common import quiet_and_single_threaded
from benchmarks.speed import _topic_ours as ours
from benchmarks.speed._topic_evaluator import Corpus, first_at_most, halved, perplexity
from benchmarks.speed._topic_peers import FIRST
from custom_inference import CollapsedGibbs
from ppl_models import datasets
from ppl_models.data import sparse as _sparse

LEVEL = 600.0
COLUMNS = ("method", "perplexity, min / median / max", f"CPU s to {LEVEL:.0f}", "CPU s a fit", "target", "met")


def generated_corpus() -> Corpus:
    drawn = datasets.topic_corpus(seed=0)
    test = datasets.sample_lda(drawn.truth["topic"], 500, alpha=0.1, length=100, min_length=20, seed=1)
    observed, held_out = halved(_sparse.to_scipy(test.data.x))
    return Corpus(_sparse.to_scipy(drawn.data.x), observed, held_out, 0.1, 0.05, drawn.truth["topic"].numpy())


class Score(NamedTuple):
    """Of one run: perplexity at its end, CPU seconds until LEVEL (None: never) and of the whole."""

    perplexity: float
    reached: float | None
    seconds: float


def score(topics: Sequence[Any], seconds: Sequence[float], last: Any, total: float, corpus: Corpus) -> Score:
    known: dict[int, float] = {}

    def at(i: int) -> float:
        if i not in known:
            known[i] = perplexity(topics[i], corpus)
        return known[i]

    first = first_at_most(LEVEL, at, len(topics))
    final = perplexity(last, corpus)
    return Score(final, None if first is None else seconds[first], total)


def spread(values: Sequence[float], digits: int) -> str:
    return " / ".join(f"{v:.{digits}f}" for v in (np.min(values), np.median(values), np.max(values)))


def reached(scores: Sequence[Score]) -> str:
    """Median over the runs, counting those that never got there as longest."""
    times = sorted(np.inf if s.reached is None else s.reached for s in scores)
    middle, never = float(np.median(times)), sum(not np.isfinite(t) for t in times)
    text = f"{middle:.2f}" if np.isfinite(middle) else "never"
    return text + (f" ({never} of {len(times)} never)" if never and np.isfinite(middle) else "")


def level_time(scores: Sequence[Score]) -> float:
    return float(np.median([np.inf if s.reached is None else s.reached for s in scores]))


# ----- ours -----------------------------------------------------------------------------------------------------------


def default_target(scores: Sequence[Score]) -> tuple[str, bool]:
    values = [s.perplexity for s in scores]
    met = float(np.median(values)) <= 575 and max(values) <= 595 and level_time(scores) <= 0.7
    return "median <= 575, worst <= 595, 600 in <= 0.7 s", met


def averaged_target(scores: Sequence[Score]) -> tuple[str, bool]:
    share = np.mean([s.perplexity <= 560 for s in scores])
    return "<= 560 in all seeds", bool(share == 1)


TARGETS: dict[str, Callable[[Sequence[Score]], tuple[str, bool]]] = {
    "fit(model, x), the default": default_target,
    "Gibbs, mean of 50 samples": averaged_target,
}


def ours_table(corpus: Corpus, seeds: int) -> Table:
    data, table = ours.data_of(corpus), Table(f"Methods of this project, {seeds} seeds", COLUMNS)
    truth = perplexity(corpus.truth, corpus)
    unigram = perplexity(np.asarray(corpus.train.sum(0), dtype=float) + corpus.gamma, corpus)
    table.note = (
        f"Unigram model: {unigram:.0f}; the true topics: {truth:.0f}. CPU s to {LEVEL:.0f}: from the call to the first "
        "M step (of any start of the search) or sweep whose topics score no more; median over the seeds. Compiling is "
        "not counted: a small fit comes before."
    )
    for name, method in ours.METHODS.items():
        warm_up(method, corpus)
        scores = []
        for seed in range(seeds):
            call, sweeps = (lambda seed=seed: method(corpus, data, seed)), name.startswith("Gibbs")  # noqa: B023
            found = ours.timed(call, len(data), sweeps=sweeps)
            topic = found.fit.params["topic"].numpy()
            scores.append(score(found.trace.topics, found.trace.seconds, topic, found.seconds, corpus))
        target, met = TARGETS.get(name, lambda _: ("", None))(scores)
        fits = spread([s.seconds for s in scores], 2)
        row = [name, spread([s.perplexity for s in scores], 0), reached(scores), fits]
        table.rows.append([*row, target, "" if met is None else "yes" if met else "no"])
        print(table.rows[-1], flush=True)
    return table


def warm_up(method: Callable[..., Any], corpus: Corpus) -> None:
    """Compiles what is compiled."""
    small = corpus._replace(train=corpus.train[:50], truth=corpus.truth[:3])
    method(small, ours.data_of(small), 0)


def gibbs_rate(corpus: Corpus, size: int, sweeps: int) -> float:
    """Tokens a second: the difference of two runs, so that preparing does not count."""
    data, model = ours.data_of(corpus), ours.lda_of(corpus, size)

    def run(warmup: int) -> float:
        method = CollapsedGibbs(chains=1, warmup=warmup, num_samples=1, thin=1)
        return ours.timed(lambda: method.fit(model, data, seed=0, progress=False), len(data)).seconds

    run(5)
    short, long = run(FIRST), run(FIRST + sweeps)
    return corpus.num_tokens * sweeps / (long - short)


def peer_rate(python: Path, corpus: Corpus, size: int, sweeps: int) -> float:
    """tomotopy's tokens a second, in a process of its own. Raises RuntimeError with its last words where it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "corpus.npz"
        corpus.save(source)
        command = [str(python), "-m", "benchmarks.speed._topic_peers", str(source), str(size), str(sweeps)]
        root = Path(__file__).resolve().parents[2]
        done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"tomotopy failed: {(done.stderr or done.stdout).strip().splitlines()[-3:]}")
        return corpus.num_tokens * sweeps / json.loads(done.stdout.splitlines()[-1])["seconds"]


def gibbs_table(corpus: Corpus, python: Path | None, sizes: Sequence[int], sweeps: int) -> Table:
    table = Table(
        "Gibbs sampling: tokens a second",
        ["K", "ours", "tomotopy", "ratio", "target", "met"],
        note=f"{sweeps} sweeps of one corpus in the same run, without preparation and the first {FIRST} sweeps.",
    )
    for size in sizes:
        rate, peer = gibbs_rate(corpus, size, sweeps), None
        if python is not None:
            peer = peer_rate(python, corpus, size, sweeps)
        target, met = ("", "") if peer is None else (">= tomotopy's", "yes" if rate >= peer else "no")
        table.rows.append([size, f"{rate:.3g}", peer and f"{peer:.3g}", peer and f"{rate / peer:.2f}", target, met])
        print(table.rows[-1], flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", type=Path)
    parser.add_argument("--quick", action="store_true", help="one seed, few sweeps: does it run?")
    arguments = parser.parse_args()
    quiet_and_single_threaded()
    corpus, quick = generated_corpus(), arguments.quick
    tables = [
        ours_table(corpus, 1 if quick else 3),
        gibbs_table(corpus, arguments.peer_python, (20,) if quick else (20, 200), 20 if quick else 100),
    ]
    folder = QUICK if quick else RESULTS
    print(write_report("topics_speed", "Topics: speed and quality", tables, intro=INTRO, folder=folder))


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
