"""Programs with Gaussian latents against NumPy: marginals, Kalman recursions, slopes of the evidence, listed models."""

from dataclasses import replace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.stats import multivariate_normal
from torch.distributions import biject_to, constraints

from custom_inference import EM, SVI, Fit, fit, methods_for
from custom_inference.compiled.gaussian.binding import bind_gaussian
from custom_inference.compiled.gaussian.engine import CompiledGaussian
from custom_inference.compiled.gaussian.steps import gaussian_steps_of
from custom_inference.compiled.reading import NotCompiled
from custom_inference.compiled.structure import flatten
from custom_inference.em.loop import run_em
from ppl_models import Data, GaussianPCA, RowBlocks, Site
from ppl_models.distributions import Flat
from tests.programs._own import ROW, observed, own_program
from tests.programs.gaussians import Factors, KalmanChain, RandomSlopes
from tests.programs.zoo import case_of

REAL, POSITIVE = constraints.real, constraints.positive
ENGINE = CompiledGaussian()
EVERY = pytest.mark.parametrize("name", ["kalman_chain", "random_slopes", "gaussian_factors"])


@pytest.fixture(autouse=True)
def doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def bound(name, missing=None):
    case = case_of(name, missing=missing)
    return case, bind_gaussian(case.model, case.data)


def marginal_of(name, params, data, row):
    """The mean and the covariance of x and the latents of a row together, latents last."""
    p = {site: value.detach().numpy() for site, value in params.items()}
    if name == "gaussian_factors":
        slopes, mean, prior, shift = p["loading"].T, p["mean"], np.eye(2), np.zeros(2)
        noise = p["scale"] ** 2
    elif name == "random_slopes":
        t = data.others["t"][row].numpy()
        slopes, mean = np.stack([np.ones_like(t), t], 1), p["base"] + 0 * t
        prior, shift = np.diag([p["base_spread"], p["growth_spread"]]) ** 2, np.array([0, p["growth"]])
        noise = p["noise"] ** 2 + 0 * t
    else:
        steps = data.x.shape[1]
        moves = np.linalg.inv(np.eye(steps) - np.diag(np.full(steps - 1, p["keep"]), -1))
        own = np.r_[1.0, np.full(steps - 1, p["move"]) ** 2]
        slopes, mean, prior = np.eye(steps), np.zeros(steps), moves @ np.diag(own) @ moves.T
        shift, noise = moves @ np.r_[p["start"], np.zeros(steps - 1)], np.full(steps, p["noise"] ** 2)
    top = np.hstack([slopes @ prior @ slopes.T + np.diag(noise), slopes @ prior])
    return np.r_[mean + slopes @ shift, shift], np.vstack([top, np.hstack([prior @ slopes.T, prior])])


@EVERY
@pytest.mark.parametrize("missing", [False, True])
def test_evidence_and_posterior_are_those_of_the_joint_normal(name, missing):
    case, rows = bound(name, missing)
    params = rows.structure.probe.draw_globals()
    flat = flatten(rows, params)
    evidence, posterior = rows.log_evidence(flat), rows.posterior(flat)
    for n in range(8):
        mean, covariance = marginal_of(name, params, case.data, n)
        width = case.data.x.shape[1]
        mask = np.ones(width, bool) if case.data.mask is None else case.data.mask[n].numpy()
        seen, latent = np.flatnonzero(mask), np.arange(width, len(mean))
        x, own = case.data.x[n].numpy()[seen], covariance[np.ix_(seen, seen)]
        want = multivariate_normal(mean[seen], own).logpdf(x) if len(seen) else 0.0
        gain = covariance[np.ix_(latent, seen)] @ np.linalg.inv(own) if len(seen) else np.zeros((len(latent), 0))
        left = covariance[np.ix_(latent, latent)] - gain @ covariance[np.ix_(seen, latent)]
        assert float(evidence[n]) == pytest.approx(float(want), abs=1e-9)
        np.testing.assert_allclose(posterior.mean[n], mean[latent] + gain @ (x - mean[seen]), atol=1e-9)
        np.testing.assert_allclose(posterior.covariance[n], left, atol=1e-9)


@EVERY
def test_grids_give_the_same(name):
    case = case_of(name).few(4)
    rows = bind_gaussian(case.model, case.data)
    found = rows.log_evidence(flatten(rows, case.globals)).numpy()
    params = {site: value.numpy() for site, value in case.globals.items()}
    np.testing.assert_allclose(found, case.reference.evidence(params, case.table), atol=1e-6)


