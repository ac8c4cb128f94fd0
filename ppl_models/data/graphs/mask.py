"""Which dyads are unobserved: a dense mask, or a list of hidden pairs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse
from torch import Tensor

from ppl_models.core.errors import DataError
from ppl_models.data import sparse
from ppl_models.data.containers import mask_values
from ppl_models.data.graphs.edges import Array, EdgeList
from ppl_models.data.graphs.lists import Reading, index_of, objects, resolver
from ppl_models.data.lazy import pandas as pd


def masked(edges: EdgeList, mask: Any) -> EdgeList:
    """The edges with the dyads hidden that the mask hides; see :func:`ppl_models.graph`."""
    if mask is None:
        return edges
    if scipy.sparse.issparse(mask) or sparse.is_tensor(mask):
        raise DataError("a sparse mask", site=edges.site, expected="a dense one, or a list of the hidden pairs")
    dense = _dense(mask, edges)
    if dense is not None:
        hidden = np.stack(np.nonzero(~dense))
        together = hidden if edges.hidden is None else np.concatenate([edges.hidden, hidden], axis=1)
        return replace(edges, hidden=together)
    return replace(edges, hidden_pairs=_pairs(mask, edges))


def _dense(mask: Any, edges: EdgeList) -> Array | None:
    """(N, N) bool, True = observed; None where the mask is a list of pairs."""
    size, how = edges.num_nodes, Reading(site=edges.site)
    if isinstance(mask, pd.DataFrame):
        names = list(range(size)) if edges.names is None else edges.names
        if list(mask.index) != list(range(len(mask))) or list(mask.columns) != list(mask.index):
            known = index_of(names, how)
            order = [index_of(list(axis), how).get_indexer(known) for axis in (mask.index, mask.columns)]
            if any((place < 0).any() for place in order):
                raise DataError("a mask that lacks some nodes", site=edges.site, axis="node", expected="all nodes")
            mask = mask.iloc[order[0], order[1]]
        mask = mask.to_numpy()
    if isinstance(mask, Tensor):
        mask = mask.detach().cpu().numpy()
    if isinstance(mask, list | tuple) and mask and not isinstance(mask[0], tuple):
        try:
            mask = np.asarray(mask)
        except ValueError:
            return None
    if not isinstance(mask, np.ndarray) or mask.ndim != 2 or mask.dtype.kind not in "buif":
        return None
    if mask.shape[1] == 2 and mask.dtype.kind in "iu":
        return None
    if mask.shape != (size, size):
        expected = "one mask entry per dyad, True = observed, or a list of the hidden pairs"
        raise DataError(f"mask of shape {mask.shape} for {size} nodes", site=edges.site, expected=expected)
    return mask_values(mask, mask.shape, {}, edges.site).numpy()


def _pairs(mask: Any, edges: EdgeList) -> Array:
    """(2, M) places of the hidden pairs."""
    if isinstance(mask, str | bytes) or not isinstance(mask, Iterable) or getattr(mask, "ndim", 1) == 0:
        raise DataError(f"a {type(mask).__name__} as mask", site=edges.site, expected="(N, N), or the hidden pairs")
    pairs = mask.tolist() if isinstance(mask, np.ndarray | Tensor) else list(mask)
    if any(not isinstance(pair, tuple | list) or len(pair) != 2 for pair in pairs):
        odd = next(pair for pair in pairs if not isinstance(pair, tuple | list) or len(pair) != 2)
        raise DataError(f"{odd!r} among the hidden dyads", site=edges.site, expected="pairs of nodes")
    if not pairs:
        return np.empty((2, 0), dtype=np.int64)
    how = Reading(site=edges.site)
    ends = objects([end for pair in pairs for end in pair])
    if edges.names is None:
        whole = all(isinstance(end, int) for end in ends)
        ends = ends.astype(np.int64) if whole else ends
    _, place = resolver(edges.num_nodes if edges.names is None else edges.names, how)
    return place(ends).reshape(-1, 2).T
