"""What the experiments on documents and on fossils share: K by AIC, phantoms in random starts, added ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks._report import Table
from benchmarks.quality._aspect_data import Corrupted
from benchmarks.quality._aspect_methods import (
    Aspects,
    best_aspects,
    default_aspects,
    mixture,
    plsa,
    random_start,
    started_at,
)
from benchmarks.quality._common import cpu_seconds


def aic_table(x: np.ndarray, sizes: Sequence[int], seeds: int, paper: str) -> tuple[Table, int]:
    """Eq. 27, -L + TK + (K - 1)N, and the K that minimises it."""
    table = Table(
        "How many aspects? AIC (eq. 27)",
        ["K", "log-likelihood", "AIC", "mean of the lightest aspect"],
        note=(
            f"Best likelihood of {seeds} default fits and {seeds} random starts. The mean is over features: near 0 for "
            f"a white phantom. {paper}"
        ),
    )
    for k in sizes:
        fit = best_aspects(x, k, seeds)
        lightest = float(fit.aspect[fit.lightest].mean())
        table.rows.append([k, f"{fit.log_likelihood:.1f}", f"{fit.fit.aic() / 2:.1f}", f"{lightest:.4f}"])
    chosen = min(table.rows, key=lambda row: float(row[2]))[0]
    table.note = f"AIC is smallest at K = {chosen}. {table.note}"
    return table, chosen


def starts_table(x: np.ndarray, k: int, number: int, paper: str) -> Table:
    """A phantom in how many random starts, and in how many default fits?"""
    richness = x.sum(1)
    table = Table(
        f"A phantom in how many of {number} fits? K = {k}",
        [
            "starts",
            "phantom found",
            "its mean",
            "its largest entry",
            "correlation with richness",
            "log-likelihood",
            "CPU s",
        ],
        note=(
            "Found: the lightest aspect is a white phantom by the thresholds of ``phantoms`` (mean of P(present | "
            "aspect) over the features at most 0.02, none above 0.5). Entries are best / median / worst over the fits "
            "(of the lightest aspect, found or not); richness is the number of ones of a row; CPU s: median. "
            f"{paper}"
        ),
    )
    for name, run in (("random", random_start), ("default", default_aspects)):
        timed = [cpu_seconds(lambda s=s, run=run: run(x, k, s)) for s in range(number)]
        fits = [fit for fit, _ in timed]
        lightest = [f.aspect[f.lightest] for f in fits]
        found = sum(f.is_phantom(f.lightest) for f in fits)
        corr = [float(np.corrcoef(f.membership[:, f.lightest], richness)[0, 1]) for f in fits]
        table.rows.append([name, f"{found} of {number}"])
        for values, digits in (([a.mean() for a in lightest], 4), ([a.max() for a in lightest], 3), (corr, 2)):
            table.rows[-1].append(_three(values, digits))
        table.rows[-1] += [_three([-f.log_likelihood for f in fits], 1, sign=-1)]
        table.rows[-1] += [float(np.median([seconds for _, seconds in timed]))]
    return table


def _three(values: Sequence[float], digits: int, sign: int = 1) -> str:
    """The smallest, the median and the largest (times sign)."""
    return " / ".join(f"{sign * f(values):.{digits}f}" for f in (np.min, np.median, np.max))


def shares(posterior: np.ndarray, added: Corrupted) -> np.ndarray:
    """Eqs. 33-35: how the components divide the true ones, the added ones and the zeros: (3, K), rows summing to 1.

    posterior: (N, K, D), q(k, t, n).
    """
    which = [added.original == 1, added.changed, added.x == 0]
    sums = np.array([np.einsum("nkd,nd->k", posterior, mask.astype(float)) for mask in which])
    return sums / sums.sum(1, keepdims=True)


@dataclass(frozen=True)
class Division:
    """How a method's components divide true ones, added ones and zeros: share (3, K), the one for added ones last.

    told: of AB with its black phantom given at the start; mean: P(present | component) of that component over features.
    """

    method: str
    share: np.ndarray
    told: bool = False
    mean: float | None = None
    log_likelihood: float | None = None

    @classmethod
    def of(cls, method: str, posterior: np.ndarray, added: Corrupted, **more: Any) -> Division:
        share = shares(posterior, added)
        return cls(method, share[:, np.argsort(share[1] - share[0])], **more)


def added_ones(added: Corrupted, k: int, seeds: int) -> list[Division]:
    """Fig. 8 / Fig. 12: the divisions by AB, the mixture and PLSA, with about equally many parameters.

    A mixture's component explains a whole row, so its q does not depend on t; PLSA's posterior of a word that is absent
    is not defined by its likelihood, and is taken as its mixing proportions here.
    """
    x = added.x
    clean = best_aspects(added.original, k - 1, seeds)
    told = started_at(x, np.vstack([clean.aspect, np.ones(x.shape[1])]).clip(0.01, 0.99))
    result = [_of_aspects("AB", best_aspects(x, k, seeds), added), _of_aspects("AB, told", told, added, told=True)]
    size = round((x.shape[1] * k + (k - 1) * len(x) + 1) / (x.shape[1] + 1))
    mix = max((mixture(x, size, s) for s in range(seeds)), key=lambda f: float(f.elbo[-1]))
    whole = np.repeat(mix.transform().numpy()[:, :, None], x.shape[1], axis=2)
    result.append(Division.of(f"mixture of Bernoullis, K = {size}", whole, added))
    topics = plsa(x, k)
    joint = topics.proportion[:, :, None] * np.where(x[:, None] == 1, topics.topic, 1.0)
    posterior = joint / np.maximum(joint.sum(1, keepdims=True), 1e-300)
    return [*result, Division.of(f"PLSA, K = {k}", posterior, added)]


def _of_aspects(name: str, fit: Aspects, added: Corrupted, *, told: bool = False) -> Division:
    posterior = fit.attribution(np.arange(len(added.x)))
    share = shares(posterior, added)
    mean = float(fit.aspect[(share[1] - share[0]).argmax()].mean())
    more = {"told": told, "mean": mean, "log_likelihood": fit.log_likelihood}
    return Division.of(f"{name}, K = {len(fit.aspect)}", posterior, added, **more)


def added_table(runs: dict[float, tuple[Corrupted, list[Division]]], paper: str, figures: Sequence[str]) -> Table:
    """In words: which share of true ones, added ones and zeros the component goes to that favours added ones most."""
    shown = ["of true ones", "of added ones", "of zeros", "its mean P(present)", "log-likelihood"]
    table = Table(
        "Added ones: do components tell them from true ones?",
        ["ones added with probability", "share of ones: before, after", "method", *shown],
        note=(
            "The shares that go to the component that most favours added ones over true ones; a black phantom would "
            'have a mean near 1. "Told": AB started from the aspects of the data without added ones and one aspect of '
            f".99 everywhere, which shows whether a black phantom is what the likelihood wants. {paper}"
        ),
        figures=figures,
    )
    for most, (added, divisions) in runs.items():
        before, after = added.original.mean(), added.x.mean()
        for one in divisions:
            row = [f"Uniform[0, {most}]", f"{before:.1%}, {after:.1%}", one.method]
            last = [None if v is None else f"{v:.{d}f}" for v, d in ((one.mean, 2), (one.log_likelihood, 1))]
            table.rows.append([*row, *(f"{v:.2f}" for v in one.share[:, -1]), *last])
    return table
