"""Means over draws of a program of one's own do not mix what may change places, along whatever axes."""

from __future__ import annotations

import itertools

import numpy as np
import pyro.distributions as dist
import pytest
import torch

from custom_inference import fit
from custom_inference.compiled.labels import find_places, settle_labels
from ppl_models import MixtureOfBernoullis
from tests.programs.chains import ClassesOfChains
from tests.programs.classes import MixtureOfMixtures
from tests.programs.mixtures import ZeroInflated


@pytest.mark.parametrize("kind", [ClassesOfChains, MixtureOfMixtures, ZeroInflated])
def test_draws_in_other_orders_are_brought_into_one(kind):
    example, generator = kind.example(), torch.Generator().manual_seed(0)
    model, data = example.model, example.model.prepare(example.data, dtype=torch.float64)
    truth = {site: example.truth[site].double() for site in model.global_sites}
    settle_labels(model, data, {site: value.expand(1, 1, *value.shape) for site, value in truth.items()})  # reads it
    places, draws = find_places(model), []
    assert places
    for _ in range(2 * 12):
        moved = {
            site: value * (1 + 0.02 * torch.rand(value.shape, generator=generator)) for site, value in truth.items()
        }
        for one in places:
            moved = one.permute(moved, torch.randperm(one.size, generator=generator))
        draws.append(moved)
    stacked = {site: torch.stack([one[site] for one in draws]).unflatten(0, (2, 12)) for site in truth}
    found = {site: value.mean((0, 1)) for site, value in settle_labels(model, data, stacked).items()}
    orders = itertools.product(*(itertools.permutations(range(one.size)) for one in places))
    nearest = min(_distance(found, truth, places, each) for each in orders)
    assert nearest < 0.03


def _distance(found, truth, places, orders) -> float:
    """The largest relative difference to the truth in another order."""
    for one, order in zip(places, orders, strict=True):
        truth = one.permute(truth, torch.tensor(order))
    return max(float(((found[site] - truth[site]) / (truth[site].abs() + 0.05)).abs().max()) for site in truth)


@pytest.mark.parametrize("method", ["gibbs", "nuts"])
def test_classes_that_differ_in_level_alone_are_told_apart_in_draws(method):
    """Angles between 000 and 111 show nothing."""
    x = np.repeat([[0.0] * 3, [1.0] * 3], 20, 0)
    model = MixtureOfBernoullis(num_components=2, num_features=3).with_priors(probability=dist.Beta(2.0, 6.0))
    settings = {"num_samples": 60, "warmup": 40, "chains": 2} if method == "nuts" else {}
    found = fit(model, x, method=method, progress=False, **settings)
    assert np.allclose(np.sort(found.params["probability"].numpy().mean(1)), [0.074, 0.777], atol=0.04)
