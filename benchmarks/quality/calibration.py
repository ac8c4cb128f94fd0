"""Simulation-based calibration of models by methods.

    python -m benchmarks.quality.calibration [--quick]

Writes ``benchmarks/results/calibration.{md,json}`` and two figures. Truth and data are drawn from small models; where
the truth ranks among the posterior's draws must be uniform. Exact posteriors have to pass, posteriors that are spoiled
on purpose have to fail, and the others show what kind of error an approximation makes. A case is said to deviate where
the exact p-value of its worst quantity, adjusted for their number (Holm), is below 0.001: of some 60 exact cases one
would do so by chance in about 6 % of runs. Coverage is that of the quantity with the smallest p-value.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality._calibration_cases import APPROXIMATE, EXACT, SPOILED, Case, fit_cases, local_cases
from benchmarks.quality._calibration_figure import Curves, draw
from benchmarks.quality._common import cpu_seconds, quiet_and_single_threaded
from custom_inference import Calibration, simulation_based_calibration

SIGNIFICANCE = 0.001
#: Of each case; fewer of slow ones.
SIMULATIONS = 30
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


def measure(part: str, simulations: int, folder: Path) -> Table:
    """Run the cases, one after the other, and draw them."""
    make, title, note = PARTS[part]
    figure, curves = f"calibration_{part}.png", []
    table = Table(title, COLUMNS, note=note, figures=[figure])
    for case in make():
        found, seconds = checked(case, simulations)
        curves.append(Curves.of(case, found))
        table.rows.append(line(case, found, seconds))
        print(*table.rows[-1], sep=" | ", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    draw(curves, folder / figure)
    return table


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


def report(simulations: int, folder: Path) -> Path:
    """Measure and write both parts."""
    tables = [measure(part, simulations, folder) for part in PARTS]
    intro = (__doc__ or "").split("\n\n", 2)[2].strip()
    every = [summary(tables), *tables]
    return write_report("calibration", "Simulation-based calibration", every, intro=intro, folder=folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two simulations of each: does it run?")
    quick = parser.parse_args().quick
    quiet_and_single_threaded()
    print(report(2, QUICK) if quick else report(SIMULATIONS, RESULTS))


if __name__ == "__main__":
    main()
