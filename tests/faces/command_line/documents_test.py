"""The command line on documents (texts, sparse matrices with words, lda-c and UCI files), and on files in blocks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from custom_inference.core.fit import Fit
from custom_inference.faces.command_line import columns
from custom_inference.faces.command_line.source import Source
from ppl_models import MODELS as ALL_MODELS
from ppl_models.datasets import river_bank
from tests.data.documents_test import dense, lda_c, uci
from tests.faces.command_line.app_test import done, ppl

pytestmark = pytest.mark.usefixtures("no_figures")

DRAWN = river_bank(seed=2)
COUNTS, WORDS = DRAWN.x.numpy().astype(int), DRAWN.coords["feature"]
QUICK = ["--method", "map", "--set", "search=null", "--set", "max_iterations=5"]


def written(kind: str, folder: Path) -> Path:
    """The corpus in a file of the given kind, with its words."""
    names = {"text": "a.txt", "npz": "a.npz", "lda-c": "a.ldac", "uci": "docword.a.txt"}
    path = folder / names[kind]
    if kind == "npz":
        csr = scipy.sparse.csr_matrix(COUNTS)
        parts = {"indptr": csr.indptr, "indices": csr.indices, "data": csr.data, "shape": np.array(csr.shape)}
        np.savez(path, **{f"words_{name}": value for name, value in parts.items()}, vocab=np.array(WORDS))
        return path
    lines = (" ".join(np.repeat(WORDS, row)) for row in COUNTS)
    path.write_text({"lda-c": lda_c(COUNTS), "uci": uci(COUNTS)}.get(kind) or "\n".join(lines))
    (folder / ("vocab.a.txt" if kind == "uci" else "a.vocab")).write_text("\n".join(WORDS))
    return path


@pytest.mark.parametrize("kind", ["text", "npz", "lda-c", "uci"])
def test_fit_reads_documents_of_every_kind_with_their_words(kind, tmp_path):
    out, report = tmp_path / "out", tmp_path / "report.json"
    output = done("fit", "lda", written(kind, tmp_path), "-k", 2, *QUICK, "--out", out, "--json", report)
    assert "LDA fitted to 16 documents x 5 words" in output
    fit = Fit.load(out / "fit.safetensors")
    found = fit.data.coords["feature"]
    assert sorted(found) == sorted(WORDS)
    order = [found.index(word) for word in WORDS]
    np.testing.assert_array_equal(dense(fit.data)[:, order], COUNTS)
    assert fit.data.is_sparse
    payload = json.loads(report.read_text())
    assert all(Path(path).is_file() for path in payload["files"].values())


def test_words_are_left_out_as_asked(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("the cat\nthe the dog\nthe cat bird\n")
    source = Source(path, min_count=2, max_share=0.9)
    assert source.read(as_documents=True).coords["feature"] == ["cat"]
    assert Source(path, stop_words="english").read(as_documents=True).coords["feature"] == ["bird", "cat", "dog"]
    (tmp_path / "words.txt").write_text("dog\ncat\n")
    with pytest.warns(UserWarning, match="5 of 8 tokens are of 2 word"):
        data = Source(path, vocabulary=tmp_path / "words.txt", drop_empty_rows=True).read(as_documents=True)
    assert data.coords["feature"] == ["dog", "cat"]
    result = ppl("fit", "noca", path, "-k", 2, "--min-count", 2)
    assert result.exit_code == 1 and "--min-count for a model that reads no documents" in result.output
    result = ppl("fit", "lda", path, "-k", 2, "--matrix", "words")
    assert result.exit_code == 1 and "has no arrays" in result.output


def test_sparse_matrices_stay_sparse_whatever_is_done_to_them(tmp_path):
    path = written("npz", tmp_path)
    for settings, expected in (
        ({"threshold": 2.0}, COUNTS > 2),
        ({"transpose": True}, COUNTS.T),
        ({"drop_empty_rows": True, "threshold": 5.0}, (COUNTS > 5)[(COUNTS > 5).any(1)]),
    ):
        data = Source(path, **settings).read()
        assert data.is_sparse
        np.testing.assert_array_equal(dense(data), expected)
    assert not Source(path, threshold=-1.0).read().is_sparse
    assert Source(path, mask_value=0.0).read().mask.numpy().sum() == (COUNTS != 0).sum()


BLOCKS = ["--method", "em", "--set", "search=null", "--set", "max_iterations=4", "--no-progress"]


@pytest.fixture
def folder(tmp_path):
    x = np.random.default_rng(0).random((90, 5))
    x[3, 1] = -1
    for number, part in enumerate(np.split(x, 3)):
        frame = pd.DataFrame(part, [f"row {30 * number + n}" for n in range(30)], list("abcde"))
        (tmp_path / "table").mkdir(exist_ok=True)
        frame.to_parquet(tmp_path / "table" / f"{number}.parquet")
    whole = pd.DataFrame(x, columns=list("abcde"))
    whole.to_csv(tmp_path / "x.csv", index=False)
    return tmp_path


def test_blocks_give_the_fit_of_the_whole_file(folder):
    given = ["-k", 2, *BLOCKS, "--set", "shuffle=false", "--threshold", 0.5, "--mask-value", -1]
    report = folder / "report.json"
    model, source = "mixture_of_bernoullis", folder / "x.csv"
    output = done("fit", model, source, *given, "--block-rows", 90, "--out", folder / "a", "--json", report)
    assert "fitted to 90 rows x 5 features" in output
    done("fit", model, source, *given, "--out", folder / "b")
    blocks, memory = (Fit.load(folder / name / "fit.safetensors") for name in "ab")
    found, expected = (np.sort(one.params["probability"], 0) for one in (blocks, memory))  # whatever their order
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    done("fit", model, folder / "table", *given, "--block-rows", 20, "--out", folder / "c", "--json", report)
    found = json.loads(report.read_text())
    assert (found["num_rows"], found["scored_rows"]) == (90, 20)
    rows = pd.read_csv(folder / "c" / "membership.csv", index_col=0)
    assert rows.shape == (90, 2)
    parts = Fit.load(folder / "c" / "fit.safetensors")
    assert parts.coords["feature"] == list("abcde") and parts.data.mask is not None
    np.testing.assert_allclose(rows[["s0", "s1"]].to_numpy()[:20], parts.transform(), atol=1e-5)


def test_documents_in_blocks_keep_their_words(tmp_path):
    out = tmp_path / "out"
    settings = ["--method", "vb", "--set", "max_iterations=3", "--set", "batch_size=4", "--no-progress"]
    output = done("fit", "lda", written("uci", tmp_path), "-k", 2, *settings, "--block-rows", 6, "--out", out)
    assert f"LDA fitted to {len(COUNTS)} documents x 5 words" in output and "of the first 6 rows" in output
    assert Fit.load(out / "fit.safetensors").coords["word"] == WORDS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--transpose"], "--transpose with --block-rows"),
        (["--drop-empty-rows"], "--drop-empty-rows with --block-rows"),
        (["--method", "nuts"], "RowBlocks where all rows are needed in memory"),
    ],
)
def test_what_needs_all_rows_is_refused(folder, options, message):
    given = ["-k", 2, "--block-rows", 9, "--threshold", 0, *options]
    result = ppl("fit", "mixture_of_bernoullis", folder / "x.csv", *given)
    assert result.exit_code == 1 and message in result.output


def test_graphs_are_not_read_in_blocks(folder):
    result = ppl("fit", "sbm", folder / "x.csv", "-k", 2, "--block-rows", 9)
    assert result.exit_code == 1 and "no independent rows" in result.output


def test_a_table_holds_texts_and_what_stands_beside_them(tmp_path):
    words = [" ".join(np.repeat(WORDS, row)) for row in COUNTS]
    table = pd.DataFrame({"body": words, "stars": [0, 1] * 8, "year": range(16)})
    table.to_csv(tmp_path / "a.csv", index=False)
    out = tmp_path / "out"
    beside = ["--text", "body", "--with", "response=stars", "--out", out, "--no-progress"]
    few = ["--method", "dirichlet", "--set", "max_iterations=3"]
    done("fit", "supervised_lda", tmp_path / "a.csv", "-k", 2, *few, *beside)
    fit = Fit.load(out / "fit.safetensors")
    assert sorted(fit.data.coords["feature"]) == sorted(WORDS)
    assert fit.data.others["response"].tolist() == [0.0, 1.0] * 8
    counts = pd.DataFrame(COUNTS, columns=WORDS).assign(stars=table["stars"])
    counts.to_csv(tmp_path / "b.csv", index=False)
    assert Source(tmp_path / "b.csv", beside=["response=stars"]).read().coords["feature"] == list(WORDS)
    for asked, problem in (("--text=title", "title"), ("--with=response=star", "star")):
        refused = ppl("fit", "supervised_lda", tmp_path / "a.csv", "-k", 2, asked)
        assert refused.exit_code == 1 and f"unknown column '{problem}'" in refused.output


def test_words_in_columns_are_as_the_model_reads_them():
    """One column alone as such; labels of a cell as a list; of several responses words by their numbers."""
    model = ALL_MODELS["supervised_lda"].example().model
    frame = pd.DataFrame({"party": ["left", "right", None, "left"], "stars": [1, 2, 5, 2]})
    assert columns.values_of(model, "response", frame[["party"]]).equals(frame["party"])
    several = columns.values_of(model, "response", frame).to_numpy(float)
    np.testing.assert_array_equal(several, [[0, 1], [1, 2], [np.nan, 5], [0, 2]])
    classes = columns.values_of(model, "response", frame[["stars"]], "categorical")
    assert list(classes.cat.categories) == [1, 2, 5]
    labelled = ALL_MODELS["labeled_lda"].example().model
    assert list(columns.values_of(labelled, "labels", pd.DataFrame({"tags": ["a|b", None]}))) == [["a", "b"], []]
