"""Labels and classes of documents by their names: lists of them, tables with names, one word a document."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.preprocessing import MultiLabelBinarizer

from custom_inference import Fit, fit
from custom_inference.faces.sklearn import (
    DiscriminativeLDAEstimator,
    LabeledLDAEstimator,
    PartiallyLabeledLDAEstimator,
    SupervisedLDAEstimator,
)
from ppl_models import (
    DataError,
    DataWarning,
    DiscriminativeLDA,
    LabeledLDA,
    MethodError,
    PartiallyLabeledLDA,
    SupervisedLDA,
)
from ppl_models.data.names import encode_classes, encode_labels

QUIET = {"progress": False}
NAMES = ["art", "law", "war"]
SETS = [["art"], ["law"], ["war"], ["art", "war"], [], ["law", "art"]]
SMALL = {"num_topics": 3, "vocabulary_size": 12}


def labelled(documents=36):
    """Counts of words by the topics of the labels, and the labels."""
    rng = np.random.default_rng(0)
    topics, labels = rng.dirichlet(np.full(12, 0.2), 3) + 0.005, [SETS[n % 6] for n in range(documents)]
    topics /= topics.sum(1, keepdims=True)
    own = np.array([[name in one or not one for name in NAMES] for one in labels], dtype=float)
    share = own * rng.gamma(1.0, size=own.shape)
    share /= share.sum(1, keepdims=True)
    return np.stack([rng.multinomial(25, p @ topics) for p in share]), labels, share


def table_of(labels, names=NAMES):
    return pd.DataFrame([[int(name in one) for name in names] for one in labels], columns=names)


MODELS = (LabeledLDA(**SMALL, num_labels=3), PartiallyLabeledLDA(num_topics=7, vocabulary_size=12, num_labels=3))


@pytest.mark.parametrize("model", MODELS)
def test_names_are_what_their_indicators_are(model):
    x, labels, _ = labelled()
    known, indicators = fit(model, x, labels=labels, **QUIET), table_of(labels)
    numbers = fit(model, x, labels=indicators.to_numpy(float), **QUIET)
    torch.testing.assert_close(known.params["topic"], numbers.params["topic"])
    assert known.data.coords["label"] == NAMES and "label" not in numbers.data.coords
    torch.testing.assert_close(known.predict(x[:4]), numbers.predict(x[:4]))
    chance = known.predict(x[:4])
    assert known.predict(x[:4], names=True) == [
        [n for n, p in zip(NAMES, row, strict=True) if p > 0.5] for row in chance
    ]
    with pytest.raises(MethodError, match="had no names"):
        numbers.predict(x[:4], names=True)


def test_tables_with_names_keep_their_columns_and_their_order():
    x, labels, _ = labelled()
    binarizer = MultiLabelBinarizer()
    table = pd.DataFrame(binarizer.fit_transform(labels), columns=binarizer.classes_)
    model = LabeledLDA(**SMALL, num_labels=3)
    found = fit(model, x, labels=table[["war", "law", "art"]], **QUIET)
    assert found.data.coords["label"] == ["war", "law", "art"]
    some = table.iloc[:5]  # in another order, by their names
    torch.testing.assert_close(found.transform(x[:5], labels=some), found.transform(x[:5], labels=labels[:5]))
    shuffled = pd.DataFrame(x, index=[f"d{n}" for n in range(len(x))])
    rows = table.set_axis(shuffled.index).iloc[::-1]  # rows by their labels
    again = fit(model, shuffled, labels=rows[["war", "law", "art"]], **QUIET)
    torch.testing.assert_close(again.data.others["labels"], found.data.others["labels"])


def test_unknown_labels_are_errors():
    x, labels, _ = labelled()
    found = fit(LabeledLDA(**SMALL, num_labels=3), x, labels=labels, **QUIET)
    with pytest.raises(DataError, match=r"'labels'.*unknown \(the first: 'peace'\).*'art', 'law', 'war'"):
        found.transform(x[:2], labels=[["peace"], ["art"]])
    with pytest.raises(DataError, match="the first: 0"):
        found.transform(x[:2], labels=[0, 1])
    with pytest.raises(DataError, match="1 columns are missing"):
        found.transform(x[:2], labels=table_of(labels).iloc[:2, :2])
    with pytest.raises(DataError, match=r"3 different ones \(art, law, war\).*num_labels = 2"):
        fit(LabeledLDA(**SMALL, num_labels=2), x, labels=labels, **QUIET)
    same = found.transform(x[:2], labels=torch.tensor([0, 1]))  # positions
    torch.testing.assert_close(same, found.transform(x[:2], labels=["art", "law"]))


def test_saved_fits_and_arviz_have_the_names(tmp_path):
    x, labels, share = labelled()
    found = fit(LabeledLDA(**SMALL, num_labels=3), x, labels=labels, **QUIET)
    again = Fit.load(found.save(tmp_path / "fit.safetensors"))
    assert again.predict(x[:3], names=True) == found.predict(x[:3], names=True)
    given = found.to_arviz(num_draws=2, num_copies=0).constant_data
    assert given["label"].values.tolist() == NAMES
    y = np.array(NAMES)[share.argmax(1)]
    classes = fit(SupervisedLDA(**SMALL, response="categorical", num_classes=3), x, response=y, **QUIET)
    weight = classes.to_arviz(num_draws=2, num_copies=0).posterior["response_weight"]
    assert weight["class"].values.tolist() == NAMES
    assert Fit.load(classes.save(tmp_path / "classes.safetensors")).data.coords["class"] == NAMES


def test_responses_are_predicted_by_their_names(tmp_path):
    x, _, share = labelled()
    y = np.where(share[:, 0] > 0.4, "good", "bad").astype(object)
    y[3] = None
    found = fit(SupervisedLDA(**SMALL), x, response=y.tolist(), **QUIET)
    assert found.data.coords["class"] == ["bad", "good"]
    assert found.data.others["response"].isnan().sum() == 1
    named = found.predict(x, names=True)
    assert named.tolist() == ["good" if p > 0.5 else "bad" for p in found.predict(x)]
    assert (named == y).mean() > 0.8
    assert Fit.load(found.save(tmp_path / "fit.safetensors")).predict(x, names=True).tolist() == named.tolist()
    ordered = fit(SupervisedLDA(**SMALL), x, response=pd.Categorical(y, ["good", "bad"]), **QUIET)
    assert ordered.data.coords["class"] == ["good", "bad"]
    with pytest.raises(DataError, match=r"3 classes \(art, law, war\); expected two"):
        fit(SupervisedLDA(**SMALL), x, response=np.array(NAMES)[share.argmax(1)], **QUIET)
    with pytest.raises(MethodError, match="no names"):
        fit(SupervisedLDA(**SMALL), x, response=(share[:, 0] > 0.4).astype(float), **QUIET).predict(x, names=True)


def test_classes_are_predicted_by_their_names():
    x, _, share = labelled()
    y = np.array(NAMES)[share.argmax(1)]
    found = fit(DiscriminativeLDA(**SMALL, num_classes=3), x, labels=y, **QUIET)
    assert found.predict(x, names=True).tolist() == np.array(NAMES)[found.predict(x).argmax(1)].tolist()


def test_estimators_take_and_predict_names():
    x, labels, share = labelled()
    y = np.array(NAMES)[share.argmax(1)]
    for made in (LabeledLDAEstimator(4, random_state=0), PartiallyLabeledLDAEstimator(7, random_state=0)):
        by_name = made.fit(x, labels=labels)
        assert by_name.classes_.tolist() == NAMES and by_name.predict_proba(x[:3]).shape == (3, 3)
        assert by_name.predict(x[:3]) == by_name.fit_.predict(x[:3], names=True)
        assert np.allclose(made.fit(x, table_of(labels)).components_, by_name.components_)
    with pytest.warns(DataWarning, match="documents without labels"):
        assert not hasattr(LabeledLDAEstimator(4).fit(x), "predict")
    several = SupervisedLDAEstimator(3, response="categorical", random_state=0).fit(x, y)
    assert several.predict(x).tolist() == several.fit_.predict(x, names=True).tolist()
    single = DiscriminativeLDAEstimator(3, random_state=0).fit(x, y)
    assert single.predict(x[:9]).tolist() == single.fit_.predict(x[:9], names=True).tolist()


def test_what_is_read_as_names():
    assert encode_classes(np.array([0.0, 1.0]), None)[1] is None
    values, names = encode_classes(["b", None, "a", float("nan")], None)
    assert names == ["a", "b"] and np.array_equal(values, [1, np.nan, 0, np.nan], equal_nan=True)
    for numbers in ([0, 1, 1], np.eye(3), [[1, 0], [0, 1]], torch.eye(2), pd.DataFrame(np.eye(2)), pd.Series([0, 1])):
        given, names = encode_labels(numbers, 2, None)
        assert given is numbers and names is None
    for words in (["a", "b"], [["a"], ["b"]], [{"a"}, ("b",)], np.array([["a"], ["b"]]), pd.Series([["a"], ["b"]])):
        table, names = encode_labels(words, 2, None)
        assert names == ["a", "b"] and np.array_equal(table, np.eye(2))
    table, names = encode_labels([[0, 2], [1], None], 3, None)  # numbers, several of a row
    assert names is None and np.array_equal(table, [[1, 0, 1], [0, 1, 0], [0, 0, 0]])
    with pytest.raises(DataError, match="two labels called 'a'"):
        encode_labels(pd.DataFrame(np.eye(2), columns=["a", "a"]), 2, None)
    with pytest.raises(DataError, match="a table of 2 columns of words"):
        encode_labels(pd.DataFrame([["a", "b"]]), 2, None)
