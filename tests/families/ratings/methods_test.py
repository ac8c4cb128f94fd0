"""Engines, variational Bayes and Gibbs of PMF in the frame, and predictions of pairs against dense Gaussians."""

import math
from dataclasses import replace

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import integrate, stats

import custom_inference as ci
from custom_inference import simulation_based_calibration
from custom_inference.core.diagnostics import r_hat
from custom_inference.core.registry import engine_for
from custom_inference.families.ratings import gibbs as sampler
from custom_inference.families.ratings import variational as variational_module
from custom_inference.families.ratings.hyper import prior_given_rows
from custom_inference.families.ratings.incidence import Incidence
from custom_inference.families.ratings.priors import settings_of
from custom_inference.families.ratings.variational import variational
from custom_inference.families.ratings.vb import RatingsVB
from ppl_models import PMF, DataError, MethodError, PriorError, ratings
from ppl_models.distributions import InverseWishart
from tests.references import pmf as reference

QUIET = {"progress": False}


@pytest.fixture(scope="module")
def problem():
    """The example, a third of its ratings missing: the model, x with NaN, the true globals."""
    torch.manual_seed(0)
    example = PMF.example()
    x = example.data.x.double().clone()
    x[torch.rand(x.shape) < 0.3] = torch.nan
    return example.model, x, {site: example.truth[site].double() for site in example.model.global_sites}


@pytest.fixture(scope="module")
def adaptive(problem):
    model = PMF(num_components=2, num_users=32, num_items=6, adaptive=True, varying_noise=math.inf)
    data = ratings(problem[1])
    return {name: ci.fit(model, data, method=name, seed=1, **QUIET) for name in ("vb", "gibbs")}


def arrays(params):
    return {site: value.numpy() for site, value in params.items()}


@pytest.mark.parametrize("sparse", [False, True])
def test_profiles_and_evidence_are_the_references(problem, sparse):
    model, x, params = problem
    data = model.prepare(ratings(x) if sparse else x, dtype=torch.float64)
    engine = engine_for(model, "exact")
    step = engine.e_step(model, params, engine.rows(model, data))
    mask = ~np.isnan(x.numpy())
    assert np.allclose(step.bound, reference.log_evidence(arrays(params), x, mask), atol=1e-10)
    mean, covariance = reference.posterior(arrays(params), x, mask)
    assert np.allclose(step.locals["user_profile"], mean, atol=1e-10)
    assert np.allclose(step.locals["covariance"], covariance, atol=1e-10)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", ["exact", "map"])
def test_fits_climb_to_a_stationary_point(problem, name, sparse):
    model, x, _ = problem
    if name == "map":
        model = model.with_priors(scale=0.5)
    settings = {"search": None, "accelerate": None, "max_iterations": 3000, "tolerance": 1e-10}
    fit = ci.VariationalEM(guide=name, **settings).fit(model, ratings(x) if sparse else x, seed=0, **QUIET)
    model = fit.model
    assert (fit.elbo.diff() > -1e-8).all()
    engine, params = engine_for(model, name), {s: v.clone().requires_grad_() for s, v in fit.globals.items()}
    data = model.prepare(x, dtype=torch.float64)
    bound = engine.e_step(model, params, engine.rows(model, data)).bound
    objective = bound.sum() + model.log_prior(params)
    assert float(objective.detach()) == pytest.approx(float(fit.elbo[-1]), abs=1e-8)
    for site in model.unknown_sites:
        (slope,) = torch.autograd.grad(objective, params[site], retain_graph=True)
        assert slope.abs().max() < 2e-3, site


