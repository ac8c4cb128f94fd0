"""Models of documents with labels: numbers, names or indicators, one or several a document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ppl_models.core.errors import DataError, list_some
from ppl_models.data.covariates import beside
from ppl_models.data.held import MatrixLike
from ppl_models.data.matrix import Data
from ppl_models.kinds.given_documents import GivenDocuments


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledDocuments(GivenDocuments):
    """A topic model of documents with labels, indicators (N, L); a document all of whose are 0 has unknown ones."""

    beside_site: ClassVar[str] = "labels"

    def read_given(self, given: MatrixLike, data: Data) -> Tensor:
        """Return labels as indicators (N, L), 0 where unknown, from these or, where a document has one at most, from
        numbers 0, ..., L - 1, (N,), NaN or -1 where it is unknown. Raises DataError for others."""
        number = getattr(self, self.given_size)
        value = beside(given, data)
        if value.ndim == 2 and value.shape[1] == 1 and number > 1:
            value = value.squeeze(1)
        if value.ndim != 1:
            return torch.nan_to_num(value)
        label = torch.nan_to_num(value, nan=-1.0)
        wrong = ((label < -1) | (label >= number) | (label != label.round())).nonzero().flatten()
        if len(wrong):
            first = f"{float(label[wrong[0]]):g} of document {int(wrong[0])}"
            found = f"{len(wrong)} labels are unknown (the first: {first})"
            raise DataError(found, expected=f"0, ..., {number - 1}, or -1 or NaN where there is none")
        return (label.unsqueeze(-1) == torch.arange(number, device=label.device)).to(data.x.dtype)

    def check_given(self, given: Tensor) -> None:
        """Raise DataError for indicators other than 0 and 1."""
        wrong = ((given != 0) & (given != 1)).nonzero()
        if len(wrong):
            row, label = wrong[0].tolist()
            value = float(given[row, label])
            found = f"{len(wrong)} values are neither 0 nor 1 (the first: {value:g}, document {row}, label {label})"
            raise DataError(found, site="labels", expected="1 for the labels of a document, 0 for others")

    @classmethod
    def count_given(cls, given: Tensor | None) -> int | None:
        """Return the number of labels: of one column of their numbers a label for each of them."""
        if given is not None and (np.ndim(given) == 1 or (np.shape(given)[1] == 1 and float(np.nanmax(given)) > 1)):
            return int(np.nanmax(given)) + 1
        return super().count_given(given)

    def check_for_fitting(self, data: Data) -> None:
        """Refuse what LDA refuses, and labels that no document has: nothing is known of their topics."""
        super().check_for_fitting(data)
        given = data.others.get("labels")
        if given is None:
            self.check_without_labels()
            return
        without = (given.sum(0) == 0).nonzero().flatten().tolist()
        if without:
            found = f"{len(without)} labels without a document ({list_some(without, 5)})"
            raise DataError(found, site="labels", axis="label", expected="a document of every label, or fewer labels")

    def check_without_labels(self) -> None:
        """Refuse documents none of which has labels, or warn of them."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassifiedDocuments(LabelledDocuments):
    """A topic model of documents each of which has one label at most, its class: one of C, at least 2."""

    num_classes: int

    given_size: ClassVar[str] = "num_classes"
    named_axis: ClassVar[str] = "class"

    def check_given(self, given: Tensor) -> None:
        super().check_given(given)
        several = (given.sum(-1) > 1).nonzero().flatten()
        if len(several):
            found = f"{len(several)} documents of several classes (the first: document {int(several[0])})"
            raise DataError(found, site="labels", expected="one class a document; LabeledLDA takes several labels")

    @classmethod
    def count_given(cls, given: Tensor | None) -> int | None:
        return 2 if given is None else max(2, super().count_given(given) or 2)

    def check_without_labels(self) -> None:
        expected = f"fit(model, words, labels=...), whole numbers 0..{self.num_classes - 1}"
        raise DataError("documents without their classes", site="labels", expected=expected)
