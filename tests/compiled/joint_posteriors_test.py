"""Posteriors of several sites together: regressions in any units against exact posteriors, quadrature and Gibbs."""

from dataclasses import replace
from functools import cache

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.special import expit, log_expit, logsumexp
from scipy.stats import norm
from torch.distributions import constraints

import custom_inference as ci
from custom_inference.compiled.bayes.engine import CompiledVB
from custom_inference.core.posteriors import log_density_of
from ppl_models import Data, Site
from tests.compiled._problems import problem
from tests.programs._own import ROW, observed, own_program

ENGINE = CompiledVB()
YEARS = np.linspace(1990, 2020, 40)


@pytest.fixture(autouse=True)
def doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def climb(model, data, start, iterations):
    rows = ENGINE.rows(model, data)
    state = ENGINE.start_from(model, start, rows)
    for _ in range(iterations):
        state = ENGINE.m_step(model, state, ENGINE.e_step(model, state, rows), rows)
    bound = float(ENGINE.objective_at(model, state, ENGINE.e_step(model, state, rows).bound))
    return state.posteriors(model), bound


def joint_of(posteriors, *places):
    """Mean and covariance of entries (site, place) on their unconstrained scales."""
    mean = torch.stack([posteriors[site].location.reshape(-1)[place] for site, place in places])
    root = torch.stack([posteriors[site].root[place] for site, place in places])
    return mean.numpy(), (root @ root.mT).numpy()


def test_a_regression_on_years_has_its_exact_posterior():
    """With all rows in one class and known noise the posterior is a normal, and the bound the evidence."""
    one = problem("predictors", "conjugate", missing=False)
    sure, prior = torch.tensor([1 - 2e-12, 1e-12, 1e-12]), dist.Normal(0.0, 100.0)
    model = one.model.with_priors(weight=sure, base=prior, slope=prior)
    u = torch.as_tensor(YEARS).unsqueeze(-1) + torch.arange(3) / 3
    data = replace(one.data, x=one.data.x + 0.05 * (u - 2000), others={"u": u})
    posteriors, bound = climb(model, data, {"weight": sure, "base": torch.zeros(3), "slope": torch.zeros(3)}, 4)
    x, design = data.x.numpy().reshape(-1), np.stack([np.ones(u.numel()), u.numpy().reshape(-1)], 1)
    covariance = np.linalg.inv(design.T @ design / 0.64 + np.eye(2) / 1e4)
    spread, best = np.sqrt(covariance.diagonal()), covariance @ design.T @ x / 0.64
    mean, own = joint_of(posteriors, ("base", 0), ("slope", 0))
    assert np.abs((mean - best) / spread).max() < 1e-6
    assert np.abs(own / np.outer(spread, spread) - covariance / np.outer(spread, spread)).max() < 1e-6
    assert own[0, 1] / np.sqrt(own[0, 0] * own[1, 1]) < -0.9999
    # By Bayes' rule at the mean.
    evidence = norm.logpdf(x, design @ best, 0.8).sum() + norm.logpdf(best, 0, 100).sum()
    evidence += 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]
    assert bound == pytest.approx(evidence, abs=1e-5)


@cache
def regressions(origin=0.0):
    """Rows of two lines over years less an origin, and their program."""
    rng = np.random.default_rng(1)
    z, u = rng.integers(0, 2, len(YEARS)), YEARS - origin
    x = np.where(z == 1, 3 - 0.1 * (YEARS - 2005), -4 + 0.1 * (YEARS - 2005)) + 0.8 * rng.normal(size=len(YEARS))
    sites = {
        "weight": Site("global", ("class",), support=constraints.simplex),
        "base": Site("global", ("class",), support=constraints.real),
        "slope": Site("global", ("class",), support=constraints.real),
        "noise": Site("global", (), support=constraints.positive),
        "z": Site("latent", (), ROW, choice="class"),
        "u": Site("given", (), ROW, constraints.real),
        "x": observed(constraints.real),
    }

    def rows(plate, u, weight, base, slope, noise):
        z = pyro.sample("z", dist.Categorical(weight))
        return plate.observe("x", dist.Normal(base[z] + slope[z] * plate.of(u), noise))

    priors = {
        "weight": dist.Dirichlet(torch.ones(2)), "base": dist.Normal(0.0, 1e4), "slope": dist.Normal(0.0, 1e2),
        "noise": dist.LogNormal(0.0, 1.0),
    }  # fmt: skip
    model = own_program(sites, rows, priors, 0, 2)
    return model, Data(x=torch.as_tensor(x), others={"u": torch.as_tensor(u)})


