"""The programs of exponential-family PCA: settings, data and refusals."""

from typing import Any

import numpy as np
import pytest
import torch

import custom_inference as ci
from ppl_models import CategoricalPCA, DataError, ExponentialFamilyPCA, ModelError, PoissonPCA, SoftmaxPCA
from ppl_models.likelihoods import Binomial, Categorical, Gaussian


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CategoricalPCA(num_components=1, num_features=2, num_categories=1), "num_categories = 1"),
        (lambda: CategoricalPCA(num_components=1, num_features=2, num_categories=(2, 3, 4)), "of 3 features"),
        (lambda: CategoricalPCA(num_components=4, num_features=2, num_categories=2), "exceeds the 2 dimensions"),
        (lambda: ExponentialFamilyPCA(likelihood=3, num_components=1, num_features=2), "expected Bernoulli"),
        (lambda: ExponentialFamilyPCA(likelihood=Categorical(3), num_components=1, num_features=2), "expected Bern"),
        (lambda: ExponentialFamilyPCA(likelihood=("poison", {}), num_components=1, num_features=2), "did you mean|poi"),
        (lambda: PoissonPCA(num_components=3, num_features=2), "exceeds num_features"),
        (lambda: SoftmaxPCA(num_components=0, num_features=2), "num_components = 0"),
    ],
)
def test_settings_that_make_no_sense(make, message):
    with pytest.raises(ModelError, match=message):
        make()


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        ([0.0, 1.0], r"'offset': shape \(2,\); expected \(3,\), one a row"),
        ([0.0, np.inf, np.nan], "2 values are not finite .*row 1"),
        ("rows", "'rows'; expected numbers"),
    ],
)
def test_offsets_are_checked(offset, message):
    model = PoissonPCA(num_components=1, num_features=2)
    with pytest.raises(DataError, match=message):
        model.prepare([[1, 2], [0, 3], [4, 4]], offset=offset)


def test_new_rows_need_offsets_where_the_fit_had_some():
    example = PoissonPCA.example()
    settings = {"guide": "variational", "search": None, "max_iterations": 200, "tolerance": 1e-8}
    fit = ci.VariationalEM(**settings).fit(example.model, example.data.x, offset="total", progress=False)
    with pytest.raises(DataError, match="no offsets, which the rows of the fit had"):
        fit.transform(example.data.x[:3])
    assert fit.transform(example.data.x[:3], offset="total").shape == (3, 2)
    assert torch.allclose(fit.transform(example.data.x[:3], offset="total"), fit.transform()[:3], atol=1e-3)


def test_categories_that_a_feature_lacks():
    model = CategoricalPCA(num_components=1, num_features=3, num_categories=(2, 3, 2))
    with pytest.raises(
        DataError, match="1 entries are no category .*2 in row 1, column 2, which has 2.*numbers 0 to 1"
    ):
        model.prepare([[0, 2, 1], [1, 0, 2]])
    with pytest.raises(DataError, match="none of the 3 categories"):
        model.prepare([[0, 3, 1], [1, 0, 1]])
    assert model.num_parameters(0) == 2 * (1 + 2 + 1)
    made = CategoricalPCA.for_data(model.prepare([[0, 2, 1], [1, 0, 0]]), 1)
    assert made.num_categories == (2, 3, 2) and made.shapes["weight"] == (1, 3, 3)
    drawn = made(num_rows=200)
    assert (drawn.amax(0) < torch.tensor([2.0, 3.0, 2.0])).all()


def test_a_likelihood_is_saved_by_its_name(tmp_path):
    example = ExponentialFamilyPCA.example()
    fit = ci.VariationalEM(guide="variational", max_iterations=3).fit(example.model, example.data, progress=False)
    path = fit.save(tmp_path / "fit")
    loaded: Any = ci.Fit.load(path, model=ExponentialFamilyPCA)
    assert loaded.model.likelihood == Binomial(4) and torch.equal(loaded.params["weight"], fit.params["weight"])
    other = ExponentialFamilyPCA(likelihood=Gaussian(0.5), num_components=1, num_features=2)
    assert other.settings()["likelihood"] == ("gaussian", {"scale": 0.5})
    assert ExponentialFamilyPCA(**other.settings()).likelihood == Gaussian(0.5)
