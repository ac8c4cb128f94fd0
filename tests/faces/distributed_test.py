"""Fits by several processes, of one machine and of two networks: equal to one process's to rounding."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.speed import _distributed_problem as problem
from custom_inference.core.processes import run_all
from custom_inference.core.registry import engines_of
from custom_inference.faces import distributed
from custom_inference.families.topics.cvb0 import TopicCounts
from ppl_models import MODELS, NOCA
from tests.support import distributed as worker

pytestmark = [
    pytest.mark.filterwarnings("ignore::ppl_models.DataWarning"),
    pytest.mark.skipif(sys.platform != "linux", reason="starts processes as Linux does"),
]
ROOT = Path(__file__).resolve().parents[2]
CASES = worker.cases()


@pytest.fixture(scope="module")
def alone():
    """What one process finds."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    found = {name: worker.recorded(case.alone()) for name, case in CASES.items()}
    torch.set_default_dtype(before)
    return found


@pytest.fixture(scope="module")
def three(tmp_path_factory, alone):
    """What each of three processes finds (after ``alone``: compiled kernels are in their cache)."""
    folder = tmp_path_factory.mktemp("three")
    codes = run_all(worker.member, [(rank, 3, folder) for rank in range(3)])
    assert codes == dict.fromkeys(range(3), 0)
    return [torch.load(folder / f"3-{rank}.pt", weights_only=False) for rank in range(3)]


