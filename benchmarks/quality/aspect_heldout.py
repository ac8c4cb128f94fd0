"""Held-out entries of the aspect Bernoulli model: how many aspects, and how much prior, do small data want?

    python -m benchmarks.quality.aspect_heldout

A 50 x 85 matrix: drawn from six aspects, and where PPL_DATA holds ``kemp/animals.npz`` the animals of Osherson et al.
(1991) and Kemp et al. (2006). Of its entries 70% train, 15% choose the number of aspects and the priors, and 15% test;
scores are mean negative log-likelihoods of the held-out entries. Writes
``benchmarks/results/aspect_heldout.{md,json}``.
"""

from __future__ import annotations

import itertools
import os
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor

from benchmarks._report import Table, write_report
from custom_inference import VariationalEM
from ppl_models import AspectBernoulli, Data, DataWarning, datasets

SIZES, SPLITS = (2, 3, 4, 6), 2
#: Beta priors of the aspects, and concentrations of the memberships; the first of each is flat.
BETAS = ((1.0, 1.0), (1.2, 1.6), (2.0, 2.0))
CONCENTRATIONS = (1.0, 1.2, 2.0)


class Setting(NamedTuple):
    """One model: its size and its priors."""

    num_components: int
    beta: tuple[float, float]
    concentration: float

    def model(self, num_features: int) -> AspectBernoulli:
        priors = {
            "aspect_probability": dist.Beta(*self.beta),
            "membership": dist.Dirichlet(torch.full((self.num_components,), self.concentration)),
        }
        return AspectBernoulli(num_components=self.num_components, num_features=num_features, priors=priors)


FLAT = [Setting(k, BETAS[0], CONCENTRATIONS[0]) for k in SIZES]
GRID = [Setting(*values) for values in itertools.product(SIZES, BETAS, CONCENTRATIONS)]


class Split(NamedTuple):
    """Masks (N, D)."""

    train: Tensor
    choose: Tensor
    test: Tensor


def split(shape: tuple[int, int], seed: int) -> Split:
    part = torch.tensor(np.random.default_rng(seed).random(shape))
    return Split(part < 0.7, (part >= 0.7) & (part < 0.85), part >= 0.85)


def problems() -> dict[str, Tensor]:
    rng = np.random.default_rng(0)
    drawn = datasets.sample_aspects(torch.tensor(rng.beta(0.4, 0.7, (6, 85))), 50, concentration=0.2, seed=1)
    found = {"Drawn: 50 rows of 85 features from six aspects": drawn.x}
    path = Path(os.environ.get("PPL_DATA", "")) / "kemp" / "animals.npz"
    if path.is_file():
        found["Animals: 50 animals, 85 attributes"] = torch.tensor(np.load(path)["X"]).double()
    return found


def scores(x: Tensor, setting: Setting, masks: Split) -> tuple[float, float]:
    """Mean negative log-likelihood of the entries that choose, and of those that test."""
    model = setting.model(x.shape[1])
    seen = Data(x=x * masks.train, mask=masks.train)
    fit = VariationalEM(guide="map", tolerance=1e-6).fit(model, seen, progress=False)
    p = fit.params["membership"] @ fit.params["aspect_probability"]
    entry = torch.distributions.Bernoulli(p.clamp(1e-9, 1 - 1e-9)).log_prob(x)
    return -float(entry[masks.choose].mean()), -float(entry[masks.test].mean())


def column_means(x: Tensor, masks: Split) -> float:
    """The score of every column's (smoothed) rate of ones."""
    seen = masks.train.double()
    p = ((x * seen).sum(0) + 1) / (seen.sum(0) + 2)
    return -float(torch.distributions.Bernoulli(p.expand_as(x)).log_prob(x)[masks.test].mean())


def tables(title: str, x: Tensor) -> list[Table]:
    found = []
    for seed in range(SPLITS):
        masks = split((x.shape[0], x.shape[1]), seed)
        found.append((column_means(x, masks), {setting: scores(x, setting, masks) for setting in GRID}))
    chosen, sizes = [], []
    for name, settings in (("flat priors (maximum likelihood)", FLAT), ("priors and size chosen", GRID)):
        best = [min(settings, key=lambda s: scored[s][0]) for _, scored in found]
        test = [scored[setting][1] for setting, (_, scored) in zip(best, found, strict=True)]
        words = "; ".join(f"K = {s.num_components}, Beta{s.beta}, alpha = {s.concentration}" for s in best)
        chosen.append([name, float(np.mean(test)), min(test), max(test), words])
    means = [baseline for baseline, _ in found]
    chosen.append(["rates of the columns", float(np.mean(means)), min(means), max(means), ""])
    for size in SIZES:
        mine = [setting for setting in GRID if setting.num_components == size]
        best = [min(mine, key=lambda s: scored[s][0]) for _, scored in found]
        flat = [scored[Setting(size, BETAS[0], CONCENTRATIONS[0])][1] for _, scored in found]
        priors = [scored[setting][1] for setting, (_, scored) in zip(best, found, strict=True)]
        sizes.append([size, float(np.mean(flat)), float(np.mean(priors))])
    note = f"Mean over {SPLITS} splits of the entries; settings are those with the best score on the choosing 15%."
    return [
        Table(title, ("model", "held-out", "least", "most", "chosen"), chosen, note=note),
        Table(f"{title}, by number of aspects", ("K", "flat priors", "priors chosen"), sizes),
    ]


def main() -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    warnings.simplefilter("ignore", DataWarning)  # columns that are constant among the training entries
    begin = time.process_time()
    made = [table for title, x in problems().items() for table in tables(title, x)]
    meta = {"cpu_seconds": round(time.process_time() - begin, 1)}
    print(write_report("aspect_heldout", "Held-out entries of the aspect Bernoulli model", made, meta))


if __name__ == "__main__":
    main()