def ends_of_lines(draws, origin):
    """Means and standard deviations of both lines where they end, the lower one at first."""
    ends = torch.stack([draws["base"] + draws["slope"] * (year - origin) for year in YEARS[[0, -1]]], -1)
    ends = ends.reshape(-1, 2, 2)
    ends = ends[:, ends.mean(0)[:, 0].argsort()]
    return ends.mean(0).numpy(), ends.std(0).numpy()


def test_lines_over_years_are_those_over_years_around_0_and_those_of_gibbs(recwarn):
    found, means = [], []
    for origin in (0.0, 2005.0):
        model, data = regressions(origin)
        with torch.random.fork_rng():
            fit = ci.fit(model, data, method="vb", progress=False)
        means.append(ends_of_lines({site: fit.params[site].expand(2, -1) for site in ("base", "slope")}, origin)[0])
        found.append(ends_of_lines(ci.posterior_draws(fit, 4000, locals_=False), origin))
        correlation = np.corrcoef(*(ci.posterior_draws(fit, 500, locals_=False)[s][:, 0] for s in ("base", "slope")))
        assert (correlation[0, 1] < -0.9999) == (origin == 0)
    assert not [one for one in recwarn if "too small" in str(one.message)]
    model, data = regressions(2005.0)
    chains = ci.CollapsedGibbs(num_samples=200, warmup=50, chains=2).fit(model, data, progress=False)
    mean, spread = ends_of_lines({s: v.flatten(0, 1) for s, v in chains.draws.items()}, 2005.0)
    assert np.abs(means[0] - means[1]).max() < 1e-2
    assert np.abs(found[0][1] / found[1][1] - 1).max() < 0.1  # of 4,000 draws, whose noise goes by the classes' order
    for own_mean, own_spread in found:
        assert np.abs((own_mean - mean) / spread).max() < 0.35
        assert (own_spread / spread > 0.8).all() and (own_spread / spread < 1.2).all()


def occurrences(origin):
    """Two signs of what is there, one of which depends on the year: z ~ Bernoulli(1/2), logits 2 z - 1 and
    base + slope u + z."""
    rng = np.random.default_rng(2)
    z, u = rng.integers(0, 2, len(YEARS)), YEARS - origin
    x = rng.random((len(YEARS), 2)) < expit(np.stack([2.0 * z - 1, 0.1 * (YEARS - 2005) + z], 1))
    real = Site("global", (), support=constraints.real)
    sites = {
        "base": real, "slope": real, "z": Site("latent", (), ROW, constraints.boolean),
        "u": Site("given", (), ROW, constraints.real), "x": observed(constraints.boolean, 2),
    }  # fmt: skip

    def rows(plate, u, base, slope):
        z = pyro.sample("z", dist.Bernoulli(0.5))
        logits = torch.stack(torch.broadcast_tensors(2 * z - 1, base + slope * plate.of(u) + z), -1)
        return plate.observe("x", dist.Bernoulli(logits=logits))

    model = own_program(sites, rows, {"base": dist.Normal(0.0, 1e4), "slope": dist.Normal(0.0, 1.0)}, 2)
    data = Data(x=torch.as_tensor(x.astype(float)), others={"u": torch.as_tensor(u)})

    def log_joint(base, slope):
        total = base[..., None] + slope[..., None] * u
        signs = 2.0 * x - 1
        each = [log_expit(signs[:, 0] * (2 * z - 1)) + log_expit(signs[:, 1] * (total + z)) for z in (0, 1)]
        prior = norm.logpdf(base, 0, 1e4) + norm.logpdf(slope, 0, 1)
        return prior + (np.logaddexp(*each) - np.log(2)).sum(-1)

    return model, data, log_joint


