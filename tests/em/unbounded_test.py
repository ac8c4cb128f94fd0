"""Engines of points under hierarchical priors: what has no maximum is said, what has one is found without a word."""

import warnings

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference.core.ended import Ended
from ppl_models import CVQ, DataWarning, GaussianPCA, LogisticPCA, PoissonPCA

NOISE = np.random.default_rng(0)
KINDS = {
    LogisticPCA: NOISE.integers(0, 2, (25, 4)).astype(float),
    PoissonPCA: NOISE.poisson(2.0, (25, 4)).astype(float),
    GaussianPCA: NOISE.normal(size=(25, 4)),
    CVQ: NOISE.normal(size=(25, 4)),
}


def fit_under(kind, tau, x, **settings):
    model = kind(num_components=2, num_features=x.shape[1])
    model = model.with_priors(tau=tau, weight=lambda tau: dist.Normal(torch.zeros(()), tau))
    return ci.fit(model, x, progress=False, **settings)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_log_joint_without_a_maximum_is_said(kind):
    with pytest.warns(DataWarning, match="it rises without end along 'tau'.*'weight'"):
        fit = fit_under(kind, dist.Exponential(1.0), KINDS[kind], max_iterations=12, search=None)
    assert fit.ended is Ended.UNBOUNDED and "no maximum along" in fit.status
    assert "converged" not in fit.status
    assert float(fit.params["tau"]) < 1e-2


@pytest.mark.parametrize("kind", [LogisticPCA, CVQ], ids=lambda kind: kind.__name__)
def test_a_proper_maximum_is_found_without_a_word(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = fit_under(kind, dist.LogNormal(0.0, 0.3), KINDS[kind])
    assert fit.ended is not Ended.UNBOUNDED and "no maximum" not in fit.status
    assert float(fit.params["tau"]) > 0.1
