"""What engines of points climb is the program's own log joint: with all constants of its proper priors."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine

from custom_inference.core.registry import engine_for, engines_of
from custom_inference.core.states import values_of
from custom_inference.em.any_prior import with_any_prior
from ppl_models import MODELS
from ppl_models.core.priors import is_flat
from tests.support.cases import problem_of, swapped_priors

pytestmark = pytest.mark.filterwarnings(
    "ignore::ppl_models.DataWarning", "ignore:Converting a tensor with requires_grad"
)


def cases():
    for name in MODELS:
        for engine, make in engines_of(problem_of(name).model).items():
            if make().objective == "log joint":
                yield pytest.param(name, engine, id=f"{name}-{engine}")


def informative(model):
    """The model with priors that have densities and modes, those of its latents too."""
    found, _ = swapped_priors(model)
    for site in model.sites_of("latent"):
        prior = model.priors.get(site)
        if isinstance(prior, dist.Dirichlet):
            found[site] = dist.Dirichlet(torch.linspace(1.4, 2.6, prior.event_shape[0], dtype=torch.float64))
        elif prior is not None:
            found[site] = dist.Gamma(1.7, 0.6) if site == "activation" else dist.Normal(0.3, 1.4)
    return model.with_priors(**found)


def log_joint_of(model, values, data):
    """By the program: of what is observed, and of every site whose prior is not flat."""
    others = {site: data.others[site] for site in model.other_sites if site in data.others}
    trace = poutine.trace(pyro.condition(model, values)).get_trace(data.x, mask=data.mask, **others)
    kept = {site for site in values if not (site in model.priors and is_flat(model.priors[site]))}
    total = float(trace.log_prob_sum(lambda name, _: name in kept or name in model.sites_of("observed")))
    return total + sum(change_of_basis(model, site, values[site]) for site in kept)


def change_of_basis(model, site, value):
    """Where concentrations (shapes) are below 1 the density is that of logits (of logarithms): its log has the sum of
    the logarithms of the values more."""
    prior = model.priors.get(site)
    below = isinstance(prior, (dist.Dirichlet, dist.Gamma)) and bool((prior.concentration < 1).any())
    return float(value.log().sum()) if below else 0.0


@pytest.mark.quick
@pytest.mark.parametrize("change", [lambda model: model, informative], ids=["own priors", "informative"])
@pytest.mark.parametrize(("name", "engine"), list(cases()))
def test_what_is_called_a_log_joint_is_that_of_the_program(name, engine, change):
    example = problem_of(name)
    model = change(example.model)
    data = model.prepare(example.data.x.double(), dtype=torch.float64, **example.data.others)
    steps = with_any_prior(engine_for(model, engine), model)
    assert steps.has_point_locals
    rows = steps.rows(model, data)
    state = steps.initial(model, rows, torch.Generator().manual_seed(3))
    for _ in range(3):
        step = steps.e_step(model, state, rows)
        at, state = state, steps.m_step(model, state, step, rows)
    step = steps.e_step(model, at, rows)
    values = {**values_of(model, at), **steps.point_locals(step)}
    expected = log_joint_of(model, {site: value.double() for site, value in values.items()}, data)
    assert steps.objective_at(model, at, step.bound) == pytest.approx(expected, rel=1e-9, abs=1e-7)
