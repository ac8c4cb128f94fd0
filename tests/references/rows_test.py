"""The brute-force references against themselves: two independent roads to each number, bounds, optima."""

import numpy as np
import pytest
from scipy.special import gammaln

from tests.references import aspect_bernoulli as ab
from tests.references import cvq, logistic_pca
from tests.references import mixture_of_bernoullis as mixture

pytestmark = pytest.mark.quick

MISSING = pytest.mark.parametrize("missing", [0.0, 0.3])


def masked(rng, shape, missing):
    return rng.random(shape) >= missing if missing else None


def close(actual, expected, atol=1e-10):
    """Equal to an absolute tolerance alone: a relative one would forgive 1e-5 of a log-likelihood."""
    return np.allclose(actual, expected, rtol=0, atol=atol)


def slopes(objective, value, step=1e-5):
    """Central differences of ``objective`` in every coordinate of ``value``."""
    value = np.asarray(value, dtype=float)
    result = np.empty(value.shape)
    for index in np.ndindex(*value.shape):
        high, low = value.copy(), value.copy()
        high[index] += step
        low[index] -= step
        result[index] = (objective(high) - objective(low)) / (2 * step)
    return result


def test_cvq_evidence_integrates_to_one():
    """Over a grid of one feature: the Gaussian constant is (2 pi sigma^2)^(-1/2), not the slides'."""
    params = {"source_prior": np.array([0.3, 0.6]), "weight": np.array([[1.0], [-2.0]]), "scale": np.array(0.5)}
    grid = np.linspace(-8, 8, 4001)[:, None]
    assert close(np.exp(cvq.log_evidence(params, grid)).sum() * 0.004, 1.0, atol=1e-10)


def ab_problem(seed, missing=0.0, num_components=2, num_features=5, num_rows=6, total_count=1):
    rng = np.random.default_rng(seed)
    params = {"aspect_probability": rng.uniform(0.05, 0.95, (num_components, num_features))}
    x = rng.binomial(total_count, 0.5, (num_rows, num_features)).astype(float)
    membership = rng.dirichlet(np.ones(num_components), num_rows)
    return params, x, masked(rng, x.shape, missing), membership, rng


@MISSING
@pytest.mark.parametrize("concentration", [1.0, [0.4, 2.5]])
def test_ab_evidence_three_ways(missing, concentration):
    params, x, mask, _, _ = ab_problem(0, missing)
    quadrature = ab.log_evidence_quadrature(params, x, concentration, mask)
    assert close(quadrature, ab.log_evidence_indicators(params, x, concentration, mask), atol=1e-9)
    assert close(quadrature, ab.log_evidence_polynomial(params, x, concentration, mask), atol=1e-9)
    mean = ab.posterior_mean_quadrature(params, x, concentration, mask)
    assert close(mean, ab.posterior_mean_indicators(params, x, concentration, mask), atol=1e-8)


@MISSING
def test_ab_evidence_of_counts_two_ways(missing):
    params, x, mask, _, _ = ab_problem(1, missing, num_features=4, total_count=2)
    quadrature = ab.log_evidence_quadrature(params, x, [0.7, 1.5], mask, 2)
    assert close(quadrature, ab.log_evidence_polynomial(params, x, [0.7, 1.5], mask, 2), atol=1e-9)


def test_ab_evidence_of_three_aspects_sums_to_one():
    params, _, _, _, _ = ab_problem(2, num_components=3, num_features=4)
    x = np.array(list(np.ndindex(2, 2, 2, 2)), dtype=float)
    for value in (
        ab.log_evidence_indicators(params, x, [0.5, 1.0, 2.0]),
        ab.log_evidence_polynomial(params, x, [0.5, 1.0, 2.0]),
    ):
        assert close(np.exp(value).sum(), 1.0, atol=1e-12)
    counts = np.array(list(np.ndindex(3, 3, 3, 3)), dtype=float)
    assert close(np.exp(ab.log_evidence_polynomial(params, counts, 0.8, total_count=2)).sum(), 1.0, atol=1e-12)


