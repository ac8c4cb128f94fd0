"""Fits from disk: peak memory and time while the rows grow, beside the same fits of rows in memory.

    python -m benchmarks.speed.streaming [--quick]

Writes ``benchmarks/results/streaming.{md,json}`` and a figure. Every fit runs in a process of its own, from a random
start; what is read from disk is one block at a time, of as many rows whatever the number of all rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality._common import quiet_and_single_threaded
from benchmarks.speed._stream_problem import CASES, PASSES, Case, write

ROOT = Path(__file__).resolve().parents[2]
GROWTH = (1, 16)
MEGABYTE = 2**20

#: Source -> rows -> what the worker measured.
Found = dict[str, dict[int, dict[str, Any]]]


def measure(name: str, case: Case, growth: tuple[int, ...], folder: Path) -> Found:
    """All fits of a case: from every kind of files, and in memory."""
    fits: list[tuple[str, int, str]] = []
    for factor in growth:
        files = write(case, factor * case.rows, folder)
        fits += [(kind, factor * case.rows, f"files:{path}") for kind, path in files.items()]
        fits.append(("in memory", factor * case.rows, f"memory:{next(iter(files.values()))}"))
    warm = [str(path) for path in write(case, case.rows, folder).values()]
    command = [sys.executable, "-m", "benchmarks.speed._stream_worker", name, "--warm", *warm]
    command += ["--fits", *(fit for _, _, fit in fits)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    found: Found = {}
    for (kind, rows, _), line in zip(fits, done.stdout.splitlines(), strict=True):
        found.setdefault(kind, {})[rows] = json.loads(line)
    return found


def tables(measured: dict[str, Found]) -> list[Table]:
    memory = Table(
        "Peak memory",
        ["fit", "rows from", "block", "rows", "MB at the peak", "growth over 16x rows, MB"],
        note=(
            "Anonymous memory (RssAnon) at the peak of the fit, less that of the process before it, in MB of 2^20 "
            "bytes. In memory: with the rows read into it. glibc's threshold for arrays that go back to the system as "
            "soon as they are freed is held at 64 KiB: left to itself it grows, and the heap keeps tens of MB of them."
        ),
    )
    speed = Table(
        "Speed",
        ["fit", "rows from", "rows", "CPU s a pass", "rows a CPU s", "time over that in memory"],
        note=f"Most rows; {PASSES} iterations of EM, or passes of minibatches and one that looks. Reading included.",
    )
    for name, found in measured.items():
        case = CASES[name]
        inside = found["in memory"]
        for kind, each in found.items():
            peaks = [line["peak"] / MEGABYTE for line in each.values()]
            sizes = " / ".join(str(rows) for rows in each)
            shown = " / ".join(f"{peak:.1f}" for peak in peaks)
            memory.rows.append([case.title, kind, case.block_rows, sizes, shown, f"{peaks[-1] - peaks[0]:.1f}"])
            rows, last = list(each.items())[-1]
            own = last["seconds"] / last["passes"]
            beside = inside[rows]["seconds"] / last["passes"]
            speed.rows.append([case.title, kind, rows, f"{own:.3g}", f"{rows / own:.0f}", f"{own / beside:.2f}"])
    return [memory, speed]


def figure(measured: dict[str, Found]) -> Any:
    """Peak memory against rows, a panel a fit."""
    from matplotlib.figure import Figure

    columns = 4
    lines = -(-len(measured) // columns)
    drawn = Figure(figsize=(3.1 * columns, 2.7 * lines), layout="constrained")
    axes = drawn.subplots(lines, columns, squeeze=False)
    style = {"in memory": ("0.55", "--"), "npy": ("C0", "-"), "Parquet": ("C1", "-"), "saved blocks": ("C2", "-")}
    for ax, (name, found) in zip(axes.flat, measured.items(), strict=False):
        for kind, each in found.items():
            color, line = style[kind]
            peaks = [one["peak"] / MEGABYTE for one in each.values()]
            ax.plot(list(each), peaks, line, marker="o", ms=4, color=color, label=kind)
        ax.set(title=CASES[name].title, xscale="log", xlabel="rows", ylim=(0, None))
        ax.title.set_size(9)
        sizes = list(found["in memory"])
        ax.set_xticks(sizes, [f"{rows / 1000:g}k" for rows in sizes])
        ax.minorticks_off()
        ax.legend(fontsize=7, frameon=False)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes.flat[len(measured) :]:
        ax.set_visible(False)
    for row in axes:
        row[0].set_ylabel("MB at the peak of the fit")
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small fit: does it run?")
    given = parser.parse_args()
    quiet_and_single_threaded()
    names, growth, results = (["mixture"], (1, 2), QUICK) if given.quick else (list(CASES), GROWTH, RESULTS)
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            measured[name] = measure(name, CASES[name], growth, Path(folder))
            print(name, measured[name], flush=True)
    report = tables(measured)
    results.mkdir(parents=True, exist_ok=True)
    figure(measured).savefig(results / "streaming.png", dpi=130)
    report[0].figures = ["streaming.png"]
    print(write_report("streaming", "Fits from disk", report, intro=INTRO, folder=results))


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
