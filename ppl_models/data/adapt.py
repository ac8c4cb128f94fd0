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
    found = found.collect() if hasattr(found, "collect") else found  # of a lazy table
    return found.to_pandas() if found is not source and hasattr(found, "to_pandas") else source


#: Modules whose containers the suite reads itself, and its own.
_KNOWN = ("builtins", "numpy", "torch", "scipy", "pandas", "pathlib", "networkx", "collections")
_OWN = ("ppl_models.", "custom_inference.")


def _without_mask(source: np.ma.MaskedArray) -> np.ndarray:
    hidden, values = np.ma.getmaskarray(source), np.ma.getdata(source)
    if not hidden.any():
        return values
    known = values.astype(object)[~hidden]
    exact = values.dtype.kind not in "iu" or not bool((np.abs(known) >= 2**53).any())
    is_real = values.dtype.kind in "buif" and exact
    found = values.astype(np.float64 if is_real else object)
    found[hidden] = np.nan if is_real else None
    return found
