"""Models beside the program that a user would take instead: quality, CPU seconds, memory, in one run.

    pip install --target DIR tomotopy hpfrec glmpca statsmodels myfm stepmix
    python -m benchmarks.quality.peers --packages DIR [--data DIR] [--programs svinet=PATH ...] [--rows "LDA;PMF"]

Ours is what the lines in the first column give, pasted as they stand. Either side of a row runs in processes of its own
on one thread: the first compiles, the second is measured. CPU seconds are of the fit and its predictions, data being in
memory, of programs that are no packages of this Python as in their own reports; memory is anonymous memory at the peak,
less that of the process with the data and all packages loaded. Both sides get the same score. Rows that are not
measured again keep what the report had of them, those whose peer is not there are left out.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import _processes
from benchmarks._freshness import digest
from benchmarks._report import RESULTS, Table, environment, read_tables, write_report
from benchmarks.quality._common import add_data_option, cpu_seconds, quiet_and_single_threaded, require_data
from benchmarks.quality._peer_rows import ROWS
from benchmarks.quality._peer_rows_of import PROGRAMS, Row, Timed, version_of
from benchmarks.speed._stream_worker import Watch
from benchmarks.stale import ENGINES
from custom_inference import fit

TITLE = "Models and their peers"
NOTE = (
    "First column: the lines that give ours, after `from custom_inference import fit` and "
    "`from ppl_models import ...`. CPU s, MB: ours, theirs; ratio: theirs over ours, above 1 is for us. Ahead: whether "
    "the score is better; level: to one in 10,000."
)
COLUMNS = (
    "lines",
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
    "measured",
    ENGINES,
)


def name_of(row: Row) -> str:
    """The lines, as Markdown shows them."""
    return f"`{row.lines.text}`"


def measure(row: Row, side: str, folder: Path) -> dict[str, float]:
    """In this process: the score, CPU seconds, and memory in MB."""
    data = row.data(folder)
    if side == "ours":
        example = row.lines.kind.example()
        fit(example.model, example.data, progress=False)
    call = (lambda: row.ours(row.lines, data)) if side == "ours" else (lambda: row.theirs(data))
    with Watch() as watch:
        found, seconds = cpu_seconds(call)
    memory = (watch.peak - watch.before) / 2**20
    if type(found) is Timed:  # in a process of its own, whose memory is not known
        found, seconds, memory = found.found, found.seconds, math.nan
    return {"score": row.score(data, found), "seconds": seconds, "memory": memory}


def in_a_process(row: Row, side: str, given: argparse.Namespace) -> dict[str, float]:
    """The second of two runs. Raises RuntimeError with the last words of one that fails."""
    arguments = ["--data", str(given.data), "--side", side, "--rows", name_of(row)]
    arguments += ["--packages", str(given.packages)] if given.packages else []
    arguments += ["--programs", *given.programs] if given.programs else []
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS", "NUMBA")}
    run = partial(_processes.in_a_process, f"{name_of(row)}, {side}", "benchmarks.quality.peers", *arguments, **threads)
    if side == "ours":
        run()
    return run()


def compared(row: Row, given: argparse.Namespace) -> list[Any]:
    """A line of the table."""
    ours, theirs = (in_a_process(row, side, given) for side in ("ours", "theirs"))
    sign = 1 if row.better == "more" else -1
    gain = sign * (ours["score"] - theirs["score"])
    ahead = "level" if abs(gain) <= 1e-4 * abs(theirs["score"]) else "yes" if gain > 0 else "no"
    ratio = theirs["seconds"] / ours["seconds"]
    memory = ["" if math.isnan(one["memory"]) else f"{one['memory']:.0f}" for one in (ours, theirs)]
    what = f"{row.what} ({row.better} is better)"
    version = " ".join(filter(None, (row.needs[0], version_of(row.needs[0]))))
    model = row.lines.kind.__name__
    return [name_of(row), what, f"{ours['score']:.4g}", f"{theirs['score']:.4g}", ahead, f"{ours['seconds']:.2f}",
            f"{theirs['seconds']:.2f}", f"{ratio:.1f}", *memory, f"{row.peer} ({version})",
            environment()["date"], f"{model} {digest(model)}"]  # fmt: skip


def main(arguments: Sequence[str] | None = None, *, results: Path = RESULTS) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    parser.add_argument("--packages", type=Path, help="a folder of further packages")
    parser.add_argument("--programs", nargs="*", default=[], metavar="NAME=PATH", help="programs that are no packages")
    parser.add_argument("--rows", help="parts of lines, with ';' between them; by default all", default="")
    parser.add_argument("--side", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    quiet_and_single_threaded()
    if given.packages:
        sys.path.append(str(given.packages))
    PROGRAMS.update((name, Path(path)) for name, path in (one.split("=", 1) for one in given.programs))
    given.data = require_data(parser, given)
    if given.side:
        row = next(row for row in ROWS if name_of(row) == given.rows)
        print(json.dumps(measure(row, given.side, given.data)))
        return
    before = read_tables("peers", folder=results)
    known = {line[0]: line for line in before[TITLE].rows} if TITLE in before else {}
    for row in ROWS:
        if row.is_runnable and any(part in name_of(row) for part in given.rows.split(";")):
            try:
                known[name_of(row)] = compared(row, given)
            except RuntimeError as error:  # of one side, which costs the other rows nothing
                print(error, flush=True)
                continue
            print(known[name_of(row)], flush=True)
            kept = [known[name_of(one)] for one in ROWS if name_of(one) in known]
            write_report("peers", "Models beside their peers", [Table(TITLE, COLUMNS, kept, NOTE)], folder=results)


if __name__ == "__main__":
    main()
