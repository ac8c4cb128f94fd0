"""Posteriors: their samples, moments and densities belong together; those of scores by quadrature, of proportions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import gammaln, logsumexp

from custom_inference.core.posterior_bounds import bound_of
from custom_inference.core.posteriors import (
    BernoulliPosterior,
    CodePosterior,
    DirichletMixture,
    DirichletPosterior,
    GaussianPosterior,
    LogisticNormalPosterior,
    LogisticPosterior,
    PointPosterior,
    kullback_leibler,
)
from custom_inference.families.factors.quadrature import LogisticQuadrature
from ppl_models import Data, LogisticPCA, MethodError
from ppl_models.distributions import all_codes

pytestmark = pytest.mark.quick

ROOT = torch.tensor([[[1.0, 0.0], [0.4, 0.7]]])
EVERY = {
    "codes": CodePosterior(all_codes(2), torch.log(torch.tensor([[0.1, 0.2, 0.3, 0.4]]))),
    "own codes": CodePosterior(all_codes(2)[None, :3], torch.log(torch.tensor([[0.2, 0.5, 0.3]]))),
    "bits": BernoulliPosterior(torch.tensor([[0.2, 0.9]])),
    "dirichlet": DirichletPosterior(torch.tensor([[1.5, 4.0]])),
    "mixture": DirichletMixture(torch.log(torch.tensor([[0.5, 0.5]])), torch.tensor([[1.0, 1.0], [1.0, 3.0]])),
    "gaussian": GaussianPosterior(torch.tensor([[0.3, -1.0]]), ROOT @ ROOT.mT),
    "logistic normal": LogisticNormalPosterior(torch.tensor([[0.7]]), torch.tensor([[[0.5]]])),
    "point": PointPosterior(torch.tensor([[0.3, 0.7]])),
}


@pytest.mark.parametrize("name", EVERY)
def test_samples_have_the_mean(name):
    posterior, number = EVERY[name], 20_000
    draws = posterior.sample(number, seed=1)
    assert draws.shape == (number, 1, 2) and torch.equal(draws, posterior.sample(number, seed=1))
    error = 5 * draws.std(0) / number**0.5 + 1e-5  # float32
    assert ((draws.mean(0) - posterior.mean).abs() < error).all()


@pytest.mark.parametrize("name", EVERY)
def test_single_samples_of_many_seeds_have_the_mean(name):
    """The choice of a mixture's part and the draw from it must not share their random numbers."""
    draws = torch.stack([EVERY[name].sample(1, seed=seed)[0, 0] for seed in range(3000)])
    error = 5 * draws.std(0) / 3000**0.5 + 1e-5  # float32
    assert ((draws.mean(0) - EVERY[name].mean[0]).abs() < error).all()


@pytest.mark.parametrize("name", ["dirichlet", "mixture", "logistic normal"])
def test_densities_on_the_simplex_integrate_to_one(name):
    first = (torch.arange(20_000) + 0.5) / 20_000
    points = torch.stack([first, 1 - first], -1)
    posterior = EVERY[name]
    density = torch.stack([posterior.log_prob(point[None]) for point in points[::10]]).exp()
    assert np.isclose(float(density.mean()), 1.0, atol=2e-3)


def test_densities_of_mixtures_on_faces_are_scipys():
    """By the definition: of a component without one of the places the density of the others."""
    rng, share = np.random.default_rng(0), np.array([[0.2, 0.8], [0.7, 0.3]])
    concentration = np.array([[1.5, 0.7, 2.0], [3.0, 0.0, 0.4]])
    local = rng.dirichlet(np.ones(3), 2)
    expected = np.zeros((2, 2))
    for m, one in enumerate(concentration):
        for n, point in enumerate(local):
            there = one > 0
            log_normaliser = gammaln(one[there]).sum() - gammaln(one.sum())
            expected[n, m] = ((one[there] - 1) * np.log(point[there])).sum() - log_normaliser
    each, log_share = torch.as_tensor(concentration), torch.as_tensor(np.log(share))
    found = DirichletMixture(log_share, each).log_prob(torch.as_tensor(local))
    assert np.allclose(found, logsumexp(np.log(share) + expected, axis=1), atol=1e-12)
    for m in range(2):
        found = DirichletPosterior(each[m].expand(2, -1)).log_prob(torch.as_tensor(local))
        assert np.allclose(found, expected[:, m], atol=1e-12)


