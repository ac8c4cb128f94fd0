"""Gaussian priors of a harmonium's weights in closed form, against the densities of the program."""

from __future__ import annotations

import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference.core.method import Call
from custom_inference.families.boltzmann.common import SITES
from custom_inference.families.boltzmann.priors import GaussianPriors, log_prior_of
from custom_inference.families.boltzmann.slopes import BinarySlopes
from custom_inference.families.boltzmann.stochastic import PersistentCD
from custom_inference.families.boltzmann.training import Training
from ppl_models import RBM
from ppl_models.distributions import Flat

HIDDEN, VISIBLE = 3, 5


def correlated(size: int, seed: int, *lead: int) -> dist.MultivariateNormal:
    """Away from 0, with axes before the last that differ."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(*lead, size, size, generator=generator, dtype=torch.float64)
    matrix = root @ root.mT + torch.eye(size, dtype=torch.float64)
    return dist.MultivariateNormal(torch.randn(*lead, size, generator=generator, dtype=torch.float64), matrix)


PRIORS = {
    "rows alike": {"weight": correlated(VISIBLE, 0)},
    "rows that differ": {"weight": correlated(VISIBLE, 1, HIDDEN), "visible_bias": correlated(VISIBLE, 2)},
    "with others": {
        "weight": dist.Normal(0.3, 0.5),
        "hidden_bias": correlated(HIDDEN, 3),
        "visible_bias": Flat(dist.Normal(0.0, 1.0)),
    },
}


def model_of(priors) -> RBM:
    return RBM(num_hidden=HIDDEN, num_features=VISIBLE).with_priors(**priors)


def weights(model: RBM, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {site: torch.randn(model.shapes[site], generator=generator, dtype=torch.float64) for site in SITES}


def slope_of(model: RBM, at: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """That of the program's log p(theta), differentiated."""
    free = {site: value.detach().double().clone().requires_grad_() for site, value in at.items()}
    found = torch.autograd.grad(model.log_prior(free), list(free.values()), materialize_grads=True)
    return dict(zip(at, found, strict=True))


@pytest.mark.parametrize("name", PRIORS)
def test_densities_and_slopes_are_those_of_the_program(name):
    model = model_of(PRIORS[name])
    first, second = weights(model, 0), weights(model, 1)
    log_density = log_prior_of(model, first["weight"])
    found, expected = log_density(first) - log_density(second), model.log_prior(first) - model.log_prior(second)
    torch.testing.assert_close(found, expected)
    both = {site: torch.stack([first[site], second[site]]) for site in SITES}
    torch.testing.assert_close(log_density(both), torch.stack([log_density(first), log_density(second)]))
    priors, expected = GaussianPriors.of(model, first["weight"]), slope_of(model, first)
    assert priors is not None
    for site in SITES:
        torch.testing.assert_close(priors.slope(site, first[site]), expected[site])
        torch.testing.assert_close(priors.slope(site, both[site])[0], expected[site])


def test_of_other_priors_there_are_none():
    assert GaussianPriors.of(model_of({"weight": dist.Laplace(0.0, 1.0)}), torch.zeros(1)) is None


@pytest.mark.parametrize("settings", [{"restarts": 2}, {"restarts": 1}, {"optimizer": "adam"}, {"centred": True}])
@pytest.mark.parametrize("name", PRIORS)
def test_chains_climb_the_posterior(name, settings):
    """What the slope of the posterior adds to that of the likelihood, of machines side by side, of one, and in the
    general way; with centred units both are turned alike."""
    model = model_of(PRIORS[name])
    x = torch.bernoulli(torch.rand(30, VISIBLE, generator=torch.Generator().manual_seed(2)))
    data, call = model.prepare(x, dtype=torch.float64), Call(0, None, False, torch.float64, None)
    state = Training(PersistentCD(**settings), model, data, call)
    slopes, index = state.slopes, torch.arange(len(x))[: state.size]
    assert isinstance(slopes, BinarySlopes) == ("restarts" in settings)
    each = [weights(model, seed) for seed in range(state.machines)]
    start = {site: torch.stack([one[site] for one in each]) for site in SITES} if state.machines > 1 else each[0]
    state.weights.theta.copy_(state.weights.join(start))
    random, chains = state.generator.get_state(), slopes.chains.state.clone()
    plain = state.weights.parts(slopes.of_likelihood(index).clone())
    exact = [slope_of(model, one) for one in each]
    prior = {
        site: torch.stack([one[site] for one in exact]) if state.machines > 1 else exact[0][site] for site in SITES
    }
    expected = {site: plain[site].double() + prior[site] / len(x) for site in SITES}
    if "centred" in settings:
        mu, level = x.double().mean(0), torch.full((HIDDEN,), 0.5, dtype=torch.float64)
        weight, visible, hidden = (expected[site] for site in SITES)
        weight = weight - torch.outer(level, visible) - torch.outer(hidden, mu)
        expected = dict(zip(SITES, (weight, visible - level @ weight, hidden - weight @ mu), strict=True))
    state.generator.set_state(random)
    slopes.chains.state.copy_(chains)
    found = state.weights.parts(slopes.of_posterior(index))
    for site in SITES:
        torch.testing.assert_close(found[site].double(), expected[site], rtol=1e-3, atol=1e-4)


def test_a_narrow_prior_holds_the_weights():
    """One whose curvature is many times the rows' own: steps do not go past its mode."""
    centre = torch.linspace(-1.0, 1.0, VISIBLE)
    matrix = 1e4 * (torch.eye(VISIBLE) + 0.5)
    model = model_of({"weight": dist.MultivariateNormal(centre, precision_matrix=matrix)})
    x = torch.bernoulli(torch.rand(30, VISIBLE, generator=torch.Generator().manual_seed(2)))
    for method in (PersistentCD(max_iterations=200), "exact"):
        fit = ci.fit(model, x, method=method, progress=False)
        torch.testing.assert_close(fit.params["weight"].double(), centre.double().expand(HIDDEN, -1), rtol=0, atol=0.02)
