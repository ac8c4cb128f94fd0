"""How fast are topics found, and how good are they? LDA by every method beside other programs, with one evaluator.

    python -m benchmarks.speed.topics_speed [--peer-python EXE] [--parts ours passes gibbs peers] [--quick]

--peer-python is a Python with scikit-learn, gensim, tomotopy and lda installed; without it the peers are skipped.
Writes ``benchmarks/results/topics_speed.{md,json}``; parts that are not run keep their tables. All times are CPU
seconds of one thread. The corpus is drawn from LDA (V = 2000, K = 20, 2000 + 500 documents of about 100 tokens,
alpha = .1, gamma = .05), or read from --corpus FILE. Perplexity: document completion with one deterministic fold-in for
all (``_topic_evaluator``), natural logarithm, per token.
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

from benchmarks._report import Table, read_tables, write_report
from benchmarks.quality._common import quiet_and_single_threaded
from benchmarks.speed import _topic_ours as ours
from benchmarks.speed._rates import cpu_seconds
from benchmarks.speed._topic_evaluator import Corpus, first_at_most, halved, perplexity
from benchmarks.speed._topic_peers import PROGRAMS
from custom_inference import CollapsedGibbs, VariationalEM
from ppl_models import datasets
from ppl_models.data import sparse as _sparse

LEVEL = 600.0
COLUMNS = ("method", "perplexity, min / median / max", f"CPU s to {LEVEL:.0f}", "CPU s a fit", "target", "met")
NAMES = {"ours": "Methods", "passes": "A pass", "gibbs": "Gibbs sampling", "peers": "Other programs"}


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
    return "<= 560 in 9 of 10 seeds", bool(share >= 0.9)


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


def passes_table(corpus: Corpus, python: Path | None) -> Table:
    """Seconds of a pass over the corpus, and how far that is from moving its bytes."""
    data, bandwidth = ours.data_of(corpus), copy_bandwidth()
    cells, tokens, size = corpus.train.nnz, corpus.num_tokens, len(corpus.truth)
    table = Table(
        "A pass over the corpus",
        ["method", "CPU s a pass", "tokens/s", "scikit-learn's over it", "target", "met", "floor, s", "times floor"],
        note=(
            f"Median of the passes of a run from a random start; {cells} cells, {tokens} tokens, K = {size}; "
            "scikit-learn: mean of 30. Floor: every cell (Gibbs: token) reads index, count and a row of K numbers, and "
            f"adds to a row (Gibbs: changes two numbers), at a copy's {bandwidth / 1e9:.1f} GB/s."
        ),
    )
    peer = None
    if python is not None:
        found = run_peer(python, "scikit-learn, batch VB", corpus, 0, passes=30)
        peer = float(found["seconds"][-1] / found["passes"][-1])
        table.rows.append(["scikit-learn, batch VB", f"{peer:.4f}", f"{tokens / peer:.2g}", *[""] * 5])

    def line(name: str, each: float, floor: float, least: float | None) -> None:
        ratio = None if peer is None else peer / each
        met = "" if ratio is None or least is None else "yes" if ratio >= least else "no"
        goal = "" if least is None else f">= {least:g}"
        shown = ["" if ratio is None else f"{ratio:.1f}", goal, met, f"{floor:.5f}", f"{each / floor:.1f}"]
        table.rows.append([name, f"{each:.4f}", f"{tokens / each:.2g}", *shown])
        print(table.rows[-1], flush=True)

    floor = cells * (8 + 8 + 3 * size * 8) / bandwidth
    for name, guide, batch, least in (
        ("VB, batch", "vb", None, 5.0),
        ("CVB0", "cvb0", None, 5.0),
        ("MAP", "map", None, None),
        ("VB, online, batch 128", "vb", 128, None),
    ):
        passes = 30 if batch is None else 8
        method = VariationalEM(guide=guide, search=None, batch_size=batch, max_iterations=passes, accelerate=None)
        warm_up(lambda c, x, s, method=method: method.fit(ours.lda_of(c), x, seed=s, progress=False), corpus)
        found = ours.timed(lambda: method.fit(ours.lda_of(corpus), data, seed=0, progress=False), len(data))  # noqa: B023
        each = np.diff(found.trace.seconds) / np.diff(found.trace.passes)
        line(name, float(np.median(each)), floor, least)
    each = tokens / gibbs_rate(corpus, size, 100)
    line("Gibbs", each, tokens * (4 + 8 + 4 * size + 4 * 4) / bandwidth, None)
    return table


def copy_bandwidth() -> float:
    """Bytes a second, those read and those written, of a copy that no cache holds."""
    source = np.ones(2**25)
    target = np.empty_like(source)
    return 2 * source.nbytes / cpu_seconds(lambda: np.copyto(target, source), repeats=5)


def gibbs_rate(corpus: Corpus, size: int, sweeps: int) -> float:
    """Tokens a second: the difference of two runs, so that preparing does not count."""
    data, model = ours.data_of(corpus), ours.lda_of(corpus, size)

    def run(warmup: int) -> float:
        method = CollapsedGibbs(chains=1, warmup=warmup, num_samples=1, thin=1)
        return ours.timed(lambda: method.fit(model, data, seed=0, progress=False), len(data)).seconds

    run(5)
    short, long = run(20), run(20 + sweeps)
    return corpus.num_tokens * sweeps / (long - short)


def gibbs_table(corpus: Corpus, python: Path | None, sizes: Sequence[int], sweeps: int) -> Table:
    table = Table(
        "Gibbs sampling: tokens a second",
        ["K", "ours", "tomotopy", "ratio", "target", "met"],
        note="Sweeps of one corpus in the same run, without preparation and the first 20 sweeps.",
    )
    for size in sizes:
        rate, peer = gibbs_rate(corpus, size, sweeps), None
        if python is not None:
            found = run_peer(python, "tomotopy, Gibbs", corpus, 0, passes=20 + sweeps, size=size, average=False)
            done, at = found["passes"], found["seconds"]
            start = int(np.searchsorted(done, 20))
            peer = corpus.num_tokens * float((done[-1] - done[start]) / (at[-1] - at[start]))
        target, met = ("", "") if peer is None else (">= tomotopy's", "yes" if rate >= peer else "no")
        table.rows.append([size, f"{rate:.3g}", peer and f"{peer:.3g}", peer and f"{rate / peer:.2f}", target, met])
        print(table.rows[-1], flush=True)
    return table


# ----- peers ----------------------------------------------------------------------------------------------------------


def run_peer(
    python: Path, program: str, corpus: Corpus, seed: int, *, passes: int = 0, size: int = 0, average: bool = True
) -> dict[str, Any]:
    """What the program found, run in its own process. Raises RuntimeError with its last words where it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "corpus.npz", Path(folder) / "found.npz"
        corpus.save(source)
        command = [str(python), "-m", "benchmarks.speed._topic_peers", program, str(source), str(target)]
        command += ["--seed", str(seed), *(["--passes", str(passes)] if passes else [])]
        command += ["--num-topics", str(size)] if size else []
        command += [] if average else ["--no-average"]
        root = Path(__file__).resolve().parents[2]
        done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{program} failed: {(done.stderr or done.stdout).strip().splitlines()[-3:]}")
        with np.load(target, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}


