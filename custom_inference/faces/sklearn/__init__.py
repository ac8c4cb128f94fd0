"""scikit-learn estimators of the models: transformers and density models of rows, and clusterers of graphs.

One class a model, named after it and made from it: ``LDAEstimator`` of :class:`ppl_models.LDA`. Models of rows
transform a row to the posterior mean of its latents and score rows by their log-likelihood; models of graphs take an
adjacency matrix, as ``SpectralClustering(affinity="precomputed")`` does, and find the blocks of its nodes.
``estimator_of`` makes those of other models.
"""

from typing import Any

from custom_inference.faces.sklearn.estimators import GraphEstimator, RowEstimator
from custom_inference.faces.sklearn.factory import Estimator, estimator_of
from custom_inference.faces.sklearn.machines import MachineEstimator
from custom_inference.faces.sklearn.responses import LabelEstimator, ResponseEstimator
from custom_inference.faces.sklearn.topics import DocumentEstimator, TopicEstimator
from ppl_models import MODELS

#: Every estimator by the name of its model in ``ppl_models.MODELS``.
ESTIMATORS: dict[str, Estimator] = {name: estimator_of(kind) for name, kind in MODELS.items()}

_named = {kind.__name__: kind for kind in ESTIMATORS.values()}
for _kind in _named.values():
    _kind.__module__ = __name__
globals().update(_named)
__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    "ESTIMATORS",
    "DocumentEstimator",
    "GraphEstimator",
    "LabelEstimator",
    "MachineEstimator",
    "ResponseEstimator",
    "RowEstimator",
    "TopicEstimator",
    "estimator_of",
    *_named,
]


def __getattr__(name: str) -> Any:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
