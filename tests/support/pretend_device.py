"""A pretend accelerator: ``device="cuda"`` on a machine without one, computed on the CPU, with a real one's errors.

Tensors of the pretend device are wrappers around CPU tensors that say ``cuda:0``. Every operation, below autograd, goes
through :class:`_Device`, which refuses what a real device refuses:

    tensors of both devices in one operation, but for CPU scalars in elementwise ones and CPU indices of ``x[index]``;
    ``numpy()`` and ``np.asarray`` of what was not moved with ``.cpu()``;
    a ``torch.Generator`` of the one device for numbers on the other;
    products of matrices of whole numbers, which have no kernel there.

The device has its own random state, whose numbers are not those of the CPU at the same seed, as on a real one.
``same_numbers=True`` lets it draw from the CPU's, so that all computation can be compared with the CPU's to rounding.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)
_NativeGenerator = torch.Generator

#: Operations that may take tensors of both devices, whatever they are.
_MOVING = {aten._to_copy.default, aten.copy_.default, aten.to.dtype_layout}
#: Operations in which a CPU scalar may meet tensors of the device, besides the elementwise ones.
_SCALARS = {"aten::where", "aten::fill", "aten::fill_", "aten::masked_fill", "aten::masked_fill_", "aten::clamp"}
#: Operations whose indices may be on the CPU, and a scalar value too.
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}
#: Products without a kernel for whole numbers.
_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::addmv", "aten::dot"}


def _as_index(index: Any) -> Any:
    """Lists as tensors: torch would put their numbers on the meta device, which keeps none."""
    if isinstance(index, tuple):
        return tuple(_as_index(one) for one in index)
    return torch.tensor(index) if isinstance(index, list) else index


class PretendTensor(torch.Tensor):
    """A tensor that says it is on the device; ``elem`` is the CPU tensor that holds its numbers.

    Torch's own code takes it for one of the ``meta`` device, which unlike ``cuda`` every build of torch has.
    """

    elem: torch.Tensor
    device = property(lambda _: CUDA)  # pyright: ignore[reportAssignmentType]
    is_cuda = property(lambda _: True)  # pyright: ignore[reportAssignmentType]
    is_cpu = is_meta = property(lambda _: False)  # pyright: ignore[reportAssignmentType]
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]

    @staticmethod
    def __new__(cls, elem: torch.Tensor) -> PretendTensor:
        settings: Any = {"dtype": elem.dtype, "layout": elem.layout, "device": "meta"}
        if elem.layout == torch.strided:
            settings |= {"strides": elem.stride(), "storage_offset": elem.storage_offset()}
        else:
            settings |= {"dispatch_layout": True}
        made = torch.Tensor._make_wrapper_subclass(cls, elem.shape, **settings)
        made.elem = elem
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    def item(self) -> Any:
        return self.cpu().item()

    def new_tensor(self, data: Any, *, dtype: Any = None, device: Any = None) -> Any:
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or CUDA)

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(_as_index(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_as_index(index), value)

    def __bool__(self) -> bool:
        return bool(self.cpu())

    def __float__(self) -> float:
        return float(self.cpu())

    def __int__(self) -> int:
        return int(self.cpu())

    def __index__(self) -> int:
        return self.cpu().__index__()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        return 0  # as of a tensor without memory of its own, which torch then clones rather than reads

    def __repr__(self, *_: Any, **__: Any) -> str:
        return f"pretend({self.elem!r})"


class PretendGenerator(_NativeGenerator):
    """``torch.Generator`` that knows which device it is of."""

    #: Addresses of the generators of the device: operations are handed the inner object, without its class.
    of_device: ClassVar[weakref.WeakValueDictionary[int, PretendGenerator]] = weakref.WeakValueDictionary()
    shift = 0
    _on: torch.device

    def __new__(cls, device: Any = "cpu") -> PretendGenerator:
        made: Any = super().__new__(cls)
        made._on = torch.device(device)
        if made._on.type == "cuda":
            cls.of_device[made._cdata] = made
        return made

    def __init__(self, device: Any = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:
        return self._on

    def manual_seed(self, seed: int) -> PretendGenerator:
        super().manual_seed(seed ^ self.shift if self._on.type == "cuda" else seed)
        return self


class _State:
    """The device's own random state."""

    def __init__(self, shift: int) -> None:
        self.shift, self.calls = shift, 0
        self.state = _NativeGenerator().manual_seed(shift).get_state()

    def seed(self, seed: int) -> None:
        self.state = _NativeGenerator().manual_seed(int(seed) ^ self.shift).get_state()

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        if not self.shift:
            self.calls += 1
            yield
            return
        before = torch.get_rng_state()
        torch.set_rng_state(self.state)
        try:
            yield
        finally:
            self.state, self.calls = torch.get_rng_state(), self.calls + 1
            torch.set_rng_state(before)


_random = _State(0)


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type in ("cuda", "meta")


def _different(func: Any) -> RuntimeError:
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
        f"(when checking argument for argument in method wrapper_CUDA_{func.name()})"
    )