def peers_table(corpus: Corpus, python: Path, seeds: int, quick: bool) -> Table:
    table = Table(
        f"Other programs, {seeds} seeds",
        ["program", "passes", "CPU s a pass", "tokens/s", "perplexity", f"CPU s to {LEVEL:.0f}", "CPU s in all"],
        note=(
            "Each with the true alpha, gamma and K, otherwise its defaults. Snapshots after passes in steps of 1.3; "
            "the clock stops while they are taken, and building the program's own corpus is not counted."
        ),
    )
    for program in PROGRAMS:
        passes = 4 if quick else 0
        runs = [run_peer(python, program, corpus, seed, passes=passes, average=not quick) for seed in range(seeds)]
        scores = [score(r["topic"], r["seconds"], r["topic"][-1], float(r["total"]), corpus) for r in runs]
        each = float(np.median([r["seconds"][-1] / r["passes"][-1] for r in runs]))
        name = f"{program} ({json.loads(str(runs[0]['version']))})"
        start = [name, round(float(runs[0]["passes"][-1])), f"{each:.4f}", f"{corpus.num_tokens / each:.2g}"]
        ends = [spread([s.perplexity for s in scores], 0), reached(scores), spread([s.seconds for s in scores], 1)]
        table.rows.append([*start, *ends])
        print(table.rows[-1], flush=True)
        if "averaged" in runs[0]:
            values = [perplexity(r["averaged"], corpus) for r in runs]
            whole = spread([float(r["averaged_seconds"]) for r in runs], 1)
            table.rows.append([f"{name}, mean of 50 samples", "", "", "", spread(values, 0), "", whole])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", type=Path)
    parser.add_argument("--parts", nargs="+", default=list(NAMES), choices=list(NAMES))
    parser.add_argument("--seeds", type=int, default=10, help="of this project's methods")
    parser.add_argument("--corpus", type=Path, help="an archive of sparse parts (_topic_evaluator.Corpus.load)")
    parser.add_argument("--quick", action="store_true", help="one seed, few passes: does it run?")
    arguments = parser.parse_args()
    quiet_and_single_threaded()
    corpus = Corpus.load(arguments.corpus) if arguments.corpus else generated_corpus()
    python, quick, tables = arguments.peer_python, arguments.quick, read_tables("topics_speed")
    sizes = (20,) if quick else (20, 50, 100, 200)
    parts: dict[str, Callable[[], Table]] = {
        "ours": lambda: ours_table(corpus, 1 if quick else arguments.seeds),
        "passes": lambda: passes_table(corpus, python),
        "gibbs": lambda: gibbs_table(corpus, python, sizes, 20 if quick else 100),
    }
    if python is not None:
        parts["peers"] = lambda: peers_table(corpus, python, 1 if quick else 3, quick)
    for part in [name for name in arguments.parts if name in parts]:
        fresh = parts[part]()
        tables = {title: table for title, table in tables.items() if not title.startswith(NAMES[part])}
        tables[fresh.title] = fresh
        ordered = sorted(tables.values(), key=lambda table: [*map(table.title.startswith, NAMES.values())].index(True))
        path = write_report("topics_speed", "Topics: speed and quality", ordered, intro=INTRO)
    print(path)


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
