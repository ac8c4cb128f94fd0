"""What is stated of components decides where they end, and what held-out entries score: beside how it was done before.

    python -m benchmarks.quality.stated

PPL_SMOKE=1: two seeds, no result.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pyro.distributions as dist
import torch

from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality._common import quiet_and_single_threaded
from custom_inference import Fit, fit
from custom_inference.checks.held_entries import BASELINES, HeldRows, hold_out_entries
from custom_inference.core import method
from custom_inference.core.predictive import conditional_log_likelihood
from ppl_models import LDA, NOCA, LogisticPCA, MixtureOfBernoullis

_SEEDS, _DRAWS = 20, 100
INTRO = (
    f"{_SEEDS} seeds, of the data too. Seed words: 60 documents of 20 tokens, one of three topics each; the prior of a "
    "topic has 5 for its seed word, and .05 for others. Held-out entries: a fifth of 200 rows of twelve bits of three "
    "sources or classes; before, the score was the logarithm of the mean over 100 draws of the latents."
)


def documents_with_seed_words(seed: int) -> tuple[LDA, Any, Any]:
    """A model whose topics have a seed word each, documents, and the group of words of each topic."""
    order, rng = np.random.default_rng(seed).permutation(3), np.random.default_rng(10 + seed)
    prior = torch.full((3, 12), 0.05, dtype=torch.float64)
    prior[range(3), torch.as_tensor(4 * order)] = 5.0
    x = np.zeros((60, 12), int)
    for n in range(60):
        x[n, 4 * (n % 3) : 4 * (n % 3) + 4] = rng.multinomial(20, [0.25] * 4)
    model = LDA(num_topics=3, vocabulary_size=12).with_priors(topic=dist.Dirichlet(prior))
    return model, x, order


def stand_in_place(found: Fit, order: Any) -> bool:
    return bool((found.params["topic"].argmax(-1).numpy() // 4 == order).all())


def of_seed_words(seeds: int) -> Iterator[list[Any]]:
    for name in ("cvb0", "vb", "dirichlet", "gibbs"):
        lines = []
        for seed in range(seeds):
            model, x, order = documents_with_seed_words(seed)
            now = fit(model, x, method=name, seed=seed, progress=False)
            with mock.patch.object(method, "settle_order", lambda model, fit, go_on: fit):
                before = fit(model, x, method=name, seed=seed, progress=False)
            lines.append(
                (stand_in_place(before, order), stand_in_place(now, order), float(now.elbo[-1] - before.elbo[-1]))
            )
        then, after, gained = (np.array(one) for one in zip(*lines, strict=True))
        moved = gained[~then.astype(bool)] if name != "gibbs" and not then.all() else np.array([math.nan])
        yield [name, f"{then.sum():.0f} of {seeds}", f"{after.sum():.0f} of {seeds}", float(np.median(moved))]


def planted(kind: str, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    weight, on = rng.uniform(0, 1, (3, 12)) * (rng.random((3, 12)) < 0.4), rng.random((200, 3)) < 0.35
    if kind == "classes":
        return (rng.random((200, 12)) < rng.beta(0.5, 0.5, (3, 12))[rng.integers(3, size=200)]).astype(float)
    return (rng.random((200, 12)) < 1 - 0.97 * np.prod(np.where(on[:, :, None], 1 - weight, 1.0), 1)).astype(float)


def score_by_draws(held: HeldRows, found: Fit) -> float:
    draws = found.posterior.sample(_DRAWS, seed=found.seed)
    each = torch.stack([conditional_log_likelihood(found.model, found.globals, held.held, one) for one in draws])
    assert held.held.mask is not None
    return float((each.logsumexp(0) - math.log(_DRAWS)).sum() / held.held.mask.sum())


def of_held_entries(seeds: int) -> Iterator[list[Any]]:
    models: dict[str, tuple[str, Any]] = {
        "NOCA": ("sources", NOCA), "MixtureOfBernoullis": ("classes", MixtureOfBernoullis),
        "LogisticPCA": ("sources", LogisticPCA),
    }  # fmt: skip
    for name, (kind, make) in models.items():
        apart, same = [], 0
        for seed in range(seeds):
            scores = []
            for size in (1, 2, 3, 4):
                model = make(num_components=size, num_features=12)
                data = model.prepare(planted(kind, seed), dtype=torch.float64)
                held = hold_out_entries(data, 0.2, seed, BASELINES["binary"])
                found = fit(model, held.train, seed=seed, progress=False)
                scores.append((held.score(found), score_by_draws(held, found)))
            exact, drawn = np.array(scores).T
            apart += list(drawn - exact)
            same += int(exact.argmax() == drawn.argmax())
        yield [name, float(np.mean(apart)), float(np.abs(apart).max()), f"{same} of {seeds}"]


def main() -> None:
    smoke = bool(os.environ.get("PPL_SMOKE"))
    seeds = 2 if smoke else _SEEDS
    quiet_and_single_threaded()
    words = Table(
        "Topics with seed words",
        ("method", "in place before", "in place", "objective gained where it was out of place"),
    )
    entries = Table("Held-out entries", ("model", "draws - exact, mean", "at most", "the same number of components"))
    for table, lines in ((words, of_seed_words(seeds)), (entries, of_held_entries(seeds))):
        for line in lines:
            table.rows.append(line)
            print(line, flush=True)
    write_report(
        "stated", "What is stated and scored", [words, entries], intro=INTRO, folder=QUICK if smoke else RESULTS
    )


if __name__ == "__main__":
    main()
