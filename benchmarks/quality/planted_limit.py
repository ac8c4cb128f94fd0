"""Planted partitions near the limit of what can be found.

    python -m benchmarks.quality.planted_limit

Writes ``benchmarks/results/planted_limit.{md,json}``. PPL_SMOKE=1: small graphs, into ``results/quick``. Undirected
graphs of N nodes in q equal groups with mean degree c and eps = (rate between groups) / (rate within), drawn by
``datasets.sample_sbm``. Overlap: the share of nodes in the right group after the best matching of labels, scaled so
that chance is 0 and all right is 1. Limit: belief propagation at the true parameters on the same graph (Decelle,
Krzakala, Moore & Zdeborova, Phys. Rev. E 84, 2011, eqs. 26-28), started from the truth; from random messages it ends at
the same overlap. ``fit(model, x)`` learns the parameters.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import custom_inference
from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality._common import cpu_seconds, quiet_and_single_threaded, spread
from benchmarks.quality._planted import drawn, learned_from_truth, limit_of, overlap
from custom_inference import choose_num_blocks
from ppl_models import SBM, DataWarning

SMOKE = os.environ.get("PPL_SMOKE") == "1"
SEEDS = 1 if SMOKE else 3
#: N, q, c, eps.
PROBLEMS = ((2000, 2, 3, 0.1), (2000, 2, 5, 0.2), (2000, 2, 8, 0.35), (2000, 4, 16, 0.3), (2000, 4, 16, 0.35),
            (4000, 8, 20, 0.2))  # fmt: skip
FURTHER = ((1000, 2, 4, 0.15), (1000, 3, 10, 0.25), (2000, 3, 12, 8.0), (3000, 2, 6, 4.0), (5000, 5, 15, 0.2),
           (10_000, 4, 12, 0.25), (30_000, 3, 8, 0.2))  # fmt: skip
#: Groups, mean degree, eps of the graphs whose number of groups is chosen.
NUMBERS = tuple((q, c, eps) for q, c in ((2, 6), (3, 10), (4, 16)) for eps in (0.05, 0.2, 0.25))
#: How far below the limit a fit may be.
MOST = 0.01
COLUMNS = ("N, q, c, eps", "limit", "EM from the truth", "fit(model, x)", "most below", f"at most {MOST}", "CPU s")


def fitted(generated: Any, groups: int, seed: int) -> tuple[float, float]:
    """Overlap and CPU seconds of the default fit."""
    truth = generated.truth["block"].numpy()
    model = SBM(num_blocks=groups, num_nodes=len(truth), directed=False)
    call = partial(custom_inference.fit, model, generated.graph, seed=seed, progress=False)
    fit, seconds = cpu_seconds(call)
    return overlap(fit.posterior.mean.numpy().argmax(1), truth, groups), seconds


def limits(title: str, problems: Sequence[tuple[int, int, float, float]]) -> Table:
    table = Table(title, COLUMNS, note=f"Fits as they come, parameters learned; means over {SEEDS} seeds.")
    for nodes, groups, degree, ratio in problems:
        found = []
        for seed in range(SEEDS):
            generated = drawn(nodes, groups, degree, ratio, seed)
            limit, known = limit_of(generated, groups), learned_from_truth(generated, groups)
            found.append((limit, known, *fitted(generated, groups, seed)))
        limit, known, ours, seconds = np.array(found).T
        below = limit - ours
        cells = [f"{part.mean():.3f}" for part in (limit, known, ours)]
        met = f"{int((below <= MOST).sum())} of {SEEDS}"
        name = f"{nodes}, {groups}, {degree:g}, {ratio:g}"
        table.rows.append([name, *cells, f"{below.max():.3f}", met, spread(seconds.tolist(), 2)])
        print(table.rows[-1], flush=True)
    return table


def number() -> Table:
    """What each criterion chooses, by seed."""
    names = ("bethe", "icl", "evidence")
    note = f"What each criterion of choose_num_blocks chooses among 1 to q + 2, in {SEEDS} graphs each."
    table = Table("Number of groups, N = 720", ("q, c, eps", *names), note=note)
    for groups, degree, ratio in NUMBERS[: 1 if SMOKE else None]:
        chosen: dict[str, list[str]] = {name: [] for name in names}
        for seed in range(SEEDS):
            generated, model = drawn(720, groups, degree, ratio, seed), SBM(num_blocks=1, num_nodes=720, directed=False)
            sizes = range(1, groups + 3)
            choice = choose_num_blocks(model, generated.graph, sizes, criterion=names, seed=seed, progress=False)
            for name in names:
                chosen[name].append(str(choice.table.index[choice.table[name].to_numpy(float).argmax()]))
        table.rows.append([f"{groups}, {degree:g}, {ratio:g}", *(", ".join(one) for one in chosen.values())])
        print(table.rows[-1], flush=True)
    return table


def main() -> None:
    quiet_and_single_threaded()
    warnings.simplefilter("ignore", DataWarning)  # sparse graphs have nodes without edges
    small = ((400, 2, 5, 0.15),)
    fitted(drawn(*small[0], 0), 2, 0)  # compiles
    tables = [
        limits("Overlap with the planted groups", small if SMOKE else PROBLEMS),
        limits("Further settings", small if SMOKE else FURTHER),
        number(),
    ]
    title, folder = "Planted partitions at the limit", QUICK if SMOKE else RESULTS
    write_report("planted_limit", title, tables, intro=INTRO, folder=folder)


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
