"""What somebody waits for who has just installed the package: imports, first fits of many models, the commands.

    python -m benchmarks.speed.first_touch

Writes ``benchmarks/results/first_touch.{md,json}``. Default fits of models to their own examples, each in a process of
its own: at first with nothing compiled, then once more in a new process, with what the first has compiled on disk. CPU
seconds on one thread. The models are those whose family compiles most, and one of every other kind. Data are in double
precision, as the examples draw them, and small: searches keep their precision, those of more than 500 rows run in
single precision, so that some kernels are then compiled for both.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._processes import HELD, in_a_process
from benchmarks._report import RESULTS, Table, write_report
from ppl_models import IRM, MODELS

INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()
_FITS, _COMMANDS = "First fits", "Commands"
#: Fitted; the infinite relational model takes several relations, and so is none of the models of one matrix.
ALL = {"irm": IRM} | {
    name: MODELS[name]
    for name in ("aspect_bernoulli", "ctm", "cvq", "dtm", "gamma_poisson", "hdp", "lda", "ldahmm", "logistic_pca",
                 "mixture_of_bernoullis", "mmsb", "noca", "pmf", "rbm", "sbm", "supervised_lda")
}  # fmt: skip
#: What is asked of the compilation of a first fit, and of ``ppl --help``, in seconds.
_ASKED, _HELP = 2.5, 1.0


def measured(name: str) -> dict[str, float]:
    """CPU seconds of this process: until everything is imported, of the fit, and of what it compiled."""
    import custom_inference as ci

    example, compiled = ALL[name].example(), _Compiled()
    imported = time.process_time()
    warnings.simplefilter("ignore")
    ci.fit(example.model, example.data, progress=False)
    return {"imports": imported, "fit": time.process_time() - imported, "compiled": compiled.seconds}


class _Compiled:
    """CPU seconds that numba compiles for, from now on."""

    def __init__(self) -> None:
        from numba.core import event

        self.seconds, self._depth, self._began = 0.0, 0, 0.0
        listener: Any = type("_Listener", (event.Listener,), {"on_start": self._start, "on_end": self._end})
        event.register("numba:compile", listener())

    def _start(self, _: Any) -> None:
        self._began = self._began if self._depth else time.process_time()
        self._depth += 1

    def _end(self, _: Any) -> None:
        self._depth -= 1
        self.seconds += 0.0 if self._depth else time.process_time() - self._began


def fits() -> Table:
    columns = ("model", "compiled", "first fit", "next process", "asked")
    table = Table(_FITS, columns)
    for name in ALL:
        with tempfile.TemporaryDirectory() as cache:
            cold, warm = (
                in_a_process(name, "benchmarks.speed.first_touch", "--one", name, NUMBA_CACHE_DIR=cache, **HELD)
                for _ in range(2)
            )
        met = "yes" if cold["compiled"] <= _ASKED else "no"
        table.rows.append([name, cold["compiled"], cold["fit"], warm["fit"], met])
        print(table.rows[-1], flush=True)
    table.rows.sort(key=lambda row: -float(row[1]))
    met = sum(row[-1] == "yes" for row in table.rows)
    asked = f"at most {_ASKED:g} s of compiling, which {met} of {len(table.rows)} keep to"
    table.note = f"compiled: of the first fit. asked: {asked}."
    return table


def commands() -> Table:
    """Seconds on the clock, the middle one of five."""
    table = Table(_COMMANDS, ("command", "seconds", "asked"), note="Medians of five, on the clock.")
    ppl = str(Path(sys.executable).with_name("ppl"))
    ways = {
        "ppl --help": [ppl, "--help"],
        "import ppl_models": [sys.executable, "-c", "import ppl_models"],
        "import custom_inference": [sys.executable, "-c", "import custom_inference"],
    }
    for name, command in ways.items():
        seconds = []
        for _ in range(5):
            begun = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            seconds.append(time.perf_counter() - begun)
        asked = f"<= {_HELP:g}: {'yes' if np.median(seconds) <= _HELP else 'no'}" if name.startswith("ppl ") else ""
        table.rows.append([name, float(np.median(seconds)), asked])
        print(table.rows[-1], flush=True)
    return table


def main(arguments: Sequence[str] | None = None, *, results: Path = RESULTS) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", choices=[*ALL], help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one:
        print(json.dumps(measured(given.one)))
        return
    write_report("first_touch", "First touch", [commands(), fits()], intro=INTRO, folder=results)


if __name__ == "__main__":
    main()