def test_learned_priors_are_those_of_the_program():
    """p(m, Sigma | rows) of the array-level code is proportional to the program's p(m, Sigma) prod_j p(row_j)."""
    model = PMF(num_components=1, num_users=4, num_items=5, adaptive=True)
    rows = np.random.default_rng(2).standard_normal((5, 2))
    found = prior_given_rows(rows, np.zeros((2, 2)), None, settings_of(model, 1).item)
    values = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        root = rng.standard_normal((2, 2)) + 2 * np.eye(2)
        covariance, mean = root @ root.T, rng.standard_normal(2)
        params = {"item_covariance": torch.tensor(covariance), "item_mean": torch.tensor(mean)}
        params |= {"mean": torch.tensor(0.0), "item": torch.tensor(rows[:, 1:]), "item_bias": torch.tensor(rows[:, 0])}
        program = float(model.log_prior(params, ["item_covariance", "item_mean", "item", "item_bias"]))
        precision = np.linalg.inv(covariance)
        posterior = stats.wishart.logpdf(precision, found.degrees, np.linalg.inv(found.scale))
        posterior -= 3 * np.linalg.slogdet(covariance)[1]  # |d precision / d covariance| = |covariance|^-(d + 1)
        posterior += stats.multivariate_normal.logpdf(mean, found.coefficient[0], covariance / found.strength)
        values.append(program - posterior)
    assert np.allclose(values, values[0], rtol=1e-9)


@pytest.mark.parametrize("name", ["vb", "gibbs"])
def test_fits_with_learned_priors_keep_their_promises(adaptive, name, tmp_path):
    fit = adaptive[name]
    shapes = {**fit.model.shapes, "user": (32, 2), "user_bias": (32,), "user_profile": (32, 3)}
    means = {"user_profile": fit.posterior.mean, **fit.params}
    assert {site: tuple(value.shape) for site, value in means.items()} == shapes
    assert (name == "gibbs" or (fit.elbo.diff() > -1e-6).all()) and fit.draws is not None
    assert torch.linalg.eigvalsh(fit.params["user_covariance"]).min() > 0
    again = ci.fit(fit.model, fit.data, method=name, seed=1, **QUIET)
    assert all(torch.equal(value, again.params[site]) for site, value in fit.params.items())
    loaded = ci.Fit.load(fit.save(tmp_path / "fit"))
    pairs = fit.data.user, fit.data.item
    assert torch.equal(loaded.predict(pairs), fit.predict(pairs)) and loaded.data.num_ratings == fit.data.num_ratings
    posterior = fit.to_arviz(num_copies=0).posterior
    assert posterior["item"].dims == ("chain", "draw", "item_id", "component")
    assert posterior["user_profile"].dims == ("chain", "draw", "user_id", "coordinate")
    turned = fit.transform(fit.data.rows(slice(0, 4)))
    assert turned.shape == (4, 3) and torch.isfinite(turned).all()


def test_the_variational_bound_is_below_what_gibbs_scores(adaptive):
    """Mean log p(x | params) over draws of the posterior is above the bound on log p(x), which pays for the prior."""
    fit, model = adaptive["gibbs"], adaptive["gibbs"].model
    draws = [{site: value[1, s] for site, value in fit.draws.items()} for s in range(0, 100, 10)]
    scores = [float(ci.Exact().local_posterior(model, one, fit.data).bound.sum()) for one in draws]
    assert float(adaptive["vb"].elbo[-1]) < np.mean(scores)