def kalman(x, start, keep, move, noise):
    """log p of one series, and the smoothed means and variances of its levels."""
    mean, variance, total, filtered = start, 1.0, 0.0, []
    for t, value in enumerate(x):
        if t:
            mean, variance = keep * mean, keep**2 * variance + move**2
        before = mean, variance
        if np.isfinite(value):
            spread = variance + noise**2
            total += -0.5 * ((value - mean) ** 2 / spread + np.log(2 * np.pi * spread))
            mean, variance = mean + variance / spread * (value - mean), variance * noise**2 / spread
        filtered.append((mean, variance, *before))
    smoothed = [filtered[-1][:2]]
    for (mean, variance, *_), (_, _, ahead, spread) in zip(filtered[-2::-1], filtered[:0:-1], strict=True):
        gain = variance * keep / spread
        after = smoothed[-1]
        smoothed.append((mean + gain * (after[0] - ahead), variance + gain**2 * (after[1] - spread)))
    return total, np.array(smoothed[::-1])


def test_a_chain_of_forty_steps_is_a_kalman_smoother():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 40)).cumsum(1)
    x[rng.random(x.shape) < 0.2] = np.nan
    model = KalmanChain(num_steps=40)
    values = {"start": 0.5, "keep": 0.95, "move": 0.8, "noise": 0.6}
    known = model.with_priors(**{site: torch.tensor(value) for site, value in values.items()})
    rows = bind_gaussian(known, known.prepare(x, dtype=torch.float64))
    flat = flatten(rows, dict(known.known))
    evidence, posterior = rows.log_evidence(flat), rows.posterior(flat)
    for n, row in enumerate(x):
        total, smoothed = kalman(row, **values)
        assert float(evidence[n]) == pytest.approx(total, abs=1e-8)
        np.testing.assert_allclose(posterior.mean[n], smoothed[:, 0], atol=1e-8)
        np.testing.assert_allclose(posterior.variance[n], smoothed[:, 1], atol=1e-8)


@EVERY
def test_expected_log_joint_has_the_slope_of_the_evidence(name):
    """Fisher's identity, and so the moments of every block."""
    _, rows = bound(name, True)
    flat = flatten(rows, rows.structure.probe.draw_globals())
    moments, _ = rows.expect(flat)
    at = flat.clone().requires_grad_()
    value = sum(block.expect(at, own, None) for block, own in zip(rows.blocks, moments, strict=True))
    (expected,) = torch.autograd.grad(rows.log_evidence(at).sum(), at)
    (found,) = torch.autograd.grad(value, at)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


def slopes_at(model, rows, state):
    """The gradient of the exact log posterior on unconstrained scales."""
    maps = {site: biject_to(model.prior(site).support) for site in state}
    free = {site: maps[site].inv(value.double()).requires_grad_() for site, value in state.items()}
    values = {site: maps[site](value) for site, value in free.items()}
    total = rows.log_evidence(flatten(rows, values)).sum()
    total = total + sum(model.prior(site).log_prob(values[site]).sum() for site in values)
    return torch.cat([one.reshape(-1) for one in torch.autograd.grad(total, list(free.values()))])


@EVERY
def test_em_ends_where_the_exact_log_posterior_has_no_slope(name):
    case, rows = bound(name)
    state = ENGINE.propose(case.model, rows, torch.Generator().manual_seed(0), 0)
    run = run_em(ENGINE, case.model, rows, state, max_iterations=500, tolerance=1e-11, accelerate="squarem")
    assert run.fell <= 1e-9
    assert (np.diff(run.trace) > -1e-8).all()
    slope = slopes_at(case.model, rows, run.state)
    assert float(slope.abs().max()) < 1e-3


def factors_data(n, d, k, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, k)) @ rng.normal(size=(k, d)) + 0.5 * rng.normal(size=(n, d)) + rng.normal(size=d)


@pytest.mark.parametrize("seed", range(3))
def test_own_factors_reach_the_listed_maximum(seed):
    x, size = factors_data(120, 8, 3, seed), {"num_components": 3, "num_features": 8}
    priors = {"weight": dist.Normal(0.0, 1.0), "bias": dist.Normal(0.0, 10.0), "scale": dist.LogNormal(0.0, 1.0)}
    own = fit(Factors(**size, shared=True), x, seed=seed, progress=False)
    listed = fit(GaussianPCA(**size).with_priors(**priors), x, seed=seed, progress=False)
    assert own.method.name == "EM"
    assert float(own.elbo[-1]) > float(listed.elbo[-1]) - 1e-3 * len(x)
    want = listed.log_likelihood(x)
    torch.testing.assert_close(own.log_likelihood(x), want, atol=0.05, rtol=0)


