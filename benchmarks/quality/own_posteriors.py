"""Posteriors over the globals of programs of one's own: compiled variational Bayes and Gibbs beside NUTS, calibration.

    python -m benchmarks.quality.own_posteriors [--tables nuts calibration] [--simulations NUMBER]

Writes ``benchmarks/results/own_posteriors.{md,json}``. The programs are those of ``tests/programs``. PPL_SMOKE=1: one
program and few draws, into ``results/quick``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import custom_inference as ci
from benchmarks._report import QUICK, RESULTS, Table, read_tables, write_report
from benchmarks.quality._common import cpu_seconds, quiet_and_single_threaded
from custom_inference.compiled.labels import find_places, reorder_draws
from tests.programs.zoo import case_of

NAME, SMOKE = "own_posteriors", os.environ.get("PPL_SMOKE") == "1"
NUTS, CALIBRATION = "Beside NUTS", "Calibration of whole fits"
#: Programs of several kinds: tables, excess zeros, regressions, a chain; and further ones of the calibration.
BESIDE = ("annotators", "zero_inflated", "occupancy", "two_state_chain")
CHECKED = (*BESIDE, "noisy_and", "skill_plate")
_ROWS, _DRAWS = 60, 50 if SMOKE else 400
_COLUMNS = {
    NUTS: (
        "program",
        "method",
        "worst mean off, in sd",
        "median ratio of sd",
        "least ratio of sd",
        "objective",
        "CPU s",
    ),
    CALIBRATION: ("program", "method", "simulations", "finding", "p", "50 %", "80 %", "95 %", "CPU s"),
}
_INTRO = (
    "Posteriors over the globals of programs written in a few lines, 60 rows each, by what is compiled from them. "
    "*Beside NUTS*: how far posterior means of entries of the globals are from those by NUTS at most, in standard "
    "deviations of these, and the ratios of standard deviations to those by NUTS: below 1 a posterior is too narrow. "
    "Classes that may change places are brought into one order. *Calibration*: ranks of the truth among draws, of "
    "data that the program draws itself (20 rows); what intervals hold is averaged over all quantities. Variational "
    "Bayes takes latents and globals for independent, and so is too narrow where they are not, as where causes are "
    "hidden once more."
)


def _draws_of(fit: Any) -> dict[str, torch.Tensor]:
    """Draws (1, S, ...) of the globals that are learned."""
    drawn = ci.posterior_draws(fit, _DRAWS, locals_=False, independent=False)
    return {site: drawn[site].double().unsqueeze(0) for site in fit.model.unknown_sites}


def measure_beside(name: str) -> list[list[Any]]:
    """The lines of a program in the table beside NUTS."""
    case = case_of(name).few(_ROWS)
    draws = _DRAWS // 2
    methods = {
        "nuts": ci.NUTS(num_samples=draws, warmup=draws, chains=2),
        "gibbs": ci.CollapsedGibbs(num_samples=draws // 2, warmup=100, chains=4),
        "vb": ci.VariationalEM(guide="vb"),
    }
    lines, reference = [], dict[str, torch.Tensor]()
    for called, method in methods.items():
        fit, seconds = cpu_seconds(lambda method=method: method.fit(case.model, case.data, progress=False))
        drawn = _draws_of(fit)
        reference = reference or drawn
        length = min(value.shape[1] for one in (reference, drawn) for value in one.values())
        both = {site: torch.cat([reference[site][:, -length:], drawn[site][:, -length:]]) for site in drawn}
        ordered = reorder_draws(case.model, both) if find_places(case.model) else both
        moments = [
            (torch.cat([v[n].mean(0).reshape(-1) for v in ordered.values()]),
             torch.cat([v[n].std(0).reshape(-1) for v in ordered.values()]))
            for n in (0, 1)
        ]  # fmt: skip
        (mean, spread), (own, own_spread) = moments
        ratio = (own_spread / spread).numpy()
        off = float(((own - mean).abs() / spread).max())
        lines.append([
            name, called, round(off, 2), round(float(np.median(ratio)), 2), round(float(ratio.min()), 2),
            round(float(fit.elbo[-1]), 2), round(seconds, 1),
        ])  # fmt: skip
    return lines


def measure_calibration(name: str, simulations: int) -> list[list[Any]]:
    """The lines of a program in the table of calibration."""
    case, lines = case_of(name).few(20), []
    gibbs = ci.CollapsedGibbs(chains=1, warmup=40, num_samples=100, thin=2, search=False)
    for called, method in {"gibbs": gibbs, "vb": ci.VariationalEM(guide="vb")}.items():
        found, seconds = cpu_seconds(
            lambda method=method: ci.simulation_based_calibration(
                case.model, method, of="globals", num_simulations=simulations, num_rows=20, like=case.data,
                num_draws=99, progress=False,
            )
        )  # fmt: skip
        worst = found.table.sort_values("p_value", kind="stable").iloc[0]
        held = [f"{100 * found.table[f'coverage_{level}'].mean():.0f} %" for level in (50, 80, 95)]
        lines.append([
            name, called, len(found), found.verdict.split(":")[0], f"{worst.p_adjusted:.1g}", *held, round(seconds, 1),
        ])  # fmt: skip
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=["nuts", "calibration"], default=["nuts", "calibration"])
    parser.add_argument("--simulations", type=int, default=3 if SMOKE else 30)
    given = parser.parse_args(arguments)
    quiet_and_single_threaded()
    torch.set_default_dtype(torch.float64)
    folder = QUICK if SMOKE else RESULTS
    tables = {} if SMOKE else read_tables(NAME, folder=folder)
    for title, programs in ((NUTS, BESIDE), (CALIBRATION, CHECKED)):
        if {NUTS: "nuts", CALIBRATION: "calibration"}[title] not in given.tables:
            continue
        lines = []
        for name in programs[:1] if SMOKE else programs:
            lines += measure_beside(name) if title == NUTS else measure_calibration(name, given.simulations)
            tables[title] = Table(title, _COLUMNS[title], lines)
            every = [tables[one] for one in (NUTS, CALIBRATION) if one in tables]
            write_report(NAME, "Posteriors of one's own programs", every, intro=_INTRO, folder=folder)
            print(name, *lines[-3:], sep="\n  ", flush=True)


if __name__ == "__main__":
    main()
