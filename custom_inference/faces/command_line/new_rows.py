"""New rows for a saved fit: read as its own were, with its columns, words, answers, levels and classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from custom_inference.core.fit import Fit
from custom_inference.faces.command_line.options import SourceOptions
from custom_inference.faces.command_line.run import read_data
from custom_inference.faces.command_line.source import WORDS, Source, split_names
from ppl_models import Data, DataError, GraphData, MethodError
from ppl_models.core.errors import unknown_name
from ppl_models.data.files.tables import columns_called, read_table
from ppl_models.data.held import is_string
from ppl_models.data.lazy import pandas as pd

#: Options that choose the words of documents, which a fit has chosen.
_CHOSEN = tuple(name for name in WORDS if name != "text")


def read_rows(fit: Fit, options: SourceOptions) -> tuple[Data | pd.DataFrame, dict[str, Any]]:
    """Return rows in the form that ``fit.transform`` takes, and what is given beside them, by the names of its sites.

    Documents are counted in the vocabulary of the fit; of a table the columns that the fit knows are read.
    """
    source, model = Source(**vars(options)), fit.model
    source.refuse_weights("a command that reads new rows")
    if model.data_kind == "documents":
        source.refuse(_CHOSEN, "for documents whose words a fit has chosen", "texts or counts as they are")
    source = source.as_before(fit)
    rows: Any = None
    if model.is_graph and options.directed is None:
        source = replace(source, directed=cast(GraphData, fit.data).directed)
    elif not model.is_graph and model.data_kind not in ("ratings", "sequences") and source.text is None:
        rows = source.table_of_rows(fit.data.coords.get("feature", ()), words=model.data_kind == "documents")
    given = source.read_beside(model)
    valid = [*model.sites_of("given"), getattr(model, "scaled_site", "")]
    for site in given:
        if not model.sites_of("given"):
            raise MethodError(f"--with {site}=... of {type(model).__name__}, whose rows are given nothing beside FILE")
        if site not in valid:
            raise MethodError(unknown_name(f"--with of new rows of {type(model).__name__}", site, valid))
    if rows is None or source.threshold is not None:
        source = replace(source, vocabulary=fit.data) if model.data_kind == "documents" else source
        return read_data(model, source), given
    return rows, given


def read_pairs(fit: Fit, options: SourceOptions, names: Sequence[str]) -> pd.DataFrame:
    """Return the two columns of a table, the first or those that --columns names, called ``names``; ids are of the kind
    that the fit knows, so that 12 beside "007" is "12"."""
    source = Source(**vars(options))
    asked = split_names(options.columns) or []
    frame = read_table(options.file, source.header_given, lists=(2, 3), custom=False, asked=asked)
    chosen = frame.loc[:, columns_called(frame, asked)] if asked else frame.iloc[:, :2]
    if chosen.shape[1] != 2:
        expected = f"{names[0]} and {names[1]}: a table of two columns, or --columns A,B"
        raise DataError(f"{chosen.shape[1]} columns of {options.file}", expected=expected)
    for place, axis in enumerate(("row", "row" if fit.model.is_graph else "feature")):
        if pd.api.types.is_integer_dtype(chosen.iloc[:, place]) and all(map(is_string, fit.data.coords.get(axis, [0]))):
            chosen = chosen.astype({chosen.columns[place]: str})
    return chosen.set_axis(list(names), axis=1)