@MISSING
def test_ab_indicators_summed_out_give_the_likelihood_of_eq_11(missing):
    params, x, mask, membership, _ = ab_problem(3, missing, num_features=3, num_rows=2)
    prior = {"membership": ("dirichlet", [0.5, 2.0])}
    total = -np.inf
    for z in np.ndindex(*(2,) * x.size):
        total = np.logaddexp(total, ab.log_joint_indicator(params, x, membership, np.reshape(z, x.shape), mask, prior))
    assert close(total, ab.log_joint(params, x, membership, mask, prior), atol=1e-10)


@MISSING
@pytest.mark.parametrize("total_count", [1, 2])
def test_ab_em_climbs_and_ends_at_a_stationary_point(missing, total_count):
    params, x, mask, membership, _ = ab_problem(4, missing, 2, 6, 20, total_count)
    alpha, beta = 1.5, (1.4, 1.6)

    def objective(params, membership):
        priors = {"membership": ("dirichlet", alpha), "aspect_probability": beta}
        return ab.log_joint(params, x, membership, mask, priors, total_count)

    trace = [objective(params, membership)]
    for _ in range(500):
        membership = ab.update_membership(params, x, membership, mask, total_count, alpha)
        trace.append(objective(params, membership))
        params = {"aspect_probability": ab.update_aspects(params, x, membership, mask, total_count, beta)}
        trace.append(objective(params, membership))
    assert np.diff(trace).min() > -1e-9 and trace[-1] > trace[0] + 1
    slope = slopes(lambda a: objective({"aspect_probability": a}, membership), params["aspect_probability"])
    assert np.abs(slope).max() < 1e-4
    along = slopes(lambda first: objective(params, np.stack([first, 1 - first], axis=1)), membership[:, 0], step=1e-6)
    assert np.abs(along).max() < 1e-3


@MISSING
@pytest.mark.parametrize("total_count", [1, 3])
def test_ab_multiplicative_updates_are_eqs_7_to_9(missing, total_count):
    """Eqs. 16-21 (as mended in ERRATA) by matrix products alone, with a mask and counts."""
    params, x, mask, membership, _ = ab_problem(5, missing, 3, 5, 8, total_count)
    seen = np.ones(x.shape, bool) if mask is None else mask
    ones, zeros = np.where(seen, x, 0.0), np.where(seen, total_count - x, 0.0)
    a = params["aspect_probability"]
    p = membership @ a
    s = membership * ((ones / p) @ a.T + (zeros / (1 - p)) @ (1 - a).T)
    s /= s.sum(1, keepdims=True)
    assert close(s, ab.update_membership(params, x, membership, mask, total_count), atol=1e-12)
    p = s @ a
    present, absent = a * (s.T @ (ones / p)), (1 - a) * (s.T @ (zeros / (1 - p)))
    new, moved = ab.em_iteration(params, x, membership, mask, total_count)
    assert close(present / (present + absent), new["aspect_probability"], atol=1e-12)
    assert close(s, moved, atol=1e-12)


@MISSING
@pytest.mark.parametrize("total_count", [1, 2])
@pytest.mark.parametrize("concentration", [1.0, [0.4, 2.5]])
def test_ab_dirichlet_bound_is_below_the_evidence_and_its_updates_are_optima(missing, total_count, concentration):
    params, x, mask, _, rng = ab_problem(6, missing, num_features=4, total_count=total_count)
    evidence = ab.log_evidence_polynomial(params, x, concentration, mask, total_count)
    gamma = rng.uniform(0.3, 4.0, (len(x), 2))
    for _ in range(20):
        random = tuple(rng.dirichlet(np.ones(2), x.shape) for _ in range(2))
        best = ab.best_indicator(params, gamma)
        values = [ab.dirichlet_bound(params, x, gamma, q, concentration, mask, total_count) for q in (random, best)]
        assert (values[0] <= values[1] + 1e-12).all() and (values[1] <= evidence + 1e-12).all()
        after = ab.best_concentration(x, best, concentration, mask, total_count)
        value = ab.dirichlet_bound(params, x, after, best, concentration, mask, total_count)
        assert (value >= values[1] - 1e-12).all()
        gamma = after * rng.uniform(0.5, 2.0, after.shape)
    gamma, bound = ab.best_dirichlet(params, x, concentration, mask, total_count)
    assert (bound <= evidence + 1e-12).all()
    free = ab.best_indicator(params, gamma)

    def total(value):
        return ab.dirichlet_bound(params, x, value, free, concentration, mask, total_count).sum()

    assert np.abs(slopes(total, gamma)).max() < 1e-6


