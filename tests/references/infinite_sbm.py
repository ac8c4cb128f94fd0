"""The infinite block model: the references of ``sbm``, and the Chinese restaurant process that it tends to."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln

from tests.references import sbm
from tests.references._shared import Array
from tests.references.sbm import graph, log_edges, log_joint, log_joint_integrated, vb_bound, vb_globals, vb_graph

__all__ = ["graph", "log_edges", "log_joint", "log_joint_integrated", "vb_bound", "vb_globals", "vb_graph"]


def partitions(size: int) -> list[tuple[int, ...]]:
    """All partitions of the nodes, as labels by order of appearance."""
    found: list[tuple[int, ...]] = [()]
    for _ in range(size):
        found = [(*one, a) for one in found for a in range(len(set(one)) + 1)]
    return found


def log_restaurant(label: ArrayLike, concentration: float) -> float:
    """log p(partition) of the Chinese restaurant process."""
    sizes = np.unique(np.asarray(label), return_counts=True)[1]
    value = len(sizes) * np.log(concentration) + gammaln(sizes).sum()
    return float(value + gammaln(concentration) - gammaln(concentration + sizes.sum()))


def partition_posterior(x: Array, concentration: float, *, directed: bool) -> tuple[list[tuple[int, ...]], Array]:
    """All partitions and p(partition | x), eta ~ Beta(1, 1) integrated out."""
    every = partitions(len(x))
    score = []
    for label in every:
        blocks = max(label) + 1
        # the likelihood alone: the prior of the labels under alpha = 1 is taken out again
        alone = sbm.log_joint_integrated(label, x, blocks, 1.0, directed=directed)
        sizes = np.bincount(label, minlength=blocks)
        labels = gammaln(blocks) - gammaln(blocks + len(x)) + gammaln(sizes + 1).sum()
        score.append(alone - labels + log_restaurant(label, concentration))
    weight = np.exp(np.array(score) - max(score))
    return every, weight / weight.sum()
