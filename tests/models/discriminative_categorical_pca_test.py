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
from ppl_models import CapacityError, DataError, DiscriminativeCategoricalPCA, MethodError, ModelError
from tests.references import discriminative_categorical_pca as reference

SIZES = {"num_components": 2, "num_features": 5, "num_covariates": 3}


def problem(outputs: str, rows: int = 40, seed: int = 0):
    """A model of these outputs, and parameters, inputs and data drawn from it."""
    model = DiscriminativeCategoricalPCA(**SIZES, outputs=outputs, scale=0.7, labels_per_row=4)
    generator = torch.Generator().manual_seed(seed)
    params = {
        site: torch.randn(shape, generator=generator, dtype=torch.float64) for site, shape in model.shapes.items()
    }
    params |= {"scale": torch.tensor(0.7).double()} if outputs == "gaussian" else {}
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
    model, _, inputs, x = problem(outputs, rows=30)
    model = model.with_priors(input_weight=dist.Normal(torch.tensor([[0.0], [0.3], [0.0]]), 0.8))
    method = VariationalEM(guide="variational", tolerance=1e-9, max_iterations=150, search=None)
    found = method.fit(model, x, covariates=inputs, progress=False, dtype=torch.float64)
    assert bool((found.elbo.diff() > -1e-9 * found.elbo.abs().max()).all())
    posterior, data, model = found.local.posterior, found.data, found.model
    draws = posterior.sample(20000, seed=0)
    values = {site: value.clone().requires_grad_() for site, value in found.params.items()}
    # The expected log joint's gradient in the weights of the inputs, by its definition.
    program = poutine.trace(pyro.condition(model, {**values, "score": draws}))
    law = program.get_trace(data.x, covariates=data.others["covariates"]).nodes["score"]["fn"]
    total = law.log_prob(draws).sum(-1).mean() + model.log_prior(values, ["input_weight"])
    [slope] = torch.autograd.grad(total, values["input_weight"])
    error = draws.sum(1).std(0).max() * inputs.abs().max() / 20000**0.5
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
    part = poutine.trace(pyro.condition(model, data=params)).get_trace(x, covariates=inputs, batch_size=3)
    index = part.nodes["data"]["value"]
    torch.testing.assert_close(part.nodes["score"]["fn"].mean, (inputs @ params["input_weight"])[index])
    whole.compute_log_prob()
    torch.testing.assert_close(whole.nodes["x"]["log_prob"], expected)
    fitted = SVI(guide="mean_field", steps=3).fit(model, x, covariates=inputs, progress=False)
    assert torch.isfinite(fitted.elbo).all()


def test_bad_input_is_named():
    model, _, inputs, x = problem("categorical")
    for given, message in ((inputs[:3], r"shape \(3, 3\)"), (torch.where(inputs > 2, torch.nan, inputs), "not finite")):
        with pytest.raises(DataError, match=message):
            model.prepare(x, covariates=given)
    assert not model.prepare(x).others["covariates"].any()  # without inputs at all the scores are N(0, 1)
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


# ----- experts ------------------------------------------------------------------------------------------------


def mixed(outputs: str, rows: int = 40):
    """A model of two experts, and parameters, inputs and data drawn from it."""
    model = DiscriminativeCategoricalPCA(**SIZES, outputs=outputs, scale=0.7, labels_per_row=4, num_experts=2)
    generator = torch.Generator().manual_seed(1)
    shapes = model.shapes
    params = {site: torch.randn(shape, generator=generator, dtype=torch.float64) for site, shape in shapes.items()}
    params |= {"scale": torch.tensor(0.7).double()} if outputs == "gaussian" else {}
    params |= {"expert_proportion": torch.tensor([0.3, 0.7]).double(), "input_weight": 2 * params["input_weight"]}
    inputs = torch.randn((rows, 3), generator=generator, dtype=torch.float64)
    pyro.set_rng_seed(1)
    return model, params, inputs, pyro.condition(model, data=params)(covariates=inputs)


