"""Sparse gamma-Poisson factor analysis against sums over sets of components and auxiliary counts."""

import itertools

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.integrate import quad
from scipy.special import logsumexp, softmax

import custom_inference as ci
from custom_inference.core.diagnostics import effective_size
from custom_inference.core.posteriors import GammaTerms
from custom_inference.families.gamma_poisson.gibbs import GapSampler
from ppl_models import CapacityError, GammaPoisson, MethodError, PriorError, SpikeGammaPoisson
from ppl_models.distributions import SpikeGamma
from tests.references import gamma_poisson, spike_gamma_poisson

SPIKE, SHAPE, RATE = [0.3, 0.6], [0.5, 1.3], [0.7, 0.4]
LOADING = np.array([[0.9, 0.2], [0.3, 1.1]])
X = np.array([[2.0, 1.0], [0.0, 0.0], [1.0, 0.0]])


def model_of(num_components=2, num_features=2):
    made = SpikeGammaPoisson(num_components=num_components, num_features=num_features)
    return made.with_activation(SHAPE[:num_components], RATE[:num_components], SPIKE[:num_components])


def test_distribution_has_a_spike_and_a_slab():
    prior = SpikeGamma(0.3, 2.0, 0.5)
    slab = quad(lambda z: float(prior.log_prob(torch.tensor(z)).exp()), 0, 200)[0]
    assert np.isclose(slab + float(prior.log_prob(torch.tensor(0.0)).exp()), 1.0)
    draws = prior.sample(torch.Size([40000]))
    assert abs(float((draws == 0).double().mean()) - 0.3) < 4 * (0.21 / 40000) ** 0.5
    assert abs(float(draws.mean() - prior.mean)) < 4 * float(prior.variance / 40000) ** 0.5
    assert abs(float(draws.var() / prior.variance) - 1) < 0.1


@pytest.mark.parametrize("missing", [False, True])
def test_the_bound_is_below_the_evidence_and_exact_for_one_component(missing):
    mask = np.array([[True, False], [True, True], [True, True]]) if missing else None
    for size in (1, 2):
        model, params = model_of(size), {"loading": torch.as_tensor(LOADING[:size])}
        local = ci.VariationalEM(guide="gamma").local_posterior(model, params, model.prepare(X, mask=mask))
        settings = SPIKE[:size], SHAPE[:size], RATE[:size], mask
        exact = spike_gamma_poisson.log_evidence({"loading": LOADING[:size]}, X, *settings)
        if size == 1:
            assert np.allclose(local.bound, exact, rtol=0, atol=1e-10)
        gap = exact - local.bound.numpy()
        assert (gap > -1e-10).all() and gap[1] < 1e-10  # a row without events has independent components


@pytest.mark.parametrize("missing", [False, True])
def test_exact_evidence_and_posterior_sum_over_the_sets(missing):
    mask = np.array([[True, False], [True, True], [True, True]]) if missing else None
    model, params = model_of(), {"loading": torch.as_tensor(LOADING)}
    local = ci.Exact().local_posterior(model, params, model.prepare(X, mask=mask))
    evidence = spike_gamma_poisson.log_evidence({"loading": LOADING}, X, SPIKE, SHAPE, RATE, mask)
    assert np.allclose(local.bound, evidence, rtol=0, atol=1e-12)
    rho, a, b = (np.array(part) for part in (SPIKE, SHAPE, RATE))
    mean, zero = np.zeros((3, 2)), np.zeros((3, 2))
    for code in itertools.product((False, True), repeat=2):
        on = np.array(code)
        chance = np.log1p(-rho[on]).sum() + np.log(rho[~on]).sum() - evidence
        if on.any():
            part = {"loading": LOADING[on]}
            chance = chance + gamma_poisson.log_evidence(part, X, a[on], b[on], mask)
            mean[:, on] += np.exp(chance)[:, None] * gamma_poisson.posterior_mean(part, X, a[on], b[on], mask)
        else:
            chance = np.where((X * (1 if mask is None else mask)).sum(1) > 0, -np.inf, chance)
        zero[:, ~on] += np.exp(chance)[:, None]
    assert np.allclose(local.posterior.mean, mean, rtol=0, atol=1e-12)
    draws = local.posterior.sample(20000, seed=1)
    assert ((draws == 0).double().mean(0) - torch.as_tensor(zero)).abs().max() < 4 * 0.5 / 20000**0.5
    error = draws.std(0) / 20000**0.5
    assert ((draws.mean(0) - torch.as_tensor(mean)).abs() < 5 * error).all()


