"""Labelings of nodes as one event, and symmetric matrices: densities, supports, transforms, generic guides."""

from __future__ import annotations

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO, TraceEnum_ELBO
from pyro.infer.autoguide import AutoDelta, AutoNormal
from pyro.optim import Adam
from torch.distributions import biject_to, kl_divergence, transform_to

from ppl_models import CapacityError
from ppl_models.distributions import EndBlocks, Labelling, Symmetric, all_labelings

pytestmark = pytest.mark.quick

ENTRIES = {
    "beta": lambda: dist.Beta(2.0, 3.0),
    "gamma": lambda: dist.Gamma(2.0, 1.5),
    "normal": lambda: dist.Normal(0.3, 1.2),
    "lognormal": lambda: dist.LogNormal(-0.5, 0.7),
}
SHAPES = [(1, 1), (3, 3), (2, 2, 3)]


def shares(*shape: int) -> torch.Tensor:
    return dist.Dirichlet(torch.ones(shape[-1])).sample(torch.Size(shape[:-1]))


def symmetric(name: str, shape: tuple[int, ...]) -> Symmetric:
    return Symmetric(ENTRIES[name]().expand(torch.Size(shape)))


# ----- labelings --------------------------------------------------------------------------------------------------


def test_all_labelings_count_in_base_k():
    every = all_labelings(3, 4)
    assert every.shape == (64, 3) and len(every.unique(dim=0)) == 64
    assert every[27].tolist() == [1, 2, 3] and torch.equal(all_labelings(2, 1), torch.zeros(1, 2).long())


def test_log_probabilities_of_labelings_sum_to_one():
    labelling = Labelling(shares(4, 3))
    every = labelling.enumerate_support()
    assert every.shape == (81, 4) and labelling.event_shape == (4,) and labelling.batch_shape == ()
    assert torch.isclose(labelling.log_prob(every).logsumexp(0), torch.zeros(()), atol=1e-12)
    chosen = torch.tensor([2, 0, 1, 1])
    assert torch.isclose(labelling.log_prob(chosen), labelling.probs[torch.arange(4), chosen].log().sum())
    assert torch.isclose(labelling.entropy(), -(labelling.log_prob(every).exp() * labelling.log_prob(every)).sum())


def test_batches_of_labelings():
    labelling = Labelling(shares(2, 4, 3))
    assert labelling.batch_shape == (2,) and labelling.sample().shape == (2, 4)
    assert labelling.sample(torch.Size([5])).shape == (5, 2, 4)
    assert labelling.enumerate_support().shape == (81, 2, 4)
    assert labelling.enumerate_support(expand=False).shape == (81, 1, 4)
    assert labelling.log_prob(labelling.enumerate_support(expand=False)).shape == (81, 2)
    wide = Labelling(shares(4, 3)).expand(torch.Size([6]))
    assert wide.batch_shape == (6,) and wide.sample().shape == (6, 4)


def test_samples_have_their_probabilities():
    probs = shares(2, 3)
    drawn = Labelling(probs).sample(torch.Size([20000]))
    found = torch.nn.functional.one_hot(drawn, 3).double().mean(0)
    assert float((found - probs).abs().max()) < 5 * 0.5 / 20000**0.5


def test_values_off_the_support_and_shares_off_the_simplex_are_refused():
    labelling = Labelling(shares(2, 3), validate_args=True)
    for wrong in (torch.tensor([0, 3]), torch.tensor([-1, 0]), torch.tensor([0.5, 0.0])):
        with pytest.raises(ValueError, match="support"):
            labelling.log_prob(wrong)
    with pytest.raises(ValueError, match="probs"):
        Labelling(torch.ones(2, 3), validate_args=True)


def test_a_block_of_probability_zero_has_a_finite_density():
    probs = torch.tensor([[1.0, 0.0], [0.5, 0.5]], requires_grad=True)
    value = Labelling(probs).log_prob(torch.tensor([1, 0]))
    value.backward()
    assert torch.isfinite(value) and torch.isfinite(probs.grad).all()


def test_too_many_labelings_are_refused():
    with pytest.raises(CapacityError, match="at most 13 nodes") as caught:
        all_labelings(40, 3)
    assert caught.value.needed_bytes > caught.value.allowed_bytes


def test_divergence_of_labelings_is_the_sum_over_all():
    q, p = Labelling(shares(4, 3)), Labelling(shares(4, 3))
    every = q.enumerate_support()
    log_q, log_p = q.log_prob(every), p.log_prob(every)
    assert torch.isclose(kl_divergence(q, p), (log_q.exp() * (log_q - log_p)).sum())
    sure = Labelling(torch.eye(3)[[0, 1, 2, 0]])
    assert torch.isclose(kl_divergence(sure, p), -p.log_prob(torch.tensor([0, 1, 2, 0])))


def test_pairs_of_blocks_are_laid_out_on_a_grid():
    pairs = EndBlocks.every(3)
    assert torch.equal(torch.broadcast_tensors(*pairs)[0][..., 0], torch.arange(3)[:, None].expand(3, 3))
    assert (pairs.first + 10 * pairs.second).shape == (3, 3, 1)


