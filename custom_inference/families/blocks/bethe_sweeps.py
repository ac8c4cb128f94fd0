"""Sweeps of belief propagation: of small graphs node by node, of large ones by groups of nodes on several threads.

Groups are parts of one random order, few enough nodes each that hardly any two of them are neighbours: what they do not
hear of each other before the next sweep changes nothing to speak of. Groups and their parts depend on the graph alone.
Import inside functions only: it loads the compiler.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from custom_inference.core.threads import cut_evenly, map_in_threads
from custom_inference.families.blocks import bethe_kernels as kernels

if TYPE_CHECKING:
    from custom_inference.families.blocks.pairs import Beliefs, BetheFactors, Floats, PairSlots

#: Slots times K from which nodes speak in groups; so many groups, each in so many parts; parts of the sums over pairs.
_LARGE, _GROUPS, _PARTS, _SUMS = 2**20, 32, 4, 8


def run_sweeps(
    pairs: PairSlots, factors: BetheFactors, weight: Floats, beliefs: Beliefs, sweeps: int, tolerance: float
) -> float:
    """Sweep over the nodes, changing the beliefs in place, until none moves by more than ``tolerance``; return sum_i
    log Z_i of the last sweep. weight (S, N): the nodes' weights."""
    factors = factors._replace(table=_widen(factors.table))
    total, found = np.einsum("sn,nk->sk", weight, beliefs.belief), 0.0
    groups = _Groups(pairs, factors, weight, beliefs) if len(pairs.node) * beliefs.belief.shape[1] >= _LARGE else None
    for _ in range(sweeps):
        if groups is not None:
            change, found = groups.sweep(total)
        else:
            change, found = kernels.propagate(pairs, factors, weight, beliefs, total)
        if change <= tolerance:
            break
    return found


#: Nodes, and where how far their sums of beliefs move, what they say and their new beliefs are put.
_Room = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class _Groups:
    """The groups that nodes speak in, and room for what those of one say."""

    def __init__(self, pairs: PairSlots, factors: BetheFactors, weight: Floats, beliefs: Beliefs):
        self._given, self._told = (pairs, factors, weight, beliefs), (pairs, weight, beliefs)
        degree, blocks = np.diff(pairs.start)[pairs.order], beliefs.belief.shape[1]
        ends = np.concatenate([[0], np.cumsum(degree + 1)])
        self._groups: list[list[np.ndarray]] = []
        for first, last in cut_evenly(ends, _GROUPS):
            parts = cut_evenly(ends[first : last + 1] - ends[first], _PARTS)
            self._groups.append([pairs.order[first + low : first + high] for low, high in parts])
        number = max(map(len, self._groups))
        slots = [max(_slots(pairs, group[p]) for group in self._groups if p < len(group)) for p in range(number)]
        widest = max(len(part) for group in self._groups for part in group)
        self._said = [np.empty((size, factors.table.shape[2])) for size in slots]
        self._fresh = [np.empty((widest, blocks)) for _ in slots]
        self._moved = np.zeros((number, len(weight), blocks))

    def sweep(self, total: Floats) -> tuple[float, float]:
        """Let all nodes speak once, ``total`` in place; return how far the farthest belief moved, and sum_i log Z_i."""
        change, found = 0.0, 0.0
        for parts in self._groups:
            rooms = list(zip(parts, self._moved, self._said, self._fresh, strict=False))
            found += sum(map_in_threads(partial(self._hear, total), rooms))
            change = max(change, *map_in_threads(self._tell, rooms))
            total += self._moved[: len(parts)].sum(0)
        return change, found

    def _hear(self, total: Floats, room: _Room) -> float:
        nodes, _, said, fresh = room
        return kernels.hear(*self._given, total, nodes, said, fresh)

    def _tell(self, room: _Room) -> float:
        nodes, moved, said, fresh = room
        moved[:] = 0.0
        return kernels.tell(*self._told, moved, nodes, said, fresh)


def _widen(table: Floats) -> Floats:
    """Pad the last axis with 0 to a multiple of four."""
    return np.pad(table, [(0, 0), (0, 0), (0, -table.shape[2] % 4)])


def _slots(pairs: PairSlots, nodes: np.ndarray) -> int:
    return int((pairs.start[nodes + 1] - pairs.start[nodes]).sum())


def sum_pairs(pairs: PairSlots, factors: BetheFactors, beliefs: Beliefs) -> tuple[float, Floats, Floats]:
    """Return the sum over the pairs of log Z_ij; and the sums by kind (T, K, K), the block of the higher node first, of
    the pairs' beliefs b_ij and of psi_i psi_j."""
    table = factors.table
    few = len(pairs.node) * beliefs.belief.shape[1] < _LARGE
    parts = cut_evenly(pairs.start, 1 if few else _SUMS)

    def sum_part(ends: tuple[int, int]) -> tuple[float, Floats, Floats]:
        joint, apart = np.zeros_like(table), np.zeros_like(table)
        return kernels.pair_sums(pairs, table, beliefs, *ends, joint, apart), joint, apart

    logs, joints, aparts = zip(*map_in_threads(sum_part, parts), strict=True)
    return sum(logs), np.sum(joints, axis=0) * table, np.sum(aparts, axis=0)