def test_a_logistic_regression_is_below_the_evidence_and_near_the_posterior():
    """In any units; by quadrature in the basis of the normal that was found, eight standard deviations wide."""
    ends = []
    for origin in (0.0, 2005.0):
        model, data, log_joint = occurrences(origin)
        posteriors, bound = climb(model, data, {"base": torch.zeros(()), "slope": torch.zeros(())}, 40)
        mean, covariance = joint_of(posteriors, ("base", 0), ("slope", 0))
        step = np.linspace(-8, 8, 161)
        nodes = np.stack(np.meshgrid(step, step, indexing="ij"), -1)
        root = torch.stack([posteriors[site].root[0] for site in ("base", "slope")]).numpy()
        at = mean + nodes @ root.T
        density = log_joint(at[..., 0], at[..., 1])
        evidence = logsumexp(density) + 2 * np.log(step[1] - step[0]) + np.log(abs(np.linalg.det(root)))
        assert evidence - 0.3 < bound < evidence
        weight = np.exp(density - logsumexp(density))
        exact = (weight[..., None] * at).sum((0, 1))
        spread = np.sqrt((weight[..., None] * (at - exact) ** 2).sum((0, 1)))
        assert np.abs((mean - exact) / spread).max() < 0.2
        ratio = np.sqrt(covariance.diagonal()) / spread
        assert (ratio > 0.75).all() and (ratio < 1.1).all()
        design = np.stack([np.ones(2), YEARS[[0, -1]] - origin], 1)
        ends.append((design @ mean, np.sqrt(np.einsum("ij,jk,ik->i", design, covariance, design))))
    assert np.abs((ends[0][0] - ends[1][0]) / ends[0][1]).max() < 0.1
    assert np.abs(ends[0][1] / ends[1][1] - 1).max() < 0.15


def test_the_density_of_several_sites_is_their_joint_one():
    model, data, _ = occurrences(0.0)
    posteriors, _ = climb(model, data, {"base": torch.zeros(()), "slope": torch.zeros(())}, 2)
    base, slope = (posteriors[site].sample(seed=4) for site in ("base", "slope"))
    root = torch.stack([posteriors[site].root[0] for site in ("base", "slope")]).numpy()
    mean = joint_of(posteriors, ("base", 0), ("slope", 0))[0]
    unit = np.linalg.solve(root, np.array([float(base), float(slope)]) - mean)
    expected = norm.logpdf(unit).sum() - np.log(abs(np.linalg.det(root)))
    assert log_density_of(posteriors, {"base": base, "slope": slope}) == pytest.approx(expected, abs=1e-6)


def test_draws_of_a_fit_are_joint_and_so_are_those_of_its_file(tmp_path):
    model, data, _ = occurrences(0.0)
    fit = ci.fit(model, data, method="vb", progress=False)
    again = ci.Fit.load(fit.save(tmp_path / "fit"), model=type(model))
    for kept in (fit, again):
        drawn = kept.to_arviz(num_draws=200, num_copies=0).posterior
        base, slope = (drawn[site].values.reshape(-1) for site in ("base", "slope"))
        assert np.corrcoef(base, slope)[0, 1] < -0.999
        assert (base + 2005 * slope).std() < 1
    assert torch.equal(fit.global_posterior["base"].root, again.global_posterior["base"].root)
    assert np.allclose(fit.transform(data.x.numpy(), u=data.others["u"]), again.transform(), atol=1e-6)
