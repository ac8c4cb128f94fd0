"""A graph of any values as block models of 0/1 edges and of counts see it, which divide the nodes for starts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from custom_inference.families.blocks.rows import SbmRows
from custom_inference.families.rows.graph import Neighbours
from ppl_models import GraphData, GraphModel

#: Values of edges up to which each is looked at by itself, and to which counts are taken as such.
_KINDS, _COUNTS = 6, 1000
#: Where more of the dyads have an edge, that they have one says nothing.
_NEARLY_ALL = 0.95


def views_of(model: GraphModel, data: GraphData, *, by_degree: bool = False) -> list[tuple[SbmRows, str]]:
    """Return views with the names of their likelihoods: which dyads have an edge, how many; which have each of few
    values, or one in the upper half of many. Counts as such are every second one. by_degree: see counts between
    nodes of different degrees, and nothing else."""
    every, found = SbmRows.of(model, data), list[tuple[SbmRows, str]]()
    if by_degree:
        return [(every, "degree_corrected")]
    value = every.outgoing.value
    kinds = np.unique(value)
    if len(kinds) == 1 or data.num_edges < _NEARLY_ALL * data.num_dyads:
        found.append((_keep(every, value != 0), "bernoulli"))
    if 1 < len(kinds) <= _KINDS:
        found += [(_keep(every, value == kind), "bernoulli") for kind in kinds]
    elif len(kinds) > _KINDS:
        found.append((_keep(every, value > np.median(value)), "bernoulli"))
    if bool((value == np.round(value)).all()) and value.min() > 0 and 1 < value.max() <= _COUNTS:
        found = [view for other in found for view in ((every, "poisson"), other)]
    return found


def _keep(every: SbmRows, chosen: NDArray[np.bool_]) -> SbmRows:
    """The graph with those of its edges that are chosen, as 0/1."""
    matrix = every.outgoing.matrix
    matrix.data = chosen.astype(np.float64)
    matrix.eliminate_zeros()
    outgoing = Neighbours.of(scipy.sparse.csr_matrix(matrix))
    incoming = Neighbours.of(scipy.sparse.csr_matrix(matrix.T)) if every.directed else outgoing
    return replace(every, outgoing=outgoing, incoming=incoming)
