"""Large problems by one call: time, memory and how good what comes out is.

    python -m benchmarks.speed.large [--quick]

Writes ``benchmarks/results/large.{md,json}``. Every row is a process of its own, compiled beforehand on a small
problem. Memory is anonymous memory at the peak of the fit, less that of the process with the data in it. Ratings:
``benchmarks.speed.ratings``; several processes: ``benchmarks.speed.distributed``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.metrics import normalized_mutual_info_score

from benchmarks import _processes
from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality._common import cpu_seconds, quiet_and_single_threaded
from benchmarks.quality._correlated_data import perplexity, split, under_dirichlet
from benchmarks.speed._stream_worker import Watch
from custom_inference import VariationalEM, fit, recovered
from ppl_models import LDA, NOCA, SBM, row_blocks, save_blocks
from ppl_models.datasets import sample_sbm

TITLE = "Fits"
NOTE = (
    "LDA: 20 topics of 2,000 words, 100 tokens a document; score: perplexity of half the tokens of 1,000 further "
    "documents (the true topics': {truth}). From disk: saved blocks of 1,000 documents, one of which is in memory at a "
    "time. SBM: eight planted blocks, mean degree 20; score: normalised mutual information with them. NOCA: 60 sources "
    "of 60 words each among 4,000, on in a twentieth of the documents; score: sources found."
)
COLUMNS = ("fit", "size", "CPU s", "MB at the peak", "score")
_BLOCK, _QUICK = 1000, 0.02


@dataclass(frozen=True)
class Row:
    """size: of the data, in words; data: from a share of that size and a folder; fitted: to a score."""

    size: str
    data: Callable[[float, Path], Any]
    fitted: Callable[[Any], Any]
    score: Callable[[Any, Any], str]


# ----- LDA --------------------------------------------------------------------------------------------------------


TOPICS = np.random.default_rng(0).dirichlet(np.full(2000, 0.05), 20)
_LDA = LDA(num_topics=20, vocabulary_size=2000).with_concentration(alpha=0.1, gamma=0.05)


def _documents(seed: int) -> Any:
    """A block."""
    rng = np.random.default_rng(seed)
    return sp.csr_matrix(rng.multinomial(100, rng.dirichlet(np.full(20, 0.1), _BLOCK) @ TOPICS))


def _saved(share: float, folder: Path) -> Any:
    blocks = (_documents(seed) for seed in range(int(1e5 * share) // _BLOCK))
    path = save_blocks(Path(tempfile.mkdtemp(dir=folder)) / "documents", blocks)
    return row_blocks(path, block_rows=_BLOCK)


def _completed(topic: Any) -> str:
    seen, held = split(_documents(10**6), 0.5, most=None)
    return f"{perplexity(under_dirichlet(topic, np.full(20, 0.1), seen), topic, held):.0f}"


def _topics(_: Any, found: Any) -> str:
    return _completed(found.params["topic"].double().numpy())


def _online(data: Any, passes: int = 2) -> Any:
    return VariationalEM(guide="vb", batch_size=_BLOCK, max_iterations=passes).fit(_LDA, data, progress=False)


# ----- graphs, binary sources -------------------------------------------------------------------------------------


def _graph(share: float, folder: Path) -> Any:
    del folder
    nodes = int(1e5 * share)
    rate = (np.full((8, 8), 1.0) + 15 * np.eye(8)) * 20 * 8 / 23 / nodes
    return sample_sbm(rate, nodes, directed=False, seed=0)


def _blocks(drawn: Any) -> Any:
    return fit(SBM(num_blocks=8, num_nodes=len(drawn.data), directed=False), drawn.data, progress=False)


def _information(drawn: Any, found: Any) -> str:
    truth, label = np.asarray(drawn.truth["block"]), np.asarray(found.transform()).argmax(1)
    return f"{normalized_mutual_info_score(truth if truth.ndim == 1 else truth.argmax(1), label):.3f}"


def _sources(share: float, folder: Path) -> Any:
    del folder
    rng, rows = np.random.default_rng(0), max(int(4000 * share), 200)
    loading = np.zeros((60, 4000))
    for own in loading:
        own[rng.choice(4000, 60, replace=False)] = 0.3 + 0.5 * rng.random(60)
    on = rng.random((rows, 60)) < 0.05
    off = 0.995 * np.exp(on @ np.log1p(-loading))
    return sp.csr_matrix((rng.random(off.shape) > off).astype(np.float64)), torch.as_tensor(loading)


def _found(data: Any, found: Any) -> str:
    return f"{recovered(found.params['loading'].double(), data[1])} of 60"


def _whole(share: float, folder: Path) -> Any:
    return sp.vstack(list(_saved(share, folder)), format="csr")


ROWS: dict[str, Row] = {
    "LDA, in memory (default)": Row("100,000 documents", _whole, lambda x: fit(_LDA, x, progress=False), _topics),
    "LDA, from disk, two passes of minibatches": Row("100,000 documents", _saved, _online, _topics),
    "SBM (default)": Row("100,000 nodes, 1,000,000 edges", _graph, _blocks, _information),
    "NOCA, 60 sources (default)": Row(
        "4,000 documents of 4,000 words",
        _sources,
        lambda data: fit(NOCA(num_components=60, num_features=4000), data[0], progress=False),
        _found,
    ),
}


def measured(name: str, share: float) -> list[Any]:
    """A line of the table, in this process."""
    row = ROWS[name]
    with tempfile.TemporaryDirectory() as folder:
        row.fitted(row.data(_QUICK, Path(folder)))
        data = row.data(share, Path(folder))
        with Watch() as watch:
            found, seconds = cpu_seconds(lambda: row.fitted(data))
    return [name, row.size, f"{seconds:.1f}", round((watch.peak - watch.before) / 2**20), row.score(data, found)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a fiftieth of the sizes")
    parser.add_argument("--one", choices=[*ROWS], help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    quiet_and_single_threaded()
    if given.one:
        print(json.dumps(measured(given.one, _QUICK if given.quick else 1.0)))
        return
    table = Table(TITLE, COLUMNS, note=NOTE.format(truth=_completed(TOPICS)))
    for name in ROWS:
        arguments = ["--one", name, *["--quick"] * given.quick]
        table.rows.append(_processes.in_a_process(name, "benchmarks.speed.large", *arguments))
        print(table.rows[-1], flush=True)
    write_report("large", "Large problems", [table], folder=QUICK if given.quick else RESULTS)


if __name__ == "__main__":
    main()
