"""``ppl show``, ``ppl transform`` and ``ppl predict``: new rows by names, words, answers and pairs."""

from __future__ import annotations

import inspect
import io
import json
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from custom_inference import EM, Fit, VariationalEM, fit
from custom_inference.faces.command_line import saved
from custom_inference.faces.command_line.app import app
from custom_inference.graphs import link_probability
from ppl_models import (
    IRM,
    MODELS,
    NOCA,
    PMF,
    SBM,
    DataWarning,
    MixtureOfCategoricals,
    answers,
    graph,
    ratings,
    relations,
)
from ppl_models.core.doors import needs_no_number

#: Standard error by itself: click before 8.2 has to be asked.
APART: dict[str, Any] = (
    {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner.__init__).parameters else {}
)
RUNNER = CliRunner(**APART)


pytestmark = pytest.mark.usefixtures("no_figures")
QUICK = EM(search=None, max_iterations=3)
QUICK_GRAPH = VariationalEM(guide="mean_field", search=None, max_iterations=3)
NAMES = ["ant", "bee", "cat", "dog", "elk", "fox"]


def ppl(*arguments: Any) -> Any:
    return RUNNER.invoke(app, [str(a) for a in arguments])


def table(*arguments: Any, index: str | None = "row") -> pd.DataFrame:
    """The CSV that a command prints, and nothing beside it."""
    result = ppl(*arguments)
    assert result.exit_code == 0, result.output
    return pd.read_csv(io.StringIO(result.stdout), index_col=index)


def refusal(*arguments: Any) -> str:
    result = ppl(*arguments)
    said = result.stdout + result.stderr
    assert result.exit_code == 1 and said.count("\n") == 1 and "Traceback" not in said, said
    return said


@pytest.fixture
def noca(tmp_path: Path) -> tuple[Fit, Path]:
    frame = pd.DataFrame(NOCA.example().data.x.numpy().astype(int), columns=NAMES)
    found = QUICK.fit(NOCA(num_components=2, num_features=6), frame, progress=False)
    found.save(tmp_path / "fit.safetensors")
    return found, tmp_path


def write(frame: pd.DataFrame, path: Path, **settings: Any) -> Path:
    frame.to_csv(path, **settings)
    return path


@pytest.fixture
def new(noca: tuple[Fit, Path]) -> pd.DataFrame:
    """Rows with labels, an entry that is missing, and columns in another order."""
    rows = noca[0].data.x[:4].numpy().copy()
    rows[1, 2] = np.nan
    return pd.DataFrame(rows, index=pd.Index(["w", "x", "y", "z"], name="site"), columns=NAMES).loc[:, NAMES[::-1]]


@pytest.mark.quick
def test_new_rows_keep_their_labels_and_columns_go_by_name(noca, new):
    found, folder = noca
    file = write(new, folder / "new.csv")
    expected = found.transform(new)
    for place in (folder, folder / "fit.safetensors"):
        shown = table("transform", place, file)
        assert list(shown.index) == ["w", "x", "y", "z"] and set(shown.columns) == {"s0", "s1"}
        np.testing.assert_allclose(shown[found.local_names], expected, rtol=1e-5)
    assert ppl("transform", folder, file, "--out", folder / "locals.csv").output == ""
    pd.testing.assert_frame_equal(pd.read_csv(folder / "locals.csv", index_col="row"), shown)
    ppl("transform", folder, file, "--out", folder / "blocks.csv", "--block-rows", 3)
    np.testing.assert_allclose(pd.read_csv(folder / "blocks.csv", index_col="row"), shown, rtol=1e-5)


