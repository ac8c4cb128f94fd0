"""Documents and graphs from files, and what is refused in files of documents, graphs and rows."""

from __future__ import annotations

import contextlib
import gzip
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

from custom_inference import Fit
from ppl_models import (
    SBM,
    CapacityError,
    DataError,
    DataWarning,
    FileFormatError,
    GraphData,
    as_graph,
    documents,
    graph,
    row_blocks,
)
from ppl_models.datasets import read_matrix
from tests.data.documents_test import COUNTS, LABELS, TOKENS, WORDS, dense, lda_c, uci
from tests.data.graphs_test import DIRECTED, NAMES, PAIRS, UNDIRECTED
from tests.support.fits import given

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


#: What reads a file -> its name, what it holds, what is said of it.
BROKEN = {
    documents: [
        ("a.ldac", "2 0:1\n", "line 1 announces 2 words and has 1"),
        ("a.ldac", "1 0:1\nriver bank\n", "line 2 is 'river bank'"),
        ("docword.a.txt", "2\n2\n", "begins with"),
        ("docword.a.txt", "2\n2\n1\n1 1 1\n2 2 2\n", "2 entries, where the third line announces 1"),
        ("docword.a.txt", "2\n2\n1\n3 1 1\n", "document 3 in entry 1; expected 1 to 2"),
        ("docword.a.txt", "2\n2\n1\n1 0 1\n", "word 0 in entry 1"),
        ("docword.a.txt", "2\n2\n1\n1 b 1\n", "line 4 is '1 b 1'"),
        ("a.txt", "", "nothing in it"),
        ("a.txt", b"\xff\xfe\x00", "no text in UTF-16"),
        ("a.txt.gz", b"\x1f\x8bnonsense", "not readable"),
        ("a.npz", b"PKnonsense", "not readable as npz"),
    ],
    graph: [
        ("a.txt", "a b\nc\n", "line 2 has 1 fields"),
        ("a.txt", "a b c d\n", "line 1 has 4 fields"),
        ("a.txt", "# nothing\n", "no edges"),
        ("a.txt", "a b x\n", "a weight is no number"),
        ("a.gml", "nonsense", "not readable as gml"),
        ("a.graphml", "<a", "not readable as graphml"),
        ("a.npz", "nonsense", "not readable as npz"),
        ("a.xyz", "", "unknown ending '.xyz'"),
        ("a.csv", "source,target\n", "no rows"),
    ],
    row_blocks: [
        ("a.ldac", "1 0:1\n2 0:1\n", "line 2 announces 2 words and has 1"),
        ("a.ldac", "1 0:1\n2 1:2:3 1\n", "line 2 is '2 1:2:3 1'"),
        ("a.ldac", "1 0:1\n\n1 3:1\n", "line 2 is ''"),
        ("docword.a.txt", "2\n3\n2\n1 1 1\n3 1 1\n", "document 3 in entry 2; expected 1 to 2"),
        ("docword.a.txt", "2\n3\n2\n1 1 1\n2 4 1\n", "word 4 in entry 2; expected 1 to 3"),
        ("docword.a.txt", "2\n3\n3\n1 1 1\n2 1 1\n", "2 entries, where the third line announces 3"),
        ("docword.a.txt", "2\n3\n2\n2 1 1\n1 1 1\n", "entry 2 goes back to document 1; .*sorted by document"),
        ("docword.a.txt", "2\n3\n2\n1 1\n1 2 1 1\n", "line 4 is '1 1'"),
        ("docword.a.txt", "2\nx\n2\n", "begins with"),
        ("a.csv", "a,b\n", "no rows below the header"),
        ("a.csv", "a,b\n1,2\n3,4,5\n", "not readable as csv"),
        ("a.txt", "the river\nthe bank\n", "texts without a vocabulary"),
        ("a.txt", "", "nothing in it"),
    ],
}


@pytest.mark.parametrize(
    ("read", "name", "content", "message"), [(read, *case) for read, cases in BROKEN.items() for case in cases]
)
def test_files_that_are_not_what_they_claim_are_refused(read, name, content, message, tmp_path: Path):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises((FileFormatError, DataError), match=message):
        list(read(path))


def test_files_that_are_not_there_are_named(tmp_path: Path):
    for read in BROKEN:
        with pytest.raises(FileFormatError, match="no such file"):
            read(tmp_path / "none.csv")
    with pytest.raises(DataError, match="names no file"):
        documents(str(tmp_path / "none.txt"))
    (tmp_path / "a.txt").write_text("a text")
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


