"""Blocks of covariates: what columns become, and what does not fit."""

import numpy as np
import pandas as pd
import pytest
import torch

from custom_inference import fit
from ppl_models import PMF, DataError, ModelError, ratings
from ppl_models.data.ratings.covariates import covariate_blocks


def test_columns_become_blocks():
    frame = pd.DataFrame({"job": ["smith", "cook", "smith"], "age": [30.0, 40.0, 50.0], "old": [False, True, True]})
    blocks = covariate_blocks(frame)
    assert blocks["job"].tolist() == [[0, 1], [1, 0], [0, 1]] and blocks["old"].shape == (3, 2)
    np.testing.assert_allclose(blocks["age"][:, 0], np.array([-1, 0, 1]) * np.sqrt(1.5))
    np.testing.assert_array_equal(covariate_blocks({"x": np.ones((3, 2))})["x"], np.ones((3, 2)))


def test_models_take_blocks_by_name():
    x, blocks = np.ones((3, 2)), {"one": np.arange(3.0)[:, None], "two": np.ones((3, 2))}
    model = PMF(num_components=1, num_users=3, num_items=2, user_blocks=(1, 2))
    data = model.prepare(ratings(x), user_covariates=blocks)
    assert model.num_user_covariates == 3 and data.others["user_covariates"].tolist() == [
        [0, 1, 1],
        [1, 1, 1],
        [2, 1, 1],
    ]


def test_what_does_not_fit_is_said():
    with pytest.raises(DataError, match="1 of 2 are missing"):
        covariate_blocks({"age": [1.0, None]})
    with pytest.raises(DataError, match="blocks of shapes"):
        covariate_blocks({"age": [1.0, 2.0], "job": ["a", "b", "c"]})
    with pytest.raises(ModelError, match="user_blocks = \\(1, 2\\), expected positive numbers that add up"):
        PMF(num_components=1, num_users=3, num_items=2, user_blocks=(1, 2), num_user_covariates=4)


def test_models_without_sizes_take_those_of_covariates_and_their_blocks():
    given = ratings([0, 0, 1, 2], [0, 1, 0, 1], [1.0, 2.0, 3.0, 5.0])
    blocks = {"age": torch.randn(3, 1), "job": torch.randn(3, 2)}
    model = fit(PMF(num_components=1), given, user_covariates=blocks, sweeps=2, progress=False).model
    assert (model.user_blocks, model.num_user_covariates, model.num_item_covariates) == ((1, 2), 3, 0)
    model = fit(PMF(num_components=1), given, item_covariates=torch.randn(2, 4), sweeps=2, progress=False).model
    assert (model.item_blocks, model.num_user_covariates, model.num_item_covariates) == (None, 0, 4)
