"""Dirichlet posteriors of proportions: expectations, divergences, modes, density."""

import numpy as np
import pytest
import torch

from custom_inference.families.common import dirichlet as _dirichlet

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("groups", [1, 3])
def test_expectations_and_divergences_are_those_of_torch_group_by_group(groups):
    posterior, prior = torch.rand(4, 6) * 5 + 0.1, torch.rand(6) * 2 + 0.1
    cut = [torch.distributions.Dirichlet(part) for part in posterior.unflatten(-1, (groups, -1)).unbind(1)]
    against = [torch.distributions.Dirichlet(part) for part in prior.unflatten(-1, (groups, -1))]
    divergence = sum(torch.distributions.kl_divergence(q, p) for q, p in zip(cut, against, strict=True))
    assert torch.allclose(_dirichlet.dirichlet_divergence(posterior, prior, groups), divergence)
    means = torch.cat([q.mean for q in cut], -1)
    assert torch.allclose(_dirichlet.normalised(posterior, groups), means)
    draws = torch.cat([q.sample(torch.Size([200_000])).log() for q in cut], -1)
    error = draws.std(0) / np.sqrt(len(draws))
    assert bool(((_dirichlet.expected_log(posterior, groups) - draws.mean(0)).abs() < 5 * error).all())


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("smallest", [0.3, 1.0, 1.5])
def test_modes_maximise_their_density_in_their_basis(groups, smallest):
    """Any other point of the simplex scores less; in the softmax basis, the gradient by the logits vanishes."""
    counts, prior = torch.rand(3, 6) * 4, smallest + torch.rand(6)
    prior[0] = smallest
    mode = _dirichlet.softmax_or_simplex(counts, prior, groups=groups)

    def score(value):
        return torch.xlogy(counts, value).sum() + _dirichlet.log_prior_density(value, prior, groups=groups)

    logits = mode.log().requires_grad_()
    score(logits.unflatten(-1, (groups, -1)).softmax(-1).flatten(-2)).backward()
    assert logits.grad is not None
    assert float(logits.grad.abs().max()) < 1e-10
    for _ in range(20):
        other = _dirichlet.normalised(mode * (1 + 0.1 * torch.rand(3, 6)), groups)
        assert float(score(other)) < float(score(mode))


def test_density_on_the_simplex_is_torchs():
    value, prior = torch.rand(4, 5).softmax(-1), 1 + torch.rand(5)
    expected = torch.distributions.Dirichlet(prior).log_prob(value).sum()
    assert torch.allclose(_dirichlet.log_prior_density(value, prior), expected)
    assert float(_dirichlet.log_prior_density(value, torch.ones(5))) == 0.0
