"""Programs as their users write them: the default fit, the exact reference, and how far every approximation is.

    python -m benchmarks.quality.own_programs [--tables NAME ...] [--programs NAME ...] [--data DIR] [--packages DIR]

Writes ``benchmarks/results/own_programs.{md,json}`` after every program; those that are not named keep their lines.
The tables ``beside``, ``sizes`` and ``peers`` are those of ``own_programs_speed``; packages: a folder with other
programs. PPL_SMOKE=1: two programs, and few rows, into ``results/quick``. The programs of the fits are those of
``tests/programs``, each with a reference in NumPy that shares no code with the suite: a sum over all values of the
latents, or an integral by a fine even rule.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import custom_inference as ci
from benchmarks._report import QUICK, RESULTS, Table, read_tables, write_report
from benchmarks.quality import own_programs_speed as speed
from benchmarks.quality._common import add_data_option, cpu_seconds, quiet_and_single_threaded
from custom_inference.methods import methods_of
from tests.programs.zoo import PROGRAMS, as_numpy, case_of

NAME, SMOKE = "own_programs", os.environ.get("PPL_SMOKE") == "1"
_FOLDER = QUICK if SMOKE else RESULTS
FITS, GUIDES = "Default fits", "Approximations at the fitted globals"
_FITS = ("program", "latents of a row", "reference", "rows", "method", "log posterior", "over the climb from the truth",
         "evidence", "off the reference", "worst marginal off", "CPU s")  # fmt: skip
_GUIDES = ("program", "approximation", "bound", "standard error", "gap a row", "KL a row", "worst marginal off", "s")
_SPEED = {"beside": speed.BESIDE, "sizes": speed.SIZES, "peers": speed.PEERS}
_INTRO = (
    "Programs that are written in a few lines and fitted by what is compiled from them: first their speed, then "
    "every program of the tests with its example's data. *Over the climb from the truth*: log p(x, globals) of the "
    "default fit, which knows nothing of the truth, less that of a fit that starts there. *Off the reference*: the "
    "log-likelihood of a row less that of the NumPy reference at the same globals, the largest; *worst marginal "
    "off*: the largest difference of a posterior mean of a latent. The last table has the approximations at the "
    "fitted globals beside the suite's exact posteriors, which the table of default fits checks."
)


def default_fit(name: str) -> tuple[Any, list[Any]]:
    """The default fit of a program, and its line."""
    case = case_of(name)
    fit, seconds = cpu_seconds(lambda: ci.fit(case.model, case.data, progress=False))
    climbed = ci.fit(case.model, case.data, init=case.globals, progress=False)
    heights = [_log_posterior(case, one) for one in (fit, climbed)]
    params = as_numpy(fit.globals)
    evidence, expected = case.reference.evidence(params, case.table), case.reference.marginals(params, case.table)
    off = max(_apart(posterior.mean, expected.mean[site]) for site, posterior in fit.posteriors.items())
    likelihood = fit.log_likelihood()
    how = "sum" if case.is_finite else "integral"
    return fit, [
        name, ", ".join(fit.posteriors), how, len(case.data), fit.method_name, heights[0], heights[0] - heights[1],
        float(likelihood.sum()), _apart(likelihood, evidence), off, round(seconds, 1),
    ]  # fmt: skip


def approximations(name: str, fit: Any) -> list[list[Any]]:
    """The lines of all guides of a program at the globals of its fit."""
    model, found = fit.model, methods_of(fit.model)
    names = [one for one in ("mean_field", "gaussian", "amortized") if one in found]
    table = ci.compare(["exact", *names], model, fit.data, at=fit, progress=False).table
    columns = ("bound", "standard_error", "gap_per_row", "kl_per_row", "worst_marginal_error", "seconds")
    return [[name, method, *(float(table.loc[method, column]) for column in columns)] for method in table.index[1:]]


def _log_posterior(case: Any, fit: Any) -> float:
    params = as_numpy(fit.globals)
    return float(case.reference.evidence(params, case.table).sum()) + case.reference.log_prior(params)


def _apart(one: Any, other: Any) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


def _fits_again(chosen: Sequence[str], tables: dict[str, Table], folder: Path) -> None:
    """Measure the chosen programs; the others keep their lines."""
    kept = {title: [] for title in (FITS, GUIDES)}
    for title in kept.keys() & tables.keys():
        kept[title] = [row for row in tables[title].rows if row[0] not in chosen]
    order = [*PROGRAMS]
    for name in chosen:
        started = time.perf_counter()
        fit, line = default_fit(name)
        kept[FITS].append(line)
        kept[GUIDES] += approximations(name, fit)
        for title, columns in ((FITS, _FITS), (GUIDES, _GUIDES)):
            tables[title] = Table(title, columns, sorted(kept[title], key=lambda row: order.index(row[0])))
        _write(tables, folder)
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)


def _write(tables: dict[str, Table], folder: Path) -> None:
    order = (*_SPEED.values(), FITS, GUIDES)
    write_report(NAME, "Programs of one's own", [tables[title] for title in order if title in tables], intro=_INTRO,
                 folder=folder)  # fmt: skip


def main(arguments: Sequence[str] | None = None, *, folder: Path = _FOLDER) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    some = ["two_flags", "rasch"] if SMOKE else [*PROGRAMS]
    parser.add_argument("--tables", nargs="+", choices=["fits", *_SPEED], default=["fits", *_SPEED])
    parser.add_argument("--programs", nargs="+", choices=[*PROGRAMS], default=some, help="of the table of fits")
    parser.add_argument("--packages", type=Path, help="a folder of further packages")
    add_data_option(parser)
    given = parser.parse_args(arguments)
    quiet_and_single_threaded()
    torch.set_default_dtype(torch.float64)
    tables = {} if SMOKE else read_tables(NAME, folder=folder)
    titles = [title for name, title in _SPEED.items() if name in given.tables]
    for table in speed.tables(titles, {**tables}, given.data, given.packages):
        tables[table.title] = table
        _write(tables, folder)
    if "fits" in given.tables:
        _fits_again(given.programs, tables, folder)


if __name__ == "__main__":
    main()
