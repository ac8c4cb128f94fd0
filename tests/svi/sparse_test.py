"""What SVI on sparse documents is made of: products over entries, divergences, the optimiser of rows."""

from __future__ import annotations

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from torch.autograd import gradcheck
from torch.distributions import kl_divergence

from custom_inference.svi.guides.continuous import GuideDirichlet
from custom_inference.svi.minibatches import RowAdam
from ppl_models.data import sparse as _sparse
from ppl_models.distributions.tokens import entry_products, sparse_product
from tests.references import lda as reference

pytestmark = [pytest.mark.quick, pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")]


def pattern(rows: int = 5, columns: int = 7) -> torch.Tensor:
    x = torch.poisson(torch.full((rows, columns), 0.7))
    x[2] = 0  # an empty row
    return x


def test_entry_products_are_those_of_the_dense_product():
    x, left, right = pattern(), torch.rand(5, 3), torch.rand(3, 7)
    expected = (left @ right)[x != 0]
    assert torch.allclose(entry_products(left, right, _sparse.from_dense(x)), expected)
    stacked = torch.stack([left, 2 * left])
    assert torch.allclose(entry_products(stacked, right, _sparse.from_dense(x)), torch.stack([expected, 2 * expected]))
    one = entry_products(left[:, None], right, _sparse.from_dense(x))  # five alternatives, each for all rows
    assert torch.allclose(one, torch.stack([(row @ right).expand(5, 7)[x != 0] for row in left]))


def test_entry_products_without_the_fused_kernel(monkeypatch):
    x, left, right = pattern(), torch.rand(5, 3), torch.rand(3, 7)

    def missing(*_, **__):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(torch.sparse, "sampled_addmm", missing)
    monkeypatch.setattr("ppl_models.distributions.tokens._BLOCK", 4)
    assert torch.allclose(entry_products(left, right, _sparse.from_dense(x)), (left @ right)[x != 0])


def test_gradients_of_the_sparse_products():
    sparse, left, right = _sparse.from_dense(pattern()), torch.rand(5, 3), torch.rand(3, 7)
    left.requires_grad_(), right.requires_grad_()
    assert gradcheck(lambda a, b: entry_products(a, b, sparse), (left, right))
    dense = torch.rand(7, 4, requires_grad=True)
    assert torch.allclose(sparse_product(sparse, dense), sparse.to_dense() @ dense)
    assert gradcheck(lambda d: sparse_product(sparse, d), (dense,))


def test_divergence_of_dirichlets_and_its_gradient():
    a = (5 * torch.rand(3, 6) + 0.02).requires_grad_()
    for b in (torch.full((6,), 0.05), 3 * torch.rand(3, 6) + 0.1):
        prior = dist.Dirichlet(b).expand((3,)) if b.ndim == 1 else dist.Dirichlet(b)
        plain = kl_divergence(dist.Dirichlet(a), prior)
        assert torch.allclose(kl_divergence(GuideDirichlet(a), prior), plain)
        at_a = a.detach().numpy()
        expected = reference.expected_log_density(at_a, at_a) - reference.expected_log_density(at_a, b)
        assert np.allclose(plain.detach(), expected)
        assert gradcheck(lambda value, p=prior: kl_divergence(GuideDirichlet(value), p), (a,))
    drawn = (torch.rand(6) + 0.1).requires_grad_()  # a prior that is itself a latent
    assert gradcheck(lambda p: kl_divergence(GuideDirichlet(a.detach()), dist.Dirichlet(p).expand((3,))), (drawn,))


def test_row_adam_is_adam_for_dense_gradients():
    target = torch.rand(4, 3)
    ours, theirs = torch.zeros(4, 3, requires_grad=True), torch.zeros(4, 3, requires_grad=True)
    optimizer, adam = RowAdam(lambda _: 0.1), torch.optim.Adam([theirs], lr=0.1)
    for _ in range(20):
        for value in (ours, theirs):
            value.grad = None
            (value - target).pow(4).sum().backward()
        optimizer([ours])
        adam.step()
    assert torch.allclose(ours, theirs, atol=1e-12)


def test_row_adam_moves_the_rows_of_sparse_gradients_alone():
    """As if every row had an Adam of its own."""
    value, alone = torch.zeros(5, 2, requires_grad=True), torch.zeros(5, 2, requires_grad=True)
    optimizer, single = RowAdam(lambda _: 0.1), [RowAdam(lambda _: 0.1) for _ in range(5)]
    rows = [alone[i].detach().clone().requires_grad_() for i in range(5)]
    target = torch.rand(5, 2)
    for batch in ([0, 3], [3, 1], [3, 0], [2, 3]):
        index, before = torch.tensor(batch), value.detach().clone()
        value.grad = None
        (torch.nn.functional.embedding(index, value, sparse=True) - target[index]).pow(2).sum().backward()
        optimizer([value])
        others = [i for i in range(5) if i not in batch]
        assert torch.equal(value[others], before[others])
        for i in batch:
            rows[i].grad = None
            (rows[i] - target[i]).pow(2).sum().backward()
            single[i]([rows[i]])
    assert torch.allclose(value, torch.stack(rows), atol=1e-12)
