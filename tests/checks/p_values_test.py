"""p-values of posterior predictive checks: ties, largest deviations, pairs of draws."""

import numpy as np
import pytest
import torch

from custom_inference import posterior_predictive_check
from custom_inference.checks.predictive_result import _standardise, line_of
from ppl_models import Data, MixtureOfPoissons
from tests.support.fits import given

pytestmark = pytest.mark.quick


def test_p_values_count_ties_by_half():
    copies = np.array([1.0, 2.0, 2.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    line = line_of(np.array(2.0), copies, None, False)
    upper = (4 + 1.5) / 8
    assert line["p_value"] == pytest.approx(2 * min(upper, 1 - upper))
    inside = (8 * upper + 0.5) / 9
    assert line["error"] == pytest.approx(2 * np.sqrt(inside * (1 - inside) / 8))
    assert line_of(np.array(3.0), np.full(8, 3.0), None, False)["p_value"] == 1.0
    assert line_of(np.array(9.0), copies, None, False)["p_value"] == 0.0


def test_largest_deviations_are_exchangeable():
    """Data that are one more copy: the rank of their largest deviation is uniform (chi-square, 9 df, p > .001)."""
    rng = np.random.default_rng(8)
    scale = np.exp(rng.normal(size=12))
    ranks = []
    for _ in range(300):
        values = rng.normal(size=(20, 12)) * scale
        line = line_of(values[0], values[1:], None, False)
        ranks.append(round(line["p_value"] * 19))
    counts = np.bincount(np.array(ranks) // 2, minlength=10)
    assert ((counts - 30) ** 2 / 30).sum() < 27.9
    z, copies = _standardise(values[0], values[1:])
    assert np.allclose(np.concatenate([z[None], copies]).mean(0), 0)


def test_p_values_of_a_realised_discrepancy_pair_the_draws():
    """With the globals known (drawn from their prior with the data), chi-square p-values are uniform: of 40 data sets
    their mean is within 4 standard errors, 4 / sqrt(12 * 40) = .18, of a half."""
    rng, upper = np.random.default_rng(9), []
    model = MixtureOfPoissons(num_components=1, num_features=4)
    for _ in range(40):
        rate = torch.as_tensor(rng.gamma(2.0, 2.0, (1, 4)))
        data = Data(x=torch.as_tensor(rng.poisson(rate.numpy().repeat(10, 0)).astype(float)))
        fit = given(model, {"mixing_proportion": torch.ones(1), "rate": rate}, data, bound_name="exact")
        found = posterior_predictive_check(fit, ["chi_square"], num_samples=30, progress=False)
        upper.append(float((found.predicted["chi_square"] > found.observed["chi_square"]).mean()))
    assert abs(np.mean(upper) - 0.5) < 0.18 and np.std(upper) == pytest.approx(12**-0.5, abs=0.08)
