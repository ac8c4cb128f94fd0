"""The door for ratings: what people hold them in comes out the same, and what cannot be meant is refused by name."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

from ppl_models import DataError, FileFormatError, Ratings, ratings
from ppl_models.data.several import same_data

USERS, ITEMS, VALUES = [0, 0, 1, 2, 2], [1, 3, 0, 0, 3], [4.0, 0.0, 2.5, 1.0, 5.0]


def expected() -> np.ndarray:
    x = np.full((3, 4), np.nan)
    x[USERS, ITEMS] = VALUES
    return x


def sources() -> dict[str, Ratings]:
    frame = pd.DataFrame({"user": USERS, "item": ITEMS, "rating": VALUES})
    sparse = scipy.sparse.coo_array((VALUES, (USERS, ITEMS)), shape=(3, 4))
    sizes = {"num_users": 3, "num_items": 4}
    return {
        "columns": ratings(USERS, ITEMS, VALUES, **sizes),
        "tensors": ratings(*map(torch.tensor, (USERS, ITEMS, VALUES)), **sizes),
        "another order": ratings(USERS[::-1], ITEMS[::-1], VALUES[::-1], **sizes),
        "frame": ratings(frame, **sizes),
        "unnamed": ratings(frame.set_axis(["a", "b", "c"], axis=1), **sizes),
        "triples": ratings(list(zip(USERS, ITEMS, VALUES, strict=True)), **sizes),
        "scipy": ratings(sparse.tocsr()),
        "torch": ratings(torch.sparse_coo_tensor([USERS, ITEMS], VALUES, (3, 4), check_invariants=True)),
        "csr": ratings(ratings(USERS, ITEMS, VALUES, **sizes).x),
        "dense": ratings(expected()),
        "masked": ratings(np.ma.masked_invalid(expected())),
    }


def test_every_source_gives_the_same_ratings():
    found = sources()
    for name, data in found.items():
        assert same_data(data, found["columns"]), name
        assert np.array_equal(data.dense().x.masked_fill(~data.dense().mask, torch.nan), expected(), equal_nan=True)
    one = found["columns"]
    assert one.user.tolist() == USERS and one.item.tolist() == ITEMS and one.value.tolist() == VALUES
    assert (one.num_users, one.num_items, one.num_ratings, len(one)) == (3, 4, 5, 3) and not one.is_complete
    assert "5 of 4 items by 3 users" in one._repr_html_()
    assert one.to(dtype=torch.float32).value.dtype == torch.float32


def test_files_hold_frames(tmp_path):
    path = tmp_path / "ratings.csv"
    frame = pd.DataFrame({"userId": [7, 9, 7], "movieId": ["a", "b", "b"], "rating": [1, 2, 3], "timestamp": [5, 6, 7]})
    frame.to_csv(path, index=False)
    data = ratings(path)
    assert same_data(data, ratings(frame)) and same_data(ratings(str(path)), data)
    assert data.users == [7, 9] and data.items == ["a", "b"] and data.time.tolist() == [5.0, 7.0, 6.0]
    with pytest.raises((DataError, FileFormatError), match=r"nowhere\.csv"):
        ratings("nowhere.csv")


def test_labels_are_kept_and_looked_up():
    data = ratings(["bob", "ann"], [30, 10], [1, 2])
    assert data.users == ["bob", "ann"] and data.items == [10, 30] and data.coords["row"] == ["bob", "ann"]
    again = ratings(["ann"], [30], [5], users=data.users, items=data.items)
    assert again.user.tolist() == [1] and again.item.tolist() == [1] and again.num_users == 2
    wide = ratings(pd.DataFrame([[1.0, np.nan]], index=["cleo"], columns=["Heat", "Alien"]))
    assert wide.users == ["cleo"] and wide.items == ["Heat", "Alien"] and wide.num_ratings == 1


def test_parts_of_the_ratings():
    days = ["2020-01-02", "2020-01-01", "1970-01-02", "2020-01-01", "2020-01-01"]
    data = ratings(USERS, ITEMS, VALUES, time=days)
    assert data.time.tolist() == [18263.0, 18262.0, 1.0, 18262.0, 18262.0]
    rows = data.rows(torch.tensor([2, 0]))
    assert rows.user.tolist() == [0, 0, 1, 1] and rows.value.tolist() == [1.0, 5.0, 4.0, 0.0]
    assert rows.time.tolist() == [18262.0, 18262.0, 18263.0, 18262.0]
    kept = torch.tensor([True, False, False, True, True])
    one, other = data.chosen(kept), data.chosen(~kept)
    assert one.user.tolist() == [0, 2, 2] and one.time.tolist() == [18263.0, 18262.0, 18262.0]
    assert other.value.tolist() == [0.0, 2.5] and other.num_users == 3
    assert data.dense().others["time"][1, 0] == 1.0


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ((["a", "a"], ["b", "b"], [1, 2]), {}, "twice .*item 'b' by user 'a'"),
        (([0, 1], [0, 1], [1]), {}, "2 of user, 2 of item, 1 of value"),
        (([0, 5], [0, 1], [1, 2]), {"num_users": 2}, r"axis 'user': 1 .* out of range \(the first: 5\)"),
        (([0, 1], [0, -1], [1, 2]), {"num_items": 2}, "axis 'item'.*first: -1"),
        (([0, 1], [0, 1], [1, 7]), {"between": (1, 5)}, r"out of range \(the first: 7\); expected 1 to 5"),
        (([0, 1], [0, 1], [1, np.nan]), {}, "no finite numbers.*at 1"),
        ((["a", "z"], [0, 1], [1, 2]), {"users": ["a", "b"]}, "1 unknown users .*'z'"),
        (([], [], []), {}, "no ratings"),
        (([0, 1], [0, 1]), {}, "without ratings"),
        ((["a", None], [0, 1], [1, 2]), {}, "the user of rating 1 is missing"),
        (([0, 1], [0, 1], ["good", "bad"]), {}, "expected numbers"),
        (([0], [0], [1]), {"num_users": 0}, "at least 1"),
        (([0], [0], [1]), {"time": ["noon", "x"]}, "2 of time"),
        (([0], [0], [1]), {"time": ["noon?"]}, "neither numbers nor dates"),
    ],
)
def test_what_cannot_be_meant_is_refused(columns, settings, message):
    with pytest.raises(DataError, match=message):
        ratings(*columns, **settings)
