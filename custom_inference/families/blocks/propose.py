"""Starts for block models: divisions of the nodes of high integrated likelihood, found by a search over partitions."""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch.nn.functional import one_hot

from custom_inference.core.engine import Params
from custom_inference.core.proposals import Proposals
from custom_inference.core.states import State, values_of
from custom_inference.families.blocks.covariates import CovariateGraphRows
from custom_inference.families.blocks.evidence import mode_evidence, trivial, unsure
from custom_inference.families.blocks.likelihoods import likelihood_of, partition_likelihood
from custom_inference.families.blocks.mean_field import division_of
from custom_inference.families.blocks.rows import SbmRows
from ppl_models.block_models import BlockModel

#: A start is the best of so many divisions of the nodes, of fewer where edges and nodes are more than a few hundred,
#: after as many iterations.
_TRIES, _CHEAP, _SETTLE = 6, 4000, 5
#: A division is clear where less than this share of the nodes is unsure of its block.
_DOUBTFUL = 0.1
#: Two divisions of the nodes are one solution where this share of the nodes is in blocks that correspond.
_SAME = 0.97
#: Starts whose block matrices differ by less, blocks matched, are one solution.
_SAME_MATRIX = 0.05


class BlockProposals(Proposals):
    """Starts of the engines of block models."""

    def propose(self, model: BlockModel, rows: SbmRows, generator: torch.Generator, attempt: int) -> Params:
        """Try some divisions of the nodes and return the one that holds most of the posterior.

        Divisions of high integrated likelihood first. Two may be all but equally likely, and the search finds now this,
        now that one: small graphs, where that is so, afford several. Where it leaves blocks empty, a division into all
        of them is tried too: the search integrates propensities out under another prior than the model's, and may see
        no use of a block that has one. Where blocks stay empty after some iterations, or many nodes without a block of
        their own, the likeliest division is no guide, and probable ones are tried beside it (``planted``).
        """
        from custom_inference.families.blocks.partitions import propose_labels, spectral_labels
        from custom_inference.families.blocks.planted import propose_planted

        kind, blocks = partition_likelihood(model), model.num_blocks
        tries = 1 if blocks == 1 else min(_TRIES, 1 + _CHEAP // (rows.edges.nnz + len(rows)))
        found: list[tuple[float, Params]] = []
        known: set[bytes] = set()
        seed = 0
        for number in range(attempt * tries, (attempt + 1) * tries):
            seed = seed_of(generator)
            labels = [propose_labels(rows, blocks, kind, seed, number)]
            if len(np.unique(labels[0])) < min(blocks, len(rows)):
                labels.append(spectral_labels(rows, blocks, kind, seed, number))
            for label in labels:
                _, first, place = np.unique(label, return_index=True, return_inverse=True)
                canonical = first[place].tobytes()  # blocks by their first nodes
                if canonical not in known:
                    found.append(self.run_iterations(model, rows, _codes(label, blocks)))
                known.add(canonical)
        if all(_clear(state) for _, state in found):
            return max(found, key=lambda one: one[0])[1]
        found.append(self.run_iterations(model, rows, torch.as_tensor(propose_planted(model, rows, seed, attempt))))
        top = max(found, key=lambda one: self.weigh(model, one[1], rows, one[0]))
        return max((one for one in found if self.same_solution(model, top[1], one[1])), key=lambda one: one[0])[1]

    def run_iterations(self, model: BlockModel, rows: SbmRows, share: torch.Tensor) -> tuple[float, Params]:
        """Run some iterations from a division; return the objective that they reach, and the parameters there."""
        state, value = self.engine.from_responsibilities(model, share, rows), -math.inf
        for _ in range(_SETTLE):
            step = self.engine.e_step(model, state, rows)
            value = float(self.engine.objective_at(model, state, step.bound))
            state = self.engine.m_step(model, state, step, rows)
        return value, state

    def weigh(self, model: BlockModel, state: State | Params, rows: SbmRows, objective: float) -> float:
        """Compute the objective with the correlations of the nodes' blocks, which tell modes apart (``evidence``)."""
        return mode_evidence(self.engine, model, state, rows, objective, seed=0)

    def remark(self, model: BlockModel, state: State | Params) -> str:
        """Describe a mode that divides nothing."""
        division = division_of(state)
        return "" if division is None else trivial(division.numpy())

    def search_size(self, model: BlockModel, num_rows: int) -> tuple[int, int]:
        """Return six starts, on all nodes; one where there is nothing to divide."""
        return (1 if model.num_blocks == 1 else 6), num_rows

    def same_solution(self, model: BlockModel, first: State | Params, second: State | Params) -> bool:
        """Tell whether two states divide the nodes alike; for the exact engine, which keeps no division, whether their
        matrices agree in some order of the blocks."""
        if division_of(first) is not None:
            return same_division(first, second)
        site, states = likelihood_of(model).site, (first, second)
        one, other = (values_of(model, state)[site].double().numpy() for state in states)
        if not self.compares(model, first):
            return first is second
        orders = np.array(list(permutations(range(len(one)))))
        apart = np.abs(other[orders[:, :, None], orders[:, None, :]] - one)
        return bool(apart.max((1, 2)).min() < _SAME_MATRIX * max(1.0, float(one.max())))

    def compares(self, model: BlockModel, state: State | Params) -> bool:
        """Whether the state divides the nodes, or its blocks are few enough to be tried in every order."""
        return division_of(state) is not None or model.num_blocks <= 6


class CovariateProposals(Proposals):
    """Starts of the engines of block models with features: the informed ones see none of these."""

    random_rows = 150

    def propose(self, model: BlockModel, rows: CovariateGraphRows, generator: torch.Generator, attempt: int) -> Params:
        """Propose a partition of high integrated likelihood, as if there were no features."""
        from custom_inference.families.blocks.partitions import propose_partition

        label = propose_partition(rows, model.num_blocks, "bernoulli", seed_of(generator), attempt)
        return self.engine.from_labels(model, torch.as_tensor(label), rows)

    def same_solution(self, model: BlockModel, first: State | Params, second: State | Params) -> bool:
        """The exact engine keeps no division."""
        return first is second or (division_of(first) is not None and same_division(first, second))


def _codes(label: NDArray[np.int64], blocks: int) -> torch.Tensor:
    return one_hot(torch.as_tensor(label), blocks).double()


def _clear(state: State | Params) -> bool:
    """Tell whether every block has nodes, and most of them are sure; engines without a division are taken to be
    clear."""
    division = division_of(state)
    if division is None:
        return True
    empty = len(division.argmax(-1).unique()) < min(division.shape[1], len(division))
    return not empty and unsure(division) < _DOUBTFUL


def seed_of(generator: torch.Generator) -> int:
    return int(torch.randint(2**31, (), generator=generator))


def same_division(first: State | Params, second: State | Params) -> bool:
    """Tell whether nearly all nodes are in blocks that correspond, but for as many as the divisions leave open."""
    divisions: Any = map(division_of, (first, second))
    pair = [one.double().cpu() for one in divisions]
    one, other = (one_hot(division.argmax(-1), division.shape[1]).numpy() for division in pair)
    both, still_open = one.T @ other, sum(float((1 - division.max(-1).values).mean()) for division in pair)
    return bool(both[linear_sum_assignment(-both)].sum() >= (_SAME - still_open) * both.sum())
