"""Estimators of models that respond: documents X and a response y, as a classifier's or a regressor's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from custom_inference.faces.sklearn.base import Array, Column, Table
from custom_inference.faces.sklearn.topics import DocumentEstimator
from ppl_models import Data, DataError, Model
from ppl_models.data.covariates import in_rows_of
from ppl_models.data.held import to_numpy

#: Kinds of responses that are classes.
_CLASSES = ("binary", "categorical")


def _is_classifier(self: Any) -> bool:
    return self._kind in _CLASSES


@dataclass(eq=False, repr=False)
class ResponseEstimator(DocumentEstimator):
    """A model of documents that responds, as SupervisedLDA: ``fit(X, y)``, ``predict(X)``.

    It is a classifier where ``response`` is "binary" or "categorical" (y holds labels of any kind, ``classes_``, or for
    several binary responses 0 and 1), else a regressor. NaN in y is a response that is not known; of labels that are no
    numbers, None.

    Attributes
    ----------
    classes_: of classifiers, the labels, sorted.
    Others: see :class:`DocumentEstimator`.
    """

    #: The site that y is of.
    _site: ClassVar[str] = "response"
    _routed: ClassVar[tuple[str, ...]] = ("fit",)

    @property
    def _kind(self) -> str:
        return getattr(self, "response", "binary")

    def fit(self, X: Table, y: Column = None, *, sample_weight: Column = None, **others: Any) -> Self:
        """Learn from word counts X (N, V) and responses y (N,), or (N, R); ``response=`` is y too (of models with
        labels ``labels=``). sample_weight: as of :class:`RowEstimator`."""
        y = others.pop(self._site, None) if y is None else y
        if y is None:
            raise DataError("no responses", site=self._site, expected="fit(X, y)")
        y = np.asarray(in_rows_of(X, y))
        self._several = y.ndim > 1 and y.shape[1] > 1
        y = y.reshape(len(y)) if y.ndim > 1 and not self._several else y
        if _is_classifier(self) and not self._several:
            known = np.array([label == label and label is not None for label in y.tolist()], dtype=bool)
            self.classes_: Array = np.unique(np.array(y[known].tolist()))
            if self._kind == "binary" and len(self.classes_) > 2:
                found = f"{len(self.classes_)} classes ({', '.join(map(str, self.classes_[:4]))}, ...)"
                expected = 'two, or response="categorical" for more classes, response="real" for amounts'
                raise DataError(found, site=self._site, expected=expected)
            codes = np.full(len(y), np.nan)
            codes[known] = np.searchsorted(self.classes_, y[known].tolist())
            y = codes
        return super().fit(X, y.astype(np.float64), sample_weight=sample_weight, **others)

    def _model(self, data: Data, given: Mapping[str, Any]) -> Model:
        own = {"num_responses": self._outputs} if self._several else {}
        own |= {"num_classes": max(2, len(self.classes_))} if self._kind == "categorical" else {}
        return super()._model(data, {**given, **own})

    def _learn(self, data: Data, y: Column, others: Mapping[str, Any], weights: Column = None) -> Self:
        codes = np.asarray(y)
        self._outputs = codes.shape[1] if codes.ndim > 1 else 1
        if _is_classifier(self) and not self._several and self.classes_.dtype.kind == "U":
            data = data.with_labels("class", self.classes_.tolist())
        # A tensor: positions among the names, where there are some.
        return super()._learn(data, torch.from_numpy(codes), others, weights)

    def _means(self, X: Table) -> Array:
        check_is_fitted(self)
        return to_numpy(self.fit_.predict(self._data(X)))

    @available_if(_is_classifier)
    def predict_proba(self, X: Table) -> Array:
        """P(class | words), (N, C); of several binary responses P(1 | words), (N, R)."""
        means = self._means(X)
        return means if means.ndim > 1 else np.stack([1 - means, means], 1)

    def predict(self, X: Table) -> Array:
        """The most probable classes, (N,) (of several binary responses 0 and 1, (N, R)), or the mean responses."""
        if not _is_classifier(self):
            return self._means(X)
        chance = self.predict_proba(X)
        return (chance > 0.5).astype(int) if self._several else self.classes_[chance.argmax(1)]

    def score(self, X: Table, y: Column = None) -> float:
        """Accuracy or R2, as scikit-learn's classifiers and regressors score; without y the mean log-likelihood."""
        if y is None:
            return super().score(X)
        measure: Any = accuracy_score if _is_classifier(self) else r2_score
        return float(measure(in_rows_of(X, y), self.predict(X)))


@dataclass(eq=False, repr=False)
class ClassEstimator(ResponseEstimator):
    """A model of documents of known classes that predicts these, as DiscriminativeLDA: a classifier.

    y holds labels of any kind, ``classes_``, one a document; NaN or None where it is not known. It may also be a table
    of indicators (N, C), without any where the class is not known.
    """

    _site: ClassVar[str] = "labels"

    @property
    def _kind(self) -> str:
        return "categorical"

    def fit(self, X: Table, y: Column = None, *, sample_weight: Column = None, **others: Any) -> Self:
        """Learn from word counts X (N, V) and classes y. sample_weight: as of :class:`RowEstimator`."""
        y = others.pop("labels", None) if y is None else y
        y = None if y is None else in_rows_of(X, y)
        if y is not None and np.ndim(y) > 1 and np.shape(y)[1] > 1:
            y = np.nan_to_num(np.asarray(y, float))
            y = np.where(y.any(1), y.argmax(1), np.nan)
        return super().fit(X, y, sample_weight=sample_weight, **others)


def _had_labels(self: Any) -> bool:
    return "fit_" in vars(self) and "labels" in self.fit_.data.others


@dataclass(eq=False, repr=False)
class LabelEstimator(DocumentEstimator):
    """A model of documents with labels, as LabeledLDA: ``fit(X, labels=...)``, ``predict(X)``.

    labels: of every document a list of names (or one name), or a table of 0 and 1, (N, L), whose columns may have
    names. Without labels it is LDA, and predicts none.

    Attributes
    ----------
    classes_: (L,), the names of the labels, or their numbers.
    Others: see :class:`DocumentEstimator`.
    """

    @property
    def classes_(self) -> Array:
        """The names of the labels, or their numbers, (L,)."""
        check_is_fitted(self, "fit_")
        return np.array(self.fit_.coords["label"])

    @available_if(_had_labels)
    def predict_proba(self, X: Table) -> Array:
        """P(label | words) of each label, (N, L)."""
        return to_numpy(self.fit_.predict(self._data(X)))

    @available_if(_had_labels)
    def predict(self, X: Table) -> list[list[Any]]:
        """Return, for each document, the list of the labels that are more probable than not."""
        return [self.classes_[row > 0.5].tolist() for row in self.predict_proba(X)]
