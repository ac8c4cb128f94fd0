"""Evidences of small problems are finite, and those that brute force gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.stats import poisson

from custom_inference import marginal_likelihood
from custom_inference.core.registry import engine_for
from ppl_models import GammaPoisson, Model, SpikeGammaPoisson

COUNTS = np.array([[1.0, 2.0], [0.0, 3.0]])
QUIET: Any = {"progress": False}


def drawn_evidence(num_components: int, count: int = 400_000) -> tuple[float, float]:
    """log p(x) under Gamma(1, 1) priors by draws from them, and its standard error."""
    rng = np.random.default_rng(num_components)
    activation = rng.gamma(1.0, 1.0, (count, 2, num_components))
    rate = activation @ rng.gamma(1.0, 1.0, (count, num_components, 2))
    each = np.exp(poisson.logpmf(COUNTS, rate).sum((1, 2)))
    return float(np.log(each.mean())), float(each.std() / each.mean() / count**0.5)


def told(model: Model) -> Model:
    ones = torch.ones((), dtype=torch.float64)
    return model.with_priors(loading=dist.Gamma(ones, ones), activation=dist.Gamma(ones, ones))


def test_the_evidence_of_a_little_table_of_counts_is_that_of_draws_from_the_prior():
    for size in (1, 2):
        model = told(GammaPoisson(num_components=size, num_features=2))
        found = marginal_likelihood(model, COUNTS, seconds=8.0, **QUIET)
        want, error = drawn_evidence(size)
        assert abs(found.log_evidence - want) < 4 * (found.standard_error + error), size


@pytest.mark.parametrize("kind", [GammaPoisson, SpikeGammaPoisson])
def test_the_evidence_without_attributions_is_that_of_the_e_step_and_at_many_globals_at_once(kind):
    model = kind(num_components=2, num_features=3)
    data = model.prepare(np.array([[1.0, 2, 0], [0, 0, 0], [3, np.nan, 1]]), dtype=torch.float64)
    engine: Any = engine_for(model, "exact")
    rows = engine.rows(model, data)
    loadings = torch.rand(5, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    together = torch.vmap(lambda loading: engine.log_evidence(model, {"loading": loading}, rows))(loadings)
    for loading, found in zip(loadings, together, strict=True):
        assert torch.allclose(found, engine.e_step(model, {"loading": loading}, rows).bound, rtol=1e-10)