def test_pyro_sums_over_labelings():
    """The evidence of a program whose observation depends on all nodes at once."""
    probs = shares(3, 2)

    def model():
        block = pyro.sample("block", Labelling(probs), infer={"enumerate": "parallel"})
        pyro.sample("x", dist.Bernoulli(0.1 + 0.25 * block.sum(-1)), obs=torch.tensor(1.0))

    evidence = -TraceEnum_ELBO(max_plate_nesting=0).loss(model, lambda: None)
    every = all_labelings(3, 2)
    expected = (Labelling(probs).log_prob(every).exp() * (0.1 + 0.25 * every.sum(-1))).sum().log()
    assert np.isclose(evidence, float(expected))


# ----- symmetric matrices -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_symmetric_densities_are_those_of_the_upper_entries(name, shape):
    prior = symmetric(name, shape)
    value = prior.sample()
    assert value.shape == shape and torch.equal(value, value.transpose(0, 1)) and prior.event_shape == shape
    expected = sum(ENTRIES[name]().log_prob(value[a, b]).sum() for a in range(shape[0]) for b in range(a, shape[0]))
    assert torch.isclose(prior.log_prob(value), expected)
    drawn = prior.sample(torch.Size([5]))
    assert drawn.shape == (5, *shape) and prior.log_prob(drawn).shape == (5,)
    assert torch.isclose(prior.log_prob(drawn)[3], prior.log_prob(drawn[3]))
    assert torch.equal(prior.mean, prior.mean.transpose(0, 1))


def test_a_density_of_two_blocks_integrates_to_one():
    grid = (torch.arange(60) + 0.5) / 60
    first, second, third = torch.meshgrid(grid, grid, grid, indexing="ij")
    matrix = torch.stack([first, second, second, third], -1).reshape(-1, 2, 2)
    total = symmetric("beta", (2, 2)).log_prob(matrix).exp().mean()
    assert abs(float(total) - 1) < 1e-3


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_transforms_there_and_back(name, shape):
    prior = symmetric(name, shape)
    size = shape[0] * (shape[0] + 1) // 2 * int(np.prod(shape[2:]))
    for registry in (biject_to, transform_to):
        transform = registry(prior.support)
        raw = torch.randn(4, size)
        value = transform(raw)
        assert value.shape == (4, *shape) == transform.forward_shape(raw.shape)
        assert transform.inverse_shape(value.shape) == raw.shape
        assert prior.support.check(value).all() and torch.allclose(transform.inv(value), raw, atol=1e-10)


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_volume_of_the_transform_is_that_of_autograd(name, shape):
    """The determinant of the free entries with respect to the unconstrained numbers."""
    transform = biject_to(symmetric(name, shape).support)
    row, column = torch.triu_indices(shape[0], shape[0])
    raw = torch.randn(transform.inverse_shape(torch.Size(shape))[0])
    jacobian = torch.autograd.functional.jacobian(lambda z: transform(z)[row, column].flatten(), raw)
    value = transform(raw)
    assert torch.isclose(transform.log_abs_det_jacobian(raw, value), torch.linalg.slogdet(jacobian)[1])


def test_what_is_not_symmetric_or_outside_is_not_in_the_support():
    support = symmetric("beta", (2, 2)).support
    inside = torch.tensor([[0.2, 0.3], [0.3, 0.4]])
    assert bool(support.check(inside)) and not bool(support.check(inside + torch.tensor([[0, 0.1], [0, 0]])))
    assert not bool(support.check(inside + 0.7))
    assert support.check(torch.stack([inside, -inside])).tolist() == [True, False]


def program():
    """Edges between two blocks, and the posterior mean of each density under its Beta prior."""
    counts, pairs = torch.tensor([[7.0, 2.0], [2.0, 5.0]]), torch.tensor([[10.0, 20.0], [20.0, 10.0]])
    row, column = torch.triu_indices(2, 2)

    def model():
        eta = pyro.sample("eta", symmetric("beta", (2, 2)))
        with pyro.plate("pairs", 3):
            pyro.sample("x", dist.Binomial(pairs[row, column], eta[row, column]), obs=counts[row, column])

    return model, (counts + 2) / (pairs + 5)


def test_a_point_guide_finds_the_mode():
    model, _ = program()
    guide = AutoDelta(model)
    inference = SVI(model, guide, Adam({"lr": 0.1}), Trace_ELBO())
    for _ in range(150):
        inference.step()
    expected = torch.tensor([[8 / 13, 3 / 23], [3 / 23, 6 / 13]])
    assert torch.allclose(guide.median()["eta"].detach(), expected, atol=2e-3)


def test_a_normal_guide_draws_symmetric_matrices():
    model, mean = program()
    guide = AutoNormal(model)
    inference = SVI(model, guide, Adam({"lr": 0.1}), Trace_ELBO(num_particles=2))
    for _ in range(100):
        inference.step()
    drawn = torch.stack([guide()["eta"].detach() for _ in range(100)])
    assert torch.equal(drawn, drawn.transpose(1, 2)) and torch.allclose(drawn.mean(0), mean, atol=0.08)


@pytest.mark.filterwarnings("ignore")  # of torch, which deprecates what Pyro's MCMC still calls
def test_nuts_draws_from_the_posterior():
    model, mean = program()
    chain = MCMC(NUTS(model, max_tree_depth=3), num_samples=80, warmup_steps=30, disable_progbar=True)
    chain.run()
    drawn = chain.get_samples()["eta"]
    assert torch.equal(drawn, drawn.transpose(1, 2)) and torch.allclose(drawn.mean(0), mean, atol=0.1)
