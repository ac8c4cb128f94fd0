"""Processes of one machine, started for one fit: they report how they ended, and the first one what was found."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

import ppl_models
from custom_inference._checkpoint import Checkpoint
from custom_inference.distributed._group import group
from custom_inference.distributed._member import Problem, fit_of, ran
from custom_inference.distributed._sources import Filed, Held, read_run, write_run
from custom_inference.fit import Fit
from ppl_models import MethodError, PPLError, ProcessError


def launched(problem: Problem, processes: int, *, backend: str | None, timeout: float) -> Fit:
    """Start the processes, wait for them, and take the fit that the first one wrote."""
    if processes < 1:
        raise MethodError(f"processes = {processes}, expected at least 1")
    with tempfile.TemporaryDirectory(prefix="ppl-processes-") as folder:
        handed = _handed_over(problem, Path(folder))
        settings = (processes, folder, handed, backend, timeout, _threads(processes))
        context: Any = mp.start_processes(_main, settings, nprocs=processes, join=False, start_method="spawn")
        try:
            while not context.join():
                pass
        except (mp.ProcessRaisedException, mp.ProcessExitedException) as error:
            raise _explained(Path(folder), error, processes, problem) from None
        except KeyboardInterrupt:
            for process in context.processes:
                process.kill()
            raise
        device = torch.device(problem.device or "cpu")
        return fit_of(problem, read_run(Path(folder) / "run", device))


def _handed_over(problem: Problem, folder: Path) -> Problem:
    """The problem as it goes to the processes: rows in a file, of which each reads its own."""
    if not isinstance(problem.source, Held):
        return problem
    return replace(problem, source=Filed.of(problem.source.data, folder / "data"))


def _threads(processes: int) -> int:
    """Threads of each process: the machine's cores divided, or what the environment says."""
    return int(os.environ.get("OMP_NUM_THREADS", 0)) or max(1, (os.cpu_count() or 1) // processes)


def _main(
    rank: int, size: int, folder: str, problem: Problem, backend: str | None, timeout: float, threads: int
) -> None:
    torch.set_num_threads(threads)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ["LOCAL_RANK"] = str(rank)
    try:
        meeting = f"file://{folder}/meeting"
        with group(backend=backend, timeout=timeout, init_method=meeting, rank=rank, world_size=size) as pool:
            run = ran(problem, pool)
            if rank == 0:
                write_run(Path(folder) / "run", run)
            pool.wait()
    except BaseException as error:
        report = {"kind": type(error).__name__, "message": str(error), "trace": traceback.format_exc()}
        (Path(folder) / f"error-{rank}.json").write_text(json.dumps(report), encoding="utf-8")
        raise SystemExit(1) from None


def _explained(folder: Path, error: Any, size: int, problem: Problem) -> PPLError:
    """The suite's own error as it was; else which process ended, and how."""
    reports = {int(path.stem.split("-")[1]): json.loads(path.read_text()) for path in folder.glob("error-*.json")}
    # Processes that lost the others say so, but it is not they who failed.
    first = {rank: one for rank, one in reports.items() if one["kind"] not in ("ProcessError", "KeyboardInterrupt")}
    for _, report in sorted(first.items()):
        kind = getattr(ppl_models, report["kind"], None)
        if isinstance(kind, type) and issubclass(kind, PPLError):
            return _rebuilt(kind, report["message"])
        return ProcessError(f"a process of {size} failed: {report['kind']}: {report['message']}\n{report['trace']}")
    number = getattr(error, "exit_code", None)
    name = f"signal {signal.Signals(-number).name}" if number is not None and number < 0 else f"exit code {number}"
    after = Checkpoint.of(problem.method.checkpoint)
    hint = "set checkpoint= to be able to go on" if after is None else f"the same call goes on from {after.path}"
    return ProcessError(f"process {error.error_index} of {size} died ({name}); {hint}")


def _rebuilt(kind: type[PPLError], message: str) -> PPLError:
    error = kind.__new__(kind, message)
    ValueError.__init__(error, message)
    return error
