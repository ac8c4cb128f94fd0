"""Starts of a search in several processes: the same whatever their number, and no process is left behind."""

import multiprocessing
import sys

import pytest

from custom_inference import Search, fit
from custom_inference.em import search as _search
from custom_inference.methods import with_settings
from ppl_models import NOCA, MethodError, ProcessError
from tests.support import distributed as worker

pytestmark = [
    pytest.mark.filterwarnings("ignore::ppl_models.DataWarning"),
    pytest.mark.skipif(sys.platform != "linux", reason="starts processes as Linux does"),
]


def test_a_search_by_processes_does_not_depend_on_their_number():
    example = NOCA.example()
    one, two = (_searched(example, processes) for processes in (1, 2))
    worker.identical(worker.recorded(one), worker.recorded(two))
    assert one.details["start_scores"] == two.details["start_scores"]
    in_turn = _searched(example, None)
    assert len(two.details["start_scores"]) >= 3
    assert float(two.elbo[-1]) >= float(in_turn.elbo[-1]) - 0.1


def _searched(example, processes, **more):
    search = Search(processes=processes, restarts=6, **more)
    return fit(example.model, example.data, search=search, progress=False)


@pytest.mark.quick
def test_a_search_stops_in_the_order_of_the_starts():
    """As many agreeing starts as are asked for, whatever surplus the processes were working at."""
    example = NOCA.example()
    scores = _searched(example, 2, agree=6).details["start_scores"]
    stopped = _searched(example, 2).details["start_scores"]
    assert len(scores) == 6
    assert len(stopped) < 6
    assert scores[: len(stopped)] == stopped


def test_locals_of_the_best_start_come_along():
    case = worker.cases()["search, aspects"]
    for restarts in (1, 3):
        found = [
            with_settings(case.method, {"search": Search(processes=processes, restarts=restarts)})
            for processes in (1, 2)
        ]
        one, two = (method.fit(case.model, case.data, progress=False) for method in found)
        worker.identical(worker.recorded(one), worker.recorded(two))


def test_control_c_keeps_the_best_start_and_leaves_no_process(monkeypatch):
    example, workers = NOCA.example(), []
    plain, counts = _search.Future.result, {"asked": 0}

    def interrupted(self, timeout=None):
        counts["asked"] += 1
        workers.extend(multiprocessing.active_children())
        if counts["asked"] == 2:
            raise KeyboardInterrupt
        return plain(self, timeout)

    monkeypatch.setattr(_search.Future, "result", interrupted)
    found = _searched(example, 2, agree=6)
    assert found.status.startswith("interrupted after")
    assert "this is the best of them" in found.status
    assert workers
    assert not any(worker.is_alive() for worker in workers)


def test_a_search_whose_process_dies_says_so(tmp_path):
    example = NOCA.example()
    (tmp_path / "once").touch()
    method = worker.Faulty(fault="kill", at=1, once=str(tmp_path / "once"), rank=0, search=Search(processes=2))
    with pytest.raises(ProcessError, match=r"a process of the search died after \d+ of"):
        method.fit(example.model, example.data, progress=False)
    with pytest.raises(MethodError, match="processes = 0, expected a whole number of at least 1"):
        Search(processes=0)
