"""Topics that change over time: recovery on synthetic corpora, completion of addresses on the state of the union.

    python -m benchmarks.quality.dynamic_topics [--data DIR] [--quick] [--only speeches] [--lines "DTM;static LDA"]

Lines that are not measured again keep what the report had of them. CPU seconds are of one thread and of the fit alone,
the second of two where it compiles. PPL_SMOKE=1 is --quick.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks._report import QUICK, RESULTS, Table, read_tables, write_report
from benchmarks.quality._common import add_data_option, cpu_seconds, quiet_and_single_threaded
from benchmarks.quality._dynamic_data import DRIFT, Dated, completion, speeches, synthetic, variation
from custom_inference import Search, fit
from ppl_models import DTM, LDA

Array = NDArray[Any]
#: Gives topics (T, K, V), the drift variance (NaN where there is none) and the CPU seconds.
Line = Callable[[Dated, int, float], tuple[Array, float, float]]

_SYNTHETIC = "Recovery of synthetic corpora"
_SPEECHES = "Completion of addresses on the state of the union"


def dynamic(data: Dated, num_topics: int, alpha: float, **settings: Any) -> tuple[Array, float, float]:
    model = DTM(num_topics=num_topics, vocabulary_size=data.counts.shape[1], num_times=data.num_times)
    model = model.with_concentration(alpha=alpha)
    settings = {"progress": False, **settings}
    found, seconds = cpu_seconds(lambda: fit(model, data.counts, time=data.time, **settings))
    return model.topics(found.globals).double().numpy(), float(found.params["drift_variance"]), seconds


def static(data: Dated, num_topics: int, alpha: float) -> tuple[Array, float, float]:
    """LDA, with the same topics in every slice."""
    model = LDA(num_topics=num_topics, vocabulary_size=data.counts.shape[1]).with_concentration(alpha=alpha)
    found, seconds = cpu_seconds(lambda: fit(model, data.counts, progress=False))
    topic = found.params["topic"].double().numpy()
    return np.stack([topic] * data.num_times), float("nan"), seconds


def unigram(data: Dated, num_topics: int, alpha: float) -> tuple[Array, float, float]:
    """One topic a slice, the frequencies of its words and .01 each."""
    del num_topics, alpha
    rows = [np.asarray(data.counts[data.time == t].sum(0)).ravel() + 0.01 for t in range(data.num_times)]
    return np.stack([row / row.sum() for row in rows])[:, None], float("nan"), 0.0


def tomotopy(data: Dated, num_topics: int, alpha: float) -> tuple[Array, float, float]:
    """DTModel, 500 iterations with its own hyper-parameters."""
    del alpha
    import tomotopy as tp  # pyright: ignore[reportMissingImports]

    made = tp.DTModel(k=num_topics, t=data.num_times, seed=0)
    for row, t in zip(data.counts, data.time, strict=True):
        made.add_doc(list(np.repeat(row.indices, row.data).astype(str)), timepoint=int(t))
    _, seconds = cpu_seconds(lambda: made.train(500, workers=1))
    topics = np.full((data.num_times, num_topics, data.counts.shape[1]), 1e-10)
    known = np.array([int(word) for word in made.used_vocabs])
    for t, k in np.ndindex(topics.shape[:2]):
        topics[t, k, known] = made.get_topic_word_dist(k, timepoint=t)
    return topics / topics.sum(-1, keepdims=True), float("nan"), seconds


#: Peers: the package, and the line.
PEERS: dict[str, tuple[str, Line]] = {"tomotopy DTModel, 500 iterations": ("tomotopy", tomotopy)}
ON_SYNTHETIC: dict[str, Line] = {
    "static LDA": static,
    "DTM": dynamic,
    "DTM, bound (gaussian)": partial(dynamic, method="gaussian", max_iterations=60, tolerance=1e-3),
}
ON_SPEECHES: dict[str, Line] = {
    "unigram of the slice": unigram,
    "static LDA": static,
    "DTM": dynamic,
    "DTM, one start": partial(dynamic, search=Search(restarts=1)),
    "DTM, single precision": partial(dynamic, dtype=torch.float32),
    "DTM, one start, single precision": partial(dynamic, search=Search(restarts=1), dtype=torch.float32),
}


def with_peers(lines: dict[str, Line], wanted: Sequence[str] | None) -> tuple[dict[str, Line], str]:
    """The wanted lines with the peers that are there, and a sentence on those that are not."""
    absent = [package for package, _ in PEERS.values() if importlib.util.find_spec(package) is None]
    found = {**lines, **{name: line for name, (package, line) in PEERS.items() if package not in absent}}
    chosen = {name: line for name, line in found.items() if wanted is None or name in wanted}
    return chosen, f" Not installed here, and left out: {', '.join(absent)}." if absent else ""


def recovery(seeds: Sequence[int], wanted: Sequence[str] | None, done: Callable[[Table], None]) -> None:
    lines, said = with_peers(ON_SYNTHETIC, wanted)
    note = (
        f"Total variation of the topics, mean over slices, and drift variance (true: {DRIFT}), over {len(seeds)} "
        f"corpora of 1000 documents: mean, and the largest.{said}"
    )
    columns = ("method", "TV", "worst TV", "drift variance", "furthest drift variance", "CPU s (median)")
    table = Table(_SYNTHETIC, columns, note=note)
    for name, line in lines.items():
        found = []
        line(synthetic(seeds[0])[0], 5, 0.2)  # compiles
        for seed in seeds:
            data, topic = synthetic(seed)
            topics, drift, seconds = line(data, 5, 0.2)
            found.append((variation(topic, topics), drift, seconds))
        tv, drift, seconds = np.array(found).T
        furthest = drift[np.abs(np.log(drift / DRIFT)).argmax()] if np.isfinite(drift).all() else None
        mean = float(drift.mean()) if np.isfinite(drift).all() else None
        table.rows.append([name, tv.mean(), tv.max(), mean, furthest, float(np.median(seconds))])
        done(table)


def completed(folder: Any, wanted: Sequence[str] | None, done: Callable[[Table], None]) -> None:
    lines, said = with_peers(ON_SPEECHES, wanted)
    note = (
        "Ten topics, 23 decades, 769,096 tokens of 6,034 words: perplexity of the second halves of 1,040 blocks, by "
        f"topics of their decade.{said}"
    )
    table, data = Table(_SPEECHES, ("method", "perplexity", "drift variance", "CPU s"), note=note), speeches(folder)
    for name, line in lines.items():
        topics, drift, seconds = line(data.train, 10, 0.1)
        shown = None if np.isnan(drift) else drift
        table.rows.append([name, completion(data, topics), shown, seconds])
        done(table)


def written(table: Table, results: Path) -> None:
    """The report with this table's lines, the others as they were."""
    print(table.rows[-1], flush=True)
    before, order = read_tables("dynamic_topics", folder=results), [*ON_SYNTHETIC, *ON_SPEECHES, *PEERS]
    old = before[table.title].rows if table.title in before else []
    fresh = [row[0] for row in table.rows]
    rows = [*table.rows, *(row for row in old if row[0] in order and row[0] not in fresh)]
    whole = Table(table.title, table.columns, sorted(rows, key=lambda row: order.index(row[0])), note=table.note)
    known = {**before, table.title: whole}
    tables = [known[title] for title in (_SYNTHETIC, _SPEECHES) if title in known]
    write_report("dynamic_topics", "Topics over time", tables, folder=results)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_option(parser)
    parser.add_argument("--quick", action="store_true", help="one synthetic corpus; no results file is touched")
    parser.add_argument("--only", choices=("synthetic", "speeches"), help="the other table stays as it was")
    parser.add_argument("--lines", help="names, separated by ';'; by default all")
    given = parser.parse_args(arguments)
    quick = given.quick or bool(os.environ.get("PPL_SMOKE"))
    quiet_and_single_threaded()
    done = partial(written, results=QUICK if quick else RESULTS)
    names = given.lines.split(";") if given.lines else None
    if given.only != "speeches":
        recovery([0] if quick else range(5), names, done)
    if not quick and given.data is not None and given.only != "synthetic":
        completed(Path(given.data), names, done)


if __name__ == "__main__":
    main()
