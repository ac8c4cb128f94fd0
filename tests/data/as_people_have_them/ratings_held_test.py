"""Ratings as people hold them: ids of any size, tables beside lists, sparse matrices and frames, repeats, times."""

from __future__ import annotations

import datetime
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

from custom_inference import Fit, fit
from ppl_models import PMF, BilinearPMF, DataError, DataWarning, graph, ratings, relations

LARGE = [2**63 + 5, 2**63 + 7, 12]
FILMS = pd.DataFrame(
    {"Heat": [5, 3, 1, 4], "Up": [4, 3, 2, 1], "Coco": [1, 2, 5, 5]}, index=["ann", "bob", "cleo", "dan"]
)
SHOWN = np.array([[0, 5, 0, 3], [1, 0, 0, 0], [0, 0, 2, 0]])


def held(number=60, seed=0):
    """Users, items and whole ratings, one below the other, in no order."""
    random = np.random.default_rng(seed)
    drawn = random.integers([0, 0, 1], [30, 40, 6], (number, 3))
    return pd.DataFrame(drawn, columns=list("abc")).drop_duplicates(["a", "b"])


@pytest.mark.parametrize(
    "ids",
    [
        np.array(LARGE, np.uint64),
        LARGE,
        pd.Series(LARGE, dtype="UInt64"),
        np.array(LARGE, dtype=object),
        torch.tensor(LARGE, dtype=torch.uint64),
    ],
)
def test_ids_of_64_bits_are_themselves(ids):
    data = ratings(ids, ids, [3.0, 4.0, 5.0])
    assert data.users == data.items == sorted(LARGE) and data.value.tolist() == [5.0, 3.0, 4.0]
    again = ratings([LARGE[0]], [LARGE[1]], [1.0], users=data.users, items=data.items)
    assert again.user.tolist() == [1] and again.item.tolist() == [2]
    frame = pd.DataFrame({"user": np.asarray(ids, np.uint64), "item": LARGE, "rating": [3, 4, 5]})
    assert ratings(frame).users == sorted(LARGE)


def test_ids_are_not_rounded_and_keep_their_zeros(tmp_path):
    path = tmp_path / "rated.csv"
    path.write_text(f"user,item,rating\n{LARGE[0]},01,3\n12,1,4\n{LARGE[1]},01,5\n")
    assert ratings(path).users == sorted(LARGE) and ratings(path).items == ["01", "1"]
    assert ratings(np.array([1, 0], dtype=object), [0, 1], [3, 4], num_users=3).num_users == 3
    assert ratings([LARGE[0], -1], [1, 2], [3, 4]).users == [-1, LARGE[0]]
    for wrong in ([1e19, 2.0], [2.0**53 + 2, 1.0]):
        with pytest.raises(DataError, match="axis 'user'.* floating point, which round ids"):
            ratings(wrong, [1, 2], [3, 4])
    assert sorted(graph([(LARGE[0], LARGE[1]), (LARGE[1], 12)]).nodes) == sorted(LARGE)
    ends = pd.DataFrame({"source": np.array(LARGE[:2], np.uint64), "target": [1, -2]})
    assert sorted(graph(ends).nodes) == sorted([*LARGE[:2], 1, -2])
    with pytest.raises(DataError, match="axis 'node'.* floating point, which round ids"):
        graph(pd.DataFrame({"source": [1e19, 2.0], "target": [3.0, 4.0]}))
    likes = relations({"likes": pd.DataFrame({"person": LARGE[:2], "film": ["01", "1"]})})
    assert likes.coords["person"] == sorted(LARGE[:2]) and likes.coords["film"] == ["01", "1"]


def test_a_table_of_three_or_four_films_is_a_table(tmp_path):
    for table in (FILMS, FILMS.assign(Alien=[5, 5, 4, 4]), FILMS.set_axis(pd.Index([7, 8, 9, 11], name="user"))):
        data = ratings(table)
        assert list(data.users) == list(table.index) and list(data.items) == list(table.columns) and data.is_complete
    long = pd.DataFrame(np.random.default_rng(0).integers(1, 6, (40, 3)), columns=["Heat", "Up", "Coco"])
    assert ratings(long).items == list(long.columns) and ratings(long.to_numpy()).num_items == 3
    assert ratings(FILMS.reset_index(drop=True).astype(float)).items == list(FILMS.columns)
    percent = np.array([[20, 90, 30], [10, 95, 40]])  # one scale, though a film has twice the ratings of another
    assert ratings(percent).is_complete and ratings(pd.DataFrame(percent, index=["ann", "bob"])).num_items == 3
    FILMS.to_csv(tmp_path / "films.csv")
    assert ratings(tmp_path / "films.csv").users == list(FILMS.index)
    assert fit(PMF(num_components=1), FILMS, sweeps=2, progress=False).data.coords["feature"] == list(FILMS.columns)