def test_ab_dirichlet_bound_is_tight_with_one_entry_of_certain_aspect():
    """One observed draw that only aspect 0 can produce: the posterior is Dirichlet(alpha + e_0), the bound exact."""
    params, x = {"aspect_probability": np.array([[0.7], [0.0]])}, np.array([[1.0]])
    gamma, bound = ab.best_dirichlet(params, x, [0.5, 1.5])
    assert close(gamma, [[1.5, 1.5]]) and close(bound, np.log(0.7 * 0.25), atol=1e-12)
    assert close(bound, ab.log_evidence_indicators(params, x, [0.5, 1.5]), atol=1e-12)


def test_ab_flat_membership_density_is_gamma_of_k():
    params, x, _, membership, _ = ab_problem(7, num_components=3)
    likelihood = ab.log_likelihood(params, x, membership).sum()
    assert close(ab.log_joint(params, x, membership), likelihood + len(x) * gammaln(3), atol=1e-10)


@MISSING
def test_mixture_evidence_sums_to_one_and_m_step_is_the_optimum(missing):
    rng = np.random.default_rng(0)
    params = {"mixing_proportion": rng.dirichlet(np.ones(3)), "probability": rng.uniform(0.1, 0.9, (3, 4))}
    every = np.array(list(np.ndindex(2, 2, 2, 2)), dtype=float)
    assert close(np.exp(mixture.log_evidence(params, every)).sum(), 1.0, atol=1e-12)
    x = (rng.random((30, 4)) < 0.5).astype(float)
    mask = masked(rng, x.shape, missing)
    r = mixture.posterior(params, x, mask)
    best = mixture.m_step(x, r, mask)
    slope = slopes(lambda p: mixture.expected_log_joint({**best, "probability": p}, x, r, mask), best["probability"])
    assert np.abs(slope).max() < 1e-5
    for _ in range(20):
        other = {**best, "mixing_proportion": rng.dirichlet(50 * best["mixing_proportion"])}
        assert mixture.expected_log_joint(other, x, r, mask) <= mixture.expected_log_joint(best, x, r, mask)
    assert mixture.log_evidence(best, x, mask).sum() > mixture.log_evidence(params, x, mask).sum()
    one_hot = np.eye(3)[rng.integers(3, size=30)]
    assert close(mixture.log_joint(params, x, one_hot, mask), mixture.expected_log_joint(params, x, one_hot, mask))


def logistic_problem(seed, missing=0.0, num_components=2, num_features=4, num_rows=5):
    rng = np.random.default_rng(seed)
    params = {"weight": rng.normal(size=(num_components, num_features)), "bias": rng.normal(size=num_features)}
    x = (rng.random((num_rows, num_features)) < 0.5).astype(float)
    return params, x, masked(rng, x.shape, missing), rng


@MISSING
@pytest.mark.parametrize("num_components", [1, 2])
def test_logistic_evidence_by_two_quadratures(missing, num_components):
    params, x, mask, _ = logistic_problem(0, missing, num_components, num_rows=5 if num_components == 1 else 2)
    adaptive = logistic_pca.log_evidence_quadrature(params, x, mask)
    assert close(adaptive, logistic_pca.log_evidence_hermite(params, x, mask), atol=1e-8)


@pytest.mark.parametrize("num_components", [1, 2])
def test_logistic_evidence_sums_to_one(num_components):
    params, _, _, _ = logistic_problem(1, num_components=num_components)
    every = np.array(list(np.ndindex(2, 2, 2, 2)), dtype=float)
    assert close(np.exp(logistic_pca.log_evidence_hermite(params, every)).sum(), 1.0, atol=1e-12)


