"""Normal and inverse Wishart pairs against scipy.stats."""

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import stats

from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.conjugate.wishart import InverseWishart, draw_wishart_factor
from ppl_models import GaussianPCA, PriorError


def test_densities_and_divergences_of_vectors():
    mean, precision = torch.tensor([0.3, -2.0]).double(), torch.tensor([1e-4, 30.0]).double()
    prior, value = Normal(mean, precision), torch.tensor([[1.0, -2.1], [40.0, 0.0]]).double()
    expected = torch.distributions.Normal(mean, precision.rsqrt()).log_prob(value).sum(-1)
    torch.testing.assert_close(prior.log_kernel(value) + prior.log_constant(), expected)
    half = torch.randn(5, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    covariance, at = half @ half.mT + 0.1 * torch.eye(2).double(), value[:1].expand(5, 2)
    q = torch.distributions.MultivariateNormal(at, covariance)
    p = torch.distributions.MultivariateNormal(mean, torch.diag(1 / precision))
    apart = torch.distributions.kl_divergence(q, p)
    torch.testing.assert_close(prior.kl_of(at, covariance, torch.logdet(covariance)), apart)
    flat = Normal(mean, precision * torch.tensor([0.0, 1.0]).double())
    alone = 0.5 * torch.log(precision[1] / (2 * torch.pi))
    torch.testing.assert_close(flat.log_constant(), alone)


def test_priors_are_read_and_flat_ones_refused():
    model, like = GaussianPCA(num_components=2, num_features=3), torch.zeros(()).double()
    prior = Normal.of(model.with_priors(score=dist.Normal(torch.zeros(2), 2.0)), "score", (2,), like)
    assert prior.is_proper
    assert prior.is_central(-1)
    assert prior.precision.tolist() == [0.25, 0.25]
    assert not Normal(prior.mean + 1, prior.precision).is_central(-1)
    assert not Normal(prior.mean, prior.precision * torch.tensor([1.0, 2.0])).is_central(-1)
    with pytest.raises(PriorError, match="'score' is flat"):
        Normal(prior.mean, 0 * prior.precision).require_proper("score")


@pytest.mark.parametrize("df", [3.0, 3.5, 60.0])
def test_inverse_wisharts_are_scipys(df):
    rng = np.random.default_rng(1)
    half = rng.standard_normal((3, 3))
    pair, law = InverseWishart(df, half @ half.T), stats.invwishart(df, half @ half.T)
    value = law.rvs(random_state=rng)
    assert pair.log_density(value) == pytest.approx(law.logpdf(value), rel=1e-9)
    np.testing.assert_allclose(pair.mode, stats.invwishart(df, half @ half.T).mode())
    if df > 4:
        np.testing.assert_allclose(pair.mean, law.mean())
    else:
        np.testing.assert_allclose(pair.mean, pair.mode)
    scatter = np.outer([1.0, 2, 3], [1, 2, 3])
    after = pair.update(1, scatter)
    assert after.df == df + 1
    evidence = law.logpdf(value) + stats.multivariate_normal(np.zeros(3), value).logpdf([1, 2, 3])
    other = np.eye(3)
    gain = law.logpdf(other) + stats.multivariate_normal(np.zeros(3), other).logpdf([1, 2, 3]) - evidence
    assert after.log_density(other) - after.log_density(value) == pytest.approx(gain)


def test_draws_of_wisharts_have_the_means():
    rng, scale = np.random.default_rng(0), np.array([[2.0, 0.5], [0.5, 1.0]])
    drawn = np.array([InverseWishart(9.0, scale).draw(rng) for _ in range(4000)])
    mean, error = stats.invwishart(9.0, scale).mean(), drawn.std(0) / np.sqrt(4000)
    assert (np.abs(drawn.mean(0) - mean) < 4.5 * error).all()
    factors = np.array([draw_wishart_factor(2.5, 2, rng) for _ in range(4000)])
    products = factors @ factors.transpose(0, 2, 1)
    error = products.std(0) / np.sqrt(4000)
    assert (np.abs(products.mean(0) - 2.5 * np.eye(2)) < 4.5 * error).all()
