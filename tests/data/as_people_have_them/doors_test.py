"""``for_data`` of every model takes what people hold its data in."""

import warnings

import numpy as np
import pandas as pd
import pytest

from ppl_models import MODELS, Data, DataWarning, GraphData, Ratings, Relations, Sequences
from ppl_models.core.answer_models import AnswerModel


def as_held(data):
    """The data of an example as a frame, or as lists where a frame cannot hold them."""
    if isinstance(data, GraphData):
        return data.to_networkx()
    if isinstance(data, Ratings):
        return pd.DataFrame({"user": data.user.tolist(), "item": data.item.tolist(), "rating": data.value.tolist()})
    if isinstance(data, Relations | Sequences) or data.x.ndim != 2:
        return data if not isinstance(data, Data) or data.x.ndim == 2 else np.asarray(data.x)
    x = data.dense().x.numpy().astype(float)
    return pd.DataFrame(x if data.mask is None else np.where(data.mask.numpy(), x, np.nan))


@pytest.mark.parametrize("name", list(MODELS))
def test_a_frame_makes_the_model_that_its_data_make(name):
    kind = MODELS[name]
    data = kind.example().data
    with warnings.catch_warnings(action="ignore", category=DataWarning):
        bare = data if isinstance(data, GraphData | Ratings | Relations | Sequences) else Data(x=data.x, mask=data.mask)
        try:
            expected = kind.for_data(bare, 2)
        except ValueError as error:
            with pytest.raises(type(error)):
                kind.for_data(as_held(data), 2)
            return
        assert kind.for_data(as_held(data), 2).settings() == expected.settings()


def test_the_first_column_of_names_is_no_data():
    frame = pd.DataFrame([[1.0, 0.0], [0.0, 1.0]], index=["ann", "bob"], columns=["x", "y"])
    assert MODELS["noca"].for_data(frame, 1).num_features == 2
    assert MODELS["lda"].for_data(["the river bank", "the bank"], 2).vocabulary_size == 3
    assert MODELS["sbm"].for_data(pd.DataFrame({"from": ["a", "b"], "to": ["b", "c"]}), 2).num_nodes == 3


@pytest.mark.parametrize("name", [name for name, kind in MODELS.items() if issubclass(kind, AnswerModel)])
def test_answers_in_words_make_a_model_of_as_many_as_each_question_has(name):
    levels = pd.Categorical(["no", "yes", "no", "yes"], ["no", "perhaps", "yes"])
    frame = pd.DataFrame({"a": levels, "b": ["x", "y", "y", "x"]})
    model = MODELS[name].for_data(frame, 1)
    assert model.num_features == 2 and tuple(model.categories) == (3, 2)
    assert model.prepare(frame).coords["answers"] == [("no", "perhaps", "yes"), ("x", "y")]
