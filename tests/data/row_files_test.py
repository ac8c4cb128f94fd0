"""Rows in files: every format gives back what was written, in blocks of any size, in any order, in parts."""

import gzip
import pickle

import numpy as np
import pandas as pd
import pyarrow
import pytest
import scipy.sparse
import torch

from custom_inference import EM, VariationalEM
from ppl_models import MODELS, DataError, MixtureOfBernoullis, RowBlocks, row_blocks, save_blocks
from ppl_models.data.blocks import text as text_files

ROWS, WORDS = 103, [f"word {j}" for j in range(7)]


@pytest.fixture(scope="module")
def counts():
    x = np.random.default_rng(0).poisson(0.7, (ROWS, 7)).astype(float)
    x[[0, 11, 12, 13, 50, 102]] = 0  # documents without words, at the ends and in between
    return x


def written(kind, x, folder):
    """Files of this kind that hold x, and what ``row_blocks`` needs to be told of them."""
    frame = pd.DataFrame(x, columns=WORDS)
    path = folder / f"rows.{kind.split(' ')[0]}"
    if kind == "npy":
        np.save(path, x)
    elif kind == "npy columns":
        np.save(path, np.asfortranarray(x))
    elif kind == "npy files":
        (folder / "parts").mkdir()
        for number, start in enumerate((0, 40, 41)):
            np.save(folder / "parts" / f"{number}.npy", x[start : (40, 41, ROWS)[number]])
        return folder / "parts"
    elif kind == "npz":
        np.savez(path, X=x, names=np.array(WORDS), other=np.arange(5))
    elif kind == "npz compressed":
        np.savez_compressed(path, X=x, names=np.array(WORDS))
    elif kind == "npz bits":
        bits = np.packbits(x.astype(np.uint8), axis=1)
        np.savez(path, X_bits=bits, shape=np.array(x.shape))
    elif kind == "npz sparse":
        scipy.sparse.save_npz(path, scipy.sparse.csr_matrix(x), compressed=False)
    elif kind == "npz sparse, compressed":
        scipy.sparse.save_npz(path, scipy.sparse.csr_matrix(x))
    elif kind == "parquet":
        frame.to_parquet(path)
    elif kind == "parquet groups":
        frame.set_axis([f"r{n}" for n in range(ROWS)]).to_parquet(path, row_group_size=20)
    elif kind == "parquet folder":
        for number, start in enumerate((0, 60)):
            below = folder / "table" / f"year={number}"
            below.mkdir(parents=True)
            frame.iloc[start : (60, ROWS)[number]].to_parquet(below / "part-0.parquet", row_group_size=7)
        (folder / "table" / "_SUCCESS").write_text("")
        return folder / "table"
    elif kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "csv quoted":
        frame.set_axis([f'the "{n}"\nof all' for n in range(ROWS)]).to_csv(path, lineterminator="\r\n")
    elif kind == "csv.gz":
        frame.to_csv(path, index=False)
    else:
        return _corpus(kind, x, folder)
    return path


def _corpus(kind, x, folder):
    if kind == "folder":
        return save_blocks(folder / "blocks", [x[:50], x[50:]], vocabulary=WORDS)
    if kind.startswith("lda-c"):
        each = [" ".join([str(int((r > 0).sum())), *(f"{j}:{v:g}" for j, v in enumerate(r) if v)]) for r in x]
        text, name = "\n".join(each) + "\n", "corpus.ldac"
    elif kind.startswith("uci"):
        entries = [f"{n + 1} {j + 1} {x[n, j]:g}" for n in range(ROWS) for j in range(7) if x[n, j]]
        text, name = "\n".join([str(ROWS), "7", str(len(entries)), *entries]), "docword.corpus.txt"
    else:
        named = ["".join("abcdefg"[j] * 2 + " " for j in range(7) for _ in range(int(r[j]))) for r in x]
        text, name = "\n".join(each.strip() + " unknown" for each in named), "texts.txt"
    path = folder / (name + ".gz" * kind.endswith("gz"))
    path.write_bytes(gzip.compress(text.encode()) if kind.endswith("gz") else text.encode())
    return path


