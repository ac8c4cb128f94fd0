"""Generated ratings and counts: their law, and what is refused."""

from __future__ import annotations

import pytest
import torch

from ppl_models import PMF, GammaPoisson, ModelError
from ppl_models.datasets import sample_gamma_poisson, sample_ratings

pytestmark = pytest.mark.quick


def test_ratings_are_products_and_noise():
    drawn = sample_ratings(400, 150, 2, density=0.2, seed=1)
    truth, data = drawn.truth, drawn.data
    predictor = (truth["user"][data.user] * truth["item"][data.item]).sum(1) + truth["mean"]
    left = data.value - predictor - truth["user_bias"][data.user] - truth["item_bias"][data.item]
    # Mean and spread of the noise within four standard errors.
    assert abs(float(left.mean())) < 4 * 0.5 / data.num_ratings**0.5
    assert abs(float(left.std()) - 0.5) < 4 * 0.5 / (2 * data.num_ratings) ** 0.5
    each = torch.bincount(data.user, minlength=400)
    assert int(each.min()) >= 1 and int(each.max()) <= 150 and abs(float(each.double().mean()) / 30 - 1) < 0.2
    PMF(num_components=2, num_users=400, num_items=150).prepare(data)


def test_counts_have_their_totals():
    drawn = sample_gamma_poisson(4000, 12, 3, total=20.0, seed=2)
    truth = drawn.truth
    assert torch.allclose(truth["loading"].sum(1), torch.ones(3))
    assert abs(float(drawn.x.sum(1).mean()) / 20 - 1) < 0.1
    left = drawn.x - truth["activation"] @ truth["loading"]
    # A Poisson count's variance is its mean.
    assert abs(float(left.square().sum() / drawn.x.sum()) - 1) < 0.05
    GammaPoisson(num_components=3, num_features=12).prepare(drawn.x)


def test_impossible_sizes_are_refused():
    with pytest.raises(ModelError, match="density"):
        sample_ratings(density=0.0)
    with pytest.raises(ModelError, match="positive"):
        sample_gamma_poisson(shape=0.0)
