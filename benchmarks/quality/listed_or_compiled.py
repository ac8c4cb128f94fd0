"""Engines that are derived by hand beside those that are compiled from the same programs.

    python -m benchmarks.quality.listed_or_compiled [--cases NAME ...]

Writes ``benchmarks/results/listed_or_compiled.{md,json}``. A listed engine could go where the compiled one takes up to
1.3 times its time and ends as high on every data set. The compiled side is the listed class with its own statements
stated anew, which makes it a program of one's own: the same sites, priors and rows. Both are fitted with the same
seeds in one process on one thread, after a fit of a few rows. PPL_SMOKE=1: two cases, few rows, one seed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

import custom_inference as ci
from benchmarks._report import QUICK, RESULTS, Table, read_tables, write_report
from benchmarks.quality._common import cpu_seconds, quiet_and_single_threaded, spread
from ppl_models import (
    LDA,
    SBM,
    AspectBernoulli,
    GammaPoisson,
    GaussianPCA,
    MixtureOfBernoullis,
    MixtureOfCategoricals,
    MixtureOfMultinomials,
    MixtureOfPoissons,
    Model,
    PoissonSBM,
    UserRatingProfile,
)

NAME, SMOKE = "listed_or_compiled", os.environ.get("PPL_SMOKE") == "1"
SEEDS, _FEW = (1, 30) if SMOKE else (5, 40)
#: Up to so many times as slow, and up to so much of the spread of a row's log probability lower.
_SLOWER, _LOWER = 1.3, 1e-4
_TITLE = "Engines by hand beside compiled ones"
_COLUMNS = ("model", "data", "method", "CPU s", "objective", "compiled", "its CPU s", "its objective",
            "CPU s over listed", "as high in")  # fmt: skip
_NOTE = (
    f"Lowest / median / highest of {SEEDS} seeds. Objectives are what the fits report, the same number on both sides; "
    "log p(x, globals) is that of draws, of a chain with components summed out on the listed side. *As high in*: the "
    "seeds in which the compiled objective is at most a ten-thousandth of itself below the listed one."
)


def as_program(kind: type[Model]) -> type[Model]:
    """Return the class as a program of one's own, which has no engines but those that are compiled."""

    def state(self: Any, *rows: Any, **plate: Any) -> Any:
        return kind.__call__(self, *rows, **plate)

    return type(f"Own{kind.__name__}", (kind,), {"__call__": state})


@dataclass(frozen=True)
class Case:
    """A model with its data. methods: of the listed model -> of the program."""

    kind: type[Model]
    sizes: Mapping[str, Any]
    draw: Callable[[np.random.Generator], Any]
    of: str
    methods: Mapping[str, str]

    def fit(self, kind: type[Model], x: Any, method: str, seed: int) -> float:
        """Return the objective of a fit."""
        fit = ci.fit(kind(**self.sizes), x, method=method, seed=seed, progress=False)
        return float(torch.as_tensor(fit.elbo).flatten()[-1])


def _digits(rng: np.random.Generator) -> Any:
    del rng
    loaded: Any = load_digits()
    return (loaded.data > 7).astype(float)


def _counts(rng: np.random.Generator) -> Any:
    rate = rng.gamma(1.0, 3.0, (5, 20))
    return rng.poisson(rate[rng.integers(0, 5, 1000)]).astype(float)


def _answers(rng: np.random.Generator) -> Any:
    table = rng.dirichlet([0.5] * 4, (5, 20))
    return _choose(table[rng.integers(0, 5, 1000)], rng)


def _profiles(rng: np.random.Generator) -> Any:
    share = rng.dirichlet([0.5] * 4, 300)
    return _choose(np.einsum("nk,krc->nrc", share, rng.dirichlet([0.5] * 4, (4, 20))), rng)


def _choose(chance: Any, rng: np.random.Generator) -> Any:
    """Draw one of the places along the last axis."""
    return (chance.cumsum(-1)[..., :-1] < rng.random((*chance.shape[:-1], 1))).sum(-1).astype(float)


def _documents(rng: np.random.Generator) -> Any:
    """Draw 500 documents of 80 words, of five topics each in proportions of its own."""
    topic = rng.dirichlet([0.1] * 200, 5)
    return np.stack([rng.multinomial(80, share @ topic) for share in rng.dirichlet([0.3] * 5, 500)]).astype(float)


def _aspects(rng: np.random.Generator) -> Any:
    chance = rng.dirichlet([0.5] * 4, 400) @ rng.beta(0.5, 0.5, (4, 48))
    return (rng.random(chance.shape) < chance).astype(float)


def _rates(rng: np.random.Generator) -> Any:
    return rng.poisson(rng.gamma(0.5, 2.0, (400, 5)) @ rng.gamma(0.3, 1.0, (5, 60))).astype(float)


