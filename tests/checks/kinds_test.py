"""What tables, lists and files are taken for, by their header and content; refused where they may be either."""

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

import custom_inference as ci
from custom_inference.checks import held_entries, suggest
from custom_inference.checks.kinds import kind_of, kind_of_file
from custom_inference.checks.read_as import recognise
from ppl_models import DataError, DataWarning, GraphData, Ratings, documents

KARATE = [(int(a), int(b)) for a, b in nx.karate_club_graph().edges()]
NAMED = [(f"n{a}", f"n{b}") for a, b in KARATE]
RATED = [(u, i, 1 + (u * i) % 5, 881250949 + u) for u in range(1, 9) for i in range(1, 9) if (u + i) % 3]
COUNTS = np.random.default_rng(0).poisson(1.5, (60, 3))


def text(rows, between):
    return "".join(between.join(map(str, row)) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("e.csv", "source,target\n" + text(KARATE, ","), "graph"),
        ("e.csv", "from,to\n" + text(NAMED, ","), "graph"),
        ("e.csv", text(NAMED, ","), "graph"),
        ("e.csv", text(KARATE, ","), "graph"),
        ("e.tsv", text(NAMED, "\t"), "graph"),
        ("e.txt", text(NAMED, " "), "graph"),
        ("e.txt", text(KARATE, " "), "graph"),
        ("e.txt", "# nodes: 34\n# from to\n" + text(KARATE, "\t"), "graph"),
        ("e.edges", text(KARATE, " "), "graph"),
        ("u.data", text(RATED, "\t"), "ratings"),
        ("ratings.dat", text(RATED, "::"), "ratings"),
        ("r.csv", "userId,movieId,rating\n" + text([row[:3] for row in RATED], ","), "ratings"),
        ("r.csv", text([(f"u{u}", f"i{i}", v) for u, i, v, _ in RATED], ","), "ratings"),
        ("m.csv", "a,b,c\n" + text(COUNTS, ","), None),
        ("m.csv", "name,a,b,c\n" + text([(f"r{n}", *row) for n, row in enumerate(COUNTS)], ","), None),
        ("adjacency.csv", ",a,b,c\na,0,1,0\nb,1,0,1\nc,0,1,0\n", "graph"),
        ("t.txt", "the river rose\nit rained\nthe bank closed its doors today\n" * 3, "documents"),
        ("c.ldac", "2 0:1 1:2\n1 1:3\n", "documents"),
        ("ap.dat", "2 0:1 1:2\n1 1:3\n", "documents"),
    ],
)
@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
def test_what_files_are_taken_for(tmp_path, name, content, kind):
    (tmp_path / name).write_text(content)
    assert kind_of_file(tmp_path / name) == kind


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("p.csv", "left,right\n" + text(KARATE, ","), ["graph", "counts"]),
        ("p.txt", text([(f"a{n}", f"b{n % 7}") for n in range(20)], " "), ["graph", "documents"]),
        ("w.csv", text([(a, b, 2) for a, b in KARATE], ","), ["ratings", "graph", "counts"]),
    ],
)
@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
def test_what_may_be_either_is_refused_with_the_kinds_to_give(tmp_path, name, content, options):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=r"p\.|w\.") as caught:
        kind_of_file(tmp_path / name)
    assert all(f"--kind {option}" in str(caught.value) for option in options)


def test_what_is_held_in_memory():
    assert kind_of(pd.DataFrame(NAMED, columns=["from", "to"])) == "graph" and kind_of(KARATE) == "graph"
    assert kind_of(nx.karate_club_graph()) == "graph" and kind_of(np.array(KARATE)) == "graph"
    assert kind_of(COUNTS) is None and kind_of(pd.DataFrame(COUNTS)) is None
    assert kind_of(scipy.sparse.csr_matrix(COUNTS)) is None and kind_of(["a text"]) is None
    found, data = recognise(nx.karate_club_graph(), None)[:2]
    assert found == "graph" and isinstance(data, GraphData) and data.num_edges == 78


def test_files_are_read_as_what_they_are(tmp_path):
    (tmp_path / "u.data").write_text(text(RATED, "\t"))
    kind, data = recognise(tmp_path / "u.data", None)[:2]
    assert kind == "ratings" and isinstance(data, Ratings) and data.num_ratings == len(RATED)
    (tmp_path / "m.csv").write_text("a,b,c\n" + text(COUNTS, ","))
    kind, data = recognise(str(tmp_path / "m.csv"), None)[:2]
    assert kind == "counts" and np.array_equal(data.x.numpy(), COUNTS)


def test_a_document_of_one_word_keeps_it():
    texts = ["cat dog cat dog cat"] * 12 + ["sun sea sun sea sun"] * 12 + ["cat", "sea"]
    held = held_entries.hold_out_tokens(documents(texts), 0.2, 0)
    whole = held.train.dense().x + held.held.dense().x
    assert torch.equal(whole, documents(texts).dense().x) and bool((held.train.dense().x.sum(1) >= 1).all())
    found = ci.suggest(texts, 2, models=["lda", "mixture_of_multinomials"], progress=False)
    assert not found.refused and bool(np.isfinite(found.table["score"]).all())
    with pytest.raises(DataError, match="no token would be held out"):
        held_entries.hold_out_tokens(documents(["cat", "dog"]), 0.2, 0)


def test_of_long_documents_fewer_are_compared_and_it_is_said(monkeypatch):
    texts = [" ".join(f"w{(7 * n + 3 * m) % 40}" for m in range(30)) for n in range(90)]
    data = documents(texts)
    stored = data.x.values().numel()
    monkeypatch.setattr(suggest, "_ENTRIES", stored // 3)
    monkeypatch.setattr(suggest, "_FEW", 10)
    some = suggest._some(data, 2000, 4)
    assert len(some) == 30 and torch.equal(some.dense().x, suggest._some(data, 2000, 4).dense().x)
    assert not torch.equal(some.dense().x, suggest._some(data, 2000, 5).dense().x)
    named = {"kind": "documents", "models": ["mixture_of_multinomials"]}
    found = ci.suggest(data, 1, **named, seed=4, progress=False)
    assert found.rows == 30 and "compared on 30 of 90 rows, drawn at random" in repr(found)


def test_a_column_of_ids_is_named_before_anything_is_held_out():
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.poisson(2.0, (40, 5)), columns=list("abcde")).assign(doc_id=np.arange(40))
    with pytest.warns(DataWarning, match="column 'doc_id' is probably no count"):
        ci.suggest(frame, 1, models=["mixture_of_poissons"], progress=False)
