"""Do chains of draws of ratings agree? With and without the moves that take rows and their prior along together.

    python -m benchmarks.quality.rating_chains [--data DIR] [--quick]

Writes ``benchmarks/results/rating_chains.{md,json}``. MovieLens 100K by title, the training ratings of split 0, with
implicit feedback and features of users and films: two chains with 20 factors, from variational fits of their own.
Scales: each factor's rows of one side and their prior times one number (``exchange.rescale``). Ridges: those of
features drawn without the coefficients. R-hat is of ranks, split chains; the effective size that of both chains.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np

from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality._common import add_data_option, cpu_seconds, quiet_and_single_threaded, require_data
from benchmarks.quality._ratings import Films
from custom_inference.core.diagnostics import effective_size, r_hat
from custom_inference.families.ratings import gibbs, hyper
from custom_inference.families.ratings.priors import for_draws
from custom_inference.families.ratings.sides import Pool
from custom_inference.families.ratings.translate import RatingsProblem, variational_draws
from ppl_models import PMF

FACTORS, RANK, STARTS = 20, 75, 10
WATCHED = {
    "log joint": gibbs.log_joint,
    "log likelihood": gibbs.log_likelihood,
    "sigma": lambda chain: chain.scale,
    "mean prediction": lambda chain: gibbs.summaries(chain)["mean prediction"],
    "size of predictions": lambda chain: gibbs.summaries(chain)["size of predictions"],
    "strength of factors": lambda chain: sum(
        np.linalg.slogdet(side.precision[1:, 1:])[1] for side in (chain.user, chain.item)
    ),
}
#: Name -> which moves are left out.
CASES = {"neither": ("scales", "ridges"), "scales": ("ridges",), "scales and ridges": ()}


def _still(ridges: Any, _block: int, best: Any, *_: Any) -> Any:
    return ridges, best


def traces(
    problem: RatingsProblem, fits: Any, left_out: tuple[str, ...], warmup: int, draws: int
) -> dict[str, np.ndarray]:
    """(2, draws) of each that is watched."""
    found: dict[str, list[list[float]]] = {name: [] for name in WATCHED}
    with ExitStack() as stack, Pool(1) as pool:
        if "scales" in left_out:
            stack.enter_context(mock.patch.object(gibbs, "rescale", lambda *_: None))
        if "ridges" in left_out:
            stack.enter_context(mock.patch.object(hyper, "_walk_ridge", _still))
        for seed, at in enumerate(fits):
            generator = np.random.default_rng(seed)
            chain = gibbs.Chain.of(at, variational_draws(at, 1, generator)[0])
            for one in found.values():
                one.append([])
            for number in range(warmup + draws):
                gibbs.sweep(chain, pool, generator)
                for name, watch in WATCHED.items() if number >= warmup else ():
                    found[name][-1].append(float(watch(chain)))
    return {name: np.array(each) for name, each in found.items()}


def mixing(films: Films, warmup: int, draws: int, factors: int) -> Table:
    data = films.ratings(films.split(0)[0])
    given = films.everything(data)
    unsized: Any = PMF(num_components=factors)  # pyright: ignore[reportCallIssue]
    model = for_draws(unsized.for_data(data, **given))
    problem = RatingsProblem.of(model, model.prepare(data, **given), RANK, True)
    fits = problem.fits([0, 1], sweeps=STARTS)
    titles = [f"{name}: {what}" for name in CASES for what in ("R-hat", "size")]
    table = Table(f"Two chains of {draws} draws after {warmup} sweeps", ["of", *titles], note=NOTE)
    rows = {name: [name] for name in WATCHED} | {"CPU ms a sweep": ["CPU ms a sweep"]}
    for left_out in CASES.values():
        found, seconds = cpu_seconds(lambda left_out=left_out: traces(problem, fits, left_out, warmup, draws))
        for name, trace in found.items():
            rows[name] += [f"{float(r_hat(trace)):.3f}", f"{float(effective_size(trace)):.0f}"]
        rows["CPU ms a sweep"] += [f"{1000 * seconds / (2 * (warmup + draws)):.1f}", ""]
    table.rows += rows.values()
    return table


NOTE = (
    "Columns: which moves are made beside the draws of rows, priors and noise and the exchanges; R-hat and effective "
    "size of both chains. What is watched is part of the time of a sweep."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few sweeps: does it run?")
    add_data_option(parser)
    options = parser.parse_args()
    films = Films.read(require_data(parser, options))
    quiet_and_single_threaded()
    table = mixing(films, *((2, 8, 2) if options.quick else (100, 900, FACTORS)))
    folder = QUICK if options.quick else RESULTS
    print(write_report("rating_chains", "Ratings: chains", [table], intro=INTRO, folder=folder))


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
