"""Columns of tables that are no entries: ids, what is left out, and those that look like no counts."""

import numpy as np
import pandas as pd
import pytest

from ppl_models import LDA, DataError, DataWarning, GammaPoisson, documents, row_blocks
from ppl_models.datasets import read_matrix

RNG = np.random.default_rng(0)
COUNTS = pd.DataFrame(RNG.poisson(1.0, (40, 4)), columns=list("abcd"))
TABLE = COUNTS.assign(doc_id=np.arange(1001, 1041), note="x")[["doc_id", "a", "note", "b", "c", "d"]]


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.parquet", "t.csv.gz"])
def test_ids_and_dropped_columns_of_every_table(tmp_path, name):
    path = tmp_path / name
    if name.endswith("parquet"):
        TABLE.to_parquet(path)
    else:
        TABLE.to_csv(path, index=False, sep="\t" if "tsv" in name else ",")
    for data in (read_matrix(path, id="doc_id", drop="note"), read_matrix(path, id="doc_id", columns=list("abcd"))):
        assert data.coords == {"row": list(range(1001, 1041)), "feature": list("abcd")}
        assert np.array_equal(data.x.numpy(), COUNTS.to_numpy())
    counted = documents(path, id="doc_id", drop=["note", "d"]) if ".gz" not in name else documents(
        TABLE, id="doc_id", drop=["note", "d"])  # fmt: skip
    assert counted.feature_names == list("abc") and counted.coords["row"][0] == 1001
    blocks = row_blocks(path, block_rows=7, id="doc_id", drop="note")
    assert blocks.coords["feature"] == list("abcd") and len(blocks) == 40
    with pytest.raises(DataError, match="unknown column 'e'"):
        read_matrix(path, drop="e")


def test_what_is_left_out_must_leave_something():
    with pytest.raises(DataError, match="no column is left"):
        documents(COUNTS, drop=list("abcd"))
    with pytest.raises(DataError, match="columns=, id=, drop= or text= of list"):
        documents(["a text"], id="x")


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (np.arange(40), "no two rows have the same in it"),
        (RNG.permutation(40) + 5000, "its mean is 30 times"),
        (RNG.integers(1990, 2020, 40), "its mean is 30 times"),
    ],
)
def test_a_column_that_is_no_count_is_named(column, why):
    frame = COUNTS.assign(who=column)
    for kind in (LDA, GammaPoisson):
        model = kind.for_data(frame, 2)
        with pytest.warns(DataWarning, match=f"column 'who' is probably no count: {why}.*--id.*--drop"):
            model.check_for_fitting(model.prepare(frame))
        model = kind.for_data(COUNTS, 2)
        model.check_for_fitting(model.prepare(COUNTS))  # without a warning


def test_large_counts_are_counts():
    frame = pd.DataFrame(RNG.poisson(1e5, (40, 4)))
    model = GammaPoisson.for_data(frame, 2)
    model.check_for_fitting(model.prepare(frame))
