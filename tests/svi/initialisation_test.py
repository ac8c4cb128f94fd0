"""Where generic methods start: under any prior, in the supports of the sites."""

from __future__ import annotations

import pyro.distributions as dist
import pytest
import torch
from torch.distributions import constraints

from custom_inference.svi.initialisation import initial_values
from ppl_models import MODELS

OTHERS = {
    constraints.simplex: lambda size: dist.LogisticNormal(torch.zeros(size - 1), torch.ones(size - 1)),
    constraints.unit_interval: lambda _: dist.Kumaraswamy(2.0, 3.0),
    constraints.positive: lambda _: dist.LogNormal(0.0, 1.0),
    constraints.real: lambda _: dist.StudentT(3.0, 0.0, 1.0),
    None: lambda _: dist.StudentT(3.0, 0.0, 1.0),
}


@pytest.mark.parametrize("name", MODELS)
def test_priors_without_closed_form_steps_have_starts(name):
    example = MODELS[name].example()
    model = example.model
    if model.is_graph:
        pytest.skip("graphs start from partitions")
    for site in model.global_sites:
        make = OTHERS.get(model.sites[site].support)
        if make is None:
            continue
        prior = make((model.shapes[site] or (1,))[-1])
        start = initial_values(model.with_priors(**{site: prior}), example.data, seed=0)
        assert start[site].shape == model.shapes[site]
        assert bool(prior.support.check(start[site]).all()), site
