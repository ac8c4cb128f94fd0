"""NOCA against logistic PCA as binary codes: reconstruction errors (Singliar & Hauskrecht 2006, 4.4, Figs. 9 and 10).

    python -m benchmarks.quality.noca_reconstruction

Writes ``benchmarks/results/noca_reconstruction.{md,json}`` and a figure. Data as in ``noca_paper``: eight patterns of 8
x 8 pixels. A row is encoded by the most probable latent code at the learned parameters (NOCA: K bits; logistic PCA: K
real numbers), decoded into P(pixel on), and the error is the proportion of pixels in which a sampled copy differs. "One
bit" rounds every score of logistic PCA to the mean of its sign, so that both codes have K bits. Logistic PCA has point
scores, as in the paper ("map"); the model's own Normal priors are a mild penalty.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks._report import Table, write_report
from benchmarks.quality import _paper_figures as draw
from benchmarks.quality._common import quiet_and_single_threaded
from benchmarks.quality.noca_paper import MODEL_ROWS, TEST_ROWS, Curves, drawn, learned, save
from custom_inference import Fit, VariationalEM
from custom_inference.core.predictive import feature_mean
from ppl_models import Data, LogisticPCA

SIZES = (50, 200, 500, 2000)
SOURCES = (2, 4, 6, 8, 10)
#: Trials against rows and against K.
TRIALS = (3, 2)
METHODS = ("NOCA", "logistic PCA", "logistic PCA, one bit")


def codes(result: Fit, data: Data) -> Tensor:
    """The most probable latent code of every row, (N, K)."""
    return result.local_posterior(data).posterior.mode


def one_bit(scores: Tensor, training: Tensor) -> Tensor:
    """Scores rounded to the mean of the training scores of their sign, dimension by dimension."""
    on = (training > 0).to(training)
    high = (on * training).sum(0) / on.sum(0).clamp_min(1)
    low = ((1 - on) * training).sum(0) / (1 - on).sum(0).clamp_min(1)
    return torch.where(scores > 0, high, low)


def error(result: Fit, code: Tensor, data: Data, seed: int) -> float:
    """Proportion of pixels in which a sampled copy differs."""
    mean = feature_mean(result.model, result.params, code)
    copy = torch.bernoulli(mean, generator=torch.Generator().manual_seed(seed))
    return float((copy != data.x).double().mean())


def add_trial(curves: Curves, x: int, train: Any, test: Any, k: int, trial: int) -> None:
    """Both models on one training set."""
    noca = learned(train, k, trial)
    model = LogisticPCA(num_components=k, num_features=train.data.num_features)
    logistic = VariationalEM(guide="map").fit(model, train.data, seed=trial, progress=False)
    scores = codes(logistic, train.data)
    for rows, data in (("train", train.data), ("test", test.data)):
        own = scores if rows == "train" else codes(logistic, data)
        found = {"NOCA": (noca, codes(noca, data)), "logistic PCA": (logistic, own)}
        found["logistic PCA, one bit"] = (logistic, one_bit(own, scores))
        for method, (result, code) in found.items():
            curves.add(f"{method}, {rows}", x, error(result, code, data, trial))


def by_rows(sizes: Sequence[int], trials: int) -> Curves:
    curves = Curves()
    for trial in range(trials):
        test = drawn(TEST_ROWS, 10_000 + trial)
        for size in sizes:
            add_trial(curves, size, drawn(size, 100 * trial + 1), test, 8, trial)
    return curves


def by_sources(sizes: Sequence[int], trials: int) -> Curves:
    curves = Curves()
    for trial in range(trials):
        train, test = drawn(MODEL_ROWS, 100 * trial + 2), drawn(TEST_ROWS, 20_000 + trial)
        for k in sizes:
            add_trial(curves, k, train, test, k, trial)
    return curves


LINES = [f"{method}, {rows}" for method in METHODS for rows in ("train", "test")]


def table_of(curves: Curves, title: str, axis: str, note: str = "") -> Table:
    return Table(title, [axis, *LINES], curves.rows(LINES, 4), note=note)


COLOURS: dict[str, str] = dict(zip(METHODS, ("#00336f", "#2a7f3f", "#c25a00"), strict=True))


def figure_of(of_rows: Curves, of_sources: Curves) -> Any:
    figure = draw.new_figure(10.5, 4.0)
    panels = figure.subplots(1, 2)
    for axes, curves, label in zip(
        panels, (of_rows, of_sources), ("training rows (K = 8)", "K (2000 rows)"), strict=True
    ):
        for line in LINES:
            method, rows = line.rsplit(", ", 1)
            points = curves[line]
            mean, style = [float(np.mean(v)) for v in points.values()], "--" if rows == "train" else "-"
            axes.plot(list(points), mean, color=COLOURS[method], ls=style, lw=1.4, marker="o", ms=3, label=line)
        axes.set(ylim=(0, None), xlabel=label)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set(xscale="log", ylabel="reconstruction error")
    panels[0].set_xticks(SIZES, [str(n) for n in SIZES])
    panels[0].minorticks_off()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    figure.suptitle("Reconstruction from K bits (NOCA) and from K real numbers (logistic PCA)", fontsize=11)
    return figure


def main() -> None:
    quiet_and_single_threaded()
    begin = time.process_time()
    of_rows, of_sources = by_rows(SIZES, TRIALS[0]), by_sources(SOURCES, TRIALS[1])
    note = f"Mean ± sd of {TRIALS[0]} and {TRIALS[1]} trials (the paper: 50); {TEST_ROWS} new test rows in each."
    tables = [
        table_of(of_rows, "Against training rows, K = 8: sampled copies (Figs. 9a, 10a)", "rows", note),
        table_of(of_sources, "Against K, 2000 rows: sampled copies (Figs. 9b, 10b)", "K"),
    ]
    tables[0].figures = [save(figure_of(of_rows, of_sources), "noca_reconstruction")]
    meta = {"CPU seconds of the whole": f"{time.process_time() - begin:.0f}"}
    print(write_report("noca_reconstruction", "NOCA against logistic PCA: reconstruction", tables, meta, intro=INTRO))


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
