"""Other processes of this machine that work for this one: how they are started, and how they end with it.

Where the system can fork, one server process imports torch and the suite once and every worker is forked off it before
any thread was started: the first worker costs one import, the others next to nothing. Elsewhere each one imports.
joblib's (loky) do so everywhere, which takes four workers 81 s where these take 17, and stay on afterwards with 350 MB
each; nor does it run the members of a process group, which have a process each and must all end with any of them.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ppl_models import MethodError

#: How a worker ends that finds itself running the script that starts workers.
UNGUARDED = 70


def context() -> Any:
    """How processes are started: never as forks of this one, whose threads would not come along."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["custom_inference.faces.distributed"])
    return found


def check_startable() -> None:
    """Refuses where processes could not begin, as each of them imports the script that starts them.

    Ends a process that is about to start processes while it is being started itself; its parent says why.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(UNGUARDED)
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if getattr(main, "__spec__", None) is None and path is not None and not Path(path).exists():
        raise MethodError(f"processes import the script that starts them, and {path} is no file; save it as one")


def missing_main_guard() -> MethodError:
    """Return the parent's error for a script that starts processes at its top level."""
    return MethodError(
        "processes were started by a script at its top level, which every one of them runs again; put the call under\n"
        '    if __name__ == "__main__":'
    )


class Surroundings(NamedTuple):
    """The settings that a worker has in common with the process that started it."""

    environment: dict[str, str]
    threads: int
    dtype: torch.dtype

    @classmethod
    def of(cls, processes: int) -> Surroundings:
        """This process's, as each of so many workers gets them: the cores divided, or what the environment says."""
        threads = int(os.environ.get("OMP_NUM_THREADS", 0)) or max(1, (os.cpu_count() or 1) // processes)
        return cls(dict(os.environ), threads, torch.get_default_dtype())


def begin_worker(around: Surroundings, **environment: str) -> None:
    """Begin a worker: take over its parent's settings, leave Ctrl-C to the parent, and end with it."""
    os.environ.update({**around.environment, **environment})
    torch.set_num_threads(around.threads)
    torch.set_default_dtype(around.dtype)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()


def _follow(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def pack(value: Any) -> bytes:
    """A value as it goes to other processes. Raises MethodError where it cannot."""
    try:
        return pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise MethodError(
            f"this cannot be handed to other processes: {error}; functions and classes have to be those of a module"
        ) from None


def unpack(content: bytes) -> Any:
    """The value again. Raises MethodError where this process does not find what it is made of."""
    try:
        return pickle.loads(content)
    except (AttributeError, ImportError) as error:
        raise MethodError(
            f"other processes cannot import what the fit is made of: {error}; put models, priors and sources that "
            "a notebook or a prompt defines into a module"
        ) from None


def run_all(target: Callable[..., None], each: Sequence[tuple[Any, ...]], *, grace: float = 5.0) -> dict[int, int]:
    """Run a function in one process for each tuple of arguments, and wait; the exit codes by position.

    Where one fails the others have ``grace`` seconds to end by themselves, and are stopped then: those are not among
    the codes. Whatever ends the wait, Ctrl-C too, no process is left behind.
    """
    check_startable()
    processes = [context().Process(target=target, args=arguments) for arguments in each]
    try:
        for process in processes:
            process.start()
        until = None
        while (until is None or time.monotonic() < until) and any(one.is_alive() for one in processes):
            alive = [one.sentinel for one in processes if one.is_alive()]
            wait(alive, timeout=None if until is None else max(0.0, until - time.monotonic()))
            if until is None and any(one.exitcode for one in processes):
                until = time.monotonic() + grace
        return {i: one.exitcode for i, one in enumerate(processes) if one.exitcode is not None}
    finally:
        stop(processes)


def stop(processes: Sequence[Any]) -> None:
    """Kill what is still running, and wait for its end."""
    started = [process for process in processes if process.pid is not None]  # Ctrl-C may come before all are
    for process in started:
        process.kill()
    for process in started:
        process.join()