def test_a_prior_of_any_width_finds_the_factors():
    """Scales begin at the middle of their priors, and come to the data's before slopes are drawn."""
    x, model = factors_data(120, 8, 3), Factors(num_components=3, num_features=8, shared=True)
    likelihoods = [
        float(fit(model.with_priors(scale=dist.Uniform(0.0, high)), x, progress=False).log_likelihood(x).sum())
        for high in (100.0, 1e8)
    ]
    assert likelihoods[1] > likelihoods[0] - 0.1


def test_units_and_the_order_of_columns_do_not_matter():
    x, order = factors_data(100, 6, 2), np.array([3, 1, 5, 0, 2, 4])
    flat = {"loading": Flat(dist.Normal(0.0, 1.0)), "mean": Flat(dist.Normal(0.0, 1.0))}
    model = Factors(num_components=2, num_features=6).with_priors(**flat, scale=Flat(dist.LogNormal(0.0, 1.0)))
    units = np.array([1e3, 1.0, 1e-3, 1.0, 10.0, 1.0])
    found = fit(model, x, progress=False)
    other = fit(model, 1e3 * (x * units)[:, order] + 5.0, progress=False)
    shift = np.log(1e3 * units).sum()
    assert float(other.log_likelihood().mean()) == pytest.approx(float(found.log_likelihood().mean()) - shift, abs=2e-4)


@pytest.mark.parametrize("factor", [1.0, 1e3])
def test_a_random_intercept_is_found_in_any_units(factor):
    sites = {
        "base": Site("global", (), support=REAL), "spread": Site("global", (), support=POSITIVE),
        "noise": Site("global", (), support=POSITIVE), "b": Site("latent", (), ROW, REAL), "x": observed(REAL, 6),
    }  # fmt: skip
    priors = {"base": Flat(dist.Normal(0.0, 1.0))} | dict.fromkeys(("spread", "noise"), Flat(dist.LogNormal(0.0, 1.0)))

    def program(plate, base, spread, noise):
        b = pyro.sample("b", dist.Normal(base, spread)).unsqueeze(-1)
        return plate.observe("x", dist.Normal(b.expand(*b.shape[:-1], 6), noise))

    rng = np.random.default_rng(3)
    x = factor * (20 + 1.5 * rng.normal(size=(80, 1)) + 0.7 * rng.normal(size=(80, 6)))
    found = fit(own_program(sites, program, priors, columns=6), x, progress=False)
    within = x.var(1, ddof=1).mean()
    between = x.mean(1).var() - within / 6  # the maximum of a balanced design
    assert float(found.params["base"]) == pytest.approx(x.mean(), rel=1e-4)
    assert float(found.params["noise"]) == pytest.approx(within**0.5, rel=2e-3)
    assert float(found.params["spread"]) == pytest.approx(between**0.5, rel=5e-3)


def test_weights_are_repeated_rows():
    x = factors_data(40, 4, 1)
    weights = np.random.default_rng(0).integers(1, 4, 40)
    model = Factors(num_components=1, num_features=4)
    weighed = fit(model, x, weights=torch.as_tensor(weights, dtype=torch.float64), progress=False)
    repeated = fit(model, np.repeat(x, weights, 0), progress=False)
    for site, value in repeated.params.items():
        assert float((weighed.params[site].abs() - value.abs()).abs().max()) < 0.01


def test_the_default_is_em_and_what_follows_is_in_closed_form():
    x = factors_data(60, 6, 3)
    found = fit(Factors(num_components=3, num_features=6), x, progress=False)
    assert found.method.name == "EM"
    assert found.local.what == "exact"
    assert found.local_posterior(x).what == "closed form"
    p = {site: value.double().numpy() for site, value in found.params.items()}
    normal = multivariate_normal(p["mean"], p["loading"].T @ p["loading"] + np.diag(p["scale"] ** 2))
    np.testing.assert_allclose(found.log_likelihood(x), normal.logpdf(x), atol=1e-8)
    assert "em" in methods_for(found.model)
    other = SVI(guide="delta", optimizer="lbfgs").fit(found.model, x, progress=False)
    assert float(other.elbo[-1]) == pytest.approx(float(found.elbo[-1]), abs=1e-2 * len(x))


def _logistic(plate, weight):
    b = pyro.sample("b", dist.Normal(0.0, 1.0)).unsqueeze(-1)
    return plate.observe("x", dist.Normal(torch.sigmoid(weight * b), 0.3))


