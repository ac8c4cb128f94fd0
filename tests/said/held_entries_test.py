"""What a fit gives to entries that were held out is p(all) / p(the others), of rows whose evidence is exact."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from custom_inference.checks import held_entries
from custom_inference.checks.held_entries import BASELINES, hold_out_entries
from ppl_models import NOCA
from tests.support.cases import globals_of, problem_of
from tests.support.fits import given

EXACT = (
    "noca", "mixture_of_bernoullis", "mixture_of_categoricals", "mixture_of_poissons", "gaussian_pca", "logistic_pca",
    "categorical_pca", "poisson_pca", "cvq", "helmholtz_machine",
)  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_sums_over_the_posterior_and_differences_of_evidences_agree(name):
    model = problem_of(name).model
    data = model.prepare(problem_of(name).data, dtype=torch.float64)
    held = hold_out_entries(data, 0.2, 0, BASELINES[model.data_kind])
    found = given(model, globals_of(problem_of(name)), held.train)
    chance = held_entries._log_chance(found, held.train, held.held)
    assert held.score(found) == pytest.approx(float(chance.sum() / held.held.mask.sum()), abs=2e-5)


def test_noisy_or_by_brute_force():
    rng = np.random.default_rng(0)
    weight, prior, leak = rng.uniform(0.1, 0.9, (3, 6)), np.array([0.2, 0.4, 0.3]), 0.05
    x = (rng.random((9, 6)) < 0.4).astype(float)
    model = NOCA(num_components=3, num_features=6)
    held = hold_out_entries(model.prepare(x, dtype=torch.float64), 0.3, 1, BASELINES["binary"])
    sites = {"loading": weight, "source_prior": prior, "leak": np.full(6, leak)}
    found = given(model, {site: torch.tensor(value) for site, value in sites.items()}, held.train)

    def evidence(seen: np.ndarray) -> float:
        total = 0.0
        for row, mask in zip(x, seen, strict=True):
            each = []
            for code in itertools.product((0, 1), repeat=3):
                on = 1 - (1 - leak) * np.prod(np.where(np.array(code)[:, None] == 1, 1 - weight, 1.0), 0)
                log = np.where(row == 1, np.log(on), np.log1p(-on))[mask].sum()
                each.append(log + np.log(np.where(code, prior, 1 - prior)).sum())
            total += math.log(np.exp(each).sum())
        return total

    seen, hidden = held.train.mask.numpy(), held.held.mask.numpy()
    assert (hidden != seen).all() and seen.any(1).all() and seen.any(0).all() and 0 < hidden.mean() < 0.45
    want = (evidence(seen | hidden) - evidence(seen)) / hidden.sum()
    assert held.score(found) == pytest.approx(want, abs=1e-9)