def test_the_bound_of_experts_mixes_those_of_each():
    """Of Gaussian outputs the evidence, a mixture of Normal densities; of labels below the mixed evidence."""
    model, params, inputs, x = mixed("gaussian")
    found = solved(model, params, model.prepare(x, dtype=torch.float64, covariates=inputs))
    weight = params["weight"]
    covariance = weight.T @ weight + 0.49 * torch.eye(5, dtype=torch.float64)
    each = [
        MultivariateNormal(params["bias"] + inputs @ own @ weight, covariance).log_prob(x)
        for own in params["input_weight"]
    ]
    expected = (torch.stack(each, -1) + params["expert_proportion"].log()).logsumexp(-1)
    torch.testing.assert_close(found.bound, expected)
    model, params, inputs, x = mixed("categorical")
    found = solved(model, params, model.prepare(x, dtype=torch.float64, covariates=inputs))
    arrays = {site: value.numpy() for site, value in params.items()}
    each = [
        torch.tensor(reference.log_evidence({**arrays, "input_weight": own}, x.numpy(), None, 60, inputs.numpy()))
        for own in arrays["input_weight"]
    ]
    gap = (torch.stack(each, -1) + params["expert_proportion"].log()).logsumexp(-1) - found.bound
    assert float(gap.min()) > -1e-8 and float(gap.mean()) < 0.1


def test_the_program_draws_scores_from_the_mixture_and_its_posterior_is_one():
    model, params, inputs, x = mixed("gaussian", rows=12)
    score = torch.randn((12, 2), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    trace = poutine.trace(pyro.condition(model, data={**params, "score": score})).get_trace(x, covariates=inputs)
    trace.compute_log_prob()
    normal = dist.Normal(torch.einsum("np,epk->enk", inputs, params["input_weight"]), 1.0).to_event(1)
    expected = (normal.log_prob(score) + params["expert_proportion"].log()[:, None]).logsumexp(0)
    torch.testing.assert_close(trace.nodes["score"]["log_prob"], expected)
    local = solved(model, params, model.prepare(x, dtype=torch.float64, covariates=inputs))
    # Of Gaussian outputs it is exact: log joint less log posterior is the evidence, whatever the score.
    joint = trace.nodes["score"]["log_prob"] + trace.nodes["x"]["log_prob"]
    torch.testing.assert_close(joint - local.posterior.log_prob(score), local.bound)
    draws = local.posterior.sample(40_000, seed=0)
    torch.testing.assert_close(draws.mean(0), local.posterior.mean, atol=0.05, rtol=0)


@pytest.mark.parametrize("outputs", ["categorical", "gaussian"])
def test_fits_of_experts_climb_and_predict(outputs, tmp_path):
    model, _, inputs, x = mixed(outputs, rows=80)
    method = VariationalEM(guide="variational", search=None, max_iterations=60)
    found = method.fit(model, x, covariates=inputs, progress=False, dtype=torch.float64)
    assert bool((found.elbo.diff() > -1e-9 * found.elbo.abs().max()).all()) and len(found.elbo) > 5
    proportion = found.params["expert_proportion"]
    share = found.local.posterior.log_weight.exp().mean(0)
    torch.testing.assert_close(proportion, share, atol=2e-2, rtol=0)
    chance = found.predict(x[:5], covariates=inputs[:5])
    again = Fit.load(found.save(tmp_path / "fit.safetensors")).predict(x[:5], covariates=inputs[:5])
    assert chance.shape == (5, 5) and torch.allclose(chance, again)
    with pytest.raises(MethodError, match="experts are mixed by guide='variational' alone"):
        VariationalEM(guide="map").fit(model, x, covariates=inputs, progress=False)


# ----- the exact engine, Laplace's, and the noise ----------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_quadrature_is_the_evidence_and_laplace_is_near(share):
    model, params, inputs, x = problem("categorical")
    mask = None if not share else torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) > share
    data = model.prepare(x, mask=mask, dtype=torch.float64, covariates=inputs)
    arrays = {site: value.numpy() for site, value in params.items()}
    given = (None if mask is None else mask.numpy(), 60, inputs.numpy())
    evidence = torch.tensor(reference.log_evidence(arrays, x.numpy(), *given))
    exact, laplace = (solved(model, params, data, engine) for engine in ("exact", "laplace"))
    torch.testing.assert_close(exact.bound, evidence, atol=1e-6, rtol=0)
    away = torch.tensor(reference.moments_from_prior(arrays, x.numpy(), *given)[0])
    torch.testing.assert_close(exact.posterior.mean, away + inputs @ params["input_weight"], atol=1e-5, rtol=0)
    assert float((laplace.bound - evidence).abs().mean()) < 0.1
    draws = exact.posterior.sample(4000, seed=1)
    error = draws.std(0) / 4000**0.5
    assert bool(((draws.mean(0) - exact.posterior.mean).abs() < 5 * error).all())


