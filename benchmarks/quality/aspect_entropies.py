"""Aspect Bernoulli: the entropies of the parameters while EM climbs (Bingham et al. 2007, eq. 31 and Fig. 4).

    python -m benchmarks.quality.aspect_entropies [--data DIR]

Writes ``benchmarks/results/aspect_entropies.{md,json}`` and a figure. The paper's EM (eqs. 7-9) from random memberships
and aspects; after every iteration the log-likelihood and the weighted sum of entropies, with q(k | n, t) the
probability that aspect k produced entry (n, t),

    T sum_n H(s_n) + sum_kt H(a_kt) sum_n q(k | n, t).
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from matplotlib import pyplot as plt
from scipy.special import entr

from benchmarks._report import RESULTS, Table, write_report
from benchmarks.quality._aspect_data import digits, mammals, newsgroups
from benchmarks.quality._common import add_data_option, quiet_and_single_threaded, require_data
from custom_inference.families.aspects.map import AspectMap
from ppl_models import AspectBernoulli

#: Data sets, their rows and the source's numbers of aspects.
_SETS = {"mammals": (mammals, 4), "newsgroups": (newsgroups, 5), "digits": (digits, 15)}
_ITERATIONS, _SEEDS = 200, 3


def entropies(x: np.ndarray, membership: np.ndarray, aspect: np.ndarray) -> float:
    """Eq. 31, with its sign turned, at memberships (N, K) and aspects (K, T)."""
    on = membership @ aspect
    weight = aspect * (membership.T @ (x / on)) + (1 - aspect) * (membership.T @ ((1 - x) / (1 - on)))
    return float(x.shape[1] * entr(membership).sum() + (weight * (entr(aspect) + entr(1 - aspect))).sum())


def climbed(x: np.ndarray, components: int, seed: int, iterations: int = _ITERATIONS) -> np.ndarray:
    """(iterations, 2): the log-likelihood and the entropies after every iteration of EM."""
    model = AspectBernoulli(num_components=components, num_features=x.shape[1])
    engine, generator = AspectMap(update="em"), torch.Generator().manual_seed(seed)
    rows = engine.rows(model, model.prepare(x, dtype=torch.float64))
    params = engine.initial(model, rows, generator)
    start = torch.rand(len(x), components, generator=generator, dtype=torch.float64) + 0.1
    locals_, found = {"membership": start / start.sum(1, keepdim=True)}, []
    for _ in range(iterations):
        step = engine.e_step(model, params, rows, locals_)
        locals_ = step.locals
        membership, aspect = locals_["membership"].numpy(), params["aspect_probability"].numpy()
        found.append([float(step.bound.sum()), entropies(x, membership, aspect)])
        params = engine.m_step(model, params, step, rows)
    return np.array(found)


def line(name: str, seed: int, trace: np.ndarray) -> list[Any]:
    climb, fall = trace.T
    steps = np.diff(fall)
    together = float(np.corrcoef(climb, fall)[0, 1])
    return [name, seed, climb[0], climb[-1], fall[0], fall[-1], f"{int((steps < 0).sum())} of {len(steps)}", together]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    folder = require_data(parser, parser.parse_args())
    quiet_and_single_threaded()
    columns = ["data", "seed", "log-likelihood, first", "last", "entropies, first", "entropies, last",
               "they fall in", "correlation with the likelihood"]  # fmt: skip
    table = Table("Entropies while EM climbs (Fig. 4)", columns, figures=["aspect_entropies.png"])
    table.note = f"{_ITERATIONS} iterations; the source's numbers of aspects. The figure begins at the second."
    figure, axes = plt.subplots(1, len(_SETS), figsize=(10, 2.8), layout="constrained")
    for panel, (name, (read, components)) in zip(axes, _SETS.items(), strict=True):
        for seed in range(_SEEDS):
            trace = climbed(read(folder).x, components, seed)
            table.rows.append(line(name, seed, trace))
            print(table.rows[-1], flush=True)
            for column, color in ((0, "tab:blue"), (1, "tab:orange")):
                panel.plot(np.arange(2, len(trace) + 1), trace[1:, column], color=color)
        panel.set(title=name, xlabel="iteration", xscale="log")
    axes[0].legend(axes[0].lines[:2], ["log-likelihood", "entropies"], fontsize=8)
    figure.savefig(RESULTS / "aspect_entropies.png", dpi=110)
    write_report("aspect_entropies", "Entropies of aspects while EM climbs", [table], intro=INTRO)


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
