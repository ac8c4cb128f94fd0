"""The command line on files that are read block by block."""

import json

import numpy as np
import pandas as pd
import pytest

from custom_inference.core.fit import Fit
from tests.faces.command_line.app_test import done, ppl
from tests.faces.command_line.documents_test import COUNTS, WORDS
from tests.faces.command_line.documents_test import written as corpus

QUICK = ["--method", "em", "--set", "search=null", "--set", "max_iterations=4", "--no-progress"]


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
    given = ["-k", 2, *QUICK, "--set", "shuffle=false", "--threshold", 0.5, "--mask-value", -1]
    report = folder / "report.json"
    model, source = "mixture_of_bernoullis", folder / "x.csv"
    output = done("fit", model, source, *given, "--block-rows", 90, "--out", folder / "a", "--json", report)
    assert "fitted to 90 rows x 5 features" in output
    done("fit", model, source, *given, "--out", folder / "b")
    blocks, memory = (Fit.load(folder / name / "fit.safetensors") for name in "ab")
    np.testing.assert_allclose(blocks.params["probability"], memory.params["probability"], rtol=1e-9)
    done("fit", model, folder / "table", *given, "--block-rows", 20, "--out", folder / "c", "--json", report)
    found = json.loads(report.read_text())
    assert (found["num_rows"], found["scored_rows"]) == (90, 20)
    rows = pd.read_csv(folder / "c" / "membership.csv", index_col=0)
    assert rows.shape == (90, 2)
    parts = Fit.load(folder / "c" / "fit.safetensors")
    assert parts.coords["feature"] == list("abcde") and parts.data.mask is not None
    np.testing.assert_allclose(rows.to_numpy()[:20], parts.transform(), atol=1e-5)


def test_documents_in_blocks_keep_their_words(tmp_path):
    out = tmp_path / "out"
    settings = ["--method", "vb", "--set", "max_iterations=3", "--set", "batch_size=4", "--no-progress"]
    output = done("fit", "lda", corpus("uci", tmp_path), "-k", 2, *settings, "--block-rows", 6, "--out", out)
    assert f"LDA fitted to {len(COUNTS)} rows x 5 features" in output and "of the first 6 rows" in output
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
