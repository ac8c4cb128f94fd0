"""The command line on documents: texts, sparse matrices with words, lda-c and UCI files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from custom_inference.core.fit import Fit
from custom_inference.faces.command_line.source import Source
from ppl_models.datasets import river_bank
from tests.data.documents_test import dense, lda_c, uci
from tests.faces.command_line.app_test import done, ppl

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
    assert "LDA fitted to 16 rows x 5 features" in output
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
