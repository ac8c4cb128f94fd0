"""Files that are cut short or damaged: what is valid, or an error that names the file."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st

from ppl_models import (
    LDA,
    Data,
    DataError,
    FileFormatError,
    GraphData,
    PPLError,
    documents,
    graph,
    open_blocks,
    save_blocks,
)
from ppl_models.datasets import read_matrix
from tests.support.files import Loader, damage, loads_or_says, strict
from tests.support.fuzz import fuzz, says_something

X = (np.random.default_rng(0).random((6, 5)) < 0.5).astype(float)


def _sparse_matrix(path: Path) -> Data:
    return read_matrix(path, keep_sparse=True)


def _write(folder: Path) -> dict[str, tuple[Path, Loader]]:
    """A valid file of every format, and what reads it."""
    nodes = nx.karate_club_graph().subgraph(range(6))
    files: dict[str, tuple[str, Loader, Callable[[Path], Any]]] = {
        "csv": ("m.csv", read_matrix, lambda p: pd.DataFrame(X, list("abcdef"), list("uvwxy")).to_csv(p)),
        "parquet": ("m.parquet", read_matrix, lambda p: pd.DataFrame(X, columns=list("uvwxy")).to_parquet(p)),
        "npz": ("m.npz", read_matrix, lambda p: np.savez(p, X=X, names=np.array(list("uvwxy")))),
        "npz deflated": ("d.npz", read_matrix, lambda p: np.savez_compressed(p, X=X)),
        "npz sparse": ("s.npz", _sparse_matrix, lambda p: scipy.sparse.save_npz(p, scipy.sparse.csr_matrix(X))),
        "npz bits": ("b.npz", read_matrix,
                     lambda p: np.savez(p, X_bits=np.packbits(X.astype(bool), axis=1), shape=np.array(X.shape))),
        "text": ("t.txt", documents, lambda p: p.write_text("the river bank\nbank and loan\n\nriver river\n")),
        "text gz": ("t.txt.gz", documents, lambda p: p.write_bytes(gzip.compress(b"the river bank\nbank and loan\n"))),
        "lda-c": ("c.ldac", documents, lambda p: p.write_text("2 0:1 3:2\n1 1:1\n0\n3 0:1 1:1 2:5\n")),
        "uci": ("docword.a.txt", documents, lambda p: p.write_text("3\n4\n5\n1 1 2\n1 2 1\n2 4 3\n3 1 1\n3 3 9\n")),
        "edges": ("e.txt", graph, lambda p: p.write_text("# c\na b 1\nb c 2\nc a 1\n")),
        "edges csv": ("e.csv", graph, lambda p: p.write_text("source,target,weight\n1,2,1\n2,3,2\n3,1,1\n")),
        "edges parquet": ("e.parquet", graph,
                          lambda p: pd.DataFrame({"source": [1, 2], "target": [2, 3]}).to_parquet(p)),
        "edges npz": ("e.npz", graph, lambda p: np.savez(
            p, edges=np.array([[0, 1], [1, 2]]), n=np.array(4), directed=np.array(True), names=np.array(list("abcd")))),
        "gml": ("g.gml", graph, lambda p: nx.write_gml(nodes, p)),
        "graphml": ("g.graphml", graph, lambda p: nx.write_graphml(nodes, p)),
    }  # fmt: skip
    for name, _, write in files.values():
        write(folder / name)
    return {kind: (folder / name, load) for kind, (name, load, _) in files.items()}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, tuple[Path, Loader]]:
    return _write(tmp_path_factory.mktemp("files"))


FORMATS = ["csv", "parquet", "npz", "npz deflated", "npz sparse", "npz bits", "text", "text gz", "lda-c", "uci",
           "edges", "edges csv", "edges parquet", "edges npz", "gml", "graphml"]  # fmt: skip


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_read_whole(kind, files):
    path, load = files[kind]
    assert len(load(path)) > 1


@pytest.mark.parametrize("kind", FORMATS)
@given(damaged=damage())
@fuzz(40)
def test_damaged_files_are_read_or_refused_by_name(kind, files, damaged):
    path, load = files[kind]
    found = loads_or_says(path, load, damaged(path.read_bytes()))
    if found is None:
        return
    values = found.x.values() if found.is_sparse else found.x
    assert bool(torch.isfinite(values).all() | torch.isinf(values).any()) and not bool(values.isnan().any())
    if isinstance(found, GraphData):
        assert bool((values > 0).all()) and len(found) < 1000


@pytest.mark.parametrize("kind", [f for f in FORMATS if f not in ("parquet", "edges parquet", "edges npz")])
def test_files_cut_anywhere_are_read_or_refused_by_name(kind, files):
    path, load = files[kind]
    raw = path.read_bytes()
    for end in range(0, len(raw), max(1, len(raw) // 150)):
        loads_or_says(path, load, raw[:end])


# ----- folders of blocks ----------------------------------------------------------------------------------


@given(damaged=damage(), part=st.sampled_from(["blocks.json", "starts.bin", "columns.bin", "values.bin"]))
@fuzz(60)
def test_damaged_folders_of_blocks_are_read_or_refused_by_name(tmp_path_factory, damaged, part):
    folder = tmp_path_factory.mktemp("blocks")
    save_blocks(folder / "b", [X, 2 * X], vocabulary=list("uvwxy"))
    path = folder / "b" / part
    path.write_bytes(damaged(path.read_bytes()))
    try:
        with strict():
            found = open_blocks(folder / "b", block_rows=5)
            rows = sum(LDA(num_topics=2, vocabulary_size=5).prepare(block).x.shape[0] for block in found)
    except PPLError as error:
        assert isinstance(error, DataError | FileFormatError) and says_something(error), repr(error)
        assert str(folder) in str(error) or str(error).startswith("site 'x'"), str(error)
        return
    assert rows == len(found)
