"""Does NOCA find the sources? The default fit, the paper's algorithm as it is, and where both fall short.

    python -m benchmarks.quality.noca_recovery [--seeds 20] [--data DIR] [--only SECTION ...] [--quick]

Writes ``benchmarks/results/noca_recovery.{md,json}``. A source counts as found where the cosine between its loading and
the true one, matched one-to-one, is above .95. Scores are exact log-likelihoods per row minus those of the true
parameters, on the training rows; ``min / median / max`` over the runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks._report import Table, read_tables, write_report
from benchmarks.quality import _families as families
from benchmarks.quality._common import (
    Known,
    add_data_option,
    counts,
    cpu_seconds,
    load_known,
    quiet_and_single_threaded,
    require_data,
    spread,
)
from custom_inference import EM, FactorizedNoisyOr, Fit, Search, VariationalEM, fit
from custom_inference.core.local_inference import LocalSolver
from custom_inference.families.noca.truncated import NocaTruncated
from ppl_models.datasets import overlapping_boxes

SETS = ("IMG", "UNIF", "CON8")
SECTIONS = ("default", "plain", "overcomplete", "boxes", "scarce", "families")
DEFAULT = "Default fit, K = 8"
PLAIN = "The paper's algorithm run plainly, and its ingredients one at a time"
OVERCOMPLETE = "Over-complete, K = 16 where 8 are true"
BOXES = "Beyond enumeration: 32 random boxes and frames on 16x16 pixels"
SCARCE = "Few rows, and missing entries"
Method = Callable[[Known, int], Fit]


def default(known: Known, seed: int) -> Fit:
    return fit(known.model(), known.data, seed=seed, progress=False)


def _method(settings: Any) -> Method:
    return lambda known, seed: settings.fit(known.model(), known.data, seed=seed, progress=False)


def score(known: Known, method: Method, seeds: Sequence[int], truth: float) -> list[Any]:
    """found, sources active, log-likelihood minus the truth's, CPU seconds, iterations: over the seeds."""
    found, above, seconds, ended = [], [], [], 0
    for seed in seeds:
        result, cpu = cpu_seconds(lambda seed=seed: method(known, seed))
        found.append(known.found(result.params))
        above.append(known.exact(result.params) - truth)
        seconds.append(cpu)
        ended += "limit" in result.status
    complete = sum(f == known.num_sources for f in found)
    return [
        f"{complete} of {len(found)}",
        counts(found, known.num_sources),
        sum(a >= 0 for a in above),
        spread(above),
        spread(seconds, 2),
        ended,
    ]


COLUMNS = [
    "set",
    "method",
    "all found",
    "found x runs",
    "not below truth",
    "log-lik minus truth's",
    "CPU s",
    "stopped at limit",
]


def default_table(sets: Sequence[Known], num_seeds: int) -> Table:
    """(a) the default fit."""
    table = Table(
        DEFAULT,
        COLUMNS,
        note=f"First {len(sets[0].data)} rows of each set, {num_seeds} seeds, `fit(model, x, seed=s)`, with restarts.",
    )
    for known in sets:
        truth = known.exact(known.truth)
        table.rows.append([known.name, "default fit", *score(known, default, range(num_seeds), truth)])
    return table


def from_truth(settings: Any) -> Method:
    """The method started from the true parameters: is its optimum there at all?"""
    return lambda known, seed: settings.fit(known.model(), known.data, seed=seed, init=known.truth, progress=False)


