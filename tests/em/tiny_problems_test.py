"""Default fits of a few rows reach what many random starts of EM, in NumPy and side by side, find at best."""

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.special import logsumexp, xlogy
from scipy.stats import beta, dirichlet

from custom_inference import fit
from ppl_models import PLSA, AspectBernoulli, MixtureOfBernoullis, MixtureOfCategoricals

ROWS, FEATURES, CLASSES, STARTS = 8, 6, 3, 60


def ones_of(seed):
    rng = np.random.default_rng(seed)
    return (rng.random((ROWS, FEATURES)) < rng.random((2, FEATURES))[rng.integers(2, size=ROWS)]).astype(float)


def best_mixture(x, a, *, iterations=300):
    """max of sum_n log sum_k pi_k prod_j Bernoulli(x_nj; p_kj) + log Dirichlet(pi; a) + sum log Beta(p; a, a)."""
    rng = np.random.default_rng(1)
    pi, p = np.full((STARTS, CLASSES), 1 / CLASSES), rng.uniform(0.1, 0.9, (STARTS, CLASSES, FEATURES))
    joint = np.empty(0)
    for _ in range(iterations):
        joint = np.log(pi)[:, None] + x @ np.log(p).swapaxes(1, 2) + (1 - x) @ np.log1p(-p).swapaxes(1, 2)
        r = np.exp(joint - logsumexp(joint, axis=-1, keepdims=True))
        size = r.sum(1)
        pi = (size + a - 1) / (len(x) + CLASSES * (a - 1))
        p = (r.swapaxes(1, 2) @ x + a - 1) / (size[..., None] + 2 * (a - 1))
    joint = np.log(pi)[:, None] + x @ np.log(p).swapaxes(1, 2) + (1 - x) @ np.log1p(-p).swapaxes(1, 2)
    prior = np.array([dirichlet.logpdf(one / one.sum(), [a] * CLASSES) for one in pi]) + beta.logpdf(p, a, a).sum(
        (1, 2)
    )
    return float((np.asarray(logsumexp(joint, axis=-1)).sum(1) + prior).max())


def best_aspects(x, *, iterations=4000):
    """max over memberships s, aspects a of sum_nt [x log (s a)_nt + (1 - x) log (1 - (s a)_nt)] (001, eqs. 16-21)."""
    rng = np.random.default_rng(2)
    s = rng.dirichlet(np.ones(CLASSES), (STARTS, ROWS))
    a = rng.uniform(0.1, 0.9, (STARTS, CLASSES, FEATURES))
    for _ in range(iterations):
        one, zero = _parts(s, a)
        s = s * (x / one @ a.swapaxes(1, 2) + (1 - x) / zero @ (1 - a).swapaxes(1, 2)) / FEATURES
        s = s / s.sum(-1, keepdims=True)
        one, zero = _parts(s, a)
        on, off = a * (s.swapaxes(1, 2) @ (x / one)), (1 - a) * (s.swapaxes(1, 2) @ ((1 - x) / zero))
        a = on / np.maximum(on + off, 1e-300)
    one, zero = _parts(s, a)
    return float((xlogy(x, one) + xlogy(1 - x, zero)).sum((1, 2)).max())


def _parts(s, a):
    one = (s @ a).clip(1e-12, 1 - 1e-12)
    return one, 1 - one


@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
@pytest.mark.parametrize("seed", range(4))
def test_mixtures_reach_the_best_of_many_random_starts(seed):
    x, a = ones_of(seed), 1.5
    model = MixtureOfBernoullis(num_components=CLASSES, num_features=FEATURES)
    priors = {"mixing_proportion": dist.Dirichlet(torch.full((CLASSES,), a)), "probability": dist.Beta(a, a)}
    found = fit(model.with_priors(**priors), torch.tensor(x), method="em", progress=False)
    assert float(found.elbo[-1]) > best_mixture(x, a) - 1e-3


@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
@pytest.mark.parametrize("seed", range(4))
def test_aspects_reach_the_best_of_many_random_starts(seed):
    x = ones_of(10 + seed)
    found = fit(AspectBernoulli(num_components=CLASSES, num_features=FEATURES), torch.tensor(x), progress=False)
    assert float(found.elbo[-1]) > best_aspects(x) - 1e-2  # the default ends where an iteration gains 1e-5 a row


def best_topics(x, topics, *, iterations=1500):
    """max of sum_nw x_nw log (theta phi)_nw over simplices (Hofmann 1999)."""
    rng = np.random.default_rng(3)
    theta = rng.dirichlet(np.ones(topics), (STARTS, len(x)))
    phi = rng.dirichlet(np.ones(x.shape[1]), (STARTS, topics))
    for _ in range(iterations):
        ratio = x / (theta @ phi).clip(1e-300)
        theta, phi = theta * (ratio @ phi.swapaxes(1, 2)), phi * (theta.swapaxes(1, 2) @ ratio)
        theta, phi = theta / theta.sum(-1, keepdims=True), phi / phi.sum(-1, keepdims=True)
    return float(xlogy(x, theta @ phi).sum((1, 2)).max())


@pytest.mark.parametrize("seed", range(2))
def test_topics_of_few_documents_reach_the_best_of_many_random_starts(seed):
    example = PLSA.example()
    found = fit(example.model, example.data, seed=seed, progress=False)
    x = example.data.x.double().numpy()
    assert float(found.elbo[-1]) > best_topics(x, example.model.num_topics) - 0.5


def test_informed_starts_that_agree_on_a_lower_maximum_are_overtaken():
    """Those of this mixture lead to one at -403.94; random ones are among the starts that the status counts."""
    example = MixtureOfCategoricals.example()
    found = fit(example.model, example.data, method="em", progress=False)
    assert float(found.elbo[-1]) > -402.0
    assert "at random)" in found.status
