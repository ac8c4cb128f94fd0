"""What stands beside the rows of a model in columns of its file: responses, covariates, times, labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.distributions import constraints

from ppl_models import DataError, Model
from ppl_models.data.files.reading import naming
from ppl_models.data.files.tables import columns_called
from ppl_models.data.lazy import pandas as pd

#: Between the labels of one row.
BETWEEN_LABELS = "|"


def chosen(frame: pd.DataFrame, names: Sequence[str], path: Path) -> pd.DataFrame:
    """Columns of a table. Raises DataError for one that it does not have."""
    with naming(path):
        return frame.loc[:, columns_called(frame, names)]


def values(model: Model, site: str, frame: pd.DataFrame) -> torch.Tensor:
    """Columns as values (N, P) of a site, in float64; NaN where a cell is empty.

    Numbers stay what they are. Words are categories, sorted: numbered from 0 for a site of one value a row; for a
    binary site indicators of each, of several in a cell between ``|``; for covariates indicators of each but the first.
    """
    declared = model.sites.get(site)
    parts = []
    for name, column in frame.items():
        if pd.api.types.is_numeric_dtype(column):
            parts.append(column.to_numpy(np.float64)[:, None])
        elif declared is not None and not declared.dims:
            codes = pd.Categorical(column).codes.astype(np.float64)
            parts.append(np.where(codes < 0, np.nan, codes)[:, None])
        else:
            found = column.astype(str).str.get_dummies(BETWEEN_LABELS)
            binary = declared is not None and declared.support is constraints.boolean
            indicators = found.to_numpy(np.float64) if binary else found.to_numpy(np.float64)[:, 1:]
            if not indicators.size:
                raise DataError(f"column {name!r} has one value alone", site=site, expected="two values or more")
            parts.append(np.where(column.isna().to_numpy()[:, None], np.nan, indicators))
    return torch.from_numpy(np.concatenate(parts, 1))