def test_chains_have_the_log_joint_of_the_program(adaptive):
    """In precisions where the program has covariances and sigma: p(L) = p(Sigma) |L|^-(d + 1), p(tau) = p(sigma)
    sigma^3 / 2; the mean is held, and its prior a constant. R-hat is of what rotations do not change."""
    fit, model = adaptive["gibbs"], adaptive["gibbs"].model
    differences = []
    for place in ((0, 3), (0, 40), (1, 99)):
        at = {name: value[place] for name, value in fit.draws.items()}
        loading, offset = model.coefficients(at)
        eta = (at["user_profile"][fit.data.user] * loading[fit.data.item]).sum(-1) + offset[fit.data.item]
        program = model.entry(at, eta).log_prob(fit.data.value).sum() + model.log_prior(at)
        program = program + model.prior("user_profile", like=eta, values=at).log_prob(at["user_profile"]).sum()
        program = program + 4 * (torch.logdet(at["user_covariance"]) + torch.logdet(at["item_covariance"]))
        program = program + 3 * at["scale"].log()
        differences.append(float(fit.sample_stats["lp"][place] - program))
    assert np.allclose(differences, differences[0], atol=1e-6)
    assert fit.status.startswith("2 chains of 100 draws, 2 sweeps apart, after 100 of warm-up; worst R-hat")
    r_hats = [float(r_hat(fit.sample_stats[name].numpy())) for name in ("scale", "mean_prediction")]
    assert fit.details["r_hat"] >= max(r_hats) - 1e-4 and 1 <= fit.details["ess"] <= 400
    assert torch.allclose(fit.sample_stats["scale"], fit.draws["scale"])
    alone = ci.fit(fit.model, fit.data, method="gibbs", chains=1, num_samples=3, warmup=0, seed=1, **QUIET)
    assert alone.status.startswith("one chain of 3 draws") and "no R-hat" in alone.status


def test_plain_collapsed_gibbs_samples_ratings_under_the_prior_that_is_stated(adaptive):
    model, data = adaptive["gibbs"].model, adaptive["gibbs"].data
    default = PMF(num_components=2, num_users=32, num_items=6, adaptive=True)
    fit = ci.CollapsedGibbs(num_samples=5, warmup=2, chains=1).fit(default, data, **QUIET)
    assert torch.isfinite(fit.predict((data.user, data.item))).all()
    stated = default.on_scale_of(fit.data).priors
    for site in ("user_covariance", "item_covariance"):
        scale = stated[site].scale.double()
        assert torch.allclose(fit.model.priors[site].scale.double(), scale)
        assert torch.allclose(model.priors[site].scale.double(), scale)
    chosen = default.with_priors(user_covariance=InverseWishart(4.0, 2.0 * torch.eye(3)))
    kept = ci.CollapsedGibbs(num_samples=5, warmup=2, chains=1).fit(chosen, data, **QUIET).model
    assert float(kept.priors["user_covariance"].scale[0, 0]) == 2.0


def test_exchanges_leave_predictions_and_the_posterior_alone():
    """Predictions to rounding; and the log joint changes by what the draws' own densities say (detailed balance is in
    the moments of ``gibbs_test``)."""
    rng = np.random.default_rng(0)
    ratings_ = Incidence.of(rng.integers(0, 30, 300), rng.integers(0, 12, 300), rng.normal(size=300), 30, 12)
    at = variational(ratings_, 2, sweeps=5)
    chain, generator = sampler.Chain.of(at), np.random.default_rng(1)
    pool = sampler.Pool(1)
    sampler.sweep(chain, pool, generator)
    user, item = chain.user.mean.copy(), chain.item.mean.copy()
    sampler.exchange(chain, generator)

    def predictions(one, two):
        return one[:, :1] + two[:, 0] + one[:, 1:] @ two[:, 1:].T

    assert not np.allclose(item[:, 1:], chain.item.mean[:, 1:])
    assert np.allclose(predictions(user, item), predictions(chain.user.mean, chain.item.mean))


def joint_prediction(model, params, x, user, item):
    """Mean and variance of E[r | profile] by conditioning the dense Gaussian of a row."""
    mean, covariance = reference.posterior(arrays(params), x[None], ~np.isnan(x[None].numpy()))
    a = np.concatenate([[1.0], params["item"][item].numpy()])
    centre = float(params["mean"] + params["item_bias"][item])
    return centre + a @ mean[0], a @ covariance[0] @ a


