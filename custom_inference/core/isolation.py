"""A fit leaves no trace: its own parameter store, its own random state."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyro
import torch
from pyro.poutine import runtime

from ppl_models.core.running import PYRO_LOCK
from ppl_models.core.running import default_dtype as default_dtype


@contextlib.contextmanager
def keep_handlers() -> Iterator[None]:
    """Put Pyro's stack of handlers and its table of plates back afterwards: an interrupt between two lines of Pyro's
    own leaves them as they were then, and every later program of the process would fail on a "duplicate plate"."""
    handlers, plates = list(runtime._PYRO_STACK), list(runtime._DIM_ALLOCATOR._stack)
    try:
        yield
    finally:
        runtime._PYRO_STACK[:] = handlers
        runtime._DIM_ALLOCATOR._stack[:] = plates


@contextlib.contextmanager
def own_store() -> Iterator[Any]:
    """Give Pyro an empty store of parameters, and this thread Pyro for itself; put the former back afterwards."""
    with PYRO_LOCK, pyro.get_param_store().scope() as parameters:
        yield parameters


@contextlib.contextmanager
def isolated(seed: int) -> Iterator[None]:
    """Seed torch, NumPy and ``random``, give Pyro an empty parameter store, and put everything back afterwards, its
    handlers too. What other threads do so waits meanwhile."""
    with own_store(), torch_seeded(seed), keep_handlers():
        numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
        try:
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


def seed_of(seed: int, name: str, number: int = 0) -> int:
    """A seed of its own for one of the things that are drawn with a seed: for a site, a copy of the data.

    Draws of two sites from one random state would be functions of each other, of equal posteriors equal.
    """
    key = (*name.encode(), number)
    return int(np.random.SeedSequence(seed % 2**64, spawn_key=key).generate_state(1)[0])


@contextlib.contextmanager
def torch_seeded(seed: int) -> Iterator[None]:
    """Random states of torch's own, on the CPU and on the devices in use; those before are put back afterwards.

    A device that nothing has used yet is not seeded: ``torch.manual_seed`` would leave the seed there for the caller.
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield
