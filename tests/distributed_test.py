"""Fits by several processes: equal to one process's to rounding, and what happens where one of them fails."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
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

from benchmarks.speed import _distributed_problem as problem
from custom_inference import (
    EM,
    NUTS,
    SVI,
    Checkpoint,
    Search,
    _checkpoint,
    _parallel_search,
    _processes,
    distributed,
    fit,
)
from custom_inference._methods import with_settings
from custom_inference._processes import run_all
from custom_inference.distributed import GroupPool
from custom_inference.engines import engines_of
from custom_inference.steps._cvb0_sweeps import counted
from ppl_models import (
    MODELS,
    NOCA,
    CapacityError,
    DataError,
    FileFormatError,
    MethodError,
    ProcessError,
    RowBlocks,
)
from tests import _distributed as worker

pytestmark = [
    pytest.mark.filterwarnings("ignore::ppl_models.DataWarning"),
    pytest.mark.skipif(sys.platform != "linux", reason="starts processes as Linux does"),
]
ROOT = Path(__file__).resolve().parents[1]
CASES = worker.cases()
#: Sums in parts differ from sums at once by some units of rounding, relative to their terms. EM maps such differences
#: to ones of the same size; least squares of extrapolations and roots at the edge of flat objectives enlarge them, by
#: the square root of their condition. 1e-9 is the former with room for the latter; in single precision 2e-3.
TOLERANCE = {torch.float64: {"rtol": 1e-9, "atol": 1e-9}, torch.float32: {"rtol": 2e-3, "atol": 2e-3}}


@pytest.fixture(scope="module")
def alone():
    """What one process finds."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    found = {name: worker.recorded(case.alone()) for name, case in CASES.items()}
    torch.set_default_dtype(before)
    return found


@pytest.fixture(scope="module")
def four(tmp_path_factory, alone):
    """What each of four processes finds (after ``alone``: compiled kernels are in their cache)."""
    folder = tmp_path_factory.mktemp("four")
    codes = run_all(worker.member, [(rank, 4, folder) for rank in range(4)])
    assert codes == dict.fromkeys(range(4), 0)
    return [torch.load(folder / f"4-{rank}.pt", weights_only=False) for rank in range(4)]


