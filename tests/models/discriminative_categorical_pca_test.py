"""Discriminative categorical PCA: bounds, exact Gaussian outputs, the regression on inputs, predictions, bad input."""

from __future__ import annotations

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch.distributions import MultivariateNormal

from custom_inference import SVI, Fit, VariationalEM, fit
from custom_inference.core.local_inference import LocalSolver
from custom_inference.core.registry import engine_for
from ppl_models import DataError, DiscriminativeCategoricalPCA, ModelError
from tests.references import discriminative_categorical_pca as reference

SIZES = {"num_components": 2, "num_features": 5, "num_covariates": 3}


def problem(outputs: str, rows: int = 40, seed: int = 0):
    """A model of these outputs, and parameters, inputs and data drawn from it."""
    model = DiscriminativeCategoricalPCA(**SIZES, outputs=outputs, scale=0.7, labels_per_row=4)
    generator = torch.Generator().manual_seed(seed)
    params = {
        site: torch.randn(shape, generator=generator, dtype=torch.float64) for site, shape in model.shapes.items()
    }
    inputs = torch.randn((rows, 3), generator=generator, dtype=torch.float64)
    pyro.set_rng_seed(seed)
    x = pyro.condition(model, data=params)(covariates=inputs)
    return model, params, inputs, x


def solved(model, params, data, engine="variational"):
    with torch.no_grad():
        return LocalSolver(engine=engine_for(model, engine)).solve(model, params, data)


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_bounds_are_below_the_evidence_and_close(share):
    model, params, inputs, x = problem("categorical")
    mask = None if not share else torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) > share
    data = model.prepare(x, mask=mask, dtype=torch.float64, covariates=inputs)
    arrays = {site: value.numpy() for site, value in params.items()}
    given = (None if mask is None else mask.numpy(), 60, inputs.numpy())
    exact = torch.tensor(reference.log_evidence(arrays, x.numpy(), *given))
    mean = torch.tensor(
        reference.moments_from_prior(arrays, x.numpy(), *given)[0] + inputs.numpy() @ arrays["input_weight"]
    )
    for engine, most in (("variational", 0.1), ("gaussian", 2.0)):
        local = solved(model, params, data, engine)
        gap = exact - local.bound
        assert float(gap.min()) > -1e-8 and float(gap.mean()) < most
    torch.testing.assert_close(solved(model, params, data).posterior.mean, mean, atol=0.15, rtol=0)


def test_gaussian_outputs_are_exact():
    """x_n ~ N(b + W'U'u_n, W'W + scale^2 I), with and without missing entries."""
    model, params, inputs, x = problem("gaussian")
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(2)) > 0.3
    data = model.prepare(x, mask=mask, dtype=torch.float64, covariates=inputs)
    weight = params["weight"]
    mean = params["bias"] + inputs @ params["input_weight"] @ weight
    covariance = weight.T @ weight + 0.49 * torch.eye(5, dtype=torch.float64)
    for engine in ("gaussian", "variational"):
        local = solved(model, params, data, engine)
        for n, seen in enumerate(mask):
            own = MultivariateNormal(mean[n, seen], covariance[seen][:, seen]) if bool(seen.any()) else None
            expected = 0.0 if own is None else float(own.log_prob(x[n, seen]))
            assert float(local.bound[n]) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("outputs", ["categorical", "bernoulli", "gaussian"])
def test_fits_climb_to_a_stationary_point(outputs):
    model, _, inputs, x = problem(outputs, rows=60)
    model = model.with_priors(input_weight=dist.Normal(torch.tensor([[0.0], [0.3], [0.0]]), 0.8))
    method = VariationalEM(guide="variational", tolerance=1e-9, max_iterations=800, search=None)
    found = method.fit(model, x, covariates=inputs, progress=False, dtype=torch.float64)
    assert bool((found.elbo.diff() > -1e-9 * found.elbo.abs().max()).all())
    posterior, data = found.local.posterior, found.data
    draws = posterior.sample(4000, seed=0)
    values = {site: value.clone().requires_grad_() for site, value in found.params.items()}
    # The expected log joint's gradient in the weights of the inputs, by its definition.
    law = model.score_given(values, data.others["covariates"])
    total = law.log_prob(draws).sum(-1).mean() + model.log_prior(values, ["input_weight"])
    [slope] = torch.autograd.grad(total, values["input_weight"])
    error = draws.sum(1).std(0).max() * inputs.abs().max() / 4000**0.5
    assert float(slope.abs().max()) < 5 * float(error)
    before = solved(model, found.params, data).bound.sum() + model.log_prior(found.params)
    for site in ("input_weight", "weight", "bias"):
        for sign in (-1, 1):
            moved = {**found.params, site: found.params[site] + sign * 0.02 * torch.sign(found.params[site])}
            assert solved(model, moved, data).bound.sum() + model.log_prior(moved) < before + 1e-6


