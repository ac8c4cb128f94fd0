"""Files are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import ast
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import benchmarks
import custom_inference
import ppl_models
from custom_inference import EM, Fit
from custom_inference.core import tensor_files as _tensors
from custom_inference.faces.command_line.output import save_figure, write_json
from ppl_models import NOCA, DataError, FileFormatError, open_blocks, save_blocks
from ppl_models.data import atomic as _atomic
from ppl_models.data import row_blocks as folder
from ppl_models.data.atomic import PARTIAL, write_atomically, write_text


class Failed(Exception):
    """What the tests break writers with."""


def _fail(*_: Any, **__: Any) -> Any:
    raise Failed


@pytest.fixture(scope="module")
def fit() -> Fit:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    example = NOCA.example()
    found = EM(search=None, max_iterations=2).fit(example.model, example.data, progress=False)
    torch.set_default_dtype(before)
    return found


def _litter(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.endswith(PARTIAL)]


STAGES = {
    "before anything": (_tensors, "save_file"),
    "flushing": (_atomic, "flush"),
    "renaming": (Path, "replace"),
    "flushing the folder": (_atomic, "_flush_folder"),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("error", [Failed, KeyboardInterrupt, OSError])
def test_a_crash_at_any_stage_leaves_the_old_fit_or_the_new_and_no_litter(stage, error, fit, tmp_path, monkeypatch):
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    path = fit.save(tmp_path / "fit.safetensors")
    before = path.read_bytes()
    fit.details["changed"] = stage
    with monkeypatch.context() as broken:
        broken.setattr(*STAGES[stage], fail)
        with pytest.raises(error):
            fit.save(path)
    assert (path.read_bytes() == before) == (stage != "flushing the folder")
    assert Fit.load(path).seed == fit.seed and not _litter(tmp_path)
    assert Fit.load(fit.save(path)).details["changed"] == stage


def test_half_a_file_is_not_seen(fit, tmp_path, monkeypatch):
    def half(tensors, path, metadata):
        Path(path).write_bytes(b"half")
        assert Fit.load(tmp_path / "fit") is not None and len(_litter(tmp_path)) == 1
        raise Failed

    fit.save(tmp_path / "fit")
    monkeypatch.setattr(_tensors, "save_file", half)
    with pytest.raises(Failed):
        fit.save(tmp_path / "fit")
    assert Fit.load(tmp_path / "fit").seed == 0 and not _litter(tmp_path)


def test_the_disk_has_the_contents_before_the_name(fit, tmp_path, monkeypatch):
    order, replace, flush = [], Path.replace, os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("fsync"), flush(handle))[1])
    monkeypatch.setattr(Path, "replace", lambda self, target: (order.append("rename"), replace(self, target))[1])
    fit.save(tmp_path / "fit")
    assert order == ["fsync", "rename", "fsync"]


def test_rights_links_and_folders(tmp_path):
    target = tmp_path / "new" / "a.txt"
    write_text(target, "one")
    assert target.stat().st_mode & 0o777 == 0o666 & ~_umask()
    target.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(target)
    write_text(link, "two")
    assert link.is_symlink() and target.read_text() == "two" and target.stat().st_mode & 0o777 == 0o640


def test_a_saved_fit_has_the_rights_of_an_ordinary_file(fit, tmp_path):
    target = fit.save(tmp_path / "fit")
    assert target.stat().st_mode & 0o777 == 0o666 & ~_umask()
    target.chmod(0o640)
    assert fit.save(target).stat().st_mode & 0o777 == 0o640


def _umask() -> int:
    before = os.umask(0)
    os.umask(before)
    return before


def test_what_is_no_ordinary_file_is_written_directly(tmp_path):
    code = f"import runpy; runpy.run_path({_atomic.__file__!r})['write_text']('/dev/stdout', 'hello')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "hello"
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE)
    write_text(tmp_path / "pipe", "through")
    assert reader.communicate(timeout=20)[0] == b"through" and (tmp_path / "pipe").is_fifo()


def test_only_what_the_dead_left_is_removed(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    alive, gone = _atomic._owner(os.getppid()), _atomic._owner(dead.pid)
    kept = [".a.elsewhere_1_x.partial", f".a.{alive}ab{PARTIAL}", f".b.{gone}ab{PARTIAL}"]
    for name in [*kept, f".a.{gone}ab{PARTIAL}"]:
        (tmp_path / name).touch()
    write_text(tmp_path / "a", "x")
    assert sorted(_litter(tmp_path)) == sorted(kept)


def _killed(fit: Fit, target: Path, after: float) -> None:
    """A process that saves a fit again and again, killed so many seconds after it is seen to write."""
    child = os.fork()
    if not child:
        try:
            for number in range(10_000):
                fit.details["number"] = number
                fit.save(target)
        finally:
            os._exit(0)
    until = time.monotonic() + 60
    while not _litter(target.parent) and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes that are forked")
def test_processes_killed_while_they_save_leave_a_fit(fit, tmp_path):
    """Each at another moment of saving a large fit; the next one to save removes what the last one left."""
    target, moments = tmp_path / "fit.safetensors", random.Random(0)
    large = replace(fit, sample_stats={"ballast": torch.zeros(2, 500_000)})
    large.save(target)
    for _ in range(8):
        _killed(large, target, moments.choice([0.0, 0.002, 0.02, 0.05]))
        left = _litter(tmp_path)
        assert len(left) <= 1 and all(name.startswith(".") for name in left)
        assert Fit.load(target).status == fit.status
    large.save(target)
    assert not _litter(tmp_path)


def test_json_and_figures_are_whole_or_as_they_were(tmp_path, monkeypatch, fit):
    write_json(tmp_path / "a.json", {"a": 1})
    figure = fit.plot("elbo")
    save_figure(figure, tmp_path / "a.png")
    before = (tmp_path / "a.png").read_bytes()
    assert before[:4] == b"\x89PNG"
    monkeypatch.setattr(Path, "replace", _fail)
    for write in (lambda: write_json(tmp_path / "a.json", {"a": 2}), lambda: save_figure(figure, tmp_path / "a.png")):
        with pytest.raises(Failed):
            write()
    assert (tmp_path / "a.json").read_text() == '{\n  "a": 1\n}\n'
    assert (tmp_path / "a.png").read_bytes() == before and not _litter(tmp_path)
    with pytest.raises(ValueError, match="NaN|nan|JSON"), write_atomically(tmp_path / "b.json"):
        raise ValueError("no JSON")
    assert not (tmp_path / "b.json").exists()


def _blocks(good: int, error: type[BaseException] | None = None) -> Any:
    for _ in range(good):
        yield np.array([[1, 0, 2], [0, 1, 0]])
    if error is not None:
        raise error


@pytest.mark.parametrize("error", [Failed, KeyboardInterrupt])
def test_folders_of_blocks_that_fail_leave_nothing(error, tmp_path, monkeypatch):
    with pytest.raises(error):
        save_blocks(tmp_path / "b", _blocks(2, error))
    assert not (tmp_path / "b").exists()
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError):
        save_blocks(tmp_path / "b", _blocks(0))
    assert not any((tmp_path / "b").iterdir())
    with monkeypatch.context() as broken:
        broken.setattr(folder, "write_text", _fail)
        with pytest.raises(Failed):
            save_blocks(tmp_path / "b", _blocks(1))
    assert len(open_blocks(save_blocks(tmp_path / "b", _blocks(3)))) == 6


def test_folders_of_blocks_cut_short_are_no_folders_and_are_written_anew(tmp_path):
    save_blocks(tmp_path / "b", _blocks(3))
    (tmp_path / "b" / "blocks.json").unlink()  # as a killed process leaves it
    (tmp_path / "b" / f".blocks.json.x{PARTIAL}").touch()
    with pytest.raises(FileFormatError, match="no folder of blocks"):
        open_blocks(tmp_path / "b")
    assert len(open_blocks(save_blocks(tmp_path / "b", _blocks(1)))) == 2
    with pytest.raises(FileFormatError, match="holds something already"):
        save_blocks(tmp_path / "b", _blocks(1))
    with pytest.raises(FileFormatError, match="holds something already"):
        save_blocks(tmp_path, _blocks(1))


_WRITERS = {"write_text", "write_bytes", "savefig", "to_csv", "to_netcdf", "to_json", "to_parquet", "save_file", "save",
            "savez", "dump"}  # fmt: skip


def _written_directly(path: Path) -> list[str]:
    """Calls that write a file under its own name: neither to a temporary one nor by the helper."""
    text = path.read_text("utf-8")
    if not re.search(rf"\.\s*({'|'.join([*_WRITERS, 'open'])})\b", text):
        return []
    tree, found = ast.parse(text), []
    inside = {id(call) for block in ast.walk(tree) if isinstance(block, ast.With)
              and any("write_atomically(" in ast.unparse(item.context_expr) for item in block.items)
              for call in ast.walk(block)}  # fmt: skip
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or id(node) in inside or not isinstance(node.func, ast.Attribute):
            continue
        mode = [a.value for a in node.args if isinstance(a, ast.Constant)]
        opens = node.func.attr == "open" and any(isinstance(m, str) and set(m) & set("wax") for m in mode)
        if opens or node.func.attr in _WRITERS:
            found.append(f"{path.name}: {ast.unparse(node)[:80]}")
    return found


def test_every_writer_goes_through_the_helper():
    roots = [Path(package.__file__).parent for package in (ppl_models, custom_inference) if package.__file__]
    files = [path for root in roots for path in root.rglob("*.py") if path.name != "atomic.py"]
    files.append(Path(next(iter(benchmarks.__path__))) / "_report.py")
    found = [one for path in files for one in _written_directly(path)]
    allowed = (
        "row_blocks.py: (target / f'{name}.bin').open('wb')",  # complete once blocks.json is there
        "drawing.py: self.savefig(buffer",  # memory
        "saved.py: table.to_csv(float_format",  # text, for standard output
        "demo.py: fit.save(", "output.py: fit.save(", "relations.py: found.save(", "fit.py: store.save(",
        # In temporary folders of a call's own, for its own processes.
        "search.py: path.write_bytes(processes.pack(", "fit.py: (folder / 'run').write_bytes(",
    )  # fmt: skip
    assert [one for one in found if not one.startswith(allowed)] == []
