"""Did a change cost speed? Whole default fits of this revision and of another one, taking turns.

    git worktree add ../before REVISION
    python -m benchmarks.speed.revisions ../before [--other-python EXE] [--runs 7] [--problems noca lda ...]

Writes ``benchmarks/results/revisions.{md,json}``. Each revision has one process of one thread. A seed is fitted by one
and then the other, the order changing from seed to seed, after a fit that compiles. MMSB needs PPL_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._report import Table, write_report
from benchmarks.quality._common import quiet_and_single_threaded
from benchmarks.quality._graph_data import KnownGraph, lfr
from benchmarks.speed._graph_problem import planted
from benchmarks.speed._image_problem import draw, true_parameters
from ppl_models import datasets
from ppl_models.data.sparse import to_scipy

ROOT = Path(__file__).resolve().parents[2]
#: A median ratio up to this is no loss.
MOST = 1.05


def _graph(model: str, known: KnownGraph, size: int) -> dict[str, Any]:
    return {
        "model": model,
        "x": known.adjacency.toarray(),
        "_num_blocks": size,
        "_num_nodes": known.num_nodes,
        "_directed": False,
    }


def _rows(model: str, x: Any, size: int) -> dict[str, Any]:
    return {"model": model, "x": np.asarray(x), "_num_components": size, "_num_features": x.shape[1]}


def _lda() -> dict[str, Any]:
    counts = to_scipy(datasets.topic_corpus(seed=0).data.x).toarray()
    return {"model": "LDA", "x": counts, "_num_topics": 20, "_vocabulary_size": counts.shape[1]}


PROBLEMS: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "noca": ("NOCA, IMG: 2000 rows of 64, K = 8", lambda: _rows("NOCA", draw(true_parameters()[0], 0), 8)),
    "cvq": ("CVQ, bars: 2000 rows of 64, K = 16", lambda: _rows("CVQ", datasets.bars().x, 16)),
    "aspects": (
        "aspect Bernoulli, 2000 images of 64, K = 8",
        lambda: _rows("AspectBernoulli", datasets.aspect_images().x, 8),
    ),
    "lda": ("LDA, 2000 documents of about 100 of 2000 words, K = 20", _lda),
    "sbm": ("SBM, 1000 nodes of degree 20, K = 8", lambda: _graph("SBM", planted(1000, 20, 8, 0), 8)),
    "mmsb": ("MMSB, LFR: 1000 nodes, K = 28", lambda: _graph("MMSB", lfr(Path(os.environ["PPL_DATA"])), 28)),
}


class Worker:
    """A process that fits in the environment of one checkout."""

    def __init__(self, checkout: Path, python: str, folder: Path):
        script = Path(__file__).with_name("_revision_worker.py")
        single = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(checkout)}
        self.process = subprocess.Popen(
            [python, "-P", str(script), str(folder)],
            cwd=checkout,
            env={**os.environ, **single},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def fit(self, problem: str, seed: int) -> dict[str, float]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{problem} {seed}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"the fit of {problem} failed; its error is above")
        return json.loads(answer)


def line(problem: str, before: Worker, after: Worker, runs: int) -> list[Any]:
    for worker in (before, after):
        worker.fit(problem, 0)
    pairs = []
    for seed in range(runs):
        order = (before, after) if seed % 2 else (after, before)
        found = {worker: worker.fit(problem, seed) for worker in order}
        pairs.append((found[before], found[after]))
    seconds = np.array([[one["seconds"] for one in pair] for pair in pairs])
    apart = max(abs(one["objective"] - two["objective"]) / abs(one["objective"]) for one, two in pairs)
    then, now = np.median(seconds, 0)
    return [
        PROBLEMS[problem][0],
        f"{then:.3f}",
        f"{now:.3f}",
        f"{now / then:.3f}",
        "yes" if now <= MOST * then else "no",
        f"{apart:.1e}",
    ]


def revision(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "log", "-1", "--format=%h of %cs"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="a checkout of the revision to compare with")
    parser.add_argument("--other-python", default=sys.executable, help="a Python with that revision's dependencies")
    parser.add_argument("--runs", type=int, default=7)
    known = [name for name in PROBLEMS if name != "mmsb" or os.environ.get("PPL_DATA")]
    parser.add_argument("--problems", nargs="+", choices=list(PROBLEMS), default=known)
    arguments = parser.parse_args()
    quiet_and_single_threaded()
    table = Table(
        "Default fits",
        ["fit(model, x)", "before: CPU s", "after: CPU s", "ratio", f"at most {MOST}", "objectives apart"],
        note=f"{revision(arguments.other)} before, {revision(ROOT)} after; medians of {arguments.runs} seeds, paired. "
        "Last column: the largest difference between the two final objectives of a seed, relative.",
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for problem in arguments.problems:
            np.savez(folder / f"{problem}.npz", **PROBLEMS[problem][1]())
        before = Worker(arguments.other.resolve(), arguments.other_python, folder)
        after = Worker(ROOT, sys.executable, folder)
        for problem in arguments.problems:
            table.rows.append(line(problem, before, after, arguments.runs))
            print(table.rows[-1], flush=True)
    write_report("revisions", "Default fits before and after a change", [table])


if __name__ == "__main__":
    main()
