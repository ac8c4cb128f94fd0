"""Time and memory of Bayesian matrix factorisation while the ratings grow.

    python -m benchmarks.speed.ratings [--quick]

Writes ``benchmarks/results/ratings_speed.{md,json}``. Generated ratings: up to 50 a user and 200 an item on average,
drawn with 10 factors and noise of .8; 10 are fitted, by `ratings`, `fit` and `fit.predict`, in single precision.
Every size is a process of its own, compiled beforehand. Memory is anonymous memory at the peak, less that of the
process with the columns in it: all that `ratings` and the fit hold.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import torch

from benchmarks import _processes
from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality._common import quiet_and_single_threaded
from benchmarks.speed._stream_worker import Watch
from custom_inference import fit
from ppl_models import PMF, ratings

SIZES = (10**5, 10**6, 10**7)
FACTORS, NOISE, SWEEPS, DRAWS = 10, 0.8, 10, 4
PARTS = ("read", "fit", "predict")


def generated(number: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, int, int]:
    """Popularity falls as 1 / sqrt(rank), of users and of items."""
    rng, sizes = np.random.default_rng(seed), (number // 50, number // 200)
    user, item = (((rng.random(number) ** 2) * size).astype(np.int32) for size in sizes)
    first = np.sort(np.unique(user.astype(np.int64) * sizes[1] + item, return_index=True)[1])  # each pair once
    user, item, number = user[first], item[first], len(first)
    scale = np.array([0.4, *[0.5] * FACTORS], np.float32)
    w, z = (rng.standard_normal((size, FACTORS + 1)).astype(np.float32) * scale for size in sizes)
    value = np.full(number, 3.5, np.float32)
    value += w[user, 0] + z[item, 0] + np.float32(NOISE) * rng.standard_normal(number, np.float32)
    for k in range(1, FACTORS + 1):
        value += w[user, k] * z[item, k]
    return user, item, value, *sizes


def measured(number: int) -> dict[str, float]:
    """Seconds of reading, of the fit and of predictions; bytes at the peak; RMSE on a tenth left out."""
    data, small = generated(number), generated(10**4)
    fits(small, 1)
    with Watch() as watch:
        found = fits(data, SWEEPS)
    return {**found, "peak": watch.peak - watch.before}


def fits(data: Any, sweeps: int) -> dict[str, float]:
    user, item, value, users, items = data
    cut, few = len(user) // 10, slice(0, min(len(user) // 10, 10**5))
    clocks = [time.process_time()]

    def lap() -> None:
        clocks.append(time.process_time())

    known = ratings(user[cut:], item[cut:], value[cut:], num_users=users, num_items=items)
    lap()
    model = PMF.for_data(known, FACTORS)
    settings: dict[str, Any] = {"dtype": torch.float32, "progress": False}
    found = fit(model, known, sweeps=sweeps, tolerance=1e-12, draws=DRAWS, threads=1, **settings)
    lap()
    mean = found.predict((user[few], item[few])).numpy()
    lap()
    spent = {"number": float(len(user)), "rmse": float(np.sqrt(np.mean((mean - value[few]) ** 2)))}
    return spent | {part: float(one) for part, one in zip(PARTS, np.diff(clocks), strict=True)}


def in_a_process(number: int) -> dict[str, float]:
    command = "benchmarks.speed.ratings", "--measure", str(number)
    return _processes.in_a_process(f"{number} ratings", *command, **_processes.HELD)


def table(sizes: tuple[int, ...]) -> Table:
    columns = ["ratings", "users", "items", "reading, CPU s", "fit, CPU s", "predicting 100,000, CPU s"]
    columns += ["fit, us a rating", "MB at the peak", "bytes a rating", "RMSE"]
    note = f"`fit` with {SWEEPS} sweeps of VB and {DRAWS} draws; one thread. RMSE: on a tenth left out."
    found = Table("Growth", columns, note=f"{note} The noise is {NOISE:g}.")
    for size in sizes:
        one = in_a_process(size)
        seconds = [round(one[part], 3) for part in PARTS]
        number = int(one["number"])
        rate, peak = 1e6 * one["fit"] / (0.9 * number), one["peak"]
        cells = [f"{rate:.2f}", f"{peak / 2**20:.0f}", f"{peak / number:.0f}", f"{one['rmse']:.3f}"]
        found.rows.append([f"{number:,}", f"{size // 50:,}", f"{size // 200:,}", *seconds, *cells])
        print(found.rows[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few ratings: does it run?")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    quiet_and_single_threaded()
    if options.measure:
        print(json.dumps(measured(options.measure)))
        return
    sizes = (10**4, 10**5) if options.quick else SIZES
    folder = QUICK if options.quick else RESULTS
    print(write_report("ratings_speed", "Ratings: growth", [table(sizes)], intro=INTRO, folder=folder))


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