@pytest.mark.parametrize(
    ("outputs", "engine"),
    [("categorical", "exact"), ("bernoulli", "exact"), ("gaussian", "exact"), ("bernoulli", "laplace"),
     ("categorical", "laplace"), ("gaussian", "laplace")],
)  # fmt: skip
def test_fits_end_where_their_objective_has_no_slope(outputs, engine):
    """Of the evidence itself, or of Laplace's estimate: finite differences in all globals, the noise too."""
    _, _, inputs, x = problem(outputs, rows=50 if outputs == "gaussian" else 25, seed=5)
    model = DiscriminativeCategoricalPCA(**SIZES, outputs=outputs, labels_per_row=4)
    method = VariationalEM(guide=engine, tolerance=1e-10, max_iterations=3000, search=None)
    found = method.fit(model, x, covariates=inputs, progress=False, dtype=torch.float64)
    assert bool((found.elbo.diff() > -1e-9 * found.elbo.abs().max()).all())
    model = found.model  # at the centres and in the units of the data
    assert set(found.params) == set(model.global_sites) and ("scale" in found.params) == (outputs == "gaussian")

    def objective(values):
        return float(solved(model, values, found.data, engine).bound.sum() + model.log_prior(values))

    generator = torch.Generator().manual_seed(0)
    for site, value in found.params.items():
        for _ in range(2):
            step = 1e-3 * torch.randn(value.shape, generator=generator, dtype=torch.float64)
            higher, lower = (objective({**found.params, site: value + sign * step}) for sign in (1, -1))
            curved = higher + lower - 2 * objective(found.params)
            # A step of Newton's method along this line would move by less than a twentieth of a standard error.
            assert curved < 0 and abs(higher - lower) / 2 < 0.05 * 1e-3 * (-curved / 1e-6) ** 0.5, site


def test_the_noise_is_learned_or_held():
    model, params, inputs, x = problem("gaussian", rows=400, seed=3)
    assert torch.allclose(model.known["scale"], torch.tensor(0.7))
    learned = DiscriminativeCategoricalPCA(**SIZES, outputs="gaussian")
    settings = {"covariates": inputs, "search": None, "progress": False, "dtype": torch.float64}
    free, held = (fit(one, x, **settings) for one in (learned, learned.with_priors(scale=0.9)))
    assert free.objective == "log posterior"
    assert abs(float(free.params["scale"]) - 0.7) < 0.05 and float(held.params["scale"]) == pytest.approx(0.9)
    assert free.elbo[-1] > held.elbo[-1]
    assert learned.num_parameters(0) == model.num_parameters(0) + 1
    own, true = (part["input_weight"] @ part["weight"] for part in (free.params, params))
    torch.testing.assert_close(own, true, atol=0.4, rtol=0)
    small = fit(learned, 1e-3 * x, **settings)
    assert abs(float(small.params["scale"]) - 7e-4) < 5e-5


def test_experts_of_gaussian_outputs_are_exact():
    model, params, inputs, x = mixed("gaussian")
    data = model.prepare(x, dtype=torch.float64, covariates=inputs)
    exact, bound = (solved(model, params, data, engine) for engine in ("exact", "variational"))
    torch.testing.assert_close(exact.bound, bound.bound)
    other, *_, labels = mixed("bernoulli")
    with pytest.raises(MethodError, match="not by 'exact'"):
        VariationalEM(guide="exact").fit(other, labels, covariates=inputs, progress=False)
    wide = DiscriminativeCategoricalPCA(num_components=3, num_features=5, num_covariates=3, outputs="bernoulli")
    with pytest.raises(CapacityError, match="offered for up to 2"):
        VariationalEM(guide="exact").fit(wide, labels, covariates=inputs, progress=False)


def test_blocks_of_rows_add_up_with_what_the_noise_is_learned_from(monkeypatch):
    model, params, inputs, x = mixed("gaussian", rows=100)
    engine, found = engine_for(model, "variational"), []
    rows = engine.rows(model, model.prepare(x, dtype=torch.float64, covariates=inputs))
    for entries in (2**17, 1):  # all rows in one block, and in two
        monkeypatch.setattr("custom_inference.families.factors.discriminative._BLOCK_ENTRIES", entries)
        with torch.no_grad():
            found.append(engine.e_step(model, params, rows))
    assert float(found[0].statistics["observed"][0]) == 100
    torch.testing.assert_close(found[1].statistics, found[0].statistics, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found[1].bound, found[0].bound)
