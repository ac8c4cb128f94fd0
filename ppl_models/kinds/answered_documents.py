"""Models of documents with a response to each: numbers, counts, or one of several classes, which may have names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch

from ppl_models.core.document_model import DocumentModel
from ppl_models.core.errors import DataError, list_some
from ppl_models.core.likelihood import ExponentialFamily
from ppl_models.core.row_models import RowsBeside
from ppl_models.core.scales import OnOwnScale
from ppl_models.data.covariates import beside
from ppl_models.data.held import MatrixLike
from ppl_models.data.matrix import Data
from ppl_models.data.names import encode_classes
from ppl_models.likelihoods import Bernoulli, Categorical, Gaussian, Poisson


@dataclass(frozen=True, kw_only=True, eq=False)
class AnsweredDocuments(RowsBeside, OnOwnScale, DocumentModel):
    """A topic model of documents with ``response`` (N,) or (N, R), NaN where it is unknown: the door for these.

    response: what a response is: "binary", "categorical", "real" or "counts".
    """

    response: str = "binary"
    num_classes: int = 1
    num_responses: int = 1

    beside_site: ClassVar[str] = "response"
    named_axis: ClassVar[str] = "class"
    scaled_site: ClassVar[str] = "response"
    scaled_size: ClassVar[str] = "num_responses"

    @property
    def response_likelihood(self) -> ExponentialFamily:
        """p(c | eta), which says what responses may be; of real ones at a scale of 1."""
        if self.response == "categorical":
            return Categorical(self.num_classes)
        return {"binary": Bernoulli, "real": Gaussian, "counts": Poisson}[self.response]()

    def read_beside(self, given: MatrixLike, data: Data, names: list[Any] | None) -> Data:
        """Read the responses, (N,) or (N, R), whose classes may have names. Raises DataError for anything else."""
        several = (self.num_responses,) if self.num_responses > 1 else ()
        given, names = self._read_names(given, names)
        found = beside(given, data)
        shape = len(data), *several
        if found.shape != shape:
            each = f"{shape}, {self.num_responses} a document" if several else f"{shape}, one a document"
            raise DataError(f"shape {tuple(found.shape)}", expected=each)
        wrong = (~self.response_likelihood.valid(found) & ~torch.isnan(found)).nonzero()
        if len(wrong):
            what, expected = self.response_likelihood.refusal
            first = f"the first: {float(found[tuple(wrong[0])]):g} of document {int(wrong[0, 0])}"
            whole = self.response != "counts" and bool((found.nan_to_num() == found.nan_to_num().round().abs()).all())
            other = "counts" if whole else "real"
            hint = "" if self.response == "real" else f'; of such responses a model with response="{other}"'
            raise DataError(f"{len(wrong)} values {what} ({first})", expected=expected.partition(";")[0] + hint)
        return replace(data.with_labels("class", names), others={"response": found})

    @property
    def named_sizes(self) -> dict[str, int]:
        """The names of classes that a response has: two of a binary one."""
        return {"class": 2} if self.response == "binary" else {}

    def _read_names(self, given: MatrixLike, known: list[Any] | None) -> tuple[Any, list[Any] | None]:
        """Return one response a document as numbers, and the names of the classes; known: those of a fit.

        Raises DataError for names that are not known, and for another number of them than the model has.
        """
        if self.response not in ("binary", "categorical") or self.num_responses > 1:
            return given, None
        given, names = encode_classes(given, known)
        number = self.named_sizes.get("class", self.num_classes)
        if names is not None and len(names) != number:
            found = f"{len(names)} classes ({list_some(names)})"
            expected = 'two, or response="categorical"' if self.response == "binary" else f"num_classes = {number}"
            raise DataError(found, expected=expected)
        return given, names

    def check_for_fitting(self, data: Data) -> None:
        """Refuse what LDA refuses, and data without any response, or whose responses are all the same."""
        super().check_for_fitting(data)
        known = data.others.get("response")
        if known is None or bool(torch.isnan(known).all()):
            what = {"binary": "0 or 1, or one of two names", "categorical": f"0 to {self.num_classes - 1}, or a name"}
            each = what.get(self.response, {"real": "a number", "counts": "0, 1, 2, ..."}.get(self.response, ""))
            found = "no responses" if known is None else f"all {len(known)} responses are missing"
            raise DataError(
                found, site="response", expected=f"fit(model, words, response=...), {each} of some documents"
            )
        for place, column in enumerate(known.reshape(len(known), -1).T):
            seen = column[~torch.isnan(column)]
            which = f"of response {place} " if self.num_responses > 1 else ""
            if not len(seen):
                raise DataError(f"no value {which}is known", site="response", expected="some documents to learn from")
            if bool((seen == seen[0]).all()):
                found = f"all {len(seen)} values {which}are {float(seen[0]):g}"
                raise DataError(found, site="response", expected="at least two different ones to learn from")

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """Return the model of the data's vocabulary, with as many classes or responses as the data have."""
        response, kind = data.others.get("response"), settings.get("response", "binary")
        if response is not None and response.ndim > 1:
            settings.setdefault("num_responses", response.shape[1])
        elif response is not None and kind == "categorical":
            named = len(data.coords.get("class") or ())  # of a pandas Categorical all, whether they occur or not
            settings.setdefault("num_classes", max(2, named, int(torch.nan_to_num(response).max()) + 1))
        return super().for_data(data, num_components, **settings)
