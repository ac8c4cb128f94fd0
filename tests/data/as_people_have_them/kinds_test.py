"""What tables, matrices and files that come without a word about them are taken for, and what is said of it."""

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

import custom_inference as ci
from custom_inference.checks.kinds import kind_of_file
from custom_inference.checks.read_as import otherwise, recognise
from custom_inference.checks.suggest import kinds_read_by
from ppl_models import Data, DataError, DataWarning, FileFormatError, GraphData, MethodError, Ratings, answers
from ppl_models.data.answers import ANSWERS

RNG = np.random.default_rng(0)
GROUP = RNG.integers(0, 2, 60)
SURVEY = pd.DataFrame(
    {
        "smokes": np.where(RNG.random(60) < np.where(GROUP, 0.9, 0.2), "yes", "no"),
        "health": np.clip(np.round(RNG.normal(2 + 2 * GROUP, 0.7)), 1, 5).astype(int),
        "trust": RNG.choice(["agree", "don't know", "disagree"], 60),
    }
)
LIKERT = pd.DataFrame({f"q{j}": np.clip(np.round(RNG.normal(2 + 2 * GROUP, 0.8)), 1, 5).astype(int) for j in range(5)})
STARS = pd.DataFrame(
    np.where(RNG.random((20, 8)) < 0.5, RNG.integers(1, 6, (20, 8)), np.nan),
    [f"user {n}" for n in range(20)], [f"film {n}" for n in range(8)],
)  # fmt: skip
KARATE = nx.to_numpy_array(nx.karate_club_graph(), weight=None)
COUNTS = RNG.poisson(1.5, (40, 3))


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("categories", answers(SURVEY)),
        ("categories", SURVEY),
        ("categories", SURVEY.to_numpy()),
        ("categories", SURVEY.to_numpy().tolist()),
        ("categories", SURVEY.assign(who=[f"r{n}" for n in range(60)])[["who", *SURVEY]]),
        ("categories", SURVEY.assign(trust=SURVEY["trust"].where(RNG.random(60) < 0.9))),
        ("categories", SURVEY[["smokes"] * 3].replace({"yes": "Y", "no": "N"}).set_axis(list("abc"), axis=1)),
        ("categories", LIKERT),
        ("categories", LIKERT.to_numpy(np.float64)),
        ("categories", LIKERT.assign(q0=np.where(LIKERT["q0"] > 3, 2, 1))),
        ("categories", LIKERT.assign(id=range(1, 61))),
        ("categories", LIKERT.where(RNG.random(LIKERT.shape) < 0.9)),
        ("counts", LIKERT - 1),
        ("counts", COUNTS),
        ("counts", COUNTS + 20),
        ("ratings", STARS),
        ("ratings", STARS / 2),
        ("ratings", STARS.to_numpy()),
        ("real", STARS + 0.3),
        ("binary", (LIKERT > 3).astype(float).where(RNG.random(LIKERT.shape) < 0.5)),
        ("graph", KARATE),
        ("graph", scipy.sparse.csr_matrix(KARATE)),
        ("binary", KARATE + np.eye(34)),
        ("binary", np.triu(KARATE)),
        ("binary", KARATE[:20]),
    ],
)
def test_what_data_without_a_word_are_taken_for(kind, data):
    found, read, _ = recognise(data, None)
    assert found == kind and isinstance(read, {"graph": GraphData, "ratings": Ratings}.get(kind, Data))
    if kind == "categories":  # numbered from 0, whatever they were
        labels, x = read.coords[ANSWERS], read.x if read.mask is None else read.x.masked_fill(~read.mask, -1)
        assert [int(one.max()) + 1 for one in x.T] == [len(one) for one in labels]


def test_labels_go_with_the_data_and_the_guess_is_said_with_its_alternatives():
    _, rated, look = recognise(STARS, None)
    assert rated.num_ratings == int(STARS.notna().sum().sum()) and rated.items == list(STARS.columns)
    assert "kind='counts' (--kind counts)" in otherwise(look)[0]
    _, read, look = recognise(LIKERT, None)
    assert torch.equal(read.x, torch.as_tensor(LIKERT.to_numpy() - 1).to(read.x)) and "no 0" in otherwise(look)[0]
    _, few, look = recognise(STARS.where(STARS.notna(), 3).where(RNG.random(STARS.shape) < 0.88), None)
    assert "--kind ratings" in otherwise(look)[0] and few.coords[ANSWERS]
    _, graph, look = recognise(pd.DataFrame(KARATE), None)
    assert graph.num_edges == 78 and not graph.directed and "--kind binary" in otherwise(look)[0]
    assert "--kind graph" in otherwise(recognise(np.triu(KARATE), None)[2])[0]