def test_exact_em_climbs_the_evidence():
    """Of points of the loadings, to a stationary point of the evidence and the prior of log b (shapes are below 1)."""
    rng = np.random.default_rng(3)
    x = rng.poisson(rng.gamma(1.0, 1.0, (40, 2)) * (rng.random((40, 2)) < 0.6) @ np.array([[1.0, 0.2], [0.1, 0.8]]))
    model = model_of().with_loading(2.0, 1.0)
    fit = ci.EM(accelerate=None, tolerance=1e-10, max_iterations=2000).fit(model, x, progress=False)
    assert (fit.elbo.diff() > -1e-9).all()
    best = fit.params["loading"].numpy()

    def value(loading):
        return spike_gamma_poisson.log_evidence({"loading": loading}, x, SPIKE, SHAPE, RATE).sum() + float(
            stats.gamma.logpdf(loading, 2.0).sum()
        )

    assert np.isclose(value(best), float(fit.elbo[-1]), atol=1e-6)
    for k, d in itertools.product(range(2), range(2)):
        step = np.zeros((2, 2))
        step[k, d] = 1e-4
        assert abs(value(best + step) - value(best - step)) / 2e-4 < 0.02


def test_posterior_of_a_row_without_events():
    """P(activation = 0 | no event) by Bayes' rule, of independent components."""
    model, params = model_of(), {"loading": torch.as_tensor(LOADING)}
    local = ci.VariationalEM(guide="gamma").local_posterior(model, params, model.prepare(X))
    rho, a, b = (np.array(part) for part in (SPIKE, SHAPE, RATE))
    after = b + LOADING.sum(1)
    none = (1 - rho) * (b / after) ** a
    off = rho / (rho + none)
    assert np.allclose(local.posterior.mean[1], (1 - off) * a / after)
    draws = local.posterior.sample(20000, seed=1)[:, 1]
    assert ((draws == 0).double().mean(0) - torch.as_tensor(off)).abs().max() < 4 * 0.5 / 20000**0.5
    assert np.isclose(float(local.posterior.log_prob(torch.zeros(3, 2))[1]), np.log(off).sum())


@pytest.mark.parametrize("learn", [None, "activation"])
def test_the_bound_climbs_and_spikes_are_learned(learn):
    rng = np.random.default_rng(0)
    loading = np.kron(np.eye(2), np.ones(3)) + 0.02
    activation = rng.gamma(2.0, 3.0, (120, 2)) * (rng.random((120, 2)) > [0.7, 0.2])
    x = rng.poisson(activation @ loading)
    model = SpikeGammaPoisson(num_components=2, num_features=6)
    guide = ci.VariationalBayes(learn=learn)
    fit = ci.VariationalEM(guide=guide, accelerate=None, tolerance=1e-7).fit(model, x, progress=False)
    assert (fit.elbo.diff() > -1e-8).all()
    share = float((fit.transform()[:, 0] < 0.05).double().mean())
    order = [0, 1] if fit.params["loading"][0, :3].sum() > fit.params["loading"][1, :3].sum() else [1, 0]
    if learn:
        spike = fit.model.priors["activation"].spike[order]
        assert torch.allclose(spike, torch.tensor([0.7, 0.2]), atol=4 * 0.5 / 120**0.5)
    assert share > 0.1


