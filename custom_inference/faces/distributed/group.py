"""A group of processes that talk by ``torch.distributed``: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from custom_inference.core.process_group import ALONE, Pool
from ppl_models import PPLError, ProcessError

Result = TypeVar("Result")
_PATIENCE = timedelta(days=30)
#: Where the processes that torchrun started find each other, once they have, and numbers for the groups begun there.
_STORE: list[tuple[dist.Store, int, int]] = []
_GROUPS = itertools.count(1)


class GroupPool(Pool):
    """The processes of a group of ``torch.distributed`` that has been begun (see :func:`group`).

    traffic: bytes that this process has handed in to be added up; calls: how many times; seconds: how long that took,
    with the wait for slower processes.
    """

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.device = torch.device("cpu" if dist.get_backend() == "gloo" else f"cuda:{torch.cuda.current_device()}")
        self.traffic, self.calls, self.seconds = 0, 0, 0.0
        # What the first process makes for all, a search, may take hours: the others wait as long as it lives.
        self._patient: Any = dist.new_group(backend="gloo", timeout=_PATIENCE)
        # One that refuses its rows leaves at once, and must not close connections that others are still making.
        self.wait()

    def total(self, *values: Tensor) -> tuple[Tensor, ...]:
        """All tensors of one dtype travel together: an all-reduce costs two messages a process however short it is."""
        found: dict[int, Tensor] = {}
        for dtype in dict.fromkeys(value.dtype for value in values):
            chosen = [i for i, value in enumerate(values) if value.dtype == dtype]
            flat = torch.cat([values[i].detach().reshape(-1).to(self.device) for i in chosen])
            self.traffic, self.calls = self.traffic + flat.numel() * flat.element_size(), self.calls + 1
            begin = time.perf_counter()
            self._or_lost(lambda flat=flat: dist.all_reduce(flat))
            self.seconds += time.perf_counter() - begin
            parts = flat.split([values[i].numel() for i in chosen])
            found |= {i: part.view(values[i].shape).to(values[i].device) for i, part in zip(chosen, parts, strict=True)}
        return tuple(found[i] for i in range(len(values)))

    def wait(self) -> None:
        self._or_lost(dist.barrier)

    def from_first(self, make: Callable[[], Result]) -> Result:
        told: list[Any] = [None, None]
        if self.rank == 0:
            try:
                told[0] = make()
            except PPLError as error:
                told[1] = error
        self._or_lost(lambda: dist.broadcast_object_list(told, src=0, group=self._patient))
        if told[1] is not None:
            raise told[1]
        return told[0]

    def all_of(self, value: Any) -> list[Any]:
        told: list[Any] = [None] * self.size
        self._or_lost(lambda: dist.all_gather_object(told, value))
        return told

    def report(self) -> dict[str, float]:
        seconds = round(self.seconds, 3)
        return {"bytes_added_up": self.traffic, "times_added_up": self.calls, "seconds_added_up": seconds}

    def close(self) -> None:
        """Leave; the group itself stays."""
        dist.destroy_process_group(self._patient)

    def _or_lost(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except RuntimeError as error:
            raise ProcessError(
                f"process {self.rank} of {self.size} lost the others: one of them has ended, or the network did "
                f"({str(error).splitlines()[0][:200]})"
            ) from error


def in_group() -> bool:
    """Whether this process was started as one of several (torchrun's environment), or has begun a group."""
    return dist.is_initialized() or {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(os.environ)


def rank() -> int:
    """This process's number in the group that it belongs to, or was started for; 0 alone."""
    if dist.is_initialized():
        return dist.get_rank()
    return int(os.environ["RANK"]) if in_group() else 0


@contextlib.contextmanager
def group(*, backend: str | None = None, timeout: float = 600.0, **settings: Any) -> Iterator[Pool]:
    """The group that torchrun's environment names, or the one that has been begun; alone where there is neither.

    backend: "gloo" or "nccl"; by default NCCL where every process of the machine has a GPU of its own. timeout: seconds
    to wait for the others before giving up, longer than an iteration takes. settings: of ``init_process_group``.

    Raises ProcessError where the processes do not find each other.
    """
    begun = dist.is_initialized()
    if not begun and not settings and not in_group():
        yield ALONE
        return
    if not begun:
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", int(os.environ.get("LOCAL_RANK", 0)) + 1))
        _begin(backend or ("nccl" if torch.cuda.device_count() >= processes else "gloo"), timeout, settings)
    pool = GroupPool()
    try:
        yield pool
    finally:
        pool.close()
        if not begun:
            dist.destroy_process_group()


def _begin(backend: str, timeout: float, settings: dict[str, Any]) -> None:
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    wait = timedelta(seconds=timeout)
    try:
        dist.init_process_group(backend, timeout=wait, **(settings or _rendezvous(wait)))
    except RuntimeError as error:  # errors of stores and networks are of this kind
        place = settings.get("init_method") or f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise ProcessError(f"the processes did not meet at {place}: {str(error).splitlines()[0][:200]}") from error


def _rendezvous(wait: timedelta) -> dict[str, Any]:
    """Under a name of its own for every group and every restart: the store may still hold where processes listened
    that have ended since, and waiting for those would be in vain."""
    if not _STORE:
        _STORE.append(next(rendezvous("env://", timeout=wait)))
    [(store, rank, size)] = _STORE
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    named = dist.PrefixStore(f"ppl-models/{restart}/{next(_GROUPS)}", store)
    return {"store": named, "rank": rank, "world_size": size}