def test_the_gaussian_density_is_scipys():
    from scipy.stats import multivariate_normal

    posterior = EVERY["gaussian"]
    expected = multivariate_normal(posterior.mean[0], (ROOT @ ROOT.mT)[0]).logpdf([0.1, 0.2])
    assert np.isclose(float(posterior.log_prob(torch.tensor([[0.1, 0.2]]))), expected)


@pytest.mark.parametrize("name", EVERY)
def test_rows_keep_the_posterior(name):
    posterior = EVERY[name]
    assert torch.equal(posterior.rows(slice(0, 1)).mean, posterior.mean)
    assert torch.equal(posterior.rows(torch.tensor([0])).mode, posterior.mode)


def test_divergences():
    codes, bits = EVERY["codes"], EVERY["bits"]
    weight, other = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.08, 0.02, 0.72, 0.18])
    assert np.isclose(float(kullback_leibler(codes, bits)), float((weight * (weight / other).log()).sum()))
    same = kullback_leibler(EVERY["dirichlet"], EVERY["dirichlet"])
    assert float(same) == 0
    narrow, wide = DirichletPosterior(torch.tensor([[3.0, 5.0]])), DirichletPosterior(torch.tensor([[1.0, 1.0]]))
    exact = torch.distributions.kl_divergence(
        torch.distributions.Dirichlet(narrow.concentration), torch.distributions.Dirichlet(wide.concentration)
    )
    assert np.isclose(float(kullback_leibler(narrow, wide)), float(exact), atol=0.1)  # 1000 draws, sd below .02
    assert float(kullback_leibler(EVERY["point"], wide)) == np.inf


def test_continuous_posteriors_have_no_table():
    with pytest.raises(MethodError, match="no table"):
        EVERY["dirichlet"].table()


MODELS = {size: LogisticPCA(num_components=size, num_features=5) for size in (1, 2)}


def posterior_of(num_components: int, missing: bool = False) -> tuple[LogisticPosterior, dict[str, torch.Tensor], Data]:
    """Of six rows under weights that make it skew."""
    generator = torch.Generator().manual_seed(num_components)
    model = MODELS[num_components]
    size = {1: 5.0, 2: 2.5}[num_components]
    params = {
        "weight": size * torch.randn((num_components, 5), generator=generator, dtype=torch.float64).abs(),
        "bias": torch.randn(5, generator=generator, dtype=torch.float64),
    }
    x = (torch.rand((6, 5), generator=generator) < 0.5).double()
    x[0] = 1  # nearly half a normal distribution
    mask = torch.rand((6, 5), generator=generator) < 0.6 if missing else None
    data = model.prepare(x, mask=mask, dtype=torch.float64)
    steps = quadrature(model)
    posterior = steps.posterior(model, params, steps.rows(model, data))
    assert isinstance(posterior, LogisticPosterior)
    return posterior, params, data


def quadrature(model: LogisticPCA) -> LogisticQuadrature:
    steps = LogisticQuadrature()
    assert isinstance(steps, LogisticQuadrature)
    return steps


def lattice(num_components: int) -> tuple[torch.Tensor, float]:
    """Points (Q, K) over the prior's whole width, and the volume of each."""
    points = {1: 20_001, 2: 401}[num_components]
    axis = torch.linspace(-8, 8, points, dtype=torch.float64)
    every = torch.cartesian_prod(*[axis] * num_components).reshape(-1, num_components)
    return every, (16 / (points - 1)) ** num_components


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("num_components", [1, 2])
def test_density_integrates_to_one_with_the_moments(num_components, missing):
    posterior, _, _ = posterior_of(num_components, missing)
    points, volume = lattice(num_components)
    weight = posterior.log_prob(points[:, None].expand(-1, 6, -1)).exp() * volume  # (Q, N)
    assert np.allclose(weight.sum(0), 1, atol=1e-6)
    mean = torch.einsum("qn,qk->nk", weight, points)
    assert np.allclose(mean, posterior.mean, atol=1e-6)
    second = torch.einsum("qn,qk,ql->nkl", weight, points, points) - mean[:, :, None] * mean[:, None]
    assert np.allclose(second, posterior.covariance, atol=1e-6)


