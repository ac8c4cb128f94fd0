"""Times as people have them: years, dates, words and Categoricals are the slices of a dynamic topic model."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from custom_inference import Fit, fit
from custom_inference.faces.command_line.app import app
from custom_inference.faces.sklearn import DTMEstimator
from ppl_models import DTM, DataError, as_documents
from ppl_models.data.times import slices_of

YEARS = np.repeat([2000, 2003, 2010], 10)
DATES = pd.to_datetime([f"{year}-06-01" for year in YEARS])
ORDERED = pd.Categorical(np.repeat(["late", "early", "middle"], 10), ["early", "middle", "late"], ordered=True)


def words():
    return np.random.default_rng(0).poisson(3.0, (30, 6)).astype(float)


@pytest.mark.parametrize(
    ("time", "labels"),
    [
        (YEARS, [2000, 2003, 2010]),
        (YEARS.astype(float)[::-1], [2000, 2003, 2010]),
        (pd.Series(DATES, index=range(5, 35)), ["2000-06-01", "2003-06-01", "2010-06-01"]),
        ([f"in {year}" for year in YEARS], ["in 2000", "in 2003", "in 2010"]),
        (ORDERED, ["early", "middle", "late"]),
        (pd.cut(YEARS, [1999, 2001, 2005, 2012]), ["(1999, 2001]", "(2001, 2005]", "(2005, 2012]"]),
        (pd.DataFrame({"year": YEARS}), [2000, 2003, 2010]),
        (pd.Series(DATES).dt.to_period("Y"), ["2000", "2003", "2010"]),
    ],
)
def test_slices_are_the_different_times_in_their_order(time, labels):
    slices, found = slices_of(time)
    assert found == labels and sorted(set(slices)) == [0, 1, 2]
    data = DTM(num_topics=2, vocabulary_size=6, num_times=3).prepare(words(), time=time)
    assert data.coords["time"] == labels and data.others["time"].tolist() == slices.tolist()
    again, same = slices_of(time, labels)
    assert again.tolist() == slices.tolist() and same == labels
    assert DTM.for_data(data, 2).num_times == 3


def test_times_of_other_documents_are_those_of_the_fit():
    model = DTM(num_topics=2, vocabulary_size=6, num_times=3)
    data = model.prepare(words(), time=pd.Categorical(YEARS))
    assert model.prepare_new(words()[:2], data, time=[2010, 2000]).others["time"].tolist() == [2, 0]
    with pytest.raises(DataError, match="'time'.*2004 of document 1.*expected one of 2000, 2003, 2010"):
        model.prepare_new(words()[:2], data, time=[2000, 2004])
    named = model.prepare(words(), time=ORDERED)
    assert model.prepare_new(words()[:1], named, time=["late"]).others["time"].tolist() == [2]


def test_empty_slices_are_there_where_they_are_asked_for():
    time = np.repeat([0, 1, 3], 10)
    wide = DTM(num_topics=2, vocabulary_size=6, num_times=5).prepare(words(), time=time)
    assert wide.others["time"].tolist() == time.tolist() and "time" not in wide.coords
    data = DTM(num_topics=2, vocabulary_size=6, num_times=3).prepare(words(), time=time)
    assert data.coords["time"] == [0, 1, 3]
    declared = pd.Categorical(time, range(5))
    assert DTM(num_topics=2, vocabulary_size=6, num_times=5).prepare(words(), time=declared).others["time"].max() == 3


def test_times_that_are_no_slices_say_how_they_become_some():
    moments = pd.to_datetime("2020-01-01") + pd.to_timedelta(np.arange(200), unit="h")
    with pytest.raises(DataError, match="200 different times of 200 documents; expected fewer slices, as pandas"):
        slices_of(moments)
    missing = pd.Series(DATES).mask(np.arange(30) == 4)
    with pytest.raises(DataError, match="1 times are missing .the first: of document 4"):
        slices_of(missing)


@pytest.mark.filterwarnings("ignore:DTMEstimator. stopped")
def test_fits_and_estimators_of_years_have_a_slice_a_year():
    data = as_documents(words())
    model = DTM(num_topics=2, vocabulary_size=6, num_times=3)
    found = fit(model, data, time=YEARS, max_iterations=3, progress=False)
    assert found.coords["time"] == [2000, 2003, 2010]
    logit = found.to_arviz().posterior["topic_logit"]  # an axis that is called as a site has "_id" there
    assert logit.coords["time_id"].values.tolist() == [2000, 2003, 2010]
    estimator = DTMEstimator(n_components=2, max_iter=3).fit(words(), time=YEARS)
    assert estimator.fit_.model.num_times == 3
    assert estimator.fit_.coords["time"] == [2000, 2003, 2010]


def test_the_command_line_counts_years(tmp_path):
    table = pd.DataFrame(words().astype(int), columns=list("abcdef")).assign(year=YEARS)
    table.to_csv(tmp_path / "words.csv", index=False)
    told = ["fit", "dtm", str(tmp_path / "words.csv"), "-k", "2", "--with", "time=year", "--out", str(tmp_path / "out")]
    found = CliRunner().invoke(app, [*told, "--set", "max_iterations=2"])
    assert found.exit_code == 0, found.output
    loading = pd.read_csv(tmp_path / "out" / "summary.csv", index_col=0)
    assert any("2003" in str(name) for name in loading.index)
    assert not any("2001" in str(name) for name in loading.index)


@pytest.mark.parametrize("time", [YEARS, ORDERED, DATES])
def test_years_come_back_from_a_file(time, tmp_path):
    model = DTM(num_topics=2, vocabulary_size=6, num_times=3)
    found = fit(model, words(), time=time, max_iterations=2, progress=False)
    found.save(tmp_path / "fit")
    read = Fit.load(tmp_path / "fit")
    assert read.coords == found.coords and read.coords["time"] != [0, 1, 2]
    last = [found.coords["time"][-1]]
    assert torch.equal(read.transform(words()[:1], time=last), found.transform(words()[:1], time=last))
