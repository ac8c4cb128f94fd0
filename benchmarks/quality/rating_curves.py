"""Factors of ratings: passes against error, parameters against error, and films in the plane (Murphy, Figs. 27.28-29).

    python -m benchmarks.quality.rating_curves [--data DIR] [--quick]

Writes ``benchmarks/results/rating_curves.{md,json}`` and figures, from the MovieLens ratings in DIR/movielense, a tenth
of which is held out. RMSE: root mean square error of held-out ratings (eq. 27.84); by parameters with predictions cut
to 1 to 5 stars. Stochastic gradient descent is eq. 27.89 with the regularisers of eq. 27.92, once a rating; adaptive
priors are learned by variational Bayes. The file has no time stamps: what biases gain that change in time is shown on
generated ratings.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pyro.distributions import Normal

from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality import _rating_figures as figures
from benchmarks.quality._common import add_data_option, quiet_and_single_threaded, require_data
from benchmarks.quality._rating_data import Array, Ratings, drifting, movielens
from custom_inference import fit
from custom_inference.families.ratings import variational as vb
from custom_inference.families.ratings.features import implicit_feedback
from custom_inference.families.ratings.incidence import Incidence
from custom_inference.families.ratings.sgd import descent
from custom_inference.families.ratings.sides import Pool, Settings
from custom_inference.ratings import rmse
from ppl_models import PMF, ratings

Predict = Callable[[Array, Array], Array]
#: Of figure 27.29a: name -> regulariser of factors and biases.
FIXED = {"no regulariser": 0.0, "fixed, lambda = .02": 0.02, "fixed, lambda = .1": 0.1}
ADAPTIVE = "adaptive priors (variational Bayes)"
#: Regulariser, passes, step and its decay of the descents of figure 27.29b.
TUNED: dict[str, Any] = {"passes": 60, "learning_rate": 0.02, "decay": 0.96}
REGULARIZER = 0.08
#: Predictions that are not cut.
ANYWHERE = (-np.inf, np.inf)
#: Bins of time, their inner edges, and the sd of biases in them.
BINS, SPREAD = 8, 0.4
EDGES = tuple(n / BINS for n in range(1, BINS))


def regularise(size: float) -> dict[str, float]:
    return dict.fromkeys(("user_regularizer", "item_regularizer", "bias_regularizer"), size)


def descend(data: Ratings, size: int, regularizer: float, **settings: Any) -> Any:
    settings = {**TUNED, **regularise(regularizer), **settings}
    *_, found = descent(*data.part(True), **data.sizes, num_factors=size, **settings)
    return found


def mean_rating(at: vb.RatingFactors, user: Array, item: Array) -> Array:
    w, z = at.user.mean[user], at.item.mean[item]
    return at.ratings.centre + w[:, 0] + z[:, 0] + (w[:, 1:] * z[:, 1:]).sum(1)


def held_error(data: Ratings, predict: Predict, stars: tuple[float, float] = (1.0, 5.0)) -> float:
    user, item, value = data.part(False)
    return rmse(np.clip(predict(user, item), *stars), value)


def passes_against_error(data: Ratings, size: int, passes: int) -> dict[str, figures.Curve]:
    """Held-out error after each pass, of predictions as they are, not cut to the stars."""
    steps, found = range(1, passes + 1), {}
    for name, regularizer in FIXED.items():
        settings = {"passes": passes, "learning_rate": 0.01, "decay": 1.0, **regularise(regularizer)}
        each = descent(*data.part(True), **data.sizes, num_factors=size, **settings)
        found[name] = steps, [held_error(data, one.predict, ANYWHERE) for one in each]
    at = vb.initial(Incidence.of(*data.part(True), data.num_users, data.num_items), size)
    trace = []
    pool = Pool(1)
    for _ in steps:
        vb.sweep(at, pool)
        trace.append(held_error(data, lambda user, item: mean_rating(at, user, item), ANYWHERE))
    return {**found, ADAPTIVE: (steps, trace)}


def parameters_against_error(data: Ratings, sizes: tuple[int, ...], sweeps: int) -> dict[str, figures.Curve]:
    """Models of growing numbers of factors: their parameters, in thousands, and held-out errors."""
    read, rows = Incidence.of(*data.part(True), data.num_users, data.num_items), data.num_users + data.num_items
    lists = (read.users, read.items), (read.items, read.users)
    blocks = [[implicit_feedback(one, other.counts.astype(float))] for one, other in lists]
    beside = dict(zip(("user_features", "item_features"), blocks, strict=True))
    errors: dict[str, list[float]] = {}
    for size in sizes:
        made: dict[str, Predict] = {
            "plain": descend(data, size, REGULARIZER, biases=False).predict,
            "with biases": descend(data, size, REGULARIZER).predict,
        }
        for name, features in (("adaptive priors", {}), ("with implicit feedback", beside)):
            at = vb.variational(read, size, sweeps=sweeps, **features)
            made[name] = lambda user, item, at=at: mean_rating(at, user, item)
        for name, predict in made.items():
            errors.setdefault(name, []).append(held_error(data, predict))
    size = np.array(sizes)
    more = {"plain": 0 * size, "with implicit feedback": rows + 2 * Settings().rank * (size + 1)}
    return {name: ((rows * size + more.get(name, rows)) / 1e3, found) for name, found in errors.items()}


def drift_against_error(data: Ratings, sizes: tuple[int, ...], sweeps: int) -> dict[str, figures.Curve]:
    """The same of generated ratings whose biases drift; these by bins of time."""
    rows, items, users = data.num_users + data.num_items, BINS * data.num_items, BINS * data.num_users
    ways: dict[str, tuple[int, dict[str, Any]]] = {
        "with biases": (rows, {}),
        "items' biases by time": (rows + items, {"time_edges": EDGES}),
        "users' biases by time": (rows + users, {"user_time_edges": EDGES}),
        "with temporal dynamics": (rows + items + users, {"time_edges": EDGES, "user_time_edges": EDGES}),
    }
    plain = [held_error(data, descend(data, size, REGULARIZER, biases=False).predict, ANYWHERE) for size in sizes]
    found: dict[str, figures.Curve] = {"plain": (rows * np.array(sizes) / 1e3, plain)}
    for name, (more, edges) in ways.items():
        errors = [timed_error(data, size, sweeps, **edges) for size in sizes]
        found[name] = (rows * np.array(sizes) + more) / 1e3, errors
    return found


def timed_error(data: Ratings, size: int, sweeps: int, **edges: Any) -> float:
    """Of variational Bayes of PMF with biases in these bins, of sd ``SPREAD`` before the ratings are seen."""
    read = ratings(*data.part(True), time=data.time[data.train], **data.sizes)
    model = PMF.for_data(read, size, adaptive=True, **edges)
    model = model.with_priors(**{site: Normal(0.0, SPREAD) for site in model.shapes if "bin_bias" in site})
    found = fit(model, read, method="vb", sweeps=sweeps, tolerance=0.0, progress=False)
    when = {"time": data.time[~data.train]} if edges else {}
    return held_error(data, lambda user, item: found.predict((user, item), **when).numpy(), ANYWHERE)


def plane(data: Ratings, sweeps: int) -> tuple[Array, Array]:
    """The items' two directions of largest spread, among those often rated, and how often: as those of Koren et al."""
    at = vb.variational(
        Incidence.of(data.user, data.item, data.value, data.num_users, data.num_items), 10, sweeps=sweeps
    )
    count = np.bincount(data.item, minlength=data.num_items)
    factor = at.item.mean[:, 1:] @ np.linalg.cholesky(np.cov(at.user.mean[:, 1:].T))
    factor = factor - np.average(factor, axis=0, weights=count)
    place = factor @ np.linalg.svd(np.sqrt(count)[:, None] * factor, full_matrices=False)[2][:2].T
    return place * np.sign(place[np.abs(place).argmax(0), [0, 1]]), count


