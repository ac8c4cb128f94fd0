"""Annealed estimates of every program against its reference, by moves of whatever latents it has."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import custom_inference as ci
from custom_inference.core.annealing.local import chains_of
from custom_inference.core.annealing.program import ProgramChains
from custom_inference.core.latent_values import posteriors_of
from tests.programs.zoo import PROGRAMS, as_numpy, case_of

#: Programs of which a few rows are annealed in two seconds each: not those of forty steps.
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


@pytest.mark.parametrize("name", ["two_state_chain", "class_tree", "added_rates", "growth_classes", "noisy_and"])
def test_chains_over_factors_have_the_density_of_the_program(name):
    case = case_of(name)
    chains = chains_of(case.model, {site: torch.as_tensor(v) for site, v in case.globals.items()}, case.data)
    assert isinstance(chains, ProgramChains) and chains.factors is not None
    some = chains.rows(torch.arange(0, len(chains), 3))
    state = some.begin(20, torch.Generator().manual_seed(0))
    again = replace(some, factors=None)._evaluate(state.place, state.reals)
    for own, expected in ((state.joint, again.joint), (state.base, again.base)):
        possible = expected > -1e20
        assert torch.allclose(own[possible], expected[possible], rtol=1e-9, atol=1e-9)
        assert bool((own[~possible] < -1e20).all())
