"""Topics that change over time: recovery on synthetic corpora, completion of addresses on the state of the union.

    python -m benchmarks.quality.dynamic_topics [--data DIR] [--quick]

CPU seconds are of one thread and of the fit alone, the second of two where it compiles.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality._common import add_data_option, cpu_seconds, quiet_and_single_threaded, require_data
from benchmarks.quality._dynamic_data import DRIFT, Dated, completion, speeches, synthetic, variation
from custom_inference import fit
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


ON_SYNTHETIC: dict[str, Line] = {
    "static LDA": static,
    "DTM": dynamic,
    "DTM, bound (gaussian)": partial(dynamic, method="gaussian", max_iterations=60, tolerance=1e-3),
}
ON_SPEECHES: dict[str, Line] = {"unigram of the slice": unigram, "static LDA": static, "DTM": dynamic}


def recovery(seeds: Sequence[int]) -> Table:
    note = (
        f"Total variation of the topics, mean over slices, and drift variance (true: {DRIFT}), over {len(seeds)} "
        "corpora of 1000 documents: mean, and the largest."
    )
    columns = ("method", "TV", "worst TV", "drift variance", "furthest drift variance", "CPU s (median)")
    table = Table(_SYNTHETIC, columns, note=note)
    for name, line in ON_SYNTHETIC.items():
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
        print(table.rows[-1], flush=True)
    return table


def completed(folder: Any) -> Table:
    note = (
        "Ten topics, 23 decades, 769,096 tokens of 6,034 words: perplexity of the second halves of 1,040 blocks, by "
        "topics of their decade."
    )
    table, data = Table(_SPEECHES, ("method", "perplexity", "drift variance", "CPU s"), note=note), speeches(folder)
    for name, line in ON_SPEECHES.items():
        topics, drift, seconds = line(data.train, 10, 0.1)
        table.rows.append([name, completion(data, topics), None if np.isnan(drift) else drift, seconds])
        print(table.rows[-1], flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_option(parser)
    parser.add_argument("--quick", action="store_true", help="one synthetic corpus: no result")
    given = parser.parse_args()
    folder = require_data(parser, given)
    quiet_and_single_threaded()
    tables = [recovery([0])] if given.quick else [recovery(range(5)), completed(folder)]
    write_report("dynamic_topics", "Topics over time", tables, folder=QUICK if given.quick else RESULTS)


if __name__ == "__main__":
    main()
