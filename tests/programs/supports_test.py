"""Latents whose support depends on other values: on other latents, on globals, on what the rows are given."""

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
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.importance import sample_by_importance
from ppl_models import ModelError, Site
from tests.programs._own import COUNT, POSITIVE, ROW, UNIT, observed, own_program

GIVEN = Site("given", (), ROW, support=constraints.positive)


def fitted(model, x, **given):
    return ci.fit(model, x, progress=False, **given)


def thinned(rows):
    n = pyro.sample("n", dist.Binomial(8, 0.5))
    k = pyro.sample("k", dist.Binomial(n, 0.4))
    return rows.observe("x", dist.Poisson(0.3 + k))


def left_over(rows):
    """The fewer n, the more k: the largest range is not where n is the largest."""
    n = pyro.sample("n", dist.Binomial(8, 0.5))
    k = pyro.sample("k", dist.Binomial(8 - n, 0.4))
    return rows.observe("x", dist.Poisson(0.3 + k))


def from_one_on(rows):
    """The other latent moves the whole range, whose length stays."""
    n = pyro.sample("n", dist.Bernoulli(0.5))
    k = pyro.sample("k", Shifted(n))
    return rows.observe("x", dist.Poisson(0.3 + k))


class Shifted(dist.Categorical):
    """start + 0, 1 or 2, all as probable."""

    def __init__(self, start):
        self.start = start
        super().__init__(torch.ones(3).to(start).expand(*start.shape, 3), validate_args=False)

    def expand(self, batch_shape, _instance=None):
        return Shifted(self.start.expand(batch_shape))

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self):
        return constraints.integer_interval(3 * self.start, 3 * self.start + 2)

    def sample(self, sample_shape=()):
        return super().sample(sample_shape) + 3 * self.start

    def log_prob(self, value):
        return super().log_prob(value - 3 * self.start)


@pytest.mark.parametrize("seed", range(4))
def test_a_range_that_is_moved_by_another_number(seed):
    pyro.set_rng_seed(seed)
    sites = {"n": Site("latent", (), ROW, support=constraints.boolean), "k": COUNT}
    model = own_program({**sites, "x": observed(constraints.nonnegative_integer)}, from_one_on)
    x, place = np.array([7.0]), np.arange(6)
    expected = logsumexp(stats.poisson.logpmf(x, 0.3 + place[:, None]) - np.log(6), 0)
    assert np.abs(fitted_at(model, x).numpy() - expected).max() < 1e-6


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("stated", "most"), [(thinned, lambda n: n), (left_over, lambda n: 8 - n)])
def test_a_number_bounded_by_another_has_all_of_its_values(stated, most, seed):
    x, place = np.array([7.0, 0.0, 12.0]), np.arange(9)
    pyro.set_rng_seed(seed)
    model = own_program({"n": COUNT, "k": COUNT, "x": observed(constraints.nonnegative_integer)}, stated)
    n, k = np.meshgrid(place, place, indexing="ij")
    with np.errstate(divide="ignore"):
        joint = stats.binom.logpmf(n, 8, 0.5) + stats.binom.logpmf(k, most(n), 0.4)
    joint = joint[..., None] + stats.poisson.logpmf(x, 0.3 + k[..., None])
    evidence = logsumexp(joint, (0, 1))
    local = ci.Exact().local_posterior(model, {}, model.prepare(x))
    assert np.abs(local.bound.numpy() - evidence).max() < 1e-9
    code = torch.tensor([[2.0, 7.0], [2.0, 1.0]])[:, None].expand(-1, 3, -1)
    found = RowDensity.of(model, {}, model.prepare(x))(code.to(model.prepare(x).x)).numpy()
    for value, (at_n, at_k) in zip(found, ((2, 7), (2, 1)), strict=True):
        assert np.allclose(value, joint[at_n, at_k])


def test_a_number_of_trials_that_is_given_is_that_of_each_row():
    def stated(rows, total):
        k = pyro.sample("k", dist.Binomial(rows.of(total), 0.4))
        return rows.observe("x", dist.Normal(k, 1.0))

    sites = {"total": GIVEN, "k": COUNT, "x": observed(constraints.real)}
    model, x, total = own_program(sites, stated), np.array([3.0, 3.0, 9.0]), np.array([2.0, 30.0, 5.0])
    place = np.arange(31)[:, None]
    with np.errstate(divide="ignore"):
        joint = stats.binom.logpmf(place, total, 0.4) + stats.norm.logpdf(x, place, 1.0)
    found = ci.Exact().local_posterior(model, {}, model.prepare(x, total=total))
    assert np.abs(found.bound.numpy() - logsumexp(joint, 0)).max() < 1e-9
    mean = (np.exp(joint - logsumexp(joint, 0)) * place).sum(0)
    assert np.abs(found.posterior.mean[:, 0].numpy() - mean).max() < 1e-9


