"""Posteriors over the local latents: their samples, moments and densities belong together."""

import numpy as np
import pytest
import torch

from custom_inference.core.posteriors import (
    BernoulliPosterior,
    CodePosterior,
    DirichletMixture,
    DirichletPosterior,
    GaussianPosterior,
    PointPosterior,
    kullback_leibler,
)
from ppl_models import MethodError
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


@pytest.mark.parametrize("name", ["dirichlet", "mixture"])
def test_densities_on_the_simplex_integrate_to_one(name):
    first = (torch.arange(20_000) + 0.5) / 20_000
    points = torch.stack([first, 1 - first], -1)
    posterior = EVERY[name]
    density = torch.stack([posterior.log_prob(point[None]) for point in points[::10]]).exp()
    assert np.isclose(float(density.mean()), 1.0, atol=2e-3)


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