def test_what_may_be_a_list_or_a_table_is_refused(tmp_path):
    plain = FILMS.reset_index(drop=True)
    for unclear in (plain, plain.assign(user=range(101, 105)), FILMS.reset_index(names="name")):
        with pytest.raises(DataError, match="may be a list of ratings, or a table; expected of a list, columns user"):
            ratings(unclear)
    FILMS.to_csv(tmp_path / "films.csv", index=False)
    with pytest.raises(DataError, match="films.csv.*may be a list of ratings, or a table"):
        ratings(tmp_path / "films.csv")
    chosen = ratings(FILMS.reset_index(drop=True), columns=["Heat", "Up", "Coco"])
    assert chosen.users == [1, 3, 4, 5] and chosen.num_ratings == 4


def test_lists_without_names_are_lists(tmp_path):
    listed = held()
    expected = ratings(*(listed[name] for name in listed))
    listed.to_csv(tmp_path / "rated.csv", index=False)
    for source in (listed, listed.astype(float), listed[listed.c > 0], listed.assign(t=range(len(listed)))):
        found = ratings(source)
        assert found.users == expected.users and found.value.tolist() == expected.value.tolist()
    assert ratings(tmp_path / "rated.csv").num_ratings == len(listed)
    few = pd.DataFrame({"a": np.repeat(range(4), 2), "b": [0, 1] * 4, "c": [1, 2, 3, 4, 5, 1, 2, 3]})
    assert ratings(few).num_items == 2  # sorted by users and items
    for array in (listed.to_numpy(), torch.tensor(listed.to_numpy())):
        with pytest.raises(DataError, match=r"looks like a list of user, item, rating; .*ratings\(\*x.T\)"):
            ratings(array)


def test_columns_by_some_of_their_names():
    frame = pd.DataFrame({"rating": [5, 4], "film": [3, 4], "userId": [1, 2]})
    assert ratings(frame).users == [1, 2] and ratings(frame).items == [3, 4]
    with pytest.raises(DataError, match="axis 'item': no column of items among rating, film, userId, x, y"):
        ratings(frame.assign(x=1, y=2))
    dated = frame.rename(columns={"film": "item"}).assign(Date=["3/14/1970", "1/3/1970"])
    for name in ("Date", "DATETIME", "day", "when", "Time", "timestamp"):
        assert ratings(dated.rename(columns={"Date": name})).time.tolist() == [72.0, 2.0]
    with pytest.warns(DataWarning, match="columns 'note' are left out"):
        ratings(dated.assign(note="x"))


@pytest.mark.parametrize("kind", ["coo", "csr", "csc", "bsr", "dia", "lil", "dok"])
def test_what_is_stored_is_a_rating_in_every_sparse_format(kind):
    for form, source in (("array", SHOWN), ("matrix", SHOWN.astype(np.int8)), ("array", SHOWN.astype(float))):
        data = ratings(getattr(scipy.sparse, f"{kind}_{form}")(source))
        assert data.value.tolist() == [5.0, 3.0, 1.0, 2.0] and data.item.tolist() == [1, 3, 0, 2]


def test_zeros_and_repeats_of_sparse_matrices():
    zero = scipy.sparse.csr_array(([0, 2.0], ([0, 1], [0, 1])), shape=(2, 2))
    assert ratings(zero).value.tolist() == [0.0, 2.0]
    with pytest.warns(DataWarning, match="a matrix of blocks, which are filled up with zeros"):
        assert ratings(scipy.sparse.bsr_array(np.eye(4), blocksize=(2, 2))).num_ratings == 4
    places = [[0, 0, 1], [0, 0, 1]]
    twice = torch.sparse_coo_tensor(places, [1.0, 2.0, 3.0], (2, 2), check_invariants=True)
    for source in (scipy.sparse.coo_array(([1, 2, 3], places), shape=(2, 2)), twice):
        with pytest.raises(DataError, match="1 pairs of user and item that occur twice"):
            ratings(source)
        assert ratings(source, duplicates="mean").value.tolist() == [1.5, 3.0]


