"""Ratings that are not Gaussian: bounds below what they bound, draws of the right moments, users given again."""

import numpy as np
import pytest
import torch
from scipy import integrate, stats

import custom_inference as ci
from custom_inference.families.ratings.outcomes import quadratic, terms
from ppl_models import PMF, ratings
from ppl_models.distributions import OrderedRating

QUIET = {"progress": False}
KINDS = {"logistic": None, "ordinal": (1, 4)}


def log_likelihood(eta, value, kind, scale):
    if kind == "logistic":
        return stats.bernoulli.logpmf(int(value), 1 / (1 + np.exp(-eta)))
    low, high = KINDS[kind]
    upper = 1.0 if value == high else 1 / (1 + np.exp(-(value + 0.5 - eta) / scale))
    lower = 0.0 if value == low else 1 / (1 + np.exp(-(value - 0.5 - eta) / scale))
    return np.log(upper - lower)


@pytest.mark.parametrize("kind", KINDS)
def test_the_quadratic_touches_the_likelihood_and_stays_below(kind):
    """Up to a constant: at a point mean the slope is the likelihood's, and differences are never greater."""
    scale = 1.0 if kind == "logistic" else 0.7
    for value in (0.0, 1.0) if kind == "logistic" else (1.0, 2.0, 4.0):
        bound, sign = terms(np.array([value]), KINDS[kind])
        for at in (-1.3, 0.4, 2.9):
            (p,), (t,) = quadratic(np.array([at]), np.zeros(1), bound, sign, scale)
            step = 1e-5
            slope = (
                log_likelihood(at + step, value, kind, scale) - log_likelihood(at - step, value, kind, scale)
            ) / 2e-5
            assert t - p * at == pytest.approx(slope, abs=1e-6)
            for there in np.linspace(-4, 6, 21):
                gained = t * (there - at) - 0.5 * p * (there**2 - at**2)
                true = log_likelihood(there, value, kind, scale) - log_likelihood(at, value, kind, scale)
                assert gained <= true + 1e-9


def test_polya_gamma_draws_have_their_laplace_transform():
    """E exp(-s w) = cosh(z / 2) / cosh(sqrt(z^2 / 4 + s / 2)) for w ~ PG(1, z)."""
    from custom_inference.families.ratings.polya_gamma import polya_gamma

    for z in (0.0, 0.7, -2.5, 6.0):
        draws = np.empty(40_000)
        polya_gamma(np.full(len(draws), z), np.random.default_rng(3), draws)
        for s in (0.5, 3.0, 20.0):
            values = np.exp(-s * draws)
            exact = np.cosh(z / 2) / np.cosh(np.sqrt(z**2 / 4 + s / 2))
            assert abs(values.mean() - exact) < 4.5 * values.std() / np.sqrt(len(draws))


@pytest.fixture(scope="module")
def fits():
    rng, found = np.random.default_rng(0), {}
    eta = 0.3 + 0.6 * rng.normal(size=(60, 1)) + 0.7 * rng.normal(size=20)
    eta = 1.8 * (eta + rng.normal(size=(60, 1)) @ rng.normal(size=(1, 20)))
    seen = rng.random(eta.shape) < 0.6
    for kind, levels in KINDS.items():
        x = (rng.random(eta.shape) < 1 / (1 + np.exp(-eta))).astype(float)
        if levels:
            x = np.clip(np.round(2.2 + eta + 0.5 * rng.logistic(size=eta.shape)), *levels)
        model = PMF(num_components=1, num_users=60, num_items=20, adaptive=True, likelihood=kind, levels=levels)
        data = ratings(np.where(seen, x, np.nan))
        vb = ci.fit(model, data, seed=1, **QUIET)
        gibbs = ci.CollapsedGibbs(chains=2, num_samples=30, warmup=60).fit(model, data, seed=1, **QUIET)
        found[kind] = {"vb": vb, "gibbs": gibbs, "held": (~seen).nonzero(), "x": x}
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_fits_climb_and_predict(fits, kind):
    one = fits[kind]
    assert one["vb"].method_name == "VariationalBayes" and (one["vb"].elbo.diff() > -1e-6).all()
    truth = one["x"][one["held"]]
    for name in ("vb", "gibbs"):
        found = one[name].predict(one["held"]).numpy()
        assert np.mean((found - truth) ** 2) < 0.85 * np.var(truth)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["vb", "gibbs"])
def test_users_given_again_are_predicted_as_they_were(fits, kind, name):
    fit, (user, item) = fits[kind][name], fits[kind]["held"]
    known = fit.predict((user, item), uncertainty=True)
    again = fit.predict((user, item), ratings=fit.data, uncertainty=True)  # each with the draws of the items
    assert (known.mean - again.mean).abs().mean() < 0.35 * known.sd.mean()


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_is_below_the_log_likelihood_of_profiles(fits, kind):
    """log p(x | globals), by quadrature over one user's bias and factor, at the draws of Gibbs."""
    fit, model = fits[kind]["gibbs"], fits[kind]["gibbs"].model
    at = {site: value[0, -1] for site, value in fit.draws.items()}
    loading, offset = model.coefficients(at)
    node = torch.linspace(-9, 9, 91, dtype=torch.float64)
    grid = torch.cartesian_prod(node, node)
    prior = torch.distributions.MultivariateNormal(at["user_mean"], at["user_covariance"]).log_prob(grid)
    total = 0.0
    for n in range(len(fit.data)):
        mine = fit.data.user == n
        eta = grid @ loading[fit.data.item[mine]].T + offset[fit.data.item[mine]]
        joint = prior + model.entry(at, eta).log_prob(fit.data.value[mine]).sum(-1)
        inner = integrate.simpson(
            integrate.simpson(joint.exp().reshape(91, 91).numpy(), x=node.numpy()), x=node.numpy()
        )
        total += float(np.log(inner))
    assert float(fits[kind]["vb"].elbo[-1]) < total


def test_levels_have_the_probabilities_of_the_program():
    eta, levels = torch.tensor([-0.4, 1.7, 3.0]), torch.arange(1.0, 5.0)
    program = OrderedRating(eta[:, None], torch.tensor(0.7), 1, 4).log_prob(levels).numpy()
    mine = [[log_likelihood(float(e), float(r), "ordinal", 0.7) for r in levels] for e in eta]
    np.testing.assert_allclose(program, mine, atol=1e-5)
