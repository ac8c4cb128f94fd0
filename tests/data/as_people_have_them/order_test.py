"""Rows and columns in another order: at given globals every model says the same of every row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from custom_inference import CollapsedGibbs
from custom_inference.core.local_inference import solve_local
from custom_inference.methods import default_method
from ppl_models import Data
from tests.support.cases import ROWS, globals_of, problem_of

#: Links stand between the rows: graphs in another order are among the tests of conformance.
LINKED = ("rtm",)
#: What their columns hold is no feature that a parameter belongs to, or stands in an order.
IN_PLACE = ("ldahmm", "pmf", "bilinear_pmf", "choice_pmf")

ANY_ROWS = pytest.mark.parametrize("name", [name for name in ROWS if name not in LINKED])
ANY_COLUMNS = pytest.mark.parametrize("name", [name for name in ROWS if name not in (*LINKED, *IN_PLACE)])


def answers(model: Any, params: Any, data: Data) -> tuple[torch.Tensor, torch.Tensor]:
    """Posterior means (N, ...) and bounds (N,) by the default at given globals; where that draws, by an engine."""
    method = default_method(model, data)
    infer = solve_local if isinstance(method, CollapsedGibbs) else method.local_posterior
    local = infer(model, params, data, seed=0)
    return local.posterior.mean, local.bound


def require_equal(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, atol=2e-3, rtol=1e-3, equal_nan=True)


@ANY_ROWS
def test_rows(name):
    example = problem_of(name)
    params = globals_of(example)
    order = torch.randperm(len(example.data), generator=torch.Generator().manual_seed(0))
    mean, bound = answers(example.model, params, example.data)
    other_mean, other_bound = answers(example.model, params, example.data.rows(order))
    require_equal(mean[order], other_mean)
    require_equal(bound[order], other_bound)


@ANY_COLUMNS
def test_columns(name):
    """Parameters of features or words move with their columns."""
    example = problem_of(name)
    model, params = example.model, globals_of(example)
    (axis,) = model.sites["x"].dims
    order = np.random.default_rng(0).permutation(model.sizes[axis])
    moved = dict(params)
    for site in params:
        for place, dim in enumerate(model.dims[site]):
            if dim == axis:
                moved[site] = moved[site].index_select(place, torch.as_tensor(order))
    again = model
    if isinstance(getattr(model, "num_categories", None), tuple):
        again = replace(model, num_categories=[model.num_categories[j] for j in order])
    mean, bound = answers(model, params, example.data)
    other_mean, other_bound = answers(again, moved, example.data.columns(order))
    require_equal(mean, other_mean)
    require_equal(bound, other_bound)
