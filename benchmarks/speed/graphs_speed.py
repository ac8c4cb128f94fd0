"""What fits of graphs cost by nodes, edges and blocks, in time and memory.

    python -m benchmarks.speed.graphs_speed [--quick]

Writes ``benchmarks/results/graphs_speed.{md,json}`` and a figure. All times are CPU seconds of one thread. Undirected
graphs with equal planted blocks, four of five edges within the blocks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality._common import quiet_and_single_threaded
from benchmarks.quality._graph_data import KnownGraph
from benchmarks.quality._graph_figures import save, slopes
from benchmarks.speed._graph_problem import ENGINES, planted, sweep_seconds

DEGREE, BLOCKS, NODES = 20.0, 8, 5000
ROOT = Path(__file__).resolve().parents[2]


def axes(quick: bool) -> dict[str, list[tuple[float, KnownGraph, int]]]:
    """Axis -> (its value, graph, K): one of nodes, edges and blocks changes, the others stay."""
    nodes = (500, 1000) if quick else (1000, 5000, 25_000)
    degrees = (5, 10) if quick else (5, 20, 80)
    blocks = (2, 4) if quick else (2, 8, 32)
    fixed = 500 if quick else NODES
    of_degree = [planted(fixed, degree, BLOCKS, 0) for degree in degrees]
    return {
        f"nodes ({DEGREE:g} edges a node, K = {BLOCKS})": [(n, planted(n, DEGREE, BLOCKS, 0), BLOCKS) for n in nodes],
        f"edges (N = {fixed}, K = {BLOCKS})": [(len(g.edges), g, BLOCKS) for g in of_degree],
        f"blocks K (N = {fixed}, {DEGREE:g} edges a node)": [(k, planted(fixed, DEGREE, k, 0), k) for k in blocks],
    }


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of the least-squares line through the logarithms, of the upper half of the points: constants fade there."""
    start = max(0, min(len(x) // 2, len(x) - 2))
    return float(np.polyfit(np.log(x[start:]), np.log(y[start:]), 1)[0])


def sweeps_table(quick: bool, results: Path) -> Table:
    """Seconds of an iteration of each engine along each axis."""
    table = Table(
        "A sweep",
        ["axis", "method", "CPU ms, at axis value", "slope"],
        note=(
            "CPU milliseconds of one iteration: VB, all nodes or dyads once; Gibbs, every label drawn once; stochastic "
            "VB, 100 nodes with all their edges and 50 other dyads each. Differences of two runs, so that preparing "
            "does not count. Slope: of log "
            "time against log axis over the upper half of the values."
        ),
    )
    panels: dict[str, dict[str, tuple[list[float], list[float], float]]] = {}
    warm = planted(200, 5, 2, 1)
    for engine in ENGINES.values():
        engine.run(warm, 2, 3)  # compiles what is compiled
    for axis, problems in axes(quick).items():
        for name, engine in ENGINES.items():
            chosen = [problem for problem in problems if problem[1].num_nodes <= engine.most]
            _add_line(table, panels, axis, name, chosen, lambda g, k, e=engine: sweep_seconds(e, g, k))
    table.figures = [save(slopes(panels, "CPU seconds of an iteration"), results, "graphs_speed")]
    return table


def _add_line(
    table: Table,
    panels: dict[str, dict[str, tuple[list[float], list[float], float]]],
    axis: str,
    name: str,
    problems: Sequence[tuple[float, KnownGraph, int]],
    call: Callable[[KnownGraph, int], float],
) -> None:
    if len(problems) < 2:
        return
    x, y = [value for value, _, _ in problems], [call(graph, size) for _, graph, size in problems]
    panels.setdefault(axis, {})[name] = x, y, slope(x, y)
    shown = ", ".join(f"{1e3 * seconds:.3g} at {value:g}" for value, seconds in zip(x, y, strict=True))
    table.rows.append([axis, name, shown, f"{slope(x, y):.2f}"])
    print(table.rows[-1], flush=True)


# ----- memory ---------------------------------------------------------------------------------------------------------


def memory_table(quick: bool) -> Table:
    table = Table(
        "Memory",
        ["method", "nodes", "edges", "MB above imports and graph", "bytes a node and edge", "N x N array, MB"],
        note=f"Peak of five iterations in a process of its own, K = {BLOCKS}; beside it one number for each dyad.",
    )
    for name, engine in ENGINES.items():
        for nodes in (1000,) if quick else (10_000, 25_000):
            if nodes > engine.most:
                continue
            command = [sys.executable, "-m", "benchmarks.speed._graph_worker", name, str(nodes), str(DEGREE)]
            done = subprocess.run([*command, str(BLOCKS)], cwd=ROOT, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            used = found["after"] - found["before"]
            each = f"{used / (nodes + found['edges']):.0f}"
            row = [name, nodes, found["edges"], f"{used / 1e6:.0f}", each, f"{8 * nodes**2 / 1e6:.0f}"]
            table.rows.append(row)
            print(table.rows[-1], flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small graphs: does it run?")
    quick = parser.parse_args().quick
    quiet_and_single_threaded()
    folder = QUICK if quick else RESULTS
    tables = [sweeps_table(quick, folder), memory_table(quick)]
    print(write_report("graphs_speed", "Graphs: speed", tables, intro=INTRO, folder=folder))


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
