"""Estimators are made from models: one class a model, for those of the suite and for any other."""

from __future__ import annotations

import functools
from dataclasses import field
from typing import Any, SupportsIndex

from custom_inference.faces.sklearn.estimators import GraphEstimator, RowEstimator
from custom_inference.faces.sklearn.machines import MachineEstimator
from custom_inference.faces.sklearn.responses import ClassEstimator, LabelEstimator, ResponseEstimator
from custom_inference.faces.sklearn.topics import DocumentEstimator, TopicEstimator
from ppl_models import LDA, RBM, DiscriminativeLDA, LabeledLDA, LogisticPCA, Model, ModelError, MultinomialPCA

Estimator = type[RowEstimator] | type[GraphEstimator]

#: Models, and those derived from them, whose estimators have more than what follows from their data.
_BASES: dict[type[Any], Estimator] = {
    RBM: MachineEstimator,
    LDA: TopicEstimator,
    MultinomialPCA: DocumentEstimator,
    DiscriminativeLDA: ClassEstimator,
    LabeledLDA: LabelEstimator,
}
#: What does not follow from a model: attributes of its estimator. Scores are mostly drawn in the plane.
_OWN: dict[type[Model], dict[str, Any]] = {
    LogisticPCA: {"n_components": field(default=2, kw_only=False), "__annotations__": {"n_components": "int"}}
}


@functools.cache
def estimator_of(model: type[Model]) -> Estimator:
    """The scikit-learn estimator of a model's class: a :class:`RowEstimator`, or a :class:`GraphEstimator` of graphs.

    It is called after the model, ``MineEstimator`` of ``Mine``, and has a parameter for each of the model's settings
    that is no size of the data; the same class comes back for the same model. Its instances can be cloned, and can be
    pickled wherever the model's class can be imported.

    Raises ModelError for what is no model's class, and for a model without the axis "component", which ``n_components``
    is the size of.
    """
    if not (isinstance(model, type) and issubclass(model, Model)):
        raise ModelError(f"estimator_of({model!r}), expected the class of a model, such as NOCA")
    if "component" not in model.axes:
        found = f"{model.__name__} has the axes {', '.join(model.axes)}"
        raise ModelError(f"{found}; expected 'component', which n_components is the size of")
    own = {"model_type": model, "__module__": model.__module__, "__reduce_ex__": _reduce, **_OWN.get(model, {})}
    made: Any = type(f"{model.__name__}Estimator", (_base(model),), own)
    return made


def _base(kind: type[Model]) -> Estimator:
    model = kind.example().model
    if model.is_graph:
        return GraphEstimator
    if model.data_kind == "documents" and "response" in model.sites_of("observed"):
        return ResponseEstimator
    for one in kind.__mro__:
        if one in _BASES:
            return _BASES[one]
    return DocumentEstimator if model.data_kind == "documents" else RowEstimator


def _reduce(self: RowEstimator | GraphEstimator, protocol: SupportsIndex) -> Any:
    """Reduce for pickle: the class belongs to no module, so it is made again where the instance is read."""
    made: Any = estimator_of(self.model_type)
    if type(self) is made:
        return _empty, (self.model_type,), self.__getstate__()
    return super(made, self).__reduce_ex__(protocol)


def _empty(model: type[Model]) -> Any:
    kind: Any = estimator_of(model)
    return kind.__new__(kind)
