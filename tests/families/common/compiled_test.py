"""What was compiled before an update of the package."""

from __future__ import annotations

import pickle
import sys
import types
from pathlib import Path

import numba
from numba.core.caching import IndexDataCacheFile

from custom_inference.families.common import compiled as compiled


def test_an_index_of_classes_that_are_no_more_is_stale(tmp_path: Path, monkeypatch):
    old = types.ModuleType("module_of_an_earlier_version")
    old.Links = type("Links", (), {"__module__": old.__name__})  # pyright: ignore
    monkeypatch.setitem(sys.modules, old.__name__, old)
    known = pickle.dumps(("stamp", {old.Links: "file"}))
    (tmp_path / "kernel.nbi").write_bytes(pickle.dumps(numba.__version__) + known)
    index = IndexDataCacheFile(str(tmp_path), "kernel", "stamp")
    assert index.load(old.Links) is None  # there is no such file
    del old.Links
    assert index.load("anything") is None
    monkeypatch.delitem(sys.modules, old.__name__)
    assert index.load("anything") is None