def test_a_number_bounded_by_one_without_a_bound_grows_with_it():
    def stated(rows):
        n = pyro.sample("n", dist.Poisson(3.0))
        k = pyro.sample("k", dist.Binomial(n, 0.4))
        return rows.observe("x", dist.Normal(k, 1.0))

    model = own_program({"n": COUNT, "k": COUNT, "x": observed(constraints.real)}, stated)
    x, place = np.array([1.0, 60.0]), np.arange(200)  # thinned Poisson numbers are Poisson numbers
    joint = stats.poisson.logpmf(place, 1.2) + stats.norm.logpdf(x[:, None], place, 1.0)
    local = ci.Exact().local_posterior(model, {}, model.prepare(x))
    assert np.abs(local.bound.numpy() - logsumexp(joint, 1)).max() < 1e-9


def test_a_number_beside_a_real_one_is_bounded_by_another():
    def stated(rows):
        n = pyro.sample("n", dist.Binomial(3, 0.5))
        k = pyro.sample("k", dist.Binomial(n, 0.4))
        u = pyro.sample("u", dist.Normal(0.0, 1.0))
        return rows.observe("x", dist.Normal(k + u, 1.0))

    sites = {"n": COUNT, "k": COUNT, "u": Site("latent", (), ROW, support=constraints.real)}
    model, x = own_program({**sites, "x": observed(constraints.real)}, stated), np.array([-1.0, 2.0, 4.0])
    place = np.arange(4)[:, None]
    joint = stats.binom.logpmf(place, 3, 0.2) + stats.norm.logpdf(x, place, np.sqrt(2))
    assert np.abs(fitted_at(model, x).numpy() - logsumexp(joint, 0)).max() < 1e-7


def fitted_at(model, x, params=None, **given):
    """log p(x_n) at globals."""
    return ci.Exact().local_posterior(model, params or {}, model.prepare(x, **given)).bound


def test_a_range_that_depends_on_a_real_number_is_refused_by_name():
    def stated(rows):
        u = pyro.sample("u", dist.Normal(0.0, 1.0))
        n = pyro.sample("n", dist.Binomial((10 * u.abs()).floor() + 1, 0.5))
        return rows.observe("x", dist.Normal(n + u, 1.0))

    sites = {"u": Site("latent", (), ROW, support=constraints.real), "n": COUNT, "x": observed(constraints.real)}
    with pytest.raises(ModelError, match=r"what values 'n' of Own may have depends on 'u': declare"):
        fitted_at(own_program(sites, stated), np.array([1.0, 2.0]))


def onset(rows, noise, age):
    z = pyro.sample("z", dist.Uniform(0.0, rows.of(age)))
    return rows.observe("x", dist.Normal(z, noise))


SITES = {
    "noise": Site("global", (), support=constraints.positive),
    "age": GIVEN,
    "z": POSITIVE,
    "x": observed(constraints.real),
}
ONSET = own_program(SITES, onset, {"noise": dist.Gamma(1.0, 1.0)}).with_priors(noise=2.0)


def test_a_support_up_to_what_is_given_is_that_of_each_row():
    rng = np.random.default_rng(0)
    age = rng.uniform(20, 80, 40)
    x = rng.uniform(0, age) + 2 * rng.standard_normal(40)
    fit = fitted(ONSET, x, age=age)
    ends = stats.norm.cdf(x / 2), stats.norm.cdf((x - age) / 2)
    assert np.abs(fit.log_likelihood().numpy() - np.log((ends[0] - ends[1]) / age)).max() < 1e-6
    law = stats.truncnorm(-x / 2, (age - x) / 2, x, 2)
    posterior = fit.posteriors["z"]
    assert np.abs(posterior.mean[:, 0].numpy() - law.mean()).max() < 1e-4
    assert np.abs(posterior.variance[:, 0].numpy() - law.var()).max() < 1e-3
    some = fit.transform(x[5:8], age=age[5:8])[:, 0]
    assert np.abs(some.numpy() - law.mean()[5:8]).max() < 1e-4
    drawn = posterior.sample(500, seed=0)[..., 0].numpy()
    assert ((drawn >= 0) & (drawn <= age)).all()
    assert (np.abs(drawn.mean(0) - law.mean()) < 6 * law.std() / np.sqrt(500)).all()
    inside, outside = age * 0.5, age * 1.01
    for value, density in ((inside, law.logpdf(inside)), (outside, np.full(40, -np.inf))):
        found = posterior.log_prob(torch.as_tensor(value)[:, None]).numpy()
        assert np.allclose(found, density, atol=1e-5)


def test_estimates_know_the_support_of_each_row():
    age, x = np.array([5.0, 50.0, 20.0]), np.array([4.0, 45.0, 3.0])
    ends = stats.norm.cdf(x / 2), stats.norm.cdf((x - age) / 2)
    evidence, data = np.log((ends[0] - ends[1]) / age), ONSET.prepare(x, age=age)
    params = ONSET.check_params({})
    drawn = sample_by_importance(RowDensity.of(ONSET, params, data))
    annealed = ci.AIS().local_posterior(ONSET, params, data)
    for found, error in ((drawn.log_evidence, drawn.standard_error), (annealed.bound, annealed.standard_error)):
        assert (np.abs(found.numpy() - evidence) < 6 * error.numpy() + 1e-3).all()


