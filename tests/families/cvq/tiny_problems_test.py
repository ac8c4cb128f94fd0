"""Default fits of a few rows reach the maximum that many climbs of the exact log posterior find."""

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit, logsumexp

from custom_inference import fit
from ppl_models import CVQ
from tests.references import cvq as reference

ROWS, SOURCES, FEATURES = 6, 3, 4
#: Beta(a, b) of the sources' priors, the scale of Normal(0, t) weights, InverseGamma(c, d) of the scales.
PRIORS = [(2.0, 2.0, 1.0, 3.0, 1.0), (1.5, 3.0, 2.0, 2.0, 0.5), (1.0, 1.0, 1.0, 4.0, 2.0)]
CODES = np.array([[code >> bit & 1 for bit in range(SOURCES)] for code in range(2**SOURCES)], dtype=float)


def problem(seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(SOURCES, FEATURES, generator=generator, dtype=torch.float64)
    source = (torch.rand(ROWS, SOURCES, generator=generator, dtype=torch.float64) < 0.5).double()
    noise = torch.randn(ROWS, FEATURES, generator=generator, dtype=torch.float64)
    return source @ weight + 0.3 * noise, PRIORS[seed % len(PRIORS)]


def split(free):
    """pi, w and sigma from logits, weights and logarithms."""
    weight = free[SOURCES : SOURCES + SOURCES * FEATURES].reshape(SOURCES, FEATURES)
    return expit(free[:SOURCES]).clip(1e-12, 1 - 1e-12), weight, np.exp(free[-FEATURES:])


def log_priors(pi, weight, sigma, priors):
    a, b, t, c, d = priors
    log_pi = ((a - 1) * np.log(pi) + (b - 1) * np.log1p(-pi)).sum() + SOURCES * _log_beta_constant(a, b)
    log_weight = -0.5 * (weight**2).sum() / t**2 - weight.size * np.log(t * np.sqrt(2 * np.pi))
    constant = c * np.log(d) - _log_gamma(c)
    return log_pi + log_weight + (constant - (c + 1) * np.log(sigma) - d / sigma).sum()


def _log_gamma(value):
    return float(torch.lgamma(torch.tensor(value)))


def _log_beta_constant(a, b):
    return _log_gamma(a + b) - _log_gamma(a) - _log_gamma(b)


def log_posterior(free, x, priors):
    """log p(x | globals) + log p(globals), and its slope: with responsibilities r of the codes s,

    d/dw = sum r s' (x - s w) / sigma^2 - w / t^2,
    d/dlog sigma = sum r (x - s w)^2 / sigma^2 - N - (c + 1) + d / sigma,
    d/dlogit pi = sum r s - N pi + (a - 1) (1 - pi) - (b - 1) pi.
    """
    a, b, t, c, d = priors
    pi, weight, sigma = split(free)
    apart = x[:, None] - CODES @ weight  # (N, C, D)
    joint = -0.5 * ((apart / sigma) ** 2).sum(-1) - np.log(sigma * np.sqrt(2 * np.pi)).sum()
    joint = joint + CODES @ np.log(pi) + (1 - CODES) @ np.log1p(-pi)
    rows = np.asarray(logsumexp(joint, axis=1))
    r = np.exp(joint - rows[:, None])
    of_weight = np.einsum("nc,ci,ncj->ij", r, CODES, apart) / sigma**2 - weight / t**2
    of_sigma = np.einsum("nc,ncj->j", r, apart**2) / sigma**2 - len(x) - (c + 1) + d / sigma
    of_pi = (r @ CODES).sum(0) - len(x) * pi + (a - 1) * (1 - pi) - (b - 1) * pi
    value = rows.sum() + log_priors(pi, weight, sigma, priors)
    return value, np.concatenate([of_pi, of_weight.ravel(), of_sigma])


def climbed(x, priors, *, starts=20):
    rng = np.random.default_rng(0)
    found = [
        minimize(
            lambda free: tuple(-part for part in log_posterior(free, x, priors)),
            rng.normal(size=SOURCES + SOURCES * FEATURES + FEATURES), jac=True, method="L-BFGS-B",
            options={"maxiter": 2000, "ftol": 1e-13, "gtol": 1e-7},
        ).fun
        for _ in range(starts)
    ]  # fmt: skip
    return -min(found)


def test_the_slope_and_the_log_posterior_are_right():
    x, priors = problem(0)
    free = np.random.default_rng(1).normal(size=SOURCES + SOURCES * FEATURES + FEATURES)
    value, slope = log_posterior(free, x.numpy(), priors)
    pi, weight, sigma = split(free)
    params = {"source_prior": pi, "weight": weight, "scale": sigma}
    expected = reference.log_evidence(params, x.numpy()).sum() + log_priors(pi, weight, sigma, priors)
    assert value == pytest.approx(expected, abs=1e-10)
    for i, one in enumerate(np.eye(len(free)) * 1e-6):
        apart = log_posterior(free + one, x.numpy(), priors)[0] - log_posterior(free - one, x.numpy(), priors)[0]
        assert apart / 2e-6 == pytest.approx(slope[i], abs=1e-5)


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(n, marks=pytest.mark.slow) for n in range(5, 9))])
def test_default_fits_reach_the_best_of_many_climbs(seed):
    x, (a, b, t, c, d) = problem(seed)
    model = CVQ(num_components=SOURCES, num_features=FEATURES, per_feature_scale=True)
    model = model.with_priors(source_prior=dist.Beta(a, b), weight=dist.Normal(0.0, t), scale=dist.InverseGamma(c, d))
    found = fit(model, x, progress=False)
    assert float(found.elbo[-1]) > climbed(x.numpy(), (a, b, t, c, d)) - 1e-3
    assert "at random)" in found.status
