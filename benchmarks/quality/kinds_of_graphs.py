"""Kinds of graphs that block models generate and find again (002, section 27.5.1, Figs. 27.18 to 27.20).

    python -m benchmarks.quality.kinds_of_graphs [--seeds 20] [--quick]

Writes ``benchmarks/results/kinds_of_graphs.{md,json}`` and a figure. Rings, dominance hierarchies, common causes and
common effects of Fig. 27.20, and the nine nodes of Figs. 27.18 and 27.19, whose three blocks of 3, 4 and 2 nodes form a
ring. The source prints pictures only, so that graphs are drawn anew: an edge has one probability where the abstract
graph has an arrow between two blocks and another where it has none.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np

from benchmarks._report import RESULTS, Table, write_report
from benchmarks.quality import _graph_ours as ours
from benchmarks.quality._common import quiet_and_single_threaded, spread
from benchmarks.quality._graph_data import Array, KnownGraph, agreement
from benchmarks.quality._graph_figures import block_graphs, save
from ppl_models import SBM


class Kind(NamedTuple):
    """arrows (K, K): 1 where the abstract graph has an arrow; on, off: probability of an edge there and elsewhere."""

    name: str
    arrows: Array
    sizes: tuple[int, ...]
    on: float
    off: float

    @property
    def eta(self) -> Array:
        return np.where(self.arrows > 0, self.on, self.off)


def _ring(size: int) -> Array:
    return np.roll(np.eye(size), 1, axis=1)


def _hierarchy(size: int) -> Array:
    return np.triu(np.ones((size, size)), 1)


def _cause(size: int) -> Array:
    """The first block points to all others."""
    arrows = np.zeros((size, size))
    arrows[0, 1:] = 1
    return arrows


#: The blocks of a common cause's effects differ in nothing but how often they are caused.
KINDS = (
    Kind("ring", _ring(4), (10, 10, 10, 10), 0.6, 0.05),
    Kind("hierarchy", _hierarchy(4), (10, 10, 10, 10), 0.6, 0.05),
    Kind("common cause", _cause(4), (10, 10, 10, 10), 0.6, 0.05),
    Kind("common effect", _cause(4).T, (10, 10, 10, 10), 0.6, 0.05),
    Kind("nine nodes", _ring(3), (3, 4, 2), 0.9, 0.05),
)


def drawn(kind: Kind, seed: int) -> KnownGraph:
    """A directed graph whose nodes are in random order."""
    rng = np.random.default_rng(seed)
    block = rng.permutation(np.repeat(np.arange(len(kind.sizes)), kind.sizes))
    x = rng.random((len(block),) * 2) < kind.eta[block][:, block]
    np.fill_diagonal(x, False)
    return KnownGraph(kind.name, np.argwhere(x), len(block), True, {"block": block})


def main() -> None:
    raise NotImplementedError


if __name__ == "__main__":
    main()