def test_a_support_from_another_latent_on():
    def stated(rows):
        start = pyro.sample("start", dist.Uniform(0.0, 1.0))
        end = pyro.sample("end", dist.Uniform(start, 1.0))
        return rows.observe("x", dist.Normal(torch.stack([start, end], -1), 0.1))

    model = own_program({"start": UNIT, "end": UNIT, "x": observed(constraints.real, 2)}, stated, columns=2)
    x = np.array([[0.2, 0.6], [0.5, 0.45], [0.9, 0.95]])
    place = (np.arange(1000) + 0.5) / 1000
    start, part = np.meshgrid(place, place, indexing="ij")
    end = start + (1 - start) * part
    evidence, means = [], []
    for row in x:
        joint = stats.norm.logpdf(row[0], start, 0.1) + stats.norm.logpdf(row[1], end, 0.1) - 2 * np.log(1000)
        evidence.append(logsumexp(joint))
        share = np.exp(joint - evidence[-1])
        means.append([(share * start).sum(), (share * end).sum()])
    local = ci.Exact().local_posterior(model, {}, model.prepare(x))
    assert np.abs(local.bound.numpy() - evidence).max() < 1e-4
    assert np.abs(local.posterior.mean.numpy() - means).max() < 1e-4


def scaled(rows, scale):
    z = pyro.sample("z", dist.Uniform(0.0, scale))
    return rows.observe("x", dist.Normal(z, 0.1))


def test_a_support_up_to_a_global_is_that_of_its_value():
    sites = {"scale": Site("global", (), support=constraints.positive), "z": POSITIVE, "x": observed(constraints.real)}
    model = own_program(sites, scaled, {"scale": dist.Gamma(2.0, 1.0)})
    x = 3 * np.random.default_rng(1).uniform(size=12)

    def evidence(scale):
        return np.log((stats.norm.cdf(x / 0.1) - stats.norm.cdf((x - scale) / 0.1)) / scale)

    fit = fitted(model, x, init={"scale": torch.tensor(2.9)})
    scale = float(fit.globals["scale"])
    assert np.abs(fit.log_likelihood().numpy() - evidence(scale)).max() < 1e-5
    grid = np.linspace(2.4, 4, 3201)
    best = grid[np.argmax([evidence(one).sum() + stats.gamma.logpdf(one, 2.0) for one in grid])]
    assert abs(scale - best) < 1e-3
    for other in (3.5, 30.0):
        at = {"scale": torch.tensor(other)}
        assert np.abs(fitted_at(model, x, at).numpy() - evidence(other)).max() < 1e-5


def test_coordinates_of_one_run_are_refused_where_bounds_depend_on_others():
    """Pyro's automatic guides and samplers take them so; of bounds that are given they are right."""
    sites = {"scale": Site("global", (), support=constraints.positive), "z": POSITIVE, "x": observed(constraints.real)}
    model = own_program(sites, scaled, {"scale": dist.Gamma(2.0, 1.0)})
    data = model.prepare(np.array([0.3, 1.0]))
    for method in (ci.SVI(guide=AutoNormal(model)), ci.NUTS(num_samples=2, warmup=2, chains=1)):
        with pytest.raises(ModelError, match=r"'z' of Own within the bounds of one run .*; state a latent within"):
            method.fit(model, data, init={"scale": torch.tensor(2.0)}, progress=False)
    age = np.array([5.0, 50.0])
    fit = ci.SVI(guide=AutoNormal(ONSET), steps=5).fit(
        ONSET, ONSET.prepare(np.array([4.0, 45.0]), age=age), progress=False
    )
    assert np.isfinite(fit.elbo.numpy()).all()


def test_guides_of_rows_refuse_a_support_that_moves():
    age, x = np.array([5.0, 50.0]), np.array([4.0, 45.0])
    for guide in ("gaussian", "mean_field"):
        with pytest.raises(ModelError, match=r"latent 'z', whose support depends on other values; state a latent"):
            ci.SVI(guide=guide).fit(ONSET, ONSET.prepare(x, age=age), progress=False)


def test_the_bounds_of_a_sum_over_bits_are_those_of_all_of_them():
    """A number up to how many of many bits are set: more values of the bits than are asked at."""

    def stated(rows):
        bits = pyro.sample("bits", dist.Bernoulli(torch.full((13,), 0.5)).to_event(1))
        k = pyro.sample("k", dist.Binomial(bits.sum(-1), 0.4))
        return rows.observe("x", dist.Poisson(0.3 + k))

    bits = Site("latent", ("bit",), ROW, support=constraints.boolean)
    model = own_program({"bits": bits, "k": COUNT, "x": observed(constraints.nonnegative_integer)}, stated)
    x, place = np.array([15.0]), np.arange(14)
    joint = stats.binom.logpmf(place, 13, 0.2) + stats.poisson.logpmf(x[:, None], 0.3 + place)
    assert np.abs(fitted_at(model, x).numpy() - logsumexp(joint, 1)).max() < 1e-9
