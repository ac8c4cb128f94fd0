"""Bars of long work: quiet in a notebook without widgets, and one text whatever they count to."""

from __future__ import annotations

import subprocess
import sys

import pytest

from custom_inference.core import progress
from custom_inference.core.progress import Progress

#: What tqdm takes for a notebook's kernel, without widgets; every warning is printed.
NOTEBOOK = """
import sys, types, warnings
warnings.simplefilter("always")
for name in ("ipykernel", "ipykernel.zmqshell", "IPython"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["IPython"].get_ipython = lambda: None
sys.modules["ipywidgets"] = None
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", NOTEBOOK + code], capture_output=True, text=True, timeout=120)


def test_a_notebook_without_widgets_is_told():
    """What there is to be quiet about."""
    assert "TqdmWarning: IProgress not found" in run("import tqdm.auto").stderr


@pytest.mark.parametrize("first", ["from ppl_models import NOCA", "from custom_inference import Exact"])
def test_a_notebook_without_widgets_has_plain_bars_and_no_warning(first):
    quiet = run(
        f"{first}\n"
        "from custom_inference.core.progress import Progress\n"
        "with Progress(2, 'a fit', enabled=True) as bar:\n"
        "    bar.advance(-1.5)\n"
        "    bar.refresh()\n"
    )
    assert quiet.returncode == 0 and "Warning" not in quiet.stderr, quiet.stderr
    assert "a fit:  50%" in quiet.stderr and "-1.5000 a row" in quiet.stderr


@pytest.mark.parametrize("total", [None, 3])
def test_a_new_label_is_followed_by_one_colon(total, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    with Progress(total, "before", enabled=True) as bar:
        bar.label("start 2 of 6")
        bar.refresh()
    shown = capsys.readouterr().err
    assert "start 2 of 6: " in shown and ": :" not in shown


def test_long_work_says_how_long_it_goes_on(monkeypatch, capsys):
    """By the pace since the phase began, first after ten seconds, then three times later; the command line alone."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    for says_time in (False, True):
        monkeypatch.setattr(Progress, "says_time", says_time)
        with Progress(None, "EM", enabled=True) as bar:
            bar.expect(100)
            for _ in range(9):
                now[0] += 4
                bar.advance(-1.0)
            bar.label_start(0, 4)
            now[0] += 7200
            bar.label_start(1, 4)
    assert capsys.readouterr().err.splitlines() == [
        "EM: 3 steps in 12 s; at most 100, which would take 6 min more",
        "EM: 9 steps in 36 s; at most 100, which would take 6 min more",
        "EM: 1 starts in 2.0 h; at most 4, which would take 6.0 h more",
    ]
