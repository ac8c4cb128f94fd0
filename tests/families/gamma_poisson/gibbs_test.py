"""The chain of gamma-Poisson factor analysis: its joint law by integration, its draws against the exact posterior."""

import itertools
import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.integrate import quad
from scipy.special import gammaln, logsumexp, softmax

from custom_inference import CollapsedGibbs, simulation_based_calibration
from custom_inference.core.diagnostics import effective_size
from custom_inference.families.gamma_poisson.chain import _tails
from custom_inference.families.gamma_poisson.gibbs import GapSampler
from ppl_models import GammaPoisson, PriorError, SpikeGammaPoisson
from ppl_models.distributions import Flat
from tests.references import gamma_poisson

A, B, C, D = [0.7, 1.4], [0.9, 0.5], 0.8, 0.6
X = np.array([[2.0, 1.0], [0.0, 2.0]])


def model_of(num_components=2, num_features=2):
    made = GammaPoisson(num_components=num_components, num_features=num_features)
    return made.with_activation(A[:num_components], B[:num_components]).with_loading(C, D)


def chain_of(model, x, seed=0):
    return GapSampler().chain(model, model.prepare(x), seed, None)


def test_log_joint_summed_over_components_is_the_evidence():
    """One feature: the loadings are the totals B."""
    x, total = np.array([[3.0], [2.0]]), np.array([0.8, 2.1])
    chain = chain_of(model_of(2, 1), x)
    chain.total, values = total, []
    for q in itertools.product(range(2), repeat=5):
        chain.assign(np.array(q, np.int32))
        chain._counted = None
        values.append(chain.log_joint())
    expected = gamma_poisson.log_evidence({"loading": total[:, None]}, x, A, B).sum()
    assert np.isclose(logsumexp(values), expected + stats.gamma.logpdf(total, C, scale=1 / D).sum(), atol=1e-10)


def test_log_joint_integrated_over_the_total_is_the_evidence():
    """One component: b integrated out in the chain by its shares, against the density of both loadings."""
    model, a, b = model_of(1), A[0], B[0]
    chain = chain_of(model, X)
    chain.assign(np.zeros(5, np.int32))

    def joint(total):
        chain.total = np.array([total])
        return np.exp(chain.log_joint())

    n, words = X.sum(1), X.sum(0)
    constant = (gammaln(a + n) - gammaln(a) + a * np.log(b)).sum() - gammaln(X + 1).sum()
    constant += 2 * (C * np.log(D) - gammaln(C))

    def density(first, second):
        """Rows at these loadings, activations integrated out, and Gamma(C, D) of both loadings."""
        total = first + second
        logs = (C - 1 + words[0]) * math.log(first) + (C - 1 + words[1]) * math.log(second) - D * total
        return math.exp(constant + logs - (2 * a + n.sum()) * math.log(b + total))

    inner = quad(lambda first: quad(lambda second: density(first, second), 0, 60)[0], 0, 60)[0]
    assert np.isclose(quad(joint, 0, 100)[0], inner, rtol=1e-5)


def exact_assignments():
    """All components of the five events, and their posterior probabilities: totals integrated on a grid."""
    row, column = np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 1, 1])
    u = np.linspace(-14, 8, 3000)
    total, logs, every = np.exp(u), [], list(itertools.product(range(2), repeat=5))
    for q in every:
        value = 0.0
        for k, (a, b) in enumerate(zip(A, B, strict=True)):
            mine = np.array(q) == k
            n, words = np.bincount(row[mine], minlength=2), np.bincount(column[mine], minlength=2)
            value += (gammaln(a + n) - gammaln(a)).sum() + gammaln(2 * C) - gammaln(2 * C + words.sum())
            value += (gammaln(C + words) - gammaln(C)).sum()
            grid = stats.gamma.logpdf(total, 2 * C, scale=1 / D) + u + words.sum() * u
            grid = grid + (a * np.log(b) - (a + n[:, None]) * np.log(b + total)).sum(0)
            value += logsumexp(grid)
        logs.append(value)
    return np.array(every), softmax(logs)