def _check(func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> bool:
    """Whether the result is on the device; raises what a real device would."""
    on_device = [isinstance(one, PretendTensor) for one in tensors]
    target = any(on_device)
    name = func._schema.name
    if "device" in kwargs and kwargs["device"] is not None:
        target = _is_cuda(kwargs["device"])
    if func in _MOVING:
        return target if func is not aten.copy_.default else on_device[0]
    if any(on_device) and not all(on_device):
        loose = [one for one, there in zip(tensors, on_device, strict=True) if not there]
        if name in _INDEXING:
            values = loose if len(args) < 3 else [one for one in loose if one is args[2] and one.ndim]
            if not isinstance(args[0], PretendTensor):
                raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
            loose = values if len(args) >= 3 else []
        elif torch.Tag.pointwise in func.tags or name in _SCALARS:
            changed = name.endswith("_") and not isinstance(args[0], PretendTensor)
            loose = [one for one in loose if one.ndim] or (loose if changed else [])
        if loose:
            raise _different(func)
    if name in _PRODUCTS and target and not (tensors[-1].is_floating_point() or tensors[-1].is_complex()):
        kind = str(tensors[-1].dtype).removeprefix("torch.")
        raise RuntimeError(f"\"{name.removeprefix('aten::')}_cuda\" not implemented for '{kind}'")
    generator: Any = kwargs.get("generator")
    if generator is None:
        generator = next((one for one in args if isinstance(one, _NativeGenerator)), None)
    if generator is not None and (generator._cdata in PretendGenerator.of_device) != target:
        wanted, found = ("cuda", "cpu") if target else ("cpu", "cuda")
        raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{found}'")
    return target


def _unwrapped(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Arguments with the CPU tensors in place of those of the device; lists all tensors met."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return value.elem if isinstance(value, PretendTensor) else value
    if isinstance(value, (list, tuple)):
        return type(value)([_unwrapped(one, tensors) for one in value])
    return value


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    tensors: list[torch.Tensor] = []
    plain_args = _unwrapped(args, tensors)
    plain = {name: _unwrapped(value, tensors) for name, value in kwargs.items()}
    assert not any(one.device.type == "meta" for one in tensors), f"{func}: numbers were lost on the way to the device"
    target = _check(func, args, kwargs, tensors)
    if not target and not any(isinstance(one, PretendTensor) for one in tensors):
        return func(*args, **kwargs)
    inner = {id(one.elem): one for one in tensors if isinstance(one, PretendTensor)}
    if _is_cuda(plain.get("device")):
        plain["device"] = torch.device("cpu")
    has_generator = any(isinstance(one, _NativeGenerator) for one in (*args, *kwargs.values()))
    draws = target and torch.Tag.nondeterministic_seeded in func.tags and not has_generator
    with _random.drawing() if draws else contextlib.nullcontext():
        out = func(*plain_args, **plain)
    if func is aten._to_copy.default and isinstance(out, torch.Tensor) and not target:
        return out

    def wrapped(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            made = [wrapped(one) for one in value]
            return type(value)(made) if type(value) in (list, tuple) else type(value)(*made)
        if not isinstance(value, torch.Tensor) or not target:
            return value
        if id(value) in inner:
            known = inner[id(value)]
            if known.shape != value.shape:  # squeeze_ and the like: the wrapper's own shape is to follow
                with torch._C._DisableTorchDispatch():
                    func(known, *args[1:], **kwargs)
            return known
        return PretendTensor(value)

    return wrapped(out)


class _Device(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # a wrapper that costs more than the operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.layout.default:
            return args[0].elem.layout if isinstance(args[0], PretendTensor) else NotImplemented
        return _run(func, args, kwargs or {})


class _Index(TorchFunctionMode):
    """Says ``cuda:0`` for ``cuda``: which device that is would be asked of a driver."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def numbered(value: Any) -> Any:
            return CUDA if isinstance(value, (str, torch.device)) and str(value) == "cuda" else value

        if func is torch.device:
            return func(*args, **(kwargs or {}))
        kwargs = {name: numbered(value) for name, value in (kwargs or {}).items()}
        if func is torch.allclose:  # which asks a tensor for its truth where no class of ours can answer
            return bool(torch.isclose(*args, **kwargs).all().cpu())
        return func(*(numbered(value) for value in args), **kwargs)


@contextlib.contextmanager
def pretend_device(*, same_numbers: bool = False) -> Iterator[_State]:
    """Within, ``device="cuda"`` works; yields the device's random state, whose ``calls`` counts draws on the device.

    same_numbers: whether numbers are drawn on the device by the CPU's random state.
    """
    global _random
    shift = 0 if same_numbers else 0x5DEECE66D
    _random = _State(shift)
    only_cpu = torch._C._only_lift_cpu_tensors()
    cuda = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "synchronize": lambda *_: None,
        "get_device_name": lambda *_: "pretend device",
        "manual_seed": _random.seed,
        "manual_seed_all": _random.seed,
        "get_rng_state": lambda *_: _random.state.clone(),
        "set_rng_state": lambda state, *_: setattr(_random, "state", state.clone()),
    }
    with contextlib.ExitStack() as stack:
        for name, value in cuda.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        stack.enter_context(mock.patch.object(PretendGenerator, "shift", shift))
        stack.enter_context(mock.patch.object(torch, "Generator", PretendGenerator))
        torch._C._set_only_lift_cpu_tensors(True)
        stack.callback(torch._C._set_only_lift_cpu_tensors, only_cpu)
        stack.enter_context(_Device())
        stack.enter_context(_Index())
        yield _random
