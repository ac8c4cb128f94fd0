"""Containers of other libraries, in the forms that the suite reads: the outermost edge, at which no name, label or mask
is lost."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ppl_models.core.errors import DataError


def adapt(source: Any) -> Any:
    """Return data as pandas, numpy, torch, scipy or Python hold them; what is held so already comes back as it is.

    Tables and columns of Arrow, polars and whatever else narwhals knows become pandas' with their names; masked arrays
    become arrays with NaN, or None among words, where they are masked.

    Raises DataError for what cannot be converted.
    """
    kind = type(source)
    module = kind.__module__.partition(".")[0]
    if isinstance(source, np.ma.MaskedArray):
        return _without_mask(source)
    if module in _KNOWN or kind.__module__.startswith(_OWN):
        return source
    if module == "pyarrow":  # a part of a table or of a column is one
        arrow = sys.modules["pyarrow"]
        whole = {arrow.RecordBatch: arrow.Table.from_batches, arrow.Array: arrow.chunked_array}
        source = next((make([source]) for part, make in whole.items() if isinstance(source, part)), source)
    if module == "xarray" and kind.__name__ == "Dataset":
        expected = "one of its arrays, as data['name'], or data.to_array()"
        raise DataError(f"an xarray Dataset of {', '.join(map(repr, source.data_vars))}", expected=expected)
    if module == "xarray":
        return source
    import narwhals as nw

    found = nw.from_native(source, pass_through=True, allow_series=True)
    if isinstance(found, nw.LazyFrame):
        found = found.collect()
    return found.to_pandas() if isinstance(found, nw.DataFrame | nw.Series) else source


#: Modules whose containers the suite reads itself, and its own.
_KNOWN = ("builtins", "numpy", "torch", "scipy", "pandas", "pathlib", "networkx", "collections")
_OWN = ("ppl_models.", "custom_inference.")


def _without_mask(source: np.ma.MaskedArray) -> np.ndarray:
    hidden, values = np.ma.getmaskarray(source), np.ma.getdata(source)
    if not hidden.any():
        return values
    if values.dtype.kind not in "buif":
        return np.where(hidden, None, values.astype(object))
    exact = values.dtype.kind in "iu" and bool((np.abs(values.astype(object)[~hidden]) >= 2**53).any())
    return np.where(hidden, None if exact else np.nan, values.astype(object) if exact else values)
