"""``distributed.fit``: in the group that this process belongs to, or by processes that it starts."""

from __future__ import annotations

import math
import warnings
from numbers import Real
from typing import Any

import torch

from custom_inference.core.fit import Fit
from custom_inference.core.settings import require_whole
from custom_inference.faces.distributed.group import group, in_group
from custom_inference.faces.distributed.launch import launched
from custom_inference.faces.distributed.member import fit_of, problem_of, ran
from ppl_models import DataWarning, MethodError, Model
from ppl_models.core.errors import unknown_name

BACKENDS = ("gloo", "nccl")


def fit(
    model: Model,
    data: Any,
    *,
    processes: int | None = None,
    method: Any = None,
    mask: Any = None,
    seed: int = 0,
    device: Any = None,
    dtype: torch.dtype = torch.float64,
    init: Any = None,
    progress: bool = True,
    backend: str | None = None,
    timeout: float = 600.0,
) -> Fit:
    """Fit by EM in several processes; the result is that of one process, to rounding.

    Each process has a part of the rows (of graphs: of the dyads). An iteration adds up the expected sufficient
    statistics, sum_n E[s_n], and the bounds of all parts, which is all that the M step needs; then every process takes
    the same M step. Where a search finds the start, the first process makes it, with the random numbers that one
    process would draw.

    processes: start so many on this machine; None: this process is one of a group already (torchrun started it, or
        ``torch.distributed`` is initialised), and every process of the group makes this very call.
    method: as for :func:`custom_inference.fit`, by default the same: ``EM`` or ``VariationalEM`` with any settings but
        ``batch_size``. With ``checkpoint`` the state is kept, and the same call goes on from it.
    data: rows, a graph, or ``RowBlocks``, of which each process reads its own.
    device: "cuda" gives every process of a machine a GPU of its own, and sums travel by NCCL.
    backend, timeout: see :func:`custom_inference.distributed.group`; the search of the first process may take longer.

    In scripts that start processes the call belongs under ``if __name__ == "__main__":``, as with all of Python's, and
    own models into a module. Ctrl-C ends all processes; with a checkpoint the same call goes on.

    Raises
    ------
    ProcessError: a process died; with a checkpoint the same call goes on from it.
    MethodError: a method, or steps, that one process has to make alone.
    """
    if processes is not None:
        require_whole("processes", processes)
    if backend is not None and backend not in BACKENDS:
        raise MethodError(unknown_name("backend", backend, BACKENDS))
    if isinstance(timeout, bool) or not isinstance(timeout, Real) or not 0 < timeout < math.inf:
        raise MethodError(f"timeout = {timeout!r}, expected seconds, more than 0")
    settings: dict[str, Any] = {"mask": mask, "dtype": dtype, "device": device, "init": init}
    settings |= {"seed": seed, "progress": progress}
    if backend is None and not str(device or "cpu").startswith("cuda"):
        backend = "gloo"
    if processes is not None and not in_group():
        return launched(problem_of(model, data, method, **settings), processes, backend=backend, timeout=timeout)
    with group(backend=backend, timeout=timeout) as pool:
        if processes not in (None, pool.size):
            raise MethodError(f"processes = {processes} in a group of {pool.size}; leave it out, the group says it")
        with warnings.catch_warnings():
            if pool.rank > 0:
                warnings.simplefilter("ignore", DataWarning)  # the first says it
            problem = problem_of(model, data, method, **settings)
        return fit_of(problem, ran(problem, pool))
