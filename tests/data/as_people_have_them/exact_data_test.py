"""Data that components explain without error: the scale goes to its floor, and the fit says so."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import custom_inference as ci
from ppl_models import CVQ, DataWarning, GaussianPCA

RNG = np.random.default_rng(12)
NOISE = RNG.normal(size=(40, 3)) @ np.array([[1, 0.8, 0.6], [0, 0.5, 0], [0, 0, 0.5]])
TWINS = np.c_[NOISE[:, 0], NOISE[:, 0], NOISE[:, 1]]  # a Heywood case


@pytest.mark.parametrize("model, x, number", [
    (GaussianPCA(num_components=2, num_features=3), NOISE[:2], "1 of 1"),
    (GaussianPCA(num_components=2, num_features=3), np.outer(np.arange(6.0), np.arange(3.0)), "1 of 1"),
    (GaussianPCA(num_components=1, num_features=3, per_feature_scale=True), TWINS, "2 of 3"),
    (GaussianPCA(num_components=1, num_features=3, per_feature_scale=True), 1e6 * TWINS - 1e7, "2 of 3"),
    (CVQ(num_components=1, num_features=3), NOISE[:1], "1 of 1"),
    (CVQ(num_components=1, num_features=2), np.array([[0, 0], [1, 2.0]] * 10), "1 of 1"),
], ids=["two rows", "rank one", "twins", "twins in other units", "one row", "codes alone"])  # fmt: skip
def test_scales_at_their_floor_are_told(model, x, number):
    with pytest.warns(DataWarning, match=f"site 'scale': {number} values at their floor.*no upper bound"):
        fit = ci.fit(model, x, progress=False)
    assert f"'scale' has {number} values at their floor" in fit.status


@pytest.mark.parametrize("model", [
    GaussianPCA(num_components=1, num_features=3, per_feature_scale=True), CVQ(num_components=1, num_features=3),
])  # fmt: skip
def test_scales_of_noisy_data_are_not(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        assert "floor" not in ci.fit(model, 1e-9 * NOISE, progress=False).status
