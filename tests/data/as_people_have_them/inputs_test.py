"""Discriminative categorical PCA predicts the same from inputs and of real outputs in any units."""

import numpy as np
import pytest

from custom_inference import fit
from ppl_models import DiscriminativeCategoricalPCA, ModelError

RNG = np.random.default_rng(0)
AGE = RNG.integers(0, 30, 60).astype(float)
KIND = np.eye(3)[np.digitize(AGE, [10, 20])]
REAL = np.sin(AGE / 10)[:, None] * np.array([1, -0.5, 0.3]) + 0.3 * RNG.normal(size=(60, 3))


def predicted(x, age, **settings):
    model = DiscriminativeCategoricalPCA(num_components=1, num_features=3, num_covariates=1, **settings)
    found = fit(model, x, covariates=age[:, None], progress=False, max_iterations=40)
    weight = found.params["input_weight"]
    return np.asarray(found.predict(np.full((60, 3), np.nan), covariates=age[:, None])), weight, found


@pytest.mark.parametrize("settings", [{}, {"num_experts": 2}])
@pytest.mark.parametrize(("a", "b"), [(1.0, 1990.0), (20.0, -3.0), (365 * 86400e9, 1e18)])
@pytest.mark.filterwarnings("ignore:.*limit")
def test_ages_are_years_or_days(a, b, settings):
    plain, weight, _ = predicted(KIND, AGE, **settings)
    other, moved, _ = predicted(KIND, a * AGE + b, **settings)
    assert other == pytest.approx(plain, abs=1e-4)
    assert (moved * a).numpy() == pytest.approx(weight.numpy(), rel=1e-3, abs=1e-4)
    assert settings or (plain.argmax(1) == KIND.argmax(1)).mean() > 0.9


@pytest.mark.parametrize(("a", "b"), [(0.01, -3.0), (20.0, 0.0), (1e4, 2000.0)])
@pytest.mark.filterwarnings("ignore:.*limit")
def test_outputs_are_metres_or_feet(a, b):
    plain, _, one = predicted(REAL, AGE, outputs="gaussian")
    other, _, two = predicted(a * REAL + b, AGE + 1990, outputs="gaussian")
    assert (other - b) / a == pytest.approx(plain, abs=1e-4)
    assert float(two.params["scale"]) / a == pytest.approx(float(one.params["scale"]), rel=1e-3)


def test_rows_without_inputs_are_at_the_centre():
    model = DiscriminativeCategoricalPCA(num_components=1, num_features=3, num_covariates=1, centre=1990.0)
    assert model.prepare(KIND).others["covariates"].unique().tolist() == [1990.0]


def test_scales_of_labels_are_refused():
    with pytest.raises(ModelError, match="output_unit = 2.0 of categorical outputs, expected None"):
        DiscriminativeCategoricalPCA(num_components=1, num_features=3, num_covariates=1, output_unit=2.0)
