"""Starts of compiled programs of graphs: divisions of the nodes by what their edges are, seen in several ways."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from custom_inference.compiled.graphs.moves import WAYS, move_blocks
from custom_inference.compiled.graphs.rows import DyadRows, Whole
from custom_inference.core.proposals import Proposals
from custom_inference.core.states import PointsWithLocals
from custom_inference.families.blocks.mean_field import division_of
from custom_inference.families.blocks.propose import same_division, seed_of
from ppl_models import GraphModel

#: A start is the best of so many divisions of the nodes, of fewer where edges and nodes are more than a few hundred,
#: after as many iterations.
_TRIES, _CHEAP, _SETTLE = 4, 8000, 4
#: Random starts beside the others on small graphs.
_RANDOM = 150


class DyadStarts(Proposals):
    """Starts of an engine of compiled programs of graphs."""

    random_rows = _RANDOM

    def propose(self, model: GraphModel, rows: DyadRows, generator: torch.Generator, attempt: int) -> Any:
        """Try some divisions of the nodes, each by another view of the edges; return where the best of them leads."""
        if rows.num_labels == 1:
            return self.engine.initial(model, rows, generator)
        tries = min(_TRIES, 1 + _CHEAP // (len(rows.i) + len(rows)))
        found: list[tuple[float, Any]] = []
        known: set[bytes] = set()
        for number in range(attempt * tries, (attempt + 1) * tries):
            for label in divide(rows, seed_of(generator), number):
                _, first, place = np.unique(label, return_index=True, return_inverse=True)
                canonical = first[place].tobytes()  # blocks by their first nodes
                if canonical not in known:
                    found.append(self.settle(model, rows, one_hot(torch.as_tensor(label), rows.num_labels)))
                known.add(canonical)
        return max(found, key=lambda one: one[0])[1]

    def refine(
        self, model: GraphModel, rows: DyadRows, params: PointsWithLocals, generator: torch.Generator, agreed: bool
    ) -> PointsWithLocals:
        """Move labels of blocks to halves of others, less often where starts agreed."""
        size = rows.num_labels
        if size == 1 or len(rows) < 2 * size or division_of(params) is None:
            return params
        patience = size if agreed else 3 * len(WAYS) * size
        step = self.engine.e_step(model, params, rows)
        value = float(self.engine.objective_at(model, params, step.bound))
        return move_blocks(partial(self.settle, model, rows), rows, params, value, generator, patience)

    def settle(self, model: GraphModel, rows: DyadRows, share: Tensor) -> tuple[float, Any]:
        """Run some iterations from a division; return the objective that they reach, and the state there."""
        state, value = self.engine.from_responsibilities(model, share, rows), -math.inf
        for _ in range(_SETTLE):
            step = self.engine.e_step(model, state, rows)
            value = float(self.engine.objective_at(model, state, step.bound))
            state = self.engine.m_step(model, state, step, rows)
        return value, state

    def search_size(self, model: GraphModel, num_rows: int) -> tuple[int, int]:
        """Return six starts, on all nodes; one where there is nothing to divide."""
        return (1 if model.sizes[str(model.sites[model.local_site].choice)] == 1 else 6), num_rows

    def same_solution(self, model: GraphModel, first: PointsWithLocals, second: PointsWithLocals) -> bool:
        """Tell whether two states divide the nodes alike; the exact engine keeps no division."""
        return first is second or (division_of(first) is not None and same_division(first, second))

    def compares(self, model: GraphModel, state: PointsWithLocals) -> bool:
        """Whether the state divides the nodes."""
        return division_of(state) is not None


def divide(rows: DyadRows, seed: int, number: int) -> list[Whole]:
    """Divide the nodes by one of the views of the edges, another one for every number: by integrated likelihood, and
    by spectra where that leaves blocks empty, as it may see no use of a block that has one."""
    from custom_inference.families.blocks.partitions import propose_labels, spectral_labels

    (graph, kind), attempt = rows.views[number % len(rows.views)], number // len(rows.views)
    first = rows.structure.model.first_nodes
    if first is not None:
        label = propose_labels(graph, min(2 * rows.num_labels, len(rows)), kind, seed, attempt)
        return [np.concatenate([_keep_largest(one, rows.num_labels) for one in (label[:first], label[first:])])]
    labels = [propose_labels(graph, rows.num_labels, kind, seed, attempt)]
    if len(np.unique(labels[0])) < min(rows.num_labels, len(rows)):
        labels.append(spectral_labels(graph, rows.num_labels, kind, seed, attempt))
    return labels


def _keep_largest(label: Whole, size: int) -> Whole:
    """Return labels of the groups of one mode by their sizes, those beyond so many joined with the others."""
    _, place, number = np.unique(label, return_inverse=True, return_counts=True)
    return np.argsort(np.argsort(-number, kind="stable"))[place] % size
