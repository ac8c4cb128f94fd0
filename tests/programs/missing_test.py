"""What is missing of a site that is observed beside x has no influence, and new rows may lack all of it."""

from __future__ import annotations

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from scipy import stats
from scipy.special import logsumexp
from torch.distributions import constraints

import custom_inference as ci
from ppl_models import DataError, ModelError, Site
from tests.programs._own import ROW, observed, own_program

REAL = Site("latent", (), ROW, support=constraints.real)
BIT = Site("latent", (), ROW, support=constraints.boolean)
SHIFT = Site("global", (), support=constraints.real)
#: How a program states y.
WAYS = {
    "plain": lambda rows, law, y: pyro.sample("y", law, obs=rows.of(y)),
    "rows": lambda rows, law, y: rows.observe("y", law),
}
X = np.array([[0.5, 1.0], [2.0, -0.3], [-1.0, 0.2], [0.1, 0.0]])
Y = np.array([1.3, np.nan, -0.8, np.nan])


def response(way, law=lambda z, shift: dist.Normal(z + shift, 0.5), support=constraints.real):
    """x_nj ~ Normal(z_n + shift, 1), and y given z_n."""

    def stated(rows, shift, y=None):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        WAYS[way](rows, law(z, shift), y)
        return rows.observe("x", dist.Normal((z + shift).unsqueeze(-1).expand(*z.shape, 2), 1.0))

    sites = {"shift": SHIFT, "z": REAL, "x": observed(constraints.real, 2), "y": observed(support)}
    return own_program(sites, stated, {"shift": dist.Normal(0.0, 1.0)}, columns=2)


def of_normal(x, y, shift):
    """log p(x_n, y_n) and the posterior mean of z_n."""
    evidence, mean = [], []
    for row, value in zip(x, y, strict=True):
        entries, noise = (row, [1, 1]) if np.isnan(value) else (np.append(row, value), [1, 1, 0.25])
        law = stats.multivariate_normal(np.full(len(entries), shift), 1 + np.diag(noise))
        precision = 1 / np.array(noise)
        evidence.append(law.logpdf(entries))
        mean.append((precision * (entries - shift)).sum() / (1 + precision.sum()))
    return np.array(evidence), np.array(mean)


@pytest.mark.parametrize("way", WAYS)
def test_a_missing_response_has_no_influence(way):
    fit = ci.fit(response(way), X, y=Y, init={"shift": torch.tensor(0.1)}, progress=False)
    shift = float(fit.globals["shift"])
    evidence, mean = of_normal(X, Y, shift)
    assert np.abs(fit.log_likelihood().numpy() - evidence).max() < 1e-6
    assert np.abs(fit.transform()[:, 0].numpy() - mean).max() < 1e-5
    grid = np.linspace(-1, 1, 2001)
    best = grid[np.argmax([of_normal(X, Y, at)[0].sum() + stats.norm.logpdf(at) for at in grid])]
    assert abs(shift - best) < 2e-3


@pytest.mark.parametrize("way", WAYS)
def test_new_rows_may_lack_the_response(way):
    fit = ci.fit(response(way).with_priors(shift=0.3), X, y=Y, progress=False)
    evidence, mean = of_normal(X[:2], np.full(2, np.nan), 0.3)
    assert np.abs(fit.log_likelihood(X[:2]).numpy() - evidence).max() < 1e-6
    assert np.abs(fit.transform(X[:2])[:, 0].numpy() - mean).max() < 1e-5
    known = np.array([0.4, np.nan])
    evidence, mean = of_normal(X[:2], known, 0.3)
    assert np.abs(fit.log_likelihood(X[:2], y=known).numpy() - evidence).max() < 1e-6
    with pytest.raises(DataError, match=r"not among the arguments.*y=\.\.\., one value a row"):
        ci.fit(fit.model, X, progress=False)
    with pytest.raises(DataError, match="1 values are not finite"):
        ci.fit(fit.model, X, y=np.array([1.0, np.inf, 0.0, 1.0]), progress=False)


