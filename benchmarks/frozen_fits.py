"""Fits of every model by its default and by every engine, kept, so that moving code can be told from changing it.

    python -m benchmarks.frozen_fits record     fits anew and keeps what came out
    python -m benchmarks.frozen_fits check      fits anew and says what differs from what was kept
    python -m benchmarks.frozen_fits speeds     seconds of ten whole fits, beside those of another run by ``--against``

A fit counts as the same where its status is, its objective's course has the same length and end, and every site's
values agree to 1e-6 of their size. Iterations amplify rounding, and processors round differently: compare on one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import custom_inference as ci
from benchmarks._report import environment
from custom_inference.methods import methods_of
from ppl_models import LDA, MODELS, NOCA, PMF, SBM, Data, Example, PPLError, datasets, graph, ratings

KEPT = Path(__file__).with_suffix(".json")
#: How far values may be off, of their root mean square.
TOLERANCE = 1e-6
#: Few of whatever costs time, by the name of the setting.
SMALL = {"max_iterations": 12, "steps": 8, "num_samples": 6, "warmup": 4, "chains": 2, "max_tree_depth": 2}
#: Methods that need the program alone: one code for all models, so that a few of these stand for all.
GENERIC = ("exact", "svi", "svi_delta", "svi_normal", "mean_field", "amortized", "nuts")
FEW = ("noca", "cvq", "lda", "gaussian_pca", "pmf", "mixture_of_poissons")


def fit_all(only: str | None) -> dict[str, Any]:
    """Fit every model that is asked for by all of its methods; what came out, by "model/method"."""
    found = {}
    for name, kind in MODELS.items():
        if only is not None and only not in name:
            continue
        example = kind.example()
        for method in methods_of(example.model):
            if method in GENERIC and name not in FEW:
                continue
            if method == "em" and example.model.is_graph:  # sums over all labellings of its two dozen nodes
                continue
            before = time.process_time()
            found[f"{name}/{method}"] = summarise_fit(example, method)
            print(f"{name}/{method}: {time.process_time() - before:.1f} s", flush=True)
    return found


def summarise_fit(example: Example, method: str) -> dict[str, Any]:
    """Fit an example and summarise the fit by its status, its objective, and three numbers of every site."""
    settings: dict[str, Any] = {"progress": False, "seed": 3}
    chosen = None
    if method != "default":
        made = methods_of(example.model)[method]()
        known = {one.name for one in fields(made)}
        chosen = replace(made, **{name: value for name, value in SMALL.items() if name in known})
    try:
        fit = ci.fit(example.model, example.data, method=chosen, **settings)
    except PPLError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    values = {**fit.params, "transform": fit.transform()}
    return {
        "status": fit.status,
        "objective": [float(fit.elbo[-1])] if len(fit.elbo) else [],
        "length": len(fit.elbo),
        "sites": {site: summarise_values(value) for site, value in values.items()},
    }


def summarise_values(value: torch.Tensor) -> list[float]:
    """Shape aside: the root mean square, the mean, and the mean with weights that tell places apart."""
    flat = value.double().flatten().numpy()
    weight = np.cos(1.0 + np.arange(flat.size))
    return [float(np.sqrt((flat**2).mean())), float(flat.mean()), float((flat * weight).mean())]


def compare(kept: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """List what differs between two runs, a line each."""
    lines = []
    for name, now in found.items():
        before = kept.get(name)
        if before is None:
            lines.append(f"{name}: not among what was kept")
            continue
        for part in ("error", "status", "length"):
            if before.get(part) != now.get(part):
                lines.append(f"{name}: {part} {before.get(part)!r} -> {now.get(part)!r}")
        if "error" in now or "error" in before:
            continue
        pairs = {"objective": (before["objective"], now["objective"])}
        if set(before["sites"]) != set(now["sites"]):
            lines.append(f"{name}: sites {sorted(before['sites'])} -> {sorted(now['sites'])}")
        pairs |= {site: (one, now["sites"][site]) for site, one in before["sites"].items() if site in now["sites"]}
        for site, (one, other) in pairs.items():
            size = max(np.abs(one), default=0.0) + 1e-12
            off = max(np.abs(np.subtract(one, other)), default=0.0) / size
            if not off <= TOLERANCE:
                lines.append(f"{name}: {site} differs by {off:.2g} of its size")
    return lines


# ----- speeds ---------------------------------------------------------------------------------------------------------


def whole_fits() -> dict[str, Callable[[], Any]]:
    """Ten fits as people run them, by their names."""
    rng = np.random.default_rng(0)
    topic = rng.dirichlet([0.05] * 1000, 20)
    words = np.stack([rng.multinomial(80, p @ topic) for p in rng.dirichlet([0.1] * 20, 1000)])
    block = rng.integers(0, 4, 300)
    edges = np.triu(rng.random((300, 300)) < np.where(block[:, None] == block, 0.12, 0.02), 1)
    edges = edges + edges.T
    user, item = rng.integers(0, 600, 30000), rng.integers(0, 400, 30000)
    taste = rng.normal(size=(600, 4)), rng.normal(size=(400, 4))
    stars = np.clip(np.round(3 + (taste[0][user] * taste[1][item]).sum(1) / 2 + rng.normal(size=30000)), 1, 5)
    rated = ratings(np.stack([user, item, stars], 1))
    binary = (rng.random((2000, 60)) < rng.beta(0.5, 0.5, (5, 60))[rng.integers(0, 5, 2000)]).astype(float)
    counts = rng.poisson(rng.gamma(0.3, 3.0, (500, 6)) @ rng.gamma(0.3, 1.0, (6, 80))).astype(float)
    real = rng.normal(size=(1000, 5)) @ rng.normal(size=(5, 40)) + rng.normal(size=(1000, 40))
    noca = datasets.sample_noca(NOCA.example().truth, 1000, seed=0).data.x
    return {
        "lda": lambda: ci.fit(LDA(num_topics=20, vocabulary_size=1000), words, progress=False),
        "noca": lambda: ci.fit(NOCA(num_components=3, num_features=noca.shape[1]), noca, progress=False),
        "sbm": lambda: ci.fit(SBM(num_blocks=4, num_nodes=300, directed=False), graph(edges), progress=False),
        "pmf": lambda: ci.fit(PMF.for_data(rated, 4), rated, progress=False),
        **{
            name: lambda kind=MODELS[name], data=data, size=size: ci.fit(
                kind.for_data(Data(x=torch.as_tensor(data, dtype=torch.float64)), size), data, progress=False
            )
            for name, data, size in (
                ("mixture_of_bernoullis", binary, 5),
                ("aspect_bernoulli", binary, 4),
                ("gamma_poisson", counts, 6),
                ("gaussian_pca", real, 5),
                ("ctm", words[:300], 10),
                ("plsa", words, 20),
            )
        },
    }


def measure(repeats: int) -> dict[str, float]:
    """Median CPU seconds of every whole fit, after one that loads and compiles what it needs."""
    seconds = {}
    for name, run in whole_fits().items():
        run()
        taken = []
        for _ in range(repeats):
            before = time.process_time()
            run()
            taken.append(time.process_time() - before)
        seconds[name] = statistics.median(taken)
        print(f"{name:24s}{seconds[name]:8.3f} s", flush=True)
    return seconds


def main() -> int:
    """Run what the command line asks for; 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("record", "check", "speeds"))
    parser.add_argument("--only", help="models whose name contains this")
    parser.add_argument("--file", type=Path, default=KEPT, help="where fits are kept (default: %(default)s)")
    parser.add_argument("--against", type=Path, help="speeds of another run, written by --write")
    parser.add_argument("--write", type=Path, help="where speeds are written")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    if given.task == "speeds":
        seconds = measure(given.repeats)
        before = json.loads(given.against.read_text()) if given.against else {}
        for name in before:
            print(f"{name:24s}{seconds[name] / before[name]:8.3f} of before")
        if given.write:
            given.write.write_text(json.dumps(seconds))
        return 0
    found = fit_all(given.only)
    if given.task == "record":
        given.file.write_text(json.dumps({"environment": environment(), "fits": found}, indent=1) + "\n")
        return 0
    lines = compare(json.loads(given.file.read_text())["fits"], found)
    print("\n".join([*lines, f"{len(found)} fits, {len(lines)} differences"]))
    return int(bool(lines))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