KINDS = [
    "npy", "npy columns", "npy files", "npz", "npz compressed", "npz bits", "npz sparse", "npz sparse, compressed",
    "parquet", "parquet groups", "parquet folder", "csv", "csv quoted", "csv.gz", "folder", "lda-c", "lda-c gz",
    "uci", "uci gz", "texts",
]  # fmt: skip


def opened(kind, path, block_rows):
    words = [letter * 2 for letter in "abcdefg"] if kind == "texts" else None
    return row_blocks(path, block_rows=block_rows, vocabulary=words)


def dense(blocks):
    found = [b.toarray() if scipy.sparse.issparse(b) else np.asarray(b, dtype=float) for b in blocks]
    return np.concatenate(found), [len(block) for block in found]


@pytest.mark.parametrize("kind", KINDS)
def test_files_give_back_what_was_written(kind, counts, tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_CHUNK", 37)  # so that pieces of text files end anywhere
    x = (counts > 0).astype(float) if kind == "npz bits" else counts
    path = written(kind, x, tmp_path)
    for block_rows in (3, 20, 500):
        source = opened(kind, path, block_rows)
        assert len(source) == ROWS
        for _ in range(2):  # every pass reads anew, in another process too
            found, sizes = dense(pickle.loads(pickle.dumps(source)))
            np.testing.assert_array_equal(found, x)
            assert max(sizes) <= block_rows
    labelled = ("npz", "npz compressed", "parquet", "parquet groups", "parquet folder", "csv", "csv quoted", "csv.gz")
    if kind in (*labelled, "folder"):
        assert source.coords == {"feature": WORDS}


@pytest.mark.parametrize("kind", KINDS)
def test_parts_and_orders_hold_every_block_once(kind, counts, tmp_path):
    x = np.where(counts > 0, 1.0, 0.0) if kind == "npz bits" else counts
    source = opened(kind, written(kind, x, tmp_path), 10)
    plain = [block.tolist() for block in _each(source)]
    mixed = list(source.shuffled(torch.Generator().manual_seed(0)))
    shuffled = [dense(block)[0] for block in mixed]
    whole = np.concatenate(shuffled)
    assert sorted(map(tuple, whole)) == sorted(map(tuple, x))
    assert max(map(len, shuffled)) < 20
    again = [dense(block)[0] for block in source.shuffled(torch.Generator().manual_seed(0))]
    assert np.array_equal(np.concatenate(again), whole)
    in_order = kind.endswith(("gz", "compressed")) or kind == "parquet"
    assert np.array_equal(whole, x) == in_order
    for size in (2, 3):
        parts = [source.part(rank, size) for rank in range(size)]
        assert [[block.tolist() for block in _each(part)] for part in parts] == [plain[r::size] for r in range(size)]
        assert [len(part) for part in parts] == [sum(map(len, plain[r::size])) for r in range(size)]


def _each(blocks):
    return [dense([block])[0] for block in blocks]


def test_missing_entries_and_real_numbers_come_from_arrays_and_tables(tmp_path):
    x = np.random.default_rng(1).normal(size=(30, 3))
    x[4, 1] = x[20, 2] = np.nan
    np.save(tmp_path / "x.npy", x)
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    frame["on"] = pd.array([True, None] * 15, "boolean")
    frame["whole"] = pd.array([None, 3] * 15, "Int64")
    frame.to_parquet(tmp_path / "x.parquet", row_group_size=8)
    frame.to_csv(tmp_path / "x.csv", index=False)
    np.testing.assert_array_equal(dense(row_blocks(tmp_path / "x.npy", block_rows=7))[0], x)
    whole = np.column_stack([x, np.tile([1.0, np.nan], 15), np.tile([np.nan, 3.0], 15)])
    np.testing.assert_array_equal(dense(row_blocks(tmp_path / "x.parquet", block_rows=7))[0], whole)
    chosen = row_blocks(tmp_path / "x.parquet", block_rows=7, columns=["whole", "b"])
    np.testing.assert_array_equal(dense(chosen)[0], whole[:, [4, 1]])
    assert chosen.coords == {"feature": ["whole", "b"]}
    chosen = row_blocks(tmp_path / "x.csv", block_rows=7, columns=["c", "a"])
    np.testing.assert_array_equal(dense(chosen)[0], x[:, [2, 0]])


def test_reading_many_row_groups_takes_the_memory_of_one(tmp_path):
    """What pyarrow holds while blocks are read, however many row groups there are, and after many passes."""
    pool, most = pyarrow.default_memory_pool(), []
    for groups in (2, 20):
        frame = pd.DataFrame(np.random.default_rng(0).normal(size=(500 * groups, 20))).rename(columns=str)
        frame.to_parquet(tmp_path / f"{groups}.parquet", row_group_size=500)
        source = row_blocks(tmp_path / f"{groups}.parquet", block_rows=500)
        before = pool.bytes_allocated()
        most.append(max(pool.bytes_allocated() - before for _ in range(3) for _ in source))
    assert most[1] < 1.1 * most[0]


def test_blocks_can_be_changed_as_they_are_read(counts, tmp_path):
    np.save(tmp_path / "x.npy", counts)
    for source in (row_blocks(tmp_path / "x.npy", block_rows=9), RowBlocks(read=lambda: [counts], num_rows=ROWS)):
        changed = source.map(lambda x: x > 1).map(lambda x: 2.0 * x)
        np.testing.assert_array_equal(dense(changed)[0], 2.0 * (counts > 1))


def test_plain_sources_are_divided_too(counts):
    source = RowBlocks(read=lambda: iter(np.array_split(counts, 7)), num_rows=ROWS)
    parts = [source.part(rank, 3) for rank in range(3)]
    assert sum(map(len, parts)) == ROWS
    np.testing.assert_array_equal(dense(parts[1])[0], np.concatenate(np.array_split(counts, 7)[1::3]))
    with pytest.raises(DataError, match="no block for process 7 of 8"):
        source.part(7, 8)
    with pytest.raises(DataError, match="part 3 of 3"):
        source.part(3, 3)
    with pytest.raises(DataError, match=r"2 block\(s\) for 3 processes.*smaller block_rows"):
        RowBlocks.of(counts, 60).part(0, 3)
    assert row_blocks(source) is source
    assert len(row_blocks(counts, block_rows=50)) == ROWS


def test_shuffling_undoes_the_order_of_sorted_rows(tmp_path):
    """Two classes, one after the other: in the order of the file the last is learned best, shuffled both alike."""
    rng = np.random.default_rng(0)
    rate = np.repeat([np.repeat([0.9, 0.1], 6), np.repeat([0.1, 0.9], 6)], 400, axis=0)
    np.save(tmp_path / "x.npy", (rng.random(rate.shape) < rate).astype(float))
    source = row_blocks(tmp_path / "x.npy", block_rows=40)
    model = MixtureOfBernoullis(num_components=2, num_features=12)
    method = {"batch_size": 40, "max_iterations": 2}
    shuffled = EM(**method).fit(model, source, progress=False)
    again = EM(**method).fit(model, source, progress=False)
    other = EM(**method).fit(model, source, seed=1, progress=False)
    plain = EM(**method, shuffle=False).fit(model, source, progress=False)
    assert torch.equal(shuffled.elbo, again.elbo) and not torch.equal(shuffled.elbo, other.elbo)
    assert float((shuffled.params["mixing_proportion"] - 0.5).abs().max()) < 0.06
    assert float((plain.params["mixing_proportion"] - 0.5).abs().max()) > 0.1
    assert float(shuffled.elbo[-1]) > float(plain.elbo[-1])


def test_labels_and_missing_entries_reach_the_fit(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    x[rng.random(x.shape) < 0.1] = np.nan
    model = MODELS["cvq"](num_components=2, num_features=4)
    method = VariationalEM(guide="mean_field", search=None, max_iterations=5, accelerate=None)
    start = {"source_prior": [0.4, 0.6], "weight": rng.normal(size=(2, 4)), "scale": 1.0}
    init = {site: torch.as_tensor(value, dtype=torch.float64) for site, value in start.items()}
    np.save(tmp_path / "x.npy", x)
    source = row_blocks(tmp_path / "x.npy", block_rows=25, vocabulary=list("abcd"))
    fit = method.fit(model, source, init=init, progress=False)
    memory = method.fit(model, x, init=init, progress=False)
    torch.testing.assert_close(fit.elbo, memory.elbo, rtol=1e-10, atol=1e-10)
    assert fit.coords[model.feature_axis] == list("abcd")
    assert fit.data.mask is not None
