"""The most probable clusters: starts from many random clusters, then changes of many entities that are kept where they
are not worse.

Gibbs sampling stays in the basin it starts in: from one cluster it never finds fine structure, and from many it joins
what it should not. A round divides a cluster at random, joins two, or scatters a part of one type, lets some sweeps
settle what was changed and some greedy ones climb, and goes on from there if log p(x, z) rose, or fell by a little
(basin hopping: Wales & Doye, J. Phys. Chem. A 101, 1997); after some rounds without gain it returns to the best.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from custom_inference.core.progress import Progress
from custom_inference.families.relations.arrays import Wholes
from custom_inference.families.relations.state import Clusters

#: Gibbs sweeps and greedy ones of a start, and of a round; the part of a type that is scattered.
_WARM, _CLIMB, _SETTLE, _POLISH, _SCATTERED = 20, 5, 2, 2, 0.15
#: What log p(x, z) may fall by in a round, on average; rounds without gain after which the search returns to the best.
_TEMPERATURE, _RETURN = 2.0, 30
#: Clusters of a random start; types of fewer entities begin alone in every second start.
_CLUSTERS, _ALONE = (10, 30), 60
#: Rounds of the default: by the cells of entities, many where a round costs nothing; and so many cells in all at most.
_CELLS, _FEW, _ROUNDS, _WORK, _FEWEST = 30, 8e5, (150, 600), 1.2e7, 20
#: Differences of log p(x, z) that are rounding.
_TIE = 1e-9


class Found(NamedTuple):
    """labels (E,), log p(x, z), its value after every round, and how many starts and rounds there were."""

    labels: Wholes
    log_joint: float
    trace: list[float]
    rounds: int
    interrupted: bool = False


def random_start(clusters: Clusters, number: int) -> Wholes:
    """Labels (E,): random ones of so many clusters, of every second number each entity of a small type alone."""
    generator, found = clusters.generator, []
    for t, size in enumerate(clusters.sizes):
        if clusters.prior.fixed[t]:
            found.append(generator.integers(0, clusters.prior.clusters[t], size))
        elif number % 2 and size <= _ALONE:
            found.append(np.arange(size))
        else:
            found.append(generator.integers(0, min(_CLUSTERS[number % 2], size), size))
    return np.concatenate(found)


def change(clusters: Clusters) -> None:
    """Other labels of one type: a cluster divided, two joined, or some entities scattered."""
    generator, labels = clusters.generator, clusters.labels
    t = int(generator.integers(len(clusters.sizes)))
    own = labels[clusters.of_type(t)]
    used, kind = np.unique(own), int(generator.integers(3))
    members = np.flatnonzero(own == generator.choice(used))
    if kind == 0 and not clusters.prior.fixed[t] and len(members) > 1:
        own[members[generator.random(len(members)) < 0.5]] = clusters.unused(t)
    elif kind == 1 and len(used) > 1:
        one, other = generator.choice(used, 2, replace=False)
        own[own == one] = other
    else:
        few = np.flatnonzero(generator.random(len(own)) < _SCATTERED)
        own[few] = generator.choice(used, len(few))
    clusters.restore(labels)


def settle(clusters: Clusters, sweeps: int, climb: int) -> float:
    """Sweeps, then greedy ones while something moves; log p(x, z)."""
    for _ in range(sweeps):
        clusters.sweep()
    for _ in range(climb):
        if not clusters.sweep(greedy=True):
            break
    return clusters.log_joint()


def search(clusters: Clusters, starts: int, rounds: int, bar: Progress, begin: Wholes | None = None) -> Found:
    """The best of some starts, and of so many rounds from there.

    Leaves ``clusters`` at what was found. Ctrl-C ends it with the best so far.
    """
    best, labels, trace, interrupted = -np.inf, clusters.labels, [], False
    try:
        for number in range(starts):
            clusters.take(random_start(clusters, number) if begin is None or number else begin)
            score = settle(clusters, _WARM, _CLIMB)
            if score > best:
                best, labels = score, clusters.labels
            trace.append(best)
            bar.advance(best)
        clusters.take(labels)
        at, here, still = best, clusters.labels, 0
        for _ in range(rounds):
            clusters.restore(here)
            change(clusters)
            score, still = settle(clusters, _SETTLE, _POLISH), still + 1
            if math.log1p(-clusters.generator.random()) < (score - at) / _TEMPERATURE:
                at, here = score, clusters.labels
            if score > best + _TIE:
                best, labels, still = score, clusters.labels, 0
            elif still % _RETURN == 0:
                at, here = best, labels
            trace.append(best)
            bar.advance(best)
    except KeyboardInterrupt:
        if not trace:
            raise
        interrupted = True
    clusters.take(labels)
    return Found(labels, clusters.log_joint(), trace, max(0, len(trace) - starts), interrupted)


def rounds_for(clusters: Clusters) -> int:
    """More where entities have more cells, as long as that takes some seconds; and on toys."""
    cells = max(1, len(clusters.cells.cells))
    return int(max(_FEWEST, min(np.clip(max(cells / _CELLS, _FEW / cells), *_ROUNDS), _WORK / cells)))