LAWS = {
    "bit": (
        constraints.boolean,
        lambda z: dist.Bernoulli(0.2 + 0.6 * z),
        lambda y, z: stats.bernoulli.logpmf(y, 0.2 + 0.6 * z),
    ),
    "count": (
        constraints.nonnegative_integer,
        lambda z: dist.Poisson(1 + 3 * z),
        lambda y, z: stats.poisson.logpmf(y, 1 + 3 * z),
    ),
    "positive": (constraints.positive, lambda z: dist.Gamma(2 + z, 1.0), lambda y, z: stats.gamma.logpdf(y, 2 + z)),
    "part": (constraints.unit_interval, lambda z: dist.Beta(2 + z, 1.0), lambda y, z: stats.beta.logpdf(y, 2 + z, 1)),
    "category": (
        constraints.nonnegative_integer,
        lambda z: dist.Categorical(torch.stack([0.5 - 0.3 * z, 0.2 + 0.0 * z, 0.3 + 0.3 * z], -1)),
        lambda y, z: np.log(np.choose(y.astype(int), [0.5 - 0.3 * z, 0.2, 0.3 + 0.3 * z])),
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LAWS)
def test_responses_of_every_support_may_be_missing(name, way):
    support, law, log_prob = LAWS[name]

    def stated(rows, y=None):
        z = pyro.sample("z", dist.Bernoulli(0.3))
        WAYS[way](rows, law(z), y)
        return rows.observe("x", dist.Normal(z, 1.0))

    model = own_program({"z": BIT, "x": observed(constraints.real), "y": observed(support)}, stated)
    x = np.array([0.2, 1.4, -0.6])
    y = np.array([np.nan, 0.5 if name in ("positive", "part") else 1.0, np.nan])
    joint = []
    for z, prior in ((0, 0.7), (1, 0.3)):
        of_y = np.where(np.isnan(y), 0.0, log_prob(np.nan_to_num(y, nan=0.5), z))
        joint.append(np.log(prior) + stats.norm.logpdf(x, z, 1.0) + of_y)
    found = ci.Exact().local_posterior(model, {}, model.prepare(x, y=y))
    evidence = logsumexp(joint, axis=0)
    assert np.abs(found.bound.numpy() - evidence).max() < 1e-6
    assert np.abs(found.posterior.mean[:, 0].numpy() - np.exp(joint[1] - evidence)).max() < 1e-6


def several(statement):
    """Two responses a row, of which any may be missing."""

    def stated(rows, y=None):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        statement(rows, z.unsqueeze(-1).expand(*z.shape, 2), y)
        return rows.observe("x", dist.Normal(z, 1.0))

    both = Site("observed", ("column",), ROW, support=constraints.real)
    return own_program({"z": REAL, "x": observed(constraints.real), "y": both}, stated)


SEVERAL = {
    "event": lambda rows, z, y: pyro.sample("y", dist.Normal(z, 0.5).to_event(1), obs=rows.of(y)),
    "rows": lambda rows, z, y: rows.observe("y", dist.Normal(z, 0.5)),
}


@pytest.mark.parametrize("way", SEVERAL)
def test_any_of_several_responses_may_be_missing(way):
    model, x = several(SEVERAL[way]), np.array([0.3, 1.0, -1.0])
    y = np.array([[0.2, np.nan], [np.nan, np.nan], [-0.5, -1.5]])
    evidence = []
    for value, row in zip(x, y, strict=True):
        seen = row[~np.isnan(row)]
        law = stats.multivariate_normal(np.zeros(1 + len(seen)), 1 + np.diag([1.0] + [0.25] * len(seen)))
        evidence.append(law.logpdf(np.append(value, seen)))
    found = ci.Exact().local_posterior(model, {}, model.prepare(x, y=y)).bound.numpy()
    assert np.abs(found - evidence).max() < 1e-6


def test_a_part_of_a_vector_is_refused():
    def statement(rows, z, y):
        return pyro.sample("y", dist.MultivariateNormal(z, torch.eye(2).to(z)), obs=rows.of(y))

    model, x = several(statement), np.array([0.3, 1.0])
    found = ci.Exact().local_posterior(model, {}, model.prepare(x, y=np.array([[np.nan, np.nan], [0.1, 0.2]])))
    law = stats.multivariate_normal(np.zeros(3), 1 + np.eye(3))
    expected = [stats.norm.logpdf(0.3, 0, np.sqrt(2)), law.logpdf([1.0, 0.1, 0.2])]
    assert np.abs(found.bound.numpy() - expected).max() < 1e-6
    with pytest.raises(DataError, match="'y'.*1 entries of which a part is missing"):
        ci.Exact().local_posterior(model, {}, model.prepare(x, y=np.array([[0.3, np.nan], [0.1, 0.2]])))


def test_a_response_that_is_turned_into_whole_numbers_says_so():
    def stated(rows, y=None):
        z = pyro.sample("z", dist.Bernoulli(0.3))
        pyro.sample("y", dist.Bernoulli(0.2 + 0.6 * z), obs=None if y is None else rows.of(y).long())
        return rows.observe("x", dist.Normal(z, 1.0))

    model = own_program({"z": BIT, "x": observed(constraints.real), "y": observed(constraints.boolean)}, stated)
    with pytest.raises(ModelError, match=r"'y' has missing entries, which its statement turns into whole numbers"):
        ci.Exact().local_posterior(model, {}, model.prepare(np.zeros(2), y=np.array([1.0, np.nan])))


def test_guides_and_samplers_see_it_too():
    """Every method runs the same program: the mean of z is that without the missing responses."""
    model = response("plain").with_priors(shift=0.3)
    _, mean = of_normal(X, Y, 0.3)
    gaussian = ci.SVI(guide="gaussian", steps=200).fit(model, model.prepare(X, y=Y), progress=False)
    assert np.abs(gaussian.transform()[:, 0].numpy() - mean).max() < 1e-3
    own = ci.SVI(guide=AutoNormal, steps=10).fit(response("plain"), response("plain").prepare(X, y=Y), progress=False)
    assert np.isfinite(own.elbo.numpy()).all()
    nuts = ci.NUTS(num_samples=3, warmup=3, chains=1, max_tree_depth=2)
    nuts = nuts.fit(
        response("rows"), response("rows").prepare(X, y=Y), init={"shift": torch.tensor(0.1)}, progress=False
    )
    assert torch.isfinite(nuts.draws["shift"]).all()


def test_a_minibatch_has_the_responses_of_its_rows():
    program = response("rows")
    x, y = torch.as_tensor(X), torch.as_tensor(Y)
    for _ in range(5):
        trace = pyro.poutine.trace(program).get_trace(x, y=y, batch_size=2)
        trace.compute_log_prob()
        index = trace.nodes["data"]["value"]
        assert torch.equal(trace.nodes["x"]["value"], x[index])
        term = trace.nodes["y"]["log_prob"]
        assert torch.equal(term == 0, torch.isnan(y[index])) and torch.isfinite(term).all()