@pytest.fixture
def files(tmp_path):
    frame = pd.DataFrame(PAIRS, columns=["source", "target"])
    matrix = pd.DataFrame(DIRECTED, index=NAMES, columns=NAMES)
    (tmp_path / "a.txt").write_text("# comment\n" + "\n".join(" ".join(pair) for pair in PAIRS) + "\n\n")
    (tmp_path / "a.tsv").write_text("\n".join("\t".join(pair) for pair in PAIRS))
    frame.to_csv(tmp_path / "frame.csv", index=False)
    frame.set_axis(["u", "v"], axis=1).to_csv(tmp_path / "two.csv", index=False)
    frame.to_parquet(tmp_path / "frame.parquet")
    matrix.to_csv(tmp_path / "matrix.csv")
    nx.write_gml(nx.DiGraph(PAIRS), tmp_path / "a.gml")
    nx.write_graphml(nx.DiGraph(PAIRS), tmp_path / "a.graphml")
    np.savez(tmp_path / "edges.npz", edges=np.argwhere(DIRECTED), directed=True, names=np.array(NAMES))
    np.savez(tmp_path / "matrix.npz", X=DIRECTED, names=np.array(NAMES))
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "a.txt", "a.tsv", "frame.csv", "two.csv", "frame.parquet", "matrix.csv", "a.gml", "a.graphml", "edges.npz",
        "matrix.npz",
    ],
)  # fmt: skip
def test_every_file(files, name):
    # Nothing tells the header u, v of a few names from another edge: it is said that it is taken for one.
    unsure = pytest.warns(DataWarning, match="taken for a header") if name == "two.csv" else contextlib.nullcontext()
    with unsure:
        data = graph(files / name)
    header = {"header": True} if name == "two.csv" else {}
    assert data.nodes == NAMES and data.directed and np.array_equal(data.x.to_dense().numpy(), DIRECTED)
    assert torch.equal(graph(str(files / name), **header).x.to_dense(), data.x.to_dense())


def test_files_with_numbers_and_weights(tmp_path):
    (tmp_path / "a.edgelist").write_text("% konect\n1 2 3.5\n2 3 1\n")
    data = graph(tmp_path / "a.edgelist", directed=False)
    assert data.nodes == [1, 2, 3] and data.edge_values().tolist() == [3.5, 1]
    assert graph(tmp_path / "a.edgelist", weight=False).edge_values().tolist() == [1, 1]
    pd.DataFrame(UNDIRECTED).to_csv(tmp_path / "m.csv", index=False)
    assert graph(tmp_path / "m.csv").num_edges == 3
    pd.DataFrame({"w": [2.0], "u": ["a"], "v": ["b"]}).to_csv(tmp_path / "named.csv", index=False)
    named = graph(tmp_path / "named.csv", columns=("u", "v"), weight="w")
    assert named.nodes == ["a", "b"] and named.edge_values().tolist() == [2]
    np.savez(tmp_path / "n.npz", edges=np.array([[0, 1]]), n=5)
    assert len(graph(tmp_path / "n.npz")) == 5


def test_large_graphs_are_never_dense():
    rng = np.random.default_rng(0)
    size, count = 20_000, 100_000
    pairs = np.unique(rng.integers(0, size, (count, 2)), axis=0)
    pairs = pairs[pairs[:, 0] < pairs[:, 1]]
    data = as_graph(pairs, num_nodes=size, directed=False)
    assert data.num_edges == len(pairs)
    hidden = data.edges()[:, ::7]
    left = data.without(hidden)
    assert left.num_edges == len(pairs) - hidden.shape[1] and left.num_hidden == hidden.shape[1]
    assert bool((data.observed_value(*hidden) == 1).all()) and bool((left.observed_value(*hidden) == 0).all())
    assert not bool(left.is_observed(*hidden).any())
    with pytest.raises(CapacityError):
        data.dense(max_bytes=1e9)


@pytest.mark.parametrize("source", [DIRECTED, UNDIRECTED], ids=["->", "--"])
def test_saved_with_a_fit(source, tmp_path):
    data = graph(source, nodes=NAMES, mask=[("a", "b")])
    model = SBM(num_blocks=2, num_nodes=4, directed=data.directed)
    params = model.check_params({site: torch.full(shape, 0.5) for site, shape in model.shapes.items()})
    params["block"] = torch.tensor([0, 1, 0, 1])
    loaded = Fit.load(given(model, params, data, bound_name="exact").save(tmp_path / "fit")).data
    assert isinstance(loaded, GraphData) and (loaded.directed, loaded.self_loops) == (data.directed, False)
    assert torch.equal(loaded.x.to_dense(), data.x.to_dense()) and torch.equal(loaded.hidden, data.hidden)
    assert loaded.coords == data.coords
