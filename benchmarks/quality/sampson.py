"""Sampson's monks: three groups of novices found from who likes whom (Murphy 2012, section 27.5.2 and Fig. 27.22).

    python -m benchmarks.quality.sampson [--data DIR] [--quick] [--graph-tool PYTHON ...]

Writes ``benchmarks/results/sampson.{md,json}`` and figures. Of 18 novices each named those he liked best; relation
SAMPLK3 is the third wave of questions (56 choices), liking_any the union of the three (88). ARI: adjusted Rand index of
the blocks with Sampson's groups, three (Turks, Loyal, Outcasts) or four, where three novices are Waverers: a perfect
recovery of the three has .76 against the four. AUC: of the probabilities of edges over the 306 dyads fitted to.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality import _graph_ours as ours
from benchmarks.quality._common import add_data_option, quiet_and_single_threaded, require_data, spread
from benchmarks.quality._graph_data import Array, KnownGraph, agreement, dyads, entropy, in_sample_auc, sampson
from benchmarks.quality._graph_figures import monks, save
from benchmarks.quality._graph_peers import Peers, add_peer_options

RELATIONS = {"SAMPLK3": "third wave", "liking_any": "union of the waves"}
GROUPS = ("Turks", "Loyal", "Outcasts")
GIBBS: dict[str, dict[str, int]] = {
    "SBM": {"chains": 1, "warmup": 200, "num_samples": 100, "thin": 3},
    "MMSB": {"chains": 1, "warmup": 2000, "num_samples": 100, "thin": 10},
}
#: What is asked of the default fit.
LEAST = 1.0


class Score(NamedTuple):
    three: float
    four: float
    auc: float | None
    waverers: float
    others: float
    seconds: float


def score(known: KnownGraph, membership: Array, block: Any, probability: Array | None, seconds: float) -> Score:
    """probability (N, N) of edges, where it is known."""
    mixed, waverer = entropy(membership), known.groups["group4"] == "Waverers"
    auc = None if probability is None else in_sample_auc(known, probability)
    agreed = [agreement(block, known.groups[name])["ARI"] for name in ("group3", "group4")]
    return Score(*agreed, auc, float(mixed[waverer].mean()), float(mixed[~waverer].mean()), seconds)


def of_ours(known: KnownGraph, result: ours.Ours) -> Score:
    probability = np.zeros((known.num_nodes,) * 2)
    i, j = dyads(known.num_nodes, known.directed)
    probability[i, j] = ours.edge_probability(result.fit, i, j)
    return score(known, result.membership, result.block, probability, result.seconds)


COLUMNS = ("method", "ARI 1.00", "ARI, three groups", "ARI, four", "AUC", "waverers", "others", "CPU s")


def line(name: str, scores: Sequence[Score]) -> list[Any]:
    """min / median / max over the seeds; entropies: medians."""
    perfect = sum(s.three > 1 - 1e-9 for s in scores)
    auc = [s.auc for s in scores if s.auc is not None]
    cells = [spread([s.three for s in scores], 2), spread([s.four for s in scores], 2), spread(auc, 3) if auc else ""]
    mixed = [f"{np.median([getattr(s, part) for s in scores]):.2f}" for part in ("waverers", "others")]
    return [name, f"{perfect} of {len(scores)}", *cells, *mixed, spread([s.seconds for s in scores], 3)]


def ours_table(known: KnownGraph, seeds: int) -> tuple[Table, ours.Ours]:
    """Also the default fit of the MMSB with seed 0."""
    table = Table(f"This project, {RELATIONS[known.name]}, {seeds} seeds", COLUMNS, note=NOTE)
    data, shown = ours.data_of(known), []
    for kind in ("SBM", "MMSB"):
        model = ours.model_of(kind, known, 3)
        ours.default_fit(model, data, seeds)  # compiles what is compiled, as the next does
        ours.gibbs_fit(model, data, seeds, chains=1, warmup=2, num_samples=2, thin=1)
        fits = [ours.default_fit(model, data, seed) for seed in range(seeds)]
        shown.append(fits[0])
        table.rows.append(line(f"{kind}, fit(model, x)", [of_ours(known, fit) for fit in fits]))
        print(table.rows[-1], flush=True)
        fits = [ours.gibbs_fit(model, data, seed, **GIBBS[kind]) for seed in range(seeds)]
        table.rows.append(line(f"{kind}, {_sweeps(kind)} sweeps of Gibbs", [of_ours(known, fit) for fit in fits]))
        print(table.rows[-1], flush=True)
    return table, shown[1]


def _sweeps(kind: str) -> int:
    return GIBBS[kind]["warmup"] + GIBBS[kind]["num_samples"] * GIBBS[kind]["thin"]


NOTE = (
    "K = 3. Min / median / max over the seeds; waverers, others: entropy in nats of the memberships of the three "
    "Waverers and of the others, mean over the nodes, median over the seeds (three equal memberships: 1.10)."
)


def peers_table(known: KnownGraph, peers: Peers, seeds: int) -> Table:
    table = Table(f"Other programs, {RELATIONS[known.name]}, {seeds} seeds", COLUMNS, note=NOTE)
    for program, iterations in (("graph-tool", 0), ("R lda", 500), ("R lda", 5000), ("R blockmodels", 0)):
        if not peers.has(program):
            continue
        results = [peers.run(program, known, 3, seed, iterations=iterations) for seed in range(seeds)]
        scores = []
        for result in results:
            m = result.membership
            probability = None if result.probability is None else m @ result.probability @ m.T
            scores.append(score(known, m, result.block, probability, result.seconds))
        swept = f", {iterations} sweeps" if iterations else ""
        table.rows.append(line(f"{program} {results[0].version}{swept}", scores))
        print(table.rows[-1], flush=True)
    return table


def sizes_table(known: KnownGraph, sizes: Sequence[int]) -> Table:
    """The objective by the number of blocks."""
    table = Table(
        f"Number of blocks, {RELATIONS[known.name]}",
        ["model", *(f"K = {size}" for size in sizes), "best"],
        note=(
            "Best of five seeds' last objective, nats; in brackets which: vb is a bound on log p(x), cvb0 an "
            "approximation of it."
        ),
    )
    data = ours.data_of(known)
    for kind in ("SBM", "MMSB"):
        bounds, named = [], ""
        for size in sizes:
            model = ours.model_of(kind, known, size)
            fits = [ours.default_fit(model, data, seed) for seed in range(5)]
            bounds.append(max(fit.bound for fit in fits))
            named = f"{kind} ({fits[0].fit.bound_name})"
        table.rows.append([named, *(f"{value:.2f}" for value in bounds), f"K = {sizes[int(np.argmax(bounds))]}"])
        print(table.rows[-1], flush=True)
    return table


def by_group(known: KnownGraph, membership: Array) -> Array:
    """Columns in the order of GROUPS: each block is the group that it agrees with most, one-to-one."""
    from scipy.optimize import linear_sum_assignment

    is_group = np.stack([known.groups["group3"] == group for group in GROUPS]).astype(float)
    return membership[:, linear_sum_assignment(-(is_group @ membership))[1]]


def memberships_table(known: KnownGraph, membership: Array) -> Table:
    ordered = by_group(known, membership)
    table = Table(
        f"Memberships, {RELATIONS[known.name]}",
        ["novice", "Sampson's group", *GROUPS, "entropy"],
        note="MMSB, default fit, seed 0: posterior means. From the most mixed to the least.",
    )
    mixed = entropy(ordered)
    for n in np.argsort(-mixed):
        cells = [f"{value:.2f}" for value in (*ordered[n], mixed[n])]
        table.rows.append([known.names[n], str(known.groups["group4"][n]), *cells])
    return table


def report(folder: Path, seeds: int, peers: Peers, results: Path) -> Path:
    """All of the third wave; of the union of the waves what this project finds."""
    tables: list[Table] = []
    for relation in RELATIONS:
        known = sampson(folder, relation)
        table, shown = ours_table(known, seeds)
        tables.append(table)
        if known.name == "SAMPLK3":
            others = peers_table(known, peers, seeds)
            tables += [*([others] if others.rows else []), sizes_table(known, (1, 2, 3, 4, 5, 6))]
        members = memberships_table(known, shown.membership)
        figure = monks(known, by_group(known, shown.membership), GROUPS)
        members.figures = [save(figure, results, f"sampson_{relation.lower()}")]
        tables.append(members)
    return write_report("sampson", "Sampson's monks", tables, intro=INTRO, folder=results)


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_option(parser)
    add_peer_options(parser)
    parser.add_argument("--quick", action="store_true", help="two seeds: does it run?")
    arguments = parser.parse_args()
    quiet_and_single_threaded()
    seeds, results = (2, QUICK) if arguments.quick else (10, RESULTS)
    print(report(require_data(parser, arguments), seeds, Peers.of(arguments), results))


if __name__ == "__main__":
    main()
