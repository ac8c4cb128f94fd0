"""Documents from files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from ppl_models import DataError, FileFormatError, documents
from ppl_models.datasets import read_matrix
from tests.data.documents_test import COUNTS, LABELS, TOKENS, WORDS, dense, lda_c, uci

pytestmark = pytest.mark.quick


def test_files_are_told_apart_by_what_is_in_them(tmp_path: Path):
    text = "\n".join(" ".join(t) for t in TOKENS) + "\n"
    contents = {"a.txt": text, "b.dat": lda_c(COUNTS), "c.dat": uci(COUNTS), "d.txt.gz": text}
    for name, content in contents.items():
        path = tmp_path / name
        path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
        data = documents(path, labels=LABELS)
        np.testing.assert_array_equal(dense(data), COUNTS)
        assert data.coords.get("feature") == (WORDS if ".txt" in name else None)
        np.testing.assert_array_equal(dense(documents(str(path))), COUNTS)
    # Told what it is, a file is read as that.
    assert documents(tmp_path / "b.dat", file_format="text", token_pattern=r"\d+").coords["feature"] == list("0123")


def test_a_vocabulary_beside_the_file_is_found(tmp_path: Path):
    (tmp_path / "docword.x.txt").write_text(uci(COUNTS))
    (tmp_path / "vocab.x.txt").write_text("\n".join(WORDS) + "\n")
    assert documents(tmp_path / "docword.x.txt").coords["feature"] == WORDS
    (tmp_path / "x.ldac").write_text(lda_c(COUNTS[:, :3]))
    (tmp_path / "x.vocab").write_text("\n".join(WORDS))
    data = documents(tmp_path / "x.ldac")
    assert data.coords["feature"] == WORDS and data.x.shape == (3, 4)
    own = documents(tmp_path / "x.ldac", vocabulary=tmp_path / "vocab.x.txt", vocabulary_size=4)
    np.testing.assert_array_equal(dense(own), dense(data))
    (tmp_path / "vocab.x.txt").write_text("only\n")
    with pytest.raises(DataError, match="1 words beside counts of 4"):
        documents(tmp_path / "docword.x.txt")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.ldac", "2 0:1\n", "line 1 announces 2 words and has 1"),
        ("a.ldac", "1 0:1\nriver bank\n", "line 2 is 'river bank'"),
        ("docword.a.txt", "2\n2\n", "begins with"),
        ("docword.a.txt", "2\n2\n1\n1 1 1\n2 2 2\n", "2 entries, where the third line announces 1"),
        ("docword.a.txt", "2\n2\n1\n3 1 1\n", "document 3 in entry 1; expected 1 to 2"),
        ("docword.a.txt", "2\n2\n1\n1 0 1\n", "word 0 in entry 1"),
        ("docword.a.txt", "2\n2\n1\n1 b 1\n", "line 4 is '1 b 1'"),
        ("a.txt", "", "nothing in it"),
        ("a.txt", b"\xff\xfe\x00", "no text in UTF-8"),
        ("a.txt.gz", b"\x1f\x8bnonsense", "not readable"),
        ("a.npz", b"PKnonsense", "not readable as npz"),
    ],
)
def test_files_that_are_not_what_they_claim_are_refused(tmp_path: Path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FileFormatError, match=message):
        documents(path)
    with pytest.raises(FileFormatError, match="no such file"):
        documents(tmp_path / "none.txt")
    with pytest.raises(DataError, match="names no file"):
        documents(str(tmp_path / "none.txt"))
    with pytest.raises(FileFormatError, match="unknown format of documents 'xml'"):
        documents(tmp_path / "a.txt", file_format="xml")


def test_sparse_parts_under_a_prefix_open_by_name(tmp_path: Path):
    parts = {}
    for prefix, counts in (("words_", COUNTS), ("links_", COUNTS[:, :2])):
        csr = scipy.sparse.csr_matrix(counts)
        pieces = {"indptr": csr.indptr, "indices": csr.indices, "data": csr.data, "shape": np.array(csr.shape)}
        parts |= {prefix + name: value for name, value in pieces.items()}
    np.savez(tmp_path / "two.npz", **parts, vocab=np.array(WORDS), year=np.array([1, 1, 2]))
    data = documents(tmp_path / "two.npz", matrix="words", labels="year")
    np.testing.assert_array_equal(dense(data), COUNTS)
    assert data.coords == {"row": [1, 1, 2], "feature": WORDS} and data.is_sparse
    with pytest.raises(FileFormatError, match=r"several matrices; matrix= picks one of \['links', 'words'\]"):
        read_matrix(tmp_path / "two.npz")
    with pytest.raises(FileFormatError, match="no matrix 'none' found"):
        read_matrix(tmp_path / "two.npz", matrix="none")
    with pytest.raises(FileFormatError, match="no label array 'month'"):
        documents(tmp_path / "two.npz", matrix="words", labels="month")
    with pytest.raises(DataError, match="have no names"):
        (tmp_path / "a.txt").write_text("a text\n")
        documents(tmp_path / "a.txt", labels="year")


@pytest.mark.parametrize(
    ("file", "settings", "shape", "tokens", "word", "label"),
    [
        ("nips/nips_words.npz", {}, (1740, 13649), 2301375, "network", "Connectivity Versus Entropy"),
        ("nips/nips_cited_surnames.npz", {"labels": "year"}, (1740, 201), 10992, "hinton", 1987),
        ("newsgroups4/newsgroups4.npz", {"labels": "y"}, (3958, 32092), 1142290, "archive", 0),
        ("sotu/sotu.npz", {"labels": "year"}, (10408, 6373), 858394, "abandon", 1790),
    ],
)
def test_real_corpora_open_with_words_and_labels_by_one_call(real_data, file, settings, shape, tokens, word, label):
    data = documents(real_data / file, **settings)
    assert data.is_sparse and data.x.shape == shape and float(data.x.values().sum()) == tokens
    assert data.coords["feature"][0] == word and data.coords["row"][0] == label
