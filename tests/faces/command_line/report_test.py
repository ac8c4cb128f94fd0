"""The report of a fit: what it says, that its words are explained, and that nothing on it is idle."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from custom_inference import NUTS, SVI, fit
from custom_inference.core.ended import Ended
from custom_inference.core.evaluate import component_order
from custom_inference.faces.command_line.app import app
from custom_inference.faces.command_line.options import ChooseOptions, FitOptions, SourceOptions, spell_command
from custom_inference.faces.command_line.report import neighbours
from custom_inference.faces.command_line.report.components import list_intervals, name_best_rows, name_strongest
from custom_inference.faces.command_line.report.facts import Occasion
from custom_inference.faces.command_line.report.legend import LEGEND, PLAIN, explain_words, find_entry
from custom_inference.faces.command_line.report.neighbours import Neighbours, compare_neighbours, conclude
from custom_inference.faces.command_line.report.page import Page, find_headings, leave_out_trivial
from custom_inference.faces.command_line.report.relations import make_relation_report
from custom_inference.faces.command_line.report.verdict import judge, say_how_sure
from custom_inference.faces.command_line.report.write import CAPTIONS, make_report, say_in_short
from ppl_models import HDP, IRM, LDA, MODELS, NOCA, SBM

#: Models of every kind of data, which are quick to fit.
KINDS = ("noca", "gaussian_pca", "lda", "pmf", "sbm", "mmsb", "mixture_of_categoricals", "mixture_of_poissons")


class Elements(HTMLParser):
    """Tags with their attributes, in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def fits() -> dict[str, Any]:
    found = {}
    for name in KINDS:
        example = MODELS[name].example()
        found[name] = fit(example.model, example.data, progress=False)
    return found


@pytest.mark.parametrize("name", KINDS)
def test_every_heading_is_explained_and_no_column_is_idle(name, fits):
    page = make_report(fits[name]).write()
    headings, body = find_headings(page), page.partition("Words on this page")[0]
    assert {"version", "status"} <= set(headings) and not [h for h in headings if not find_entry(h) and h not in PLAIN]
    explained = re.findall(r"<dt>([^<]*)</dt>", page)
    assert explained and all(word.lower() in body.lower() for word in explained)
    assert "shut off" not in headings or "True" in body
    assert "BIC" in explained and "nan" not in re.sub(r"<[^>]*>", " ", body).split()


@pytest.mark.parametrize("name", ["noca", "sbm", "lda"])
def test_components_stand_in_one_order(name, fits):
    one = fits[name]
    names = [one.component_names[k] for k in component_order(one)]
    page = make_report(one).write()
    listed = re.findall(r"<tr><th>(s\d+)</th>", page.partition("How good is it?")[0])
    assert listed == names and list(name_best_rows(one)) == [each for each in names if each in name_best_rows(one)]


def test_best_rows_are_those_of_the_largest_means():
    example = NOCA.example()
    found = fit(example.model, example.data, progress=False)
    mean = torch.tensor([[0.9, 0.0], [0.8, 0.01], [0.7, 0.02], [0.1, 0.0]] + [[0.0, 0.0]] * 56, dtype=torch.float64)
    found.transform = lambda: mean[:, [0, 1, 1]]  # pyright: ignore[reportAttributeAccessIssue]
    assert name_best_rows(found) == {"s0": "row 0 0.90, row 1 0.80, row 2 0.70"}
    mean[4:30, 0] = 0.9
    assert name_best_rows(found)["s0"].startswith("27 at 0.90, among them row 0")


