"""What people may hand over as data: containers of every kind, oddities, masks, for the fuzzing tests."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse
import torch
import xarray as xr
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from ppl_models import Data

NUMBERS = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", ">f8", ">i4", np.longdouble]
NO_NUMBERS = ["c8", "c16", "U3", "S3", "M8[s]", "m8[s]", [("a", "f8")]]


class Case(NamedTuple):
    """A container, and what NumPy says is in it: float64 with NaN for missing (None where it holds no numbers)."""

    data: Any
    values: np.ndarray | None


def _elements(kind: Any) -> st.SearchStrategy[Any]:
    """Mostly entries that some model accepts, sometimes the edges of the type."""
    dtype = np.dtype(kind)
    if dtype.kind == "b":
        return st.booleans()
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return st.one_of(st.integers(0, 2), st.integers(0, 1), st.sampled_from([int(info.min), int(info.max), 5]))
    width = min(64, 8 * dtype.itemsize)
    return st.one_of(
        st.sampled_from([0.0, 1.0, 2.0, -0.0, float("nan")]),
        st.sampled_from([0.0, 1.0]),
        st.floats(width=width) if width in (16, 32, 64) else st.floats(),
    )


@st.composite
def _arrays(draw: st.DrawFn) -> np.ndarray:
    kind = draw(st.sampled_from(NUMBERS))
    shape = draw(st.one_of(array_shapes(min_dims=2, max_dims=2, max_side=4),
                           array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)))  # fmt: skip
    if np.dtype(kind).itemsize > 8:
        return draw(arrays("f8", shape, elements=_elements("f8"))).astype(kind)
    return draw(arrays(kind, shape, elements=_elements(kind)))


def _views(x: np.ndarray, how: str) -> np.ndarray:
    """The same numbers, held otherwise in memory."""
    if how == "reversed" and x.ndim:
        return np.ascontiguousarray(x[::-1])[::-1]
    if how == "fortran":
        return np.asfortranarray(x)
    if how == "strided" and x.ndim == 2:
        wide = np.zeros((x.shape[0], 2 * x.shape[1]), x.dtype)
        wide[:, ::2] = x
        return wide[:, ::2]
    if how == "readonly":
        x = x.copy()
        x.setflags(write=False)
    return x


def _tensor(x: np.ndarray) -> torch.Tensor:
    native = x.astype(x.dtype.newbyteorder("="))
    return torch.from_numpy(np.ascontiguousarray(native.astype("f8") if native.dtype.itemsize > 8 else native))


def _sparse_case(draw: st.DrawFn, x: np.ndarray) -> Case:
    """Duplicates, explicit zeros and unsorted indices, in a random layout; what is stored twice is added up."""
    row, column = np.nonzero(np.ones_like(x, dtype=bool))
    order = np.array(draw(st.permutations(range(len(row)))), dtype=int)
    row, column = row[order], column[order]
    value = x[row, column]
    twice = draw(st.integers(0, len(row)))
    row, column, value = (np.concatenate([part, part[:twice]]) for part in (row, column, value))
    matrix: Any = scipy.sparse.coo_array((value, (row, column)), shape=x.shape)
    # scipy adds up bool by "or", and wraps whole numbers where the layouts convert: the sum is what is meant.
    layout = draw(st.sampled_from(["coo", "csr", "csc", "torch"]))
    kept = value.astype(bool) if value.dtype.kind == "b" else value
    total = _summed(kept.astype(float), row, column, x.shape)
    if x.dtype.kind == "b":
        total = np.minimum(total, 1)
    if layout == "coo":
        return Case(matrix, total)
    if layout == "torch":
        plain = value.astype("f8")
        place = np.stack([row, column])
        made = torch.sparse_coo_tensor(place, torch.from_numpy(plain), x.shape, check_invariants=False)
        return Case(made, _summed(plain, row, column, x.shape))
    made = {"csr": scipy.sparse.csr_matrix, "csc": scipy.sparse.csc_matrix}[layout]
    major, minor, size = (row, column, x.shape[0]) if layout == "csr" else (column, row, x.shape[1])
    place = np.argsort(major, kind="stable")
    pointer = np.concatenate([[0], np.bincount(major, minlength=size).cumsum()])
    return Case(made((value[place], minor[place], pointer), shape=x.shape), total)


def _summed(value: np.ndarray, row: np.ndarray, column: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    total = np.zeros(shape)
    np.add.at(total, (row, column), value)
    return total


@st.composite
def cases(draw: st.DrawFn, square: bool = False) -> Case:
    """Anything that a matrix, or what is none, may be held in."""
    if draw(st.integers(0, 9)) == 0:
        return Case(draw(st.sampled_from(oddities())), None)
    x = draw(_arrays())
    if square and x.ndim == 2 and draw(st.integers(0, 3)):
        side = min(x.shape)
        x = x[:side, :side]
    with np.errstate(over="ignore"):
        values = x.astype("f8")
    how = draw(st.sampled_from(["array", "reversed", "fortran", "strided", "readonly", "list", "torch", "masked",
                                "frame", "xarray", "sparse", "data"]))  # fmt: skip
    if how == "list":
        return Case(x.tolist(), values)
    if how == "torch":
        return Case(_tensor(x), values)
    if how == "masked":
        hidden = draw(arrays("?", x.shape))
        return Case(np.ma.masked_array(x, mask=hidden), np.where(hidden, np.nan, values))
    if x.ndim != 2 or 0 in x.shape:
        return Case(_views(x, how), values)
    if how == "frame":
        names = draw(st.lists(st.one_of(st.text(max_size=2), st.integers(0, 3), st.none()),
                              min_size=x.shape[1], max_size=x.shape[1]))  # fmt: skip
        native = x.astype("f8") if x.dtype.itemsize > 8 else x.astype(x.dtype.newbyteorder("="))
        return Case(pd.DataFrame(native, columns=pd.Index(names, dtype=object)), values)
    if how == "xarray":
        dims = draw(st.sampled_from([("a", "b"), ("row", "feature"), ("feature", "row"), ("document", "word")]))
        return Case(xr.DataArray(x, dims=dims), None if dims[0] == "feature" else values)
    if how == "sparse":
        with np.errstate(over="ignore", invalid="ignore"):
            return _sparse_case(draw, x if x.dtype.itemsize <= 8 and x.dtype != "f2" else values)
    if how == "data":
        seen = draw(arrays("?", x.shape))
        return Case(Data(x=torch.from_numpy(values), mask=torch.from_numpy(seen)), np.where(seen, values, np.nan))
    return Case(_views(x, how), values)


def oddities() -> list[Any]:
    base = np.array([[1, 0], [0, 1]])
    damaged = scipy.sparse.csr_matrix((np.ones(2), np.array([0, 1]), np.array([0, 1, 2])), shape=(2, 2))
    damaged.indices = np.array([0, 9], dtype=np.int32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        odd = [base.astype(kind) for kind in NO_NUMBERS[:-1]] + [np.zeros((2, 2), dtype=NO_NUMBERS[-1])]
    frames = [
        pd.DataFrame(base.astype(complex)), pd.DataFrame({"a": pd.Categorical([1, 0]), "b": [0, 1]}),
        pd.DataFrame({"a": pd.to_datetime(["2020-01-01", "2020-01-02"]), "b": [0, 1]}),
        pd.DataFrame({"a": ["1", 0], "b": [0, 1]}), xr.Dataset({"a": ("i", [1, 0])}),
    ]  # fmt: skip
    return [
        *odd, *frames, damaged, None, 3, 2.5, "abc", b"abc", {"a": 1}, {1, 2}, object(),
        [[1, 0], [1]], [[1, [0]], [0, 1]], [1, "a"], [], [[]], [[], []],
        torch.zeros(2, 2, dtype=torch.complex64), torch.zeros(2, 2, device="meta"), torch.zeros(2).to_sparse(),
        torch.zeros(1, 2, 2).to_sparse(), torch.zeros(2, 2, 2).to_sparse(2), scipy.sparse.coo_array(np.array([1, 0])),
        Data(x=torch.ones(3)), Data(x=torch.ones(2, 2), mask=torch.ones(3, 3, dtype=torch.bool)),
        Data(x=torch.ones(2, 2), mask=torch.ones(2, 2)), Data(x=torch.ones(2, 2), coords={"row": ["a"]}),
        np.array([[2**63 + 1, 0]], dtype="u8"), np.array([[2**53 + 1, 0]]), iter([[1, 0]]), (row for row in base),
        scipy.sparse.csr_matrix(base.astype(complex)), pd.Series([1, 0]), pd.Series(dtype=object),
    ]  # fmt: skip


@st.composite
def masks(draw: st.DrawFn, values: np.ndarray | None) -> tuple[Any, np.ndarray | None]:
    """A mask, and its meaning: None where it cannot have one."""
    if values is not None and values.ndim == 2 and draw(st.integers(0, 2)):
        seen = draw(arrays("?", values.shape))
        held = [seen, seen.tolist(), torch.from_numpy(seen), seen.astype(float), pd.DataFrame(seen), seen.astype("i1")]
        return draw(st.sampled_from(held)), seen
    wrong = [np.ones((7, 7)), np.ones(3), 1, "abc", [[True], [True, False]], {"a": 1}, object(), np.array(["a"]),
             scipy.sparse.eye(2), torch.eye(2).to_sparse()]  # fmt: skip
    if values is not None:
        wrong += [np.full(values.shape, 0.5), np.full(values.shape, np.nan), np.full(values.shape, 2),
                  np.full(values.shape, "x"), np.zeros((*values.shape, 1))]  # fmt: skip
    return draw(st.sampled_from(wrong)), None
