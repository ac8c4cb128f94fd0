"""Time and memory of gamma-Poisson factor analysis and NMF while the counts grow.

    python -m benchmarks.speed.counts [--quick]

Writes ``benchmarks/results/counts_speed.{md,json}``. Sparse counts of 5000 features, drawn with 10 components, some 50
entries above 0 a row; 10 components are fitted in single precision from a random start. Every fit is a process of its
own, compiled beforehand, on one thread. Memory is anonymous memory at the peak, less that of the process with the
counts in it (of fits from disk: that of the process before).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from benchmarks import _processes
from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality._common import quiet_and_single_threaded
from benchmarks.speed._stream_worker import Watch
from custom_inference import VariationalEM
from ppl_models import NMF, GammaPoisson, row_blocks, save_blocks

SIZES = (10**5, 10**6, 10**7)
COMPONENTS, FEATURES, ENTRIES = 10, 5000, 50
#: Iterations that are timed, and rows of a block on disk.
PASSES, BLOCK_ROWS = 10, 2000
INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()

#: Name -> the model, its guide, whether the rows stay on disk.
FITS: dict[str, tuple[Callable[..., Any], str, bool]] = {
    "GaP, VB": (GammaPoisson, "vb", False),
    "GaP, VB, from disk": (GammaPoisson, "vb", True),
    "GaP, points": (GammaPoisson, "map", False),
    "NMF": (NMF, "map", False),
}


def drawn(rows: int, seed: int) -> sp.csr_matrix:
    """Events of a row: Poisson, of components Dirichlet(.1), of features as the component has them."""
    share = np.random.default_rng(0).dirichlet(np.full(FEATURES, 0.05), COMPONENTS).cumsum(1)
    rng = np.random.default_rng(seed)
    mixed = rng.dirichlet(np.full(COMPONENTS, 0.1), rows)
    length = rng.poisson(1.45 * ENTRIES, rows)
    row = np.repeat(np.arange(rows), length)
    component = (rng.random(len(row))[:, None] > mixed.cumsum(1)[row, :-1]).sum(1)
    place, feature = rng.random(len(row)), np.empty(len(row), np.int32)
    for k in range(COMPONENTS):
        feature[component == k] = np.searchsorted(share[k], place[component == k])
    entries = (np.ones(len(row), np.float32), (row, feature.clip(max=FEATURES - 1)))
    return sp.csr_matrix(entries, shape=(rows, FEATURES))


def blocks(number: int) -> Iterator[sp.csr_matrix]:
    rows = number // ENTRIES
    for start in range(0, rows, BLOCK_ROWS):
        yield drawn(min(BLOCK_ROWS, rows - start), 1 + start)


def measured(name: str, folder: Path) -> dict[str, float]:
    make, guide, on_disk = FITS[name]
    model = make(num_components=COMPONENTS, num_features=FEATURES)
    source: Any = row_blocks(folder, block_rows=BLOCK_ROWS)
    data = source if on_disk else sp.vstack(list(source), format="csr")
    entries = sum(block.nnz for block in source) if on_disk else data.nnz

    def fit(x: Any, passes: int) -> Any:
        settings: dict[str, Any] = {"max_iterations": passes, "tolerance": 1e-12, "search": None}
        return VariationalEM(guide=guide, **settings).fit(model, x, dtype=torch.float32, progress=False)

    fit(drawn(200, 0), 2)
    with Watch() as watch:
        begun = time.process_time()
        found = fit(data, PASSES)
        seconds = time.process_time() - begun
    peak = watch.peak - watch.before
    return {"rows": len(source), "entries": entries, "seconds": seconds, "passes": len(found.elbo), "peak": peak}


def in_a_process(name: str, folder: Path) -> dict[str, float]:
    arguments = "--measure", name, "--folder", str(folder)
    return _processes.in_a_process(name, "benchmarks.speed.counts", *arguments, **_processes.HELD)


def table(sizes: tuple[int, ...]) -> Table:
    columns = [
        "fit",
        "rows",
        "entries above 0",
        "CPU s a pass",
        "ns an entry a pass",
        "MB at the peak",
        "bytes an entry",
    ]
    note = f"{PASSES} iterations. The first passes of VB take up to 100 sweeps over a row, later ones up to 10."
    found = Table("Growth", columns, note=note)
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            saved = save_blocks(Path(folder) / "counts", blocks(size))
            for name in FITS:
                one = in_a_process(name, saved)
                each, entries = one["seconds"] / one["passes"], int(one["entries"])
                memory = [f"{one['peak'] / 2**20:.1f}", f"{one['peak'] / entries:.0f}"]
                line = [
                    name,
                    f"{int(one['rows']):,}",
                    f"{entries:,}",
                    f"{each:.3g}",
                    f"{1e9 * each / entries:.0f}",
                    *memory,
                ]
                found.rows.append(line)
                print(line, flush=True)
    found.rows.sort(key=lambda row: [*FITS].index(row[0]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few counts: does it run?")
    parser.add_argument("--measure", choices=FITS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    quiet_and_single_threaded()
    if options.measure:
        print(json.dumps(measured(options.measure, options.folder)))
        return
    found = table((10**4, 10**5) if options.quick else SIZES)
    folder = QUICK if options.quick else RESULTS
    print(write_report("counts_speed", "Counts: growth", [found], intro=INTRO, folder=folder))


if __name__ == "__main__":
    main()
