"""Answers as people have them: words, Categoricals, scales from 1 to 5, each question with its own number of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from custom_inference import CollapsedGibbs, Fit, fit
from custom_inference.faces.command_line.app import app
from custom_inference.faces.sklearn import MixtureOfCategoricalsEstimator
from ppl_models import CategoricalPCA, DataError, MixtureOfCategoricals, UserRatingProfile, answers
from ppl_models.core.errors import DataWarning

QUIET = {"progress": False}
AGREE = ["never", "sometimes", "always"]


def survey(rows=60):
    """Two kinds of people: a question of yes and no, one in an order of its own, and a scale from 1 to 4."""
    rng = np.random.default_rng(0)
    kind = rng.random(rows) < 0.5
    yes = np.where(rng.random(rows) < np.where(kind, 0.9, 0.2), "yes", "no")
    often = np.array(AGREE)[
        np.where(kind, rng.choice(3, rows, p=[0.1, 0.2, 0.7]), rng.choice(3, rows, p=[0.7, 0.2, 0.1]))
    ]
    scale = np.where(kind, rng.choice([3, 4], rows), rng.choice([1, 2], rows))
    table = pd.DataFrame({"smokes": yes, "often": pd.Categorical(often, AGREE, ordered=True), "scale": scale})
    table.loc[0, "smokes"] = None
    return table


def test_answers_are_numbered_in_their_order_and_keep_their_labels():
    data = answers(survey())
    assert data.coords["answers"] == [("no", "yes"), tuple(AGREE), (1, 2, 3, 4)]
    assert data.coords["feature"] == ["smokes", "often", "scale"] and data.mask is not None
    assert not bool(data.mask[0, 0]) and int((~data.mask).sum()) == 1
    assert data.x[:, 2].tolist() == (survey()["scale"] - 1).tolist()
    for kind in (MixtureOfCategoricals, UserRatingProfile, CategoricalPCA):
        model = kind.for_data(data, 2)
        assert model.num_categories == (2, 3, 4) and model.prepare(data).coords["answers"] == data.coords["answers"]
    with pytest.raises(DataError, match="no answer at all in column 'b'"):
        answers(pd.DataFrame({"a": ["x", "y"], "b": [None, None]}))
    with pytest.raises(DataError, match="1 dimensions"):
        answers(np.array(["a", "b"]))


def test_reports_name_the_answers_and_other_people_answer_in_the_same_words(tmp_path):
    table = survey()
    data = answers(table)
    found = fit(MixtureOfCategoricals.for_data(data, 2), data, **QUIET)
    text = found.report().to_string()
    assert "smokes = " in text and "scale = 4" in text and "scale = 0" not in text
    mean = np.asarray(found.transform(table))
    assert np.allclose(mean, found.transform(), atol=1e-6)
    again = Fit.load(found.save(tmp_path / "fit"))
    assert again.data.coords["answers"] == data.coords["answers"]
    assert np.allclose(np.asarray(again.transform(table[:5])), mean[:5], atol=1e-6)
    unknown = table.copy().astype({"often": object})
    unknown.loc[3, "often"] = "rarely"
    with pytest.raises(DataError, match="'often' .the first: 'rarely' in row 3.; expected one of 'never', 'sometimes'"):
        found.transform(unknown)


def test_words_are_read_without_a_door_too_and_categories_that_nobody_chose_count():
    table = survey()[["smokes", "often"]]
    model = MixtureOfCategoricals(num_components=2, num_features=2, num_categories=[2, 3])
    assert model.prepare(table).coords["answers"] == [("no", "yes"), tuple(AGREE)]
    assert model.prepare(table.to_numpy()).coords["answers"][0] == ("no", "yes")
    wide = table.assign(often=table["often"].cat.add_categories(["no idea"]))
    assert answers(wide).coords["answers"][1] == (*AGREE, "no idea")
    assert MixtureOfCategoricals.for_data(answers(wide), 2).num_categories == (2, 4)
    with pytest.raises(DataError, match="'often' has the 4 answers never, .*; expected at most num_categories = 3"):
        model.prepare(wide)


@pytest.mark.parametrize("kind", [MixtureOfCategoricals, UserRatingProfile, CategoricalPCA])
def test_an_answer_that_its_question_lacks_is_refused(kind):
    x = np.array([[0, 1], [1, 2], [0, 0]])
    model = kind(num_components=1, num_features=2, num_categories=[2, 3])
    model.prepare(x)
    with pytest.raises(DataError, match=r"the first: 2 in row 1, column 0, which has 2\); expected numbers 0 to 1"):
        model.prepare(x[:, ::-1])


def test_scales_from_one_are_told_of():
    x = np.random.default_rng(0).integers(1, 5, (40, 3))
    with pytest.warns(DataWarning, match="no feature has the answer 0.*ppl_models.answers"):
        fit(MixtureOfCategoricals(num_components=2, num_features=3, num_categories=5), x, **QUIET)
    data = answers(x)
    assert data.coords["answers"] == [(1, 2, 3, 4)] * 3 and MixtureOfCategoricals.for_data(data, 2).num_categories == 4
    found = fit(MixtureOfCategoricals.for_data(data, 2), data, **QUIET)
    for held in (x, torch.as_tensor(x), x.tolist()):  # every container holds the labels
        assert torch.equal(found.read(held).x, data.x.double())


def test_samplers_and_estimators_take_questions_of_unequal_numbers():
    table = survey()
    data = answers(table)
    model = MixtureOfCategoricals.for_data(data, 2)
    drawn = CollapsedGibbs(num_samples=3, warmup=3, chains=1).fit(model, data, **QUIET)
    assert drawn.draws is not None and float(drawn.draws["response"][..., 0, 2:].abs().max()) == 0
    estimator = MixtureOfCategoricalsEstimator(n_components=2).fit(table)
    assert estimator.fit_.model.num_categories == (2, 3, 4)
    assert estimator.transform(table[:4]).shape == (4, 2)
    with pytest.raises(DataError, match="'maybe' in row 0"):
        estimator.transform(table[:4].assign(smokes="maybe"))


def test_the_command_line_reads_words(tmp_path):
    survey().to_csv(tmp_path / "survey.csv", index=False)
    told = ["fit", "mixture_of_categoricals", str(tmp_path / "survey.csv"), "-k", "2", "--out", str(tmp_path / "out")]
    found = CliRunner().invoke(app, told)
    assert found.exit_code == 0, found.output
    columns = pd.read_csv(tmp_path / "out" / "loading.csv", index_col=0).columns
    assert list(columns) == [
        *("smokes = no", "smokes = yes"), *(f"often = {one}" for one in sorted(AGREE)),
        *(f"scale = {one}" for one in range(1, 5)),
    ]  # fmt: skip
