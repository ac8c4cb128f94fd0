"""Simulation-based calibration of models by methods.

    python -m benchmarks.quality.calibration [--simulations 100] [--only locals fits] [--models lda ctm] [--missing]

Writes ``benchmarks/results/calibration.{md,json}`` after every case, and two figures, from the curves in
``curves/calibration.json``; cases that are not measured again keep their lines. Truth and data are drawn from small
models; where the truth ranks among the posterior's draws must be uniform. Exact posteriors have to pass, posteriors
that are spoiled on purpose have to fail, and the others show what kind of error an approximation makes. A case is said
to deviate where the exact p-value of its worst quantity, adjusted for their number (Holm), is below 0.001: of some 70
exact cases one would do so by chance in about 7 % of runs. Coverage is that of the quantity with the smallest p-value.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._report import QUICK, RESULTS, Table, read_tables, write_report
from benchmarks.quality._calibration_cases import APPROXIMATE, EXACT, SPOILED, Case, fit_cases, local_cases
from benchmarks.quality._calibration_figure import draw, save_curves
from benchmarks.quality._common import cpu_seconds, quiet_and_single_threaded
from custom_inference import Calibration, simulation_based_calibration

SIGNIFICANCE = 0.001
COLUMNS = (
    "model", "method", "posterior", "simulations", "finding", "p", "quantity", "50 %", "80 %", "95 %", "as it should",
    "CPU s",
)  # fmt: skip
PARTS = {
    "locals": (local_cases, "Local latents at given globals", "20 rows each; graphs of 7 nodes, one rank of each."),
    "fits": (fit_cases, "Whole fits", "10 rows or documents, or a graph of 7 nodes; one rank of each simulation."),
}


def checked(case: Case, simulations: int) -> tuple[Calibration, float]:
    number = max(2, round(case.share * simulations))
    return cpu_seconds(
        lambda: simulation_based_calibration(
            case.model, case.method, of=case.of, num_simulations=number, num_rows=case.num_rows, like=case.like,
            significance=SIGNIFICANCE, progress=False,
        )
    )  # fmt: skip


def line(case: Case, found: Calibration, seconds: float) -> list[object]:
    worst = found.table.sort_values("p_value", kind="stable").iloc[0]
    expected = {EXACT: found.passed, SPOILED: not found.passed}.get(case.known)
    covered = [f"{100 * worst[f'coverage_{level}']:.0f} %" for level in (50, 80, 95)]
    return [
        case.title, found.ranks.attrs["method"], case.known, len(found), found.verdict.split(":")[0],
        f"{worst.p_adjusted:.1g}", worst.name, *covered, "" if expected is None else "yes" if expected else "NO",
        f"{seconds:.1f}",
    ]  # fmt: skip


def measure(part: str, chosen: Chosen, simulations: int, folder: Path) -> None:
    """Run the cases, one after the other, each written as soon as it is known."""
    make, *_ = PARTS[part]
    cases = make()
    kept = _rows(part, cases, folder)
    for case in cases:
        if chosen.models and case.title not in chosen.models:
            continue
        if not (chosen.missing and (*case.key, case.known) in kept):
            found, seconds = checked(case, simulations)
            save_curves(part, case, found, folder)
            kept[(*case.key, case.known)] = line(case, found, seconds)
            print(*kept[(*case.key, case.known)], sep=" | ", flush=True)
            report(part, list(kept.values()), folder)


def _rows(part: str, cases: Sequence[Case], folder: Path) -> dict[tuple[str, ...], list[Any]]:
    """Lines of the last report by model, method and what is known, in the order of the cases; "" of new ones."""
    before = read_tables("calibration", folder=folder).get(PARTS[part][1], Table(""))
    return {tuple(row[:3]): row for row in before.rows if tuple(row[:3]) in {(*c.key, c.known) for c in cases}}


def summary(tables: Sequence[Table]) -> Table:
    """How many cases of each kind were found to be what, over both parts."""
    found = Table(
        "How many deviate", ("part", "posterior", "cases", "calibrated", "over-confident", "other", "as it should"),
        note="Of all cases below.",
    )  # fmt: skip
    for table in tables:
        rows = [dict(zip(COLUMNS, row, strict=True)) for row in table.rows]
        for known in (EXACT, APPROXIMATE, SPOILED):
            own = [row for row in rows if row["posterior"] == known]
            if not own:
                continue
            findings = Counter(str(row["finding"]) for row in own)
            named = [findings.pop("calibrated", 0), findings.pop("over-confident", 0)]
            right = sum(row["as it should"] == "yes" for row in own)
            expected = "" if known == APPROXIMATE else f"{right} of {len(own)}"
            found.rows.append([table.title, known, len(own), *named, sum(findings.values()), expected])
    return found


def report(part: str, rows: list[Any], folder: Path = RESULTS) -> Path:
    """Write the lines of a part, in the order of its cases; the other part is that of the last report."""
    before, (make, title, note) = read_tables("calibration", folder=folder), PARTS[part]
    order = [(*case.key, case.known) for case in make()]
    rows = sorted(rows, key=lambda row: order.index(tuple(row[:3])))
    figure = f"calibration_{part}.png"
    before[title] = Table(title, COLUMNS, rows, note=note, figures=[figure])
    draw(part, order, folder, folder / figure)
    intro = (__doc__ or "").split("\n\n", 2)[2].strip()
    kept = [before[title] for _, title, _ in PARTS.values() if title in before]
    return write_report(
        "calibration", "Simulation-based calibration", [summary(kept), *kept], intro=intro, folder=folder
    )


class Chosen(NamedTuple):
    """models: their names, none for all. missing: only cases that the report lacks."""

    models: Sequence[str] = ()
    missing: bool = False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=100, help="of each case; of slow methods fewer")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--models", nargs="+", default=[], help="names; by default all")
    parser.add_argument("--missing", action="store_true", help="only cases that the report lacks")
    parser.add_argument("--quick", action="store_true", help="two simulations of each: does it run?")
    arguments = parser.parse_args()
    quiet_and_single_threaded()
    simulations, folder = (2, QUICK) if arguments.quick else (arguments.simulations, RESULTS)
    for part in arguments.only:
        measure(part, Chosen(arguments.models, arguments.missing), simulations, folder)


if __name__ == "__main__":
    main()
