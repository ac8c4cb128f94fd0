"""The data door under arbitrary input: what NumPy says is there, or an error of our own that says what is wrong."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from ppl_models import (
    CVQ,
    LDA,
    MMSB,
    NOCA,
    SBM,
    AspectBernoulli,
    Data,
    DataError,
    DataWarning,
    GraphData,
    LogisticPCA,
    MixtureOfBernoullis,
    MixtureOfCategoricals,
    MixtureOfMultinomialCounts,
    MixtureOfPoissons,
    Model,
    PoissonSBM,
    UserRatingProfile,
    documents,
    graph,
)
from ppl_models._errors import PPLError
from tests._fuzz import OURS, fuzz, says_something

#: Families of rows by features, by what they take: (whether an entry has a meaning, model for D features).
ROWS: dict[str, Any] = {
    "noca": (lambda x: (x == 0) | (x == 1), lambda d: NOCA(num_components=1, num_features=d)),
    "bernoullis": (lambda x: (x == 0) | (x == 1), lambda d: MixtureOfBernoullis(num_components=2, num_features=d)),
    "logistic_pca": (lambda x: (x == 0) | (x == 1), lambda d: LogisticPCA(num_components=1, num_features=d)),
    "aspects": (lambda x: (x >= 0) & (x <= 2) & (x == np.round(x)),
                lambda d: AspectBernoulli(num_components=2, num_features=d, total_count=2)),
    "real": (np.isfinite, lambda d: CVQ(num_components=1, num_features=d)),
    "poissons": (lambda x: (x >= 0) & (x == np.round(x)) & np.isfinite(x),
                 lambda d: MixtureOfPoissons(num_components=2, num_features=d)),
    "categories": (lambda x: (x >= 0) & (x < 3) & (x == np.round(x)),
                   lambda d: MixtureOfCategoricals(num_components=2, num_features=d, num_categories=3)),
    "ratings": (lambda x: (x >= 0) & (x < 5) & (x == np.round(x)),
                lambda d: UserRatingProfile(num_components=2, num_features=d, num_categories=5)),
    "lda": (lambda x: (x >= 0) & (x == np.round(x)) & np.isfinite(x),
            lambda d: LDA(num_topics=2, vocabulary_size=d)),
    "multinomials": (lambda x: (x >= 0) & (x == np.round(x)) & np.isfinite(x),
                     lambda d: MixtureOfMultinomialCounts(num_topics=2, vocabulary_size=d)),
}  # fmt: skip
GRAPHS: dict[str, Any] = {
    "sbm": lambda n, directed: SBM(num_blocks=1, num_nodes=n, directed=directed),
    "poisson_sbm": lambda n, directed: PoissonSBM(num_blocks=1, num_nodes=n, directed=directed),
    "mmsb": lambda n, directed: MMSB(num_blocks=1, num_nodes=n, directed=directed),
}
NUMBERS = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", ">f8", ">i4", np.longdouble]
NO_NUMBERS = ["c8", "c16", "O", "U3", "S3", "M8[s]", "m8[s]", [("a", "f8")]]


class Case(NamedTuple):
    """A container, and what NumPy says is in it: float64 with NaN for missing (None where it holds no numbers)."""

    data: Any
    values: np.ndarray | None


# ----- what people may hand over --------------------------------------------------------------------------


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
        made = torch.sparse_coo_tensor(np.stack([row, column]), torch.from_numpy(plain), x.shape)
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
        return Case(draw(st.sampled_from(_oddities())), None)
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


def _oddities() -> list[Any]:
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
        [[1, 0], [1]], [[1, [0]], [0, 1]], [1, "a"], [[1, None], [0, 1]], [[2**70, 0], [0, 1]], [], [[]], [[], []],
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


# ----- properties -----------------------------------------------------------------------------------------


def _frozen(data: Any) -> Any:
    """A copy to compare with afterwards; None for what is used up by reading it, or cannot be copied."""
    if isinstance(data, Iterator):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy's, of the fill value of masked arrays
            return copy.deepcopy(data)
    except (TypeError, NotImplementedError, RuntimeError):
        return None


def _same(one: Any, other: Any) -> bool:
    if other is None or isinstance(one, Data) or type(one) is object:
        return True
    if isinstance(one, torch.Tensor):
        if one.device.type == "meta":
            return True
        one, other = (v.to_dense() if v.layout != torch.strided else v for v in (one, other))
        return torch.equal(one, other) or (one.is_floating_point() and torch.allclose(one, other, 0, 0, equal_nan=True))
    if scipy.sparse.issparse(one):
        return one.dtype == other.dtype and one.format == other.format and all(
            np.array_equal(getattr(one, part), getattr(other, part), equal_nan=one.dtype.kind in "fc")
            for part in ("data", "indices", "indptr", "row", "col") if hasattr(one, part) and one.format != "bsr"
        )  # fmt: skip
    if isinstance(one, pd.DataFrame | pd.Series | xr.DataArray | xr.Dataset):
        return one.equals(other) or str(one) == str(other)
    if isinstance(one, np.ma.MaskedArray):
        return _same(one.data, other.data) and _same(np.asarray(one.mask), np.asarray(other.mask))
    if isinstance(one, np.ndarray):
        return one.tobytes() == other.tobytes() and one.shape == other.shape if one.dtype.kind != "O" else True
    return repr(one) == repr(other)


def _prepared(model: Model, data: Any, **settings: Any) -> Data | None:
    """The data, or None where they were refused by an error of ours; the input is as it was."""
    before = _frozen(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DataWarning)
        try:
            found = model.prepare(data, **settings)
        except PPLError as error:
            assert isinstance(error, OURS), type(error)
            assert says_something(error), str(error)
            if isinstance(error, DataError):
                assert str(error).startswith("site 'x'"), str(error)
            found = None
    assert _same(data, before), "the input was changed"
    return found


def _agrees(found: Data, values: np.ndarray) -> bool:
    """Entry by entry, after what float64 (or the type asked for) makes of them; missing ones are filled with 0."""
    dense = found.dense()
    target = np.asarray(torch.from_numpy(np.array(values)).to(dense.x.dtype).double())
    missing = np.isnan(target)
    mask = np.ones(values.shape, bool) if dense.mask is None else dense.mask.numpy()
    kept = np.where(missing, 0.0, target)
    return (mask == ~missing).all() and (dense.x.double().numpy() == kept).all()


def _too_large(values: np.ndarray) -> bool:
    """Whether whole numbers may not have survived the way to float64."""
    return bool((np.abs(values[np.isfinite(values)]) >= 2.0**53).any())


@pytest.mark.parametrize("family", ROWS)
@given(data=st.data())
@fuzz(25)
def test_rows_come_in_as_numpy_has_them_or_are_refused(family, data):
    allowed, make = ROWS[family]
    case = data.draw(cases())
    width = case.values.shape[1] if case.values is not None and case.values.ndim == 2 else 2
    model = make(max(width, 1) if data.draw(st.integers(0, 19)) else width + 1)
    dtype = data.draw(st.sampled_from([None, torch.float64, torch.float64, torch.float32]))
    found = _prepared(model, case.data, dtype=dtype)
    values = case.values
    # Lists, and arrays of strings, are tokens there.
    listed = family in ("lda", "multinomials") and (values is None or isinstance(case.data, list))
    if found is None:
        if values is None or values.ndim != 2 or 0 in values.shape or dtype == torch.float32:
            return
        seen = values[~np.isnan(values)]
        fits = allowed(seen).all() and model_width(model) == width
        assert listed or not fits or _too_large(values), "refused without a reason"
        return
    assert values is not None or listed, "accepted what is no matrix"
    if listed:
        return
    assert type(found) is Data and found.x.dtype == (dtype or torch.float64)
    assert _agrees(found, values)


def model_width(model: Model) -> int:
    return next(size for name in ("num_features", "vocabulary_size") if (size := getattr(model, name, None)))


@given(data=st.data())
@fuzz(80)
def test_masks_hide_what_they_say_or_are_refused(data):
    case = data.draw(cases())
    mask, seen = data.draw(masks(case.values))
    width = case.values.shape[1] if case.values is not None and case.values.ndim == 2 else 2
    found = _prepared(CVQ(num_components=1, num_features=max(width, 1)), case.data, mask=mask)
    if found is None:
        return
    assert seen is not None and case.values is not None
    assert _agrees(found, np.where(seen, case.values, np.nan))


@pytest.mark.parametrize("family", GRAPHS)
@given(data=st.data())
@fuzz(50)
def test_graphs_come_in_as_numpy_has_them_or_are_refused(family, data):
    case = data.draw(cases(square=True))
    size = case.values.shape[0] if case.values is not None and case.values.ndim else 2
    model = GRAPHS[family](max(size, 1), data.draw(st.booleans()))
    mask, seen = data.draw(masks(case.values)) if data.draw(st.integers(0, 3)) == 0 else (None, None)
    found = _prepared(model, case.data, mask=mask)
    if found is None or case.values is None or case.values.ndim != 2 or case.values.shape[0] != case.values.shape[1]:
        return
    assert isinstance(found, GraphData)
    expected = case.values if mask is None else np.where(seen, case.values, np.nan)
    assert mask is None or seen is not None
    off = ~np.eye(size, dtype=bool)
    hidden = np.isnan(expected) if model.directed else np.isnan(expected) | np.isnan(expected).T
    assert (found.x.to_dense().numpy()[off] == np.where(hidden, 0.0, expected)[off]).all()
    observed = found.observed_mask()
    assert ((np.ones_like(off) if observed is None else observed.numpy())[off] == ~hidden[off]).all()


TOKENS = st.one_of(st.text(max_size=3), st.integers(-2, 4), st.sampled_from(["river", "bank", "the"]), st.none(),
                   st.floats(), st.booleans(), st.binary(max_size=2),
                   st.tuples(st.text(max_size=2), st.integers(0, 3)))  # fmt: skip
COUNTS = st.one_of(st.integers(-1, 3), st.floats(), st.text(max_size=1))
WORDS = st.sampled_from(["river", "bank", "the", "a", "loan"])


@given(
    source=st.one_of(
        st.lists(st.one_of(st.lists(TOKENS, max_size=3), st.text(max_size=8), TOKENS), max_size=3),
        st.lists(st.lists(WORDS, max_size=4), min_size=1, max_size=4),
        st.lists(st.dictionaries(WORDS, COUNTS, max_size=3), max_size=3),
        st.lists(st.text("ab c", max_size=8), max_size=3), TOKENS, st.sampled_from(_oddities()),
    ),
    vocabulary=st.one_of(st.none(), st.lists(WORDS, max_size=4), st.dictionaries(WORDS, st.integers(0, 3), max_size=3),
                         st.lists(TOKENS, max_size=3), TOKENS),
    settings=st.fixed_dictionaries({}, optional={
        "vocabulary_size": st.one_of(st.integers(-1, 5), st.just(10**12)), "min_count": st.integers(-1, 3),
        "max_share": st.floats(), "stop_words": st.one_of(st.just("english"), st.lists(WORDS), st.text(max_size=2)),
        "labels": st.lists(st.text(max_size=2), max_size=3), "lowercase": st.booleans(), "colour": st.just(1),
        "ngram_range": st.tuples(st.integers(0, 2), st.integers(0, 2)), "matrix": st.just("x"),
        "file_format": st.sampled_from(["uci", "text", "yaml"]),
    }),
)  # fmt: skip
@fuzz(200)
def test_documents_are_counted_or_refused(source, vocabulary, settings):
    before = _frozen(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", DataWarning)
            found = documents(source, vocabulary=vocabulary, **settings)
    except PPLError as error:
        assert isinstance(error, OURS) and says_something(error), repr(error)
        return
    finally:
        assert _same(source, before)
    values = found.x.values() if found.is_sparse else found.x
    assert bool(((values >= 0) & (values == values.round())).all())
    words = found.coords.get("feature")
    if isinstance(source, list) and source and all(isinstance(one, list) for one in source) and words is not None:
        tokens = [[token for token in one if token in words] for one in source]
        if all(isinstance(token, str) for one in source for token in one):
            expected = np.array([[one.count(word) for word in words] for one in tokens])
            assert (found.dense().x.numpy() == expected).all()


ENDS = st.one_of(st.integers(-1, 4), st.text(max_size=2), st.none(), st.floats(), st.tuples(st.integers(0, 1)),
                 st.booleans(), st.sampled_from(["a", "b", "c"]), st.just(10**12))  # fmt: skip
EDGES = st.one_of(
    st.lists(st.one_of(st.tuples(ENDS, ENDS), st.tuples(ENDS, ENDS, st.one_of(st.integers(-1, 3), ENDS))), max_size=5),
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), max_size=6),
    st.lists(st.lists(ENDS, max_size=3), max_size=4), arrays("i8", array_shapes(max_dims=3, max_side=4)), ENDS,
)


@given(
    edges=EDGES,
    as_source=st.booleans(),
    settings=st.fixed_dictionaries({}, optional={
        "directed": st.sampled_from([True, False, None]), "self_loops": st.booleans(),
        "nodes": st.one_of(st.integers(-1, 5), st.just(10**12), st.lists(st.sampled_from("abcd")), st.just("abc")),
        "kind": st.sampled_from(["binary", "counts", None, "colours"]), "weight": st.sampled_from([False, None, "w"]),
        "mask": st.one_of(st.lists(st.tuples(ENDS, ENDS), max_size=2), st.just([("a", "b")]), ENDS,
                          arrays("?", array_shapes(min_dims=2, max_dims=2, max_side=4))),
    }),
)  # fmt: skip
@fuzz(250)
def test_edges_are_a_graph_or_refused(edges, as_source, settings):
    before = _frozen(edges)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", DataWarning)
            found = graph(edges, **settings) if as_source else graph(edges=edges, **settings)
    except PPLError as error:
        assert isinstance(error, OURS) and says_something(error), repr(error)
        return
    finally:
        assert _same(edges, before)
    assert found.x.shape == (len(found), len(found)) and len(found) < 100
    assert bool((found.x.values() > 0).all())
    if isinstance(edges, list) and not as_source and all(len(e) == 2 for e in edges) and "mask" not in settings:
        names = found.names
        listed = {(a, b) for a, b in edges if a != b or found.self_loops}
        if not found.directed:
            listed |= {(b, a) for a, b in listed}
        row, column = found.x.to_dense().nonzero(as_tuple=True)
        assert {(names[i], names[j]) for i, j in zip(row.tolist(), column.tolist(), strict=True)} == listed
