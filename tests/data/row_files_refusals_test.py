"""Files of rows that are refused, with what is wrong in them."""

import zipfile

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from custom_inference import NUTS, SVI, CollapsedGibbs, TemperedEM, VariationalEM
from ppl_models import MODELS, CapacityError, DataError, FileFormatError, MethodError, RowBlocks, row_blocks
from ppl_models.data.blocks import arrays
from tests.data.row_files_test import WORDS

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def counts():
    return np.random.default_rng(0).poisson(0.7, (20, 7)).astype(float)


def test_broken_arrays_are_named(counts, tmp_path, monkeypatch):
    path = tmp_path / "x.npy"
    np.save(path, counts)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(FileFormatError, match=r"x\.npy: \d+ bytes, expected \d+; cut short"):
        row_blocks(path)
    path.write_bytes(b"nothing")
    with pytest.raises(FileFormatError, match=r"x\.npy: not readable as npy"):
        row_blocks(path)
    np.save(path, np.arange(3))
    with pytest.raises(FileFormatError, match=r"an array of <i8 of shape \(3,\); expected a matrix"):
        row_blocks(path)
    np.save(path, np.array([[None, {}]]), allow_pickle=True)
    with pytest.raises(FileFormatError, match="holds Python objects"):
        row_blocks(path)
    packed = tmp_path / "x.npz"
    scipy.sparse.save_npz(packed, scipy.sparse.csc_matrix(counts))
    with pytest.raises(FileFormatError, match=r"layout 'csc'; rows can be read from 'csr'"):
        row_blocks(packed)
    np.savez_compressed(packed, counts)
    monkeypatch.setattr(arrays, "UNPACKED", 1000)
    with pytest.raises(CapacityError, match="write it uncompressed"):
        row_blocks(packed)
    packed.write_bytes(packed.read_bytes()[:100])
    with pytest.raises(FileFormatError, match=r"x\.npz: not readable as npz"):
        row_blocks(packed)
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("notes.txt", "no array")
    with pytest.raises(FileFormatError, match="no matrix found"):
        row_blocks(packed)


def test_files_that_do_not_belong_together_are_named(counts, tmp_path):
    for name, x in {"a.npy": counts, "b.npy": counts[:, 1:]}.items():
        np.save(tmp_path / name, x)
    with pytest.raises(DataError, match=r"b\.npy has 6 columns, .*a\.npy has 7.*as many in every file"):
        row_blocks(tmp_path)
    with pytest.raises(FileFormatError, match=r"nothing\*: no such file"):
        row_blocks(str(tmp_path / "nothing*"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileFormatError, match="empty: no files to read"):
        row_blocks(tmp_path / "empty")
    pd.DataFrame(counts, columns=WORDS).to_parquet(tmp_path / "c.parquet")
    with pytest.raises(FileFormatError, match=r"files of several kinds \(\.npy, \.parquet\)"):
        row_blocks(tmp_path)
    with pytest.raises(DataError, match="2 labels for 7 columns"):
        row_blocks(tmp_path / "a.npy", vocabulary=["a", "b"])
    with pytest.raises(FileFormatError, match="columns='a' for npy"):
        row_blocks(tmp_path / "a.npy", columns="a")
    pd.DataFrame({"name": ["x"], "a": [1.0], "b": ["y"]}).to_parquet(tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"column 'b' of .*c\.parquet holds .*string, not numbers"):
        row_blocks(tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"c\.parquet has no column 'z'"):
        row_blocks(tmp_path / "c.parquet", columns=["a", "z"])
    (tmp_path / "c.parquet").write_bytes(b"PAR1")
    with pytest.raises(FileFormatError, match=r"c\.parquet: not readable as parquet"):
        row_blocks(tmp_path / "c.parquet")


@pytest.mark.parametrize("method", [SVI(), NUTS(), CollapsedGibbs(), TemperedEM(), SVI(guide="delta")])
def test_methods_that_need_all_rows_say_so(method):
    example = MODELS["plsa" if isinstance(method, TemperedEM) else "lda"].example()
    with pytest.raises(MethodError, match=r"RowBlocks where all rows are needed in memory; VariationalEM and EM fit"):
        method.fit(example.model, RowBlocks.of(example.data, 9), progress=False)


def test_graphs_are_no_blocks_of_rows():
    example = MODELS["sbm"].example()
    source = RowBlocks(read=lambda: [np.zeros((3, 3))], num_rows=3)
    with pytest.raises(MethodError, match="no independent rows"):
        VariationalEM(guide="mean_field").fit(example.model, source, progress=False)
    with pytest.raises(MethodError, match="RowBlocks where all rows are needed"):
        SVI().fit(example.model, source, progress=False)
