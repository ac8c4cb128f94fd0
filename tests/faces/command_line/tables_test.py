"""``ppl`` on tables as people have them: headers, ids, kinds that must be said, and warnings of the suite alone."""

import json

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from custom_inference.faces.command_line.app import app

pytestmark = pytest.mark.usefixtures("no_figures")
KARATE = [(int(a), int(b)) for a, b in nx.karate_club_graph().edges()]


def run(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments), *(["--no-progress"] if arguments[0] != "models" else [])])
    return result.exit_code, " ".join(result.output.split())


def text(rows, between=","):
    return "".join(between.join(map(str, row)) + "\n" for row in rows)


@pytest.fixture
def shops(tmp_path):
    rng = np.random.default_rng(2)
    rate = np.where(rng.random(60) < 0.5, 1.0, 6.0)[:, None] * np.array([1, 0.5, 2, 1])
    frame = pd.DataFrame(rng.poisson(rate), columns=["tea", "milk", "bread", "jam"])
    frame.assign(shop=np.arange(1001, 1061), note="open").to_csv(tmp_path / "shops.csv", index=False)
    return tmp_path / "shops.csv"


def test_edges_without_a_header_are_all_read_and_it_is_said(tmp_path):
    (tmp_path / "e.csv").write_text(text(KARATE))
    given = [tmp_path / "e.csv", "-k", 2, "--undirected", "--json", tmp_path / "found.json", "--out", tmp_path / "out"]
    code, said = run("fit", "sbm", *given)
    assert code == 0 and "taken for data: it has numbers where the others have them" in said, said
    code, said = run("fit", "sbm", *given, "--header", "yes")
    assert code == 0 and "taken for" not in said, said
    assert run("fit", "sbm", *given, "--header", "maybe")[0] == 2


def test_ids_and_notes_are_no_counts(shops, tmp_path):
    given = ["-k", 2, "--out", tmp_path / "out", "--json", tmp_path / "found.json"]
    code, said = run("fit", "mixture_of_poissons", shops, *given)
    assert code == 1 and "column 'note' holds" in said
    code, said = run("fit", "mixture_of_poissons", shops, *given, "--drop", "note")
    assert code == 0 and "column 'shop' is probably no count" in said, said
    code, said = run("fit", "mixture_of_poissons", shops, *given, "--id", "shop", "--columns", "tea,milk,bread,jam")
    assert code == 0 and "probably" not in said, said
    rows = pd.read_csv(tmp_path / "out" / "membership.csv", index_col=0)
    assert rows.index.tolist() == list(range(1001, 1061))
    code, said = run("fit", "mixture_of_poissons", shops, *given, "--drop", "nobody")
    assert code == 1 and "unknown column 'nobody'" in said
    code, said = run("fit", "sbm", shops, *given, "--id", "shop")
    assert code == 1 and "--id for a graph" in said


def test_ratings_of_movielens_are_fitted_without_warnings_of_others(tmp_path):
    rng = np.random.default_rng(1)
    taste, kind = rng.standard_normal((30, 2)), rng.standard_normal((20, 2))
    rows = [(u + 1, i + 1, int(np.clip(np.rint(3 + taste[u] @ kind[i]), 1, 5)), 881250949 + u + i)
            for u in range(30) for i in sorted(rng.choice(20, 10, replace=False))]  # fmt: skip
    (tmp_path / "u.data").write_text(text(rows, "\t"))
    code, said = run("fit", "pmf", tmp_path / "u.data", "-k", 2, "--out", tmp_path / "out")
    assert code == 0 and "warning" not in said and "Warning" not in said, said
    code, said = run("suggest", tmp_path / "u.data", "-k", 2, "--models", "pmf", "--json", tmp_path / "found.json")
    assert code == 0 and json.loads((tmp_path / "found.json").read_text())["kind"] == "ratings", said
    code, said = run("fit", "pmf", tmp_path / "u.data", "-k", 2, "--columns", "0,1,2", "--out", tmp_path / "out")
    assert code == 0, said


def test_kinds_are_seen_or_asked_for(tmp_path):
    (tmp_path / "k.txt").write_text(text(KARATE, " "))
    code, said = run("suggest", tmp_path / "k.txt", "-k", 2, "--undirected", "--models", "sbm")
    assert code == 0 and "taken for a graph" in said, said
    (tmp_path / "k.csv").write_text("left,right\n" + text(KARATE))
    code, said = run("suggest", tmp_path / "k.csv", "-k", 2)
    assert code == 1 and "--kind graph" in said and "--kind counts" in said, said
    (tmp_path / "w.csv").write_text("who,whom,how\n" + "ann,bob,often\nbob,cid,never\n" * 3)
    code, said = run("suggest", tmp_path / "w.csv", "-k", 2)
    assert code == 1 and "column 'whom' holds" in said and "--kind" in said, said
    (tmp_path / "t.xyz").write_text("1;2")
    code, said = run("fit", "pmf", tmp_path / "t.xyz", "-k", 2)
    assert code == 1 and "unknown ending '.xyz'" in said, said
