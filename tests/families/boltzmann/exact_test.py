"""The restricted Boltzmann machine against sums over all of its states."""

from __future__ import annotations

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference.core.local_inference import solve_local
from custom_inference.families.boltzmann.common import HarmoniumRows
from custom_inference.families.boltzmann.search import climb_of
from ppl_models import RBM, CapacityError
from tests.references import rbm as reference
from tests.support.fits import given

SITES = ("weight", "visible_bias", "hidden_bias")


def problem(hidden: int, visible: int, seed: int):
    rng = np.random.default_rng(seed)
    shapes = {"weight": (hidden, visible), "visible_bias": (visible,), "hidden_bias": (hidden,)}
    params = {site: rng.normal(size=shape) for site, shape in shapes.items()}
    x = (rng.random((7, visible)) < 0.5).astype(float)
    return RBM(num_hidden=hidden, num_features=visible), params, x, rng.random(x.shape) > 0.3


@pytest.mark.quick
@pytest.mark.parametrize(("hidden", "visible"), [(3, 5), (5, 3), (1, 4)])
def test_evidence_and_posterior_are_sums_over_all_states(hidden, visible):
    model, params, x, mask = problem(hidden, visible, 0)
    tensors = {site: torch.as_tensor(value) for site, value in params.items()}
    for observed in (None, mask):
        data = model.prepare(x, mask=observed, dtype=torch.float64)
        for local in (
            solve_local(model, tensors, data, bound="exact"),
            ci.Exact(generic=True).local_posterior(model, tensors, data),
        ):
            assert np.allclose(local.bound, reference.log_evidence(params, x, observed), atol=1e-10)
            assert np.allclose(local.posterior.mean, reference.posterior_mean(params, x, observed), atol=1e-10)


@pytest.mark.parametrize(("hidden", "visible", "kind"), [(3, 5, "binary"), (5, 3, "binary"), (2, 3, "categorical"),
                                                         (4, 2, "gaussian")])  # fmt: skip
def test_slopes_in_closed_form_are_those_of_the_programs_density(hidden, visible, kind):
    """By central differences of log p(x) + log p(theta); rows with copies, two starts side by side."""
    settings = {"visible": kind, "num_categories": 3 if kind == "categorical" else 1}
    model = RBM(num_hidden=hidden, num_features=visible, **settings)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(12, visible, generator=generator, dtype=torch.float64)
    x = x if kind == "gaussian" else (x > 0).double() + (x > 1).double() * (kind == "categorical")
    data = model.prepare(torch.cat([x, x[:5]]), dtype=torch.float64)
    rows = HarmoniumRows.of(model, data)
    at = {site: torch.randn(2, *shape, generator=generator, dtype=torch.float64) * 0.5
          for site, shape in model.shapes.items()}  # fmt: skip
    value, slope = climb_of(model, rows.distinct, len(rows))(at)

    def joint(start):
        params = {site: part[start] for site, part in at.items()}
        return float(solve_local(model, params, data, bound="exact").bound.sum() + model.log_prior(params)) / 17

    assert np.isclose(float(value[0] - value[1]), joint(0) - joint(1), atol=1e-9)
    for site in SITES:
        flat = at[site][1].view(-1)
        for place in range(len(flat)):
            kept = float(flat[place])
            ends = []
            for moved in (kept + 1e-5, kept - 1e-5):
                flat[place] = moved
                ends.append(joint(1))
            flat[place] = kept
            assert np.isclose(float(slope[site][1].reshape(-1)[place]), (ends[0] - ends[1]) / 2e-5, atol=1e-7)


def test_the_fit_is_a_maximum():
    """The slope of the penalised likelihood by the reference's moments vanishes, and the objective never fell."""
    example = RBM.example()
    fit = ci.fit(example.model, example.data, progress=False)
    params = {site: value.numpy() for site, value in fit.params.items()}
    assert float(fit.elbo.diff().min()) > -1e-6
    slope = reference.gradient(params, example.data.x.double().numpy())
    for site in SITES:
        penalty = -params[site] / (1.0 if site == "weight" else 9.0) / len(example.data)
        assert np.abs(slope[site] + penalty).max() < 2e-4, site


def test_draws_have_the_models_moments():
    example = RBM.example()
    truth = {site: example.truth[site] for site in example.model.global_sites}
    params = {site: value.double() for site, value in truth.items()}
    fit = given(example.model, params, example.model.prepare(example.data), bound_name="exact")
    drawn = fit.sample(20000, seed=1)["x"].double().numpy()
    moments = reference.model_moments({site: value.double().numpy() for site, value in truth.items()})
    assert np.abs(drawn.mean(0) - moments["visible_bias"]).max() < 4 * 0.5 / np.sqrt(20000)


@pytest.mark.parametrize("seed", range(3))
def test_bars_reach_their_maximum_likelihood(seed):
    """4 x 4 bars, all 30 of them: -3.401 nats a row at most, under priors that hardly hold the weights."""
    code = (np.arange(16)[:, None] >> np.arange(4)) & 1
    rows = np.repeat(code, 4, axis=1)
    bars = np.unique(np.concatenate([rows, np.tile(code, 4)]), axis=0).astype(float)
    model = RBM(num_hidden=8, num_features=16).with_priors(**{site: dist.Normal(0.0, 500.0) for site in SITES})
    fit = ci.fit(model, bars, seed=seed, progress=False)
    assert float(fit.log_likelihood().mean()) >= -3.41


def test_sums_that_are_too_large_are_refused():
    with pytest.raises(CapacityError, match=r"2\^25 states"):
        model = RBM(num_hidden=25, num_features=30)
        ci.EM().fit(model, (torch.arange(5)[:, None] + torch.arange(30)) % 2.0, progress=False)
