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
from ppl_models import DTM, DataError, DataWarning, as_documents
from ppl_models.data.times import numbers_of, slices_of

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


@pytest.mark.parametrize(
    "written",
    [
        ["Jan", "Feb", "Mar", "Apr", "May", "Sept", "Dec"],
        ["january", "FEBRUARY", "march"],
        ["Dec 2019", "Jan 2020", "Feb 2020"],
        ["2019-12", "2020-01", "2020-11"],
        ["Mon", "Tuesday", "wed", "Sun"],
        ["Q4 2019", "Q1 2020", "Q2 2020"],
        ["Q1", "Q2", "Q4"],
        ["900", "2009", "2010"],
        ["week 2", "week 10"],
        ["12/31/2019", "3/14/2020", "12/1/2020"],
        ["14/3/2020", "1/12/2020"],
        ["14.3.2020", "1.12.2020"],
        ["March 3, 2020", "14 Dec 2020"],
        ["2020-03-14T10:00+01:00", "2020-03-14T09:30+00:00"],
    ],
)
def test_texts_are_in_the_order_of_time(written):
    slices, labels = slices_of(written[::-1])
    assert labels == written and slices.tolist() == list(range(len(written)))[::-1]
    assert slices_of(pd.Series(written, dtype=object).repeat(2))[1] == written
    assert slices_of(pd.Categorical(written, written[::-1], ordered=True))[1] == written[::-1]
    assert slices_of(pd.Categorical(written[:1], sorted(written)), written) == ([0.0], written)


def test_one_time_written_in_two_ways_is_one_slice():
    assert slices_of(["Jan", "feb", "January"]) == (pytest.approx([0, 1, 0]), ["Jan", "feb"])
    assert slices_of(["january"], ["Jan", "Feb"])[0].tolist() == [0]
    assert slices_of(pd.to_datetime(["2021-03-14"]), ["12/31/2020", "3/14/2021"])[0].tolist() == [1]
    assert slices_of([2010], ["2009", "2010"])[0].tolist() == [1]


@pytest.mark.parametrize(
    ("time", "message"),
    [
        (["before", "after"], "the times 'after', 'before' are ordered by letters; pandas.Categorical"),
        (pd.Categorical(["Jan", "Feb"]), "the times 'Feb', 'Jan' are ordered by letters"),
        (["01/02/2020", "03/01/2019"], "'01/02/2020' are read as month, day and year; .*dayfirst=True"),
        (["Jan-20", "Feb-20"], "the times 'Feb-20', 'Jan-20' are ordered by letters"),
    ],
)
def test_what_nobody_can_tell_is_said(time, message):
    with pytest.warns(DataWarning, match=message):
        slices_of(time)


def test_days_and_months_that_contradict_each_other_are_refused():
    with pytest.raises(DataError, match="'13/2/2020', whose day is first, and '2/13/2020', whose month is"):
        slices_of(["13/2/2020", "2/13/2020"])


@pytest.mark.filterwarnings("ignore:DTM. stopped")
def test_slices_of_a_fit_are_months_in_their_order():
    months = ["Jan", "Feb", "Mar"]
    found = fit(DTM(num_topics=2), words(), time=np.repeat(months, 10), max_iterations=2, progress=False)
    assert found.to_arviz().posterior.coords["time_id"].values.tolist() == months
    asked = [found.transform(words()[:1], time=time) for time in (["Mar"], pd.Categorical(["Mar"]), ["march"])]
    assert torch.equal(asked[0], asked[1]) and torch.equal(asked[0], asked[2])


@pytest.mark.parametrize(
    ("time", "numbers"),
    [
        (["2010", "881250949"], [2010.0, 881250949.0]),
        (["1970-01-03", "1970-01-02T12:00"], [2.0, 1.5]),
        (["1/3/1970", "1/13/1970"], [2.0, 12.0]),
        (["Feb 1970"], [31.0]),
        (pd.to_datetime(["1970-01-02 00:00:00.000864"]), [1.00000001]),
        (pd.Series(pd.to_datetime(["1970-01-02 01:00+01:00"])), [1.0]),
        (pd.Series([5, 7], dtype="Int64"), [5.0, 7.0]),
        ([None, "1970-01-02"], [np.nan, 1.0]),
    ],
)
def test_times_as_numbers(time, numbers):
    assert numbers_of(time).tolist() == pytest.approx(numbers, rel=1e-15, nan_ok=True)