def test_predictions_of_known_and_new_users_are_the_conditional_gaussians(problem):
    model, x, _ = problem
    fit = ci.EM(max_iterations=20).fit(replace(model, centre=0.0, unit=1.0), ratings(x), **QUIET)
    found = fit.predict(([0, 5, 31], [1, 2, 5]), uncertainty=True)
    for place, (user, item) in enumerate([(0, 1), (5, 2), (31, 5)]):
        mean, variance = joint_prediction(model, fit.globals, x[user], user, item)
        assert np.isclose(found.mean[place], mean) and np.isclose(found.sd[place] ** 2, variance)
        noise = float(fit.params["scale"]) ** 2
        assert np.isclose(found.spread[place] ** 2, variance + noise)
    low, high = found.interval(0.9)
    assert torch.allclose((high - low) / found.spread, torch.tensor(2 * stats.norm.ppf(0.95)))
    new = torch.full((1, 6), torch.nan, dtype=torch.float64)
    new[0, [0, 3]] = torch.tensor([5.0, 1.0], dtype=torch.float64)
    mean, variance = joint_prediction(model, fit.globals, new[0], 0, 4)
    got = fit.predict(([0], [4]), ratings=ratings(new), uncertainty=True)
    assert np.isclose(got.mean, mean) and np.isclose(got.sd**2, variance)
    unknown = fit.predict(([99], [4]), new="prior", uncertainty=True)
    a = np.concatenate([[1.0], fit.params["item"][4].numpy()])
    before = a @ reference.prior_covariance(3) @ a
    assert np.isclose(unknown.mean, fit.params["mean"] + fit.params["item_bias"][4]) and np.isclose(
        unknown.sd**2, before
    )


def test_new_items_have_their_posterior_given_their_ratings(problem):
    """One user with a point profile: a regression of one rating on (1, u)."""
    model, x, _ = problem
    model = replace(model, centre=0.0, unit=1.0).with_priors(scale=0.5)
    fit = ci.VariationalEM(guide="map").fit(model, ratings(x), **QUIET)
    profile, mean = fit.params["user_profile"][3], fit.params["mean"]
    d = np.concatenate([[1.0], profile[1:].numpy()])
    prior = np.diag([0.25, 0.01, 0.01])
    gain = prior @ d / (d @ prior @ d + 0.25)
    item = gain * (4.5 - float(mean + profile[0]))
    found = fit.predict(([3], [0]), item_ratings=ratings([3], [0], [4.5], num_users=32, num_items=1), uncertainty=True)
    assert np.isclose(found.mean, float(mean + profile[0]) + d @ item)
    assert np.isclose(found.sd**2, d @ (prior - np.outer(gain, d @ prior)) @ d)
    beyond = fit.predict(([3], [77]), new="prior", uncertainty=True)
    assert np.isclose(beyond.mean, float(mean + profile[0])) and np.isclose(beyond.sd**2, d @ prior @ d)


def test_predictions_from_draws_are_averages_over_them(adaptive):
    fit = adaptive["gibbs"]
    got = fit.predict(([2], [4]), uncertainty=True)
    draws = {site: value.flatten(0, 1) for site, value in fit.draws.items()}
    eta = draws["mean"] + draws["item_bias"][:, 4] + draws["user_profile"][:, 2, 0]
    eta = eta + (draws["user_profile"][:, 2, 1:] * draws["item"][:, 4]).sum(-1)
    assert torch.isclose(got.mean[0], eta.mean()) and torch.isclose(got.sd[0], eta.std(correction=0), rtol=1e-6)
    assert torch.isclose(got.spread[0] ** 2, eta.var(correction=0) + draws["scale"].square().mean(), rtol=1e-6)


