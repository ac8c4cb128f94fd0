"""Models of documents that were written at different times: slices of time, and their labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import torch

from ppl_models.core.document_model import DocumentModel
from ppl_models.core.errors import DataError, about, list_some, warn_of_absent
from ppl_models.data import sparse as _sparse
from ppl_models.data.covariates import beside, given_or_own, labels_held
from ppl_models.data.held import Reading, Source
from ppl_models.data.lazy import is_pandas
from ppl_models.data.lazy import pandas as pd
from ppl_models.data.matrix import Data
from ppl_models.data.times import BINNING, Times, count_slices, slices_of


@dataclass(frozen=True, kw_only=True, eq=False)
class DatedDocuments(DocumentModel):
    """A topic model of documents in T slices of time, ``time`` (N,): the door for these."""

    num_times: int

    axes: ClassVar[Mapping[str, str]] = {**DocumentModel.axes, "time": "num_times"}

    def dated(self, data: Data) -> Data:
        """Return the same documents with a column t V + v for word v in slice t, (N, T V), sparse.

        They are documents of the topics of all slices side by side. Without their slices they are in the last.
        """
        seen = data.observed_x
        counts = seen if _sparse.is_sparse(seen) else _sparse.from_dense(seen)
        time = data.others.get("time", torch.full((len(data),), float(self.num_times - 1), device=seen.device))
        row, column, values = _sparse.triplets(counts)
        column = time.long()[row] * self.vocabulary_size + column
        size = (len(data), self.num_times * self.vocabulary_size)
        return Data(x=_sparse.tensor(counts.crow_indices(), column, values, size=size), coords={})

    def prepare(self, data: Source, *, time: Times | None = None, **reading: Unpack[Reading]) -> Data:
        """Check word counts, and the times (N,) of the documents.

        Whole numbers 0..T-1 are slices, which may be empty; of anything else the T different times that occur are the
        slices, in the order of time where it can be told (of words by letters, with a DataWarning), or the
        categories of a pandas Categorical, and stay as labels. Raises DataError for others.
        """
        return self._with_slices(data, super().prepare(data, **reading), time, None)

    def prepare_new(self, data: Source, like: Data, *, time: Times | None = None, **reading: Unpack[Reading]) -> Data:
        """Check data as :meth:`prepare` does, in the vocabulary and the slices of the documents ``like``.

        Documents without times are of the last slice, the mean of what is to come. Raises DataError for times that
        ``like`` does not have.
        """
        return self._with_slices(data, super().prepare_new(data, like, **reading), time, like)

    def _with_slices(self, data: Source, checked: Data, time: Times | None, like: Data | None) -> Data:
        """Return documents with the slices beside the words; ``like``: those fitted to, whose labels they have."""
        given: Any = given_or_own(time, data, "time")
        if given is None:
            return replace(checked, others={})
        own = time is None
        labels = labels_held(data, "time") if own else None if like is None else like.coords.get("time")
        with about("time"):
            if own and labels is not None:
                found, labels = given.double().cpu().numpy(), list(labels)
            else:
                if is_pandas(given, "Series"):  # in the order of the documents, where both have labels
                    place = beside(pd.Series(np.arange(len(given)), given.index), checked, dtype=torch.float64)
                    given = given.iloc[place.long().cpu().numpy()]
                found, labels = self._slices(given, labels, like is not None)
            if len(found) != len(checked):
                raise DataError(f"shape {found.shape}", expected=f"({len(checked)},), one a document")
            if len(labels) != self.num_times or not bool(np.isin(found, range(self.num_times)).all()):
                numbers = f"num_times = {self.num_times} of them, or whole numbers 0..{self.num_times - 1}"
                expected = f"{numbers}; {type(self).__name__}.for_data counts those that occur; or {BINNING}"
                raise DataError(f"{len(labels)} different times, {list_some(labels)}", expected=expected)
        named = checked.with_labels("time", None if labels == list(range(self.num_times)) else labels)
        return replace(named, others={"time": torch.as_tensor(found).to(checked.x)})

    def _slices(self, time: Times, known: list[Any] | None, fitted: bool) -> tuple[np.ndarray, list[Any]]:
        """Return slices and their labels; known: those of a fit, which are numbers where there are none."""
        numbers = list(range(self.num_times))
        if fitted:
            return slices_of(time, numbers if known is None else known)
        found, labels = slices_of(time)
        if set(labels) <= set(numbers) and not hasattr(getattr(time, "cat", time), "categories"):
            return np.array(labels, dtype=np.float64)[found.astype(int)], numbers
        return found, labels

    def check_for_fitting(self, data: Data) -> None:
        """Refuse what LDA refuses, and documents without slices where there is more than one; warn of those without
        where there is one, in which nothing changes over time."""
        super().check_for_fitting(data)
        if "time" in data.others:
            return
        if self.num_times > 1:
            expected = f"fit(model, words, time=...), of num_times = {self.num_times} slices"
            raise DataError("documents without their slices", site="time", expected=expected)
        warn_of_absent("time", "all are of one slice, and no topic changes", "time=..., when each was written")

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """Return the model of as many words as the data, and as many slices as their times say; one without."""
        time = data.others.get("time")
        labels = data.coords.get("time")
        slices = 1 if time is None else count_slices(time) if labels is None else len(labels)
        settings.setdefault("num_times", slices)
        return super().for_data(data, num_components, **settings)