@MISSING
@pytest.mark.parametrize("num_components", [1, 2])
def test_logistic_chain_of_bounds_and_updates(missing, num_components):
    """Jaakkola bound <= ELBO of the same Gaussian <= evidence, for any q and xi; each update is that block's best."""
    params, x, mask, rng = logistic_problem(2, missing, num_components)
    evidence = logistic_pca.log_evidence_hermite(params, x, mask)
    seen = np.ones(x.shape, bool) if mask is None else mask
    for _ in range(10):
        mean = rng.normal(size=(len(x), num_components))
        root = rng.normal(size=(len(x), num_components, num_components)) * 0.7
        covariance = root @ root.transpose(0, 2, 1) + 0.1 * np.eye(num_components)
        xi = rng.uniform(0.0, 4.0, x.shape)

        def bound(mean=mean, covariance=covariance, xi=xi):
            return logistic_pca.jaakkola_bound(params, x, mean, covariance, xi, mask)

        elbo = logistic_pca.elbo_of_gaussian(params, x, mean, covariance, mask)
        best = logistic_pca.best_xi(params, mean, covariance)
        assert (bound() <= bound(xi=best) + 1e-12).all() and (bound(xi=best) <= elbo + 1e-8).all()
        assert (elbo <= evidence + 1e-8).all()
        mean, covariance = logistic_pca.best_gaussian(params, x, xi, mask)
        assert (bound() <= bound(mean, covariance) + 1e-12).all()
        slope = slopes(lambda m, c=covariance, bound=bound: bound(m, c).sum(), mean)
        assert np.abs(slope).max() < 1e-6
        wider = [bound(mean, covariance * factor) for factor in (0.99, 1.01)]
        assert all((value < bound(mean, covariance)).all() for value in wider)
    mean, covariance, xi, value = logistic_pca.best_jaakkola(params, x, mask)
    assert (value <= evidence).all() and (evidence - value)[seen.any(1)].max() < 1.0
    new = logistic_pca.best_loadings(x, mean, covariance, xi, mask)
    for site in new:

        def total(v, site=site):
            return logistic_pca.jaakkola_bound({**new, site: v}, x, mean, covariance, xi, mask).sum()

        observed_features = seen.any(0)
        assert np.abs(slopes(total, new[site]))[..., observed_features].max() < 1e-5, site


def test_logistic_curvature_at_zero_and_bound_at_its_touching_points():
    xi = np.array([0.0, 1e-5, 1e-4 * 0.999, 1e-4 * 1.001, 0.5, 3.0, 40.0])
    touch = 0.5 * xi - 0.5 * xi - np.logaddexp(0.0, -xi)
    for sign in (-1, 1):
        theta = sign * xi
        log_sigmoid = -np.logaddexp(0.0, -theta)
        quadratic = theta / 2 - xi / 2 + touch - logistic_pca.curvature(xi) * (theta**2 - xi**2)
        assert close(quadratic, log_sigmoid, atol=1e-14)
    assert close(logistic_pca.curvature([0.0, 1e-4 * 0.999, 1e-4 * 1.001]), 0.125, atol=1e-9)


@pytest.mark.parametrize("reference", [ab, logistic_pca])
def test_empirical_bayes_of_one_training_row_is_its_likelihood(reference):
    if reference is ab:
        params, x, mask, local, _ = ab_problem(8, 0.3)
    else:
        params, x, mask, rng = logistic_problem(8, 0.3)
        local = rng.normal(size=(len(x), 2))
    value = reference.empirical_bayes_log_likelihood(params, local[:1], x, mask)
    assert close(value, reference.log_likelihood(params, x, np.repeat(local[:1], len(x), 0), mask))
    several = np.exp([reference.log_likelihood(params, x, np.repeat(s[None], len(x), 0), mask) for s in local])
    assert close(reference.empirical_bayes_log_likelihood(params, local, x, mask), np.log(several.mean(0)))


def test_no_reference_reads_a_missing_entry():
    """NaN in every unobserved entry leaves every number as it is."""

    def nan(x, mask):
        return np.where(mask, x, np.nan)

    params, x, mask, membership, _ = ab_problem(9, 0.3)
    for function in (ab.log_likelihood, ab.update_membership, ab.update_aspects):
        assert np.array_equal(function(params, x, membership, mask), function(params, nan(x, mask), membership, mask))
    params, x, mask, _ = logistic_problem(9, 0.3)
    for function in (logistic_pca.log_evidence_hermite, lambda *a: logistic_pca.best_jaakkola(*a)[3]):
        assert np.array_equal(function(params, x, mask), function(params, nan(x, mask), mask))