@pytest.fixture(scope="module")
def two(tmp_path_factory, alone):
    """What torchrun's two processes leave: they are killed once, go on, fit, and are killed at last."""
    folder = tmp_path_factory.mktemp("two")
    rows = "\n".join(",".join(f"{v:g}" for v in row) for row in NOCA.example().data.x.tolist())
    (folder / "data.csv").write_text("a,b,c,d,e,f\n" + rows + "\n")
    (folder / "once").touch()
    command = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1", "--standalone"]
    started = [sys.executable, *command, "-m", "tests._distributed", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ended = subprocess.run(started, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=600, check=False)
    return folder, ended


def saved(folder: Path, rank: int) -> dict[str, Any]:
    return torch.load(folder / f"2-{rank}.pt", weights_only=False)


# ----- equal ------------------------------------------------------------------------------------------------------


def compare(found: dict[str, Any], expected: dict[str, Any]) -> None:
    dtype = expected["bound"].dtype
    if dtype == torch.float64:
        assert found["status"].split("(")[0] == expected["status"].split("(")[0]  # as many iterations
    assert found["tensors"].keys() == expected["tensors"].keys()
    for name, value in expected["tensors"].items():
        torch.testing.assert_close(found["tensors"][name], value, **TOLERANCE[dtype], msg=lambda text, n=name: n + text)
    torch.testing.assert_close(found["bound"], expected["bound"], equal_nan=True, **TOLERANCE[dtype])


def identical(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert first["status"] == second["status"]
    for name, value in {**first["tensors"], "bound": first["bound"]}.items():
        other = {**second["tensors"], "bound": second["bound"]}[name]
        torch.testing.assert_close(other, value, rtol=0, atol=0, equal_nan=True)  # points have no bound: NaN


def test_every_family_that_shares_is_among_the_cases():
    shared = {
        f"{name} {bound}"
        for name, kind in MODELS.items()
        for bound, engine in engines_of(kind.example().model).items()
        if engine().shares is not None and not engine().sequential
    }
    assert shared <= set(CASES)
    for model in ("noca", "cvq", "aspect_bernoulli", "lda", "mmsb", "logistic_pca", "mixture_of_bernoullis"):
        assert any(name.startswith(model) for name in shared)


@pytest.mark.parametrize("name", CASES)
def test_four_processes_find_what_one_finds(name, four, alone):
    compare(four[0][name], alone[name])
    assert four[0][name]["details"]["processes"] == 4
    for other in four[1:]:
        identical(four[0][name], other[name])


@pytest.mark.parametrize("name", CASES)
def test_two_processes_find_what_one_finds(name, two, alone):
    folder, _ = two
    compare(saved(folder, 0)[name], alone[name])
    identical(saved(folder, 0)[name], saved(folder, 1)[name])


def test_sequential_sweeps_come_to_a_fixed_point(four, two):
    """CVB0's sweep goes from document to document: with several processes by other steps, to what one process's sweep
    leaves as it is."""
    case = worker.sequential()
    for found in (four[0]["sequential"], saved(two[0], 0)["sequential"]):
        assert found["status"].startswith("converged")
        steps = case.method.steps(case.model)
        rows = steps.rows(case.model.prepare(case.data, dtype=torch.float64))
        share = found["share"]
        counts = {"topic": counted(rows, share).T}
        again = steps.e_step(counts, rows, {"share": share})
        torch.testing.assert_close(again.locals["share"], share, rtol=0, atol=1e-3)
        assert abs(float(again.bound.sum()) - float(found["trace"][-1])) < 1e-6


def test_a_search_by_processes_does_not_depend_on_their_number():
    example = NOCA.example()
    one, two = (_searched(example, processes) for processes in (1, 2))
    identical(worker.recorded(one), worker.recorded(two))
    assert one.details["start_scores"] == two.details["start_scores"]
    in_turn = _searched(example, None)
    assert len(two.details["start_scores"]) >= 3
    assert float(two.elbo[-1]) >= float(in_turn.elbo[-1]) - 0.1


def _searched(example, processes, **more):
    search = Search(processes=processes, restarts=6, **more)
    return fit(example.model, example.data, search=search, progress=False)


def test_a_search_stops_in_the_order_of_the_starts():
    """As many agreeing starts as are asked for, whatever surplus the processes were working at."""
    example = NOCA.example()
    scores = _searched(example, 2, agree=6).details["start_scores"]
    stopped = _searched(example, 2).details["start_scores"]
    assert len(scores) == 6
    assert len(stopped) < 6
    assert scores[: len(stopped)] == stopped


def test_locals_of_the_best_start_come_along():
    case = CASES["search, aspects"]
    for restarts in (1, 3):
        found = [
            with_settings(case.method, {"search": Search(processes=processes, restarts=restarts)})
            for processes in (1, 2)
        ]
        one, two = (method.fit(case.model, case.data, progress=False) for method in found)
        identical(worker.recorded(one), worker.recorded(two))


def test_control_c_keeps_the_best_start_and_leaves_no_process(monkeypatch):
    example, workers = NOCA.example(), []
    plain, counts = _parallel_search.Future.result, {"asked": 0}

    def interrupted(self, timeout=None):
        counts["asked"] += 1
        workers.extend(multiprocessing.active_children())
        if counts["asked"] == 2:
            raise KeyboardInterrupt
        return plain(self, timeout)

    monkeypatch.setattr(_parallel_search.Future, "result", interrupted)
    found = _searched(example, 2, agree=6)
    assert found.status.startswith("interrupted after")
    assert "this is the best of them" in found.status
    assert workers
    assert not any(worker.is_alive() for worker in workers)


def test_a_search_whose_process_dies_says_so(monkeypatch, tmp_path):
    example = NOCA.example()
    (tmp_path / "once").touch()
    method = worker.Faulty(fault="kill", at=1, once=str(tmp_path / "once"), rank=0, search=Search(processes=2))
    with pytest.raises(ProcessError, match="a process of the search died after 0 of"):
        method.fit(example.model, example.data, progress=False)
    with pytest.raises(MethodError, match="processes must be at least 1"):
        Search(processes=0)


def test_processes_without_rows_are_refused(four):
    assert {part["few rows"] for part in four} == {"MethodError: 1 rows for 4 processes; each needs at least one"}


def test_started_processes_find_what_one_finds(alone):
    """``processes=``: the caller gets the fit, of its own data, labels included."""
    case = CASES["noca factorized, holes"]
    labelled = replace(case.data, coords={"feature": list("abcdef"), "row": list(range(len(case.data)))})
    fit = distributed.fit(case.model, labelled, method=case.method, processes=3, progress=False)
    compare(worker.recorded(fit), alone["noca factorized, holes"])
    assert fit.coords["feature"] == list("abcdef")
    assert fit.details["processes"] == 3
    assert len(fit.transform(case.data.x[:2])) == 2


def test_one_started_process_is_as_good_as_none(alone):
    fit = CASES["lda vb"].together(processes=1)
    for name, value in alone["lda vb"]["tensors"].items():
        assert torch.equal(worker.recorded(fit)["tensors"][name], value)


# ----- what travels -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "e_step", "m_step"),
    [
        ("noca evidence", problem.noca_exact(2, 6), 0),
        ("noca evidence, holes", problem.noca_exact(2, 6, holes=True), 0),
        ("cvq evidence", problem.cvq(2, 6), 0),
        ("cvq evidence, holes", problem.cvq(2, 6, holes=True), 0),
        ("plain aspects", problem.aspects(3, 9, newton=False), 0),
        ("plain draws", problem.aspects(2, 9, newton=True) - 9, 9),
        ("lda vb", problem.topics(3, 9), 0),
        ("plain memberships", problem.memberships(2, 20), 0),
    ],
)
def test_as_many_bytes_travel_as_on_paper(name, e_step, m_step, two, four):
    """Of every iteration's E step, of all but the last one's M step, and the number of rows once."""
    model = CASES[name].model
    assert CASES[name].settings == {}
    assert e_step > 0
    n = worker.ITERATIONS
    begin = {"plain aspects": 3, "plain draws": 3, "plain memberships": 0}.get(name, 1)
    for found in (saved(two[0], 1)[name], four[3][name]):
        assert found["details"]["bytes_added_up"] == 8 * (n * e_step + (n - 1) * m_step + begin), model
        assert found["details"]["times_added_up"] == n + (n - 1) * bool(m_step) + (begin > 0) + (begin > 1)


def test_time_on_paper():
    """A ring of two sends its bytes once each way, in two steps; a tree of 1024 takes 20 steps, a ring 2046."""
    assert problem.ring_bytes(1000, 2) == 1000
    assert problem.ring_bytes(1000, 4) == 1500
    assert problem.seconds(1000, 1, 2, bits=8e3, latency=0.25) == pytest.approx(1.5)
    assert problem.seconds(0, 3, 1024, bits=1e9, latency=1e-3, tree=True) == pytest.approx(0.06)
    assert problem.seconds(0, 1, 1024, bits=1e9, latency=1e-3) == pytest.approx(2.046)
    assert problem.seconds(1000, 1, 1, bits=1e9, latency=1.0) == 0
    assert problem.rows_for(0.5, 1e-3) == pytest.approx(5000)


# ----- two networks -----------------------------------------------------------------------------------------------


@pytest.fixture
def two_networks():
    """Two network namespaces, joined by a pair of virtual devices: what two machines on a cable are."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the ip command")
    names = [f"ppl-{os.getpid()}-{side}" for side in "ab"]
    try:
        for name in names:
            if _ip("netns", "add", name):
                pytest.skip("network namespaces are not permitted here")
        if _ip("link", "add", "ppla", "netns", names[0], "type", "veth", "peer", "name", "pplb", "netns", names[1]):
            pytest.skip("pairs of virtual network devices are not permitted here")
        for name, device, address in zip(names, ("ppla", "pplb"), ("10.77.0.1/24", "10.77.0.2/24"), strict=True):
            assert not _ip("-n", name, "address", "add", address, "dev", device)
            assert not _ip("-n", name, "link", "set", device, "up")
            assert not _ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            _ip("netns", "delete", name)


def _ip(*arguments: str) -> int:
    return subprocess.run(["ip", *arguments], capture_output=True, check=False).returncode


def _sent(namespace: str, device: str) -> int:
    command = ["ip", "netns", "exec", namespace, "cat", f"/sys/class/net/{device}/statistics/tx_bytes"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_two_networks_find_what_one_process_finds(two_networks, tmp_path, alone):
    each = [
        (rank, name, device, "10.77.0.1", tmp_path)
        for rank, (name, device) in enumerate(zip(two_networks, ("ppla", "pplb"), strict=True))
    ]
    before = [_sent(name, device) for _, name, device, *_ in each]
    assert run_all(worker.in_namespace, each) == {0: 0, 1: 0}
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2)]
    compare(found[0], alone["noca factorized"])
    identical(found[0], found[1])
    for (_, name, device, *_), was in zip(each, before, strict=True):  # it went over the cable
        assert _sent(name, device) - was > found[0]["details"]["bytes_added_up"] / 2


@pytest.mark.slow
def test_torchrun_on_two_networks(two_networks, tmp_path, alone):
    """One agent in each, as on two machines."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\nfrom tests import _distributed as worker\ntorch.set_default_dtype(torch.float64)\n"
        "from custom_inference import distributed\n"
        "with distributed.group() as pool:\n"
        "    found = worker.recorded(worker.cases()['noca factorized'].together())\n"
        f"    torch.save(found, f'{tmp_path}/{{pool.rank}}.pt')\n"
    )
    running = []
    for rank, (name, device) in enumerate(zip(two_networks, ("ppla", "pplb"), strict=True)):
        begun = ["-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={rank}", "--nproc-per-node=1"]
        meeting = ["--master-addr=10.77.0.1", "--master-port=29512"]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": device, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        command = ["ip", "netns", "exec", name, sys.executable, *begun, *meeting, str(script)]
        running.append(subprocess.Popen(command, env=environment, cwd=ROOT))
    try:
        assert [process.wait(300) for process in running] == [0, 0]
    finally:
        for process in running:
            process.kill()
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2)]
    compare(found[0], alone["noca factorized"])
    identical(found[0], found[1])


