"""Values that are known keep their digits: those of the data that are fitted, whatever torch's default type is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from ppl_models import PMF, GaussianPCA, ratings

BIAS = np.array([0.1, 1 / 3, 2000.123456789, -1 / 7])
ROWS = np.random.default_rng(0).normal(size=(30, 4)) + BIAS


@pytest.fixture(autouse=True)
def single():
    """Torch's own default, under which models are made outside of these tests."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("value", [BIAS, torch.as_tensor(BIAS), dist.Delta(torch.as_tensor(BIAS))])
def test_known_values_of_double_data_keep_their_digits(value, tmp_path):
    model = GaussianPCA(num_components=1, num_features=4, priors={"bias": value, "scale": 0.9})
    brief: Any = {"nuts": {"num_samples": 2, "warmup": 2, "chains": 1}, "svi_delta": {"steps": 3}, None: {}}
    for method, settings in brief.items():
        fit = ci.fit(model, ROWS, method=method, dtype=torch.float64, progress=False, **settings)
        assert np.array_equal(fit.params["bias"].numpy(), BIAS) and float(fit.params["scale"]) == 0.9, method
        again = ci.Fit.load(fit.save(tmp_path / str(method)))
        assert np.array_equal(again.model.known["bias"].numpy(), BIAS)
    few = ci.fit(model, ROWS, dtype=torch.float32, progress=False)
    assert {one.dtype for one in few.params.values()} == {torch.float32}
    assert np.array_equal(few.params["bias"].numpy(), BIAS.astype(np.float32))


def test_priors_that_are_functions_take_known_values_in_double():
    user, item = np.nonzero(np.ones((6, 5)))
    data = ratings(user, item, np.arange(30.0) % 7)
    known = {"item_covariance": np.eye(3), "user_mean": np.zeros(3)}
    model = PMF(num_components=2, num_users=6, num_items=5, priors=known)
    fit = ci.fit(model, data, method="svi", steps=3, progress=False)
    assert torch.equal(fit.params["item_covariance"].double(), torch.eye(3).double())
    lean: Any = {"bias": BIAS, "scale": lambda bias: dist.LogNormal(bias[0].abs().log(), 0.1)}
    model = GaussianPCA(num_components=1, num_features=4, priors=lean)
    doubled = ci.fit(model, ROWS, method="svi_delta", steps=3, dtype=torch.float64, progress=False)
    assert np.array_equal(doubled.params["bias"].numpy(), BIAS) and doubled.params["scale"].dtype == torch.float64