def test_labels_are_those_of_the_ratings(problem):
    _, x, _ = problem
    data = ratings(x)
    who, what = [f"u{n}" for n in range(32)], [f"i{n}" for n in range(6)]
    named = replace(data, coords={"row": who, "feature": what})
    model = PMF(num_components=1, num_users=32, num_items=6, adaptive=False)
    fits = [ci.EM(max_iterations=5).fit(model, one, **QUIET) for one in (data, named)]
    assert torch.equal(fits[0].predict(([3, 7], [1, 4])), fits[1].predict((["u3", "u7"], ["i1", "i4"])))
    new = ratings(["zoe", "zoe"], ["i4", "i0"], [5.0, 1.0])
    numbers = ratings([0, 0], [4, 0], [5.0, 1.0], num_users=1, num_items=6)
    one, other = fits[1].predict((["zoe"], ["i2"]), ratings=new), fits[0].predict(([0], [2]), ratings=numbers)
    assert torch.isclose(one, other)
    with pytest.raises(DataError, match="1 unknown items .*'nothing'"):
        fits[1].predict((["zoe"], ["i2"]), ratings=ratings(["zoe"], ["nothing"], [5.0]))
    with pytest.raises(DataError, match="2 users and 1 items"):
        fits[0].predict(([0, 1], [1]))
    with pytest.raises(DataError, match="1 unknown users .*'u3'.*whole numbers from 0 to 31"):
        fits[0].predict((["u3"], [1]))


def test_covariates_and_varying_noise_are_learned():
    """Users whose tastes follow a covariate, on items, with every second item noisier."""
    rng = np.random.default_rng(0)
    covariate, item = rng.standard_normal((200, 1)), rng.standard_normal(12)
    eta = 3 + 0.8 * covariate * item + 0.3 * rng.standard_normal((200, 1))
    x = eta + np.where(np.arange(12) % 2, 1.0, 0.25) * rng.standard_normal((200, 12))
    x[rng.random(x.shape) < 0.6] = np.nan
    model = PMF(num_components=1, num_users=200, num_items=12, adaptive=True, varying_noise=5.0, num_user_covariates=1)
    fit = ci.fit(model, ratings(x), user_covariates=covariate, **QUIET)
    assert fit.method_name == "VariationalBayes"
    quiet, noisy = (fit.params["item_precision"][n::2] for n in (0, 1))
    assert quiet.min() > 2 * noisy.max()
    slope = np.outer(covariate, fit.params["user_weight"][0, 1:].numpy()) @ fit.params["item"].T.numpy()
    assert np.corrcoef(slope.ravel(), (covariate * item).ravel())[0, 1] > 0.98


def test_profiles_at_given_globals_are_the_conditional_gaussians(problem):
    """With covariates of both sides: rows of a dense regression. And without: those of the exact engine."""
    generator = torch.Generator().manual_seed(0)
    given = {"user_covariates": torch.randn(32, 2, generator=generator).double()}
    given["item_covariates"] = torch.randn(6, 1, generator=generator).double()
    alike = PMF(num_components=2, num_users=32, num_items=6, varying_noise=math.inf)
    model = replace(alike, num_user_covariates=2, num_item_covariates=1)
    data = model.prepare(ratings(problem[1]), **given)
    fit = ci.fit(model, data, sweeps=3, **QUIET)
    params = fit.globals
    found = RatingsVB().local_posterior(model, params, data).posterior
    item = torch.cat([params["item_bias"][:, None], params["item"]], 1)
    item = item + given["item_covariates"] @ params["item_weight"]
    moved, x = given["user_covariates"] @ params["user_weight"], problem[1]
    for n in (0, 7, 31):
        seen = ~torch.isnan(x[n])
        a = torch.cat([torch.ones(int(seen.sum()), 1), item[seen, 1:]], 1)
        rest = x[n, seen] - params["mean"] - item[seen, 0] - a @ moved[n]
        joint = a @ params["user_covariance"] @ a.T + params["scale"] ** 2 * torch.eye(len(a))
        gain = params["user_covariance"] @ a.T @ torch.linalg.inv(joint)
        mean = params["user_mean"] + gain @ (rest - a @ params["user_mean"])
        assert torch.allclose(found.mean[n], mean)
        assert torch.allclose(found.covariance[n], params["user_covariance"] - gain @ a @ params["user_covariance"])
    pair = [0, 7, 31], [1, 1, 4]
    again = replace(fit, draws=None).predict(pair, ratings=data)  # users given with their covariates, as new ones
    profile = (found.mean + moved)[pair[0]]
    expected = (
        params["mean"] + profile[:, 0] + (item[pair[1]] * torch.cat([torch.ones(3, 1), profile[:, 1:]], 1)).sum(1)
    )
    assert torch.allclose(again, expected)
    data = alike.prepare(ratings(problem[1]))
    both = [method.local_posterior(alike, params, data).posterior.mean for method in (RatingsVB(), ci.Exact())]
    assert torch.allclose(*both)


