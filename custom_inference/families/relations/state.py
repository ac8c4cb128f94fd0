"""Clusters of the entities of all types: their prior, their log joint, and moves of many entities."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, logsumexp

from custom_inference.families.relations.arrays import BEST, DRAW, PAIR, PUT, Cells, Floats, Wholes, Work

#: Labels to begin with, and how many times as many where these do not suffice.
_ROOM, _GROWTH = 16, 2


class PartitionPrior(NamedTuple):
    """p(z) of every type, its concentration integrated out over a grid.

    Unbounded (Chinese restaurant): p(z | c) = c^K G(c) / G(c + N) prod_k G(n_k), so that log p(z) is sum_k log G(n_k)
    and a number that depends on K alone, ``opening`` (T, N + 2). With K clusters, of proportions Dirichlet(c, ..., c):
    p(z | c) = G(K c) / G(K c + N) prod_k G(c + n_k) / G(c), of which moves are made at one value ``alpha`` (T,).
    grid, weight (T, G): the values of c and the logarithm of their shares of the prior. fixed, clusters (T,): K, or 0.
    """

    fixed: np.ndarray
    alpha: Floats
    opening: Floats
    clusters: Wholes
    grid: Floats
    weight: Floats

    @classmethod
    def of(cls, sizes: list[int], clusters: list[int], grid: Floats, weight: Floats) -> PartitionPrior:
        opening = np.full((len(sizes), max(sizes) + 2), -np.inf)
        for t, size in enumerate(sizes):
            number = np.arange(1, size + 1)[:, None]
            each = number * np.log(grid[t]) + gammaln(grid[t]) - gammaln(grid[t] + size)
            opening[t, 1 : size + 1] = logsumexp(each + weight[t], axis=1)
        alpha = np.exp((np.exp(weight) * np.log(grid)).sum(1))
        whole = np.array(clusters)
        return cls(whole > 0, alpha, opening, whole, grid, weight)

    def log_prob(self, t: int, size: Wholes) -> float:
        """log p(z) from the sizes of the clusters."""
        size = size[size > 0]
        if not self.fixed[t]:
            return float(self.opening[t, len(size)] + gammaln(size).sum())
        return float(np.logaddexp.reduce(self.weight[t] + self._log_prob_on_grid(t, size)))

    def _log_prob_on_grid(self, t: int, size: Wholes) -> Floats:
        """Compute log p(z | c) at every c of the grid."""
        if not self.fixed[t]:
            c = self.grid[t]
            return len(size) * np.log(c) + gammaln(c) - gammaln(c + size.sum()) + gammaln(size).sum()
        c, k = self.grid[t], self.clusters[t]
        rises = (gammaln(c[:, None] + size) - gammaln(c)[:, None]).sum(1)
        return gammaln(k * c) - gammaln(k * c + size.sum()) + rises

    def of_concentration(self, t: int, size: Wholes) -> Floats:
        """p(c | z) of the values of the grid."""
        log = self.weight[t] + self._log_prob_on_grid(t, size[size > 0])
        return np.exp(log - logsumexp(log))


class Clusters:
    """A clustering of all entities (E,), whole numbers within each type, with what its blocks hold.

    seed: of the draws of the moves. constant: what log p(x | z) adds to the scores of the blocks.
    """

    def __init__(self, cells: Cells, prior: PartitionPrior, seed: int, constant: float = 0.0):
        self.cells, self.prior, self.constant = cells, prior, constant
        self.generator = np.random.default_rng(seed % 2**64)
        self._rng = np.array([self.generator.integers(2**63)], np.uint64)
        self.work = self._empty(np.where(prior.fixed, prior.clusters, 0))

    def with_seed(self, seed: int) -> Clusters:
        """Return clusters of the same cells, without labels so far."""
        return Clusters(self.cells, self.prior, seed, self.constant)

    @property
    def sizes(self) -> Wholes:
        return np.diff(self.cells.first)

    @property
    def labels(self) -> Wholes:
        """(E,), a copy."""
        return self.work.label.copy()

    def of_type(self, t: int) -> slice:
        return slice(int(self.cells.first[t]), int(self.cells.first[t + 1]))

    def members(self, t: int, label: int) -> Wholes:
        """Return who of type t is in a cluster, as places among all entities."""
        own = self.of_type(t)
        return np.flatnonzero(self.work.label[own] == label) + own.start

    def _empty(self, least: Wholes) -> Work:
        room = np.where(self.prior.fixed, self.prior.clusters, np.minimum(np.maximum(least, _ROOM), self.sizes))
        prior = self.prior.fixed, self.prior.alpha, self.prior.opening
        return Work.of(self.cells, room, prior, self._rng)

    def take(self, labels: Wholes) -> None:
        """The clustering that these labels say (E,); -1 leaves an entity out."""
        compact = labels.copy()
        for t in np.flatnonzero(~self.prior.fixed).tolist():
            own = compact[self.of_type(t)]
            held = own >= 0
            own[held] = np.unique(own[held], return_inverse=True)[1]
        most = np.array([labels_.max(initial=0) + 1 for labels_ in np.split(compact, self.cells.first[1:-1])])
        if (most > self.work.room).any():
            self.work = self._empty(most + 2)
        self._fill(compact)

    def _fill(self, labels: Wholes) -> None:
        w = self.work
        for held in (w.sums, w.listed, w.score, w.size, w.total, w.number):
            held[:] = 0
        w.label[:] = -1
        for t in np.flatnonzero(self.prior.fixed):
            w.number[t] = w.room[t]
            w.active[t, : w.room[t]] = np.arange(w.room[t])
        self.put(np.arange(len(labels)), labels)

    def _run(self, order: Wholes, to: Wholes, how: int) -> int:
        from custom_inference.families.relations.kernels import run

        start = 0
        while (found := run(self.cells, self.work, order, to, start, how)) < 0:
            start = -1 - found
            self._grow()
        return found

    def put(self, members: Wholes, labels: Wholes) -> None:
        """These entities to these clusters, for which there is room; -1 leaves one out."""
        self._run(members, labels, PUT)

    def restore(self, labels: Wholes) -> None:
        """Labels from ``labels`` and ``find_free_label``: moves those alone that differ from what there is."""
        moved = np.flatnonzero(labels != self.work.label)
        self.put(moved, labels[moved])

    def find_free_label(self, t: int) -> int:
        """Return a label of type t without entities, for which room is made."""
        if self.work.number[t] == self.work.room[t]:
            self._grow()
        return int(np.argmin(self.work.size[t, : self.work.room[t]]))

    def sweep(self, greedy: bool = False, order: Wholes | None = None) -> int:
        """A new cluster for every entity in a random order; the number of those that moved."""
        order = self.generator.permutation(len(self.work.label)) if order is None else order
        return self._run(order, order, BEST if greedy else DRAW)

    def split_or_merge(self) -> bool:
        """One move of Jain & Neal's kind (Dahl's sequential allocation) of a pair of entities; whether it was accepted.

        Where they share a cluster it is divided, member by member in a random order; else their clusters are put
        together. The acceptance ratio of a division is p(x, z') / p(x, z) / q, of the reverse its inverse, q the
        probability of the way that leads to this division.
        """
        drawn = int(self.generator.integers(len(self.work.label)))
        t = int(self.cells.type_of[drawn])
        label = self.work.label[self.of_type(t)]
        if self.prior.fixed[t] or len(label) < 2:
            return False
        i, j = drawn - int(self.cells.first[t]), int(self.generator.integers(len(label) - 1))
        j += j >= i
        merging = bool(label[i] != label[j])
        self.find_free_label(t)
        label = self.work.label[self.of_type(t)]
        others = np.flatnonzero((label == label[i]) | (label == label[j]))
        others = self.generator.permutation(others[(others != i) & (others != j)])
        members = np.concatenate([[i, j], others])
        forced = (label[members] != label[i]).astype(np.int64) if merging else np.full(len(members), -1)
        return self._split_or_merge(t, members + self.cells.first[t], forced)

    def _split_or_merge(self, t: int, members: Wholes, forced: Wholes) -> bool:
        """Propose to split these members, or to merge them where ``forced`` holds their division; return whether that
        was accepted."""
        w, merging, none = self.work, bool(forced[1] == 1), np.full(len(members), -1)
        self.put(members, none)
        w.target[:] = np.flatnonzero(w.size[t, : w.room[t]] == 0)[:2]
        w.chance[0] = 0.0
        self.put(members[:2], w.target)
        self._run(members[2:], forced[2:], PAIR)
        apart, way, kept = self._level(t), float(w.chance[0]), w.label[members]
        self.put(members, np.full(len(members), w.target[0]))
        together = self._level(t)
        ratio = together - apart + way if merging else apart - together - way
        accepted = math.log1p(-self.generator.random()) < ratio
        if accepted != merging:
            self.put(members, kept)
        return accepted

    def _level(self, t: int) -> float:
        return float(self.work.total[0]) + self.prior.log_prob(t, self.work.size[t])

    def draw_concentrations(self) -> Floats:
        """A draw of every concentration given the clusters, (T,); of fixed numbers moves go on at it."""
        drawn = np.array([self.generator.choice(grid, p=self.prior.of_concentration(t, self.work.size[t]))
                          for t, grid in enumerate(self.prior.grid)])  # fmt: skip
        self.work.alpha[:] = np.where(self.prior.fixed, drawn, self.work.alpha)
        return drawn

    def _grow(self) -> None:
        old = self.work
        self.work = self._empty(np.where(old.number == old.room, _GROWTH * old.room, old.room))
        self._fill(old.label)

    def log_joint(self) -> float:
        """log p(x, z), tables and concentrations integrated out."""
        prior = sum(self.prior.log_prob(t, size) for t, size in enumerate(self.work.size))
        return self.constant + float(self.work.total[0]) + prior

    def compact(self) -> Wholes:
        """(E,): of types without a fixed number of clusters numbered by size, the largest first."""
        labels = self.labels
        for t in np.flatnonzero(~self.prior.fixed).tolist():
            own = labels[self.of_type(t)]
            _, first, place, count = np.unique(own, return_index=True, return_inverse=True, return_counts=True)
            own[:] = np.argsort(np.lexsort((first, -count)))[place]
        return labels
