"""Models of documents that come with something else, labels or covariates, on which their words depend."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

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
