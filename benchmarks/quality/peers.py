"""Every model that has a peer on PyPI beside it: quality, CPU seconds, memory, in one run.

    pip install --target DIR tomotopy hpfrec glmpca statsmodels myfm stepmix
    python -m benchmarks.quality.peers --packages DIR [--data DIR] [--rows "LDA;PMF, Gibbs"]

Either side of a row runs in processes of its own on one thread: the first compiles, the second is measured. CPU seconds
are of the fit and its predictions; memory is anonymous memory at the peak, less that of the process with the data and
all packages loaded. Both sides get the same score. Rows that are not measured again keep what the report had of them,
those whose peer is not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import _processes
from benchmarks._report import RESULTS, Table, read_tables, write_report
from benchmarks.quality._common import add_data_option, cpu_seconds, quiet_and_single_threaded, require_data
from benchmarks.quality._peer_rows import ROWS, Row
from benchmarks.speed._stream_worker import Watch
from custom_inference import fit

TITLE = "Models and their peers"
NOTE = (
    "The default fit of the model; of sampling and of counts with the settings of their own reports. CPU s, MB: ours, "
    "theirs; ratio: theirs over ours, above 1 is for us. Ahead: whether the score is better; level: to one in 10,000. "
    "Programs that need a checkout, R or C++ are beside ours in reports of their own."
)
COLUMNS = (
    "model",
    "on what",
    "score",
    "theirs",
    "ahead",
    "CPU s",
    "theirs: CPU s",
    "ratio",
    "MB",
    "theirs: MB",
    "peer",
)


def name_of(row: Row) -> str:
    return row.kind.__name__ + (", Gibbs" if row.what.endswith("sampled") else "")


def measure(row: Row, side: str, folder: Path) -> dict[str, float]:
    """In this process: the score, CPU seconds, and memory in MB."""
    data = row.data(folder)
    if side == "ours":
        example = row.kind.example()
        fit(example.model, example.data, progress=False)
    with Watch() as watch:
        found, seconds = cpu_seconds(lambda: getattr(row, side)(data))
    return {"score": row.score(data, found), "seconds": seconds, "memory": (watch.peak - watch.before) / 2**20}


def in_a_process(row: Row, side: str, folder: Path, packages: Path | None) -> dict[str, float]:
    """The second of two runs. Raises RuntimeError with the last words of one that fails."""
    arguments = ["--data", str(folder), "--side", side, "--rows", name_of(row)]
    arguments += ["--packages", str(packages)] if packages else []
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS", "NUMBA")}
    run = partial(_processes.in_a_process, f"{name_of(row)}, {side}", "benchmarks.quality.peers", *arguments, **threads)
    if side == "ours":
        run()
    return run()


def compared(row: Row, folder: Path, packages: Path | None) -> list[Any]:
    """A line of the table."""
    ours, theirs = (in_a_process(row, side, folder, packages) for side in ("ours", "theirs"))
    sign = 1 if row.better == "more" else -1
    gain = sign * (ours["score"] - theirs["score"])
    ahead = "level" if abs(gain) <= 1e-4 * abs(theirs["score"]) else "yes" if gain > 0 else "no"
    ratio, memory = theirs["seconds"] / ours["seconds"], [f"{one['memory']:.0f}" for one in (ours, theirs)]
    what = f"{row.what} ({row.better} is better)"
    version = importlib.metadata.version(row.package)
    return [name_of(row), what, f"{ours['score']:.4g}", f"{theirs['score']:.4g}", ahead, f"{ours['seconds']:.2f}",
            f"{theirs['seconds']:.2f}", f"{ratio:.1f}", *memory, f"{row.peer} ({row.package} {version})"]  # fmt: skip


def installed(row: Row) -> bool:
    try:
        importlib.metadata.version(row.package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def main(arguments: Sequence[str] | None = None, *, results: Path = RESULTS) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    parser.add_argument("--packages", type=Path, help="a folder of further packages")
    parser.add_argument("--rows", help="models, with ';' between them; by default all", default="")
    parser.add_argument("--side", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    quiet_and_single_threaded()
    if given.packages:
        sys.path.append(str(given.packages))
    folder = require_data(parser, given)
    if given.side:
        row = next(row for row in ROWS if name_of(row) == given.rows)
        print(json.dumps(measure(row, given.side, folder)))
        return
    wanted = given.rows.split(";") if given.rows else [name_of(row) for row in ROWS]
    before = read_tables("peers", folder=results)
    lines = {line[0]: line for line in before[TITLE].rows} if TITLE in before else {}
    for row in ROWS:
        if name_of(row) in wanted and installed(row):
            lines[name_of(row)] = compared(row, folder, given.packages)
            print(lines[name_of(row)], flush=True)
            kept = [lines[name_of(one)] for one in ROWS if name_of(one) in lines]
            write_report("peers", "Models beside their peers", [Table(TITLE, COLUMNS, kept, NOTE)], folder=results)


if __name__ == "__main__":
    main()
