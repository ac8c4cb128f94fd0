"""What a group of processes refuses, and what happens where one of them fails."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from custom_inference import EM, NUTS, SVI, Checkpoint
from custom_inference.core import processes as _processes
from custom_inference.em import checkpoint as _checkpoint
from custom_inference.faces import distributed
from custom_inference.faces.distributed import GroupPool
from custom_inference.families.noca.exact import NocaExact
from ppl_models import MODELS, NOCA, CapacityError, DataError, FileFormatError, MethodError, ProcessError, RowBlocks
from tests.support import distributed as worker

pytestmark = [
    pytest.mark.filterwarnings("ignore::ppl_models.DataWarning"),
    pytest.mark.skipif(sys.platform != "linux", reason="starts processes as Linux does"),
]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def group_of_one(tmp_path):
    with distributed.group(init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1) as pool:
        yield pool
    assert not dist.is_initialized()


def test_a_pool_adds_up_by_dtype_and_counts_what_travels(group_of_one):
    values = torch.ones(2, 3), torch.ones(4, dtype=torch.float32), torch.tensor(2.0), torch.ones(2, dtype=torch.int64)
    totals = group_of_one.total(*values)
    for total, value in zip(totals, values, strict=True):
        assert torch.equal(total, value)
        assert total.dtype == value.dtype
    assert group_of_one.traffic == 8 * (6 + 1) + 4 * 4 + 8 * 2
    assert group_of_one.calls == 3
    assert group_of_one.seconds > 0
    assert group_of_one.all_of("x") == ["x"]
    assert group_of_one.from_first(lambda: {"a": values[0]})["a"].shape == (2, 3)


def test_errors_of_the_first_process_come_as_they_were(group_of_one):
    def wrong():
        raise DataError("an entry is wrong", site="y", axis="row", expected="none such")

    with pytest.raises(DataError, match="^site 'y', axis 'row': an entry is wrong; expected none such$") as caught:
        group_of_one.from_first(wrong)
    assert caught.value.axis == "row"


@pytest.mark.quick
def test_parts_are_all_of_the_rows():
    for size in (1, 2, 3, 7):
        for length in (1, 6, 7, 100):
            pools = [GroupPool.__new__(GroupPool) for _ in range(size)]
            for rank, pool in enumerate(pools):
                pool.rank, pool.size = rank, size
            parts = [list(range(length))[pool.split(length)] for pool in pools]
            assert [row for part in parts for row in part] == list(range(length))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
            shares = [pool.shard(list(range(length))) for pool in pools]
            assert sorted(item for share in shares for item in share) == list(range(length))


@pytest.mark.parametrize(
    "error",
    [
        DataError("wrong", site="y", axis="row", expected="right"),
        CapacityError("too large", needed_bytes=2.0, allowed_bytes=1.0),
        MethodError("no"),
    ],
)
def test_errors_survive_the_way_between_processes(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_what_processes_cannot_do_is_refused_at_once():
    noca, sbm = NOCA.example(), MODELS["sbm"].example()

    def refused(model, data, text, **settings):
        with pytest.raises(MethodError, match=text):
            distributed.fit(model, data, processes=2, progress=False, **settings)

    refused(noca.model, noca.data, "SVI runs in one process", method=SVI())
    refused(noca.model, noca.data, "NUTS runs in one process", method=NUTS())
    refused(noca.model, noca.data, "minibatches are for one process", method=EM(batch_size=5))
    refused(sbm.model, sbm.data, "engine of this model is for one process")
    mmsb = MODELS["mmsb"].example()
    refused(mmsb.model, mmsb.data, "exact engine of this model is for one process", method=EM())
    wrong = {"processes": [0, 1.5, "2", True], "backend": ["mpi"], "timeout": [-1, 0, "long"]}
    for name, value in ((name, value) for name, values in wrong.items() for value in values):
        with pytest.raises(MethodError, match=f"{name}.*(expected|valid: gloo, nccl)"):
            distributed.fit(noca.model, noca.data, **{"processes": 2, name: value})
    with pytest.raises(MethodError, match="cannot be handed to other processes"):
        unnamed = RowBlocks(read=lambda: [noca.data.x], num_rows=60)
        distributed.fit(noca.model, unnamed, processes=2, method=EM(), progress=False)


def faulty(tmp_path, fault, **settings) -> tuple[Any, Path]:
    once = tmp_path / "once"
    once.touch()
    return worker.Faulty(fault=fault, once=str(once), **settings), once


def ended(once: Path) -> bool:
    """Whether the process that failed has gone: its number is in the name of the file that it moved."""
    [moved] = once.parent.glob("once.*")
    status = Path(f"/proc/{moved.suffix[1:]}/stat")
    return not status.exists() or status.read_text().split()[2] == "Z"


def test_a_killed_process_ends_the_fit_and_the_same_call_goes_on(tmp_path):
    example, kept = NOCA.example(), Checkpoint(path=tmp_path / "state", every=3)
    method, once = faulty(tmp_path, "kill", at=8, checkpoint=kept)
    call = {"method": method, "processes": 2, "progress": False}
    died = r"process 1 of 2 died \(signal SIGKILL\); the same call goes on from .*state"
    with pytest.raises(ProcessError, match=died):
        distributed.fit(example.model, example.data, **call)
    assert ended(once)
    whole = distributed.fit(example.model, example.data, **{**call, "method": replace(method, checkpoint=None)})
    again = distributed.fit(example.model, example.data, **call)
    worker.identical(worker.recorded(again), worker.recorded(whole))
    with pytest.raises(MethodError, match="another problem: processes was 2, now 3"):
        distributed.fit(example.model, example.data, **{**call, "processes": 3})
    with pytest.raises(MethodError, match="another problem: processes was 2, now 1"):
        method.fit(example.model, example.data, progress=False)
    for own in tmp_path.glob("state.*.1-of-2"):
        own.unlink()
    with pytest.raises(FileFormatError, match="the part of some process is not there"):
        distributed.fit(example.model, example.data, **call)


def test_errors_of_any_process_are_raised_as_they_were(tmp_path):
    example = NOCA.example()
    method, once = faulty(tmp_path, "data")
    with pytest.raises(DataError, match="^site 'y', axis 'row': an entry is wrong; expected none such$") as caught:
        distributed.fit(example.model, example.data, method=method, processes=2, progress=False)
    assert (caught.value.site, caught.value.axis) == ("y", "row")
    assert ended(once)
    method, _ = faulty(tmp_path, "other")
    with pytest.raises(ProcessError, match=r"(?s)RuntimeError: no error of ours.*Traceback.*distributed\.py"):
        distributed.fit(example.model, example.data, method=method, processes=2, progress=False)


def test_a_process_that_hangs_runs_into_the_timeout(tmp_path):
    example = NOCA.example()
    method, once = faulty(tmp_path, "hang")
    begin = time.monotonic()
    silent = "process 1 of 2 did not answer for 5 s; set checkpoint= to be able to go on"
    with pytest.raises(ProcessError, match=silent):
        distributed.fit(example.model, example.data, method=method, processes=2, progress=False, timeout=5.0)
    assert time.monotonic() - begin < 120
    assert ended(once)


def test_control_c_leaves_no_process(tmp_path, monkeypatch):
    """The terminal sends SIGINT to all: the started ones leave it to the one that started them."""
    example = NOCA.example()
    method, once = faulty(tmp_path, "hang")
    waiting = _processes.wait

    def interrupted(sentinels, timeout=None):
        while not list(tmp_path.glob("once.*")):
            waiting(sentinels, timeout=0.05)
        [moved] = tmp_path.glob("once.*")
        os.kill(int(moved.suffix[1:]), signal.SIGINT)
        assert not waiting(sentinels, timeout=0.3)
        raise KeyboardInterrupt

    monkeypatch.setattr(_processes, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        distributed.fit(example.model, example.data, method=method, processes=2, progress=False)
    assert ended(once)


def test_a_crash_between_the_parts_and_the_main_file_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    """Two processes, here threads that take turns: both write their parts, and the first dies before the main file."""
    path, barrier = tmp_path / "state", threading.Barrier(2)

    class Turns(distributed.GroupPool):
        def __init__(self, rank):
            self.rank, self.size = rank, 2

        def wait(self):
            barrier.wait(10)

        def total(self, *values):
            return tuple(2 * value for value in values)

        def from_first(self, make):
            return make()

    def keeper(rank):
        problem = {"seed": 0}
        settings = Checkpoint(path=path, every=1)
        return _checkpoint.Keeper(settings, problem, torch.tensor([1, 2]), torch.Generator(), Turns(rank))

    def kept(rank, iteration, results):
        state = {"a": torch.full((2,), float(10 * rank + iteration))}, {"own": torch.ones(3) * rank}
        at = _checkpoint.Position(state, trace=[0.0] * iteration)
        try:
            keeper(rank).keep(at)
        except Exception as error:
            results.append(error)
            barrier.abort()

    def both(iteration):
        results: list[Exception] = []
        threads = [threading.Thread(target=kept, args=(rank, iteration, results)) for rank in range(2)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        return results

    assert not both(1)
    plain = _checkpoint.write_tensors

    def dying(target, *arguments):
        if target == path:
            raise OSError("no space left")
        plain(target, *arguments)

    monkeypatch.setattr(_checkpoint, "write_tensors", dying)
    assert both(2)
    assert {one.name for one in tmp_path.iterdir()} >= {"state.1.0-of-2", "state.1.1-of-2", "state.2.1-of-2"}
    for rank in range(2):
        found = keeper(rank).resume(NocaExact(), torch.zeros(1))
        assert found is not None
        assert found.start[0]["a"].tolist() == [10 * rank + 1.0] * 2
        assert len(found.trace) == 1


UNGUARDED = """
from custom_inference import EM, distributed
from ppl_models import NOCA

example = NOCA.example()
distributed.fit(example.model, example.data, processes=2, method=EM(), progress=False)
"""


def test_a_script_without_a_guard_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 1
    assert run.stderr.count("Traceback") == 1, run.stderr
    assert 'if __name__ == "__main__":' in run.stderr


def test_processes_that_were_never_started_are_no_hindrance():
    processes = [_processes.context().Process(target=print) for _ in range(2)]
    _processes.stop(processes)  # as where Ctrl-C comes before all have begun
