"""Blocks of covariates of users or items: what is known of them, by name, as matrices of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse

from ppl_models.core.errors import DataError
from ppl_models.data.containers import as_numbers, axis_labels, unpack
from ppl_models.data.held import MatrixLike, labels_of
from ppl_models.data.labels import places_of
from ppl_models.data.lazy import is_pandas
from ppl_models.data.lazy import pandas as pd


def covariate_blocks(
    source: Mapping[str, MatrixLike] | pd.DataFrame, labels: Sequence[Any] | None = None
) -> dict[str, Any]:
    """A block (N, P) of every column of a frame, or of every part of a mapping.

    labels: of the users or items (``data.users``): the rows of a frame that has these in its index, in their order. By
        default, and of a mapping, rows are in the order of the data.

    >>> blocks = covariate_blocks({"job": ["cook", "smith", "cook"], "age": [30, 40, 50]})
    >>> {name: block.shape for name, block in blocks.items()}
    {'job': (3, 2), 'age': (3, 1)}

    Numbers (N,) get mean 0 and standard deviation 1; labels and truth values (N,) a column each that is 1 where they
    hold; matrices (N, P) stay as they are. Raises DataError for what is missing, for parts of different lengths, and
    for labels that the index does not have.
    """
    if labels is not None:
        if not is_pandas(source, "DataFrame"):
            raise DataError(
                f"labels beside a {type(source).__name__}", site="covariates", expected="a frame with an index"
            )
        source = source.iloc[places_of(list(labels), list(source.index), len(source), "row")]
    parts = {str(name): source[name] for name in source}
    blocks = {name: _block(value, name) for name, value in parts.items()}
    beside_each_other(blocks, "covariates")
    rows = labels_of(source.index) if is_pandas(source, "DataFrame") else None
    return blocks if rows is None else {name: pd.DataFrame(block, rows) for name, block in blocks.items()}


def _block(value: MatrixLike, name: str) -> np.ndarray:
    if getattr(value, "ndim", 1) == 2:
        return _matrix(value)
    series = pd.Series(value).reset_index(drop=True)
    if bool(series.isna().any()):
        raise DataError(f"{int(series.isna().sum())} of {len(series)} are missing", site=name, expected="all of them")
    if pd.api.types.is_numeric_dtype(series) and not pd.api.types.is_bool_dtype(series):
        x = np.asarray(as_numbers(series.to_numpy()), np.float64)
        return ((x - x.mean()) / (x.std() or 1.0))[:, None]
    place, labels = pd.factorize(series, sort=True)
    return np.eye(len(labels))[place]


def _matrix(value: Any) -> np.ndarray:
    return np.asarray(value.toarray() if scipy.sparse.issparse(value) else unpack(value)[0], np.float64)


def beside_each_other(blocks: Mapping[Any, Any], site: str) -> Any:
    """Blocks (N, P_b) as one matrix (N, P), under the labels of their rows where all have the same. Raises DataError
    where they do not fit."""
    parts = {name: _matrix(value) for name, value in blocks.items()}
    if len({(part.ndim, len(part)) for part in parts.values()}) != 1 or next(iter(parts.values())).ndim != 2:
        shapes = ", ".join(f"{name} {part.shape}" for name, part in parts.items())
        raise DataError(f"blocks of shapes {shapes}", site=site, expected="(N, P) each, one N for all")
    labels = [axis_labels(block)[0] for block in blocks.values()]
    found = np.concatenate([*parts.values()], 1)
    return found if labels[0] is None or labels.count(labels[0]) < len(labels) else pd.DataFrame(found, labels[0])