def exact_law():
    """P(component of every event) at one feature, totals integrated on a grid; and P(z_nk = 0) of every row."""
    x, (c, d) = np.array([2, 0, 1]), (0.8, 0.6)
    row, every = np.repeat(np.arange(3), x), list(itertools.product(range(2), repeat=3))
    u = np.linspace(-14, 8, 3000)
    total, logs, off = np.exp(u), [], []
    for q in every:
        value, zero = 0.0, []
        for k in range(2):
            n = np.bincount(row[np.array(q) == k], minlength=3)
            rho, a, b = SPIKE[k], SHAPE[k], RATE[k]
            grid = stats.gamma.logpdf(total, c, scale=1 / d) + u
            for m in n:
                some = np.log1p(-rho) + stats.nbinom.logpmf(m, a, b / (b + total))
                grid = grid + (np.logaddexp(np.log(rho), some) if m == 0 else some)
            value += logsumexp(grid)
            none = (1 - rho) * (b / (b + total)) ** a
            zero.append(np.where(n == 0, softmax(grid) @ (rho / (rho + none)), 0.0))
        logs.append(value + multiplicity(q, row))
        off.append(np.array(zero).T)
    weight = softmax(logs)
    return np.array(every), weight, np.einsum("q,qnk->nk", weight, np.array(off))


def multiplicity(q, row):
    """log prod n_ik! / n_i!: the orders that the events' components come in, of which each is one."""
    found = 0.0
    for i in range(3):
        for k in range(2):
            found += float(np.log(np.arange(1, 1 + np.sum((row == i) & (np.array(q) == k)))).sum())
    return found


def test_draws_are_those_of_the_posterior():
    model = model_of(2, 1).with_loading(0.8, 0.6)
    x = np.array([[2.0], [0.0], [1.0]])
    chain = GapSampler().chain(model, model.prepare(x), 1, None)
    draws = []
    for sweep in range(6000):
        chain.sweep()
        if sweep >= 100:
            q, zero = chain.indicators().numpy(), chain.draw()["activation"].numpy() == 0
            draws.append([*(q == 0), q[0] == q[1], *zero.flatten()])
    draws = np.array(draws, dtype=float)
    every, weight, off = exact_law()
    functions = [*(every == 0).T, every[:, 0] == every[:, 1]]
    expected = np.array([*(weight @ f for f in functions), *off.flatten()])
    error = np.sqrt(expected * (1 - expected) / [effective_size(one[None]) for one in draws.T])
    assert (np.abs(draws.mean(0) - expected) < 4 * error + 1e-12).all()


def test_log_joint_summed_over_components_is_the_evidence():
    x, total = np.array([[3.0], [2.0]]), np.array([0.8, 2.1])
    model = model_of(2, 1).with_loading(0.8, 0.6)
    chain = GapSampler().chain(model, model.prepare(x), 0, None)
    chain.total, values = total, []
    for q in itertools.product(range(2), repeat=5):
        chain.assign(np.array(q, np.int32))
        chain._counted = None
        values.append(chain.log_joint())
    expected = spike_gamma_poisson.log_evidence({"loading": total[:, None]}, x, SPIKE, SHAPE, RATE).sum()
    assert np.isclose(logsumexp(values), expected + stats.gamma.logpdf(total, 0.8, scale=1 / 0.6).sum(), atol=1e-10)


def test_gibbs_finds_the_spikes():
    example = SpikeGammaPoisson.example()
    fit = ci.CollapsedGibbs(num_samples=40, warmup=40, chains=2).fit(example.model, example.data, progress=False)
    assert isinstance(fit.posterior, GammaTerms)
    assert (fit.draws["activation"] == 0).any() and (fit.draws["activation"] > 0).any()


def test_too_many_components_and_other_priors_are_refused():
    x = np.ones((3, 12))
    with pytest.raises(CapacityError, match="2\\^9 sets"):
        ci.VariationalEM(guide="gamma").fit(SpikeGammaPoisson(num_components=9, num_features=12), x, progress=False)
    other = SpikeGammaPoisson(num_components=2, num_features=12).with_priors(activation=dist.LogNormal(0.0, 1.0))
    with pytest.raises(PriorError, match="activation"):
        ci.VariationalEM(guide="gamma").fit(other, x, progress=False)
    assert "nuts" in ci.methods_for(GammaPoisson.example().model)
    assert not {"nuts", "svi"} & set(ci.methods_for(other))
    for method in (ci.NUTS(), ci.SVI()):
        with pytest.raises(MethodError, match="exactly 0 with some probability"):
            method.fit(other, x, progress=False)
