"""The most probable clusters: starts from many random clusters, then changes of many entities that are kept where they
are not worse.

Gibbs sampling stays in the basin it starts in: from one cluster it never finds fine structure, and from many it joins
what it should not. A round divides a cluster at random, joins two, or scatters a part of one type, lets some sweeps
settle what was changed and some greedy ones climb, and goes on from there if log p(x, z) rose, or fell by a little
(basin hopping: Wales & Doye, J. Phys. Chem. A 101, 1997); after some rounds without gain it returns to the best. What
runs from two starts found is crossed: the clusters in which both agree are joined one by one.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import NamedTuple

import numpy as np

from custom_inference.core.progress import Progress
from custom_inference.core.threads import map_in_threads
from custom_inference.families.relations.arrays import Wholes
from custom_inference.families.relations.state import Clusters

#: Gibbs sweeps and greedy ones of a start, and of a round; the part of a type that is scattered.
_WARM, _CLIMB, _SETTLE, _POLISH, _SCATTERED = 20, 5, 2, 2, 0.15
#: What log p(x, z) may fall by in a round, on average; rounds without gain after which the search returns to the best.
_TEMPERATURE, _RETURN = 2.0, 30
#: Clusters of a random start; types of fewer entities begin alone in every second start.
_CLUSTERS, _ALONE = (10, 30), 60
#: Rounds of the default: by the cells of entities, many where a round costs nothing; and so many cells in all at most.
_CELLS, _FEW, _ROUNDS, _WORK, _FEWEST = 30, 8e5, (150, 650), 1.35e7, 20
#: Runs of rounds from the best of the starts.
_RUNS = 2
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
        own[members[generator.random(len(members)) < 0.5]] = clusters.find_free_label(t)
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


def join(clusters: Clusters) -> None:
    """Put those two clusters of a type together by which log p(x, z) rises most, while it does.

    Gains are computed for all pairs, and again for the pair that seems best after others were joined; for all once more
    where none seems to gain.
    """
    while gains := _pairs_that_gain(clusters):
        joined = 0
        while gains:
            _, when, (t, one, other) = heapq.heappop(gains)
            members = clusters.members(t, one)
            if not len(members) or not len(clusters.members(t, other)):
                continue
            if when == joined:
                clusters.put(members, np.full(len(members), other))
                joined += 1
            elif (gain := _gain_of_joining(clusters, members, one, other)) > _TIE:
                heapq.heappush(gains, (-gain, joined, (t, one, other)))


def _pairs_that_gain(clusters: Clusters) -> list[tuple[float, int, tuple[int, int, int]]]:
    """Return a heap of (minus the gain, 0, (type, the smaller cluster, the other))."""
    found = []
    for t in np.flatnonzero(~clusters.prior.fixed).tolist():
        used, count = np.unique(clusters.labels[clusters.of_type(t)], return_counts=True)
        for one, other in itertools.combinations(used[np.argsort(count, kind="stable")].tolist(), 2):
            gain = _gain_of_joining(clusters, clusters.members(t, one), one, other)
            if gain > _TIE:
                found.append((-gain, 0, (t, one, other)))
    heapq.heapify(found)
    return found


def _gain_of_joining(clusters: Clusters, members: Wholes, one: int, other: int) -> float:
    """Return by how much log p(x, z) rises where all members of a cluster go to another; they stay."""
    before = clusters.log_joint()
    clusters.put(members, np.full(len(members), other))
    gain = clusters.log_joint() - before
    clusters.put(members, np.full(len(members), one))
    return gain


class _Search:
    """The best labels so far, and log p(x, z) after every step."""

    def __init__(self, clusters: Clusters, bar: Progress):
        self.clusters, self.bar = clusters, bar
        self.best, self.labels, self.trace = -np.inf, clusters.labels, []

    def note(self, score: float) -> bool:
        """Whether it is the best."""
        gains = score > self.best + _TIE
        if gains:
            self.best, self.labels = score, self.clusters.labels
        self.trace.append(self.best)
        self.bar.advance(self.best)
        return gains

    def start(self, labels: Wholes) -> float:
        self.clusters.take(labels)
        score = settle(self.clusters, _WARM, _CLIMB)
        self.note(score)
        return score

    def hop(self, labels: Wholes, score: float, rounds: int) -> tuple[Wholes, float]:
        """The best of so many rounds from labels that the clusters had last."""
        self.clusters.take(labels)
        labels = here = self.clusters.labels
        top, at, still = score, score, 0
        for _ in range(rounds):
            self.clusters.restore(here)
            change(self.clusters)
            score, still = settle(self.clusters, _SETTLE, _POLISH), still + 1
            if math.log1p(-self.clusters.generator.random()) < (score - at) / _TEMPERATURE:
                at, here = score, self.clusters.labels
            if score > top + _TIE:
                top, labels, still = score, self.clusters.labels, 0
            elif still % _RETURN == 0:
                at, here = top, labels
            self.note(score)
        return labels, top

    def cross(self, one: Wholes, other: Wholes) -> None:
        """Clusters of those who are together in both, joined while that gains: what either divides well remains."""
        both = np.empty_like(one)
        for t in range(len(self.clusters.sizes)):
            own = self.clusters.of_type(t)
            pair = np.stack([one[own], other[own]])
            both[own] = one[own] if self.clusters.prior.fixed[t] else np.unique(pair, axis=1, return_inverse=True)[1]
        self.clusters.take(both)
        join(self.clusters)
        self.note(settle(self.clusters, 0, _CLIMB))


def search(clusters: Clusters, starts: int, rounds: int, bar: Progress, begin: Wholes | None = None) -> Found:
    """The best of some starts, and of so many rounds from there.

    Half of the rounds are those of the starts, whose ends are crossed; the others those of two runs from the best,
    which are crossed again. Starts and runs have random numbers of their own, and threads share them.

    Leaves ``clusters`` at what was found. Ctrl-C ends it with the best so far.
    """
    seeds = clusters.generator.integers(2**63, size=max(starts, _RUNS)).tolist()
    runs, interrupted = [_Search(clusters.with_seed(seed), bar) for seed in seeds], False
    share = rounds // (2 * starts) if starts > 1 else 0

    def run_start(number: int) -> None:
        run = runs[number]
        score = run.start(random_start(run.clusters, number) if begin is None or number else begin)
        run.hop(run.labels, score, share)

    try:
        map_in_threads(run_start, range(starts))
        best = _cross_all(runs[:starts])
        left, labels, score = rounds - share * starts, best.labels, best.best
        others = [best, *(run for run in runs if run is not best)][:_RUNS]
        each = [(run, (left + place) // _RUNS) for place, run in enumerate(others)]
        map_in_threads(lambda one: one[0].hop(labels, score, one[1]), each)
        _cross_all(others)
    except KeyboardInterrupt:
        if not any(run.trace for run in runs):
            raise
        interrupted = True
    best = max(runs, key=lambda run: run.best)
    clusters.take(best.labels)
    trace = np.maximum.accumulate(np.concatenate([run.trace for run in runs])).tolist()
    return Found(best.labels, clusters.log_joint(), trace, max(0, len(trace) - starts), interrupted)


def _cross_all(runs: list[_Search]) -> _Search:
    """Cross the best run with the others; return it."""
    best = max(runs, key=lambda run: run.best)
    for run in runs:
        if run is not best and run.trace:
            best.cross(best.labels, run.labels)
    return best


def rounds_for(clusters: Clusters) -> int:
    """More where entities have more cells, as long as that takes some seconds; and on toys."""
    cells = max(1, len(clusters.cells.cells))
    return int(max(_FEWEST, min(np.clip(max(cells / _CELLS, _FEW / cells), *_ROUNDS), _WORK / cells)))
