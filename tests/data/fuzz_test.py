"""The data door under arbitrary input: what NumPy says is there, or an error of our own that says what is wrong."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

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
from ppl_models.core.errors import PPLError
from tests.support.fuzz import OURS, fuzz, says_something
from tests.support.fuzz_data import cases, masks, oddities

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


def _agrees(found: Data, values: np.ndarray, *, whole: bool = False) -> bool:
    """Entry by entry, after what float64 (or the type asked for) makes of them; missing ones are filled with 0, and
    whole numbers but for rounding are ``whole``."""
    dense = found.dense()
    target = np.asarray(torch.from_numpy(np.array(values)).to(dense.x.dtype).double())
    missing = np.isnan(target)
    mask = np.ones(values.shape, bool) if dense.mask is None else dense.mask.numpy()
    kept = np.where(missing, 0.0, target)
    near = np.round(kept)
    kept = np.where(whole & (np.abs(kept - near) <= 1e-7 * np.clip(np.abs(near), 1, 1e4)), near, kept)
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
        if family in ("lda", "multinomials") and isinstance(case.data, pd.DataFrame):
            fits = fits and not case.data.columns.duplicated().any()  # every word once
        assert listed or not fits or _too_large(values), "refused without a reason"
        return
    # Answers may be words.
    words = values is None and found.coords.get("answers") is not None
    assert values is not None or listed or words, "accepted what is no matrix"
    if listed or words:
        return
    assert type(found) is Data and found.x.dtype == (dtype or torch.float64)
    assert _agrees(found, values, whole=family != "real")


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
        st.lists(st.text("ab c", max_size=8), max_size=3), TOKENS, st.sampled_from(oddities()),
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
    st.lists(st.lists(ENDS, max_size=3), max_size=4),
    arrays("i8", array_shapes(max_dims=3, max_side=4)),
    ENDS,
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
        names = found.nodes
        listed = {(a, b) for a, b in edges if a != b or found.self_loops}
        if not found.directed:
            listed |= {(b, a) for a, b in listed}
        row, column = found.x.to_dense().nonzero(as_tuple=True)
        assert {(names[i], names[j]) for i, j in zip(row.tolist(), column.tolist(), strict=True)} == listed
