"""The most probable clusters: starts from many random clusters, then changes of many entities that are kept where they
are not worse.

Gibbs sampling stays in the basin it starts in: from one cluster it never finds fine structure, and from many it joins
what it should not. A round divides a cluster at random, joins two, or scatters a part of one type, lets some sweeps
settle what was changed and some greedy ones climb, and keeps the result if log p(x, z) did not fall (an iterated local
search).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from custom_inference.core.progress import Progress
from custom_inference.families.relations.arrays import Wholes
from custom_inference.families.relations.state import Clusters

#: Gibbs sweeps and greedy ones of a start, and of a round; the part of a type that is scattered.
_WARM, _CLIMB, _SETTLE, _POLISH, _SCATTERED = 60, 5, 4, 3, 0.15
#: Clusters of a random start; types of fewer entities begin alone in every second start.
_CLUSTERS, _ALONE = (10, 30), 60
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


def changed(clusters: Clusters) -> Wholes:
    """The present labels, of one type another: a cluster divided, two joined, or some entities scattered."""
    generator, labels = clusters.generator, clusters.labels
    t = int(generator.integers(len(clusters.sizes)))
    own = labels[clusters.of_type(t)]
    used, kind = np.unique(own), int(generator.integers(3))
    if kind == 0 and not clusters.prior.fixed[t]:
        members = np.flatnonzero(own == generator.choice(used))
        own[members[generator.random(len(members)) < 0.5]] = own.max() + 1
    elif kind == 1 and len(used) > 1:
        one, other = generator.choice(used, 2, replace=False)
        own[own == one] = other
    else:
        few = np.flatnonzero(generator.random(len(own)) < _SCATTERED)
        own[few] = generator.choice(used, len(few))
    return labels


def settle(clusters: Clusters, sweeps: int, climb: int) -> float:
    """Sweeps, then greedy ones while something moves; log p(x, z)."""
    for _ in range(sweeps):
        clusters.sweep()
    for _ in range(climb):
        if not clusters.sweep(greedy=True):
            break
    return clusters.log_joint()


def search(
    clusters: Clusters, starts: int, rounds: int, patience: int, bar: Progress, begin: Wholes | None = None
) -> Found:
    """The best of some starts, then rounds, at most so many, until ``patience`` of them in a row gained nothing.

    Leaves ``clusters`` at what was found. Ctrl-C ends it with the best so far.
    """
    best, labels, trace, done, interrupted = -np.inf, clusters.labels, [], 0, False
    try:
        for number in range(starts):
            clusters.take(random_start(clusters, number) if begin is None or number else begin)
            score = settle(clusters, _WARM, _CLIMB)
            if score > best:
                best, labels = score, clusters.labels
            trace.append(best)
            bar.advance(best)
        still = 0
        while done < rounds and still < patience:
            clusters.take(labels)
            clusters.take(changed(clusters))
            score = settle(clusters, _SETTLE, _POLISH)
            done, still = done + 1, 0 if score > best + _TIE else still + 1
            if score >= best - _TIE:
                best, labels = max(best, score), clusters.labels
            trace.append(best)
            bar.advance(best)
    except KeyboardInterrupt:
        if not trace:
            raise
        interrupted = True
    clusters.take(labels)
    return Found(labels, clusters.log_joint(), trace, done, interrupted)