# ----- the group --------------------------------------------------------------------------------------------------


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


def test_parts_are_all_of_the_rows():
    for size in (1, 2, 3, 7):
        for length in (1, 6, 7, 100):
            pools = [GroupPool.__new__(GroupPool) for _ in range(size)]
            for rank, pool in enumerate(pools):
                pool.rank, pool.size = rank, size
            parts = [list(range(length))[pool.split(length)] for pool in pools]
            assert [row for part in parts for row in part] == list(range(length))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
            shares = [pool.share(list(range(length))) for pool in pools]
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


# ----- what is refused --------------------------------------------------------------------------------------------


def test_what_processes_cannot_do_is_refused_at_once():
    noca, sbm = NOCA.example(), MODELS["sbm"].example()

    def refused(model, data, text, **settings):
        with pytest.raises(MethodError, match=text):
            distributed.fit(model, data, processes=2, progress=False, **settings)

    refused(noca.model, noca.data, "SVI runs in one process", method=SVI())
    refused(noca.model, noca.data, "NUTS runs in one process", method=NUTS())
    refused(noca.model, noca.data, "minibatches are for one process", method=EM(batch_size=5))
    refused(sbm.model, sbm.data, "steps of this model are for one process")
    mmsb = MODELS["mmsb"].example()
    refused(mmsb.model, mmsb.data, "evidence steps of this model are for one process", method=EM())
    with pytest.raises(MethodError, match="processes = 0, expected at least 1"):
        distributed.fit(noca.model, noca.data, processes=0)
    with pytest.raises(MethodError, match="cannot be handed to other processes"):
        unnamed = RowBlocks(read=lambda: [noca.data.x], num_rows=60)
        distributed.fit(noca.model, unnamed, processes=2, method=EM(), progress=False)


