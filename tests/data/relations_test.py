"""Relations from whatever people hold them in."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

from ppl_models import IRM, DataError, relations

AXES = {"likes": ("person", "film")}
X = np.array([[1.0, 0.0, np.nan], [0.0, 1.0, 1.0]])


def test_all_forms_are_the_same_relation():
    frame = pd.DataFrame(X, index=["ann", "bob"], columns=["Heat", "Up", "Coco"])
    rows = [(a, f, X[i, j]) for i, a in enumerate(frame.index) for j, f in enumerate(frame.columns)]
    long = pd.DataFrame(rows, columns=["person", "film", "value"])
    pair = np.argwhere(~np.isnan(X)), X[~np.isnan(X)]
    for source in (X, torch.as_tensor(X), frame, long, X.tolist(), pair):
        data = relations({"likes": source}, AXES, dtype=torch.float64)
        assert data.types == {"person": 2, "film": 3} and data.relations == AXES
        assert np.array_equal(data.array("likes"), X, equal_nan=True)
    assert relations({"likes": long}).coords == {"person": ["ann", "bob"], "film": ["Heat", "Up", "Coco"]}
    stored = relations({"likes": scipy.sparse.csr_matrix(np.nan_to_num(X))}, AXES)
    assert np.array_equal(stored.array("likes"), np.nan_to_num(X)) and len(stored) == 3


def test_one_long_table_of_several_relations(tmp_path):
    table = pd.DataFrame(
        [("likes", "ann", None, "Up"), ("likes", "bob", None, "Heat"), ("knows", "bob", "cid", None)],
        columns=["relation", "person_1", "person_2", "film"],
    )
    table.to_csv(tmp_path / "table.csv", index=False)
    for source in (table, tmp_path / "table.csv"):
        data = relations(source)
        assert data.relations == {"likes": ("person", "film"), "knows": ("person", "person")}
        assert data.names("person") == ["ann", "bob", "cid"] and np.nansum(data.array("knows")) == 1
        assert not np.isnan(data.array("likes")).any(), "without values what is not listed is 0"
    valued = relations(table.assign(value=1.0))
    assert np.isnan(valued.array("likes")).sum() == 4, "with values it is missing"
    assert not np.isnan(relations(table.assign(value=1.0), unlisted="zero").array("likes")).any()


def test_labels_and_sizes_that_are_known():
    frame = pd.DataFrame({"person": ["bob"], "film": ["Up"]})
    data = relations({"likes": frame}, labels={"person": ["ann", "bob"], "film": ["Up", "Heat"]})
    assert np.array_equal(data.array("likes"), [[0, 0], [1, 0]])
    axes, known = AXES | {"knows": ("person", "who")}, frame.rename(columns={"film": "other"})
    both = relations({"likes": X, "knows": known}, axes, labels={"person": ["ann", "bob"]})
    assert both.types["person"] == 2 and np.array_equal(both.array("knows"), [[0], [1]])
    with pytest.raises(DataError, match="unknown person"):
        relations({"likes": frame}, labels={"person": ["ann"]})


def test_models_take_relations_in_any_order():
    y = np.array([0.0, 1.0])
    data = relations({"flag": y, "likes": X}, AXES | {"flag": ("person",)})
    model = IRM(types={"film": 3, "person": 2}, relations=AXES | {"flag": ("person",)})
    made = model.prepare(data)
    assert list(made.relations) == ["likes", "flag"] and np.array_equal(made.array("flag"), y)
    assert np.array_equal(made.array("likes"), X, equal_nan=True)
    hidden = made.without("likes", torch.tensor([True] * len(made.of(0))))
    assert np.isnan(hidden.array("likes")).sum() == len(made.of(0))
    with pytest.raises(DataError, match="as the model has it"):
        IRM(types={"film": 4, "person": 2}, relations=AXES).prepare(relations({"likes": X}, AXES))


@pytest.mark.parametrize(
    ("frame", "name", "types", "cells"),
    [
        (
            pd.DataFrame({"person": ["a", "b"], "film": ["x", "y"], "likes": [1, 0]}),
            "likes",
            ("person", "film"),
            [1, 0],
        ),
        (pd.DataFrame({"from": ["a", "b"], "to": ["b", "c"]}), "related", ("entity", "entity"), [1, 1]),
        (pd.DataFrame({"person": ["a"], "film": ["x"], "value": [2.5]}), "related", ("person", "film"), [2.5]),
        (pd.DataFrame({"who_1": ["a"], "who_2": ["b"]}), "related", ("who", "who"), [1]),
    ],
)
def test_a_table_of_one_relation_is_called_what_its_values_are(frame, name, types, cells):
    """As people have them: no column says which relation; columns that share entities hold one type."""
    data = relations(frame)
    assert data.relations == {name: types}
    assert data.x[:, -1].tolist() == cells
    IRM.for_data(data)  # takes these names