def test_draws_of_one_score_have_its_distribution_function():
    """Kolmogorov-Smirnov against the integrated density, which is far from normal in the first rows."""
    posterior, _, _ = posterior_of(1)
    points, volume = lattice(1)
    density = posterior.log_prob(points[:, None].expand(-1, 6, -1)).exp()
    function = (density.cumsum(0) - density / 2) * volume
    draws = posterior.sample(20_000, seed=3)[..., 0].sort(0).values
    normal = GaussianPosterior(posterior.location, posterior.covariance).sample(20_000, seed=3)[..., 0].sort(0).values
    place = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    apart, apart_normal = (
        [float(np.abs(np.interp(one[:, n], points[:, 0], function[:, n]) - place.numpy()).max()) for n in range(6)]
        for one in (draws, normal)
    )
    critical = 1.95 / 20_000**0.5  # p = .001
    assert max(apart) < critical and max(apart_normal) > 2 * critical


def test_draws_of_two_scores_have_the_moments():
    """Of first to third order, along both axes and across."""
    posterior, _, _ = posterior_of(2)
    points, volume = lattice(2)
    weight = posterior.log_prob(points[:, None].expand(-1, 6, -1)).exp() * volume
    draws = posterior.sample(40_000, seed=4)
    for first, second in ((1, 0), (0, 1), (2, 0), (1, 1), (0, 2), (3, 0), (2, 1), (0, 3)):
        drawn = draws[..., 0] ** first * draws[..., 1] ** second
        expected = weight.T @ (points[:, 0] ** first * points[:, 1] ** second)
        assert ((drawn.mean(0) - expected).abs() < 4.5 * drawn.std(0) / 200 + 2e-3).all()


@pytest.mark.parametrize("num_components", [1, 2])
def test_the_mode_is_stationary(num_components):
    posterior, _, _ = posterior_of(num_components, missing=True)
    mode = posterior.mode.clone().requires_grad_()
    posterior.log_prob(mode).sum().backward()
    assert mode.grad is not None and float(mode.grad.abs().max()) < 1e-6  # heights are compared
    assert (posterior.log_prob(posterior.mode) >= posterior.log_prob(posterior.mean)).all()


@pytest.mark.parametrize("num_components", [1, 2])
def test_divergence_is_the_gap_of_the_bound(num_components):
    """KL(q || p) = log p(x) - ELBO(q): of the Gaussian with the same moments, and 0 of the posterior itself."""
    posterior, params, data = posterior_of(num_components)
    model = MODELS[num_components]
    assert np.allclose(bound_of(model, params, data, posterior), posterior.log_evidence, atol=1e-8)
    gaussian = GaussianPosterior(posterior.location, posterior.covariance)
    gap = posterior.log_evidence - bound_of(model, params, data, gaussian)
    divergence = kullback_leibler(gaussian, posterior)
    assert float(divergence.mean()) > 0.003
    assert np.allclose(gap, divergence, atol=0.02 + 0.2 * float(divergence.max()))


def test_rows_and_far_weights():
    """Rows keep what belongs to them; the mode is found where the first Newton step would leap."""
    posterior, _, _ = posterior_of(2, missing=True)
    some = posterior.rows(torch.tensor([4, 1]))
    at = posterior.mean[[4, 1]]
    torch.testing.assert_close(some.log_prob(at), posterior.log_prob(posterior.mean)[[4, 1]], rtol=1e-12, atol=0)
    model, rows = MODELS[1], torch.tensor([[1.0, 1, 1, 1, 1], [0, 0, 0, 0, 0]], dtype=torch.float64)
    steps = quadrature(model)
    params = {"weight": torch.full((1, 5), 30.0).double(), "bias": torch.full((5,), -40.0).double()}
    far = steps.posterior(model, params, steps.rows(model, model.prepare(rows, dtype=torch.float64)))
    mode = far.mode.clone().requires_grad_()
    far.log_prob(mode).sum().backward()
    assert mode.grad is not None and float(mode.grad.abs().max()) < 1e-6