def test_headings_are_ordered_pictures_are_described_and_links_are_relative(tmp_path, fits):
    frame = pd.DataFrame(NOCA.example().data.x.numpy().astype(int), columns=list("abcdef"))
    frame.to_csv(tmp_path / "a.csv", index=False)
    line = ["fit", "noca", str(tmp_path / "a.csv"), "-k", "2", "--method", "em", "--out", str(tmp_path / "out")]
    said = CliRunner().invoke(app, line)
    assert said.exit_code == 0, said.output
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    elements = Elements(page).found
    levels = [int(tag[1]) for tag, _ in elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1 and all(low - high <= 1 for high, low in itertools.pairwise(levels))
    pictures = [marks for tag, marks in elements if tag == "img"]
    assert len(pictures) == 4 and all(marks["alt"] for marks in pictures)
    assert sum(tag == "figcaption" for tag, _ in elements) == 4
    links = [str(marks["href"]) for tag, marks in elements if tag == "a"]
    assert "components.csv" in links and all((tmp_path / "out" / link).is_file() for link in links)
    assert "prefers-color-scheme: dark" in page and 'name="viewport"' in page
    assert "ppl fit noca" in page and "a.csv" in page and "ppl choose noca" in page
    files = {path.name for path in (tmp_path / "out").iterdir()}
    told = next(text for text in said.output.splitlines() if text.startswith("written to"))
    assert set(told.partition("/: ")[2].split(", ")) == files


def test_fewer_and_more_components_and_none_are_compared(monkeypatch):
    monkeypatch.setattr(neighbours, "LONGEST", 100.0)
    rng = np.random.default_rng(0)
    x = np.where(rng.random((80, 1)) < 0.5, rng.random((80, 8)) < 0.9, rng.random((80, 8)) < 0.1).astype(float)
    kind = MODELS["mixture_of_bernoullis"]
    said: list[str] = []
    found = compare_neighbours(fit(kind.for_data(x, 2), x, progress=False), said.append)
    assert type(found) is Neighbours and said == []
    assert list(found.table.index) == ["none", "1", "2", "3"] and list(found.table) == [
        "held-out score", "gain over none", "BIC"]  # fmt: skip
    scores = found.table["held-out score"]
    assert scores["2"] > scores["1"] and scores["2"] > scores["none"] == pytest.approx(scores["1"], abs=0.05)
    assert "better than no components" in found.sentences[0]
    assert found.sentences[-1] == "By BIC, 2 components are better than 1 and 3."
    monkeypatch.setattr(neighbours, "LONGEST", -1.0)
    assert "would take too long" in str(compare_neighbours(fit(kind.for_data(x, 2), x, progress=False), said.append))


def test_models_that_find_their_number_of_components_are_not_compared():
    example = HDP.example()
    assert "finds the number" in str(compare_neighbours(fit(example.model, example.data, progress=False), print))


def test_the_verdict_follows_from_how_the_fit_ended(fits):
    one = fits["noca"]
    one.details = {"start_scores": [-1.0, -1.0, -2.0], "agreeing_starts": 2}
    one.ended = Ended.CONVERGED
    assert judge(one)[0] == "No sign of trouble." and "2 of 3 starts" in judge(one)[1]
    one.details["agreeing_starts"] = 1
    assert judge(one)[0] == "To be taken with care." and "Only one of 3" in judge(one)[1]
    one.details = {"start_scores": [-1.0] * 10, "agreeing_starts": 3}
    assert "other optima" in " ".join(judge(one)) and "No sign of trouble." not in judge(one)
    one.ended = Ended.LIMIT
    assert "--set max_iterations=N" in " ".join(judge(one))
    assert "point estimate" in say_how_sure(one, False) and "--method svi_normal" in say_how_sure(one, False)


@pytest.mark.parametrize(
    ("none", "expected", "behind"),
    [(-2.0, "better than no", False), (-1.005, "about as well", False), (-0.5, "worse than no", True)],
)
def test_one_consistent_thing_is_said_of_other_numbers_of_components(none, expected, behind, fits):
    one = fits["mixture_of_poissons"]
    size = one.model.sizes["component"]
    lines = ["none", str(size - 1), str(size), str(size + 1)]
    table = pd.DataFrame({"held-out score": [none, -1.3, -1.0, -1.005], "BIC": [np.nan, 30.0, 20.0, 10.0]}, index=lines)
    found = conclude(one, table, [])
    assert expected in found.sentences[0] and found.behind == behind
    assert f"about as good as {size + 1}, and better than {size - 1}" in found.sentences[1]
    assert found.sentences[2] == f"By BIC, {size} components are less good than {size + 1}."
    short = say_in_short(one, Occasion(neighbours=found))
    said = " ".join(short)
    assert said.count(found.sentences[0]) == 1 and "best of these" not in said
    assert short[0].startswith(found.sentences[0]) == behind and not (behind and "No sign of trouble" in said)
    table.loc[str(size), "held-out score"] = np.nan
    assert conclude(one, table, []).behind and "nan" not in " ".join(conclude(one, table, []).sentences)


def test_r_hat_is_said_of_chains_alone():
    example = NOCA.example()
    guided = fit(example.model, example.data, method=SVI(guide="normal", steps=20), progress=False)
    page = make_report(guided).write()
    assert guided.draws is not None and "approximation of the posterior that" in page
    assert not any(word in page for word in ("R-hat", "r_hat", "ess<", "One chain"))
    drawn = fit(example.model, example.data, method=NUTS(num_samples=4, warmup=2, chains=1), progress=False)
    page = make_report(drawn).write()
    assert "R-hat" in page and "approximation of the posterior that" not in page


def test_features_that_are_nothing_beside_the_largest_are_not_named():
    example = NOCA.example()
    found = fit(example.model, example.data, progress=False)
    site = found.model.component_site
    rows = torch.tensor([[0.9, 0.001, 0.5, 0.0, 0.0, 0.0], [0.0] * 6, [0.2, 0.1, 0.0, 0.0, 0.0, 0.0]])
    found.params[site] = rows[: len(found.params[site])].to(found.params[site])
    named = dict(zip(component_order(found), name_strongest(found, 5), strict=True))
    assert [named[k].count(",") for k in sorted(named)] == [1, 0, 1][: len(named)]


def test_intervals_hold_the_mean_of_the_posterior(fits):
    table = list_intervals(fits["sbm"])
    assert {"block proportion", "to s0"} <= set(table["quantity"])
    assert (table["q5"] <= table["mean"]).all() and (table["mean"] <= table["q95"]).all()
    assert list_intervals(fits["mixture_of_poissons"]).empty


def test_relations_have_a_report():
    example = IRM.example()
    found: Any = fit(example.model, example.data, progress=False)
    page = make_relation_report(found).write()
    assert "sureness" in page and "cells" in page and "Words on this page" in page
    plain = {f"{t} {k}" for t in found.model.types for k in range(found.num_clusters(t))}
    assert not [h for h in find_headings(page) if not find_entry(h) and h not in PLAIN | plain]


def test_command_lines_are_spelled_as_they_are_given():
    source = SourceOptions(file=Path("my file.csv"), directed=False, beside=["x=y.csv"])
    given = FitOptions(model="sbm", components=3, seed=1, settings=["a=1", "b=2"], source=source)
    line = "ppl fit sbm 'my file.csv' -k 3 --seed 1 --set a=1 --set b=2 --undirected --with x=y.csv"
    assert spell_command("fit", given) == line
    choose = ChooseOptions(model="sbm", sizes="2-4", source=SourceOptions(file=Path("a.csv"), transpose=True))
    assert spell_command("choose", choose) == "ppl choose sbm a.csv -k 2-4 --transpose"


def test_only_words_that_are_there_are_explained():
    assert set(explain_words(["BIC", "weight of 3"], "Five starts.")) == {"BIC", "weight", "starts"}
    assert all(LEGEND.values()) and not set(LEGEND) & PLAIN
    kinds = {"components", "loading", "source", "topics", "documents", "adjacency", "memberships", "blocks", "elbo"}
    assert set(CAPTIONS) == kinds


def test_what_users_named_is_text():
    page = Page("<b>")
    page.tabulate(pd.DataFrame({"x": ["<script>"]}, index=["<i>"]))
    page.say("a `<code>`")
    html = page.write()
    assert "<script>" not in html and "<i>" not in html and "<code>&lt;code&gt;</code>" in html
    assert list(leave_out_trivial(pd.DataFrame({"a": [False, False], "b": ["", None], "c": [0.0, 0.0]}))) == ["c"]


def test_the_report_of_a_graph_names_its_nodes():
    nodes = nx.Graph([(f"member {a}", f"member {b}") for a, b in nx.karate_club_graph().edges()])
    found = fit(SBM.for_data(nodes, 2), nodes, progress=False)
    page = make_report(found).write()
    assert "78, undirected" in page and "member " in page and "of the 561 known pairs" in page


def test_documents_are_counted():
    example = LDA.example()
    page = make_report(fit(example.model, example.data, progress=False)).write()
    assert f"{float(example.data.stored.sum()):.0f}, " in page
