"""Processes of one machine, started for one fit: they report how they ended, and the first one what was found."""

from __future__ import annotations

import contextlib
import pickle
import signal
import socket
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from custom_inference.core.fit import Fit
from custom_inference.core.processes import UNGUARDED, Surroundings, begun, packed, run_all, unguarded, unpacked
from custom_inference.em.checkpoint import Checkpoint
from custom_inference.faces.distributed.group import group
from custom_inference.faces.distributed.member import Problem, fit_of, ran
from custom_inference.faces.distributed.sources import Filed, Held, read_run, write_run
from ppl_models import PPLError, ProcessError
from ppl_models.data.atomic import written


def launched(problem: Problem, processes: int, *, backend: str | None, timeout: float) -> Fit:
    """Start the processes, wait for them, and take the fit that the first one wrote."""
    with tempfile.TemporaryDirectory(prefix="ppl-processes-") as name:
        folder = Path(name)
        handed = packed(_handed_over(problem, folder))
        settings = (processes, folder, handed, backend, timeout, Surroundings.of(processes))
        codes = run_all(_main, [(rank, *settings) for rank in range(processes)])
        if any(codes.get(rank) != 0 for rank in range(processes)):
            raise _explained(folder, codes, processes, problem, timeout)
        engine = problem.method.engine(problem.model)
        return fit_of(problem, read_run(folder / "run", torch.device(problem.device or "cpu"), engine))


def _handed_over(problem: Problem, folder: Path) -> Problem:
    """The problem as it goes to the processes: rows in a file, of which each reads its own."""
    if not isinstance(problem.source, Held):
        return problem
    return replace(problem, source=Filed.of(problem.source.data, folder / "data"))


def _loopback() -> str:
    """The network of this machine alone."""
    names = [name for _, name in socket.if_nameindex()]
    return "lo" if "lo" in names or "lo0" not in names else "lo0"


def _main(
    rank: int, size: int, folder: Path, handed: bytes, backend: str | None, timeout: float,
    around: Surroundings,
) -> None:  # fmt: skip
    device = around.environment.get("GLOO_SOCKET_IFNAME") or _loopback()
    begun(around, GLOO_SOCKET_IFNAME=device, LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    meeting = {"init_method": f"file://{folder}/meeting", "rank": rank, "world_size": size}
    with _reports(folder / f"error-{rank}"):
        problem: Problem = unpacked(handed)
        # Within the group too: before the others hear that this process has left.
        with group(backend=backend, timeout=timeout, **meeting) as pool, _reports(folder / f"error-{rank}"):
            run = ran(problem, pool)
            if rank == 0:
                write_run(folder / "run", run)
            pool.wait()


# ----- what went wrong --------------------------------------------------------------------------------------------


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
        with written(path) as temporary:
            temporary.write_bytes(pickle.dumps(found))
        raise SystemExit(1) from None


def _explained(folder: Path, codes: dict[int, int], size: int, problem: Problem, timeout: float) -> PPLError:
    """The suite's own error as it was; else which process ended, and how."""
    if UNGUARDED in codes.values():
        return unguarded()
    reports: dict[int, Any] = {}
    for rank in codes:
        path = folder / f"error-{rank}"
        if path.exists():
            reports[rank] = pickle.loads(path.read_bytes())
    # Processes that lost the others say so, but it is not they who failed.
    causes = [found for _, found in sorted(reports.items()) if not isinstance(found, ProcessError)]
    if causes:
        first = causes[0]
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
    lost = next(iter(reports.values()))
    return ProcessError(f"{lost}; {hint}")
