"""Padded Dirichlets: of features with different numbers of categories side by side."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import gammaln
from torch.distributions import biject_to

from ppl_models.distributions import PaddedDirichlet, PaddedSimplex

SIZES = torch.tensor([2, 4, 3])


def density(value, concentration):
    """That of a Dirichlet, in NumPy."""
    powers = (concentration - 1) * np.log(value)
    return gammaln(concentration.sum()) - gammaln(concentration).sum() + powers.sum()


def test_the_density_is_that_of_the_places_that_are_there():
    concentration = torch.tensor([[2.0, 0.5, 7.0, 3.0], [1.5, 2.5, 0.7, 1.0], [3.0, 1.0, 2.0, 9.0]])
    law = PaddedDirichlet(concentration, SIZES)
    value = law.sample()
    for row, size in enumerate(SIZES.tolist()):
        expected = density(value[row, :size].numpy(), concentration[row, :size].numpy())
        assert float(law.log_prob(value)[row]) == pytest.approx(expected, rel=1e-10)
        assert bool((value[row, size:] == 0).all())
    basis = PaddedDirichlet(concentration, SIZES, powers=1.0).log_prob(value) - law.log_prob(value)
    logs = [value[row, :size].log().sum() for row, size in enumerate(SIZES.tolist())]
    assert torch.allclose(basis, torch.stack(logs))
    assert bool(law.support.check(value).all()) and not bool(law.support.check(torch.full((3, 4), 0.25))[0])


def test_draws_have_the_moments_of_the_dirichlets():
    torch.manual_seed(0)
    law = PaddedDirichlet(torch.tensor([2.0, 3.0, 5.0, 1.0]), SIZES)
    drawn = law.rsample((20000,))
    assert torch.allclose(drawn.mean(0), law.mean, atol=0.01)
    assert torch.allclose(drawn.var(0), law.variance, atol=0.005)
    assert torch.allclose(law.mean[0], torch.tensor([0.4, 0.6, 0.0, 0.0]))


def test_the_bijection_has_an_inverse_and_exact_zeros():
    transform = biject_to(PaddedSimplex(SIZES, 4))
    x = torch.randn(5, 3, 3)
    y = transform(x)
    assert bool((y[:, 0, 2:] == 0).all()) and bool((y[:, 2, 3:] == 0).all())
    assert torch.allclose(y.sum(-1), torch.ones(5, 3))
    back = transform.inv(y)
    assert torch.allclose(back[:, 1], x[:, 1]) and torch.allclose(back[:, 0, 0], x[:, 0, 0])
    assert bool((back[:, 0, 1:] == 0).all())


@pytest.mark.parametrize("size", [2, 3])
def test_the_density_of_unconstrained_coordinates_adds_up_to_one(size):
    """By a sum over a grid of both coordinates, of which one says nothing where there are two places."""
    step = torch.arange(-14.0, 14.0, 0.1)
    grid = torch.cartesian_prod(step, step)
    law = PaddedDirichlet(torch.tensor([2.0, 1.5, 2.5]), torch.tensor(size))
    transform = biject_to(law.support)
    y = transform(grid)
    inside = (y[:, :size] > 0).all(-1)
    logs = law.log_prob(y) + transform.log_abs_det_jacobian(grid, y)
    assert float(logs[inside].exp().sum() * 0.01) == pytest.approx(1.0, abs=1e-4)


def test_the_divergence_is_that_of_the_dirichlets():
    q, p = (PaddedDirichlet(torch.tensor(one), torch.tensor([2, 3])) for one in ([2.0, 3.0, 4.0], [1.0, 0.5, 2.0]))
    found = torch.distributions.kl_divergence(q, p)
    for row, size in enumerate((2, 3)):
        own = (torch.distributions.Dirichlet(one.concentration[row, :size]) for one in (q, p))
        assert float(found[row]) == pytest.approx(float(torch.distributions.kl_divergence(*own)), rel=1e-10)
