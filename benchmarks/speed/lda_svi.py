"""How fast is Pyro's SVI on LDA when the program is the suite's? Beside Pyro's own example, in seconds and memory.

    python -m benchmarks.speed.lda_svi [--pyro CHECKOUT]

--pyro is a checkout of github pyro-ppl/pyro, whose examples/lda.py is run as it is, model, guide, loss and optimiser;
without it the peer is skipped. Writes ``benchmarks/results/lda_svi.{md,json}``. Every measurement is a process of its
own on one thread; times are CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks._report import Table, write_report
from benchmarks.speed.topics_speed import generated_corpus

#: Asked for: so many times faster a pass than Pyro's example, at this share of its memory.
ASKED_SPEED, ASKED_MEMORY = 100.0, 0.1
BATCHES, SEEDS = (32, 512), 2
GUIDES = {"mean_field": "a Dirichlet for every document", "amortized": "an encoder, normalised"}


def measured(job: str, corpus: Path, **settings: Any) -> dict[str, Any]:
    """What the worker reports. Raises RuntimeError with its last words where it fails."""
    command = [sys.executable, "-m", "benchmarks.speed._lda_svi_worker", job, str(corpus), json.dumps(settings)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{job} failed: {done.stderr.strip().splitlines()[-1:]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    print(job, settings, found, flush=True)
    return found


def speed(corpus: Path, num_documents: int, checkout: Path | None) -> Table:
    """Passes, ours at several sizes of minibatch and the example's at its own."""
    peer = None
    if checkout is not None:
        example = str(checkout.resolve() / "examples" / "lda.py")
        peer = measured("pyro", corpus, example=example, batch_size=32, steps=3)
    else:
        print("Pyro's example: skipped, give --pyro CHECKOUT", flush=True)
    lines = [_line("Pyro's examples/lda.py, batch 32", peer, 32, num_documents, peer)] if peer else []
    for guide in GUIDES:
        for batch in BATCHES:
            found = measured("ours", corpus, guide=guide, batch_size=batch, steps=60)
            lines.append(_line(f"SVI(guide={guide!r}), batch {batch}", found, batch, num_documents, peer))
    note = (
        f"CPU seconds a pass of {num_documents} documents, and peak resident memory: of the process, and above what "
        f"the imports take. Asked for: {ASKED_SPEED:g} times the speed at {ASKED_MEMORY:g} of the memory. "
        + ("" if peer else "Pyro's example was not run: no --pyro given. ")
        + "The example's minibatch of 32 enumerates (topic, word, document) triples over the words' probabilities."
    )
    columns = ["method", "s a step", "s a pass", "times faster", "peak MB", "above imports MB", "share of memory"]
    return Table("A pass", columns, lines, note=note)


def _line(name: str, found: dict[str, Any], batch: int, rows: int, peer: dict[str, Any] | None) -> list[Any]:
    own = found["peak"] - found["imported"]
    step, passes = found["seconds"], found["seconds"] * rows / batch
    faster = peer["seconds"] * rows / 32 / passes if peer else None
    return [name, step, passes, faster, found["peak"], own, found["peak"] / peer["peak"] if peer else None]


def quality(corpus: Path) -> Table:
    """Perplexity of whole fits with the defaults, over seeds."""
    lines = []
    for guide, words in GUIDES.items():
        runs = [measured("quality", corpus, guide=guide, seed=seed) for seed in range(SEEDS)]
        scores, seconds = ([run[key] for run in runs] for key in ("perplexity", "seconds"))
        lines.append([f"SVI(guide={guide!r})", words, *_spread(scores), statistics.median(seconds)])
    note = (
        "Document completion of 500 test documents with one deterministic fold-in, natural logarithm, per token; the "
        f"default settings of SVI, over {SEEDS} seeds. Known on such a corpus: unigram 1330, true topics 538, "
        "scikit-learn's batch VB 588-663, ProdLDA in Pyro and NumPyro 1289-1315 by its own decoder, Pyro's example "
        "1566 after 600 s (quoted)."
    )
    columns = ["method", "documents by", "perplexity, least", "median", "most", "CPU s a fit"]
    return Table("Perplexity", columns, lines, note=note)


def _spread(values: list[float]) -> tuple[float, float, float]:
    return min(values), statistics.median(values), max(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pyro", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, corpus = Path(folder) / "corpus.npz", generated_corpus()
        corpus.save(path)
        tables = [speed(path, corpus.train.shape[0], arguments.pyro), quality(path)]
    print(write_report("lda_svi", "Pyro's SVI on LDA", tables))


if __name__ == "__main__":
    main()