def test_what_sparse_frames_do_not_store_is_missing():
    stored = pd.DataFrame.sparse.from_spmatrix(scipy.sparse.csr_array(SHOWN), columns=list("wxyz"))
    missing = pd.DataFrame(SHOWN.astype(float), columns=list("wxyz")).where(SHOWN > 0)
    expected = ratings(missing)
    for source in (stored, stored.astype(pd.SparseDtype(float, 0.0)), missing.astype(pd.SparseDtype(float, np.nan))):
        data = ratings(source)
        assert data.value.tolist() == expected.value.tolist() and data.coords == expected.coords
        assert PMF.for_data(data, 1).prepare(source).stored.tolist() == expected.value.tolist()
    mixed = missing.assign(w=pd.arrays.SparseArray([0.0, 1.0, 0.0], fill_value=0.0))
    assert ratings(mixed).value.tolist() == expected.value.tolist()
    with pytest.raises(DataError, match="does not say whether what is not stored is a no or is unknown"):
        BilinearPMF(num_components=1, num_users=3, num_items=4).prepare(stored)


def test_zeros_beside_stars_are_warned_of():
    random = np.random.default_rng(0)
    stars = random.integers(1, 6, (30, 20)) * (random.random((30, 20)) < 0.2)
    for source in (stars, pd.DataFrame(stars)):
        with pytest.warns(DataWarning, match="8.% of the ratings are 0 beside others from 1 to 5"):
            ratings(source)
    model = PMF(num_components=1, num_users=30, num_items=20)
    with pytest.warns(DataWarning, match="NaN in a table says that nothing was rated"):
        model.check_for_fitting(model.prepare(stars))
    for counts in (stars > 0, random.poisson(0.2, (30, 20)), np.where(stars > 0, stars, np.nan)):
        with warnings.catch_warnings(action="error"):
            ratings(counts)


@pytest.mark.parametrize(
    ("which", "by_time", "by_place"), [("mean", 1.5, 1.5), ("last", 1.0, 2.0), ("first", 2.0, 1.0)]
)
def test_repeats_are_what_is_asked_for(which, by_time, by_place):
    columns = ["a", "c", "a"], ["x", "x", "x"], [1, 5, 2]
    assert ratings(*columns, duplicates=which).value.tolist() == [by_place, 5.0]
    timed = ratings(*columns, time=[9, 1, 8], duplicates=which)
    assert timed.value.tolist() == [by_time, 5.0] and timed.time.tolist() == [8.0 if which == "first" else 9.0, 1.0]
    assert ratings(list(zip(*columns, strict=True)), duplicates=which).value.tolist() == [by_place, 5.0]
    with pytest.raises(DataError, match=r"item 'x' by user 'a'.*duplicates=\) says which: 'mean', 'first' or 'last'"):
        ratings(*columns)
    with pytest.raises(DataError, match="unknown duplicates 'sum'"):
        ratings(*columns, duplicates="sum")


SECONDS = [881250949, 881250960, 881250975]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, None])
def test_times_are_kept_to_the_second(dtype, tmp_path, monkeypatch):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        data = ratings([0, 1, 2], [0, 0, 1], [3.0, 4.0, 5.0], time=SECONDS, dtype=dtype)
        assert data.time.tolist() == data.to(dtype=torch.float32).time.tolist() == SECONDS
        assert data.dense().to(dtype=torch.float32).others["time"].max() == SECONDS[2]
        early = data.time < SECONDS[1] + 1
        assert data.chosen(early).time.tolist() == SECONDS[:2] and data.chosen(~early).time.tolist() == SECONDS[2:]
        model = PMF(num_components=1, num_users=3, num_items=2, time_edges=(SECONDS[1] + 1,), biases=True)
        for found in (fit(model, data, sweeps=2, progress=False, dtype=dtype),):
            assert found.data.time.tolist() == SECONDS
            found.save(tmp_path / "fit")
            read = Fit.load(tmp_path / "fit")
            assert read.data.time.tolist() == SECONDS and read.params["item"].dtype == found.params["item"].dtype
            near = read.predict(([0, 0], [0, 0]), time=[SECONDS[1], SECONDS[1] + 2])
            assert near[0] != near[1] and near.dtype == found.params["item"].dtype
    finally:
        torch.set_default_dtype(before)


def test_moments_are_kept_in_every_form():
    moments = pd.to_datetime(["2020-01-01 00:00:00", "2020-01-01 00:00:01", "2020-01-02 00:00:00"])
    days = [18262.0, 18262.0 + 1 / 86400, 18263.0]
    forms = [moments, moments.astype(str), moments.to_pydatetime(), pd.Series(moments).dt.tz_localize("UTC")]
    forms += [[datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 1, 0, 0, 1), datetime.datetime(2020, 1, 2)]]
    for time in forms:
        assert ratings([0, 1, 2], [0, 0, 1], [3.0, 4.0, 5.0], time=time).time.tolist() == pytest.approx(days, abs=1e-9)
    with pytest.raises(DataError, match="times that are missing"):
        ratings([0, 1], [0, 0], [3.0, 4.0], time=["2020-01-01", None])