def _scaled(plate, weight):
    b = pyro.sample("b", dist.Normal(0.0, 1.0)).unsqueeze(-1)
    return plate.observe("x", dist.Normal(weight, torch.exp(b).expand(*b.shape[:-1], 3)))


def _heavy(plate, weight):
    b = pyro.sample("b", dist.StudentT(4.0, 0.0, 1.0)).unsqueeze(-1)
    return plate.observe("x", dist.Normal(weight * b, 0.3))


@pytest.mark.parametrize(
    "program, reason",
    [
        (_logistic, "mean of 'x' is not affine in the latents"),
        (_scaled, "scale of 'x' depends on latents"),
        (_heavy, "StudentT; expected Normal"),
    ],
)
def test_other_programs_are_refused_with_the_reason(program, reason):
    sites = {
        "weight": Site("global", ("column",), support=REAL), "b": Site("latent", (), ROW, REAL), "x": observed(REAL, 3)
    }  # fmt: skip
    model = own_program(sites, program, {"weight": dist.Normal(0.0, 1.0)}, columns=3)
    data = Data(x=torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    with pytest.raises(NotCompiled, match=reason):
        bind_gaussian(model, data)
    with pytest.raises(NotCompiled, match=reason):
        EM().fit(model, data, progress=False)


def test_products_and_links_of_globals_are_climbed():
    """Loadings that are products of two sites, and a scale that is an exponential, have no closed form."""
    sites = {
        "loading": Site("global", ("column",), support=REAL), "size": Site("global", (), support=POSITIVE),
        "level": Site("global", (), support=REAL), "b": Site("latent", (), ROW, REAL), "x": observed(REAL, 4),
    }  # fmt: skip

    def program(plate, loading, size, level):
        b = pyro.sample("b", dist.Normal(0.0, size)).unsqueeze(-1)
        return plate.observe("x", dist.Normal(loading * size * b, torch.exp(level)))

    priors = {"loading": dist.Normal(0.0, 1.0), "size": dist.LogNormal(0.0, 0.3), "level": dist.Normal(0.0, 1.0)}
    model = own_program(sites, program, priors, columns=4)
    data = model.prepare(factors_data(50, 4, 1) - factors_data(50, 4, 1).mean(0), dtype=torch.float64)
    rows = ENGINE.rows(model, data)
    assert gaussian_steps_of(model, rows).climbing == ("loading", "size", "level")
    state = ENGINE.propose(model, rows, torch.Generator().manual_seed(1), 1)
    run = run_em(ENGINE, model, rows, state, max_iterations=200, tolerance=1e-9, accelerate="squarem")
    assert (np.diff(run.trace) > -1e-7).all()
    assert float(slopes_at(model, rows, run.state).abs().max()) < 0.5


def test_covariates_in_any_units():
    case = case_of("random_slopes")
    rows = bind_gaussian(case.model, case.data)
    assert gaussian_steps_of(case.model, rows).climbing == ()
    scaled = replace(case.data, others={"t": 1e4 * case.data.others["t"]})
    rows = bind_gaussian(RandomSlopes(num_times=4), scaled)
    assert gaussian_steps_of(rows.structure.model, rows).climbing == ()


def test_rows_in_blocks_are_those_in_memory():
    x = factors_data(90, 5, 2)
    model = Factors(num_components=2, num_features=5)
    init = fit(model, x, seed=1, progress=False, max_iterations=2).params
    settings = {"max_iterations": 4, "tolerance": 1e-12, "accelerate": None}
    whole = EM(**settings).fit(model, x, init=init, progress=False)
    parts = EM(**settings).fit(
        model, RowBlocks(read=lambda: [x[:40], x[40:70], x[70:]], num_rows=90), init=init, progress=False
    )
    for site, value in whole.params.items():
        torch.testing.assert_close(parts.params[site], value, rtol=1e-8, atol=1e-8)


def test_known_globals_and_files(tmp_path):
    x = factors_data(20, 3, 1)
    values = {"loading": torch.ones(1, 3), "mean": torch.zeros(3), "scale": torch.ones(3)}
    found = fit(Factors(num_components=1, num_features=3).with_priors(**values), x, progress=False)
    normal = multivariate_normal(np.zeros(3), np.ones((3, 3)) + np.eye(3))
    np.testing.assert_allclose(found.log_likelihood(x), normal.logpdf(x), atol=1e-9)
    loaded = Fit.load(found.save(tmp_path / "fit"), model=Factors)
    np.testing.assert_allclose(loaded.transform(x), x.sum(1, keepdims=True) / 4, atol=1e-9)