@pytest.mark.parametrize("kind", ["collapsed", "blocked", "from a start"])
def test_draws_are_those_of_the_posterior(kind):
    """P(component of every event) and of pairs being together, within Monte Carlo error. Blocked: loadings as values of
    the chain's state, because their prior is stated for every entry."""
    model = model_of()
    if kind == "blocked":
        model = model.with_priors(loading=dist.Gamma(torch.full((2, 2), C), torch.full((2, 2), D)))
    chain = GapSampler().chain(model, model.prepare(X), 3, start() if kind == "from a start" else None)
    assert bool(chain.list_sampled()) == (kind == "blocked")
    draws = []
    for sweep in range(900 if kind == "blocked" else 2000):
        chain.sweep()
        if sweep >= 100:
            q = chain.indicators().numpy()
            draws.append([*(q == 0), q[0] == q[2], q[1] == q[4], q[3] == q[4]])
    draws = np.array(draws, dtype=float)
    every, weight = exact_assignments()
    functions = [*(every == 0).T, *(every[:, i] == every[:, j] for i, j in ((0, 2), (1, 4), (3, 4)))]
    expected = np.array([weight @ f for f in functions])
    error = np.sqrt(expected * (1 - expected) / [effective_size(one[None]) for one in draws.T])
    assert (np.abs(draws.mean(0) - expected) < 4 * error).all()


def start():
    return {"loading": torch.tensor([[0.5, 1.0], [2.0, 0.1]])}


def test_missing_entries_leave_the_evidence_of_the_others():
    """The log joint at given loadings, summed over the components of what was observed."""
    model = model_of()
    x = torch.tensor(X)
    x[0, 1] = torch.nan
    chain = GapSampler().chain(model, model.prepare(x), 0, start())
    assert "loading" in chain.list_sampled()
    values = []
    for q in itertools.product(range(2), repeat=4):
        chain.assign(np.array(q, np.int32))
        chain._counted = None
        values.append(chain.log_joint())
    loading = chain.means()["loading"].numpy()
    mask = np.array([[True, False], [True, True]])
    expected = gamma_poisson.log_evidence({"loading": loading}, X, A, B, mask).sum()
    assert np.isclose(logsumexp(values), expected + stats.gamma.logpdf(loading, C, scale=1 / D).sum(), atol=1e-8)


def test_learned_shapes_and_rates_are_the_best():
    rng = np.random.default_rng(0)
    x = rng.poisson(rng.gamma(0.6, 3.0, (80, 2)) @ np.array([[1.0, 0.5, 0.1], [0.1, 0.3, 1.2]]))
    chain = chain_of(model_of(2, 3), x)
    for _ in range(10):
        chain.sweep()
    for _ in range(60):
        chain._learn_activation()
    best = chain.log_joint()
    for name in ("alpha", "rate"):
        value = getattr(chain, name)
        for k, factor in itertools.product(range(2), (0.97, 1.03)):
            scale = np.ones(2)
            scale[k] = factor
            setattr(chain, name, value * scale)
            assert chain.log_joint() < best
        setattr(chain, name, value)


def test_tails_count_rows():
    counts = np.array([[0, 3], [2, 1], [1, 0]])
    assert np.array_equal(_tails(counts), [[2, 2], [1, 1], [0, 1]])


def test_flat_activations_have_nothing_to_sample():
    model = model_of().with_priors(activation=Flat(dist.Gamma(1.0, 1.0)))
    with pytest.raises(PriorError, match="no proper posterior"):
        GapSampler().check(model, model.prepare(X))


@pytest.mark.parametrize("kind", [GammaPoisson, SpikeGammaPoisson])
@pytest.mark.parametrize(
    "prior", [dist.Gamma(2.0, 1.5), pytest.param(dist.LogNormal(0.0, 0.5), marks=pytest.mark.slow)]
)
def test_whole_fits_are_calibrated(kind, prior):
    """One component, whose label cannot switch; loadings integrated out, or values of the chain's state."""
    model = kind(num_components=1, num_features=2).with_activation(1.5, 0.7).with_priors(loading=prior)
    sampler = CollapsedGibbs(chains=1, warmup=15, num_samples=40, thin=2)
    found = simulation_based_calibration(model, sampler, num_simulations=30, num_rows=4, num_draws=19, progress=False)
    assert found.passed and found.ranks.attrs["of"] == "globals", found