def test_profiles_where_noise_varies_are_averages_over_gains(problem):
    """Moments and evidence by adaptive quadrature over a_n of those of the dense Gaussian given it."""
    model = PMF(num_components=2, num_users=32, num_items=6, varying_noise=3.0)
    data, x = model.prepare(ratings(problem[1])), problem[1]
    params = ci.fit(model, data, sweeps=3, **QUIET).globals
    found = RatingsVB().local_posterior(model, params, data)
    for n in range(3):
        seen = ~torch.isnan(x[n])
        a = torch.cat([torch.ones(int(seen.sum()), 1), params["item"][seen]], 1).numpy()
        rest = (x[n, seen] - params["mean"] - params["item_bias"][seen]).numpy()
        noise = (params["scale"] ** 2 / params["item_precision"][seen]).numpy()
        prior, mean = params["user_covariance"].numpy(), params["user_mean"].numpy()

        def given(gain, a=a, rest=rest, noise=noise, prior=prior, mean=mean):
            joint = a @ prior @ a.T + np.diag(noise / gain)
            pull = prior @ a.T @ np.linalg.inv(joint)
            likelihood = stats.multivariate_normal(a @ mean, joint).pdf(rest) * stats.gamma(3.0, scale=1 / 3).pdf(gain)
            own = mean + pull @ (rest - a @ mean)
            return likelihood * np.concatenate([[1.0], own, (np.outer(own, own) + prior - pull @ a @ prior).ravel()])

        total = integrate.quad_vec(given, 0, 30, epsrel=1e-9)[0]
        own, square = total[1:4] / total[0], total[4:].reshape(3, 3) / total[0]
        assert np.allclose(found.posterior.mean[n], own, rtol=1e-5)
        assert np.allclose(found.posterior.covariance[n], square - np.outer(own, own), rtol=1e-4)
        assert np.isclose(found.bound[n], np.log(total[0]), rtol=1e-6)


def test_profiles_at_globals_drawn_from_the_prior_are_calibrated():
    model = PMF(num_components=1, num_users=20, num_items=5)
    settings = {"of": "locals", "num_simulations": 8, "num_draws": 99, "progress": False}
    found = simulation_based_calibration(model, "vb", **settings)
    assert found.passed and (found.table["ranks"] == 160).all()


def test_what_methods_do_not_take_is_said():
    model = PMF(num_components=1, num_users=4, num_items=3, adaptive=True)
    with pytest.raises(PriorError, match="InverseRootGamma prior of 'scale'"):
        ci.fit(model.with_priors(scale=dist.LogNormal(0.0, 1.0)), np.ones((4, 3)), method="vb", **QUIET)
    with pytest.raises(PriorError, match="learned priors of users and items have no EM steps"):
        ci.EM().fit(replace(model, varying_noise=math.inf), np.ones((4, 3)), **QUIET)
    with pytest.raises(PriorError, match="learned priors of users and items have no EM steps"):
        ci.EM().fit(model, np.ones((4, 3)), **QUIET)
    plain = PMF(num_components=1, num_users=4, num_items=3, adaptive=False)
    for given, name, setting in ((plain, "vb", "adaptive=True$"), (model, "map", "biases=False or adaptive=False$")):
        with pytest.raises(
            MethodError, match=f"unknown method of PMF '{name}'; valid: .*; PMF has '{name}' with {setting}"
        ):
            ci.fit(given, np.ones((4, 3)), method=name, **QUIET)
    with pytest.raises(MethodError, match=r"varying_noise is a setting of the model PMF, .* PMF\(varying_noise=...\)"):
        ci.fit(model, np.ones((4, 3)), varying_noise=math.inf, **QUIET)
    with pytest.raises(MethodError, match="unknown setting of VariationalBayes 'speed'"):
        ci.fit(model, np.ones((4, 3)), speed=2, **QUIET)


