"""Political blogs: two sides found from who links to whom, with and without degree correction.

    python -m benchmarks.quality.polblogs [--data DIR] [--quick]

Writes ``benchmarks/results/polblogs.{md,json}``. The largest component of the blogs of Adamic & Glance (2005): 1222
nodes, 16714 links as undirected edges. NMI and ARI: of the blocks with the two sides. Blocks of blogs of like degree
explain the links better than the sides do unless degrees have parameters of their own (Karrer & Newman 2011).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality import _graph_ours as ours
from benchmarks.quality._common import add_data_option, quiet_and_single_threaded, require_data, spread
from benchmarks.quality._graph_data import KnownGraph, agreement, polblogs
from benchmarks.quality._link_prediction import Split, baseline_rows, held_out, quality
from custom_inference import Search

#: What is asked of the degree-corrected model with two blocks.
LEAST = 0.72
#: Models, and methods that are not the default.
KINDS = (
    ("degree-corrected SBM", None),
    ("degree-corrected SBM", "mean_field"),
    ("degree-corrected SBM", "vb"),
    ("SBM", None),
    ("Poisson SBM", None),
    ("MMSB", None),
)
COLUMNS = ("method", "NMI", "ARI", "CPU s", "target", "met")


def two_blocks(known: KnownGraph, seeds: int) -> Table:
    table = Table(
        f"Two blocks, this project, {seeds} seeds",
        COLUMNS,
        note=(
            "fit(model, x) as it comes unless a method is named: points of the globals (mean_field), or the default, "
            "bethe, and vb with more starts. min / median / max over the seeds; MMSB: block of the largest membership."
        ),
    )
    data, truth = ours.data_of(known), known.groups["side"]
    thorough = {"tolerance": 1e-8, "max_iterations": 1000, "search": Search(restarts=12, agree=12)}
    for kind, method in KINDS:
        ours.warm_up(kind)
        settings = {} if method is None else {"method": method, **thorough}
        fits = [ours.default_fit(ours.model_of(kind, known, 2), data, seed, **settings) for seed in range(seeds)]
        scores = [agreement(fit.block, truth) for fit in fits]
        nmi, ari = ([score[name] for score in scores] for name in ("NMI", "ARI"))
        corrected = kind == KINDS[0][0]
        goal = [f"NMI >= {LEAST}", "yes" if min(nmi) >= LEAST else "no"] if corrected else ["", ""]
        name = kind if method is None else f"{kind}, method={method!r}, 12 starts, to convergence"
        table.rows.append([name, spread(nmi), spread(ari), spread([fit.seconds for fit in fits], 2), *goal])
        print(table.rows[-1], flush=True)
    return table


def sizes_table(known: KnownGraph, sizes: Sequence[int]) -> Table:
    """The bound on log p(x) by the number of blocks."""
    table = Table(
        "Number of blocks",
        ["model", *(f"K = {size}" for size in sizes), "best"],
        note="Last value of the bound on log p(x), nats, less that of the same model with one block; seed 0.",
    )
    data = ours.data_of(known)
    for kind in ("degree-corrected SBM", "SBM"):
        bounds = [ours.default_fit(ours.model_of(kind, known, size), data, 0).bound for size in (1, *sizes)]
        above = np.array(bounds[1:]) - bounds[0]
        table.rows.append([kind, *(f"{value:.0f}" for value in above), f"K = {sizes[int(above.argmax())]}"])
        print(table.rows[-1], flush=True)
    return table


def links_table(known: KnownGraph, split: Split, sizes: Sequence[int]) -> Table:
    hidden, edges = split.hidden.shape[1], int(split.x.sum())
    table = Table(
        "Links of held-out dyads",
        ["method", "K", "AUC", "AP", "log-loss", "CPU s"],
        note=(
            f"A tenth of all dyads held out ({hidden}, of which {edges} are links) and hidden from the models; the "
            "others see no links there. AP: average precision; log-loss: nats a dyad."
        ),
        rows=baseline_rows(split),
    )
    data = ours.data_of(known).without(split.hidden)
    for kind in dict(KINDS):
        for size in sizes:
            fit = ours.default_fit(ours.model_of(kind, known, size), data, 0)
            found = quality(split.x, ours.edge_probability(fit.fit, *split.hidden))
            cells = [f"{found['AUC']:.3f}", f"{found['AP']:.3f}", f"{found['log-loss']:.4f}"]
            table.rows.append([kind, size, *cells, f"{fit.seconds:.2f}"])
            print(table.rows[-1], flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_option(parser)
    parser.add_argument("--quick", action="store_true", help="one seed, few numbers of blocks: does it run?")
    arguments = parser.parse_args()
    quiet_and_single_threaded()
    known, quick = polblogs(require_data(parser, arguments)), arguments.quick
    tables = [
        two_blocks(known, 1 if quick else 5),
        sizes_table(known, (2, 3) if quick else (2, 4, 8, 16)),
        links_table(known, held_out(known, 0.1, seed=0), (2,) if quick else (2, 8)),
    ]
    print(write_report("polblogs", "Political blogs", tables, intro=INTRO, folder=QUICK if quick else RESULTS))


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
