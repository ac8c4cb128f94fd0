"""scikit-learn estimators of the models: transformers and density models of rows, and clusterers of graphs.

One class a model, named after it and made from it: ``LDAEstimator`` of :class:`ppl_models.LDA`. Models of rows
transform a row to the posterior mean of its latents and score rows by their log-likelihood; models of graphs take an
adjacency matrix, as ``SpectralClustering(affinity="precomputed")`` does, and find the blocks of its nodes.
"""

from dataclasses import field
from typing import Any

from custom_inference.faces.sklearn.estimators import GraphEstimator, RowEstimator
from ppl_models import MODELS, Model

#: What does not follow from a model: name -> attributes of its estimator. Scores are mostly drawn in the plane.
_OWN: dict[str, dict[str, Any]] = {
    "logistic_pca": {"n_components": field(default=2, kw_only=False), "__annotations__": {"n_components": "int"}}
}


def _estimator(name: str, kind: type[Model]) -> type[RowEstimator] | type[GraphEstimator]:
    base = GraphEstimator if kind.example().model.is_graph else RowEstimator
    own = {"model_type": kind, "__module__": __name__, **_OWN.get(name, {})}
    made: Any = type(f"{kind.__name__}Estimator", (base,), own)
    return made


#: Every estimator by the name of its model in ``ppl_models.MODELS``.
ESTIMATORS: dict[str, type[RowEstimator] | type[GraphEstimator]] = {
    name: _estimator(name, kind) for name, kind in MODELS.items()
}

_named = {kind.__name__: kind for kind in ESTIMATORS.values()}
globals().update(_named)
__all__ = ["ESTIMATORS", "GraphEstimator", "RowEstimator", *_named]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
