"""The data door: every container comes in, every fault is named."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis.extra.numpy import array_shapes, arrays

from ppl_models import (
    NOCA,
    Data,
    DataError,
    DataWarning,
    FileFormatError,
    ModelError,
    as_binary,
    as_counts,
    as_matrix,
    datasets,
)
from ppl_models.data import sparse as _sparse
from ppl_models.data.columns import _always, check_for_fitting

pytestmark = pytest.mark.quick

X = np.array([[1, 0, 1], [0, 1, 0]])


@pytest.mark.parametrize(
    "container",
    [
        X,
        X.tolist(),
        X.astype(bool),
        torch.tensor(X),
        scipy.sparse.csr_array(X),
        pd.DataFrame(X, index=["a", "b"], columns=["u", "v", "w"]),
        xr.DataArray(X, dims=("site", "genus"), coords={"site": ["a", "b"], "genus": ["u", "v", "w"]}),
    ],
    ids=["numpy", "lists", "bool", "torch", "sparse", "pandas", "xarray"],
)
def test_every_container(container):
    data = as_binary(container)
    assert torch.equal(data.x, torch.tensor(X, dtype=torch.float64)) and data.mask is None
    if isinstance(container, pd.DataFrame | xr.DataArray):
        assert data.coords == {"row": ["a", "b"], "feature": ["u", "v", "w"]}
    assert data.rows(slice(1, 2)).coords.get("row", ["b"]) == ["b"]


def test_nan_and_mask_mean_missing():
    x = X.astype(float)
    x[0, 1] = np.nan
    data = as_binary(x, mask=[[True, True, True], [True, True, False]])
    assert data.mask is not None and data.mask.sum() == 4 and torch.isfinite(data.x).all()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([[0, 2], [1, 0]], r"1 of 4 entries are neither 0 nor 1 .*row 0, column 1.*binarise"),
        ([[0.5, 1.0]], "neither 0 nor 1"),
        ([0, 1, 1], r"1 dimensions.*expected \(N, D\)"),
        ([[0, 1], [1]], "not a rectangular array"),
        (np.zeros((0, 3)), "no entries"),
        ([["a", "b"]], "expected numbers"),
        (pd.DataFrame({"u": ["yes", "no"]}), "column 'u' holds .* not numbers"),
    ],
)
def test_bad_data_are_named(bad, message):
    with pytest.raises(DataError, match=message):
        as_binary(bad)


def test_wrong_width_and_wrong_mask():
    with pytest.raises(DataError, match="axis 'feature': 3 columns where the model has num_features = 4"):
        NOCA(num_components=2, num_features=4).prepare(X)
    with pytest.raises(DataError, match=r"mask of shape \(1, 2\) for data of shape \(2, 3\)"):
        as_binary(X, mask=[[True, False]])


def test_a_mask_beside_data_that_carry_theirs_hides_more():
    given = as_binary([[1, np.nan, 0], [0, 1, 1]])
    both = as_binary(given, mask=[[True, True, False], [True, True, True]])
    assert both.mask.tolist() == [[True, False, False], [True, True, True]]


def test_what_cannot_be_learned_from():
    with pytest.raises(DataError, match="every observed entry is 0"), pytest.warns(DataWarning):
        check_for_fitting(as_binary(np.zeros((3, 2))))
    with pytest.raises(DataError, match="without any observed entry .*'v'"):
        check_for_fitting(as_binary(pd.DataFrame({"u": [1.0, 0.0], "v": [np.nan, np.nan]})))
    with pytest.warns(DataWarning, match="columns are always 1"):
        check_for_fitting(as_binary([[1, 1], [1, 0]]))
    with pytest.warns(DataWarning, match="3 of 4 rows are all zero"):
        check_for_fitting(as_binary([[1, 1], [0, 0], [0, 0], [0, 0]]))


def test_a_column_that_varies_in_a_single_row_is_not_constant():
    first = [0, 1, 63, 64, 127, 128, 255, 299]
    x = torch.zeros(300, len(first) + 2)
    x[:, -1] = 1
    for column, row in enumerate(first):
        x[row, column] = 1
    for data in (Data(x=x), Data(x=x, mask=torch.ones_like(x, dtype=torch.bool))):
        assert _always(data, 0).nonzero().flatten().tolist() == [len(first)]
        assert _always(data, 1).nonzero().flatten().tolist() == [len(first) + 1]
    unseen = torch.ones_like(x, dtype=torch.bool)
    unseen[128, 5] = False
    assert _always(Data(x=x, mask=unseen), 0).nonzero().flatten().tolist() == [5, len(first)]


def test_one_entry_among_many_is_found_to_be_missing_or_wrong():
    x = np.zeros((3000, 40))
    x[:, 0], x[2999, 39] = 1, np.nan
    assert int((~as_binary(x).observed).sum()) == 1
    x[2999, 39] = 2
    with pytest.raises(DataError, match="1 of 120000 entries are neither 0 nor 1 .*2 in row 2999, column 39"):
        as_binary(x)
    x[[7, 9], 1] = np.inf, -np.inf  # whose sum is NaN
    with pytest.raises(DataError, match="3 of 120000 entries"):
        as_binary(x)


@settings(max_examples=50, deadline=None)
@given(arrays(np.float64, array_shapes(min_dims=1, max_dims=3, max_side=4)))
def test_the_door_never_crashes_in_another_way(array):
    try:
        data = as_binary(array)
    except DataError:
        return
    assert data.x.ndim == 2 and bool(((data.x == 0) | (data.x == 1)).all())


def test_files_keep_their_labels(tmp_path):
    frame = pd.DataFrame(X, index=pd.Index(["a", "b"], name="site"), columns=["u", "v", "w"])
    frame.to_csv(tmp_path / "x.csv")
    frame.reset_index().to_parquet(tmp_path / "x.parquet")
    np.savez(tmp_path / "x.npz", X=X, names=np.array(["u", "v", "w"]), sites=np.array(["a", "b"]))
    scipy.sparse.save_npz(tmp_path / "s.npz", scipy.sparse.csr_matrix(X))
    for name in ("x.csv", "x.parquet", "x.npz"):
        data = datasets.read_matrix(tmp_path / name)
        assert data.coords == {"row": ["a", "b"], "feature": ["u", "v", "w"]}, name
        assert torch.equal(data.x, torch.tensor(X, dtype=torch.float64))
    assert datasets.read_matrix(tmp_path / "s.npz").x.shape == (2, 3)


def test_bad_files(tmp_path):
    with pytest.raises(FileFormatError, match="no such file"):
        datasets.read_matrix(tmp_path / "none.csv")
    (tmp_path / "x.xyz").write_text("1")
    with pytest.raises(FileFormatError, match="unknown ending"):
        datasets.read_matrix(tmp_path / "x.xyz")
    for name in ("x.npz", "x.parquet", "x.csv"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(FileFormatError, match="not readable"):
            datasets.read_matrix(tmp_path / name)
    np.savez(tmp_path / "two.npz", a=X, b=X)
    with pytest.raises(FileFormatError, match=r"several matrices; matrix= picks one of \['a', 'b'\]"):
        datasets.read_matrix(tmp_path / "two.npz")
    np.savez(tmp_path / "evil.npz", X=np.array([{"a": 1}], dtype=object))
    with pytest.raises(FileFormatError):
        datasets.read_matrix(tmp_path / "evil.npz")


def test_real_files(real_data):
    assert datasets.read_matrix(real_data / "noisyor_bench" / "IMG.npz").x.shape == (10000, 64)
    names = datasets.read_matrix(real_data / "nips" / "nips_cited_surnames.npz")
    assert names.x.shape == (1740, 201) and "hinton" in names.coords["feature"]
    genera = datasets.read_matrix(real_data / "now_mammals" / "now_miocene.npz")
    assert genera.x.shape == (351, 104) and {"row", "feature"} <= set(genera.coords)


def _sparse_example() -> tuple[np.ndarray, Data]:
    dense = (np.random.default_rng(3).random((30, 7)) < 0.2).astype(float)
    dense[4] = 0  # an empty row in the middle
    return dense, as_matrix(scipy.sparse.csr_matrix(dense), keep_sparse=True)


def test_sparse_rows_stay_sparse_and_mean_the_same():
    dense, data = _sparse_example()
    assert data.is_sparse and not as_matrix(scipy.sparse.csr_matrix(dense)).is_sparse
    assert np.array_equal(data.dense().x, dense) and len(data) == 30 and data.num_features == 7
    for index in (slice(3, 9), torch.tensor([5, 0, 4])):
        part = data.rows(index)
        assert part.is_sparse and np.array_equal(part.dense().x, dense[index])
    assert np.array_equal(_sparse.dense_rows(data.x, 2, 11), dense[2:11])
    assert np.array_equal(_sparse.column_sums(data.x), dense.sum(0))
    assert np.array_equal(_sparse.row_sums(data.x), dense.sum(1))
    assert data.to(dtype=torch.float32).x.dtype == torch.float32


def test_sparse_rows_with_missing_entries_are_made_dense():
    dense, _ = _sparse_example()
    data = as_matrix(scipy.sparse.csr_matrix(dense), mask=dense < 2, keep_sparse=True)
    assert not data.is_sparse and data.mask is None  # nothing was missing after all
    dense[0, 0] = np.nan
    data = as_matrix(scipy.sparse.csr_matrix(dense), keep_sparse=True)
    assert not data.is_sparse and data.mask is not None and int((~data.mask).sum()) == 1


def test_bad_sparse_entries_are_named():
    matrix = scipy.sparse.csr_matrix(np.array([[0, 1, 0], [0, 0, 0], [1, 0, 3]]))
    with pytest.raises(DataError, match=r"1 of 9 entries are neither 0 nor 1 \(the first: 3 in row 2, column 2\)"):
        as_binary(matrix, keep_sparse=True)
    assert as_counts(matrix, 3, keep_sparse=True).is_sparse
    with pytest.raises(DataError, match="not whole numbers from 0 to 2"):
        as_counts(matrix, 2)
    with pytest.raises(DataError, match="not whole numbers from 0 to 2"):
        as_counts([[0.5, 1.0]], 2)


def test_a_prior_that_pyro_cannot_expand_is_refused():
    with pytest.raises(ModelError, match=r"prior of 'leak' is a torch\.distributions\.beta\.Beta, expected a Pyro"):
        NOCA(num_components=2, num_features=3).with_priors(leak=torch.distributions.Beta(1.0, 9.0))
