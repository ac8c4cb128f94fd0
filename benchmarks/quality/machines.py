"""Restricted Boltzmann machines and replicated softmax beside what else is there for the same data.

    python -m benchmarks.quality.machines [--data DIR]

Writes ``benchmarks/results/machines.{md,json}``. One thread; CPU seconds of the fit alone, after a first fit of a few
rows.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyro.distributions as dist
import scipy.sparse as sp
import torch
from scipy.special import logsumexp
from sklearn.neural_network import BernoulliRBM

import custom_inference as ci
from benchmarks._report import Table, write_report
from benchmarks.quality._common import add_data_option, cpu_seconds, quiet_and_single_threaded, require_data
from benchmarks.quality._machines_data import (
    bars,
    completed_by_lda,
    digits,
    documents,
    perplexity,
    priors_of_pixels,
    retrieval_precision,
)  # fmt: skip
from benchmarks.quality._machines_perplexity import part_perplexity
from benchmarks.quality._ratings import Films
from custom_inference.core.local_inference import log_likelihood
from custom_inference.families.boltzmann.annealing import estimate_log_partition
from ppl_models import PMF, RBM, ReplicatedSoftmax

Weights = dict[str, Any]
SITES = ("weight", "visible_bias", "hidden_bias")
#: Priors and settings of persistent CD by hidden units, of those that were compared on five parts of the training rows.
DIGITS: dict[int, dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    16: {
        "persistent CD, then exact gradients (default)": ({}, {}),
        "the same, neighbouring pixels alike": (priors_of_pixels(8), {}),
        "persistent CD": ({}, {"ascent": False}),
    },
    64: {"persistent CD (default)": ({}, {})},
}
#: Seeds of every fit of bars and digits.
SEEDS = 3
RATINGS: dict[str, Any] = {
    "method": "cd", "max_iterations": 50, "batch_size": 50, "weight_decay": 3e-3, "learning_rate": 0.01,
    "optimizer": "adam",
}  # fmt: skip


def of_scikit_learn(peer: BernoulliRBM) -> Weights:
    """Its weights by the names of the sites."""
    values = (peer.components_, peer.intercept_visible_, peer.intercept_hidden_)
    return dict(zip(SITES, (torch.as_tensor(np.asarray(one, float)) for one in values), strict=True))


def log_p(weights: Weights, rows: np.ndarray) -> np.ndarray:
    """Of every row: exact where that is feasible, else with log Z by annealed importance sampling."""
    hidden, size = weights["weight"].shape
    model = RBM(num_hidden=hidden, num_features=size)
    with torch.no_grad():
        return log_likelihood(model, weights, model.prepare(rows, dtype=torch.float64)).numpy()


def score(weights: Weights, rows: np.ndarray) -> float:
    """Mean log-likelihood of rows."""
    return float(log_p(weights, rows).mean())


def part_bars() -> Table:
    """Maximum likelihood of the 4 x 4 bars."""
    table = Table("4 x 4 bars, 8 hidden units", ["method", "log p", "least", ">= -3.403", "CPU s"], note=(
        "All 30 patterns of bars, once each; exact log-likelihood a row, at most -log 30 = -3.401. "
        f"Flat priors (Normal(0, 500)). {SEEDS} seeds."))  # fmt: skip
    data, flat = bars(), {site: dist.Normal(0.0, 500.0) for site in SITES}
    model = RBM(num_hidden=8, num_features=16).with_priors(**flat)
    ways: dict[str, Callable[[int], Weights]] = {
        "default (exact gradients)": lambda seed: ci.fit(model, data, seed=seed, progress=False).globals,
        "persistent CD": lambda seed: ci.fit(model, data, seed=seed, method="pcd", sweeps=5,
                                             max_iterations=8000, progress=False).globals,
        "BernoulliRBM (scikit-learn)": lambda seed: of_scikit_learn(BernoulliRBM(
            8, learning_rate=0.01, batch_size=10, n_iter=5000, random_state=seed).fit(data)),
    }  # fmt: skip
    for name, way in ways.items():
        found = [cpu_seconds(partial(way, seed)) for seed in range(SEEDS)]
        each = np.array([score(weights, data) for weights, _ in found])
        good = f"{int((each >= -3.403).sum())} of {SEEDS}"
        table.rows.append([name, float(each.mean()), float(each.min()), good, float(np.median([s for _, s in found]))])
        print(table.rows[-1], flush=True)
    return table


def part_digits() -> Table:
    """Test log-likelihood of digits."""
    columns = ["hidden units", "method", "test log p", "least", "log Z", "CPU s"]
    table = Table("Digits", columns, note=(
        "8 x 8 digits above 7, 1437 training and 360 test rows; log-likelihood a test row, means of "
        f"{SEEDS} seeds. log Z exact, or by annealed importance sampling (200 chains, 1000 temperatures; the "
        "standard error of its logarithm). Priors and settings were compared on five parts of the training rows, test "
        "rows out of view. 16 hidden units: the best of twelve machines side by side by training rows and prior, which "
        "goes on by exact gradients and by replacing units (persistent CD alone: the best of six); 64: one machine. "
        "Neighbouring pixels alike: each unit's weights are normal with precision .05 I + .3 L, L the Laplacian of the "
        "grid, biases Normal(0, 10). What an average of the probabilities of the machines gains is what these learned "
        "differently from the same rows."))  # fmt: skip
    train, test = digits()
    for hidden, cases in DIGITS.items():
        for name, (priors, settings) in cases.items():
            model = RBM(num_hidden=hidden, num_features=64, priors=priors)
            ours = partial(ci.fit, model, train, method="pcd", progress=False, **settings)
            found = [cpu_seconds(partial(ours, seed=seed)) for seed in range(SEEDS)]
            z = ci.log_partition(found[0][0], reverse=False)
            how = "exact" if float(z.standard_error) == 0 else f"AIS, +-{float(z.standard_error):.3f}"
            each, seconds = np.array([log_p(fit.globals, test) for fit, _ in found]), [spent for _, spent in found]
            means, mixture = each.mean(1), (logsumexp(each, 0) - np.log(SEEDS)).mean()
            table.rows.append([hidden, name, means.mean(), means.min(), how, float(np.median(seconds))])
            table.rows.append([hidden, "mixture of these", mixture, None, how, sum(seconds)])
            print(*table.rows[-2:], sep="\n", flush=True)
    return table


def part_log_z() -> Table:
    """Annealed importance sampling from both ends beside the exact log Z."""
    table = Table("Annealed importance sampling beside exact log Z", ["hidden, visible", "forwards - exact",
                  "backwards - exact", "largest error", "bracketed"], note=(
        "Standard normal weights and biases, four seeds a size; 200 chains, 300 temperatures, from units without "
        "weights. Means of the differences in nats; the largest standard error of one; bracketed: log Z between "
        "the two ends, each moved outwards by 4 of its standard errors."))  # fmt: skip
    for hidden, visible in ((3, 5), (6, 4), (5, 9), (8, 6), (10, 8)):
        model, found = RBM(num_hidden=hidden, num_features=visible), []
        for seed in range(4):
            generator = torch.Generator().manual_seed(seed)
            params = {site: torch.randn(model.shapes[site], generator=generator, dtype=torch.float64) for site in SITES}
            energy = model.energy(params)
            base = torch.zeros(visible, dtype=torch.float64)
            ends = estimate_log_partition(energy, base, temperatures=300, reverse=True, generator=generator)
            low, high = (float(end - energy.log_partition()) for end in (ends.value, ends.reverse))
            found.append((low, high, float(ends.standard_error), float(ends.reverse_error)))
        each = np.array(found)
        inside = int(((each[:, 0] < 4 * each[:, 2]) & (each[:, 1] > -4 * each[:, 3])).sum())
        means = [f"{value:+.4f}" for value in each[:, :2].mean(0)]
        table.rows.append([f"{hidden}, {visible}", *means, float(each[:, 2:].max()), f"{inside} of 4"])
        print(table.rows[-1], flush=True)
    return table


def part_documents(folder: Path) -> Table:
    """Completion of documents."""
    table = Table("Newsgroups, the other half of documents", ["method", "perplexity", "CPU s"], note=(
        "Four newsgroups by date, the 1000 most frequent terms; half of the tokens of every test document observed, "
        "the perplexity of the others. Replicated softmax: 50 hidden units, the probability of one more token with "
        "the hidden units summed out, default settings, which were compared on a fifth of the training documents; LDA "
        "(the default here): proportions folded in."))  # fmt: skip
    train, seen, held = documents(folder)
    unigram = np.asarray(train.sum(0)).ravel() + 0.5
    table.rows.append(["unigram", perplexity(np.tile(unigram / unigram.sum(), (seen.shape[0], 1)), held), None])
    model = ReplicatedSoftmax(num_hidden=50, num_features=train.shape[1])
    fit, seconds = cpu_seconds(lambda: ci.fit(model, train, progress=False))
    table.rows.append(["replicated softmax 50", perplexity(ci.complete(fit, seen).numpy(), held), seconds])
    print(table.rows[-1], flush=True)
    for topics in (20, 50):
        share, seconds = cpu_seconds(partial(completed_by_lda, train, seen, topics))
        table.rows.append([f"LDA {topics}", perplexity(share, held), seconds])
        print(table.rows[-1], flush=True)
    return table


def part_ratings(folder: Path) -> Table:
    """Ratings by a categorical RBM, by PMF, and by the mean of both."""
    table = Table("MovieLens 100K", ["method", "RMSE", "CPU s"], note=(
        "Split 0 of the benchmark of ratings. RBM: 30 binary hidden units, five softmax categories a film, films that "
        "a user did not rate absent; the expected rating of one more film. PMF: 10 factors."))  # fmt: skip
    films = Films.read(folder)
    train, test = films.split(0)
    x = np.full(films.shape, np.nan)
    x[films.user[train], films.item[train]] = films.value[train] - 1
    kept = ~np.isnan(x).all(0)
    model = RBM(num_hidden=30, num_features=int(kept.sum()), visible="categorical", num_categories=5, missing="absent")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit, seconds = cpu_seconds(lambda: ci.fit(model, x[:, kept], progress=False, **RATINGS))
    chance = ci.complete(fit).numpy()
    expected = np.full(films.shape, films.value[train].mean())
    expected[:, kept] = (chance * np.arange(1, 6)).sum(-1)
    ours = expected[films.user[test], films.item[test]]
    data = films.ratings(train)
    pmf, other = cpu_seconds(lambda: ci.fit(PMF.for_data(data, 10), data, progress=False))
    theirs = pmf.predict((films.user[test], films.item[test])).numpy()
    cases = {"categorical RBM": (ours, seconds), "PMF": (theirs, other), "their mean": ((ours + theirs) / 2, None)}
    for name, (value, spent) in cases.items():
        error = np.clip(value, 1, 5) - films.value[test]
        table.rows.append([name, f"{np.sqrt(np.mean(error**2)):.4f}", spent])
        print(table.rows[-1], flush=True)
    return table


def part_retrieval(folder: Path) -> Table:
    """Precision and recall of documents of the query's group (Murphy 2012, fig. 27.33)."""
    note = "Precision at a recall, by the cosine of hidden means, or of proportions, of test and training documents."
    table = Table("Retrieval of newsgroups (Murphy, Fig. 27.33)", ["method", "at 1 %", "at 10 %", "at 50 %"], note=note)
    train, seen, held = documents(folder)
    test, group, asked = (seen + held).tocsr(), *documents_groups(folder)
    model = ReplicatedSoftmax(num_hidden=50, num_features=train.shape[1])
    fit = ci.fit(model, train, progress=False)
    lda = completed_by_lda(train, test, 50, proportions=True)
    cases = {"replicated softmax 50": (fit.transform(train), fit.transform(test)), "LDA 50": lda}
    cases["counts"] = (sp.csr_matrix(train).toarray(), test.toarray())
    for name, (known, new) in cases.items():
        table.rows.append([name, *retrieval_precision(np.asarray(known), np.asarray(new), group, asked)])
        print(table.rows[-1], flush=True)
    return table


def documents_groups(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    return documents(folder, groups=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_option(parser)
    folder = require_data(parser, parser.parse_args())
    quiet_and_single_threaded()
    ci.fit(RBM(num_hidden=2, num_features=16), bars(), method="pcd", max_iterations=2, progress=False)
    of_files = (part_documents, part_retrieval, part_ratings, part_perplexity)
    tables = [part_bars(), part_digits(), part_log_z(), *(part(folder) for part in of_files)]
    print(write_report("machines", "Boltzmann machines beside others", tables))


if __name__ == "__main__":
    main()