def _scores(rng: np.random.Generator) -> Any:
    return rng.normal(size=(500, 3)) @ rng.normal(size=(3, 12)) + 0.5 * rng.normal(size=(500, 12))


def _blocks(rng: np.random.Generator) -> Any:
    z = rng.integers(0, 3, 150)
    between = np.full((3, 3), 0.04) + 0.16 * np.eye(3)
    upper = np.triu(rng.random((150, 150)) < between[z[:, None], z], 1)
    return (upper | upper.T).astype(float)


_CLASSES = {"em": "em", "vb": "vb", "gibbs": "gibbs"}
CASES: Mapping[str, Case] = {
    "bits": Case(MixtureOfBernoullis, {"num_components": 10}, _digits, "digits, 1797 x 64", _CLASSES),
    "counts": Case(MixtureOfPoissons, {"num_components": 5}, _counts, "counts, 1000 x 20", _CLASSES),
    "answers": Case(MixtureOfCategoricals, {"num_components": 5}, _answers, "answers, 1000 x 20", _CLASSES),
    "words": Case(MixtureOfMultinomials, {"num_topics": 5}, _documents, "documents, 500 x 200", _CLASSES),
    "scores": Case(GaussianPCA, {"num_components": 3}, _scores, "real numbers, 500 x 12", {"em": "em"}),
    "profiles": Case(UserRatingProfile, {"num_components": 4}, _profiles, "answers, 300 x 20",
                     {"dirichlet": "conjugate", "vb": "vb"}),
    "aspects": Case(AspectBernoulli, {"num_components": 4}, _aspects, "bits, 400 x 48", {"dirichlet": "conjugate"}),
    "topics": Case(LDA, {"num_topics": 5}, _documents, "documents, 500 x 200",
                   {"dirichlet": "conjugate", "vb": "vb"}),
    "rates": Case(GammaPoisson, {"num_components": 5}, _rates, "counts, 400 x 60", {"vb": "vb"}),
    "blocks": Case(SBM, {"num_blocks": 3}, _blocks, "graph, 150 nodes", {"mean_field": "mean_field"}),
    "weights": Case(PoissonSBM, {"num_blocks": 3}, _blocks, "graph, 150 nodes", {"mean_field": "mean_field"}),
}  # fmt: skip


def measure(name: str) -> list[list[Any]]:
    """Return the lines of a case, one a method."""
    case, own = CASES[name], as_program(CASES[name].kind)
    x = case.draw(np.random.default_rng(0))
    square = x.shape[0] == x.shape[1]
    few = x[:_FEW, :_FEW] if square else x[:_FEW]
    x = few if SMOKE else x
    lines = []
    for method, compiled in case.methods.items():
        sides = [(case.kind, method), (own, compiled)]
        seconds, heights = np.empty((2, SEEDS)), np.empty((2, SEEDS))
        for side, (kind, how) in enumerate(sides):
            case.fit(kind, few, how, 0)  # imports, and compiles
            for seed in range(SEEDS):
                heights[side, seed], seconds[side, seed] = cpu_seconds(partial(case.fit, kind, x, how, seed))
        ratio = float(np.median(seconds[1]) / np.median(seconds[0]))
        high = int((heights[1] >= heights[0] - _LOWER * np.abs(heights[0])).sum())
        cells = [[spread(list(seconds[side]), 2), spread(list(heights[side]), 1)] for side in range(2)]
        beside = [compiled, *cells[1], f"{ratio:.1f}", f"{high} of {SEEDS}"]
        lines.append([case.kind.__name__, case.of, method, *cells[0], *beside])
        print(*lines[-1], sep=" | ", flush=True)
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=[*CASES], default=["counts", "profiles"] if SMOKE else [*CASES])
    chosen = parser.parse_args(arguments).cases
    quiet_and_single_threaded()
    torch.set_default_dtype(torch.float64)
    folder = QUICK if SMOKE else RESULTS
    known = {} if SMOKE else read_tables(NAME, folder=folder)
    again = {(CASES[name].kind.__name__, CASES[name].of) for name in chosen}
    kept = [line for line in known[_TITLE].rows if (line[0], line[1]) not in again] if _TITLE in known else []
    lines = [*kept]
    for name in chosen:
        lines += measure(name)
        write_report(NAME, "Listed or compiled", [Table(_TITLE, _COLUMNS, lines, _NOTE)], intro=_INTRO, folder=folder)


_INTRO = (
    "Every model of the suite is a program, from which engines could be compiled as from a program of one's own. A "
    f"listed engine could go where the compiled one takes up to {_SLOWER} times its time and ends as high."
)

if __name__ == "__main__":
    main()
