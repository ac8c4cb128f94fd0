"""Annealed estimates of every program against its reference, by moves of whatever latents it has."""

import numpy as np
import pytest

import custom_inference as ci
from custom_inference.core.latent_values import posteriors_of
from tests.programs.zoo import PROGRAMS, as_numpy, case_of

#: Programs of which a few rows are annealed in seconds: not those whose every move runs through forty statements.
NAMES = [name for name in PROGRAMS if name not in ("hidden_chain", "broken_chain")]


@pytest.mark.parametrize("missing", [False, True], ids=["complete", "missing"])
@pytest.mark.parametrize("name", NAMES)
def test_the_evidence_is_within_its_errors_of_the_reference(name, missing):
    case = case_of(name, missing=missing).few(8)
    local = ci.AIS(standard_error=0.1, seconds=2.0, chains=24).local_posterior(case.model, case.globals, case.data)
    params, table = as_numpy(case.globals), case.table
    expected, error = case.reference.evidence(params, table), local.standard_error.numpy()
    assert np.all(np.abs(local.bound.numpy() - expected) < 6 * error + 0.05)
    means = case.reference.marginals(params, table)
    for site, posterior in posteriors_of(case.model, case.globals, case.data, local.posterior).items():
        # About a hundred draws a row.
        assert np.all(np.abs(posterior.mean.numpy() - means.mean[site]) < 0.6 * means.spread[site] + 0.05), site
