"""Exact posteriors of every program at given globals: by sums over finite latents, by quadrature over real ones.

Evidence within 1e-8 of the reference where it is a sum, 1e-4 where it is an integral; means of every latent within 1e-6
of a sum.
"""

import numpy as np
import pytest
import torch

import custom_inference as ci
from custom_inference.core.latent_values import posteriors_of
from tests.programs.zoo import DIGITS, PROGRAMS, as_numpy, case_of

pytestmark = pytest.mark.quick

NAMES = pytest.mark.parametrize("name", PROGRAMS)


def far(one, other):
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


@NAMES
@pytest.mark.parametrize("swapped", [False, True], ids=["own", "swapped"])
@pytest.mark.parametrize("missing", [False, True], ids=["complete", "missing"])
def test_exact_is_the_reference(name, missing, swapped):
    case = case_of(name, missing=missing).few(40)
    case = case.swapped() if swapped else case
    local = ci.Exact().local_posterior(case.model, case.globals, case.data)
    params, table = as_numpy(case.globals), case.table
    expected = case.reference.marginals(params, table)
    digits = DIGITS.get(name, 0.0) * case.data.num_features
    within, means = (1e-8 + digits, 1e-6 + digits) if case.is_finite else (1e-4, 1e-4)
    assert far(local.bound, case.reference.evidence(params, table)) < within
    assert local.standard_error is None or float(local.standard_error.abs().max()) == 0
    found = posteriors_of(case.model, case.globals, case.data, local.posterior)
    assert list(found) == list(case.model.sites_of("latent"))
    for site, posterior in found.items():
        assert posterior.mean.shape == expected.mean[site].shape, site
        assert far(posterior.mean, expected.mean[site]) < means, site
        assert far(posterior.variance.sqrt(), expected.spread[site]) < (1e-6 if case.is_finite else 1e-3), site


@NAMES
def test_draws_are_of_the_posterior(name):
    """Means of draws within five standard errors; every draw a value that the site may have."""
    case = case_of(name).few(12)
    local = ci.Exact().local_posterior(case.model, case.globals, case.data)
    expected = case.reference.marginals(as_numpy(case.globals), case.table)
    found = posteriors_of(case.model, case.globals, case.data, local.posterior)
    for site, posterior in found.items():
        draws = posterior.sample(400, seed=1)
        spread = expected.spread[site]
        assert draws.shape == (400, *spread.shape) and torch.isfinite(draws).all()
        assert np.all(np.abs(draws.mean(0).numpy() - expected.mean[site]) < 5 * spread / 20 + 0.02), site
        assert posterior.mode.shape == spread.shape
        declared = case.model.sites[site]
        if declared.choice is not None:
            assert torch.equal(draws.sum(-1), torch.ones(draws.shape[:-1]))
        else:
            assert bool(declared.support.check(draws).all()), site
