"""What notebooks show: sentences, tables and pictures, in which labels are text and never markup."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any, ClassVar

import matplotlib.pyplot
import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import constraints

import custom_inference
import ppl_models
from custom_inference import BlockChoice
from custom_inference import fit as default_fit
from ppl_models import (
    LDA,
    MODELS,
    NOCA,
    DataError,
    GraphData,
    as_documents,
    as_graph,
    as_matrix,
    datasets,
    documents,
    graph,
)
from ppl_models.core.priors import describe_prior
from ppl_models.core.sites import Site
from ppl_models.data.row_blocks import RowBlocks
from tests.support import results
from tests.support.fits import given

#: The only elements that a display is made of.
ELEMENTS = {
    "div",
    "p",
    "br",
    "strong",
    "details",
    "summary",
    "img",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "style",
}


class Page(HTMLParser):
    """Elements, text and cells of well-formed HTML."""

    def __init__(self, source: str):
        super().__init__()
        self.open: list[str] = []
        self.elements: list[str] = []
        self.text: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []
        assert set(self.elements) <= ELEMENTS

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append(tag)
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data.strip())

    @property
    def pictures(self) -> int:
        return self.elements.count("img")

    def __contains__(self, text: str) -> bool:
        return text in self.text


def shown(thing: Any) -> Page:
    return Page(thing._repr_html_())


def names(size: int) -> list[str]:
    return [results.HOSTILE[i % len(results.HOSTILE)] + "." * (i // len(results.HOSTILE)) for i in range(size)]


def frame() -> pd.DataFrame:
    return pd.DataFrame(np.eye(6), index=pd.Index(results.HOSTILE, name="<i>"), columns=results.HOSTILE)


def named_graph() -> GraphData:
    return graph([(a, b) for a in results.HOSTILE for b in results.HOSTILE if a < b])


#: Things with labels of users, and a label that is in what they show.
LABELLED: dict[str, tuple[Callable[[], Any], str]] = {
    "data": (lambda: as_matrix(frame()), "<b>bold</b>"),
    "documents": (lambda: documents([results.HOSTILE, results.HOSTILE[:2]]), "<b>bold</b>"),
    "sparse": (lambda: as_documents(torch.eye(6).to_sparse_csr(), vocabulary=results.HOSTILE), "<b>bold</b>"),
    "graph": (named_graph, "<b>bold</b>"),
    "fit": (results.noca, "converged after <25> iterations & stayed there"),
    "topics": (results.topics, "given"),
    "comparison": (results.comparison, "<b>mine</b>"),
    "check": (results.check, "<b>total</b>"),
    "folds": (results.folds, "perplexity, by <completion>"),
    "choice": (lambda: BlockChoice(pd.DataFrame({"status": results.HOSTILE}), 2), "<b>bold</b>"),
    "blocks": (lambda: RowBlocks(read=list, num_rows=3, coords={"feature": results.HOSTILE[:1]}), "<b>bold</b>"),
}


@pytest.mark.parametrize("name", LABELLED)
def test_labels_are_text(name):
    make, label = LABELLED[name]
    assert label in shown(make())


def test_whatever_has_a_plot_or_a_table_is_shown_in_notebooks():
    public = [getattr(package, name) for package in (ppl_models, custom_inference) for name in package.__all__]
    pictured = [one for one in public if isinstance(one, type) and (hasattr(one, "plot") or hasattr(one, "table"))]
    assert len(pictured) >= 6
    assert [one.__name__ for one in pictured if not hasattr(one, "_repr_html_")] == []


def test_a_fit_shows_how_it_ended_its_components_and_its_objective():
    fit, page = results.noca(), shown(results.noca())
    assert {f"objective ({fit.described_objective})", f"{float(fit.elbo[-1]):.4f}", fit.status} <= set(page.text)
    assert set(fit.report()["strongest"]) <= set(page.text)  # the labels of features among them
    assert page.pictures == 1  # the objective


def test_components_over_pixels_are_pictures():
    assert shown(results.noca(pixels=True)).pictures == 2


@pytest.mark.parametrize("make", [results.topics, results.memberships, results.classes])
def test_fits_of_other_kinds(make):
    fit, page = make(), shown(make())
    assert fit.status in page and set(fit.report()["strongest"]) <= set(page.text)
    assert page.pictures == (len(fit.elbo) > 1)


def test_no_figure_is_kept():
    before = matplotlib.pyplot.get_fignums()
    shown(results.noca(pixels=True))
    assert matplotlib.pyplot.get_fignums() == before


@dataclass(frozen=True, kw_only=True, eq=False)
class OneRate(ppl_models.Model):
    """Counts of one <rate>, which have no components."""

    num_features: int
    axes: ClassVar[Any] = {"feature": "num_features"}
    sites: ClassVar[Any] = {
        "rate": Site("global", ("feature",), support=constraints.positive),
        "size": Site("latent", (), plates=("row",), support=constraints.positive),
        "x": Site("observed", ("feature",), plates=("row",), support=constraints.nonnegative_integer),
    }

    def default_priors(self):
        return {"rate": dist.Gamma(2.0, 0.25), "size": dist.Gamma(3.0, 3.0)}

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        rate = self.sample_globals()["rate"]
        with pyro.plate("data", num_rows if x is None else len(x), dim=-1):
            size = pyro.sample("size", self.priors["size"])
            pyro.sample("x", dist.Poisson(size[..., None] * rate).to_event(1), obs=x)

    def prepare(self, data, *, mask=None, dtype=None, device=None):
        return as_matrix(data, mask=mask, dtype=dtype, device=device)


def test_a_fit_without_components_shows_its_globals():
    fit = given(OneRate(num_features=2), {"rate": torch.tensor([1.0, 3.0])}, as_matrix(np.ones((4, 2))))
    page = shown(fit)
    assert {"rate", "2", "1", "3", "counts of one <rate>, which have no components"} <= set(page.text)
    assert "Gamma(2, 0.25)" in page


@pytest.mark.parametrize("name", MODELS)
def test_models_show_their_sizes_and_priors(name):
    model = MODELS[name].example().model
    page = shown(model)
    assert set(model.sites) <= set(page.text) and type(model).__name__ in page
    for field, value in model.settings().items():
        assert value is None or (field in page and (not isinstance(value, int) or str(value) in page))
    assert {describe_prior(prior) for prior in model.priors.values()} <= set(page.text)


def test_the_numbers_of_a_prior_are_shown():
    page = shown(NOCA(num_components=2, num_features=3).with_priors(leak=dist.Beta(2.0, 98.5)))
    assert "Beta(2, 98.5)" in page


def test_data_show_their_sizes_and_what_is_missing():
    page = shown(as_matrix(pd.DataFrame([[1.0, np.nan, 0.5], [0.0, 7.0, 1.0]], columns=["p", "q", "r"])))
    assert "Data: 2 rows x 3 features" in page
    assert {"0 to 7", "1 entries (16.67%)", "p, q, r"} <= set(page.text)
    assert page.elements.count("td") == 2 * 3 + 2 * 3  # what is told, in two columns; and the corner
    wide = shown(as_matrix(np.ones((500, 400))))
    assert "Data: 500 rows x 400 features" in wide and wide.elements.count("td") == 2 + 5 * 12


def test_sparse_data_show_their_largest_columns():
    page = shown(documents(["bank loan", "bank river bank"]))
    assert "Data: 2 rows x 3 features, sparse" in page
    assert {"4 entries (66.67%), total 5", "bank", "3"} <= set(page.text)


def test_graphs_show_their_sizes():
    page = shown(datasets.karate())
    assert "Graph: 34 nodes, 78 edges, undirected" in page
    assert {"1 to 17, mean 4.59", "0.139 of 561 observed dyads"} <= set(page.text)
    hidden = graph([(0, 1), (1, 2)], directed=True).without(torch.tensor([[0], [2]]))
    assert {"hidden dyads", "1"} <= set(shown(hidden).text)
    empty = shown(as_graph(np.zeros((3, 3)), directed=False))
    assert "Graph: 3 nodes, 0 edges, undirected" in empty


def test_generated_data_and_examples_show_what_they_were_drawn_from():
    for one in (datasets.image_patterns(20), datasets.ring_graph(12, 3), NOCA.example()):
        page = shown(one)
        assert set(one.truth) <= set(page.text) and "drawn from" in page


def test_blocks_are_not_read():
    def read():
        raise DataError("read")

    assert "RowBlocks: 7 rows, read block by block" in shown(RowBlocks(read=read, num_rows=7))


def test_checks_show_their_verdict_table_and_picture():
    for one in (results.check(), results.calibration()):
        page = shown(one)
        assert one.verdict in page and set(map(str, one.table.index)) <= set(page.text) and page.pictures == 1
    page = shown(results.left_out())
    assert set(repr(results.left_out()).splitlines()) <= set(page.text) and page.pictures == 1
    page = shown(results.comparison())
    assert {"Exact", "0.020"} <= set(page.text) and page.pictures == 1
    page = shown(results.folds())
    assert "Cross-validation of LDA: best with 3 topics" in page and page.pictures == 1


def test_a_comparison_without_what_its_picture_needs_has_none():
    table = results.comparison().table.drop(columns="gap_per_row")
    assert shown(custom_inference.Comparison(table)).pictures == 0


def test_long_tables_and_labels_are_cut():
    data = as_matrix(pd.DataFrame(np.eye(3), columns=["x" * 10_000, "b", "c"]))
    assert len(data._repr_html_()) < 3000
    table = pd.DataFrame({"bound": np.arange(300.0)}, index=[f"method {i}" for i in range(300)])
    assert custom_inference.Comparison(table)._repr_html_().count("<tr") < 30


def test_reports_show_the_strongest_features_at_80_columns():
    """Where words are long: the first of every component are seen, nothing is wider than the page, and what is made of
    the table is a DataFrame as any."""
    words = [f"word-of-some-length-{number:02}" for number in range(12)]
    counts = pd.DataFrame(np.random.default_rng(0).poisson(2.0, (30, 12)), columns=words)
    fit = default_fit(LDA(num_topics=3, vocabulary_size=12), counts, progress=False)
    table = fit.report()
    with pd.option_context("display.width", 80):
        shown = repr(table)
    assert max(map(len, shown.splitlines())) <= 80
    for strongest in table["strongest"]:
        assert strongest.split(",")[0] in shown
    assert type(table.head(2)) is pd.DataFrame and pickle.loads(pickle.dumps(table)).equals(table)
