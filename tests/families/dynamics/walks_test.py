"""Smoothing by elimination against dense Gaussians, and the walks' prior, divergence and hyper-parameters."""

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.optimize import minimize_scalar

from custom_inference.core.posteriors import WalkPosterior
from custom_inference.core.posteriors.walk import Tridiagonal
from custom_inference.families.dynamics.walks import WalkPrior, WalkState, hyper_steps
from ppl_models import DTM
from tests.references import dtm as reference

pytestmark = pytest.mark.quick


def dense(diagonal, coupling):
    """(K, V, T, T) of chains."""
    size = len(diagonal)
    beside = torch.eye(size).roll(1, 0).tril(-1) + torch.eye(size).roll(1, 1).triu(1)
    return torch.diag_embed(diagonal.permute(1, 2, 0)) - coupling[..., None, None] * beside


def chains(size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    coupling = torch.rand(2, 3, generator=generator) + 0.2
    return 2 * coupling + 0.1 + torch.rand(size, 2, 3, generator=generator), coupling


@pytest.mark.parametrize("size", [1, 2, 7])
def test_elimination_is_what_dense_matrices_give(size):
    diagonal, coupling = chains(size)
    matrix, made = dense(diagonal, coupling), Tridiagonal.of(diagonal, coupling)
    inverse = torch.linalg.inv(matrix)
    assert torch.allclose(made.log_det, torch.logdet(matrix))
    right = torch.randn(size, 2, 3)
    expected = (inverse @ right.permute(1, 2, 0)[..., None]).squeeze(-1).permute(2, 0, 1)
    assert torch.allclose(made.solve(right), expected)
    variance, covariance = made.variances()
    assert torch.allclose(variance, inverse.diagonal(dim1=-2, dim2=-1).permute(2, 0, 1))
    assert torch.allclose(covariance, inverse.diagonal(offset=1, dim1=-2, dim2=-1).permute(2, 0, 1))


@pytest.mark.parametrize("unseen", [(), (0, 1), (2,), (5,)])
def test_a_walk_seen_with_noise_is_smoothed_exactly(unseen):
    """Slices without observations included."""
    rng = np.random.default_rng(3)
    y, w = rng.normal(size=6), rng.uniform(0.5, 3.0, 6)
    w[list(unseen)] = 0
    mean, covariance, _ = reference.smoothed(y, w, first=1.7, drift=0.3, mean=0.4)
    model = DTM(num_topics=1, vocabulary_size=1, num_times=6)
    hypers = {
        "drift_variance": torch.tensor(0.3),
        "background": torch.tensor([0.4]),
        "initial_scale": torch.tensor(1.7**0.5),
    }
    prior = WalkPrior(model, hypers)
    weight, seen = torch.tensor(w)[:, None, None], torch.tensor(y)[:, None, None]
    chain = Tridiagonal.of(prior.diagonal + weight, prior.coupling)
    start = torch.randn(6, 1, 1)
    found = start + chain.solve(weight * (seen - start) - prior.pull(start))
    assert np.allclose(found.flatten(), mean) and np.allclose(chain.variances()[0].flatten(), np.diag(covariance))


def test_draws_have_the_moments_and_the_density():
    diagonal, coupling = chains(4, seed=1)
    posterior = WalkPosterior(torch.randn(4, 2, 3), diagonal, coupling)
    draws = posterior.sample(40_000, seed=1)
    error = (posterior.variance / 40_000).sqrt()
    assert ((draws.mean(0) - posterior.mean).abs() < 5 * error).all()
    assert torch.allclose(draws.var(0), posterior.variance, rtol=0.06)
    normal = dist.MultivariateNormal(posterior.mean.permute(1, 2, 0), precision_matrix=dense(diagonal, coupling))
    expected = normal.log_prob(draws[:3].permute(0, 2, 3, 1)).sum((1, 2))
    assert torch.allclose(posterior.log_prob(draws[:3])[:, 0], expected)


def state_of(model, seed=0):
    torch.manual_seed(seed)
    diagonal, _ = chains(model.num_times, seed)
    hypers = {"drift_variance": torch.tensor(0.3), "background": torch.randn(3), "initial_scale": torch.tensor(1.4)}
    coupling = 0.2 + torch.rand(2, 3)
    return WalkState(torch.randn(model.num_times, 2, 3), diagonal + 2 * coupling, coupling, **hypers)


@pytest.mark.parametrize("size", [1, 4])
def test_the_divergence_is_that_of_dense_gaussians(size):
    model = DTM(num_topics=2, vocabulary_size=3, num_times=size).with_priors(topic_logit=dist.Normal(0.3, 1.5))
    state = state_of(model)
    prior = WalkPrior(model, state.hypers)
    q = dist.MultivariateNormal(state.mean.permute(1, 2, 0), precision_matrix=dense(state.diagonal, state.coupling))
    precision = torch.tensor(reference.walk_precision(size, (1.4 * 1.5) ** 2, 0.3))
    centre = (state.background + 1.4 * 0.3).expand(2, 3)[..., None].expand(2, 3, size)
    p = dist.MultivariateNormal(centre, precision_matrix=precision.expand(2, 3, size, size))
    assert torch.allclose(prior.divergence(state.mean, state.eliminated), torch.distributions.kl_divergence(q, p))
    # the density of the program at a point is that of the prior read here
    walk = model.prior("topic_logit", values=state.hypers)
    assert torch.allclose(walk.log_prob(state.mean), p.log_prob(state.mean.permute(1, 2, 0)).sum())


def test_numbers_added_to_all_words_go_where_the_walk_likes_them_best():
    model = DTM(num_topics=2, vocabulary_size=3, num_times=4).with_priors(
        topic_logit=dist.Normal(0.3, torch.tensor([1.0, 0.5, 2.0]))
    )
    state = state_of(model)
    prior = WalkPrior(model, state.hypers)
    best = prior.centre_logits(state.mean)
    assert torch.allclose(torch.softmax(best, -1), torch.softmax(state.mean, -1))
    for _ in range(5):
        other = best + 0.1 * torch.randn(4, 2, 1)
        assert (prior.quadratic(other).sum(-1) > prior.quadratic(best).sum(-1)).all()


@pytest.mark.parametrize("size", [1, 4])
def test_hyper_parameters_are_at_their_maxima(size):
    """Of the expected log density, each given the others; under priors of any kind."""
    model = DTM(num_topics=2, vocabulary_size=3, num_times=size)
    model = model.with_priors(
        topic_logit=dist.Normal(0.3, 1.5), drift_variance=dist.HalfCauchy(1.0), initial_scale=dist.Uniform(0.2, 3.0)
    )
    state = state_of(model)
    posterior = state.posteriors(model)["topic_logit"]
    found = hyper_steps(model, state.hypers, state.mean, state.eliminated)

    def expected(**changed):
        """-KL + entropy, which no hyper-parameter changes, plus the log priors."""
        hypers = {**state.hypers, "background": found["background"], **changed}
        value = -WalkPrior(model, hypers).divergence(posterior.mean, posterior.eliminated).sum()
        return float(value + model.log_prior({**hypers, "topic_logit": posterior.mean}, hypers))

    places = [("drift_variance", -8.0, 5.0)] if size > 1 else []  # of one slice nothing says where it is
    for site, low, high in [*places, ("initial_scale", np.log(0.2), np.log(3.0))]:
        best = minimize_scalar(
            lambda u, site=site: -expected(**{site: torch.tensor(u).exp()}), bounds=(low, high), method="bounded"
        )
        assert expected(**{site: found[site]}) >= -best.fun - 1e-6
    at = found["background"].clone().requires_grad_()
    hypers = {**state.hypers, "background": at}
    value = -WalkPrior(model, hypers).divergence(posterior.mean, posterior.eliminated).sum() + model.prior(
        "background"
    ).log_prob(at)
    value.backward()
    assert at.grad is not None and at.grad.abs().max() < 1e-8


def test_known_hyper_parameters_are_held():
    model = DTM(num_topics=2, vocabulary_size=3, num_times=4).with_priors(
        drift_variance=0.01, initial_scale=2.0, background=torch.ones(3)
    )
    state = state_of(model)
    found = hyper_steps(model, state.hypers, state.mean, state.eliminated)
    assert all(torch.equal(found[site], state.hypers[site]) for site in found)
