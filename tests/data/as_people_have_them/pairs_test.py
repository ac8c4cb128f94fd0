"""Pairs that are asked for, and what was shown to whom: as lists, arrays, frames, and by labels."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from custom_inference import Fit, fit
from custom_inference.families.ratings.asked import columns_of_pairs
from ppl_models import PMF, BilinearPMF, ChoicePMF, DataError, impressions, ratings


def triples(labels=(None, None)):
    """Every fourth pair of twelve users and six items is not rated; the others are, in the order of the users."""
    users, items = (one or list(range(size)) for one, size in zip(labels, (12, 6), strict=True))
    kept = [(n, j) for n in range(12) for j in range(6) if (n + j) % 4]
    return [users[n] for n, _ in kept], [items[j] for _, j in kept], [1.0 + (n * j) % 5 for n, j in kept]


@pytest.fixture(scope="module")
def numbered():
    return fit(PMF(num_components=1, num_users=12, num_items=6), ratings(*triples()), sweeps=3, progress=False)


@pytest.fixture(scope="module")
def named():
    labels = [f"u{n}" for n in range(12)], [f"film {j}" for j in range(6)]
    data = ratings(*triples(labels), users=labels[0], items=labels[1])
    return fit(PMF(num_components=1, num_users=12, num_items=6), data, sweeps=3, progress=False)


def test_pairs_are_pairs_in_every_form(numbered, named):
    for pairs in ([(0, 3), (1, 2)], [(0, 3), (1, 2), (4, 5)]):
        users, items = (list(one) for one in zip(*pairs, strict=True))
        frame = pd.DataFrame({"item": items, "user": users, "note": "x"})
        forms = [pairs, [list(one) for one in pairs], np.array(pairs), torch.tensor(pairs), frame, (users, items)]
        forms += [(np.array(users), torch.tensor(items)), frame[["user", "item"]].set_axis(["a", "b"], axis=1)]
        expected = numbered.predict(positions=(users, items))
        for form in forms:
            assert torch.equal(numbered.predict(form), expected)
        for form in forms[:4]:
            assert torch.equal(named.predict(positions=form), named.predict(positions=(users, items)))
        labels = [(f"u{n}", f"film {j}") for n, j in pairs]
        texts = [labels, np.array(labels), pd.DataFrame(labels), pd.DataFrame(labels, columns=["userId", "movieId"])]
        for form in texts:
            assert torch.equal(named.predict(form), named.predict(positions=(users, items)))
    listed = pd.DataFrame(zip(*triples(), strict=True), columns=["who", "what", "stars"])
    assert torch.equal(numbered.predict(listed), numbered.predict((listed.who, listed.what)))
    assert numbered.predict([(0, 3)], uncertainty=True).interval()[0].shape == (1,)
    assert torch.equal(numbered.predict(((0, 3), (1, 2))), numbered.predict(([0, 3], [1, 2])))  # a tuple has columns


@pytest.mark.parametrize(
    "wrong",
    [[[0, 1, 2], [3, 4, 5]], (0, 3), ("u1", "film 2"), ["u1", "ab"], [], np.zeros((2, 3)), pd.DataFrame([range(5)])],
)
def test_what_holds_no_pairs_is_refused(numbered, wrong):
    with pytest.raises(DataError, match=r"that holds no pairs; expected \(users, items\), a tuple"):
        numbered.predict(wrong)
    with pytest.raises(DataError, match="holds no pairs"):
        columns_of_pairs(wrong)


def test_clicks_and_times_of_pairs():
    users, items, values = triples()
    clicks = ratings(users, items, [float(one > 2) for one in values])
    found = fit(BilinearPMF(num_components=1, num_users=12, num_items=6), clicks, progress=False)
    assert torch.equal(found.predict([(0, 3), (1, 2)]), found.predict(([0, 1], [3, 2])))
    timed = ratings(users, items, values, time=range(len(users)))
    model = PMF(num_components=1, num_users=12, num_items=6, time_edges=(20.0,))
    moody = fit(model, timed, sweeps=3, progress=False)
    asked = pd.DataFrame({"user": [0, 0], "item": [3, 3], "time": [1, 40]})
    assert torch.equal(moody.predict(asked), moody.predict(([0, 0], [3, 3]), time=[1, 40]))


USER = ["ann", "bob", "ann", "cleo", "bob", "cleo"]
SHOWN = [["Up", "Heat"], ["Heat", "Coco", "Up"], ["Coco", "Up"], ["Up", "Heat"], ["Up", "Coco"], ["Heat", "Coco"]]
PICKED = ["Up", "Coco", "Up", "Heat", "Up", "Heat"]


def test_impressions_by_labels(tmp_path):
    log = impressions(USER, SHOWN, PICKED)
    users, items = log.coords["row"], log.coords["item"]
    assert users == ["ann", "bob", "cleo"] and items == ["Up", "Heat", "Coco"]
    numbers = impressions([users.index(one) for one in USER], [[items.index(one) for one in some] for some in SHOWN],
                          [items.index(one) for one in PICKED], num_users=3)  # fmt: skip
    assert torch.equal(log.x, numbers.x) and torch.equal(log.others["shown"], numbers.others["shown"])
    found = fit(ChoicePMF.for_data(log, 1), log, progress=False)
    assert found.model.num_items == 3 and found.to_arviz().point_estimates.coords["item_id"].values.tolist() == items
    asked = found.predict((["bob"], [["Coco", "Heat", -1]]))
    assert torch.equal(asked, found.predict(positions=([1], [[2, 1, -1]]))) and asked[0, 2] == 0
    found.save(tmp_path / "fit")
    assert torch.equal(Fit.load(tmp_path / "fit").predict((["bob"], [["Coco", "Heat", -1]])), asked)
    again = impressions(USER, SHOWN, PICKED, items=["Coco", "Heat", "Up"])
    assert torch.equal(found.model.prepare_new(again, log).others["shown"], log.others["shown"])
    for wrong in (["Up", "Alien"], [0, 1]):
        with pytest.raises(DataError, match="unknown items .*labels such as 'Up'"):
            found.predict((["bob"], [wrong]))
    with pytest.raises(DataError, match="1 unknown items .*'Alien'"):
        found.model.prepare_new(impressions(["eve"], [["Up", "Alien"]], ["Up"]), log)
    with pytest.raises(DataError, match="3 items where the model has num_items = 4"):
        ChoicePMF(num_components=1, num_users=3, num_items=4, num_choices=2, num_shown=3).prepare(log)


def test_impressions_know_all_of_their_users_and_items():
    log = impressions(USER, SHOWN, PICKED, users=["eve", "ann", "bob", "cleo"], items=["Alien", "Heat", "Coco", "Up"])
    assert log.x.shape == (4, 2) and not log.observed[0].any()
    assert ChoicePMF.for_data(log, 1).num_items == 4
    with pytest.raises(DataError, match="axis 'item': 1 unknown items .*'Heat'"):
        impressions(USER, SHOWN, PICKED, items=["Coco", "Up"])
    with pytest.raises(DataError, match="axis 'user'.*out of range"):
        impressions(USER, SHOWN, PICKED, num_users=3)
    with pytest.raises(DataError, match="items 1 to 9000000000.*labels of all"):
        impressions([0], [[1, 9_000_000_000]], [1], num_users=1)
    large = impressions([2**63 + 5, 7], [[2**63 + 1, 3], [3, 2**63 + 1]], [3, 3], items=[3, 2**63 + 1])
    assert large.coords == {"row": [7, 2**63 + 5], "item": [3, 2**63 + 1]}
    features = pd.DataFrame({"year": [1979.0, 1995.0, 2017.0, 2009.0]}, index=["Alien", "Heat", "Coco", "Up"])
    model = ChoicePMF(num_components=1, num_users=4, num_items=4, num_choices=2, num_shown=3, num_item_covariates=1)
    read = model.prepare(log, item_covariates=features.iloc[::-1])
    assert read.others["item_covariates"].flatten().tolist() == features["year"].tolist()
