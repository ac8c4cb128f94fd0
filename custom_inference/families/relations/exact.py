"""The exact posterior over all partitions of the entities of all types, of toys."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.special import gammaln

from custom_inference.families.relations.arrays import Floats, Wholes
from custom_inference.families.relations.problem import clusters_of
from ppl_models import IRM, CapacityError, Relations

#: Clusterings that are listed at most, and by default.
_MOST, FEW = 2**16, 2**11
#: Of more entities they are not even counted.
_ENTITIES = 60


@dataclass(frozen=True)
class Posterior:
    """labels (C, E), log_weight (C,) normalised, and log p(x)."""

    labels: Wholes
    log_weight: Floats
    log_evidence: float


def partitions(size: int, most: int) -> Iterator[tuple[int, ...]]:
    """Every partition of so many entities into at most ``most`` clusters, numbered in order of appearance."""

    def grow(labels: tuple[int, ...], used: int) -> Iterator[tuple[int, ...]]:
        if len(labels) == size:
            yield labels
            return
        for k in range(min(used + 1, most)):
            yield from grow((*labels, k), max(used, k + 1))

    return grow((), 0)


def number_of_partitions(size: int, most: int) -> int:
    """How many there are: sums of Stirling numbers of the second kind."""
    row = [1]
    for _ in range(size):
        row = [0, *(k * row[k] + row[k - 1] for k in range(1, len(row))), row[-1]]
    return sum(row[: most + 1])


def number_of_clusterings(model: IRM) -> int:
    """Count the clusterings of the entities of all types together; with many entities return only a number that is too
    large."""
    if sum(model.types.values()) > _ENTITIES:
        return 2**63
    fixed = model.num_clusters or {}
    return math.prod(number_of_partitions(size, fixed.get(t, size)) for t, size in model.types.items())


def all_partitions(model: IRM, data: Relations) -> Posterior:
    """log p(x, z) of all clusterings, normalised. Raises CapacityError for more than 2^16."""
    fixed = model.num_clusters or {}
    most = [fixed.get(t, size) for t, size in model.types.items()]
    number = number_of_clusterings(model)
    if number > _MOST:
        sizes = ", ".join(f"{size} of '{t}'" for t, size in model.types.items())
        message = f"{number:.3g} clusterings of {sizes}, at most 2^16 are listed; use method='gibbs'"
        raise CapacityError(message, needed_bytes=8.0 * number * sum(model.types.values()))
    clusters = clusters_of(model, data, 0)
    each = [list(partitions(size, k)) for size, k in zip(model.types.values(), most, strict=True)]
    labels = np.array([[k for part in one for k in part] for one in product(*each)], dtype=np.int64)
    score = np.zeros(len(labels))
    for c, one in enumerate(labels):
        clusters.take(one)
        score[c] = clusters.log_joint()
        for n, t in enumerate(model.types):  # clusters of types with K of them have names
            if t in fixed:
                used = len(np.unique(one[clusters.of_type(n)]))
                score[c] += float(gammaln(fixed[t] + 1) - gammaln(fixed[t] - used + 1))
    total = float(np.logaddexp.reduce(score))
    return Posterior(labels, score - total, total)