def test_a_rotation_changes_nothing_and_standard_form_turns_all():
    model, params, inputs, x = problem("bernoulli")
    data = model.prepare(x, dtype=torch.float64, covariates=inputs)
    turned = model.standard_form(params)
    gram = turned["weight"] @ turned["weight"].T
    assert abs(float(gram[0, 1])) < 1e-10 and gram[0, 0] >= gram[1, 1]
    product = [values["input_weight"] @ values["weight"] for values in (params, turned)]
    torch.testing.assert_close(*product)
    torch.testing.assert_close(solved(model, params, data).bound, solved(model, turned, data).bound)


def test_predictions_use_the_labels_that_are_seen():
    """The scores' inputs say nothing here; a label that is seen says all of its twin."""
    generator = torch.Generator().manual_seed(4)
    z = torch.randn((400, 1), generator=generator, dtype=torch.float64)
    x = torch.bernoulli(torch.sigmoid(z @ torch.tensor([[4.0, 4.0, -4.0]]).double()), generator=generator)
    inputs = torch.randn((400, 1), generator=generator, dtype=torch.float64)
    model = DiscriminativeCategoricalPCA(
        num_components=1, num_features=3, num_covariates=1, outputs="bernoulli"
    ).with_priors(weight=dist.Normal(0.0, 5.0))
    found = fit(model, x, covariates=inputs, progress=False, dtype=torch.float64)
    unknown = torch.tensor([[float("nan")] * 3, [1.0, float("nan"), float("nan")], [0.0, float("nan"), float("nan")]])
    chance = found.predict(unknown.double(), covariates=torch.zeros(3, 1))
    assert abs(float(chance[0, 1]) - 0.5) < 0.1
    assert chance[1, 1] > 0.75 > 0.25 > chance[1, 2] and chance[2, 1] < 0.25 < 0.75 < chance[2, 2]


def test_predictions_are_posterior_means(tmp_path):
    model, params, inputs, x = problem("categorical", rows=120)
    found = VariationalEM(guide="variational").fit(model, x, covariates=inputs, progress=False, dtype=torch.float64)
    chance = found.predict(x[:6], covariates=inputs[:6])
    torch.testing.assert_close(chance.sum(1), torch.ones(6).double())
    draws = solved(found.model, found.params, found.data.rows(slice(0, 6))).posterior.sample(20000, seed=3)
    eta = found.params["bias"] + draws @ found.params["weight"]
    torch.testing.assert_close(chance, torch.softmax(eta, -1).mean(0), atol=0.05, rtol=0)
    again = Fit.load(found.save(tmp_path / "fit.safetensors"))
    torch.testing.assert_close(again.predict(x[:6], covariates=inputs[:6]), chance)
    # Inputs are recovered up to the turn of the scores.
    own = inputs @ found.params["input_weight"] @ found.params["weight"]
    true = inputs @ params["input_weight"] @ params["weight"]
    assert (
        np.corrcoef((own - own.mean(1, keepdim=True)).flatten(), (true - true.mean(1, keepdim=True)).flatten())[0, 1]
        > 0.9
    )


def test_minibatches_read_their_own_inputs():
    model, params, inputs, x = problem("gaussian", rows=30)
    conditioned = pyro.condition(model, data={**params, "score": inputs @ params["input_weight"]})
    whole = poutine.trace(conditioned).get_trace(x, covariates=inputs)
    expected = whole.nodes["x"]["fn"].log_prob(x)
    index = torch.tensor([3, 17, 29])
    got = model.score_given(params, inputs, index)
    torch.testing.assert_close(got.mean, (inputs @ params["input_weight"])[index])
    whole.compute_log_prob()
    torch.testing.assert_close(whole.nodes["x"]["log_prob"], expected)
    fitted = SVI(guide="mean_field", steps=3).fit(model, x, covariates=inputs, progress=False)
    assert torch.isfinite(fitted.elbo).all()


def test_bad_input_is_named():
    model, _, inputs, x = problem("categorical")
    for given, message in (
        (None, "no inputs"),
        (inputs[:3], r"shape \(3, 3\)"),
        (torch.where(inputs > 2, torch.nan, inputs), "not finite"),
    ):
        with pytest.raises(DataError, match=message):
            model.prepare(x, covariates=given)
    with pytest.raises(DataError, match="are no counts"):
        model.prepare(x - 1, covariates=inputs)
    with pytest.raises(ModelError, match="kind of outputs"):
        DiscriminativeCategoricalPCA(**SIZES, outputs="ordinal")
    with pytest.raises(ModelError, match="scale = 0"):
        DiscriminativeCategoricalPCA(**SIZES, outputs="gaussian", scale=0)
    with pytest.raises(ModelError, match="expected a Normal"):
        model.with_priors(score=dist.StudentT(3.0))
    with pytest.raises(ModelError, match="span no more"):
        DiscriminativeCategoricalPCA(num_components=4, num_features=3, num_covariates=1)
    assert DiscriminativeCategoricalPCA.for_data(model.prepare(x, covariates=inputs), 2).num_covariates == 3
