"""tomotopy's sampler on the clock, run by a Python that has it.

    python -m benchmarks.speed._topic_peers CORPUS K SWEEPS

Prints a line of JSON: CPU seconds of so many sweeps of one thread, after the first twenty, and the version.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from benchmarks.speed._topic_evaluator import Corpus

#: Sweeps before those that are timed.
FIRST = 20


def main() -> None:
    import tomotopy as tp  # pyright: ignore[reportMissingImports]

    parser = argparse.ArgumentParser()
    parser.add_argument("corpus", type=Path)
    parser.add_argument("num_topics", type=int)
    parser.add_argument("sweeps", type=int)
    given = parser.parse_args()
    corpus = Corpus.load(given.corpus)
    model = tp.LDAModel(k=given.num_topics, alpha=corpus.alpha, eta=corpus.gamma, seed=0)
    model.optim_interval = 0
    for row in range(corpus.train.shape[0]):
        cells = slice(corpus.train.indptr[row], corpus.train.indptr[row + 1])
        words = np.repeat(corpus.train.indices[cells], corpus.train.data[cells].astype(int))
        model.add_doc([str(v) for v in words])
    model.train(FIRST, workers=1)
    begin = time.process_time()
    model.train(given.sweeps, workers=1)
    print(json.dumps({"seconds": time.process_time() - begin, "version": tp.__version__}))


if __name__ == "__main__":
    main()
