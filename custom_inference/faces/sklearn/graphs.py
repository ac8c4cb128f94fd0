"""One estimator a model of graphs: clusterers of the nodes of an adjacency matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import validate_data

from custom_inference.core.fit import Fit
from custom_inference.faces.sklearn.common import fitted, plain, thresholded
from ppl_models import (
    MMSB,
    SBM,
    CovariateSBM,
    DataError,
    DegreeCorrectedSBM,
    GraphData,
    GraphModel,
    PoissonSBM,
    as_graph,
)

Array = NDArray[Any]


@dataclass(eq=False, repr=False)
class GraphEstimator(ClusterMixin, BaseEstimator):
    """A model of a graph as a scikit-learn clusterer of its nodes: X is the adjacency matrix (N, N), dense or sparse.

    A graph is one observation: there are no rows to hold out, so no ``score``, and no ``transform`` of further nodes.
    ``custom_inference.choose_num_blocks`` and ``link_prediction`` choose and judge such models.

    Parameters
    ----------
    num_components: K, blocks.
    directed: whether (i, j) and (j, i) are two dyads; None: whether X is asymmetric.
    self_loops: whether (i, i) is a dyad; otherwise the diagonal is left out, with a DataWarning where it is not zero.
    method, max_iterations, tolerance, settings, priors, random_state, device, verbose: as of :class:`RowEstimator`.

    Attributes
    ----------
    labels_: (N,), the most probable block of each node.
    membership_: (N, K), P(block | graph), or the mixed memberships of the nodes.
    components_: (K, K), what each block sends to the others.
    fit_: the :class:`custom_inference.Fit`.
    n_iter_: iterations; n_features_in_, feature_names_in_: as everywhere in scikit-learn.

    NaN entries are dyads that were not observed.
    """

    num_components: int = 2
    _: KW_ONLY
    directed: bool | None = None
    self_loops: bool = False
    method: Any = None
    max_iterations: int | None = None
    tolerance: float | None = None
    settings: Mapping[str, Any] | None = None
    priors: Mapping[str, Any] | None = None
    random_state: Any = None
    device: Any = None
    verbose: bool = False

    model_type: ClassVar[type[GraphModel]]

    def __sklearn_tags__(self) -> Any:
        tags: Any = super().__sklearn_tags__()
        tags.input_tags.pairwise = True
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.input_tags.positive_only = True
        return tags

    def _entries(self, x: Any) -> Any:
        return x

    def _graph(self, X: Any) -> GraphData:
        x: Any = validate_data(
            self,
            X,
            accept_sparse="csr",
            dtype=np.float64,
            ensure_all_finite="allow-nan",
            ensure_min_samples=2,
            ensure_non_negative=self.__sklearn_tags__().input_tags.positive_only,
        )
        if x.shape[0] != x.shape[1]:
            raise DataError(f"shape {tuple(x.shape)}", expected="a square adjacency matrix (N, N)")
        data = as_graph(
            self._entries(x),
            directed=self.directed,
            self_loops=bool(self.self_loops),
            kind=self.model_type.edge_kind,
            dtype=torch.float64,
        )
        names = getattr(self, "feature_names_in_", None)
        return data if names is None else replace(data, coords={"row": list(names), "feature": list(names)})

    def _model(self, data: GraphData, **settings: Any) -> GraphModel:
        model = self.model_type.for_data(
            data, plain(self.num_components), self_loops=bool(self.self_loops), **settings
        )
        return model.with_priors(**self.priors) if self.priors else model

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the blocks of the nodes of the graph X (N, N); ``y`` is ignored."""
        del y
        data = self._graph(X)
        return self._fit(self._model(data), data)

    def _fit(self, model: GraphModel, data: GraphData) -> Self:
        self.fit_: Fit = fitted(self, model, data)
        self.membership_: Array = self.fit_.posterior.mean.cpu().numpy()
        self.labels_: Array = self.membership_.argmax(-1)
        self.components_: Array = self.fit_.model.component_matrix(self.fit_.globals).cpu().numpy()
        self.n_iter_ = len(self.fit_.elbo)
        return self


@dataclass(eq=False, repr=False)
class BinaryGraphEstimator(GraphEstimator):
    """binarize: there is an edge where an entry exceeds this; None: X is 0/1 already."""

    binarize: float | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = self.binarize is None
        return tags

    def _entries(self, x: Any) -> Any:
        return x if self.binarize is None else thresholded(x, self.binarize)


@dataclass(eq=False, repr=False)
class CountGraphEstimator(GraphEstimator):
    """round_counts: round the entries to whole numbers first; otherwise others are refused."""

    round_counts: bool = False

    def _entries(self, x: Any) -> Any:
        return np.round(x) if self.round_counts else x


@dataclass(eq=False, repr=False)
class SBMEstimator(BinaryGraphEstimator):
    """Stochastic block model: edges depend on the blocks of their ends.

    Parameters: those of :class:`GraphEstimator`, and

    binarize: there is an edge where an entry exceeds this; None: X is 0/1 already.
    """

    model_type: ClassVar[type[GraphModel]] = SBM


@dataclass(eq=False, repr=False)
class MMSBEstimator(BinaryGraphEstimator):
    """Mixed-membership stochastic block model: a node takes a block anew for every dyad, in its own mix.

    ``labels_`` are the nodes' strongest blocks. Parameters: those of :class:`GraphEstimator`, and ``binarize``.
    """

    model_type: ClassVar[type[GraphModel]] = MMSB


@dataclass(eq=False, repr=False)
class CovariateSBMEstimator(BinaryGraphEstimator):
    """Stochastic block model whose edges depend on features of the nodes too: ``fit(X, covariates=features)``.

    Parameters: those of :class:`GraphEstimator`, ``binarize``, and

    combine: how the features of two nodes are: "product", "difference" or "concatenate".
    """

    combine: str = "product"

    model_type: ClassVar[type[GraphModel]] = CovariateSBM

    def fit(self, X: Any, y: Any = None, *, covariates: Any = None) -> Self:
        """Find the blocks of the nodes of the graph X (N, N), given their features ``covariates`` (N, P)."""
        del y
        data = self._graph(X)
        features = None if covariates is None else np.asarray(covariates, dtype=np.float64)
        return self._fit(self._model(data, covariates=features, combine=self.combine), data)


@dataclass(eq=False, repr=False)
class PoissonSBMEstimator(CountGraphEstimator):
    """Stochastic block model of counts of edges: Poisson rates depend on the blocks.

    Parameters: those of :class:`GraphEstimator`, and

    round_counts: round the entries to whole numbers first; otherwise others are refused.
    """

    model_type: ClassVar[type[GraphModel]] = PoissonSBM


@dataclass(eq=False, repr=False)
class DegreeCorrectedSBMEstimator(CountGraphEstimator):
    """Degree-corrected stochastic block model: every node has a propensity of its own to take part in edges.

    Parameters: those of :class:`GraphEstimator`, and ``round_counts``.
    """

    model_type: ClassVar[type[GraphModel]] = DegreeCorrectedSBM
