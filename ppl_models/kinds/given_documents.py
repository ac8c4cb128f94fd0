"""Models of documents that come with something else, labels or covariates, on which their words depend."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from ppl_models.core.document_model import DocumentModel
from ppl_models.core.errors import DataError, list_some, warn_of_absent
from ppl_models.core.row_models import RowsBeside
from ppl_models.core.scales import OnOwnScale
from ppl_models.data.covariates import beside, covariates_of
from ppl_models.data.held import MatrixLike
from ppl_models.data.matrix import Data
from ppl_models.data.names import encode_labels


@dataclass(frozen=True, kw_only=True, eq=False)
class GivenDocuments(RowsBeside, DocumentModel):
    """A topic model of documents with which something is given: the door for it."""

    #: The field that is the number of what is given with each document, (N, number).
    given_size: ClassVar[str]

    def read_given(self, given: MatrixLike, data: Data) -> Tensor:
        """Return what is given as numbers of the type of the words' counts."""
        return beside(given, data)

    def check_given(self, given: Tensor) -> None:
        """Raise DataError for values that cannot be."""

    @classmethod
    def count_given(cls, given: Tensor | None) -> int | None:
        """Return the number that ``given_size`` is in a model for these data; None: the class's own."""
        return 1 if given is None or given.ndim < 2 else given.shape[1]

    def read_beside(self, given: MatrixLike, data: Data, names: list[Any] | None) -> Data:
        """Read what is given with each document, (N, number). Raises DataError for anything else."""
        number = getattr(self, self.given_size)
        if self.named_axis:
            given, names = encode_labels(given, number, names)
            if names is not None and len(names) != number:
                found = f"{len(names)} different ones ({list_some(names)})"
                raise DataError(found, axis=self.named_axis, expected=f"{self.given_size} = {number} of them")
        value = self.read_given(given, data)
        if value.shape != (len(data), number):
            each = f"one row for each document and one column for each of {self.given_size}"
            raise DataError(f"shape {tuple(value.shape)}", expected=f"{(len(data), number)}, {each}")
        self.check_given(value)
        return replace(data.with_labels(self.named_axis, names), others={self.beside_site: value})

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """Return the model whose vocabulary, and number of what is given, are the data's."""
        if cls.given_size not in settings:
            number = cls.count_given(data.others.get(cls.beside_site))
            settings |= {} if number is None else {cls.given_size: number}
        return super().for_data(data, num_components, **settings)


@dataclass(frozen=True, kw_only=True, eq=False)
class CovariateDocuments(OnOwnScale, GivenDocuments):
    """A topic model of documents with covariates u (N, P), finite numbers in units of their own."""

    num_covariates: int

    beside_site: ClassVar[str] = "covariates"
    given_size: ClassVar[str] = "num_covariates"
    scaled_site: ClassVar[str] = "covariates"
    scaled_size: ClassVar[str] = "num_covariates"

    def read_given(self, given: MatrixLike, data: Data) -> Tensor:
        if not self.num_covariates:
            raise DataError("covariates of a model without any", site="covariates", expected="num_covariates = P")
        return covariates_of(given, data, self.num_covariates)

    def average(self, rows: int, like: Tensor) -> Tensor:
        """Return the covariates (N, P) of documents of which nothing is known: the centre."""
        return self.scale_of_columns(like)[0].expand(rows, -1)

    def check_for_fitting(self, data: Data) -> None:
        """Refuse what LDA refuses; warn of documents without covariates, all of one prior."""
        super().check_for_fitting(data)
        if "covariates" not in data.others:
            warn_of_absent("covariates", "all have one prior, that of the bias", "covariates=..., a row for each")


@dataclass(frozen=True, kw_only=True, eq=False)
class AverageDocuments(CovariateDocuments):
    """A topic model of documents whose covariates, where they are not given, are those of an average document."""

    def without_beside(self, data: Data) -> dict[str, Tensor]:
        return {"covariates": self.average(len(data), data.x)} if self.num_covariates else {}

    @classmethod
    def count_given(cls, given: Tensor | None) -> int | None:
        return None if given is None else super().count_given(given)

    def check_for_fitting(self, data: Data) -> None:
        """Refuse what LDA refuses; warn where all documents have the covariates of an average one, as without any.

        One column of another number than 0 is an intercept alone.
        """
        GivenDocuments.check_for_fitting(self, data)
        given = data.others.get("covariates")
        if given is None or (given.shape[1] == 1 and bool((given != 0).all())):
            return
        if torch.equal(given, self.average(len(data), given)):
            lost = "all are average ones, and no weight is learned"
            warn_of_absent("covariates", lost, "covariates=..., one row each")


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
