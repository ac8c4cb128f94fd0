"""Sets of nodes that belong together, and how well found ones match true ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
from torch import Tensor

from ppl_models import DataError, GraphData, MethodError

if TYPE_CHECKING:
    from custom_inference.core.fit import Fit


def communities(fit: Fit, threshold: float = 0.1) -> list[list[int]]:
    """The nodes of every block, by number: those whose posterior mean there exceeds ``threshold``, or is their largest.

    Communities of mixed memberships overlap; blocks without nodes are left out.
    """
    if not isinstance(fit.data, GraphData):
        raise MethodError(f"{type(fit.model).__name__} is no model of graphs")
    if not 0 < threshold < 1:
        raise MethodError(f"threshold = {threshold}, expected a number between 0 and 1")
    return _sets(fit.posterior.mean, threshold)


def _sets(mean: Tensor, threshold: float) -> list[list[int]]:
    belongs = mean > threshold
    belongs.scatter_(1, mean.argmax(1, keepdim=True), True)
    return [column.nonzero().flatten().tolist() for column in belongs.T if bool(column.any())]


def best_match_f1(found: Sequence[Iterable[Any]], true: Sequence[Iterable[Any]]) -> float:
    """How well sets of nodes match true ones, overlapping or not: 1 where they are the same sets.

    The mean of two averages: of every true set's F1 with the found set that matches it best, and of every found set's
    with the true one (Yang & Leskovec, *Overlapping community detection at scale*, WSDM 2013, eq. 11).
    """
    one, other = [set(part) for part in found], [set(part) for part in true]
    if not one or not other or not all(one) or not all(other):
        raise DataError("no sets, or an empty one among them", axis="node", expected="sets of nodes to compare")
    number = {node: place for place, node in enumerate(set().union(*one, *other))}
    first, second = (_indicator(sets, number) for sets in (one, other))
    both = (first @ second.T).toarray()
    sizes = np.array([len(part) for part in one])[:, None] + np.array([len(part) for part in other])
    score = 2 * both / sizes
    return float((score.max(0).mean() + score.max(1).mean()) / 2)


def _indicator(sets: list[set[Any]], number: dict[Any, int]) -> Any:
    row = np.repeat(np.arange(len(sets)), [len(part) for part in sets])
    column = np.array([number[node] for part in sets for node in part])
    return scipy.sparse.csr_matrix((np.ones(len(row)), (row, column)), shape=(len(sets), len(number)))
