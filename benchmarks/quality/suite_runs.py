"""Whether the tests pass in any order, on any processor.

    python -m benchmarks.quality.suite_runs [--runs 20] [--workers 2] [--tests PATH ...]

Adds its runs to ``benchmarks/results/suite_runs.{md,json}``. A run is the whole suite in a random order
(``pytest --shuffle SEED``), with instruction sets for the numerical libraries drawn from the seed among those that the
processor has, and with hashes of its own.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks._report import RESULTS, Table, read_tables, write_report

INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()
_ROOT = Path(__file__).resolve().parents[2]
_RUNS = "Runs"
_COLUMNS = ("order", "commit", "processor", "passed", "failed", "skipped", "minutes", "which failed")
#: Instruction sets of torch's own kernels, MKL, OpenBLAS and numba, from the smallest on.
_LEVELS = {
    "ATEN_CPU_CAPABILITY": ("default", "avx2", "avx512"),
    "MKL_ENABLE_INSTRUCTIONS": ("SSE4_2", "AVX2", "AVX512"),
    "OPENBLAS_CORETYPE": ("Nehalem", "Haswell", "SkylakeX"),
    "NUMBA_CPU_NAME": ("generic", "haswell", "host"),
}


def processor(seed: int) -> dict[str, str]:
    """Settings of the run with this seed: each library's level, at most what the processor has."""
    draw, most = random.Random(seed), {"DEFAULT": 1, "AVX2": 2}.get(torch.backends.cpu.get_cpu_capability(), 3)
    return {name: draw.choice(levels[:most]) for name, levels in _LEVELS.items()}


def run(seed: int, workers: int, tests: Sequence[str], cache: Path) -> list[object]:
    """The row of one run. What numba compiles is kept for later runs with the same instructions."""
    settings = processor(seed)
    surroundings = {**os.environ, **settings, "PYTHONHASHSEED": str(seed % 2**32), "OMP_NUM_THREADS": "1",
                    "NUMBA_CACHE_DIR": str(cache / settings["NUMBA_CPU_NAME"]), "PYTHONDONTWRITEBYTECODE": "",
                    "PYTHONPYCACHEPREFIX": str(cache / "bytecode")}  # fmt: skip
    if settings["NUMBA_CPU_NAME"] == "host":
        del surroundings["NUMBA_CPU_NAME"]
    report, begun = cache / "report.xml", time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-n", str(workers), "--dist", "loadfile", "-p", "no:cacheprovider",
               "--shuffle", str(seed), f"--junitxml={report}", *tests]  # fmt: skip
    done = subprocess.run(command, cwd=_ROOT, env=surroundings, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):  # tests passed, tests failed
        raise RuntimeError(
            f"the run with seed {seed} ended without a report: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    cases = list(ElementTree.parse(report).iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    names = ", ".join(f"{str(case.get('classname')).rpartition('.')[2]}::{case.get('name')}" for case in bad)
    levels, minutes = ", ".join(settings.values()), round((time.perf_counter() - begun) / 60, 1)
    if bad:
        print(done.stdout[-20000:])
    return [seed, _commit(), levels, len(cases) - len(bad) - skipped, len(bad), skipped, minutes, names]


def _commit() -> str:
    """What was tested: the commit, and whether files other than results differ from it."""

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=False)

    name = git("rev-parse", "--short=8", "HEAD").stdout.strip()
    changed = git("diff", "--quiet", "HEAD", "--", ".", ":(exclude)benchmarks/results").returncode
    return f"{name}{'-dirty' if changed else ''}" if name else "unknown"


def main(arguments: Sequence[str] | None = None, *, results: Path = RESULTS) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--first", type=int, help="seed of the first run; by default the one after the last in the report"
    )
    parser.add_argument("--cache", type=Path, help="folder of compiled code to keep; else one that is removed")
    parser.add_argument("--tests", nargs="+", default=[])
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        cache = given.cache or Path(folder)
        cache.mkdir(parents=True, exist_ok=True)
        for place in range(given.runs):
            kept = read_tables("suite_runs", folder=results).get(_RUNS)
            rows = kept.rows if kept else []
            seed = given.first + place if given.first is not None else max((int(row[0]) for row in rows), default=0) + 1
            row = run(seed, given.workers, given.tests, cache)
            print(row, flush=True)
            table = Table(_RUNS, _COLUMNS, sorted([*rows, row]), note=_note([*rows, row]))
            write_report("suite_runs", "The tests in random orders", [table], intro=INTRO, folder=results)


def _note(rows: Sequence[Sequence[object]]) -> str:
    good = sum(row[4] == 0 for row in rows)
    levels = ", ".join(_LEVELS)
    return f"{good} of {len(rows)} runs without a failure. order: the seed. processor: {levels}."


if __name__ == "__main__":
    main()
