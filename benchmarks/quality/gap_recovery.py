"""Recovery of gamma-Poisson factor analysis: 300 rows of known loadings over 10 seeds, and held-out likelihood.

K = 4 components over 40 features, loadings Gamma(.3, .6), activations Gamma(.5, .25). Held out: a fifth of the events
(binomial thinning of the same rows); score: Poisson log-likelihood of the held-out counts at a quarter of the rate that
was fitted, per event, less that of the true rates. Cosine: the mean over components of that with the true loadings.

Sparse: the same with activations that are 0 with probability .5.

    python -m benchmarks.quality.gap_recovery [--parts dense sparse]
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import custom_inference as ci
from benchmarks._report import Table, read_tables, write_report
from ppl_models import NMF, DataWarning, GammaPoisson, SpikeGammaPoisson

NAME = "gap_recovery"
SEEDS, ROWS, FEATURES, COMPONENTS = 10, 300, 40, 4
#: Held-out counts at a rate of 0 would have probability 0: of every rate this share is the row's mean.
_MIXED = 0.01


def problem(seed: int, sparse: bool = False) -> tuple[Any, Any, Any, Any]:
    """Training and held-out counts, the true loadings, the true rates of the training counts."""
    rng = np.random.default_rng(seed)
    loading = rng.gamma(0.3, 1 / 0.6, (COMPONENTS, FEATURES))
    activation = rng.gamma(0.5, 1 / 0.25, (ROWS, COMPONENTS))
    rate = (activation * (rng.random(activation.shape) < 0.5) if sparse else activation) @ loading
    x = rng.poisson(rate)
    train = rng.binomial(x, 0.8)
    return train, x - train, loading, 0.8 * rate


def score(rate: Any, test: Any) -> float:
    """Per held-out event."""
    expected = rate / 4
    expected = (1 - _MIXED) * expected + _MIXED * expected.mean(1, keepdims=True)
    expected = np.maximum(expected, 1e-12)
    return float(((test * np.log(expected)).sum() - expected.sum()) / test.sum())


def mean_rate(fit: Any) -> Any:
    """Over the draws, where there are some."""
    if fit.draws is None:
        return (fit.transform() @ fit.params["loading"]).numpy()
    activation, loading = (fit.draws[site].flatten(0, 1) for site in ("activation", "loading"))
    return torch.einsum("snk,skd->nd", activation, loading).numpy() / len(loading)


def gibbs(model: Any, x: Any) -> Any:
    return ci.CollapsedGibbs(chains=1, learn=True, num_samples=30, warmup=80, thin=4).fit(model, x, progress=False)


def methods(sparse: bool) -> dict[str, Callable[[Any], Any]]:
    """Name -> fits (data)."""
    sizes: Any = {"num_components": COMPONENTS, "num_features": FEATURES}
    learned, gap, spiked = ci.VariationalBayes(learn="activation"), GammaPoisson(**sizes), SpikeGammaPoisson(**sizes)
    if sparse:
        return {
            "sparse, VB": lambda x: ci.VariationalEM(guide="vb").fit(spiked, x, progress=False),
            "sparse, VB, learned activations": lambda x: ci.VariationalEM(guide=learned).fit(spiked, x, progress=False),
            "sparse, Gibbs, learned": lambda x: gibbs(spiked, x),
            "GaP, VB, learned activations": lambda x: ci.VariationalEM(guide=learned).fit(gap, x, progress=False),
            "GaP, Gibbs, learned": lambda x: gibbs(gap, x),
        }
    return {
        "VB": lambda x: ci.VariationalEM(guide="vb").fit(gap, x, progress=False),
        "VB, learned activations": lambda x: ci.VariationalEM(guide=learned).fit(gap, x, progress=False),
        "points": lambda x: ci.VariationalEM(guide="map").fit(gap, x, progress=False),
        "Gibbs, learned": lambda x: gibbs(gap, x),
        "NMF": lambda x: ci.fit(NMF(**sizes), x, progress=False),
    }


PARTS = {"dense": "Recovery", "sparse": "Recovery of sparse activations"}
HEADER = ["method", "cosine", "worst seed", "held-out less the truth's", "CPU s"]
EACH = ["method", "seed", "cosine", "held-out less the truth's", "CPU s"]


def measured(part: str, again: bool) -> None:
    """Every seed by every method, each written as soon as it is known."""
    title = f"{PARTS[part]}, each seed"
    lines = [] if again else list(read_tables(NAME).get(title, Table(title)).rows)
    known = {tuple(row[:2]) for row in lines}
    for seed in range(SEEDS):
        train, test, loading, rate = problem(seed, part == "sparse")
        for name, fit_with in methods(part == "sparse").items():
            if (name, seed) in known:
                continue
            begun = time.process_time()
            fit = fit_with(train.astype(float))
            seconds = time.process_time() - begun
            alike = float(
                ci.match_components(torch.as_tensor(loading), fit.params["loading"].double()).similarity.mean()
            )
            lines.append([name, seed, alike, score(mean_rate(fit), test) - score(rate, test), seconds])
            print(lines[-1], flush=True)
            report(part, lines)


def report(part: str, lines: list[Any]) -> None:
    """A line a method, of the seeds so far, and these; the other part stays."""
    title, found = PARTS[part], []
    for name in dict.fromkeys(row[0] for row in lines):
        cosine, apart, seconds = np.array([row[2:] for row in lines if row[0] == name]).T
        found.append(
            [name, f"{cosine.mean():.3f}", f"{cosine.min():.3f}", f"{apart.mean():.4f}", f"{seconds.mean():.2f}"]
        )
    tables = read_tables(NAME)
    number = 1 + max(row[1] for row in lines)
    tables[title] = Table(title, HEADER, found, note=f"{number} seeds, one thread.")
    tables[f"{title}, each seed"] = Table(f"{title}, each seed", EACH, lines)
    order = [name for one in PARTS.values() for name in (one, f"{one}, each seed")]
    intro = (__doc__ or "").rpartition("\n\n")[0]
    kept = [tables[name] for name in order if name in tables]
    write_report(NAME, "Gamma-Poisson factor analysis", kept, intro=intro)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure; the rest stays"
    )
    parser.add_argument("--again", action="store_true", help="seeds that the report has, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DataWarning)
    for part in options.parts:
        measured(part, options.again)


if __name__ == "__main__":
    main()
