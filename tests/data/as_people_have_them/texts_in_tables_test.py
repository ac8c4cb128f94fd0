"""Documents in tables: the only column of text holds the texts; of several one is named."""

import pandas as pd
import pytest

from ppl_models import DataError, documents

TEXTS = ["the river bank of the town", "a bank and a loan", "the boat in the river at the bank"]
FRAME = pd.DataFrame({"text": TEXTS, "stars": [1, 2, 3], "name": list("xyz")})
COUNTS = documents(TEXTS)


@pytest.fixture(params=["frame", "csv", "parquet"])
def held(request, tmp_path):
    """A table as it is, and as a file of it."""

    def hold(frame):
        if request.param == "frame":
            return frame
        path = tmp_path / f"t.{request.param}"
        frame.to_csv(path, index=False) if request.param == "csv" else frame.to_parquet(path)
        return path

    return hold


def same(data, labels=None):
    assert data.feature_names == COUNTS.feature_names and data.coords.get("row") == labels
    assert data.dense().x.tolist() == COUNTS.dense().x.tolist()


def test_the_only_column_of_text_holds_the_texts(held):
    same(documents(held(FRAME[["text"]])))
    same(documents(held(FRAME[["name", "text"]])), list("xyz"))
    same(documents(held(FRAME), text="text"))
    same(documents(held(FRAME), text="text", id="name"), list("xyz"))


def test_missing_texts_are_empty(held):
    data = documents(held(pd.DataFrame({"n": list("ab"), "text": ["the river", None]})))
    assert data.dense().x.sum(1).tolist() == [2, 0]


def test_texts_among_other_columns_are_named(held):
    with pytest.raises(DataError, match=r"column 'text' holds text.*'the river.*text='text' \(--text text\)"):
        documents(held(FRAME[["stars", "text"]]))
    with pytest.raises(DataError, match=r"'text' holds texts \('the river.*beside columns of numbers.*--text text"):
        documents(held(FRAME[["text", "stars"]]))
    with pytest.raises(DataError, match="text= of list"):
        documents(TEXTS, text="text")


def test_labels_of_counts_are_texts_in_frames_as_in_files(held):
    data = documents(held(pd.DataFrame({"name": list("xyz"), "bank": [1, 0, 2], "loan": [0, 1, 1]})))
    assert data.coords == {"row": list("xyz"), "feature": ["bank", "loan"]}
