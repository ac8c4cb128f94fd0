"""Planted partitions near the limit of what can be found.

    python -m benchmarks.quality.planted_limit [--parts limit others ...] [--again]

Writes ``benchmarks/results/planted_limit.{md,json}`` after every row: a part that was cut short goes on where it was,
unless it is to be measured ``--again``. PPL_SMOKE=1: small graphs, into ``results/quick``. Undirected graphs of N
nodes in q equal groups with mean degree c and eps = (rate between groups) / (rate within), drawn by
``datasets.sample_sbm``. Overlap: the share of nodes in the right group after the best matching of labels, scaled so
that chance is 0 and all right is 1. Limit: belief propagation at the true parameters on the same graph (Decelle,
Krzakala, Moore & Zdeborova, Phys. Rev. E 84, 2011, eqs. 26-28), started from the truth; from random messages it ends
at the same overlap. ``fit(model, x)`` learns the parameters.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import custom_inference
from benchmarks._report import QUICK, RESULTS, Table, read_tables, write_report
from benchmarks.quality._common import cpu_seconds, quiet_and_single_threaded
from benchmarks.quality._planted import affinity, drawn, from_truth, learned_from_truth, limit_of, overlap
from custom_inference import choose_num_blocks
from custom_inference.core.registry import engine_for
from ppl_models import SBM, DataWarning, DegreeCorrectedSBM

NAME, SMOKE = "planted_limit", os.environ.get("PPL_SMOKE") == "1"
_FOLDER = QUICK if SMOKE else RESULTS
#: N, q, c, eps.
PROBLEMS = ((2000, 2, 3, 0.1), (2000, 2, 5, 0.2), (2000, 2, 8, 0.35), (2000, 4, 16, 0.3), (2000, 4, 16, 0.35),
            (4000, 8, 20, 0.2))  # fmt: skip
FURTHER = ((1000, 2, 4, 0.15), (1000, 3, 10, 0.25), (2000, 3, 12, 8.0), (3000, 2, 6, 4.0), (5000, 5, 15, 0.2),
           (10_000, 4, 12, 0.25), (30_000, 3, 8, 0.2), (100_000, 2, 4, 0.15))  # fmt: skip
#: Groups, mean degree, eps of the graphs whose number of groups is chosen; three of each.
NUMBERS = tuple((q, c, eps) for q, c in ((2, 6), (3, 10), (4, 16)) for eps in (0.05, 0.15, 0.2, 0.25))
#: How far below the limit a fit may be.
MOST = 0.01
Row = list[Any]


def fitted(generated: Any, groups: int, seed: int, **settings: Any) -> tuple[float, float]:
    """Overlap and CPU seconds of a fit."""
    truth = generated.truth["block"].numpy()
    model = SBM(num_blocks=groups, num_nodes=len(truth), directed=False)
    call = lambda: custom_inference.fit(model, generated.graph, seed=seed, progress=False, **settings)  # noqa: E731
    fit, seconds = cpu_seconds(call)
    return overlap(fit.posterior.mean.numpy().argmax(1), truth, groups), seconds


def limits(problems: Any, seeds: int, methods: tuple[str, ...]) -> Iterator[tuple[Row, Any]]:
    """The first cells of every row, and what makes the others."""
    for problem in problems:
        for seed in range(seeds):
            nodes, groups, degree, ratio = problem

            def rest(problem: Any = problem, groups: int = groups, seed: int = seed) -> Row:
                generated = drawn(problem[0], groups, problem[2], problem[3], seed)
                limit = limit_of(generated, groups)
                every = [fitted(generated, groups, seed, **({"method": m} if m else {})) for m in methods]
                below = limit - every[0][0]
                cells = [f"{found:.3f} ({seconds:.2f} s)" for found, seconds in every]
                known = f"{learned_from_truth(generated, groups):.3f}"
                return [f"{limit:.3f}", known, *cells, f"{below:.3f}", "yes" if below <= MOST else "no"]

            yield [f"{nodes}, {groups}, {degree:g}, {ratio:g}", seed], rest


def affinities(count: int) -> Iterator[tuple[Row, Any]]:
    for seed in range(count):

        def rest(seed: int = seed) -> Row:
            generated = affinity(seed)
            truth = generated.truth["block"]
            groups = int(truth.max()) + 1
            model = SBM(num_blocks=groups, num_nodes=len(truth), directed=False)
            fit, seconds = cpu_seconds(
                lambda: custom_inference.fit(model, generated.graph, method="bethe", seed=seed, progress=False)
            )
            value, labels = from_truth(model, fit.data, truth)
            found = overlap(fit.posterior.mean.numpy().argmax(1), truth, groups)
            gain = float(fit.elbo[-1]) - value
            known = overlap(labels, truth, groups)
            good = gain > -1 or found >= known - MOST
            return [f"{len(truth)}, {groups}", f"{found:.3f}", f"{known:.3f}", f"{gain:.1f}", f"{seconds:.2f}",
                    "yes" if good else "no"]  # fmt: skip

        yield [seed], rest


def linear() -> Iterator[tuple[Row, Any]]:
    for nodes in (1000, 2000) if SMOKE else (1000, 3000, 10_000, 30_000, 100_000):

        def rest(nodes: int = nodes) -> Row:
            generated = drawn(nodes, 4, 12, 0.2, 0)
            model = SBM(num_blocks=4, num_nodes=nodes, directed=False)
            engine: Any = engine_for(model, "bethe")
            data = model.prepare(generated.graph)
            rows = engine.rows(model, data)
            codes = torch.nn.functional.one_hot(generated.truth["block"].long(), 4).double()
            state = engine.from_responsibilities(model, codes, rows)
            step = engine.e_step(model, state, rows)

            def rounds(state: Any = state, step: Any = step) -> None:
                for _ in range(10):
                    state = engine.m_step(model, state, step, rows)
                    step = engine.e_step(model, state, rows, step.locals)

            _, seconds = cpu_seconds(rounds)
            _, whole = fitted(generated, 4, 0)
            edges = rows.edges.nnz // 2
            return [edges, f"{100 * seconds:.2f}", f"{1e8 * seconds / edges:.0f}", f"{whole:.2f}"]

        yield [nodes], rest


def polblogs(seeds: int) -> Iterator[tuple[Row, Any]]:
    folder = os.environ.get("PPL_DATA")
    for seed in range(seeds if folder else 0):

        def rest(seed: int = seed) -> Row:
            from benchmarks.quality._graph_data import agreement
            from benchmarks.quality._graph_data import polblogs as load

            known = load(Path(str(folder)))
            model = DegreeCorrectedSBM(num_blocks=2, num_nodes=known.num_nodes, directed=False)
            call = lambda: custom_inference.fit(model, known.adjacency, seed=seed, progress=False)  # noqa: E731
            fit, seconds = cpu_seconds(call)
            found = agreement(fit.params["block"], known.groups["side"])
            return [f"{found['NMI']:.3f}", f"{found['ARI']:.3f}", f"{seconds:.2f}"]

        yield [seed], rest


def number(settings: Any, seeds: int) -> Iterator[tuple[Row, Any]]:
    for groups, degree, ratio in settings:
        for seed in range(seeds):

            def rest(groups: int = groups, degree: float = degree, ratio: float = ratio, seed: int = seed) -> Row:
                nodes = 720
                generated = drawn(nodes, groups, degree, ratio, seed)
                model = SBM(num_blocks=1, num_nodes=nodes, directed=False)
                names = ("bethe", "icl", "evidence")
                choice = choose_num_blocks(
                    model, generated.graph, range(1, groups + 3), criterion=names, seed=seed, progress=False
                )
                return [int(choice.table.index[choice.table[name].to_numpy(float).argmax()]) for name in names]

            yield [f"{groups}, {degree:g}, {ratio:g}", seed], rest


TRUTH = "EM from the truth"
#: Part -> title, columns, note.
TABLES = {
    "limit": ("Overlap with the planted groups (CPU seconds of a fit)",
              ["N, q, c, eps", "seed", "limit", TRUTH, "fit(model, x)", "below", f"at most {MOST}"],
              "Fits as they come, parameters learned."),
    "others": ("Other methods", ["N, q, c, eps", "seed", "limit", TRUTH, "vb", "mean_field", "gibbs", "vb below",
                                 f"at most {MOST}"], ""),
    "further": ("Further settings",
                ["N, q, c, eps", "seed", "limit", TRUTH, "fit(model, x)", "below", f"at most {MOST}"], ""),
    "affinities": ("Random sizes and rates",
                   ["graph", "N, q", "overlap", "from the truth", "log Z above", "CPU s", "at least as good"],
                   "Beside EM from the true groups: at least as good where log Z is no more than 1 below, or the "
                   "overlap no more than .01."),
    "linear": ("Cost of a round",
               ["N", "edges", "CPU ms a sweep and M step", "ns an edge", "CPU s of a fit"], "q = 4, c = 12, eps = .2."),
    "polblogs": ("Political blogs, degree-corrected, K = 2", ["seed", "NMI", "ARI", "CPU s"],
                 "The default fit of the largest component."),
    "number": ("Number of groups, N = 720", ["q, c, eps", "seed", "bethe", "icl", "evidence"],
               "What each criterion of choose_num_blocks chooses among 1 to q + 2."),
}  # fmt: skip


def rows_of(part: str) -> Iterator[tuple[Row, Any]]:
    small = ((400, 2, 5, 0.15),)
    seeds = 1 if SMOKE else 3
    made = {
        "limit": lambda: limits(small if SMOKE else PROBLEMS, seeds, ("",)),
        "others": lambda: limits(small if SMOKE else PROBLEMS, 1, ("vb", "mean_field", "gibbs")),
        "further": lambda: limits(small if SMOKE else FURTHER, seeds, ("",)),
        "affinities": lambda: affinities(1 if SMOKE else 80),
        "linear": linear,
        "polblogs": lambda: polblogs(1 if SMOKE else 3),
        "number": lambda: number(NUMBERS[:1] if SMOKE else NUMBERS, seeds),
    }
    return made[part]()


def means(table: Table) -> Table | None:
    """Over the seeds of each setting."""
    if "fit(model, x)" not in table.columns or not table.rows:
        return None
    place = {name: table.columns.index(name) for name in ("limit", TRUTH, "fit(model, x)")}
    settings: dict[str, list[list[float]]] = {}
    for row in table.rows:
        settings.setdefault(row[0], []).append([float(str(row[at]).split()[0]) for at in place.values()])
        settings[row[0]][-1].append(float(row[place["fit(model, x)"]].split("(")[1].split()[0]))
    found = Table(f"{table.title}: means over the seeds", ["N, q, c, eps", *place, "below", "CPU s"])
    for name, rows in settings.items():
        limit, known, fit, seconds = np.mean(rows, 0)
        found.rows.append([name, *(f"{one:.3f}" for one in (limit, known, fit, limit - fit)), f"{seconds:.2f}"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--again", action="store_true", help="measure all rows of these parts anew")
    arguments = parser.parse_args()
    quiet_and_single_threaded()
    warnings.simplefilter("ignore", DataWarning)  # sparse graphs have nodes without edges
    for method in ("bethe", "vb", "gibbs") if "others" in arguments.parts else ("bethe",):  # compile
        fitted(drawn(400, 2, 5, 0.15, 0), 2, 0, method=method)
    earlier = read_tables(NAME, folder=_FOLDER)
    tables = {}
    for part, (title, columns, note) in TABLES.items():
        known = earlier.get(title)
        fresh = known is None or known.columns != columns or (arguments.again and part in arguments.parts)
        tables[part] = Table(title, columns, note=note) if fresh or known is None else known
    for part in arguments.parts:
        table = tables[part]
        done = {tuple(str(one) for one in row[:2]) for row in table.rows}
        for first, rest in rows_of(part):
            key = tuple(str(one) for one in first)
            if any(row[: len(key)] == key for row in done):
                continue
            table.rows.append([*first, *rest()])
            print(part, table.rows[-1], flush=True)
            shown = [each for one in tables.values() if one.rows for each in (one, means(one)) if each is not None]
            write_report(NAME, "Planted partitions at the limit", shown, intro=INTRO, folder=_FOLDER)


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