def test_expected_entries_and_missing_ones_filled(noca, new):
    found, folder = noca
    file = write(new, folder / "new.csv")
    expected = found.reconstruct(new, how="mean")
    shown = table("predict", folder, file)
    assert list(shown.columns) == NAMES
    np.testing.assert_allclose(shown, expected, rtol=1e-5)
    filled, own = table("predict", folder, file, "--fill"), new[NAMES]
    assert filled.loc["x", "cat"] == pytest.approx(float(expected.iloc[1, 2]), rel=1e-5)
    np.testing.assert_array_equal(filled.where(own.notna()), own)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda new: new.rename(columns={"ant": "owl", "bee": "yak"}), "2 unknown columns (the first: 'yak', 'owl')"),
        (lambda new: new[NAMES[:4]], "2 columns are missing (the first: 'elk', 'fox')"),
    ],
)
def test_columns_that_do_not_fit_are_named(change, text, noca, new):
    _, folder = noca
    file = write(change(new), folder / "new.csv")
    assert text in refusal("transform", folder, file) and text in refusal("predict", folder, file)


def test_what_cannot_be_read_is_told(noca, new, tmp_path):
    _, folder = noca
    file = write(new, folder / "new.csv")
    assert "no such file" in refusal("show", tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    assert "fit.safetensors: no such file" in refusal("transform", tmp_path / "empty", file)
    assert "is a folder" in refusal("transform", folder, file, "--out", folder)
    assert "--new of NOCA" in refusal("predict", folder, file, "--new")
    assert "are given nothing" in refusal("transform", folder, file, "--with", "covariates=ant")
    assert "--block-rows without --out" in refusal("transform", folder, file, "--block-rows", 2)


def test_show_prints_what_fit_printed(noca, tmp_path):
    found, _ = noca
    file = write(pd.DataFrame(found.data.x.numpy().astype(int), columns=NAMES), tmp_path / "rows.csv", index=False)
    quick = ["--method", "em", "--set", "search=null", "--set", "max_iterations=3"]
    before = ppl("fit", "noca", file, "-k", 2, *quick, "--out", tmp_path / "out").stdout
    shown = ppl("show", tmp_path / "out", "--json", tmp_path / "shown.json").stdout
    assert before.startswith(shown) and before.removeprefix(shown).startswith("\nwritten to")
    written = json.loads((tmp_path / "shown.json").read_text())
    assert written["status"] in shown and written["coords"]["feature"] == NAMES
    assert written["values"]["leak"]["axes"] == ["feature"]
    np.testing.assert_allclose(written["values"]["leak"]["estimate"], found.params["leak"])


def test_answers_are_those_of_the_fit(tmp_path):
    """A file of some of the answers has other numbers for them; one that nobody gave is refused."""
    rng = np.random.default_rng(0)
    kind = rng.random(60) < 0.5
    frame = pd.DataFrame({"by": np.where(kind, "bus", rng.choice(["car", "tram"], 60)), "far": np.where(kind, 2, 5)})
    data = answers(frame)
    found = QUICK.fit(MixtureOfCategoricals.for_data(data, 2), data, progress=False)
    found.save(tmp_path / "fit.safetensors")
    some = pd.DataFrame({"by": ["tram", "tram", None], "far": [5, 5, 5]})
    file = write(some, tmp_path / "some.csv", index=False)
    shown = table("transform", tmp_path, file)[found.local_names]  # the file has them in the order of the report
    np.testing.assert_allclose(shown, found.transform(some), rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(found.transform(answers(some)), found.transform(some))  # read before, with own numbers
    filled = table("predict", tmp_path, file, "--fill")
    assert filled["by"].tolist()[:2] == ["tram", "tram"] and filled["by"][2] in ("car", "tram")
    file = write(some.assign(by="ship"), tmp_path / "ship.csv", index=False)
    assert "none of those of 'by' (the first: 'ship'" in refusal("transform", tmp_path, file)
    with pytest.raises(ValueError, match="none of those of 'by'"):
        found.transform(answers(some.assign(by="ship")))


TEXTS = pd.DataFrame({
    "text": ["gas lamp gas", "lamp horse gas", "tram bulb tram", "bulb tram motor"] * 4,
    "year": [1880, 1880, 1910, 1910] * 4,
    "party": ["left", "left", "right", "centre"] * 4,
})  # fmt: skip


def test_documents_go_by_the_words_of_the_fit(tmp_path):
    file = write(TEXTS, tmp_path / "texts.csv", index=False)
    quick = ["-k", 2, "--text", "text", "--set", "search=null", "--set", "max_iterations=3"]
    assert ppl("fit", "lda", file, *quick, "--out", tmp_path / "lda").exit_code == 0
    (tmp_path / "new.txt").write_text("gas wombat lamp\ntram yak yak\n")
    result = ppl("transform", tmp_path / "lda", tmp_path / "new.txt")
    assert "warning: 3 of 6 tokens are of 2 word(s) outside the vocabulary" in result.stderr
    shown = pd.read_csv(io.StringIO(result.stdout), index_col="row")
    assert shown.shape == (2, 2) and np.allclose(shown.sum(axis=1), 1, atol=1e-4)
    assert "--min-count for documents whose words" in refusal(
        "transform", tmp_path / "lda", tmp_path / "new.txt", "--min-count", 2
    )


def test_covariates_go_by_names_and_words_of_the_fit(tmp_path):
    """Of few rows with some of the words alone; the word without an indicator is that before the others."""
    file = write(TEXTS, tmp_path / "texts.csv", index=False)
    model, beside = "dirichlet_multinomial_regression", ["--text", "text", "--with", "covariates=party,year"]
    quick = ["-k", 2, "--method", "dirichlet", "--set", "search=null", "--set", "max_iterations=2"]
    assert ppl("fit", model, file, *beside, *quick, "--out", tmp_path / "out").exit_code == 0
    found = Fit.load(tmp_path / "out" / "fit.safetensors")
    assert found.data.coords["covariate"] == ["party = left", "party = right", "year"]
    one = pd.DataFrame({"text": ["gas tram"] * 3, "year": 1900, "party": ["right", "centre", "right"]})
    shown = table("transform", tmp_path / "out", write(one, tmp_path / "one.csv", index=False), *beside)
    known = np.array([[0, 1, 1900], [0, 0, 1900], [0, 1, 1900]], dtype=float)
    with warnings.catch_warnings(action="ignore"):
        expected = found.transform(one["text"], covariates=known)
    np.testing.assert_allclose(shown[found.local_names], expected, rtol=1e-4)
    for party in ("middle", "zzz"):
        other = write(one.assign(party=party), tmp_path / "other.csv", index=False)
        text = refusal("transform", tmp_path / "out", other, *beside)
        assert f"column 'party' has 1 levels that the fit does not have ('{party}')" in text
        assert "some of 'centre', 'left', 'right'" in text


def test_links_and_ratings_of_pairs(tmp_path):
    edges = pd.DataFrame({"source": list("aabbcd"), "target": list("bcdaad")[:6]})
    edges = edges[edges.source != edges.target]
    network = graph(edges, directed=True)
    found = QUICK_GRAPH.fit(SBM.for_data(network, 2), network, progress=False)
    found.save(tmp_path / "graph.safetensors")
    pairs = write(pd.DataFrame({"source": ["a", "d"], "target": ["d", "a"]}), tmp_path / "pairs.csv", index=False)
    shown = table("predict", tmp_path / "graph.safetensors", pairs, index=None)
    assert list(shown.columns) == ["source", "target", "probability"]
    np.testing.assert_allclose(shown["probability"], link_probability(found, ["a", "d"], ["d", "a"]), rtol=1e-5)
    write(pd.DataFrame({"source": ["a"], "target": ["nobody"]}), pairs, index=False)
    text = refusal("predict", tmp_path / "graph.safetensors", pairs, "--header", "yes")
    assert "1 unknown nodes (the first: 'nobody'); expected labels such as 'a'\n" in text

    stars = pd.DataFrame({"user": list("aabbccdd"), "item": list("xyxzyzxy"), "rating": [5, 4, 4, 1, 3, 2, 5, 5]})
    data = ratings(stars)
    known = fit(PMF.for_data(data, 1), data, progress=False)
    known.save(tmp_path / "ratings.safetensors")
    file = write(pd.DataFrame({"user": ["a", "new"], "item": ["z", "z"]}), tmp_path / "asked.csv", index=False)
    text = refusal("predict", tmp_path / "ratings.safetensors", file, "--header", "yes")
    assert "unknown users (the first: 'new'); expected labels such as 'a'; --new takes unknown ones" in text
    shown = table("predict", tmp_path / "ratings.safetensors", file, "--new", index=None)
    mean = known.predict((["a", "new"], ["z", "z"]), new="prior")
    np.testing.assert_allclose(shown["mean"], mean, rtol=1e-5)
    assert shown["mean"].between(shown["q5"], shown["q95"]).all()
    assert "--fill of PMF" in refusal("predict", tmp_path / "ratings.safetensors", file, "--fill")


def test_cells_of_relations(tmp_path):
    example = IRM.example()
    data = relations(example.data)
    found = fit(example.model, data, starts=1, rounds=1, num_samples=5, progress=False)
    found.save(tmp_path / "fit.safetensors")
    asked = pd.DataFrame({"relation": ["likes", "sends", "likes"], "a": [0, 1, 2], "b": [1, 2, 3]})
    shown = table("predict", tmp_path, write(asked, tmp_path / "asked.csv", index=False), index=None)
    expected = [*found.predict(("likes", [0, 2], [1, 3])), *found.predict(("sends", [1], [2]))]
    np.testing.assert_allclose(shown["predicted"], np.array(expected)[[0, 2, 1]], rtol=1e-5)
    assert "IRM" in ppl("show", tmp_path).output.splitlines()[0]
    assert "clusters are of the entities" in refusal("transform", tmp_path, tmp_path / "asked.csv")


def test_models_that_find_the_number_of_components_need_none(tmp_path):
    """As the help says; of all others the message names the option, and no folder is left."""
    from custom_inference.faces.command_line.options import _COMPONENTS

    free = [name for name, kind in MODELS.items() if needs_no_number(kind)]
    assert free == ["hdp", "infinite_sbm", "labeled_lda", "partially_labeled_lda", "rtm"]
    assert all(name in _COMPONENTS for name in (*free, "irm"))
    file, quick = (
        write(TEXTS, tmp_path / "texts.csv", index=False),
        ["--set", "search=null", "--set", "max_iterations=2"],
    )
    beside = ["--text", "text", "--with", "labels=party"]
    result = ppl("fit", "labeled_lda", file, *beside, *quick, "--out", tmp_path / "labels")
    assert result.exit_code == 0 and Fit.load(tmp_path / "labels" / "fit.safetensors").model.sizes["component"] == 3
    for name in ("lda", "auto"):
        result = ppl("fit", name, file, "--text", "text", "--out", tmp_path / "none")
        assert result.exit_code == 2 and "needs a number of components" in result.stdout + result.stderr
    text = refusal("fit", "labeled_lda", file, *beside, "--method", "nuts", "--out", tmp_path / "a" / "none")
    assert text.startswith("error") and not (tmp_path / "a").exists() and not (tmp_path / "none").exists()


@pytest.mark.quick
def test_only_warnings_of_the_suite_reach_a_person(noca, new, monkeypatch):
    """Those of libraries, by the module of warnings or that of logging, are for programmers."""
    _, folder = noca

    def warn(path: Path) -> Fit:
        for kind in (UserWarning, RuntimeWarning, FutureWarning):
            warnings.warn("of a library", kind, stacklevel=1)
        logging.getLogger("library").warning("of a library")
        warnings.warn("of ours", DataWarning, stacklevel=1)
        return load(path)

    load = Fit.load
    monkeypatch.setattr(saved.Fit, "load", warn)
    result = ppl("transform", folder, write(new, folder / "new.csv"))
    assert result.exit_code == 0 and result.stderr == "warning: of ours\n"
    assert logging.root.manager.disable == 0