# ----- failures ---------------------------------------------------------------------------------------------------


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
    identical(worker.recorded(again), worker.recorded(whole))
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
    with pytest.raises(ProcessError, match=r"(?s)RuntimeError: no error of ours.*Traceback.*_distributed\.py"):
        distributed.fit(example.model, example.data, method=method, processes=2, progress=False)


def test_a_process_that_hangs_runs_into_the_timeout(tmp_path):
    example = NOCA.example()
    method, once = faulty(tmp_path, "hang")
    begin = time.monotonic()
    silent = "process 1 of 2 did not answer for 2 s; set checkpoint= to be able to go on"
    with pytest.raises(ProcessError, match=silent):
        distributed.fit(example.model, example.data, method=method, processes=2, progress=False, timeout=2.0)
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
        found = keeper(rank).resumed(torch.zeros(1))
        assert found is not None
        assert found.state[0]["a"].tolist() == [10 * rank + 1.0] * 2
        assert len(found.trace) == 1


# ----- torchrun ---------------------------------------------------------------------------------------------------


def test_torchrun_starts_again_and_the_fit_goes_on(two):
    folder, _ = two
    assert [saved(folder, rank)["attempt"] for rank in range(2)] == [1, 1]
    assert list(folder.glob("once.*"))
    example = NOCA.example()
    whole = distributed.fit(example.model, example.data, method=worker.Faulty(), processes=2, progress=False)
    identical(saved(folder, 0)["resumed"], worker.recorded(whole))


def test_torchrun_fails_where_a_process_was_killed(two):
    _, run = two
    assert run.returncode != 0
    assert "process 0 of 2 lost the others" in run.stderr or "Signal 9 (SIGKILL)" in run.stderr


def test_the_command_line_by_torchrun_writes_once(two, tmp_path):
    folder, run = two
    assert (folder / "out" / "fit.safetensors").exists()
    first, second = ((folder / f"printed-{rank}").read_text() for rank in range(2))
    assert "NOCA fitted to 60 rows x 6 features by EM" in first
    assert second == ""
    assert "NOCA fitted" not in run.stdout


def test_the_command_line_with_processes(two, tmp_path):
    from typer.testing import CliRunner

    from custom_inference import Fit
    from custom_inference.cli import app

    folder, _ = two
    settings = ["--method", "em", "--set", "search=null", "--set", "max_iterations=5", "--no-progress"]
    out = tmp_path / "out"
    arguments = ["fit", "noca", str(folder / "data.csv"), "-k", "2", "--out", str(out), *settings, "--processes", "2"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    ours, theirs = (Fit.load(place / "fit.safetensors") for place in (out, folder / "out"))
    assert ours.details["processes"] == 2
    for site, value in ours.params.items():
        assert torch.equal(value, theirs.params[site])


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
