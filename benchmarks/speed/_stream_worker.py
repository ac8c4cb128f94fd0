"""Peak memory and time of fits of one case, each in a process of its own; started by ``benchmarks.speed.streaming``.

Prints a line of JSON a fit. Memory is anonymous memory (``RssAnon`` of Linux), sampled by a thread, less what it was
before the fit, with everything imported and compiled: pages of mapped files, which the kernel may drop at any time, do
not count. Every process is a copy of one that has fitted a few rows.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
import warnings
from pathlib import Path
from typing import Any

from benchmarks.quality._common import quiet_and_single_threaded
from benchmarks.speed._stream_problem import CASES, PASSES, Case
from ppl_models import row_blocks


class Watch:
    """The largest anonymous memory between entering and leaving, in bytes."""

    def __enter__(self) -> Watch:
        self.before = self.peak = anonymous()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()
        self.peak = max(self.peak, anonymous())

    def _look(self) -> None:
        while not self._stop.wait(0.002):
            self.peak = max(self.peak, anonymous())


def anonymous() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def measured(case: Case, path: Path, in_memory: bool) -> dict[str, Any]:
    """Bytes at the peak, and CPU seconds of reading all rows into memory and of the fit."""
    source = row_blocks(path, block_rows=case.block_rows)
    with Watch() as watch:
        begin = time.process_time()
        data = case.whole(source) if in_memory else source
        loaded = time.process_time() - begin
        case.fit(data, PASSES)
        seconds = time.process_time() - begin - loaded
    found = {"peak": watch.peak - watch.before, "seconds": seconds, "loaded": loaded, "rows": len(source)}
    return {**found, "passes": case.passes(PASSES)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=list(CASES))
    parser.add_argument("--warm", type=Path, nargs="+", required=True, help="a few rows")
    parser.add_argument("--fits", nargs="+", help="files:PATH or memory:PATH")
    given = parser.parse_args()
    quiet_and_single_threaded()
    warnings.simplefilter("ignore")
    case = CASES[given.case]
    for path in given.warm:  # imports, and compiles
        case.fit(row_blocks(path, block_rows=case.block_rows), 2)
    for fit in given.fits:
        kind, _, path = fit.partition(":")
        child = os.fork()
        if child == 0:
            print(json.dumps(measured(case, Path(path), kind == "memory")), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            raise SystemExit(f"the fit of {fit} failed")


if __name__ == "__main__":
    main()
