"""What several processes cost and gain: time of an iteration, bytes that travel, and searches in parallel.

    python -m benchmarks.speed.distributed [--quick]

Writes ``benchmarks/results/distributed.{md,json}`` and a figure. Wall-clock seconds of this machine, one thread a
process: more processes than cores share them.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality._common import quiet_and_single_threaded
from benchmarks.speed import _distributed_problem as problem
from custom_inference import EM, Search
from custom_inference.core.processes import run_all
from ppl_models import NOCA

PROCESSES = (1, 2)
#: Rows of each process, and nodes of the graph, whose dyads are divided.
ROWS = {"NOCA, exact": 4000, "CVQ, exact": 4000, "aspect Bernoulli, map": 1000, "LDA, vb": 500}
NODES = 800
#: Networks that are reckoned with, bits a second, and the latency of a message in seconds.
NETWORKS = {"10 Gbit/s": 1e10, "100 Gbit/s": 1e11}
LATENCY = 50e-6
WORKERS = (2, 8, 64, 1024)


def jobs(quick: bool) -> list[tuple[str, int, int]]:
    """(engine, rows of each process, nodes)."""
    nodes = 60 if quick else NODES
    listed = [(name, 50 if quick else rows, nodes) for name, rows in ROWS.items()]
    return [*listed, ("MMSB, vb", nodes, nodes)]


def measured(processes: int, quick: bool) -> list[dict[str, Any]]:
    """What an iteration of every engine takes with so many processes."""
    with tempfile.TemporaryDirectory() as name:
        folder, iterations = Path(name), 4 if quick else 12
        each = [(rank, processes, folder, jobs(quick), iterations) for rank in range(processes)]
        codes = run_all(problem.member, each)
        if any(codes.get(rank) != 0 for rank in range(processes)):
            raise RuntimeError(f"processes ended with {codes}")
        return json.loads((folder / f"{processes}.json").read_text())


def scaling(quick: bool, results: Path) -> Table:
    cores = os.cpu_count() or 1
    table = Table(
        "An iteration",
        ["engine", "processes", "rows in all", "ms", "of it adding up, ms", "compute, ms", "rows a second", "bytes",
         "by the formula", "formula, doubles"],
        note=(
            "Median iteration after the first third. Rows grow with the processes; of the graph (MMSB: nodes) one and "
            "the same is divided. Adding up is the time in all-reduces, with the wait for slower processes. Bytes: "
            f"what each process hands in. This machine has {cores} cores"
            + (f"; {', '.join(str(p) for p in PROCESSES if p > cores)} processes share them, "
               "which shows that it works and no speed." if max(PROCESSES) > cores else ".")
        ),
    )  # fmt: skip
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for processes in PROCESSES:
        for line in measured(processes, quick):
            engine = problem.engines(jobs(quick)[-1][2])[line["engine"]]
            numbers, _ = engine.numbers(line["rows"])
            paper = 0 if processes == 1 and not engine.all_rows else problem.WIDTH * numbers
            total = line["rows"] * (1 if engine.all_rows else processes)
            found.setdefault(line["engine"], {})[processes] = line
            compute = line["seconds"] - line["communication"]
            table.rows.append([
                line["engine"], processes, total, f"{1e3 * line['seconds']:.2f}", f"{1e3 * line['communication']:.2f}",
                f"{1e3 * compute:.2f}", f"{total / line['seconds']:.0f}", line["bytes"], paper, engine.formula,
            ])  # fmt: skip
            print(table.rows[-1], flush=True)
    table.rows.sort(key=lambda row: list(found).index(row[0]))
    table.figures = [_figure(found, results)]
    return table


def _figure(found: dict[str, dict[int, dict[str, Any]]], results: Path) -> str:
    figure, axes = plt.subplots(1, len(found), figsize=(3.1 * len(found), 3), layout="constrained")
    for axis, (name, lines) in zip(axes, found.items(), strict=True):
        at, places = list(lines), range(len(lines))
        adding = [1e3 * line["communication"] for line in lines.values()]
        compute = [1e3 * line["seconds"] - added for line, added in zip(lines.values(), adding, strict=True)]
        axis.bar(places, compute, color="#4c72b0", label="compute")
        axis.bar(places, adding, bottom=compute, color="#dd8452", label="adding up, with waiting")
        axis.set_xticks(places, [str(p) for p in at])
        axis.set(title=name, xlabel="processes")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("ms an iteration")
    axes[0].legend(frameon=False, fontsize=8, loc="upper left")
    axes[0].margins(y=0.35)
    results.mkdir(parents=True, exist_ok=True)
    figure.savefig(results / "distributed.png", dpi=130)
    plt.close(figure)
    return "distributed.png"


def paper(before: Table) -> Table:
    """From the measured compute of one process, what networks would add."""
    table = Table(
        "On paper, up to a thousand workers",
        ["engine", "S, kB", "messages", "compute a row, us", "workers", "each sends, kB",
         *(f"ms at {name}" for name in NETWORKS), *(f"rows a worker for 10 % at {name}" for name in NETWORKS)],
        note=(
            "S: bytes that an iteration adds up, by the formula. A ring all-reduce sends 2 (P - 1) / P S from every "
            "worker, in 2 (P - 1) steps; a tree takes 2 log2 P steps. With latency "
            f"{1e6 * LATENCY:.0f} us a step and bandwidth B an iteration adds "
            "8 * 2 (P - 1) / P S / B + messages * steps * latency; given is the faster of both. Rows a worker for "
            "10 %: 10 times that over the compute of a row, measured with one process on this machine. Of MMSB the "
            "dyads are divided, and the compute is that of a node of this graph. The networks are reckoned, not "
            "measured."
        ),
    )  # fmt: skip
    for row in before.rows:
        name, processes, rows, _, _, compute = row[:6]
        if int(processes) != 1:
            continue
        each = float(compute) / 1e3 / int(rows)
        numbers, messages = problem.engines(int(rows))[name].numbers(int(rows))
        for workers in WORKERS:
            table.rows.append(_paper_row(name, problem.WIDTH * numbers, messages, each, workers))
    return table


def _paper_row(name: str, size: int, messages: int, each: float, workers: int) -> list[Any]:
    added = [
        min(problem.seconds(size, messages, workers, bits=bits, latency=LATENCY, tree=tree) for tree in (False, True))
        for bits in NETWORKS.values()
    ]
    rows = [f"{problem.rows_for(one, each):.0f}" for one in added]
    sent = problem.ring_bytes(size, workers)
    shown = [f"{1e3 * one:.2f}" for one in added]
    return [name, f"{size / 1e3:.1f}", messages, f"{1e6 * each:.2f}", workers, f"{sent / 1e3:.1f}", *shown, *rows]


def searched(quick: bool) -> Table:
    """A search with 8 starts, by one process and by two."""
    rows, starts = (60, 4) if quick else (4000, 8)
    data = problem.binary_rows(64)(rows, 1)
    model = NOCA(num_components=8, num_features=64)
    table = Table(
        "A search",
        ["starts", "processes", "seconds", "best start, a row"],
        note=(
            f"EM on {rows} rows, {starts} starts of 60 iterations each, all of them made. Wall-clock seconds of "
            "everything: the first call with two processes starts the server that they are forked off, which imports "
            "torch and the suite; later ones find it. None is one after the other from one stream of random numbers."
        ),
    )
    lines = [("none", None), ("1", 1), ("2, the first call", 2), ("2, a later call", 2)]
    for label, processes in lines:
        search = Search(restarts=starts, agree=starts + 1, settle=60, processes=processes)
        begin = time.perf_counter()
        fit = EM(search=search, max_iterations=2).fit(model, data, progress=False)
        taken = time.perf_counter() - begin
        table.rows.append([starts, label, f"{taken:.2f}", max(fit.details["start_scores"])])
        print(table.rows[-1], flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    quick = parser.parse_args().quick
    quiet_and_single_threaded()
    torch.set_default_dtype(torch.float64)
    results = QUICK if quick else RESULTS
    search = searched(quick)  # before the server of the processes runs
    iteration = scaling(quick, results)
    write_report("distributed", "Several processes, measured", [iteration, paper(iteration), search], folder=results)


if __name__ == "__main__":
    main()
