"""NoisyOr and BernoulliVector against plain arithmetic."""

import itertools

import numpy as np
import pyro.distributions as dist
import pytest
import torch

from ppl_models import CapacityError
from ppl_models.distributions import BernoulliVector, NoisyOr, all_codes, log1mexp, theta_of

pytestmark = pytest.mark.quick


def test_log1mexp_against_extended_precision():
    a = torch.logspace(-300, 2.5, 500)
    exact = [float(np.log1p(-np.exp(-v)) if v > 1 else np.log(-np.expm1(-v))) for v in map(np.longdouble, a.tolist())]
    assert torch.allclose(log1mexp(a), torch.tensor(exact), rtol=1e-13, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log1mexp_is_finite_with_finite_gradient_at_both_ends(dtype):
    a = torch.tensor([0.0, 1e-30, 1e-7, 1e-3, 1.0, 20.0, 100.0, 1000.0], dtype=dtype, requires_grad=True)
    value = log1mexp(a)
    value.sum().backward()
    assert torch.isfinite(value).all() and torch.isfinite(a.grad).all()


def test_noisy_or_log_prob_is_the_product_formula():
    rng = np.random.default_rng(0)
    loading, leak = rng.uniform(0, 1, (3, 4)), rng.uniform(0, 1, 4)
    for bits in itertools.product((0, 1), repeat=3):
        off = (1 - leak) * np.prod([(1 - loading[i]) ** bits[i] for i in range(3)], axis=0)
        noisy = NoisyOr(torch.tensor(bits, dtype=torch.float64), torch.tensor(loading), torch.tensor(leak))
        assert np.allclose(noisy.log_prob(torch.zeros(4)), np.log(off))
        assert np.allclose(noisy.log_prob(torch.ones(4)), np.log(1 - off))
        assert np.allclose(noisy.probs, 1 - off) and np.allclose(noisy.variance, off * (1 - off))


def test_noisy_or_in_float32_near_p_0_and_p_1():
    tiny = torch.tensor([[1e-30, 1e-10, 1 - 1e-7, 1.0]], dtype=torch.float32)
    noisy = NoisyOr(torch.ones(1, dtype=torch.float32), tiny, torch.zeros(4, dtype=torch.float32))
    on, off = noisy.log_prob(torch.ones(4)), noisy.log_prob(torch.zeros(4))
    assert torch.isfinite(on).all() and torch.isfinite(off).all()
    # Where a naive 1 - (1 - p) is 0 in float32, log p is still right to float32 accuracy.
    assert torch.allclose(on[:2], tiny[0, :2].log())


def test_noisy_or_gradient_matches_finite_differences():
    torch.manual_seed(1)
    source, x = torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    loading, leak = torch.rand(2, 3).requires_grad_(), (0.1 * torch.rand(3)).requires_grad_()
    assert torch.autograd.gradcheck(lambda p, q: NoisyOr(source, p, q).log_prob(x), (loading, leak))


def test_noisy_or_masks_entries_and_samples_its_mean():
    torch.manual_seed(0)
    loading, leak = torch.tensor([[0.9, 0.2], [0.0, 0.5]]), torch.tensor([0.05, 0.1])
    noisy = NoisyOr(torch.tensor([1.0, 1.0]), loading, leak)
    observed = torch.tensor([True, False])
    masked = noisy.mask(observed).to_event(1)
    assert torch.allclose(masked.log_prob(torch.tensor([1.0, 0.0])), noisy.log_prob(torch.ones(2))[0])
    draws = noisy.sample((20000,))
    sigma = (noisy.variance / 20000).sqrt()
    assert ((draws.mean(0) - noisy.probs).abs() < 4 * sigma).all()


def test_theta_of_is_minus_log_one_minus_p():
    p = torch.tensor([0.0, 1e-12, 0.5, 0.999])
    assert torch.allclose(theta_of(p), torch.tensor(-np.log1p(-p.numpy())), rtol=1e-14)
    assert torch.isfinite(theta_of(torch.tensor([1.0])))


def test_bernoulli_vector_is_a_product_of_bernoullis():
    probs = torch.tensor([[0.2, 0.5, 0.9], [0.1, 0.3, 0.6]])
    vector, parts = BernoulliVector(probs), dist.Bernoulli(probs).to_event(1)
    codes = vector.enumerate_support()
    assert codes.shape == (8, 2, 3)
    assert torch.allclose(vector.log_prob(codes), parts.log_prob(codes))
    assert torch.allclose(vector.log_prob(codes).exp().sum(0), torch.ones(2))
    assert torch.allclose(vector.entropy(), parts.entropy()) and torch.allclose(vector.mean, probs)
    assert vector.enumerate_support(expand=False).shape == (8, 1, 3)
    assert vector.expand((5, 2)).sample().shape == (5, 2, 3)
    assert torch.isfinite(BernoulliVector(torch.tensor([0.0, 1.0])).log_prob(all_codes(2))).all()


def test_codes_are_the_bits_of_their_numbers():
    for size in (1, 3, 14):
        codes = all_codes(size, dtype=torch.float64)
        assert codes.dtype == torch.float64 and set(codes.unique().tolist()) == {0.0, 1.0}
        assert torch.equal(codes @ 2.0 ** torch.arange(size).double(), torch.arange(2.0**size).double())


def test_too_many_bits_are_refused_with_an_estimate():
    with pytest.raises(CapacityError, match=r"2\^40 binary codes need .* GiB"):
        all_codes(40)
