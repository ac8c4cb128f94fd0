"""The pretend device raises what a real one raises, and computes what the CPU computes."""

import copy

import numpy as np
import pytest
import torch

from ppl_models.data import sparse as _sparse
from tests.support.pretend_device import pretend_device

#: What a real device refuses, by the words of its error. x (2, 3) is on the device.
REFUSED = {
    "sum of both devices": (lambda x: x + torch.ones(3), RuntimeError, "same device"),
    "product of both devices": (lambda x: x @ torch.ones(3, 2), RuntimeError, "same device"),
    "concatenation": (lambda x: torch.cat([x, torch.ones(1, 3)]), RuntimeError, "same device"),
    "stack with a scalar": (lambda x: torch.stack([x.sum(), torch.tensor(1.0)]), RuntimeError, "same device"),
    "change of a CPU tensor": (lambda x: torch.ones(2, 3).add_(x), RuntimeError, "same device"),
    "index_select": (lambda x: x.index_select(0, torch.tensor([0])), RuntimeError, "same device"),
    "gather": (lambda x: x.gather(0, torch.zeros(1, 3, dtype=torch.long)), RuntimeError, "same device"),
    "index_add": (lambda x: x.index_add(0, torch.tensor([0]), x[:1]), RuntimeError, "same device"),
    "searchsorted": (lambda x: torch.searchsorted(x[0], torch.ones(2)), RuntimeError, "same device"),
    "linear system": (lambda x: torch.linalg.solve(x @ x.T, torch.ones(2, 1)), RuntimeError, "same device"),
    "values put by index": (lambda x: x.__setitem__(torch.tensor([0]), torch.ones(1, 3)), RuntimeError, "same device"),
    "index on the device": (lambda x: torch.ones(3)[x[0].long()], RuntimeError, "indices should be"),
    "sparse parts": (lambda x: _sparse.from_dense(x) @ torch.ones(3, 2), RuntimeError, "same device"),
    "numpy": (lambda x: x.numpy(), TypeError, "can't convert cuda:0"),
    "asarray": (np.asarray, TypeError, "can't convert cuda:0"),
    "the CPU's generator": (
        lambda _: torch.rand(2, device="cuda", generator=torch.Generator()), RuntimeError, "'cuda' device type",
    ),
    "the device's generator": (lambda _: torch.rand(2, generator=torch.Generator("cuda")), RuntimeError, "'cpu'"),
    "draws by the CPU's": (lambda x: torch.bernoulli(x, generator=torch.Generator()), RuntimeError, "'cuda'"),
    "whole numbers": (lambda x: x.long() @ x.long().T, RuntimeError, "not implemented for 'int64'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_device_refuses(name):
    operation, kind, words = REFUSED[name]
    with pretend_device():
        x = torch.ones(2, 3, device="cuda")
        with pytest.raises(kind, match=words):
            operation(x)


#: What works on a real device, and gives a tensor there.
ALLOWED = {
    "a CPU scalar": lambda x: x * torch.tensor(2.0),
    "where a scalar": lambda x: torch.where(x > 0, x, torch.tensor(0.0)),
    "a CPU index": lambda x: x[torch.tensor([1, 0])],
    "a list": lambda x: x[:, [0, 2]],
    "a CPU mask": lambda x: x[:, torch.tensor([True, False, True])],
    "like": lambda x: torch.ones(3).to(x) + x.new_tensor([1.0, 2.0, 3.0]) + x.new_zeros(3),
    "tensor": lambda x: torch.tensor([1.0], device=x.device) + torch.as_tensor(np.ones(1), device="cuda"),
    "copy": lambda x: x.clone().copy_(torch.zeros(2, 3)),
    "squeezed in place": lambda x: x[:1].clone().squeeze_(0),
    "decomposition": lambda x: torch.linalg.cholesky(x @ x.T + torch.eye(2, device="cuda")),
    "sparse": lambda x: _sparse.from_dense(x).mT @ x,
    "deep copy": copy.deepcopy,
    "moved": lambda x: x.cpu().to("cuda:0"),
    "draws": lambda x: torch.distributions.Beta(1 + x, 2.0).sample(),
}  # fmt: skip


@pytest.mark.parametrize("name", ALLOWED)
def test_what_a_device_does(name):
    with pretend_device(same_numbers=True):
        x = torch.arange(6.0, device="cuda").reshape(2, 3)
        torch.manual_seed(1)
        found = ALLOWED[name](x)
        assert found.device == torch.device("cuda", 0) and found.is_cuda
        found = found.cpu()
    if name not in ("like", "tensor", "moved"):  # which name the device
        torch.manual_seed(1)
        plain = torch.arange(6.0).reshape(2, 3)
        eye = torch.eye(2)
        expected = ALLOWED[name](plain) if name != "decomposition" else torch.linalg.cholesky(plain @ plain.T + eye)
        assert torch.equal(found, expected)


def test_gradients():
    def trained(device):
        weight = torch.ones(3, device=device, requires_grad=True)
        for _ in range(3):
            weight.grad = None
            (weight.square() * torch.arange(3.0, device=device)).sum().backward()
            assert weight.grad is not None and weight.grad.device == weight.device
            with torch.no_grad():
                weight -= 0.1 * weight.grad
        return weight.detach().cpu()

    with pretend_device():
        found = trained("cuda")
    assert torch.allclose(found, trained("cpu"))


def test_the_devices_random_state_is_its_own():
    with pretend_device() as device:
        torch.manual_seed(3)
        on_device, before = torch.rand(4, device="cuda").cpu(), torch.get_rng_state()
        torch.rand(4, device="cuda")
        assert torch.equal(before, torch.get_rng_state()) and device.calls == 2
        torch.manual_seed(3)
        assert torch.equal(torch.rand(4, device="cuda").cpu(), on_device)
        assert not torch.equal(torch.rand(4), on_device)
        seeded = torch.rand(4, device="cuda", generator=torch.Generator("cuda").manual_seed(3)).cpu()
        assert not torch.equal(seeded, torch.rand(4, generator=torch.Generator().manual_seed(3)))


def test_nothing_is_left_behind():
    with pretend_device():
        assert torch.cuda.is_available() and torch.zeros(1, device="cuda").is_cuda
    assert torch.Generator is torch._C.Generator
    if not torch.backends.cuda.is_built():
        assert not torch.cuda.is_available()
