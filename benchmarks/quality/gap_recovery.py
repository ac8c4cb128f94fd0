"""Recovery of gamma-Poisson factor analysis: 300 rows of known loadings, and held-out likelihood.

K = 4 components over 40 features, loadings Gamma(.3, .6), activations Gamma(.5, .25). Held out: a fifth of the events
(binomial thinning of the same rows); score: Poisson log-likelihood of the held-out counts at a quarter of the rate that
was fitted, per event, less that of the true rates. Cosine: the mean over components of that with the true loadings.

Sparse: the same with activations that are 0 with probability .5.

    python -m benchmarks.quality.gap_recovery
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import custom_inference as ci
from benchmarks._report import Table, write_report
from ppl_models import NMF, DataWarning, GammaPoisson, SpikeGammaPoisson

SEEDS, ROWS, FEATURES, COMPONENTS = 5, 300, 40, 4
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


def measured(sparse: bool) -> Table:
    """A line a method, means over the seeds."""
    runs: dict[str, list[tuple[float, float, float]]] = {}
    for seed in range(SEEDS):
        train, test, loading, rate = problem(seed, sparse)
        for name, fit_with in methods(sparse).items():
            begun = time.process_time()
            fit = fit_with(train.astype(float))
            seconds, found = time.process_time() - begun, fit.params["loading"].double()
            alike = float(ci.match_components(torch.as_tensor(loading), found).similarity.mean())
            runs.setdefault(name, []).append((alike, score(mean_rate(fit), test) - score(rate, test), seconds))
            print(name, seed, *runs[name][-1], flush=True)
    header = ["method", "cosine", "worst seed", "held-out less the truth's", "CPU s"]
    table = Table(
        "Recovery of sparse activations" if sparse else "Recovery", header, note=f"{SEEDS} seeds, one thread."
    )
    for name, values in runs.items():
        cosine, apart, seconds = np.array(values).T
        cells = [f"{cosine.mean():.3f}", f"{cosine.min():.3f}", f"{apart.mean():.4f}", f"{seconds.mean():.2f}"]
        table.rows.append([name, *cells])
    return table


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DataWarning)
    intro = (__doc__ or "").rpartition("\n\n")[0]
    print(write_report("gap_recovery", "Gamma-Poisson factor analysis", [measured(False), measured(True)], intro=intro))


if __name__ == "__main__":
    main()