def ends(place: Array, count: Array, titles: list[str]) -> Table:
    """The films at both ends of each factor, among those with at least a hundred ratings."""
    table = Table("Films at the ends of the factors", ["factor", "lowest", "highest"])
    often = np.flatnonzero(count >= 100)
    for k in range(2):
        order = often[np.argsort(place[often, k])]
        table.rows.append([k + 1, *("; ".join(titles[j] for j in part) for part in (order[:6], order[::-1][:6]))])
    return table


def curve_table(title: str, label: str, lines: Mapping[str, figures.Curve], note: str, figure: str) -> Table:
    table = Table(title, ["model", "best RMSE", f"at {label}", "last RMSE"], note=note, figures=[figure])
    for name, (x, y) in lines.items():
        best = int(np.argmin(y))
        table.rows.append([name, float(y[best]), float(x[best]), float(y[-1])])
    return table


def report(folder: Path, quick: bool) -> Path:
    results = QUICK if quick else RESULTS
    results.mkdir(parents=True, exist_ok=True)
    data, begin = movielens(folder, 0), time.process_time()
    sizes, sweeps = ((2, 5), 3) if quick else ((1, 2, 5, 10, 20, 40), 30)
    by_pass = passes_against_error(data, 20, 4 if quick else 60)
    by_size = parameters_against_error(data, sizes, sweeps)
    by_drift = drift_against_error(drifting(data), sizes[:-1], sweeps)
    place, count = plane(data, sweeps)
    figures.curves(
        [("20 factors and biases", "passes through the ratings", by_pass)],
        results / "rating_curves_passes.png", logarithmic=False,
    )  # fmt: skip
    label = "parameters, thousands"
    figures.curves(
        [("MovieLens", label, by_size), ("Generated ratings with drifting biases", label, by_drift)],
        results / "rating_curves_parameters.png", logarithmic=True,
    )  # fmt: skip
    often = count >= 100
    names = [title for title, kept in zip(data.titles, often, strict=True) if kept]
    figures.titles(place[often], names, np.hypot(*place[often].T), results / "rating_curves_films.png")
    tables = [
        curve_table("Passes", "pass", by_pass, "Figure 27.29a: 20 factors.", "rating_curves_passes.png"),
        curve_table("Parameters", label, by_size, "Figure 27.29b, MovieLens.", "rating_curves_parameters.png"),
        curve_table("Biases that drift", label, by_drift,
                    f"Generated, on the pairs of MovieLens; noise with sd .8. {BINS} bins.",
                    "rating_curves_parameters.png"),
        ends(place, count, data.titles),
    ]  # fmt: skip
    tables[2].figures, tables[3].figures = [], ["rating_curves_films.png"]
    meta = {"CPU seconds of all": round(time.process_time() - begin, 1)}
    return write_report("rating_curves", "Factors of ratings", tables, meta, intro=INTRO, folder=results)


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_option(parser)
    parser.add_argument("--quick", action="store_true", help="few passes: does it run?")
    arguments = parser.parse_args()
    quiet_and_single_threaded()
    print(report(require_data(parser, arguments), arguments.quick))


if __name__ == "__main__":
    main()
