"""Whole numbers without an upper bound: however far away they have probability, and in however many places."""

from __future__ import annotations

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp
from torch.distributions import constraints

import custom_inference as ci
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.evidence import enumerate_table
from ppl_models import CapacityError, MethodError, ModelError, Site
from tests.programs._own import COUNT, ROW, observed, own_program

#: The latent's prior: as a statement, and its log probabilities.
PRIORS = {
    "poisson": (lambda: dist.Poisson(1.0), stats.poisson(1.0).logpmf),
    "geometric": (lambda: dist.Geometric(0.3), lambda n: stats.geom.logpmf(n + 1, 0.3)),
    "negative_binomial": (
        lambda: dist.NegativeBinomial(torch.tensor(2.0), probs=torch.tensor(0.4)),
        lambda n: stats.nbinom.logpmf(n, 2, 0.6),
    ),
}


def exact(model, x, params=None, **given):
    return ci.Exact().local_posterior(model, params or {}, model.prepare(x, **given))


def of_one(prior, law, support=constraints.real, columns=0):
    """A program of one whole number n a row, and x given it."""

    def stated(rows):
        n = pyro.sample("n", prior())
        return rows.observe("x", law(n.unsqueeze(-1) if columns else n))

    return own_program({"n": COUNT, "x": observed(support, columns)}, stated, columns=columns)


def check(local, joint, place):
    """joint (Q, N): log p(x_n, place)."""
    evidence = logsumexp(joint, 0)
    mean = (np.exp(joint - evidence) * place[:, None]).sum(0)
    assert np.allclose(local.bound.numpy(), evidence, rtol=1e-10, atol=1e-8)
    assert np.allclose(local.posterior.mean[:, 0].numpy(), mean, rtol=1e-8)


@pytest.mark.parametrize("name", PRIORS)
def test_counts_far_above_their_prior(name):
    """A window of the prior's values has no probability at all, as fewer animals than were caught are impossible."""
    prior, log_pmf = PRIORS[name]
    x, place = np.array([[100.0, 90.0], [1.0, 0.0], [700.0, 650.0]]), np.arange(4000)
    caught = constraints.nonnegative_integer
    model = of_one(prior, lambda n: dist.Binomial(n.expand(*n.shape[:-1], 2), 0.6), caught, columns=2)
    joint = log_pmf(place)[:, None] + stats.binom.logpmf(x, place[:, None, None], 0.6).sum(-1)
    check(exact(model, x), joint, place)


def test_the_default_fit_settles_as_well():
    def stated(rows, rate):
        n = pyro.sample("n", dist.Poisson(rate))
        return rows.observe("x", dist.Binomial(n.unsqueeze(-1).expand(*n.shape, 2), 0.6))

    x, place = np.array([[100.0, 90.0], [1.0, 0.0]]), np.arange(2000)
    rate = Site("global", (), support=constraints.positive)
    sites = {"rate": rate, "n": COUNT, "x": observed(constraints.nonnegative_integer, 2)}
    model = own_program(sites, stated, {"rate": dist.Gamma(1.0, 1.0)}, columns=2)
    fit = ci.fit(model, x, progress=False)
    found = float(fit.globals["rate"])
    joint = stats.poisson.logpmf(place, found)[:, None] + stats.binom.logpmf(x, place[:, None, None], 0.6).sum(-1)
    assert np.allclose(fit.log_likelihood().numpy(), logsumexp(joint, 0))


@pytest.mark.parametrize("far", [60, 500, 30_000])
@pytest.mark.parametrize("width", [0.2, 3.0])
def test_both_of_two_modes_count(far, width):
    """The upper one is far beyond the values of the prior, narrow, and as probable as the lower one."""
    weight = torch.tensor([-stats.geom.logpmf(far + 1, 0.01) + stats.geom.logpmf(3, 0.01), 0.0])

    def law(n):
        near = dist.Normal(torch.stack([n - far, n - 2.0], -1), width)
        return dist.MixtureSameFamily(dist.Categorical(logits=weight.expand(near.batch_shape)), near)

    place, x = np.arange(max(4000, 2 * far)), np.array([0.0, 1.0])
    prior = stats.geom.logpmf(place + 1, 0.01)
    share = weight.double().log_softmax(0).numpy()
    each = [stats.norm.logpdf(x, place[:, None] - mean, width) for mean in (far, 2)]
    joint = prior[:, None] + np.logaddexp(share[0] + each[0], share[1] + each[1])
    local = exact(of_one(lambda: dist.Geometric(0.01), law), x)
    check(local, joint, place)
    assert float(local.posterior.mean[0]) > far / 4


def test_two_counts_far_away_together():
    """Neither has probability with the other where the prior has it."""

    def stated(rows):
        n = pyro.sample("n", dist.Poisson(1.0))
        m = pyro.sample("m", dist.Poisson(2.0))
        return rows.observe("x", dist.Normal(torch.stack([n + m, n - m], -1), 0.3))

    model = own_program({"n": COUNT, "m": COUNT, "x": observed(constraints.real, 2)}, stated, columns=2)
    x, place = np.array([[90.0, -4.0], [3.0, 1.0]]), np.arange(150)
    n, m = np.meshgrid(place, place, indexing="ij")
    joint = stats.poisson.logpmf(n, 1.0) + stats.poisson.logpmf(m, 2.0)
    joint = joint[..., None] + stats.norm.logpdf(x, np.stack([n + m, n - m], -1)[..., None, :], 0.3).sum(-1)
    assert np.allclose(exact(model, x).bound.numpy(), logsumexp(joint, (0, 1)), atol=1e-8)


