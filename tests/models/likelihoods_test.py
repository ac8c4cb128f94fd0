"""Likelihoods by themselves: scipy's densities, finite differences, quadrature, and bounds that touch."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from ppl_models import DataError
from ppl_models.core.likelihood import expected_log_sum_exp, jaakkola_curvature, log_two_cosh_half, softmax_and_log_sum
from ppl_models.data.matrix import as_values_of
from ppl_models.likelihoods import Bernoulli, Binomial, Categorical, Gaussian, Multinomial, Ordinal, Poisson

CUTS = (-1.0, 0.3, 2.0)
#: Name -> likelihood, values x, scipy's log p(x | eta).
SCALARS = {
    "bernoulli": (Bernoulli(), [0.0, 1.0], lambda x, e: stats.bernoulli.logpmf(x, 1 / (1 + np.exp(-e)))),
    "binomial": (Binomial(7), [0.0, 3.0, 7.0], lambda x, e: stats.binom.logpmf(x, 7, 1 / (1 + np.exp(-e)))),
    "poisson": (Poisson(), [0.0, 1.0, 9.0], lambda x, e: stats.poisson.logpmf(x, np.exp(e))),
    "gaussian": (Gaussian(0.7), [-1.3, 0.0, 2.2], lambda x, e: stats.norm.logpdf(x, e, 0.7)),
    "ordinal": (Ordinal(CUTS), [0.0, 1.0, 2.0, 3.0], lambda x, e: np.log(
        np.diff(stats.logistic.cdf(np.array([-np.inf, *CUTS, np.inf])[:, None] - np.atleast_1d(e)), axis=0)
    )[int(x)].reshape(np.shape(e))),
}  # fmt: skip
FAMILIES = {name: case for name, case in SCALARS.items() if name != "ordinal"}
#: Name -> likelihood, values x, scipy's log p(x | eta) for eta (4,).
VECTORS = {
    "categorical": (Categorical(4), [0.0, 3.0], lambda x, p: np.log(p[int(x)])),
    "multinomial": (Multinomial(6), [[6.0, 0, 0, 0], [1.0, 2, 0, 3]], lambda x, p: stats.multinomial.logpmf(x, 6, p)),
    "tokens": (Multinomial(6, False), [[1.0, 2, 0, 3]], lambda x, p: (np.asarray(x) * np.log(p)).sum()),
}
ETA = torch.tensor([-30.0, -2.5, -0.4, 0.0, 1.1, 3.0], dtype=torch.float64)
VECTOR = torch.tensor([0.3, -1.2, 2.0, 0.1], dtype=torch.float64)


def number(value):
    return torch.as_tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("name", SCALARS)
def test_log_densities_are_scipys_and_pyros(name):
    likelihood, values, density = SCALARS[name]
    for x in values:
        found = likelihood.log_prob(number(x), ETA)
        # Scipy's probabilities cancel far out.
        near = ETA.abs() < 10
        assert np.allclose(found[near], density(x, ETA.numpy()[near]), rtol=0, atol=1e-11)
        assert torch.allclose(found, likelihood.distribution(ETA).log_prob(number(x)), rtol=1e-6, atol=1e-12)
        assert bool(torch.isfinite(found).all())


@pytest.mark.parametrize("name", VECTORS)
def test_log_densities_of_vectors_are_scipys(name):
    likelihood, values, density = VECTORS[name]
    share = torch.softmax(VECTOR, -1).numpy()
    for x in values:
        found = likelihood.log_prob(number(x), VECTOR)
        assert np.isclose(found, density(x, share), rtol=0, atol=1e-12)
        assert torch.allclose(likelihood.log_prob(number(x), VECTOR + 5.0), found), "logits have no level"
        if name != "tokens":
            assert torch.isclose(likelihood.distribution(VECTOR).log_prob(number(x)), found)
            assert torch.isclose(likelihood.with_mean(torch.softmax(VECTOR, -1)).log_prob(number(x)), found)


@pytest.mark.parametrize("name", FAMILIES)
def test_mean_and_curvature_are_derivatives_of_the_log_normaliser_and_moments(name):
    likelihood, eta, h = FAMILIES[name][0], ETA[1:], 1e-5
    slope = (likelihood.log_normaliser(eta + h) - likelihood.log_normaliser(eta - h)) / (2 * h)
    assert torch.allclose(likelihood.mean(eta), slope, atol=1e-8)
    slope = (likelihood.mean(eta + h) - likelihood.mean(eta - h)) / (2 * h)
    assert torch.allclose(likelihood.curvature(eta), slope, atol=1e-8)
    density = likelihood.distribution(eta)
    assert torch.allclose(likelihood.mean(eta), density.mean) and torch.allclose(
        likelihood.dispersion * likelihood.curvature(eta), density.variance
    )
    value = likelihood.mean(eta) / (likelihood.total if name == "binomial" else 1)
    assert torch.allclose(likelihood.natural(value), eta, atol=1e-10)
    x = number(1.0)
    assert torch.allclose(likelihood.with_mean(value).log_prob(x), likelihood.log_prob(x, eta), atol=1e-10)
    edge = likelihood.natural(number([0.0, 1.0]))
    assert bool(torch.isfinite(edge).all())


@pytest.mark.parametrize("name", VECTORS)
def test_mean_and_curvature_of_vectors_are_derivatives(name):
    likelihood = VECTORS[name][0]
    gradient = torch.autograd.functional.jacobian(likelihood.log_normaliser, VECTOR)
    hessian = torch.autograd.functional.hessian(likelihood.log_normaliser, VECTOR)
    assert torch.allclose(likelihood.mean(VECTOR), gradient) and torch.allclose(likelihood.curvature(VECTOR), hessian)
    back = torch.softmax(likelihood.natural(likelihood.mean(VECTOR) / likelihood.total), -1)
    assert torch.allclose(back, torch.softmax(VECTOR, -1))
    assert torch.allclose(likelihood.mean(VECTOR).sum(), number(likelihood.total))


def test_ordinal_probabilities_add_up_and_are_differences():
    likelihood = Ordinal(CUTS)
    probability = likelihood.mean(ETA)
    assert torch.allclose(probability.sum(-1), torch.ones(len(ETA), dtype=torch.float64))
    below = torch.sigmoid(number(CUTS) - ETA[:, None])
    assert torch.allclose(probability.cumsum(-1)[:, :-1], below)
    binary = Ordinal((0.0,)).log_prob(number(1.0), ETA)
    assert torch.allclose(binary, Bernoulli().log_prob(number(1.0), ETA))


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize("scale", [0.3, 1.0, 2.0])
def test_expected_log_densities_are_scipys_quadrature(name, scale):
    likelihood, values, density = SCALARS[name]
    for x in values:
        for mean in (-1.0, 0.8):

            def integrand(e, x=x, mean=mean):
                return stats.norm.pdf(e, mean, scale) * float(density(x, np.float64(e)))

            expected = integrate.quad(integrand, mean - 9 * scale, mean + 9 * scale, epsabs=1e-11, limit=200)[0]
            found = likelihood.expected_log_prob(number(x), number(mean), number(scale**2))
            assert abs(float(found) - expected) < 1e-7


@pytest.mark.parametrize("scale", [0.0, 0.5, 2.0])
def test_expected_log_sum_exp_of_two_is_quadrature_and_of_many_is_a_mean_over_draws(scale):
    mean, variance = number([0.3, -1.0]), scale**2 * number([1.0, 0.5])
    node, weight = np.polynomial.hermite_e.hermegauss(150)
    grid = np.logaddexp(
        *(float(m) + float(v) ** 0.5 * n for m, v, n in zip(mean, variance, (node[:, None], node), strict=True))
    )
    assert abs(float(expected_log_sum_exp(mean, variance)) - weight @ grid @ weight / (2 * math.pi)) < 1e-9
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(size=(2, 40)), scale**2 * rng.uniform(0.2, 1.0, (2, 40))
    draws = mean + np.sqrt(variance) * rng.normal(size=(20000, 2, 40))
    drawn = np.log(np.exp(draws).sum(-1))
    found = expected_log_sum_exp(number(mean), number(variance)).numpy()
    assert (np.abs(found - drawn.mean(0)) < 5 * drawn.std(0) / np.sqrt(20000) + 1e-9).all()


@pytest.mark.parametrize("name", VECTORS)
def test_expected_log_densities_of_vectors_are_linear_less_the_expected_log_normaliser(name):
    likelihood, values, _ = VECTORS[name]
    variance = number([0.5, 0.1, 1.0, 0.3])
    rng = np.random.default_rng(1)
    eta = VECTOR + number(rng.normal(size=(40000, 4))) * variance.sqrt()
    for x in values:
        each = likelihood.log_prob(number(x), eta)
        found = likelihood.expected_log_prob(number(x), VECTOR, variance)
        assert abs(float(found - each.mean())) < 5 * float(each.std()) / 200


@pytest.mark.parametrize("name", ["bernoulli", "binomial"])
def test_quadratic_bounds_stay_below_and_touch(name):
    likelihood, values, _ = SCALARS[name]
    grid = torch.linspace(-12, 12, 401, dtype=torch.float64)
    for x in map(number, values):
        exact = likelihood.log_prob(x, grid)
        for at in (0.0, 0.7, 4.0):
            xi = number(at)
            for bound, touches in ((likelihood.jaakkola(x, xi), (xi, -xi)), (likelihood.bohning(x, -xi), (-xi,))):
                assert bool((bound(grid) <= exact + 1e-12).all())
                for eta in touches:
                    assert torch.isclose(bound(eta), likelihood.log_prob(x, eta), atol=1e-12)
        mean, variance = number(0.4), number(1.7)
        xi = (mean.square() + variance).sqrt()
        best = likelihood.jaakkola(x, xi).expectation(mean, variance)
        others = [likelihood.jaakkola(x, xi + shift).expectation(mean, variance) for shift in (-0.1, 0.1)]
        assert best > max(others) and best < likelihood.expected_log_prob(x, mean, variance)
        draws = mean + variance.sqrt() * torch.randn(100_000, generator=torch.Generator().manual_seed(0)).double()
        assert abs(float(best - likelihood.jaakkola(x, xi)(draws).mean())) < 0.05


@pytest.mark.parametrize("name", VECTORS)
def test_quadratic_bounds_of_vectors_stay_below_and_touch(name):
    likelihood, values, _ = VECTORS[name]
    rng = np.random.default_rng(2)
    eta, variance = number(3 * rng.normal(size=(300, 4))), number([0.5, 0.1, 1.0, 0.3])
    for x in map(number, values):
        exact, at = likelihood.log_prob(x, eta), likelihood.log_prob(x, VECTOR)
        fixed = likelihood.bohning(x, VECTOR)
        assert bool((fixed(eta) <= exact + 1e-10).all()) and torch.isclose(fixed(VECTOR), at)
        centre = number(0.6)
        adapted = likelihood.jaakkola(x, (VECTOR - centre).abs(), centre)
        assert bool((adapted(eta) <= exact + 1e-10).all())
        softened = centre + torch.nn.functional.softplus(VECTOR - centre).sum()
        linear = (likelihood.statistic(x) * VECTOR).sum() + likelihood.log_base(x)
        assert torch.isclose(adapted(VECTOR), linear - likelihood.total * softened), "it touches Bouchard's sum"
        for bound in (fixed, adapted):
            draws = VECTOR + variance.sqrt() * number(rng.normal(size=(100_000, 4)))
            assert abs(float(bound.expectation(VECTOR, variance) - bound(draws).mean())) < 0.1
            assert bound.expectation(VECTOR, variance) < likelihood.expected_log_prob(x, VECTOR, variance)


def test_jaakkolas_functions_near_nothing_and_far_out():
    xi = number([0.0, 1e-9, 1e-4, 2.0, 800.0])
    expected = np.array([0.25, 0.25, 0.25, math.tanh(1.0) / 4, 1 / 1600])
    assert np.allclose(jaakkola_curvature(xi), expected, rtol=1e-7)
    assert np.allclose(log_two_cosh_half(xi)[:4], np.log(2 * np.cosh(xi[:4].numpy() / 2)))
    assert float(log_two_cosh_half(xi)[4]) == 400.0


@pytest.mark.parametrize(
    ("likelihood", "good", "bad"),
    [
        (Bernoulli(), [0.0, 1.0], [-1.0, 0.5, 2.0, math.inf]),
        (Binomial(3), [0.0, 3.0], [-1.0, 1.5, 4.0, math.inf]),
        (Poisson(), [0.0, 12.0], [-1.0, 0.5, math.inf]),
        (Gaussian(), [-3.7, 0.0], [math.inf, -math.inf]),
        (Categorical(3), [0.0, 2.0], [-1.0, 0.5, 3.0, math.inf]),
        (Multinomial(9), [0.0, 12.0], [-1.0, 0.5, math.inf]),
        (Ordinal(CUTS), [0.0, 3.0], [-1.0, 0.5, 4.0]),
    ],
)
def test_what_has_no_probability_is_refused(likelihood, good, bad):
    assert bool(likelihood.valid(number(good)).all()) and not bool(likelihood.valid(number(bad)).any())
    assert torch.equal(as_values_of(likelihood, np.array([good]), dtype=torch.float64).x, number([good]))
    what, expected = likelihood.refusal
    for value in bad:
        with pytest.raises(DataError, match=f"1 of 2 entries {what}.*in row 0, column 1") as caught:
            as_values_of(likelihood, np.array([[0.0, value]]))
        assert expected in str(caught.value)


@pytest.mark.parametrize("categories", [1, 2, 5, 300])
def test_softmax_and_its_normaliser(categories):
    """Those of torch, with their slopes; large logits, and categories that there are not."""
    generator = torch.Generator().manual_seed(categories)
    logits = 300 * torch.randn(4, 3, categories, generator=generator)
    logits[0, :, 1:] = -torch.inf
    share, log_sum = softmax_and_log_sum(logits)
    torch.testing.assert_close(share, torch.softmax(logits, -1))
    torch.testing.assert_close(log_sum, torch.logsumexp(logits, -1))
    small = torch.randn(2, min(categories, 5), generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(softmax_and_log_sum, (small,))
