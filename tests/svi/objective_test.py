"""The optimiser, the loss and the objective that SVI reports."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import RenyiELBO, TraceGraph_ELBO

import custom_inference as ci
from ppl_models import NOCA, MethodError, MixtureOfPoissons
from tests.references import noca as reference


def evidence(fit) -> float:
    params = {site: value.numpy() for site, value in fit.globals.items()}
    return float(np.logaddexp.reduce(reference.log_joint_table(params, fit.data.x.numpy()), -1).sum())


@pytest.mark.parametrize("batch_size", [None, 16, 60])
def test_the_objective_is_that_of_all_rows_at_the_result(batch_size):
    """In minibatches too, whose last step is noise."""
    example = NOCA.example()
    fit = ci.SVI(guide="delta", steps=40, batch_size=batch_size).fit(example.model, example.data, progress=False)
    assert np.isclose(float(fit.elbo[-1]), evidence(fit), rtol=1e-10) and len(fit.elbo) == 40


@pytest.mark.parametrize("guide", ["mean_field", "factorized"])
def test_bounds_of_minibatches_are_those_of_all_rows(guide):
    example = NOCA.example()
    fit = ci.SVI(guide=guide, steps=30, batch_size=16).fit(example.model, example.data, progress=False)
    assert float(fit.elbo[-1]) <= evidence(fit) + 1e-8
    if guide == "mean_field":  # the other's objective is a looser bound than the ELBO of its codes
        assert np.isclose(float(fit.elbo[-1]), float(fit.local.bound.sum()), rtol=1e-6)


def test_an_estimated_objective_has_a_standard_error():
    example = NOCA.example()
    method = ci.SVI(guide="normal", steps=40, batch_size=20)
    fit = method.fit(example.model, example.data, progress=False)
    error = fit.details["objective_standard_error"]
    assert (
        0 < error < 10
        and "objective_standard_error" not in ci.SVI(steps=3).fit(example.model, example.data, progress=False).details
    )


OPTIMISERS = {
    "class": torch.optim.Adam,
    "partial": functools.partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
    "pyro": pyro.optim.ClippedAdam({"lr": 0.05, "lrd": 0.99}),
    "schedule": pyro.optim.ExponentialLR({"optimizer": torch.optim.Adam, "optim_args": {"lr": 0.1}, "gamma": 0.95}),
    "plateau": pyro.optim.ReduceLROnPlateau({"optimizer": torch.optim.Adam, "optim_args": {"lr": 0.1}, "patience": 3}),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers(name):
    example = NOCA.example()
    method = ci.SVI(guide="delta", steps=40, optimizer=OPTIMISERS[name])
    fits = [method.fit(example.model, example.data, progress=False) for _ in range(2)]
    assert torch.equal(fits[0].elbo, fits[1].elbo), "the caller's optimiser is left as it was"
    assert float(fits[0].elbo[-1]) > float(fits[0].elbo[0]) + 1


def test_a_schedule_advances_with_every_step():
    example = NOCA.example()
    settings = {"optimizer": torch.optim.SGD, "optim_args": {"lr": 1e-3}, "gamma": 1e-12}
    stopped = pyro.optim.ExponentialLR(settings)
    fit = ci.SVI(guide="delta", steps=10, optimizer=stopped).fit(example.model, example.data, progress=False)
    assert float(fit.elbo[1]) > float(fit.elbo[0]) and torch.allclose(fit.elbo[2:], fit.elbo[1], rtol=1e-10)


@pytest.mark.parametrize("model", [NOCA, MixtureOfPoissons])
def test_lbfgs_ends_in_a_stationary_point(model):
    """The gradient of the exact evidence in unconstrained coordinates, by finite differences."""
    example = model.example()
    if model is MixtureOfPoissons:  # by default its prior has no mode in this basis
        example = replace(example, model=example.model.with_priors(rate=dist.Gamma(2.0, 1.0)))
    fit = ci.SVI(guide="delta", optimizer="lbfgs", steps=500).fit(example.model, example.data, progress=False)
    assert "converged" in fit.status

    def log_joint(params):
        evidence = ci.Exact(generic=True).local_posterior(example.model, params, example.data).bound.sum()
        return float(evidence + sum(example.model.prior(one).log_prob(value) for one, value in params.items()))

    assert np.isclose(float(fit.elbo[-1]), log_joint(fit.params), rtol=1e-8)
    site = example.model.component_site
    for index, step in ((0, 1e-3), (0, -1e-3), (7, 1e-3), (7, -1e-3)):
        transform = torch.distributions.biject_to(example.model.prior(site).support)
        moved = transform.inv(fit.params[site]).clone()
        moved.view(-1)[index] += step
        assert log_joint({**fit.params, site: transform(moved)}) < float(fit.elbo[-1]) + 1e-5


def test_losses():
    example = NOCA.example()
    for settings in (
        {"loss": TraceGraph_ELBO, "num_particles": 3},
        {"loss": RenyiELBO(alpha=0.5, num_particles=3)},
        {"guide": "normal", "num_particles": 3, "vectorize_particles": True},
    ):
        fit = ci.SVI(steps=15, **settings).fit(example.model, example.data, progress=False)
        assert torch.isfinite(fit.elbo).all()
    with pytest.raises(MethodError, match="takes its particles in turn"):
        ci.SVI(guide="factorized", vectorize_particles=True).fit(example.model, example.data, progress=False)
