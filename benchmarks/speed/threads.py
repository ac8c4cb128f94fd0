"""Default fits with one thread and with two: wall time, CPU time, and that the result is the same.

    python -m benchmarks.speed.threads [--models "LDA;CTM"] [--repeats 3] [--quick]

Writes ``benchmarks/results/threads.{md,json}``; models not measured again keep what the report had. Every fit is
a process of its own, after a small one of the same kind that compiles. The two take turns; medians of the repeats.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch

from benchmarks import _processes
from benchmarks._report import QUICK, RESULTS, Table, read_tables, write_report
from custom_inference import fit
from ppl_models import CTM, IRM, LDA, MMSB, NOCA, PMF, SBM, MixtureOfBernoullis, relations
from ppl_models.datasets import overlapping_boxes, sample_mmsb, sample_ratings, sample_sbm

TITLE = "Fits"
COLUMNS = ("model", "size", "1 thread, s", "2 threads, s", "times faster", "CPU s, 1", "CPU s, 2", "same result")
THREADS = (1, 2)
Problem: TypeAlias = tuple[Any, Any]
_QUICK = 0.05


def _corpus(documents: int, length: int, words: int, topics: int) -> Any:
    rng = np.random.default_rng(0)
    topic, share = rng.dirichlet(np.full(words, 0.02), topics), rng.dirichlet(np.full(topics, 0.1), documents)
    return torch.as_tensor(np.stack([rng.multinomial(length, one @ topic) for one in share])).double().to_sparse_csr()


def _lda(share: float) -> Problem:
    model = LDA(num_topics=50, vocabulary_size=8000).with_concentration(alpha=0.1, gamma=0.02)
    return model, _corpus(int(18_000 * share), 120, 8000, 50)


def _ctm(share: float) -> Problem:
    return CTM(num_topics=10, vocabulary_size=2000), _corpus(int(12_000 * share), 100, 2000, 10)


def _mmsb(share: float) -> Problem:
    nodes = max(int(5000 * share), 60)
    drawn = sample_mmsb((np.full((6, 6), 1.0) + 40 * np.eye(6)) / nodes, nodes, directed=False, seed=0)
    return MMSB(num_blocks=6, num_nodes=nodes, directed=False), drawn.data


def _sbm(share: float) -> Problem:
    nodes = max(int(200_000 * share), 200)
    rate = (np.full((8, 8), 1.0) + 15 * np.eye(8)) * 20 * 8 / 23 / nodes
    drawn = sample_sbm(rate, nodes, directed=False, seed=0)
    return SBM(num_blocks=8, num_nodes=nodes, directed=False), drawn.data


def _pmf(share: float) -> Problem:
    data = sample_ratings(int(40_000 * share), 4000, 5, density=0.05, seed=0).data
    return PMF.for_data(data, 10), data


def _irm(share: float) -> Problem:
    size, rng = max(int(800 * share), 30), np.random.default_rng(0)
    label = rng.integers(8, size=size)
    x = {"likes": (rng.random((size, size)) < rng.beta(0.4, 0.6, (8, 8))[label][:, label]).astype(float)}
    axes = {"likes": ("person", "person")}
    data = relations(x, axes, self_loops=True)
    return IRM.for_data(data), data


def _mixture(share: float) -> Problem:
    rng = np.random.default_rng(0)
    chance = rng.beta(0.5, 0.5, (20, 100))
    x = (rng.random((int(500_000 * share), 100)) < chance[rng.integers(20, size=int(500_000 * share))]).astype(float)
    return MixtureOfBernoullis(num_components=20, num_features=100), x


def _noca(share: float) -> Problem:
    data = overlapping_boxes(int(10_000 * share), seed=0).data
    return NOCA(num_components=16, num_features=data.num_features), data


#: What is fitted, its size in words, and the site whose values are compared.
FITS: dict[str, tuple[Callable[[float], Problem], str, str]] = {
    "LDA": (_lda, "18,000 texts of 120 of 8,000 words, 50 topics", "topic"),
    "CTM": (_ctm, "12,000 texts of 100 of 2,000 words, 10 topics", "topic"),
    "MMSB": (_mmsb, "5,000 nodes, 6 blocks", "edge_probability"),
    "SBM": (_sbm, "200,000 nodes of degree 20, 8 blocks", "edge_probability"),
    "PMF": (_pmf, "8 million ratings, 10 factors", "item"),
    "IRM": (_irm, "800 entities, one relation", "cluster_person"),
    "mixture of Bernoullis": (_mixture, "500,000 rows of 100, 20 classes", "probability"),
    "NOCA": (_noca, "10,000 images, 16 sources", "loading"),
}


def fit_here(name: str, threads: int, share: float) -> dict[str, Any]:
    """Fit in this process, after a small fit; return the seconds, and what tells two results apart: a digest of the
    values of a site, and their sum with random weights."""
    make, _, site = FITS[name]
    torch.set_num_threads(1)  # whose rounding data do not depend on the other number
    small, (model, x) = make(_QUICK / 2), make(share)
    torch.set_num_threads(threads)
    fit(*small, progress=False)
    begin, spent = time.perf_counter(), time.process_time()
    found = fit(model, x, progress=False)
    wall, spent = time.perf_counter() - begin, time.process_time() - spent
    values = np.ascontiguousarray(found.params[site], dtype=float)
    projected = float((values * np.random.default_rng(0).standard_normal(values.shape)).sum())
    return {"wall": wall, "cpu": spent, "value": projected, "bits": hashlib.sha256(values.tobytes()).hexdigest()}


def measure(name: str, repeats: int, share: float) -> list[Any]:
    """Return the row of a model."""
    runs: dict[int, list[dict[str, Any]]] = {threads: [] for threads in THREADS}
    for _ in range(repeats):
        for threads in THREADS:
            arguments = "--one", name, "--threads", str(threads), "--share", str(share)
            settings = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
            runs[threads].append(_processes.in_a_process(name, "benchmarks.speed.threads", *arguments, **settings))
    wall, cpu = (
        {t: statistics.median(run[key] for run in each) for t, each in runs.items()} for key in ("wall", "cpu")
    )
    values = [run["value"] for each in runs.values() for run in each]
    apart = (max(values) - min(values)) / max(map(abs, values))
    same = "to the bit" if len({run["bits"] for each in runs.values() for run in each}) == 1 else f"to {apart:.0e}"
    row = [name, FITS[name][1], wall[1], wall[2], wall[1] / wall[2], cpu[1], cpu[2], same]
    return [f"{value:.2f}" if isinstance(value, float) else value for value in row]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=";".join(FITS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--share", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(fit_here(given.one, given.threads, given.share)))
        sys.exit()
    folder, share = (QUICK, _QUICK) if given.quick else (RESULTS, 1.0)
    rows = {row[0]: row for row in read_tables("threads", folder=folder).get(TITLE, Table(TITLE)).rows}
    for name in given.models.split(";"):
        rows[name] = measure(name, 1 if given.quick else given.repeats, share)
        print(rows[name], flush=True)
    table = Table(TITLE, COLUMNS, [rows[name] for name in FITS if name in rows])
    assert __doc__ is not None
    write_report("threads", "Threads", [table], intro=__doc__.partition("\n\n")[2], folder=folder)


if __name__ == "__main__":
    main()
