"""Covariates in any units, and from any origin: the same fits, and the program's own density at them."""

import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.special import expit, gammaln, logsumexp
from torch.distributions import constraints

import custom_inference as ci
from ppl_models import Site
from tests.programs._own import ROW, own_program

#: How covariates of usual size and origin are written: what they are multiplied with, and what is added.
UNITS = {"small": (1e-6, 0.0), "large": (1e5, 0.0), "years": (9.0, 2000.0), "kelvins": (12.0, 290.0)}
WIDE = dist.Normal(0.0, 1e9)


def regression(law):
    """Two classes, each with a line of its own for five responses to as many covariates."""

    def rows(plate, weight, base, slope, u=None):
        z = pyro.sample("z", dist.Categorical(weight))
        return plate.observe("x", law(base[z].unsqueeze(-1) + slope[z].unsqueeze(-1) * plate.of(u)))

    line = Site("global", ("class",), support=constraints.real)
    sites = {
        "weight": Site("global", ("class",), support=constraints.simplex), "base": line, "slope": line,
        "u": Site("given", ("column",), ROW), "z": Site("latent", (), ROW, choice="class"),
        "x": Site("observed", ("column",), ROW, constraints.nonnegative_integer),
    }  # fmt: skip
    return own_program(sites, rows, {"base": WIDE, "slope": WIDE, "weight": dist.Dirichlet(torch.ones(2))}, 5, 2)


def occupancy():
    """Sites that are occupied or not, and found so by a chance that a covariate of the visit tells."""

    def rows(plate, present, base, slope, u=None):
        z = pyro.sample("z", dist.Bernoulli(present))
        return plate.observe("x", dist.Bernoulli(z.unsqueeze(-1) * torch.sigmoid(base + slope * plate.of(u))))

    real = Site("global", (), support=constraints.real)
    sites = {
        "present": Site("global", (), support=constraints.unit_interval), "base": real, "slope": real,
        "u": Site("given", ("column",), ROW), "z": Site("latent", (), ROW, constraints.boolean),
        "x": Site("observed", ("column",), ROW, constraints.boolean),
    }  # fmt: skip
    return own_program(sites, rows, {"base": WIDE, "slope": WIDE, "present": dist.Beta(1.0, 1.0)}, 5)


def evidence_of_regression(kind, params, x, u):
    total = params["base"][:, None] + params["slope"][:, None] * u[:, None]
    x = x[:, None]
    each = x * total - (np.exp(total) + gammaln(x + 1) if kind == "poisson" else np.logaddexp(0, total))
    return logsumexp(each.sum(-1) + np.log(params["weight"]), axis=1)


def evidence_of_occupancy(params, x, u):
    p = expit(params["base"] + params["slope"] * u)
    on = np.log(np.where(x == 1, p, 1 - p)).sum(1) + np.log(params["present"])
    return np.logaddexp(on, np.where(x.any(1), -np.inf, np.log1p(-params["present"])))


def problem(kind):
    """A program, responses to covariates of usual size, and the evidence in NumPy."""
    rng = np.random.default_rng(3)
    u, z = rng.standard_normal((400, 5)), rng.random(400) < 0.4
    if kind == "occupancy":
        x = (rng.random((400, 5)) < z[:, None] * expit(0.3 - 0.8 * u)).astype(float)
        return occupancy(), x, u, evidence_of_occupancy
    total = np.where(z, 1.0, -1.0)[:, None] * (1 - u)
    if kind == "poisson":
        model, x = regression(lambda one: dist.Poisson(torch.exp(one))), rng.poisson(np.exp(total)).astype(float)
    else:
        model = regression(lambda one: dist.Bernoulli(logits=one))
        x = (rng.random((400, 5)) < expit(total)).astype(float)
    return model, x, u, lambda params, x, u: evidence_of_regression(kind, params, x, u)


@pytest.mark.filterwarnings("ignore:site 'x'. .* all zero")
@pytest.mark.parametrize("kind", ["poisson", "logistic", "occupancy"])
def test_fits_do_not_depend_on_units(kind):
    model, x, u, evidence = problem(kind)
    usual = ci.fit(model, x, u=u, progress=False)
    for scale, origin in UNITS.values():
        own = scale * u + origin
        fit = ci.fit(model, x, u=own, progress=False)
        assert fit.method_name == "EM"
        expected = evidence({site: value.numpy() for site, value in fit.globals.items()}, x, own)
        assert np.allclose(fit.log_likelihood(), expected, rtol=0, atol=1e-7)
        assert abs(float(fit.log_likelihood().mean() - usual.log_likelihood().mean())) < 1e-4


@pytest.mark.parametrize("given", [1e-12, 1e-6, 1e-3])
def test_a_covariate_near_zero_counts_as_it_is(given):
    model, x, u, evidence = problem("poisson")
    u[7, 2] = given
    fit = ci.fit(model, x, u=u, progress=False)
    params = {site: value.numpy() for site, value in fit.globals.items()}
    assert fit.method_name == "EM" and np.allclose(fit.log_likelihood(), evidence(params, x, u), rtol=0, atol=1e-9)


def test_a_constant_column_of_normals_ends_at_a_least_spread_that_is_told():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.standard_normal(80), np.full(80, 5.0)])

    def rows(plate, level, noise):
        z = pyro.sample("z", dist.Bernoulli(0.5)).unsqueeze(-1)
        return plate.observe("x", dist.Normal(level * (1 + z), noise))

    column = ("column",)
    sites = {
        "level": Site("global", column, support=constraints.real),
        "noise": Site("global", column, support=constraints.positive),
        "z": Site("latent", (), ROW, constraints.boolean),
        "x": Site("observed", column, ROW, constraints.real),
    }
    model = own_program(sites, rows, {"level": WIDE, "noise": dist.HalfNormal(5.0)}, 2)
    with pytest.warns(UserWarning, match=r"'noise' of Own ends at the least that it may be"):
        fit = ci.fit(model, x, progress=False)
    assert bool(torch.isfinite(fit.log_likelihood()).all()) and 1e-7 < float(fit.globals["noise"][1]) < 1e-3
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        ci.fit(model, rng.standard_normal((80, 2)), progress=False)


def test_one_class_is_a_sum_of_one():
    rng = np.random.default_rng(1)
    x, u = rng.poisson(2.0, (60, 5)).astype(float), rng.standard_normal((60, 5))

    def rows(plate, weight, rate, u=None):
        z = pyro.sample("z", dist.Categorical(weight))
        return plate.observe("x", dist.Poisson(rate[z].unsqueeze(-1).expand(-1, 5)))

    positive = Site("global", ("class",), support=constraints.positive)
    sites = {
        "weight": Site("global", ("class",), support=constraints.simplex), "rate": positive,
        "u": Site("given", ("column",), ROW), "z": Site("latent", (), ROW, choice="class"),
        "x": Site("observed", ("column",), ROW, constraints.nonnegative_integer),
    }  # fmt: skip
    model = own_program(sites, rows, {"rate": dist.Gamma(2.0, 1.0), "weight": dist.Dirichlet(torch.ones(1))}, 5, 1)
    fit = ci.fit(model, x, u=u, progress=False)
    assert fit.method_name == "EM"
    assert np.allclose(fit.globals["rate"], (x.sum() + 1) / (x.size + 1), rtol=0, atol=1e-4)
    expected = (x * np.log(float(fit.globals["rate"])) - float(fit.globals["rate"]) - gammaln(x + 1)).sum(1)
    assert np.allclose(fit.log_likelihood(), expected, rtol=0, atol=1e-9)
