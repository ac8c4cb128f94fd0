"""One door for documents: whatever people hold their texts in comes out as sparse word counts with labels."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from ppl_models import _sparse
from ppl_models._data import Data, _refuse, as_matrix
from ppl_models._errors import DataError, DataWarning


def as_documents(
    data: Any,
    *,
    mask: Any = None,
    vocabulary: Sequence[str] | None = None,
    vocabulary_size: int | None = None,
    site: str = "x",
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Data:
    """Documents by words: counts in torch's CSR layout where nothing is missing, the words as coords["feature"].

    Masked entries are left out of their documents, as if these were shorter.
    """
    del vocabulary
    settings: dict[str, Any] = {"mask": mask, "site": site, "dtype": dtype, "device": device}
    checked = as_matrix(data, keep_sparse=True, **settings)
    if vocabulary_size is not None and checked.num_features != vocabulary_size:
        problem = f"{checked.num_features} words where the model has vocabulary_size = {vocabulary_size}"
        raise DataError(problem, site=site, axis="word", expected=f"shape (N, {vocabulary_size})")
    _refuse(
        lambda x: (x < 0) | (x != x.round()) | torch.isinf(x),
        checked,
        site=site,
        what="are no counts",
        expected="whole numbers of at least 0; NaN for missing",
    )
    return checked


def check_documents(data: Data, *, site: str = "x") -> None:
    """What is legal for one document but cannot be learned from: raises on no tokens at all, warns of empty ones."""
    names = data.coords.get("feature", range(data.num_features))
    x = data.x if data.mask is None else data.x * data.mask
    empty = (_sparse.row_sums(x) == 0).nonzero().flatten().tolist()
    if len(empty) == len(data):
        raise DataError("every document is empty", site=site, axis="document", expected="at least one token")
    if empty:
        labels = data.coords.get("row", range(len(data)))
        message = (
            f"site '{site}': {len(empty)} of {len(data)} documents are empty (the first: {labels[empty[0]]!r}); "
            "they say nothing of the topics, and their topic proportions are those of the prior"
        )
        warnings.warn(message, DataWarning, stacklevel=5)
    unused = (_sparse.column_sums(x) == 0).nonzero().flatten().tolist()
    if unused:
        message = (
            f"site '{site}': {len(unused)} of {data.num_features} words occur in no document (the first: "
            f"{names[unused[0]]!r}); their probabilities are those of the prior"
        )
        warnings.warn(message, DataWarning, stacklevel=5)
