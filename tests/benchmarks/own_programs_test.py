"""Programs of one's own beside EM by hand: the steps by hand are EM, sources are counted, reports grow by parts."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm, poisson

from benchmarks._report import read_tables
from benchmarks.quality import _own_by_hand, _own_data, own_programs, own_programs_speed
from benchmarks.quality._own_peers import evidence

IMAGES = "noisy-or of images, K 8"
DRAWN = {
    "zero_inflated": lambda: _own_data.zero_inflated(80, 1),
    "two_level": lambda: _own_data.two_level(80, 1),
    "regressions": lambda: _own_data.regressions(80, 1),
    "chain": lambda: _own_data.chains(40, 6, 1),
    "noisy_or": lambda: _own_data.grouped(80, 1),
}


def _first_step(name, rows, monkeypatch):
    """The step by hand, and its first start."""
    kept = []

    def best(step, starts):
        kept.append((step, next(iter(starts))))
        return np.zeros(1)

    monkeypatch.setattr(_own_by_hand, "best", best)
    getattr(_own_by_hand, name)(rows, 0)
    return kept[0]


@pytest.mark.parametrize("name", DRAWN)
def test_every_step_by_hand_climbs(name, monkeypatch):
    step, state = _first_step(name, DRAWN[name](), monkeypatch)
    values = []
    for _ in range(15):
        value, _, state = step(state)
        values.append(value)
    assert np.diff(values).min() > -1e-8 and values[-1] > values[0] + 1


@pytest.mark.parametrize("name", DRAWN)
def test_evidence_by_hand_is_a_sum_over_all_latents(name, monkeypatch):
    rows = DRAWN[name]()
    step, state = _first_step(name, rows, monkeypatch)
    for _ in range(3):
        state = step(state)[2]
    got = step(state)[1][:4]
    np.testing.assert_allclose(got, [_summed(name, rows, state, n) for n in range(4)], rtol=1e-9)


def _summed(name, rows, state, n):
    x = rows.x[n]
    if name == "zero_inflated":
        weight, rate, gate = state
        each = np.where(x == 0, gate, 0) + (1 - gate) * poisson.pmf(x, rate)
        return np.log(weight @ each.prod(1))
    if name == "two_level":
        weight, p = state
        return np.log(weight @ np.where(x == 1, p, 1 - p).prod(1))
    if name == "regressions":
        weight, line, noise = state
        return np.log(weight @ norm.pdf(x, line[:, 0] + line[:, 1:] @ rows.given["u"][n], noise))
    if name == "chain":
        start, move, emit = state
        total = 0.0
        for z in itertools.product(range(4), repeat=len(x)):
            moves = np.prod([move[a, b] for a, b in itertools.pairwise(z)])
            total += start[z[0]] * moves * emit[list(z), x.astype(int)].prod()
        return np.log(total)
    prior, p, leak = state
    total, own = 0.0, leak[int(rows.given["group"][n])]
    for s in itertools.product((0, 1), repeat=len(prior)):
        on = 1 - (1 - own) * np.prod([(1 - p[k]) for k in range(4) if s[k]], axis=0)
        total += np.where(np.array(s) == 1, prior, 1 - prior).prod() * np.where(x == 1, on, 1 - on).prod()
    return np.log(total)


def test_scores_of_other_programs_are_log_likelihoods():
    x = np.array([[1.0, 0.0], [3.0, 2.0]])
    weight, rate = np.array([0.3, 0.7]), np.array([[1.0, 2.0], [0.5, 4.0]])
    each = [np.log(sum(w * poisson.pmf(row, r).prod() for w, r in zip(weight, rate, strict=True))) for row in x]
    assert evidence("counts", x, {"weight": weight, "rate": rate}) == pytest.approx(np.mean(each))


def test_sources_are_found_whatever_their_order():
    truth = np.array([[0.9, 0.0, 0.9], [0.0, 0.9, 0.0], [0.9, 0.9, 0.0]])
    prior = np.full(3, 0.3)
    assert _own_data.sources_found(truth[[2, 0, 1]] + 0.01, prior, truth) == 3
    assert _own_data.sources_found(truth[[2, 0, 0]], prior, truth) == 2
    assert _own_data.sources_found(truth, np.array([0.3, 0.01, 0.3]), truth) == 2


def test_a_line_has_both_sides(tmp_path, monkeypatch):
    name = "classes and kinds, 3 x 2"
    few = replace(own_programs_speed.CASES[name], draw=lambda folder, draw: _own_data.two_level(60, draw))
    monkeypatch.setattr(own_programs_speed, "CASES", {name: few})
    line = own_programs_speed.measure_beside(name, 0, tmp_path, seeds=1)
    cells = dict(zip(own_programs_speed._COLUMNS[own_programs_speed.BESIDE], line, strict=True))
    assert cells["method"] == "EM" and cells["rows"] == "60 x 12"
    assert float(cells["log-likelihood of a row"]) > float(cells["its log-likelihood"]) - 0.05


def test_lines_that_are_not_measured_again_stay(tmp_path, monkeypatch):
    def process(table, *arguments):
        if table == "beside":
            return [arguments[0], "1 x 1", int(arguments[1]), *["0"] * 10]
        return {"scores": [-1.0], "seconds": [2.0], "method": "EM", "score": -1.0, "memory": 1.0} | (
            {"seconds": 2.0} if table == "sizes" else {}
        )

    monkeypatch.setattr(own_programs, "quiet_and_single_threaded", lambda: None)
    monkeypatch.setattr(own_programs.torch, "set_default_dtype", lambda dtype: None)
    monkeypatch.setattr(own_programs_speed, "_in_a_process", process)
    monkeypatch.setattr(own_programs_speed, "version_of", lambda name: "1")
    monkeypatch.setattr(own_programs_speed, "SMOKE", False)
    monkeypatch.setattr(own_programs_speed, "NUMBERS", (1000,))
    cases = own_programs_speed.CASES
    monkeypatch.setattr(own_programs_speed, "CASES", {one: cases[one] for one in (*[*cases][:1], IMAGES)})
    monkeypatch.setattr(own_programs, "SMOKE", False)
    tables = ["--tables", "beside", "sizes", "peers"]
    own_programs.main([*tables, "--data", str(tmp_path)], folder=tmp_path)
    monkeypatch.setattr(own_programs_speed, "version_of", lambda name: "2" if name == "pyro-ppl" else None)
    monkeypatch.delenv("PPL_DATA", raising=False)
    own_programs.main(["--tables", "beside", "peers"], folder=tmp_path)
    found = read_tables("own_programs", folder=tmp_path)
    assert list(found) == [own_programs_speed.BESIDE, own_programs_speed.SIZES, own_programs_speed.PEERS]
    assert sum(row[0] == IMAGES for row in found[own_programs_speed.BESIDE].rows) == 5
    programs = [row[1] for row in found[own_programs_speed.PEERS].rows]
    assert programs.count("Pyro 2") == 3 and programs.count("NumPyro 1") == 3 and programs.count("hmmlearn 1") == 1
    assert json.loads((tmp_path / "own_programs.json").read_text())["tables"][1]["rows"][0]["rows"] == 1000