def plain_table(sets: Sequence[Known], num_seeds: int, limit: int) -> Table:
    """(b) the paper's algorithm as printed, and its ingredients one at a time."""
    factorized, few = VariationalEM(guide="factorized", max_iterations=limit), max(1, num_seeds // 4)
    paper = replace(factorized, guide=FactorizedNoisyOr(start="prior"), search=None)
    methods = {
        "factorized bound, one random start (the paper)": (_method(paper), num_seeds),
        "factorized bound, default search": (_method(factorized), few),
        "factorized bound, started at the truth": (from_truth(factorized), 1),
        "mean-field bound, default search": (_method(VariationalEM(guide="mean_field", max_iterations=limit)), 1),
        "exact EM, one random start": (_method(EM(search=None, max_iterations=1000)), 4 * num_seeds),
        "exact EM, best of 6 random starts": (_method(EM(search=Search(informed=False))), 4 * num_seeds),
    }
    table = Table(
        PLAIN,
        COLUMNS,
        note=(
            "Same data. The paper's algorithm: factorized bound (eq. 7), one random start, no annealing, at most "
            f"{limit} iterations (tolerance 1e-5 a row; the last column counts the runs that the limit ended). Started "
            "at the truth, it shows where the bound's own optimum lies: what is lost there is the bound's doing, not "
            "the start's. Scores are the exact log-likelihood of the parameters that each method arrives at."
        ),
    )
    for known in sets:
        truth = known.exact(known.truth)
        for name, (method, runs) in methods.items():
            table.rows.append([known.name, name, *score(known, method, range(runs), truth)])
            print("  ", *table.rows[-1], flush=True)
    return table


def overcomplete_table(sets: Sequence[Known], num_seeds: int) -> Table:
    """(c) twice as many sources as there are."""
    table = Table(
        OVERCOMPLETE,
        ["set", "all found", "found x runs", "active x runs", "not below truth", "log-lik minus truth's", "CPU s"],
        note="Default fit. Active: not shut off (`Fit.shut_off`: prior < .005, or links that sum to < .1).",
    )
    for known in sets:
        table.rows.append(_overcomplete(known, num_seeds))
    return table


def _overcomplete(known: Known, num_seeds: int) -> list[Any]:
    truth = known.exact(known.truth)
    found, active, above, seconds = [], [], [], []
    for seed in range(num_seeds):
        result, cpu = cpu_seconds(lambda seed=seed: fit(known.model(16), known.data, seed=seed, progress=False))
        found.append(known.found(result.params))
        active.append(int((~result.shut_off()).sum()))
        above.append(known.exact(result.params) - truth)
        seconds.append(cpu)
    return [
        known.name,
        f"{sum(f == known.num_sources for f in found)} of {num_seeds}",
        counts(found, known.num_sources),
        counts(active, 16),
        sum(a >= 0 for a in above),
        spread(above),
        spread(seconds, 2),
    ]


def boxes_table(num_draws: int, num_rows: int) -> Table:
    """(d) beyond enumeration."""
    table = Table(
        BOXES,
        ["draw", "found of 32", "bound a row", "bound at the truth", "the fit's own bound", "CPU s", "status"],
        note=(
            f"`datasets.overlapping_boxes`, N = {num_rows}, a new draw of patterns and rows per line, default fit. "
            "The first two bounds are on the same footing: truncated posteriors with the 2^6 codes of 6 free sources "
            "per row. The fit itself uses fewer codes."
        ),
    )
    judge = LocalSolver(engine=NocaTruncated(free=6, refresh_every=1), max_iterations=12, tolerance=1e-4)
    for draw in range(num_draws):
        known = Known.of(f"boxes {draw}", overlapping_boxes(num_rows, draw))
        result, cpu = cpu_seconds(lambda known=known, draw=draw: default(known, draw))
        both = (result.params, known.truth)
        bounds = [float(judge.solve(result.model, params, known.data).bound.mean()) for params in both]
        own = float(result.elbo[-1]) / num_rows
        table.rows.append([draw, known.found(result.params), *bounds, own, cpu, result.status.split(";")[0]])
    return table


def scarce_table(sets: Sequence[Known], num_seeds: int) -> Table:
    """(e) few rows, missing entries."""
    table = Table(
        SCARCE,
        ["set", "data", "found x runs", "EM from the truth finds", "log-lik minus that of EM from the truth", "CPU s"],
        note=(
            f"Default fit, {num_seeds} different samples each (rows, or the missing entries, are drawn anew). "
            "The reference is the optimum that EM climbs to from the true parameters; positive: the default fit found "
            "a better one, as maximum likelihood on few rows overfits."
        ),
    )
    for known in sets:
        for name in ("50 rows", "200 rows", "2000 rows, 20% missing", "2000 rows, 50% missing"):
            results = [_against_truth(_scarce(known, name, seed), seed) for seed in range(num_seeds)]
            found, ideal, above, seconds = (list(column) for column in zip(*results, strict=True))
            of = known.num_sources
            shown = [counts(found, of), counts(ideal, of), spread(above), spread(seconds, 2)]
            table.rows.append([known.name, name, *shown])
    return table


def _scarce(known: Known, name: str, seed: int) -> Known:
    generator = torch.Generator().manual_seed(seed)
    number = int(name.split()[0])
    part = known.data.rows(torch.randperm(len(known.data), generator=generator)[:number])
    if "missing" not in name:
        return Known(name, part, known.truth)
    rate = int(name.split()[2][:-1]) / 100
    mask = torch.rand(part.x.shape, generator=generator) > rate
    return Known(name, replace(part, x=part.x * mask, mask=mask), known.truth)


def _against_truth(known: Known, seed: int) -> tuple[int, int, float, float]:
    """found, found by EM from the truth, log-likelihood against it, CPU seconds."""
    result, cpu = cpu_seconds(lambda: default(known, seed))
    ideal = EM(max_iterations=1000, tolerance=1e-6).fit(known.model(), known.data, init=known.truth, progress=False)
    gain = known.exact(result.params) - known.exact(ideal.params)
    return known.found(result.params), known.found(ideal.params), gain, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20, help="seeds of the default fit (a); the others use fewer")
    parser.add_argument("--quick", action="store_true", help="a tenth of the runs, to try the script out")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="measure these again, keep the others")
    add_data_option(parser)
    arguments = parser.parse_args()
    folder = require_data(parser, arguments)
    quiet_and_single_threaded()
    sets = [load_known(folder, name, 2000) for name in SETS]
    quick, seeds = arguments.quick, 2 if arguments.quick else arguments.seeds
    name = "noca_recovery_quick" if quick else "noca_recovery"
    sections: dict[str, tuple[str, Callable[[], Table]]] = {
        "default": (DEFAULT, lambda: default_table(sets, seeds)),
        "plain": (PLAIN, lambda: plain_table(sets, 1 if quick else max(1, seeds // 4), 30 if quick else 120)),
        "overcomplete": (OVERCOMPLETE, lambda: overcomplete_table(sets, 1 if quick else max(1, seeds // 2))),
        "boxes": (BOXES, lambda: boxes_table(1 if quick else 8, 1000 if quick else 5000)),
        "scarce": (SCARCE, lambda: scarce_table(sets, 1 if quick else max(1, seeds // 4))),
        "families": (families.TITLE, lambda: families.table(1 if quick else 3)),
    }
    chosen = arguments.only or list(sections)
    done = read_tables(name)
    for key in sorted(chosen, key=lambda key: key == "plain"):  # by far the slowest comes last
        title, section = sections[key]
        done[title] = section()
        tables = [done[title] for title, _ in sections.values() if title in done]
        path = write_report(name, "NOCA: recovery of known sources", tables, {"seeds": seeds}, intro=INTRO)
        print(title, "->", path, flush=True)


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
