"""The estimator of a model of graphs: a clusterer of the nodes of an adjacency matrix."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClusterMixin

from custom_inference.faces.sklearn.base import Array, ModelEstimator, array
from ppl_models import DataError, as_graph


@dataclass(eq=False, repr=False)
class GraphEstimator(ClusterMixin, ModelEstimator):
    """A model of a graph as a scikit-learn clusterer of its nodes: X is the adjacency matrix (N, N), dense or sparse.

    A graph is one observation: there are no rows to hold out, so no ``score``, and no ``transform`` of further nodes.
    ``custom_inference.choose_num_blocks`` and ``link_prediction`` choose and judge such models.

    Parameters
    ----------
    n_components: K, blocks.
    directed: whether (i, j) and (j, i) are two dyads; None: whether X is asymmetric.
    self_loops: whether (i, i) is a dyad; otherwise the diagonal is left out, with a DataWarning where it is not zero.
    method, max_iter, tol, settings, priors, random_state, device, verbose: as of :class:`RowEstimator`.

    Attributes
    ----------
    labels_: (N,), the most probable block of each node.
    membership_: (N, K), P(block | graph), or the mixed memberships of the nodes.
    components_: (K, K), what each block sends to the others.
    fit_: the :class:`custom_inference.Fit`.
    n_iter_: iterations; n_features_in_, feature_names_in_: as everywhere in scikit-learn.

    NaN entries are dyads that were not observed.
    """

    n_components: int = 2
    _: KW_ONLY
    directed: bool | None = None
    self_loops: bool = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = True
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any = None, **others: Any) -> Self:
        """Find the blocks of the nodes of the graph X (N, N); ``y`` is ignored.

        others: what the model conditions on beside X, such as the features ``covariates`` (N, P) of the nodes.
        """
        x = self._validated(X, ensure_min_samples=2)
        if x.shape[0] != x.shape[1]:
            raise DataError(f"shape {tuple(x.shape)}", expected="a square adjacency matrix (N, N)")
        kind: Any = "counts" if self._data_kind.startswith("multi") else "binary"
        loops = bool(self.self_loops)
        data = as_graph(x, directed=self.directed, self_loops=loops, kind=kind, dtype=torch.float64)
        names = getattr(self, "feature_names_in_", None)
        if names is not None:
            data = replace(data, coords={"row": list(names), "feature": list(names)})
        given = {name: np.asarray(value, dtype=np.float64) for name, value in others.items() if value is not None}
        self._learn(data, None, given)
        self.membership_: Array = array(self.fit_.posterior.mean)
        self.labels_: Array = self.membership_.argmax(-1)
        return self
