"""The experiments of Singliar & Hauskrecht (2006), section 4, on this suite's own eight patterns.

    python -m benchmarks.quality.noca_paper

Figures 5-9 of the paper, drawn again into ``benchmarks/results/noca_paper_fig*.png``, with tables in
``noca_paper.{md,json}``. Data: ``datasets.image_patterns`` (8 sources of 8x8 pixels, prior .25, loading .9, leak .01
and .1 in the corners). Unless said otherwise the learner is the default fit (exact EM with informed starts up to 10
sources, truncated posteriors beyond), not the paper's; scores are exact log-likelihoods.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyro.distributions as dist
import torch

from benchmarks._report import RESULTS, Table, write_report
from benchmarks.quality import _paper_figures as draw
from benchmarks.quality._common import Known, quiet_and_single_threaded
from custom_inference import Fit, fit, match_components, reconstruction_error
from custom_inference.core.evaluate import criterion
from custom_inference.core.registry import engine_for
from ppl_models import Data
from ppl_models.datasets import image_patterns

SIZES = (50, 100, 200, 500, 1000, 2000, 5000)
TEST_ROWS, MODEL_ROWS = 2000, 2000
#: Trials of Figs. 6 and 9a, and of Figs. 7 and 9b.
TRIALS = (10, 3)
WEAK_PRIORS = {"loading": dist.Beta(1.2, 1.4), "leak": dist.Beta(1.5, 8.0)}
PRIORS_TEXT = "loading ~ Beta(1.2, 1.4), leak ~ Beta(1.5, 8)"
Trials = dict[int, list[float]]


@dataclass
class Curves:
    """Values per trial, by quantity and by x."""

    values: dict[str, Trials] = field(default_factory=dict)

    def add(self, quantity: str, x: int, value: float) -> None:
        self.values.setdefault(quantity, {}).setdefault(x, []).append(value)

    def __getitem__(self, quantity: str) -> Trials:
        return self.values[quantity]

    def rows(self, quantities: Sequence[str], digits: int) -> list[list[Any]]:
        """x, then mean +- sd of every quantity."""
        every = next(iter(self.values.values()))
        return [[x, *(mean_and_sd(self[q][x], digits) for q in quantities)] for x in every]


def mean_and_sd(values: Sequence[float], digits: int) -> str:
    return f"{np.mean(values):.{digits}f} ± {np.std(values):.{digits}f}"


def drawn(rows: int, seed: int) -> Known:
    return Known.of("patterns", image_patterns(rows, seed))


def learned(known: Known, num_sources: int, seed: int) -> Fit:
    return fit(known.model(num_sources), known.data, seed=seed, progress=False)


def on(known: Known, data: Data) -> Known:
    return Known(known.name, data, known.truth)


def save(figure: Any, name: str) -> str:
    RESULTS.mkdir(parents=True, exist_ok=True)
    figure.savefig(RESULTS / f"{name}.png")
    return f"{name}.png"


# ----- Fig. 5 ---------------------------------------------------------------------------------------------------------


def fig5(sizes: Sequence[int] = (50, 200, 1000)) -> Table:
    """Learned sources next to the true ones."""
    truth, names = drawn(1, 0).truth, list(image_patterns(1).coords["component"])
    lines = [("truth", _stacked(truth, list(range(8))), [f"π = {p:.2f}" for p in truth["source_prior"]] + [""])]
    table = Table(
        "Fig. 5: what is learned from 50, 200 and 1000 rows",
        ["rows", "sources matched of 8 (cosine > .95)", "smallest cosine", "mean absolute error of the loading"],
        note="One trial each. Sources in the order of the truth they match; numbers below are priors and cosines.",
    )
    for size in sizes:
        params = learned(drawn(size, 0), 8, 0).params
        matched = match_components(truth["loading"], params["loading"])
        prior = params["source_prior"][matched.order]
        captions = [f"{p:.2f}, cos {c:.2f}" for p, c in zip(prior, matched.similarity, strict=True)] + [""]
        lines.append((f"n = {size}", _stacked(params, matched.order), captions))
        error = (params["loading"][matched.order] - truth["loading"]).abs().mean()
        found = int((matched.similarity > 0.95).sum())
        table.rows.append([size, found, float(matched.similarity.min()), float(error)])
    figure = draw.pictures(lines, [*names, "leak"], "NOCA, K = 8: learned sources (Singliar & Hauskrecht 2006, Fig. 5)")
    table.figures = [save(figure, "noca_paper_fig5")]
    return table


def _stacked(params: dict[str, torch.Tensor], order: list[int]) -> np.ndarray:
    return torch.cat([params["loading"][order], params["leak"][None]]).numpy()


# ----- Figs. 6 and 9a -------------------------------------------------------------------------------------------------


def by_rows(sizes: Sequence[int], num_trials: int) -> Curves:
    """Log-likelihood and reconstruction error against the number of training rows."""
    curves = Curves()
    for trial in range(num_trials):
        test = drawn(TEST_ROWS, 10_000 + trial)
        curves.add("truth", 0, test.exact(test.truth))
        truth = Fit(model=test.model(), params=test.truth, elbo=torch.zeros(0), bound_name="exact",
                    objective="evidence", status="the truth", method="none", data=test.data, seed=0)  # fmt: skip
        curves.add("floor", 0, reconstruction_error(truth, seed=trial))
        for size in sizes:
            train = drawn(size, 100 * trial + 1)
            result = learned(train, 8, trial)
            curves.add("test", size, test.exact(result.params))
            weak = train.model(8).with_priors(**WEAK_PRIORS)
            curves.add("test with priors", size, test.exact(fit(weak, train.data, seed=trial, progress=False).params))
            curves.add("train", size, train.exact(result.params))
            curves.add("test error", size, reconstruction_error(result, test.data, seed=trial))
            curves.add("train error", size, reconstruction_error(result, seed=trial))
            curves.add("found", size, train.found(result.params))
    return curves


def fig6(curves: Curves, num_trials: int) -> Table:
    truth = float(np.mean(curves["truth"][0]))
    shown = [curves[q] for q in ("test", "test with priors", "train")]
    figure = draw.test_log_likelihood(shown[0], shown[1], shown[2], truth, num_trials)
    sizes = list(curves["test"])
    lines = [[n, *(mean_and_sd(curve[n], 3) for curve in shown), mean_and_sd(curves["found"][n], 1)] for n in sizes]
    floored = [np.mean(curves["test"][n]) - truth for n in sizes]
    return Table(
        "Fig. 6: log-likelihood of test rows against the number of training rows",
        ["training rows", "test log-lik a row", "the same with weak priors", "training log-lik a row", "found of 8"],
        lines,
        note=(
            f"Mean ± sd of {num_trials} trials (the paper: 50); {TEST_ROWS} test rows, new in every trial. True "
            f"parameters on the test rows: {truth:.3f}. The fits lose {-floored[0]:.2f} at n = {sizes[0]} and "
            f"{-floored[-1]:.3f} at n = {sizes[-1]}. Maximum likelihood (flat priors) overfits few rows: a pixel that "
            "was never seen on gets probability 1e-6, and test rows pay for it. Weak priors cure that: the third "
            f"column is the same fit with {PRIORS_TEXT}."
        ),
        figures=[save(figure, "noca_paper_fig6")],
    )


# ----- Figs. 7 and 9b -------------------------------------------------------------------------------------------------


def by_sources(sizes: Sequence[int], num_trials: int) -> Curves:
    """BIC, log-likelihood and reconstruction error against the number of sources; one data set a trial for all k."""
    curves = Curves()
    for trial in range(num_trials):
        train, test = drawn(MODEL_ROWS, 100 * trial + 2), drawn(TEST_ROWS, 20_000 + trial)
        curves.add("truth", 0, train.exact(train.truth))
        for k in sizes:
            result = learned(train, k, trial)
            score = train.exact(result.params)
            curves.add("likelihood", k, score)
            bic = criterion(score * MODEL_ROWS, result.model.num_parameters(0), MODEL_ROWS, "bic")
            curves.add("bic", k, bic / 2)  # as the paper prints it
            curves.add("active", k, int((~result.shut_off()).sum()))
            curves.add("found", k, train.found(result.params))
            curves.add("test error", k, reconstruction_error(result, test.data, seed=trial))
            curves.add("train error", k, reconstruction_error(result, seed=trial))
    return curves


def fig7(curves: Curves, num_trials: int) -> Table:
    truth = float(np.mean(curves["truth"][0]))
    figure = draw.model_selection(curves["bic"], curves["likelihood"], truth, num_trials)
    best = [min(curves["bic"], key=lambda k: curves["bic"][k][trial]) for trial in range(num_trials)]
    lines = [
        [k, mean_and_sd(curves["bic"][k], 0), mean_and_sd(curves["likelihood"][k], 3)]
        + [mean_and_sd(curves[q][k], 1) for q in ("active", "found")]
        for k in curves["bic"]
    ]
    return Table(
        "Fig. 7: BIC and training log-likelihood against the number of sources",
        ["k", "BIC", "log-likelihood per row", "sources active", "true sources found of 8"],
        lines,
        note=(
            f"Mean ± sd of {num_trials} trials (the paper: 20), {MODEL_ROWS} rows, the same for every k. The k with "
            f"the smallest BIC, by trial: {', '.join(map(str, best))}. True parameters: {truth:.3f} a row. Beyond 10 "
            "sources the default fit changes method, to one that shuts surplus sources off."
        ),
        figures=[save(figure, "noca_paper_fig7")],
    )


# ----- Fig. 8 ---------------------------------------------------------------------------------------------------------


def seconds_per_iteration(bound: str, rows: int, num_sources: int, *, timed: int = 5) -> float:
    """Median CPU seconds of an E and an M step, after three that warm up."""
    known = drawn(rows, 5)
    model = known.model(num_sources)
    steps = engine_for(model, bound)
    data = steps.rows(model, known.data)
    params, locals_, seconds = steps.initial(model, data, torch.Generator().manual_seed(0)), None, []
    with torch.no_grad():
        for iteration in range(3 + timed):
            begin = time.process_time()
            step = steps.e_step(model, params, data, locals_)
            params, locals_ = steps.m_step(model, params, step, data), step.locals
            if iteration >= 3:
                seconds.append(time.process_time() - begin)
    return float(np.median(seconds))


def fig8() -> Table:
    rows = (250, 500, 1000, 2000, 4000, 8000)
    sources = {"factorized": (2, 4, 8, 16, 32), "exact": (2, 4, 6, 8, 10, 12)}
    names = {"factorized": "factorized bound", "exact": "exact EM"}
    of_rows = {names[b]: {n: seconds_per_iteration(b, n, 8) for n in rows} for b in names}
    of_sources = {names[b]: {k: seconds_per_iteration(b, MODEL_ROWS, k) for k in sources[b]} for b in names}
    figure = draw.running_time(of_rows, of_sources)
    lines = [[name, "N", n, 1000 * s] for name, points in of_rows.items() for n, s in points.items()]
    lines += [[name, "K", k, 1000 * s] for name, points in of_sources.items() for k, s in points.items()]
    exact = of_sources["exact EM"]
    last, before = sorted(exact)[-1], sorted(exact)[-2]
    slopes = [draw.slope_of(curves[name]) for curves in (of_rows, of_sources) for name in names.values()]
    growth = (exact[last] / exact[before]) ** (1 / (last - before))
    note = (
        "CPU milliseconds of one E and one M step from a random start, one thread, median of 5 iterations after 3. "
        "Slope: exponent of the power law through the points. The factorized engine: "
        f"{slopes[0]:.2f} in N, {slopes[2]:.2f} in K (the paper: roughly linear in both). Exact EM: {slopes[1]:.2f} in "
        f"N; in K its time grows {growth:.2f}-fold with each source from K = {before} to {last}."
    )
    return Table(
        "Fig. 8: seconds per iteration", ["engine", "against", "value", "ms per iteration"], lines, note,
        [save(figure, "noca_paper_fig8")],
    )  # fmt: skip


# ----- Fig. 9 ---------------------------------------------------------------------------------------------------------


def fig9(of_rows: Curves, of_sources: Curves) -> Table:
    floor = float(np.mean(of_rows["floor"][0]))
    pairs = [(c["train error"], c["test error"]) for c in (of_rows, of_sources)]
    figure = draw.reconstruction(pairs[0], pairs[1], floor, TRIALS)
    lines = [
        [axis, x, mean_and_sd(train[x], 4), mean_and_sd(test[x], 4)]
        for axis, (train, test) in zip(("n, at k = 8", "k, at n = 2000"), pairs, strict=True)
        for x in train
    ]
    return Table(
        "Fig. 9: reconstruction error",
        ["against", "value", "training rows", "test rows"],
        lines,
        note=(
            f"Proportion of pixels in which a copy sampled at the most probable code differs from the row; "
            f"{TRIALS[0]} and {TRIALS[1]} trials (the paper: 50). With the true parameters: {floor:.4f}."
        ),
        figures=[save(figure, "noca_paper_fig9")],
    )


def main() -> None:
    quiet_and_single_threaded()
    begin = time.process_time()
    of_rows, of_sources = by_rows(SIZES, TRIALS[0]), by_sources(range(2, 16), TRIALS[1])
    tables = [fig5(), fig6(of_rows, TRIALS[0]), fig7(of_sources, TRIALS[1]), fig8(), fig9(of_rows, of_sources)]
    meta = {"CPU seconds of the whole": f"{time.process_time() - begin:.0f}"}
    print(write_report("noca_paper", "NOCA: the paper's experiments", tables, meta, intro=INTRO))


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
