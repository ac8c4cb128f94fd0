"""``distributed.fit``: in the group that this process belongs to, or by processes that it starts for one fit.

Those report how they ended, and the first one what was found.
"""

from __future__ import annotations

import contextlib
import math
import signal
import socket
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from custom_inference.core.fit import Fit
from custom_inference.core.method import Method
from custom_inference.core.processes import (
    UNGUARDED,
    Surroundings,
    begin_worker,
    missing_main_guard,
    pack,
    run_all,
    unpack,
)
from custom_inference.core.settings import require_whole
from custom_inference.em.checkpoint import Checkpoint
from custom_inference.faces.distributed.group import group, in_group
from custom_inference.faces.distributed.member import Filed, Problem, fit_of, problem_of, ran
from ppl_models import Data, DataWarning, MethodError, Model, PPLError, ProcessError
from ppl_models.core.errors import unknown_name
from ppl_models.data.atomic import write_atomically
from ppl_models.data.held import is_number


def fit(
    model: Model,
    data: Any,
    *,
    processes: int | None = None,
    method: Method | str | None = None,
    backend: str | None = None,
    timeout: float = 600.0,
    **arguments: Any,
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
    backend, timeout: see :func:`custom_inference.distributed.group`; the search of the first process may take longer.
    arguments: of every method's ``fit``: mask, seed, device, dtype, init, progress. device: "cuda" gives every process
        of a machine a GPU of its own, and sums travel by NCCL.

    In scripts that start processes the call belongs under ``if __name__ == "__main__":``, as with all of Python's, and
    own models into a module. Ctrl-C ends all processes; with a checkpoint the same call goes on.

    Raises ProcessError where a process died (with a checkpoint the same call goes on from it), MethodError for a
    method, or steps, that one process has to make alone.
    """
    if processes is not None:
        require_whole("processes", processes)
    if backend not in (None, "gloo", "nccl"):
        raise MethodError(unknown_name("backend", backend, ("gloo", "nccl")))
    if not is_number(timeout) or timeout is True or not 0 < timeout < math.inf:
        raise MethodError(f"timeout = {timeout!r}, expected seconds, more than 0")
    if backend is None and not str(arguments.get("device") or "cpu").startswith("cuda"):
        backend = "gloo"
    if processes is not None and not in_group():
        return _launch(problem_of(model, data, method, **arguments), processes, backend=backend, timeout=timeout)
    with group(backend=backend, timeout=timeout) as pool:
        if processes not in (None, pool.size):
            raise MethodError(f"processes = {processes} in a group of {pool.size}; leave it out, the group says it")
        with warnings.catch_warnings():
            if pool.rank > 0:
                warnings.simplefilter("ignore", DataWarning)  # the first says it
            problem = problem_of(model, data, method, **arguments)
        return fit_of(problem, ran(problem, pool))


def _launch(problem: Problem, processes: int, *, backend: str | None, timeout: float) -> Fit:
    """Start the processes, wait for them, and take the fit that the first one wrote."""
    with tempfile.TemporaryDirectory(prefix="ppl-processes-") as name:
        folder = Path(name)
        source = problem.source
        if isinstance(source, Data):  # in a file, of which each process reads its rows
            source = Filed.of(source, folder / "data")
        handed = pack(replace(problem, source=source))
        settings = (processes, folder, handed, backend, timeout, Surroundings.of(processes))
        codes = run_all(_main, [(rank, *settings) for rank in range(processes)])
        if any(codes.get(rank) != 0 for rank in range(processes)):
            raise _explain(folder, codes, processes, problem, timeout)
        return fit_of(problem, unpack((folder / "run").read_bytes()))


def _main(
    rank: int, size: int, folder: Path, handed: bytes, backend: str | None, timeout: float,
    around: Surroundings,
) -> None:  # fmt: skip
    names = [name for _, name in socket.if_nameindex()]
    loopback = "lo" if "lo" in names or "lo0" not in names else "lo0"  # the network of this machine alone
    device = around.environment.get("GLOO_SOCKET_IFNAME") or loopback
    begin_worker(around, GLOO_SOCKET_IFNAME=device, LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    meeting = {"init_method": f"file://{folder}/meeting", "rank": rank, "world_size": size}
    with _reports(folder / f"error-{rank}"):
        problem: Problem = unpack(handed)
        # Within the group too: before the others hear that this process has left.
        with group(backend=backend, timeout=timeout, **meeting) as pool, _reports(folder / f"error-{rank}"):
            run = ran(problem, pool)
            if rank == 0:
                (folder / "run").write_bytes(pack(run))
            pool.wait()


@contextlib.contextmanager
def _reports(path: Path) -> Iterator[None]:
    """Writes down an error that ends the process: the suite's own as it is, others as text."""
    try:
        yield
    except SystemExit:
        raise
    except BaseException as error:
        known = isinstance(error, PPLError)
        found = error if known else f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        with write_atomically(path) as temporary:
            temporary.write_bytes(pack(found))
        raise SystemExit(1) from None


def _explain(folder: Path, codes: dict[int, int], size: int, problem: Problem, timeout: float) -> PPLError:
    """The suite's own error as it was; else which process ended, and how."""
    if UNGUARDED in codes.values():
        return missing_main_guard()
    paths = {rank: folder / f"error-{rank}" for rank in sorted(codes)}
    reports: dict[int, Any] = {rank: unpack(path.read_bytes()) for rank, path in paths.items() if path.exists()}
    # Processes that lost the others say so, but it is not they who failed.
    first = next((found for found in reports.values() if not isinstance(found, ProcessError)), None)
    if first is not None:
        return first if isinstance(first, PPLError) else ProcessError(f"a process of {size} failed: {first}")
    after = Checkpoint.of(problem.method.checkpoint)
    hint = "set checkpoint= to be able to go on" if after is None else f"the same call goes on from {after.path}"
    for rank, code in sorted(codes.items()):
        if rank not in reports and code != 0:
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            return ProcessError(f"process {rank} of {size} died ({how}); {hint}")
    silent = [str(rank) for rank in range(size) if rank not in codes]
    if silent:
        return ProcessError(f"process {', '.join(silent)} of {size} did not answer for {timeout:g} s; {hint}")
    return ProcessError(f"{next(iter(reports.values()))}; {hint}")
