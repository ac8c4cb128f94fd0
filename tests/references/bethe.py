"""Belief propagation of block models in plain NumPy (Decelle et al. 2011; Yedidia, Freeman & Weiss 2005, eq. 37).

A graph at given globals is ``_graphs.Labelled``: log pi (K,) and log p(x_ij | a, b) of every dyad (E, K, K). Pairs of
nodes with an edge in either direction carry messages; of other dyads both ends are independent. ``apart`` (E, K, K):
the part of a dyad's table that counts by independent ends even so; None: of dyads without messages all of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import xlogy

from tests.references._graphs import Labelled
from tests.references._shared import Array

Messages = dict[tuple[int, int], Array]


@dataclass(frozen=True)
class Bethe:
    """own (N, K): log pi and self loops. pair: log W_ij (K, K) of i < j. apart: log factors (K, K) of dyads (i, j)."""

    own: Array
    pair: dict[tuple[int, int], Array]
    apart: list[tuple[int, int, Array]]

    @classmethod
    def of(cls, graph: Labelled, x: ArrayLike, apart: Array | None = None) -> Bethe:
        """Of a graph with the entries x (N, N) of its dyads."""
        x, own = np.asarray(x, dtype=np.float64), np.tile(graph.log_pi, (graph.num_nodes, 1))
        pair: dict[tuple[int, int], Array] = {}
        rest = []
        for e, (i, j) in enumerate(zip(graph.i.tolist(), graph.j.tolist(), strict=True)):
            table = graph.table[e]
            if i == j:
                own[i] += np.diag(table)
                continue
            linked = x[i, j] > 0 or x[j, i] > 0
            other = apart[e] if apart is not None else np.zeros_like(table) if linked else table
            rest.append((i, j, other))
            if linked:
                left, key = table - other, (min(i, j), max(i, j))
                pair[key] = pair.get(key, 0) + (left if i < j else left.T)
            elif apart is not None:
                rest.append((i, j, table - other))
        return cls(own, pair, rest)

    def factor(self, i: int, j: int) -> Array:
        """W_ij(a, b), a of node i."""
        return np.exp(self.pair[i, j] if i < j else self.pair[j, i].T)

    def neighbours(self, i: int) -> list[int]:
        return sorted({b if a == i else a for a, b in self.pair if i in (a, b)})

    def updated(self, messages: Messages, psi: Array) -> tuple[Messages, Array]:
        """All messages and beliefs anew from the old ones."""
        score = self.own.copy()
        for i, j, table in self.apart:
            score[i] += table @ psi[j]
            score[j] += table.T @ psi[i]
        new, beliefs = {}, np.empty_like(psi)
        for i in range(len(psi)):
            said = {k: np.log(self.factor(i, k) @ messages[k, i]) for k in self.neighbours(i)}
            beliefs[i] = _share(score[i] + sum(said.values()))
            for j in said:
                new[i, j] = _share(score[i] + sum(one for k, one in said.items() if k != j))
        return new, beliefs

    def together(self, messages: Messages) -> Messages:
        """b_ij (K, K) of the pairs i < j."""
        found = {}
        for i, j in self.pair:
            both = messages[i, j][:, None] * self.factor(i, j) * messages[j, i]
            found[i, j] = both / both.sum()
        return found

    def log_z(self, messages: Messages, psi: Array) -> float:
        """Energies, entropies of the nodes, less what their pairs know of each other."""
        total = float((psi * self.own).sum() - xlogy(psi, psi).sum())
        total += sum(float(psi[i] @ table @ psi[j]) for i, j, table in self.apart)
        for (i, j), both in self.together(messages).items():
            total += float((both * self.pair[i, j]).sum())
            total -= float((xlogy(both, both) - both * np.log(np.outer(psi[i], psi[j]))).sum())
        return total


def _share(score: Array) -> Array:
    weight = np.exp(score - score.max())
    return weight / weight.sum()