@pytest.mark.parametrize(("kind", "data", "x"), [("counts", LIKERT, LIKERT), ("binary", KARATE, KARATE)])
def test_what_is_said_is_believed(kind, data, x):
    found, read, look = recognise(data, kind)
    assert found == kind and look is None and np.array_equal(read.x.numpy(), np.asarray(x, np.float64))


def test_models_that_are_named_settle_what_may_be_several():
    assert recognise(LIKERT, None, kinds_read_by(["mixture_of_poissons"]))[0] == "counts"
    with pytest.warns(DataWarning, match="on one side of its diagonal"):
        assert recognise(np.triu(KARATE), None, kinds_read_by(["sbm"]))[0] == "graph"
    pairs = pd.DataFrame(np.argwhere(np.triu(KARATE)), columns=["left", "right"])
    with pytest.warns(DataWarning, match="none of the 78 edges has its reverse.*directed"):
        assert recognise(pairs, None, kinds_read_by(["sbm"]))[0] == "graph"
    with pytest.raises(DataError, match="--kind graph"):
        recognise(pairs, None)
    with pytest.raises(MethodError, match="--kind counts"):
        ci.suggest(LIKERT, 2, models=["lda"], progress=False)


def test_a_survey_in_words_is_compared_with_its_labels():
    found = ci.suggest(SURVEY, 2, models=["mixture_of_categoricals"], progress=False)
    same = ci.suggest(answers(SURVEY), 2, models=["mixture_of_categoricals"], progress=False)
    assert found.kind == same.kind == "categories" and found.table["score"].equals(same.table["score"])
    assert found.fit(progress=False).model.categories == (2, 5, 3)
    with pytest.raises(DataError, match="--text"):
        recognise(SURVEY.assign(text=[f"a text of {n} words" for n in range(60)]), None)


@pytest.mark.parametrize("words", [["1,024", "2,000"], ["1,5", "2,5"]])
def test_numbers_with_commas_are_no_answers(words):
    table = pd.DataFrame({"milk": words * 10, "oil": words * 10, "tea": words * 10})
    with pytest.raises(DataError, match="column 'oil' holds text"):
        recognise(table, None)


def test_edges_with_weights_are_compared_by_models_of_counts():
    karate = nx.karate_club_graph()
    found = ci.suggest(karate, 2, models=["poisson_sbm"], progress=False)
    assert list(found.table.index) == ["poisson_sbm"] and "graph(source, weight=False)" in repr(found)
    with pytest.raises(MethodError, match="leaves the weights out"):
        ci.suggest(karate, 2, models=["sbm"], progress=False)
    nx.set_edge_attributes(karate, 0.5, "weight")
    with pytest.raises(DataError, match="IRM"):
        ci.suggest(karate, 2, progress=False)


@pytest.mark.parametrize("name", ["a.mtx", "a.svm", "a.json", "a.net", "a.npy", "a.feather"])
def test_endings_that_are_no_texts_are_refused_by_name(tmp_path, name):
    (tmp_path / name).write_bytes(b"%%MatrixMarket\n1 2 3\n\x93\xff")
    with pytest.raises(FileFormatError, match=r"unknown ending '\.\w+'; readable: \.csv"):
        recognise(tmp_path / name, None)


@pytest.mark.parametrize(("header", "told"), [("user,item", "--kind graph"), ("user,item,click", "--columns")])
def test_users_and_items_without_ratings(tmp_path, header, told):
    cells = [[f"u{n % 7}", f"i{n % 5}", str(n % 2)][: header.count(",") + 1] for n in range(30)]
    (tmp_path / "c.csv").write_text("\n".join([header, *map(",".join, cells)]))
    with pytest.raises(DataError, match=told):
        recognise(tmp_path / "c.csv", None)


def test_columns_of_answers_that_are_none():
    with pytest.warns(DataWarning, match="column 'id' is probably no question"):
        ci.suggest(LIKERT.assign(id=range(100, 160)), 2, models=["mixture_of_categoricals"], progress=False)
    ticks = SURVEY.assign(ticked=np.where(GROUP, "x", None))
    with pytest.warns(DataWarning) as caught:
        fit = ci.suggest(ticks, 2, models=["mixture_of_categoricals"], progress=False).fit(progress=False)
    assert any("'ticked', 'x' in" in str(one.message) for one in caught)
    assert "ticked = 1" not in fit.report(top=20).to_string()  # which nobody answered


@pytest.mark.parametrize("data", [True, ["weight"], False])
def test_the_edge_lists_of_networkx_are_graphs(data, tmp_path):
    nx.write_edgelist(nx.karate_club_graph(), tmp_path / "karate.txt", data=data)
    assert kind_of_file(tmp_path / "karate.txt", among=() if data is True else ("graph",)) == "graph"
