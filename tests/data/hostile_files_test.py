"""Files that ask for more than they hold, or would run code: refused by name, before anything happens."""

from __future__ import annotations

import ast
import gzip
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import custom_inference
import ppl_models
from custom_inference import Fit
from ppl_models import CapacityError, Data, DataError, FileFormatError, PPLError, documents, graph, row_blocks
from ppl_models.datasets import read_matrix
from tests.support.files import Loader, little_memory, loads_or_says
from tests.support.fuzz import says_something

X = (np.random.default_rng(0).random((6, 5)) < 0.5).astype(float)


def _sparse_matrix(path: Path) -> Data:
    return read_matrix(path, keep_sparse=True)


def _npy_header(shape: str, descr: str = "'<f8'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def _npz_of(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in members.items():
            archive.writestr(f"{name}.npy", raw)
    return path


def _small(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def _bombs(folder: Path) -> dict[str, tuple[Path, Loader]]:
    big = 10**12
    huge = scipy.sparse.csr_matrix(X)
    parts = {"data": huge.data, "indices": huge.indices, "indptr": huge.indptr, "format": np.array(b"csr")}
    np.savez(folder / "wide.npz", shape=np.array([6, big]), **parts)
    np.savez(folder / "tall.npz", shape=np.array([big, 5]), **parts)
    np.savez(folder / "edges.npz", edges=np.array([[0, 1]]), n=np.array(big))
    (folder / "bomb.txt.gz").write_bytes(gzip.compress(bytes(2**28), 9) * 40)
    entities = "".join(f'<!ENTITY e{i + 1} "{f"&e{i};" * 10}">' for i in range(12))
    return {
        "npz header": (_npz_of(folder / "a.npz", X=_npy_header(f"({big}, 8)") + bytes(64)), read_matrix),
        "npz negative": (_npz_of(folder / "n.npz", X=_npy_header("(-3, 8)") + bytes(64)), read_matrix),
        "npz zeros": (_npz_of(folder / "z.npz", X=_npy_header(f"({big}, 0)")), read_matrix),
        "npz sparse wide": (folder / "wide.npz", read_matrix),
        "npz sparse tall": (folder / "tall.npz", _sparse_matrix),
        "npz nodes": (folder / "edges.npz", graph),
        "npz bits": (_npz_of(folder / "bits.npz", X_bits=_npy_header(f"({big}, 1)", "'|u1'"),
                             shape=_npy_header("(2,)", "'<i8'") + bytes(16)), read_matrix),
        "uci documents": (_small(folder / "docword.b.txt", f"{big}\n4\n1\n1 1 2\n"), documents),
        "uci words": (_small(folder / "docword.c.txt", f"4\n{big}\n1\n1 1 2\n"), documents),
        "uci digits": (_small(folder / "docword.d.txt", f"4\n{'9' * 6000}\n1\n1 1 2\n"), documents),
        "lda-c word": (_small(folder / "big.ldac", f"1 {big}:1\n"), documents),
        "lda-c digits": (_small(folder / "digits.ldac", f"1 {'9' * 30}:1\n"), documents),
        "gzip": (folder / "bomb.txt.gz", documents),
        "gzip edges": (folder / "bomb.txt.gz", graph),
        "graphml entities": (_small(folder / "lol.graphml", f'<?xml version="1.0"?><!DOCTYPE g [<!ENTITY e0 "lol">'
                                    f"{entities}]><graphml>&e12;</graphml>"), graph),
        "graphml outside": (_small(folder / "xxe.graphml", '<?xml version="1.0"?><!DOCTYPE g [<!ENTITY e SYSTEM '
                                   '"file:///etc/passwd">]><graphml>&e;</graphml>'), graph),
        "gml nested": (_small(folder / "deep.gml", "graph [" * 5000), graph),
    }  # fmt: skip


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits the address space as Linux does")
def test_files_that_claim_more_than_they_hold_are_refused_before_memory_is_asked_for(tmp_path):
    for name, (path, load) in _bombs(tmp_path).items():
        with little_memory(), pytest.raises(PPLError) as caught:
            load(path)
        assert isinstance(caught.value, DataError | FileFormatError | CapacityError), name
        assert str(path) in str(caught.value) and says_something(caught.value), name


def test_a_vocabulary_with_room_to_spare_is_no_bomb(tmp_path):
    assert documents(_small(tmp_path / "docword.e.txt", "3\n1000000\n1\n1 999999 2\n")).num_features == 1_000_000


class _Evil:
    """Unpickled, it makes a file."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("read", [read_matrix, graph, lambda path: list(row_blocks(path, block_rows=2))])
def test_lines_that_are_cut_off_are_no_missing_entries(read, tmp_path):
    """Fields that are empty are; a last line without them is what is left of a file."""
    path = tmp_path / "x.csv"
    path.write_text("a,b,c\n0,1,1\n1,2,1\n2,0,\n")
    if read is not graph:  # which needs a weight of every edge
        read(path)
    path.write_text("a,b,c\n0,1,1\n1,2,1\n2,0\n")
    with pytest.raises(FileFormatError, match=r"x\.csv: not readable as csv: 2 fields where the header") as caught:
        read(path)
    assert str(caught.value).endswith("has 3: '2,0'") and str(caught.value).count("not readable") == 1


def test_pickled_arrays_are_refused_and_not_run(tmp_path):
    mark, evil = tmp_path / "mark", np.array([_Evil(tmp_path / "mark")], dtype=object)
    np.savez(tmp_path / "a.npz", X=X, names=evil, allow_pickle=True)
    np.savez(tmp_path / "b.npz", edges=np.array([[0, 1]]), names=evil, allow_pickle=True)
    for load, name in ((read_matrix, "a.npz"), (documents, "a.npz"), (graph, "b.npz")):
        with pytest.raises(FileFormatError, match="holds Python objects"):
            load(tmp_path / name)
    raw = pickle.dumps(_Evil(mark))
    for name, load in {"p.npz": read_matrix, "p.parquet": read_matrix, "p.csv": read_matrix, "p.gml": graph,
                       "p.txt": documents, "p.safetensors": Fit.load}.items():  # fmt: skip
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(PPLError):
            load(tmp_path / name)
    assert not mark.exists()


def test_formulas_and_metadata_are_only_text(tmp_path):
    mark = tmp_path / "mark"
    formula = f"=cmd|'/C mkdir {mark}'!A0"
    (tmp_path / "f.csv").write_text(f'name,"{formula}",b\n"{formula}",1,0\n@SUM(1),0,1\n')
    data = read_matrix(tmp_path / "f.csv")
    assert data.coords["feature"][0] == formula and data.coords["row"][0] == formula and not mark.exists()
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"a": [1.0, 0.0], "b": [0.0, 1.0]})
    for kind in ("object", f"__import__('os').mkdir({str(mark)!r})", "category"):
        columns = [{"name": "a", "field_name": "a", "pandas_type": kind, "numpy_type": kind, "metadata": None}]
        meta = {"pandas": json.dumps({"index_columns": [], "column_indexes": [], "columns": columns})}
        pq.write_table(table.replace_schema_metadata(meta), tmp_path / "p.parquet")
        loads_or_says(tmp_path / "p.parquet", read_matrix, (tmp_path / "p.parquet").read_bytes())
    assert not mark.exists()


_FORBIDDEN = {"eval", "exec", "compile", "__import__"}
_MODULES = {"pickle", "cPickle", "dill", "joblib", "cloudpickle", "shelve", "marshal", "yaml",
            "subprocess", "jsonpickle"}  # fmt: skip
#: Calls that read what may be a pickle, unless told not to.
_GUARDED = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False),
            "numpy.load": ("allow_pickle", False), "format.read_array": ("allow_pickle", False)}  # fmt: skip


def _sources() -> list[Path]:
    roots = [Path(package.__file__).parent for package in (ppl_models, custom_inference) if package.__file__]
    return [path for root in roots for path in root.rglob("*.py")]


def _faults(path: Path) -> list[str]:
    tree, faults = ast.parse(path.read_text("utf-8")), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            faults += [f"imports {name}" for name in names if name.split(".")[0] in _MODULES]
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in _FORBIDDEN or name in ("os.system", "os.popen", "pd.read_pickle", "pandas.read_pickle"):
            faults.append(f"calls {name}")
        for ending, (argument, safe) in _GUARDED.items():
            given = {k.arg: k.value for k in node.keywords}.get(argument)
            if name.endswith(ending) and not (isinstance(given, ast.Constant) and given.value is safe):
                faults.append(f"{name} without {argument}={safe}")
    return faults


#: What processes of one call send each other, through pipes and a temporary folder of the call's own, which others
#: cannot write to: no file that a user names is read there.
_BETWEEN_PROCESSES = {"processes.py": ["imports pickle"]}


def test_the_packages_have_no_way_to_run_a_file():
    assert len(_sources()) > 150
    found = {path.name: faults for path in _sources() if (faults := _faults(path))}
    assert found == _BETWEEN_PROCESSES


def test_the_search_for_ways_to_run_a_file_finds_them(tmp_path):
    code = "import pickle\neval('1')\ntorch.load(f)\nnp.load(f, allow_pickle=True)\ntorch.load(f, weights_only=True)\n"
    assert len(_faults(_small(tmp_path / "bad.py", code))) == 4
