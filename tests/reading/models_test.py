"""Every model reads further data as those of its fit: columns, words and nodes by their names, whatever holds them."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
import xarray as xr

from custom_inference.core.reader import Reader
from ppl_models import MODELS, Data, DataError
from ppl_models.data.adapt import adapt

#: Models whose rows are a matrix, and those of graphs.
ROWS = {name: kind for name, kind in MODELS.items() if kind.example().data.container == "rows"}
ROWS = {name: kind for name, kind in ROWS.items() if kind.example().data.x.ndim == 2 and name != "choice_pmf"}
GRAPHS = {name: kind for name, kind in MODELS.items() if kind.example().model.is_graph}


def read_example(kind: Any) -> tuple[Any, pd.DataFrame, dict[str, Any], Data]:
    """A model, its example as a table with names, what stands beside its rows, and both as the model reads them."""
    example = kind.example()
    table = pd.DataFrame(example.data.dense().x_with_nan.numpy())
    table = table.set_axis([f"c{j}" for j in table.columns], axis=1).set_axis([f"r{n}" for n in table.index], axis=0)
    beside = dict(example.data.others)
    with warnings.catch_warnings(action="ignore"):
        read = example.model.prepare(table, **example.data.others)
    return example.model, table, beside, read


def same(one: Data, other: Data) -> None:
    assert one.coords.get("feature") == other.coords.get("feature")
    np.testing.assert_array_equal(one.dense().x, other.dense().x)
    for site in one.others:
        value, found = (side.others[site] for side in (one, other))
        np.testing.assert_allclose(found.to_dense() if found.layout != torch.strided else found, value.to_dense())


@pytest.mark.parametrize("name", ROWS)
def test_columns_of_further_rows_go_by_their_names(name):
    model, table, beside, read = read_example(ROWS[name])
    reader = Reader(model, read)
    reverse = table[table.columns[::-1]]
    held = {
        "frame": reverse,
        "xarray": xr.DataArray(reverse.to_numpy(), dims=("row", "feature"), coords={"feature": list(reverse)}),
        "arrow": pa.Table.from_pandas(reverse, preserve_index=False),
        "polars": pl.from_pandas(reverse),
        "array": table.to_numpy(),
        "masked array": np.ma.masked_invalid(table.to_numpy()),
        "torch": torch.tensor(table.to_numpy()),
    }
    for container, x in held.items():
        with warnings.catch_warnings(action="ignore"):
            found = reader.read(x, **beside)
        same(replace(read, others={site: read.others[site] for site in beside}), found)
        assert container != "frame" or found.coords["row"] == list(table.index)
    if model.data_kind != "documents":
        with pytest.raises(DataError, match="'other'"):
            reader.read(reverse.set_axis([*list(reverse)[:-1], "other"], axis=1), **beside)


@pytest.mark.parametrize("name", [name for name in ROWS if ROWS[name].example().data.others])
def test_what_stands_beside_rows_goes_by_their_labels(name):
    model, table, beside, read = read_example(ROWS[name])
    for site, value in beside.items():
        values = value.to_dense().numpy()
        held = pd.Series(values, table.index) if values.ndim == 1 else pd.DataFrame(values, table.index)
        if site in read.between:
            held = held.set_axis(table.index, axis=1).sample(frac=1, random_state=1, axis=1)
        others = {one: given for one, given in read.others.items() if one != site}
        with warnings.catch_warnings(action="ignore"):
            found = model.prepare(table, **{**others, site: held.sample(frac=1, random_state=0)})
        np.testing.assert_allclose(found.others[site].to_dense(), read.others[site].to_dense())
        with pytest.raises(DataError, match="unknown|nothing is given"):
            model.prepare(table, **{**others, site: cast(Any, held).rename(index={"r1": "r-1"})})


@pytest.mark.parametrize("name", GRAPHS)
def test_nodes_of_a_table_go_by_their_names(name):
    example = GRAPHS[name].example()
    matrix = example.data.dense().x.numpy()
    nodes = [f"n{i:02d}" for i in range(len(matrix))]
    table = pd.DataFrame(matrix, nodes, nodes)
    first, again = (cast(Any, example.model.prepare(one)) for one in (table, table[nodes[::-1]]))
    assert first.nodes == again.nodes == nodes and torch.equal(first.x.to_dense(), again.x.to_dense())


def test_arrays_with_names_of_dimensions_are_turned_as_those_of_the_fit():
    model, table, _, _ = read_example(MODELS["mixture_of_bernoullis"])
    square = table.iloc[: table.shape[1]]
    for coords in ({}, {"shop": list(square.index), "kind": list(square)}):
        given = xr.DataArray(square.to_numpy(), dims=("shop", "kind"), coords=coords)
        read = model.prepare(given)
        same(read, Reader(model, read).read(given.transpose("kind", "shop")))


def test_what_no_library_is_known_of_stays_as_it_is():
    class Own:
        pass

    for source in (Own(), "text", None, 3, [1], {"a": 1}, iter([1]), np.arange(3), torch.arange(3), pd.Series([1])):
        assert adapt(source) is source
    with pytest.raises(DataError, match="an xarray Dataset of 'u', 'v'.*one of its arrays"):
        adapt(xr.Dataset({"u": ("x", [1]), "v": ("x", [2])}))
    words = adapt(np.ma.array(["yes", "no"], mask=[True, False]))
    assert words.tolist() == [None, "no"]
    exact = adapt(np.ma.array([2**60 + 1, 0], mask=[False, True]))
    assert exact.tolist() == [2**60 + 1, None]
    assert adapt(pa.array([1, 2])).tolist() == adapt(pl.Series([1, 2])).tolist() == [1, 2]
