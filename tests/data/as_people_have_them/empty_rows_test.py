"""Rows without any observed entry: they say nothing, so that their log-likelihood is 0 under every model and bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from custom_inference.core.local_inference import bounds_of, is_feasible, log_likelihood
from custom_inference.core.method import to_ask_with
from custom_inference.faces.sklearn import NMFEstimator
from ppl_models import MODELS

#: Models of rows with entries that can be missing; the rows of documents are empty instead.
MASKED = sorted(
    name
    for name, kind in MODELS.items()
    if kind.example().model.rows_are_independent
    and kind.example().model.data_kind in ("binary", "counts", "real", "categories")
    and name != "choice_pmf"  # whose rows are users, with as many choices as they made
)


@pytest.mark.parametrize("name", MASKED)
def test_rows_without_entries_have_log_likelihood_0(name):
    """By every bound that the model has; at the true globals of its example."""
    example = MODELS[name].example()
    model, data = to_ask_with(example.model)
    params = model.check_params({site: torch.as_tensor(example.truth[site]).double() for site in model.shapes})
    mask = torch.ones(4, *data.x.shape[1:], dtype=torch.bool)
    mask[1] = False
    x = data.dense().x[:4] * mask
    emptied = replace(data.rows(slice(0, 4)), x=x, mask=mask)
    for bound in bounds_of(model) if is_feasible(model) else [one for one in bounds_of(model) if one != "exact"]:
        found = log_likelihood(model, params, emptied, bound=bound)
        assert bool(found.isfinite().all()) and float(found[1]) == pytest.approx(0.0, abs=1e-6), bound


def test_nmf_scores_rows_without_entries():
    x = np.random.default_rng(0).poisson(3, (20, 3)) * 1.0
    x[:2] = np.nan
    estimator = NMFEstimator(2, random_state=0).fit(x)
    each = estimator.score_samples(x)
    assert np.allclose(each[:2], 0) and np.isfinite(estimator.score(x)) and np.isfinite(estimator.transform(x)).all()
    for bound in ("exact", "gamma"):
        assert np.allclose(estimator.fit_.log_likelihood(bound=bound)[:2], 0)
