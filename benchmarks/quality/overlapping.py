"""Overlapping communities: a benchmark graph whose nodes belong to one community or to four.

    python -m benchmarks.quality.overlapping [--data DIR] [--quick]

Writes ``benchmarks/results/overlapping.{md,json}``. An LFR graph that comes with svinet (Gopalan & Blei 2013): 1000
nodes, 29871 edges, 28 communities; 500 nodes are in one of them, 500 in four. F1: every true community's best F1 among
those found and every found one's best among the true, each averaged, and the mean of the two (Yang & Leskovec 2013).
Communities of a fit: the nodes with a membership of at least 0.1.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality import _graph_ours as ours
from benchmarks.quality._common import add_data_option, quiet_and_single_threaded, require_data, spread
from benchmarks.quality._graph_data import Array, KnownGraph, best_match_f1, lfr

#: The least membership of a member, and what is asked of the default fit: what svinet has reached.
MEMBER, LEAST = 0.1, 0.946
COLUMNS = ("method", "F1", "communities of a node", "CPU s", "target", "met")


def members(membership: Array) -> NDArray[np.bool_]:
    """The nodes of each community, (N, K)."""
    return membership >= MEMBER


def truth(known: KnownGraph) -> NDArray[np.bool_]:
    if known.communities is None:
        raise ValueError(f"{known.name} has no known communities")
    return known.communities


def line(name: str, known: KnownGraph, found: Sequence[NDArray[np.bool_]], seconds: str) -> list[Any]:
    scores = [best_match_f1(sets, truth(known)) for sets in found]
    number = [float(sets.sum(1).mean()) for sets in found]
    return [name, spread(scores), spread(number, 2), seconds]


def ours_table(known: KnownGraph, seeds: int, size: int) -> Table:
    table = Table(
        f"This project, {seeds} seeds",
        COLUMNS,
        note=f"K = {size}; min / median / max over the seeds. Truth: 2.5 communities of a node.",
    )
    data = ours.data_of(known)
    for kind in ("MMSB", "SBM", "degree-corrected SBM"):
        model = ours.model_of(kind, known, size)
        ours.warm_up(kind)
        fits = [ours.default_fit(model, data, seed) for seed in range(seeds)]
        sets = [members(fit.membership) for fit in fits]
        goal = ["", ""]
        if kind == "MMSB":
            met = min(best_match_f1(one, truth(known)) for one in sets) >= LEAST
            goal = [f"F1 >= {LEAST}", "yes" if met else "no"]
        seconds = spread([fit.seconds for fit in fits], 2)
        table.rows.append([*line(f"{kind}, fit(model, x)", known, sets, seconds), *goal])
        print(table.rows[-1], flush=True)
    return table


def sizes_table(known: KnownGraph, sizes: Sequence[int]) -> Table:
    """What the bound says of the number of communities."""
    table = Table("Number of communities", ["K", "bound on log p(x)", "F1", "CPU s"], note="MMSB, default fit, seed 0.")
    data = ours.data_of(known)
    for size in sizes:
        fit = ours.default_fit(ours.model_of("MMSB", known, size), data, 0)
        score = best_match_f1(members(fit.membership), truth(known))
        table.rows.append([size, f"{fit.bound:.0f}", f"{score:.3f}", f"{fit.seconds:.2f}"])
        print(table.rows[-1], flush=True)
    return table


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_option(parser)
    parser.add_argument("--quick", action="store_true", help="one seed: does it run?")
    arguments = parser.parse_args()
    quiet_and_single_threaded()
    known = lfr(require_data(parser, arguments))
    tables = [ours_table(known, 1 if arguments.quick else 3, truth(known).shape[1])]
    if not arguments.quick:
        tables.append(sizes_table(known, (14, 21, 28, 35, 42)))
    folder = QUICK if arguments.quick else RESULTS
    print(write_report("overlapping", "Overlapping communities", tables, intro=INTRO, folder=folder))


if __name__ == "__main__":
    main()