def test_several_counts_a_row_have_one_window():
    def stated(rows):
        n = pyro.sample("n", dist.Poisson(torch.full((2,), 1.0)).to_event(1))
        return rows.observe("x", dist.Normal(n, 0.5))

    sites = {"n": Site("latent", ("column",), ROW, support=constraints.nonnegative_integer)}
    model = own_program({**sites, "x": observed(constraints.real, 2)}, stated, columns=2)
    x, place = np.array([[1.0, 45.0], [30.0, 0.0]]), np.arange(150)
    joint = stats.poisson.logpmf(place, 1.0) + stats.norm.logpdf(x[..., None], place, 0.5)
    assert np.allclose(exact(model, x).bound.numpy(), logsumexp(joint, -1).sum(1), atol=1e-8)


def test_a_count_beside_a_real_number_goes_as_far():
    def stated(rows):
        n = pyro.sample("n", dist.Poisson(1.0))
        u = pyro.sample("u", dist.Normal(0.0, 1.0))
        return rows.observe("x", dist.Normal(n + u, 0.5))

    real = Site("latent", (), ROW, support=constraints.real)
    model = own_program({"n": COUNT, "u": real, "x": observed(constraints.real)}, stated)
    x, place = np.array([60.0, 1.0]), np.arange(200)[:, None]
    joint = stats.poisson.logpmf(place, 1.0) + stats.norm.logpdf(x, place, np.sqrt(1.25))
    assert np.allclose(exact(model, x).bound.numpy(), logsumexp(joint, 0), atol=1e-7)


def test_a_row_without_probability_anywhere_is_named():
    model = of_one(lambda: dist.Poisson(1.0), lambda n: dist.Poisson(0.0 * n), constraints.nonnegative_integer)
    with pytest.raises(MethodError, match=r"row 1 \(of 1\) has no probability at any value of 'n' of Own"):
        exact(model, np.array([0.0, 2.0]))


def test_a_number_whose_values_have_no_end_is_named():
    """x says nothing, and the prior goes on for ever."""

    class Heavy(dist.Geometric):
        """p(n) = 1 / ((n + 1) (n + 2))."""

        def log_prob(self, value):
            return -torch.log(value + 1) - torch.log(value + 2)

    heavy = of_one(lambda: Heavy(0.3), lambda n: dist.Normal(0.0 * n, 1.0))
    with pytest.raises(MethodError, match="'n' of Own has probability above 1048576 still.* declare its bound"):
        exact(heavy, np.zeros(2))


def test_a_program_that_looks_up_by_a_number_without_a_bound_is_told_to_declare_it():
    table = torch.linspace(0.0, 1.0, 40)
    prior = stats.poisson.logpmf(np.arange(40), 1.0)

    def program(support):
        def stated(rows):
            n = pyro.sample("n", dist.Poisson(1.0))
            return rows.observe("x", dist.Normal(table.to(n)[n.long()], 1.0))

        sites = {"n": Site("latent", (), ROW, support=support), "x": observed(constraints.real)}
        return own_program(sites, stated)

    x = np.array([0.3, 2.0])
    with pytest.raises(ModelError, match=r"declare the bound of latents that look up"):
        exact(program(constraints.nonnegative_integer), x)
    found = exact(program(constraints.integer_interval(0, 39)), x).bound.numpy()
    joint = prior[:, None] + stats.norm.logpdf(x, np.linspace(0, 1, 40)[:, None], 1.0)
    assert np.allclose(found, logsumexp(joint, 0), atol=1e-6)


@pytest.mark.parametrize("bits", [60, 2000])
def test_a_sum_that_not_one_row_fits_into_says_what_to_do(bits):
    def stated(rows):
        z = pyro.sample("z", dist.Bernoulli(torch.full((bits,), 0.5)).to_event(1))
        return rows.observe("x", dist.Normal(z.sum(-1), 1.0))

    sites = {"z": Site("latent", ("bit",), ROW, support=constraints.boolean), "x": observed(constraints.real)}
    with pytest.raises(CapacityError) as refused:
        exact(own_program(sites, stated), np.zeros(3))
    message = str(refused.value)
    assert f"of 'z' (2^{bits}) of 3 rows" in message and "no single row would fit" in message
    assert "AIS()" in message


def test_some_of_many_rows_may_fit(monkeypatch):
    monkeypatch.setattr("custom_inference.core.programs.windows.memory_limit", lambda: 8000.0)
    model = of_one(lambda: dist.Binomial(49, 0.5), lambda n: dist.Normal(n, 1.0))
    density = RowDensity.of(model, {}, model.prepare(np.zeros(20)))
    with pytest.raises(CapacityError, match=r"50 values of 'n' \(50\) of 20 rows .*; 5 rows at a time would fit"):
        enumerate_table(density)


def test_a_range_that_is_too_long_to_be_listed_is_named():
    model = of_one(lambda: dist.Binomial(10**9, 0.5), lambda n: dist.Normal(n, 1.0))
    with pytest.raises(CapacityError, match="listing the 1000000001 values of latent 'n'"):
        exact(model, np.zeros(2))