def test_generic_methods_start_under_learned_priors():
    x = np.random.default_rng(0).normal(size=(6, 4))
    model = PMF(num_components=1, num_users=6, num_items=4)
    assert model.adaptive and not PMF(num_components=1, num_users=6, num_items=4, biases=False).adaptive
    fit = ci.SVI(guide="mean_field", steps=3, restarts=1).fit(model, ratings(x), **QUIET)
    assert {*model.global_sites} <= {*fit.params}


def test_ctrl_c_keeps_the_best_state(problem, monkeypatch):
    model, data = PMF(num_components=1, num_users=32, num_items=6), ratings(problem[1])
    whole, calls = variational_module.sweep, []

    def sweep(at, pool):
        calls.append(at)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return whole(at, pool)

    monkeypatch.setattr(variational_module, "sweep", sweep)
    fit = ci.fit(model, data, restarts=2, **QUIET)
    assert fit.interrupted and len(fit.elbo) == 3
    assert torch.isfinite(fit.predict((data.user, data.item))).all()
    calls.clear()
    fit = ci.CollapsedGibbs(chains=2).fit(model, data, **QUIET)
    assert fit.interrupted and fit.details["chains"] == 1 and len(fit.draws["item"][0]) == 1
    assert torch.isfinite(fit.predict((data.user, data.item))).all()


def test_ctrl_c_before_anything_is_found_is_raised_and_later_keeps_the_chains_begun(problem, monkeypatch):
    model, data = PMF(num_components=1, num_users=32, num_items=6), ratings(problem[1])
    whole, calls = variational_module.sweep, []

    def sweep(at, pool):
        calls.append(at)
        if len(calls) == stop:
            raise KeyboardInterrupt
        return whole(at, pool)

    monkeypatch.setattr(variational_module, "sweep", sweep)
    stop = 1
    with pytest.raises(KeyboardInterrupt):
        ci.CollapsedGibbs(chains=2).fit(model, data, **QUIET)
    calls.clear()
    stop = 11  # the first sweep of the second chain's start
    fit = ci.CollapsedGibbs(chains=2).fit(model, data, **QUIET)
    assert fit.interrupted and "interrupted after 1 sweeps" in fit.status
    assert torch.isfinite(fit.predict((data.user, data.item))).all()


def test_restarts_predict_as_a_mixture_without_monte_carlo_error(problem):
    """Draws come in fours whose mean prediction is that of the posterior means; of several starts their average."""
    model, data = PMF(num_components=1, num_users=32, num_items=6), ratings(problem[1])
    fit = ci.fit(model, data, restarts=2, draws=8, sweeps=4, **QUIET)
    draws = {site: value[0] for site, value in fit.draws.items()}
    eta = draws["mean"][:, None, None] + draws["user_profile"][:, :, :1] + draws["item_bias"][:, None]
    eta = eta + draws["user_profile"][:, :, 1:] @ draws["item"].mT
    best, rest = eta[:4].mean(0), eta[4:].mean(0)
    params = fit.params
    exact = params["mean"] + params["user_profile"][:, :1] + params["item_bias"]
    exact = exact + params["user_profile"][:, 1:] @ params["item"].T
    assert torch.allclose(best, exact) and not torch.allclose(rest, exact)
    found = fit.predict((data.user, data.item))
    assert torch.allclose(found, 0.5 * (best + rest)[data.user, data.item])
    assert len(fit.details["bounds"]) == 2 and fit.details["bounds"][0] == float(fit.elbo[-1])
