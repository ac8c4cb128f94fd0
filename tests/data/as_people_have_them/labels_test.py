"""Labels and positions: the same pairs have the same predictions whatever users, items, nodes and entities are called,
and a label that the data do not have is an error."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import custom_inference as ci
from custom_inference.checks import held_entries
from custom_inference.graphs import HeldDyads, link_probability
from ppl_models import (
    IRM,
    LDA,
    PMF,
    SBM,
    BilinearPMF,
    ChoicePMF,
    DataError,
    DataWarning,
    MethodError,
    MixtureOfBernoullis,
    UserRatingProfile,
    graph,
    impressions,
    ratings,
    relations,
)
from ppl_models.data.labels import places_of
from ppl_models.datasets import sample_ratings

QUIET: dict[str, Any] = {"progress": False}
USERS, ITEMS = 24, 8

#: How people call things: position -> label.
NAMES = {
    "from 0": lambda n: n,
    "from 1": lambda n: n + 1,
    "with gaps": lambda n: 10 * n + 3,
    "names": lambda n: f"n{n}",
    "strings of digits": str,
}


@pytest.fixture(scope="module")
def rated():
    """Users, items and ratings of three quarters of the pairs."""
    rng = np.random.default_rng(0)
    user, item = np.divmod(np.flatnonzero(rng.random(USERS * ITEMS) < 0.75), ITEMS)
    taste, kind = rng.normal(size=USERS), rng.normal(size=ITEMS)
    return user, item, 3 + taste[user] * kind[item] + 0.1 * rng.normal(size=len(user))


def named(rated, name, order=slice(None)):
    """The ratings of a frame whose users and items are called so, its rows in some order."""
    user, item, value = rated
    call = NAMES[name]
    frame = pd.DataFrame({"user": [call(n) for n in user], "item": [call(n) for n in item], "rating": value})
    users, items = ([call(n) for n in range(size)] for size in (USERS, ITEMS))
    return ratings(frame.iloc[order], users=users, items=items)


def points(data):
    """A fit that is quick; whatever it has learned, it says of labels what it says of their positions."""
    return ci.EM(max_iterations=5).fit(PMF.for_data(data, 1, adaptive=False), data, **QUIET)


# ----- looking labels up --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "labels", "places"),
    [
        (["c", "a", "c"], ["a", "b", "c"], [2, 0, 2]),
        (np.array([3, 1]), [1, 2, 3], [2, 0]),
        (pd.Series([3.0, 1.0]), [1, 2, 3], [2, 0]),
        (["1", 1], [1, "1"], [1, 0]),
        ([("a", 1)], [("a", 2), ("a", 1)], [1]),
        (torch.tensor([2, 0]), None, [2, 0]),
        ([2, 1.0], None, [2, 1]),
        ((), None, []),
    ],
)
def test_labels_have_places(given, labels, places):
    assert places_of(given, labels, 3, "user").tolist() == places


@pytest.mark.parametrize(
    ("given", "labels", "message"),
    [
        (["a", "z", "y", "z"], ["a", "b"], r"2 unknown users \(the first: 'z', 'y'\); expected labels such as 'a'"),
        (["2010"], [2009, 2010], "the data have numbers such as 2010, not strings such as '2010'"),
        ([2010], ["2009", "2010"], "the data have strings such as '2010', not numbers such as 2010"),
        (["1"], None, "whole numbers from 0 to 1; the data have numbers such as 1, not strings"),
        ([0, 2, 3], None, r"2 unknown users \(the first: 2, 3\); expected whole numbers from 0 to 1"),
        ([-1], None, "unknown"),
        ([0.5], None, "unknown"),
        ([True, False], None, "unknown"),
        ([True, True], [1, 2], "unknown"),
        ([None, "a"], ["a", "b"], "1 users are missing"),
        ([np.nan, 1.0], [1, 2], "1 users are missing"),
        (torch.tensor([1, 2]), [1, 2], "a tensor of users, which holds positions"),
        (["a"], ["a", "a"], "two users called 'a'"),
        ([["a", "b"]], ["a", "b"], "a list as a user"),
        (np.zeros((2, 2), int), None, "one axis"),
    ],
)
def test_what_is_no_label_is_refused(given, labels, message):
    with pytest.raises(DataError, match=message):
        places_of(given, labels, 2, "user")


def test_new_labels_are_new_only_where_they_can_be():
    assert places_of(["z", "a"], ["a", "b"], 2, "user", new=True).tolist() == [2, 0]
    assert places_of([7, 1], None, 2, "user", new=True).tolist() == [2, 1]
    for given, labels in ((["2"], [1, 2]), ([-1], None), ([None], ["a", "b"])):  # a mistake is nobody new
        with pytest.raises(DataError):
            places_of(given, labels, 2, "user", new=True)


# ----- ratings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_predictions_of_the_same_pairs_are_the_same_whatever_they_are_called(rated, name):
    plain, call = points(named(rated, "from 0")), NAMES[name]
    user, item = np.divmod(np.arange(USERS * ITEMS), ITEMS)
    expected = plain.predict((user, item))
    labels = [call(n) for n in user], [call(n) for n in item]
    shuffled = np.random.default_rng(1).permutation(len(rated[0]))
    fit = points(named(rated, name, shuffled))
    assert torch.equal(fit.predict(labels), expected)
    assert torch.equal(fit.predict(tuple(map(np.array, labels))), expected)
    assert torch.equal(fit.predict(tuple(map(pd.Series, labels))), expected)
    assert torch.equal(fit.predict(positions=(user, item)), expected)
    held = named(rated, name, shuffled[:30])
    assert torch.equal(fit.predict(held), expected.reshape(USERS, ITEMS)[held.user, held.item])
    some = ratings(*([call(n) for n in part] for part in ([3, 5], [1, 2])), [4.0, 2.0])  # with places of their own
    places = [3, 5], [1, 2]
    at = {(some.users[u], some.items[i]): p for u, i, p in zip(some.user, some.item, fit.predict(some), strict=True)}
    assert all(at[call(u), call(i)] == expected.reshape(USERS, ITEMS)[u, i] for u, i in zip(*places, strict=True))


@pytest.mark.parametrize("name", ["from 1", "with gaps", "names", "strings of digits"])
def test_positions_are_not_taken_for_labels(rated, name):
    data = named(rated, name)
    fit = points(data)
    hidden = data.chosen(slice(0, 10))
    with pytest.raises(DataError, match="a tensor of users, which holds positions.*positions="):
        fit.predict((hidden.user, hidden.item))
    with pytest.raises(DataError, match=r"axis 'user': 1 unknown users \(the first: 0\).*new='prior'"):
        fit.predict(([0], [data.items[0]]))
    with pytest.raises(DataError, match="or both"):
        fit.predict((data.users[:1], data.items[:1]), positions=([0], [0]))
    with pytest.raises(DataError, match="neither"):
        fit.predict()
    with pytest.raises(MethodError, match="expected None or 'prior'"):
        fit.predict(([0], [0]), new="yes")
    new = fit.predict((["nobody"], [data.items[2]]), new="prior", uncertainty=True)
    same = fit.predict(positions=([USERS], [2]), new="prior", uncertainty=True)
    assert torch.equal(new.mean, same.mean) and torch.equal(new.sd, same.sd)
    assert new.mean == fit.params["mean"] + fit.params["item_bias"][2]


def test_the_type_of_a_label_is_not_guessed(rated):
    fit = points(named(rated, "from 1"))
    with pytest.raises(DataError, match="the data have numbers such as 3, not strings such as '3'"):
        fit.predict((["3"], [1]))
    with pytest.raises(DataError, match="numbers"):
        fit.predict((["3"], [1]), new="prior")


@pytest.mark.parametrize("name", NAMES)
def test_held_out_ratings_have_the_same_score_whatever_they_are_called(rated, name):
    scores = []
    for one in ("from 0", name):
        held = held_entries.hold_out_ratings(named(rated, one), 0.2, 0)
        scores.append(held.score(points(held.train)))
    assert scores[0] == scores[1]


def test_suggestions_of_named_ratings_are_those_of_numbers(rated):
    found = [ci.suggest(named(rated, name), 1, **QUIET).table.loc["pmf", "gain"] for name in ("from 0", "names")]
    assert found[0] == pytest.approx(found[1]) and found[0] > 0.1


def test_items_of_new_users_are_known_by_their_labels(rated):
    fits = {name: points(named(rated, name)) for name in ("from 0", "names")}
    user, item, value = ["zoe"] * 8, list(range(8)), [5.0, 1, 4, 2, 3, 5, 1, 2]
    expected = fits["from 0"].predict((["zoe"], [2]), ratings=ratings(user, item, value))
    call = NAMES["names"]
    backwards = ratings(user, [call(n) for n in item[::-1]], value[::-1])
    assert torch.allclose(fits["names"].predict((["zoe"], [call(2)]), ratings=backwards), expected)
    with pytest.raises(DataError, match="8 unknown items .*'n0'"):  # as many items, none of the fit's
        fits["from 0"].predict((["zoe"], [2]), ratings=ratings(user, [call(n) for n in item], value))
    with pytest.raises(DataError, match="1 unknown items .*8"):
        fits["from 0"].predict((["zoe"], [2]), ratings=ratings(user, [n + 1 for n in item], value))
    theirs = ratings([call(n) for n in range(3)], ["new"] * 3, [1.0, 2.0, 3.0])
    assert len(fits["names"].predict(([call(4)], ["new"]), item_ratings=theirs)) == 1
    with pytest.raises(DataError, match="3 unknown users .*'n0'"):
        fits["from 0"].predict(([4], ["new"]), item_ratings=theirs)
    # a matrix with its items in another order
    wide = pd.DataFrame([value], index=["zoe"], columns=[call(n) for n in item])
    at = [fits["names"].predict((["zoe"], [call(2)]), ratings=one) for one in (wide, wide.iloc[:, ::-1], backwards)]
    assert torch.allclose(at[0], at[1]) and torch.allclose(at[0], at[2])


def test_models_are_made_of_frames_and_read_them_by_their_labels(rated):
    user, item, value = rated
    frame = pd.DataFrame({"userId": user + 1, "movieId": [f"m{n}" for n in item], "rating": value})
    model = PMF.for_data(frame, 1, adaptive=False)
    assert (model.num_users, model.num_items) == (len(set(user)), len(set(item)))
    fit = ci.EM(max_iterations=2).fit(model, frame, **QUIET)
    assert fit.data.users == sorted(set(user + 1)) and fit.data.items == list(dict.fromkeys(frame.movieId))
    with pytest.warns(DataWarning, match="without ratings"):
        few = ci.EM(max_iterations=2).fit(replace(model, num_users=USERS + 3), rated, **QUIET)
    assert few.data.num_users == USERS + 3 and not few.data.coords  # others are numbers
    clicks = frame.assign(rating=(value > 3).astype(float))
    assert ci.fit(BilinearPMF.for_data(clicks, 1), clicks, **QUIET).data.items == fit.data.items


def test_times_of_ratings_that_were_held_out_are_theirs(rated):
    data = ratings(*rated, time=np.linspace(0, 1, len(rated[0])), num_users=USERS, num_items=ITEMS)
    model = PMF(num_components=1, num_users=USERS, num_items=ITEMS, time_edges=(0.5,))
    fit = ci.fit(model, data, sweeps=3, **QUIET)
    some = data.chosen(slice(0, 20))
    assert torch.equal(fit.predict(some), fit.predict((some.user, some.item), time=some.time))


# ----- clicks, choices, relations, graphs ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_clicks_are_predicted_by_label(rated, name):
    user, item, value = rated
    call, fits = NAMES[name], []
    for one in ("from 0", name):
        data = named((user, item, (value > 3).astype(float)), one)
        fits.append(ci.fit(BilinearPMF.for_data(data, 1), data, **QUIET))
    expected = fits[0].predict((user, item))
    assert torch.equal(fits[1].predict(([call(n) for n in user], [call(n) for n in item])), expected)
    assert torch.equal(fits[1].predict(positions=(user, item)), expected)
    assert torch.equal(fits[1].predict(fits[1].data), expected)
    with pytest.raises(DataError, match="unknown users"):
        fits[1].predict((["nobody"], [call(0)]))
    some = fits[1].data.dense().x[:5]
    backwards = pd.DataFrame(some.numpy(), columns=list(fits[1].data.items)).iloc[:, ::-1]
    assert np.allclose(fits[1].transform(backwards), fits[0].transform(some))


@pytest.mark.parametrize("name", ["from 1", "names"])
def test_choices_are_predicted_by_label(name):
    rng = np.random.default_rng(0)
    user, shown = np.repeat(np.arange(6), 5), [list(rng.choice(4, 3, replace=False)) for _ in range(30)]
    log = impressions(user, shown, [one[0] for one in shown], num_users=6)
    label = [NAMES[name](n) for n in range(6)]
    log = replace(log, coords={"row": label})
    fit = ci.fit(ChoicePMF.for_data(log, 1), log, **QUIET)
    expected = fit.predict(positions=([2, 4], [[0, 1], [2, 3]]))
    assert torch.equal(fit.predict(([label[2], label[4]], [[0, 1], [2, 3]])), expected)
    with pytest.raises(DataError, match=r"unknown users \(the first: 0\)"):
        fit.predict(([0, label[4]], [[0, 1], [2, 3]]))


@pytest.mark.parametrize("name", NAMES)
def test_cells_are_predicted_by_label(name):
    x = np.kron(np.eye(2), np.ones((3, 3)))
    call = NAMES[name]
    label = [call(n) for n in range(6)]
    frame = pd.DataFrame([(label[i], label[j], x[i, j]) for i in range(6) for j in range(6)],
                         columns=["who_1", "who_2", "value"])  # fmt: skip
    shuffled = frame.sample(frac=1.0, random_state=0)
    directed: Any = {"symmetric": False, "self_loops": True}
    data = relations({"likes": shuffled}, {"likes": ("who", "who")}, labels={"who": label}, **directed)
    fit: Any = ci.fit(IRM.for_data(data), data, method="search", rounds=20, **QUIET)
    every = fit.predict("likes")
    assert every[x == 1].min() > 0.6 > 0.4 > every[x == 0].max()
    assert np.allclose(fit.predict(("likes", [label[1], label[5]], [label[2], label[0]])), every[[1, 5], [2, 0]])
    assert np.allclose(fit.predict("likes", positions=([1, 5], [2, 0])), every[[1, 5], [2, 0]])
    with pytest.raises(DataError, match="axis 'who': 1 unknown whos"):
        fit.predict(("likes", ["nobody"], [label[0]]))
    if name != "from 0":
        with pytest.raises(DataError, match="tensor of whos"):
            fit.predict(("likes", torch.tensor([1]), torch.tensor([2])))


@pytest.mark.parametrize("name", NAMES)
def test_links_are_predicted_by_name(name):
    club, call = np.kron(np.eye(2), np.ones((5, 5))) - np.eye(10), NAMES[name]
    label = [call(n) for n in range(10)]
    edges = [(label[i], label[j]) for i, j in np.argwhere(np.triu(club))]
    data = graph(edges[::-1], directed=False, nodes=label)
    fit = ci.fit(SBM.for_data(data, 2), data, **QUIET)
    i, j = np.array([0, 1, 7]), np.array([4, 8, 9])
    expected = link_probability(fit, positions=(i, j))
    assert expected[0] > 0.5 > expected[1] and expected[2] > 0.5
    assert torch.equal(link_probability(fit, [label[n] for n in i], [label[n] for n in j]), expected)
    held = HeldDyads(torch.as_tensor(i), torch.as_tensor(j), torch.zeros(3))
    assert torch.equal(link_probability(fit, held), expected)
    with pytest.raises(DataError, match="1 unknown nodes"):
        link_probability(fit, [label[0]], ["nobody"])
    with pytest.raises(DataError, match="or both"):
        link_probability(fit, [label[0]])
    if name != "from 0":
        with pytest.raises(DataError, match="tensor of nodes"):
            link_probability(fit, held.i, held.j)


# ----- columns of further rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [MixtureOfBernoullis, UserRatingProfile, LDA])
def test_columns_of_further_rows_are_known_by_their_labels(kind, name):
    rng, columns = np.random.default_rng(0), [NAMES[name](n) for n in range(5)]
    x = pd.DataFrame((rng.random((60, 5)) < [0.9, 0.1, 0.8, 0.2, 0.5]).astype(float), columns=columns)
    x.iloc[:, 0] = 1.0 - x.iloc[:, 1] * x.iloc[:, 4]  # no row is empty
    sizes = {"vocabulary_size": 5, "num_topics": 2} if kind is LDA else {"num_features": 5, "num_components": 2}
    sizes |= {"num_categories": 2} if kind is UserRatingProfile else {}
    fit = ci.fit(kind(**sizes), x, max_iterations=5, **QUIET)
    new = x.iloc[:9]
    expected = np.asarray(fit.transform(new.to_numpy()))
    backwards = new.iloc[:, ::-1]
    assert np.allclose(fit.transform(backwards), expected)
    if kind is LDA:  # words that a vocabulary does not have are left out, and said
        return
    hidden = rng.random((9, 5)) < 0.7
    masked = np.asarray(fit.transform(new, mask=hidden))
    assert np.allclose(fit.transform(backwards, mask=hidden[:, ::-1]), masked)
    labelled = pd.DataFrame(hidden, index=new.index, columns=columns)
    assert np.allclose(fit.transform(backwards, mask=labelled), masked)
    if name != "from 0":
        with pytest.raises(DataError, match="axis 'feature': 1 unknown features .*'z'"):
            fit.transform(new.rename(columns={columns[0]: "z"}))
        with pytest.raises(DataError, match="1 columns are missing"):
            fit.transform(new.iloc[:, 1:])


# ----- what is printed ----------------------------------------------------------------------------------------------


def test_data_print_as_a_few_lines():
    many = sample_ratings(300, 200, 2, density=0.2, seed=0).data
    called = replace(many, coords={"row": [f"u{n}" for n in range(300)], "feature": [f"i{n}" for n in range(200)]})
    text = str(called)
    assert f"{len(many.value)} of 200 items by 300 users" in text and "u0, u1" in text and "i0, i1" in text
    assert f"{float(many.value.min()):g} to {float(many.value.max()):g}" in text
    wide = ci.fit(MixtureOfBernoullis(num_components=1, num_features=50), np.eye(50).repeat(40, 0), **QUIET).data
    linked = graph([(f"n{n}", f"n{n + 1}") for n in range(500)], directed=True)
    cells = relations({"r": np.ones((90, 80))}, {"r": ("a", "b")})
    for shown in (text, repr(wide), repr(linked), repr(cells), repr(many.chosen(slice(0, 0)))):
        assert shown.count("\n") < 10 and len(shown) < 1000