@pytest.fixture(scope="module")
def two(tmp_path_factory, alone):
    """What torchrun's two processes leave: they are killed once, go on, fit, and are killed at last."""
    folder = tmp_path_factory.mktemp("two")
    rows = "\n".join(",".join(f"{v:g}" for v in row) for row in NOCA.example().data.x.tolist())
    (folder / "data.csv").write_text("a,b,c,d,e,f\n" + rows + "\n")
    (folder / "once").touch()
    command = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1", "--standalone"]
    started = [sys.executable, *command, "-m", "tests.support.distributed", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ended = subprocess.run(started, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=900, check=False)
    return folder, ended


def saved(folder: Path, rank: int) -> dict[str, Any]:
    return torch.load(folder / f"2-{rank}.pt", weights_only=False)


def test_every_family_that_shares_is_among_the_cases():
    shared = {
        f"{name} {bound}"
        for name, kind in MODELS.items()
        for bound, engine in engines_of(kind.example().model).items()
        if worker.is_shared(kind.example().model, bound, engine)
    }
    assert shared <= set(CASES)
    for model in ("noca", "cvq", "aspect_bernoulli", "lda", "mmsb", "logistic_pca", "mixture_of_bernoullis"):
        assert any(name.startswith(model) for name in shared)


@pytest.mark.parametrize("name", CASES)
def test_three_processes_find_what_one_finds(name, three, alone):
    # Newton's steps of these end where an iteration moves little, each process for its own rows.
    worker.compare(
        three[0][name],
        alone[name],
        scale=100.0 if name.startswith(("ctm", "random_effects_lda", "supervised_lda")) else 1.0,
    )
    assert three[0][name]["details"]["processes"] == 3
    for other in three[1:]:
        worker.identical(three[0][name], other[name])


@pytest.mark.parametrize("name", worker.SOME)
def test_two_processes_find_what_one_finds(name, two, alone):
    folder, _ = two
    worker.compare(saved(folder, 0)[name], alone[name])
    worker.identical(saved(folder, 0)[name], saved(folder, 1)[name])


def test_sequential_sweeps_come_to_a_fixed_point(three, two):
    """CVB0's sweep goes from document to document: with several processes by other steps, to what one process's sweep
    leaves as it is."""
    case = worker.sequential()
    for found in (three[0]["sequential"], saved(two[0], 0)["sequential"]):
        assert found["status"].startswith("converged")
        steps = case.method.engine(case.model)
        rows = steps.rows(case.model, case.model.prepare(case.data, dtype=torch.float64))
        responsibility = found["responsibility"]
        counts = TopicCounts(rows.sum_shares(responsibility).T)
        again = steps.e_step(case.model, counts, rows, {"responsibility": responsibility})
        torch.testing.assert_close(again.locals["responsibility"], responsibility, rtol=0, atol=1e-3)
        torch.testing.assert_close(float(again.bound.sum()), float(found["trace"][-1]), rtol=1e-8, atol=0)


def test_processes_without_rows_are_refused(three):
    assert {part["few rows"] for part in three} == {"MethodError: 1 rows for 3 processes; each needs at least one"}


def test_started_processes_find_what_one_finds(alone):
    """``processes=``: the caller gets the fit, of its own data, labels included."""
    case = CASES["noca factorized, holes"]
    labelled = replace(case.data, coords={"feature": list("abcdef"), "row": list(range(len(case.data)))})
    fit = distributed.fit(case.model, labelled, method=case.method, processes=3, progress=False)
    worker.compare(worker.recorded(fit), alone["noca factorized, holes"])
    assert fit.coords["feature"] == list("abcdef")
    assert fit.details["processes"] == 3
    assert len(fit.transform(case.data.x[:2])) == 2


def test_one_started_process_is_as_good_as_none(alone):
    fit = CASES["lda vb"].together(processes=1)
    for name, value in alone["lda vb"]["tensors"].items():
        torch.testing.assert_close(worker.recorded(fit)["tensors"][name], value)


@pytest.mark.parametrize(
    ("name", "e_step", "m_step"),
    [
        ("noca exact", problem.noca_exact(3, 6), 0),
        ("noca exact, holes", problem.noca_exact(3, 6, holes=True), 0),
        ("cvq exact", problem.cvq(3, 6), 0),
        ("cvq exact, holes", problem.cvq(3, 6, holes=True), 0),
        ("plain aspects", problem.aspects(3, 9, newton=False), 0),
        ("plain draws", problem.aspects(2, 9, newton=True) - 9, 9),
        ("lda vb", problem.topics(3, 9), 0),
        ("plain memberships", problem.memberships(2, 20), 0),
    ],
)
def test_as_many_bytes_travel_as_on_paper(name, e_step, m_step, two, three):
    """Of every iteration's E step, of all but the last one's M step, and the number of rows once."""
    model = CASES[name].model
    assert CASES[name].settings == {}
    assert e_step > 0
    n = worker.ITERATIONS
    begin = {"plain aspects": 3, "plain draws": 3, "plain memberships": 0}.get(name, 1)
    for found in (saved(two[0], 1)[name], three[2][name]):
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
    worker.compare(found[0], alone["noca factorized"])
    worker.identical(found[0], found[1])
    for (_, name, device, *_), was in zip(each, before, strict=True):  # it went over the cable
        assert _sent(name, device) - was > found[0]["details"]["bytes_added_up"] / 2


@pytest.mark.slow
def test_torchrun_on_two_networks(two_networks, tmp_path, alone):
    """One agent in each, as on two machines."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\nfrom tests.support import distributed as worker\ntorch.set_default_dtype(torch.float64)\n"
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
    worker.compare(found[0], alone["noca factorized"])
    worker.identical(found[0], found[1])


def test_torchrun_starts_again_and_the_fit_goes_on(two):
    folder, _ = two
    assert [saved(folder, rank)["attempt"] for rank in range(2)] == [1, 1]
    assert list(folder.glob("once.*"))
    example = NOCA.example()
    whole = distributed.fit(example.model, example.data, method=worker.Faulty(), processes=2, progress=False)
    worker.identical(saved(folder, 0)["resumed"], worker.recorded(whole))


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
    from custom_inference.faces.command_line.app import app

    folder, _ = two
    settings = ["--method", "em", "--set", "search=null", "--set", "max_iterations=5", "--no-progress"]
    out = tmp_path / "out"
    arguments = ["fit", "noca", str(folder / "data.csv"), "-k", "2", "--out", str(out), *settings, "--processes", "2"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    ours, theirs = (Fit.load(place / "fit.safetensors") for place in (out, folder / "out"))
    assert ours.details["processes"] == 2
    for site, value in ours.params.items():  # the two may have other numbers of threads
        torch.testing.assert_close(value, theirs.params[site], rtol=1e-12, atol=1e-12)
