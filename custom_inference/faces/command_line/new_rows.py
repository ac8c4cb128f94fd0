"""New rows for a saved fit: read as the model reads its own, with the words, answers and classes of the fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch.distributions import constraints

from custom_inference.core.fit import Fit
from custom_inference.faces.command_line import columns
from custom_inference.faces.command_line.options import SourceOptions
from custom_inference.faces.command_line.run import read_data
from custom_inference.faces.command_line.source import WORDS, Source, split_names
from ppl_models import Data, DataError, GraphData, MethodError, Model
from ppl_models.core.errors import list_some, unknown_name
from ppl_models.data.files.tables import columns_called, read_table
from ppl_models.data.lazy import pandas as pd

#: Options that choose the words of documents, which a fit has chosen.
_CHOSEN = tuple(name for name in WORDS if name != "text")


def read_rows(fit: Fit, options: SourceOptions) -> tuple[Data | pd.DataFrame, dict[str, Any]]:
    """Return rows in the form that ``fit.transform`` takes, and what is given beside them, by the names of its sites.

    Documents are counted in the vocabulary of the fit; tables of answers keep these, which the fit numbers.
    """
    source, model = Source(**vars(options)), fit.model
    source.refuse_weights("a command that reads new rows")
    if model.data_kind == "documents":
        source.refuse(_CHOSEN, "for documents whose words a fit has chosen", "texts or counts as they are")
        words: Any = fit.data.coords.get("feature")
        source = replace(source, vocabulary=words)
    if model.is_graph and options.directed is None:
        source = replace(source, directed=cast(GraphData, fit.data).directed)
    rows = source.answers_table() if model.data_kind == "categories" else None
    return read_data(model, source) if rows is None else rows, _read_given(fit, source)


def read_pairs(options: SourceOptions, names: Sequence[str]) -> pd.DataFrame:
    """Return the two columns of a table, the first or those that --columns names, called ``names``."""
    source = Source(**vars(options))
    asked = split_names(options.columns) or []
    frame = read_table(options.file, source.header_given, lists=(2, 3), custom=False, asked=asked)
    chosen = frame.loc[:, columns_called(frame, asked)] if asked else frame.iloc[:, :2]
    if chosen.shape[1] != 2:
        expected = f"{names[0]} and {names[1]}: a table of two columns, or --columns A,B"
        raise DataError(f"{chosen.shape[1]} columns of {options.file}", expected=expected)
    return chosen.set_axis(list(names), axis=1)


def _read_given(fit: Fit, source: Source) -> dict[str, Any]:
    model, valid = fit.model, fit.model.sites_of("given")
    found: dict[str, Any] = {}
    for site, one in source.beside_rows.items():
        if not valid:
            raise MethodError(f"--with {site}=... of {type(model).__name__}, whose rows are given nothing beside FILE")
        if site not in valid:
            raise MethodError(unknown_name(f"--with of new rows of {type(model).__name__}", site, valid))
        frame = source.table_beside(one)
        if site in model.axes and not model.sites[site].dims:  # places on an axis, whose labels the fit has
            found[site] = frame.iloc[:, 0].to_numpy()
        else:
            names = [str(name) for name in fit.coords[model.dims[site][1]]] if len(model.dims[site]) > 1 else []
            values = encode_as(model, site, frame, names)
            found[site] = values if names else values[:, 0]
    return found


def encode_as(model: Model, site: str, frame: pd.DataFrame, names: Sequence[str]) -> torch.Tensor:
    """Columns as values (N, P) of a given site whose P places have names: those of columns, "column = word", or labels.

    Where the fit had no names, numbers are taken in their order. Words are those of the fit: the one that it has no
    indicator for is the first of its words in the order of letters.

    Raises DataError for columns and words that the fit does not have, naming them, and for columns that are missing.
    """
    numeric = all(pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes)
    if numeric and list(map(str, range(len(names)))) == list(names):
        return torch.from_numpy(frame.to_numpy(np.float64, copy=True))
    if model.sites[site].support is constraints.boolean and not numeric:
        return _indicators(site, frame.iloc[:, 0], names, names, f"labels of column {frame.columns[0]!r}")
    parts: dict[str, np.ndarray] = {}
    for name, column in frame.items():
        if pd.api.types.is_numeric_dtype(column):
            parts[str(name)] = column.to_numpy(np.float64, copy=True)
            continue
        if column.isna().any():
            told = f"{int(column.isna().sum())} cells of column {name!r} are empty"
            raise DataError(told, site=site, expected="a word in each")
        words = [one.removeprefix(f"{name} = ") for one in names if one.startswith(f"{name} = ")]
        known = [*_find_first_word(column, words), *words]
        table = _indicators(site, column, known, words, f"words of column {name!r}").numpy()
        parts |= {f"{name} = {word}": table[:, place] for place, word in enumerate(words)}
    if names and set(parts) != set(names):
        told = f"columns {list_some(sorted(parts))}"
        raise DataError(told, site=site, expected=f"those of the fit: {', '.join(names)}")
    return torch.from_numpy(np.stack([parts[name] for name in names or parts], 1))


def _find_first_word(column: pd.Series, words: Sequence[str]) -> list[str]:
    """Return the word that a fit has no indicator for, if it occurs: of those unknown the only one, before all others
    in the order of letters."""
    unknown = sorted(set(column.dropna().astype(str)) - set(words))
    return unknown if len(unknown) == 1 and words and unknown[0] < min(words) else []


def _indicators(site: str, column: pd.Series, known: Sequence[str], words: Sequence[str], what: str) -> torch.Tensor:
    cells = column.reset_index(drop=True).astype(object).where(column.notna().to_numpy(), "").astype(str)
    table = cells.str.get_dummies(columns.BETWEEN_LABELS)
    unknown = [word for word in table.columns if word not in known]
    if unknown:
        more = "" if known is words else ", or the word of the fit that comes before these"
        raise DataError(f"{what} that the fit does not have: {list_some(unknown)}", site=site,
                        expected=f"some of {', '.join(known)}{more}")  # fmt: skip
    return torch.from_numpy(table.reindex(columns=list(words), fill_value=0).to_numpy(np.float64, copy=True))
