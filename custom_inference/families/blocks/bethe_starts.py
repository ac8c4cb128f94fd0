"""Starts of belief propagation: spectral divisions by the Bethe Hessian, and random messages under planted rates.

    H(r) = (r^2 - 1) I - r A + D,    r = +-sqrt(sum_i d_i^2 / sum_i d_i - 1),

has a negative eigenvalue for every division that can be found in a sparse graph: with r > 0 for blocks of many edges
within, with r < 0 for blocks of few (Saade, Krzakala & Zdeborova, *Spectral clustering of graphs with the Bethe
Hessian*, NIPS 2014). Import inside functions only: it loads the compiler.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from scipy.optimize import linear_sum_assignment
from torch.nn.functional import one_hot

from custom_inference.core.states import PointsWithLocals
from custom_inference.core.threads import map_in_threads
from custom_inference.families.blocks.bethe import MESSAGE, previous_beliefs, propagate_beliefs, random_beliefs
from custom_inference.families.blocks.evidence import unsure
from custom_inference.families.blocks.likelihoods import likelihood_of, partition_likelihood
from custom_inference.families.blocks.mean_field import division_of
from custom_inference.families.blocks.partitions import cluster_rows, propose_labels, spectral_labels
from custom_inference.families.blocks.propose import BlockProposals, seed_of
from custom_inference.families.blocks.rows import Floats, SbmRows, Whole
from ppl_models.block_models import BlockModel

#: Rounds of one sweep and an M step, at most; they end where log Z gains less than this a node. Where degrees say
#: nothing of blocks, and where they do: more of them, to less, for the best start if it seems to have some nats left to
#: gain or rounds are cheap, of fewer edges times K, and for so many of others that may overtake it.
_ROUNDS, _GAIN, _MORE, _LESS, _LEFT, _CHEAP, _RIVALS = 40, 2e-5, (120, 300), 2e-6, 0.2, 3e5, (1, 2)
#: How sure messages are of a division that they start from.
_SURE = 0.9
#: Rates within blocks over rates between them that random messages start under, and sweeps under them, which end where
#: no belief moves by more.
_RATIOS, _SWEEPS, _CLOSE = (10.0, 0.1), 20, 0.02
#: States are sure of their nodes where this share is not at most, and alike where blocks share so much.
_DOUBTFUL, _ALIKE = 0.05, 0.9
#: Two starts within so many nats have found the same.
_SAME = 1.0
#: Degrees are no Poisson counts of one mean where their variance over it is above 1 by so many standard errors.
_ERRORS = 4.0
#: Random divisions to start from; where degrees say something of blocks, which then have rates of any kind.
_RANDOM, _MORE_RANDOM = 3, 8
#: Edges and K N nodes, times K, up to which a division of high integrated likelihood is sought: about a second.
_AFFORDED = 10**5
#: Below so many nodes all eigenvectors are computed at once.
_DENSE = 300
#: Above so many nodes in single precision, and without eigenvalues that take more than so many restarts: those that say
#: something lie apart from the others, and of one sign there often are none.
_LARGE, _RESTARTS = 20_000, 10


class Learned(NamedTuple):
    """The objective, the state, and what the objective may still gain: the sum of a geometric series of gains."""

    value: float
    state: PointsWithLocals
    left: float


class BetheProposals(BlockProposals):
    """Starts of belief propagation, which settles slowly near the limit: the best goes on until it gains nothing."""

    tolerance = 4e-6

    def propose(self, model: BlockModel, rows: SbmRows, generator: torch.Generator, attempt: int) -> Any:
        """Run several starts and return the one of the highest log Z; there are more of them, the less they agree.

        Where degrees say nothing of blocks two starts that agree will do. Elsewhere two may agree in what is no
        solution, and divisions by degree are tried too. Near the limit of what can be found log Z rises slowly, and
        what is behind after some rounds may be ahead after more.
        """
        del attempt
        blocks, seed = model.num_blocks, seed_of(generator)
        if blocks == 1:
            return self.engine.from_responsibilities(model, torch.ones(len(rows), 1), rows)
        varied = is_overdispersed(rows)
        needed = 4 if varied else 2
        found: list[Learned] = []
        for state in self._starts(model, rows, seed, varied):
            if not varied and found and same_clear_division(found[0].state, state):
                break  # where rounds would only lead to the same
            found.append(self.run_rounds(model, rows, state))
            found.sort(key=lambda one: -one.value)
            if len(found) >= needed and found[0].value - found[1].value < _SAME:
                break
        first = found[0]
        rivals = [one for one in found if first.value - _SAME > one.value > first.value - one.left]
        lasting = first.left > max(_LEFT, self.tolerance * len(rows)) or rows.edges.nnz * blocks < _CHEAP
        onwards = ([first] if lasting else []) + rivals[: _RIVALS[varied]]
        longer = [self.run_rounds(model, rows, one.state, _MORE[varied], _LESS) for one in onwards]
        return max([first, *longer], key=lambda one: one.value).state

    def _starts(self, model: BlockModel, rows: SbmRows, seed: int, varied: bool) -> Iterator[Any]:
        """States to learn from, one after the other."""
        blocks, kind, rng = model.num_blocks, partition_likelihood(model), np.random.default_rng(seed)
        size, number = len(rows), min(blocks, len(rows))

        def state_from_labels(label: Whole) -> Any:
            share = _SURE * one_hot(torch.as_tensor(label), blocks).double() + (1 - _SURE) / blocks
            return self.engine.from_responsibilities(model, share, rows)

        yield state_from_labels(
            spectral_labels(rows, blocks, kind, seed, 0) if rows.directed else hessian_labels(rows, number, rng)
        )
        if varied and kind != "degree_corrected":
            yield state_from_labels(by_degree(rows, blocks, rng))
        for ratio in _RATIOS:
            yield self.propose_planted(model, rows, ratio, rng)
        if not rows.directed:
            yield state_from_labels(spectral_labels(rows, blocks, "degree_corrected", seed, 0))
        for _ in range(_MORE_RANDOM if varied else _RANDOM):
            yield state_from_labels(rng.integers(blocks, size=size))
        yield self.propose_planted(model, rows, _RATIOS[0], rng)
        if (rows.edges.nnz + size * blocks) * blocks <= _AFFORDED:
            yield state_from_labels(propose_labels(rows, blocks, kind, seed, 1))

    def propose_planted(self, model: BlockModel, rows: SbmRows, ratio: float, rng: np.random.Generator) -> Any:
        """What messages come to from nearly nothing, as if all blocks were alike."""
        blocks, matrix, engine = model.num_blocks, likelihood_of(model), self.engine
        share = torch.full((len(rows), blocks), 1 / blocks, dtype=torch.float64)
        state = engine.from_responsibilities(model, share, rows)
        mean = float(state.sites[matrix.site].double().mean())
        within = blocks * mean / (1 + (blocks - 1) / ratio)
        rate = torch.full((blocks, blocks), within / ratio, dtype=torch.float64).fill_diagonal_(within).clamp(max=0.98)
        at = engine.compute_expectations(model, PointsWithLocals({**state.sites, matrix.site: rate}), rows)
        beliefs = random_beliefs(rows, blocks, rng)
        found = propagate_beliefs(at, rows, beliefs, _SWEEPS, tolerance=_CLOSE)
        best = engine.best(model, engine.node_params(model, state), found.counts, torch.as_tensor(beliefs.belief))
        return PointsWithLocals(best.sites, {**best.locals, MESSAGE: torch.as_tensor(beliefs.message)})

    def run_rounds(
        self, model: BlockModel, rows: SbmRows, state: PointsWithLocals, rounds: int = _ROUNDS, gain: float = _GAIN
    ) -> Learned:
        """After rounds of one sweep and an M step."""
        beliefs: Any = previous_beliefs(state, rows)  # of these rounds alone: copies cost as much as half a sweep
        value, moved, earlier = -np.inf, np.inf, np.inf
        for _ in range(rounds):
            step = self.engine.sweep(self.engine.compute_expectations(model, state, rows), rows, beliefs)
            before, value = value, float(self.engine.objective_at(model, state, step.bound))
            state = self.engine.m_step(model, state, step, rows)
            earlier, moved = moved, abs(value - before)
            if moved < gain * len(rows):
                break
        return Learned(value, state, moved**2 / (earlier - moved) if moved < earlier < np.inf else np.inf)

    def search_size(self, model: BlockModel, num_rows: int) -> tuple[int, int]:
        """One, of several tries."""
        return 1, num_rows

    def random_starts(self, model: BlockModel, num_rows: int) -> int:
        """None: random messages and random divisions are among the several tries."""
        del model, num_rows
        return 0

    def weigh(self, model: BlockModel, state: PointsWithLocals, rows: SbmRows, objective: float) -> float:
        """log Z has the correlations of neighbours in it."""
        return objective


def same_clear_division(first: PointsWithLocals, second: PointsWithLocals) -> bool:
    """Tell whether two states are sure of nearly all nodes, and have nearly the same nodes in every block."""
    divisions: Any = [division_of(one) for one in (first, second)]
    if max(map(unsure, divisions)) > _DOUBTFUL:
        return False
    one, other = (one_hot(division.argmax(1), division.shape[1]).double().numpy() for division in divisions)
    both = one.T @ other
    at = linear_sum_assignment(-both)
    return bool((both[at] >= _ALIKE * np.maximum(one.sum(0)[at[0]], other.sum(0)[at[1]])).all())


def is_overdispersed(rows: SbmRows) -> bool:
    """Whether nodes differ in degree by more than chance."""
    degree = rows.degrees
    excess = degree.var(1) / np.maximum(degree.mean(1), 1e-12) - 1
    return bool((excess > _ERRORS * np.sqrt(2 / len(rows))).any())


def by_degree(rows: SbmRows, blocks: int, rng: np.random.Generator) -> Whole:
    """Divide the nodes into equal parts in the order of the degrees, (N,)."""
    rank = np.argsort(np.argsort(rows.degrees.sum(0) + 1e-3 * rng.random(len(rows))))
    return rank * blocks // len(rows)


def hessian_labels(rows: SbmRows, blocks: int, rng: np.random.Generator) -> Whole:
    """Cluster the nodes of an undirected graph by k-means of the Bethe Hessian's lowest eigenvectors over both signs of
    r, (N,)."""
    return cluster_rows(hessian_vectors(rows, blocks, rng), blocks, rng)


def hessian_vectors(rows: SbmRows, blocks: int, rng: np.random.Generator) -> Floats:
    """Compute the eigenvectors of the K lowest eigenvalues over both signs, (N, K)."""
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    degree, size = np.asarray(rows.edges.sum(1)).ravel(), len(rows)
    radius = np.sqrt(max((degree**2).sum() / max(degree.sum(), 1.0) - 1, 1.0))

    def solve(given: tuple[float, Floats]) -> tuple[Floats, Floats]:
        r, first = given
        # The negative of H(r) without what moves all eigenvalues alike.
        matrix: Any = sp.csr_array(r * rows.edges - sp.diags_array(degree))
        if size <= max(_DENSE, 3 * blocks):
            value, vector = np.linalg.eigh(matrix.toarray())
            return value[-blocks:], vector[:, -blocks:]
        if size > _LARGE:
            matrix, first = matrix.astype(np.float32), first.astype(np.float32)
        settings: Any = {"which": "LA", "v0": first, "tol": 1e-3, "maxiter": _RESTARTS if size > _LARGE else size}
        try:
            value, vector = eigsh(matrix, blocks, **settings)
        except ArpackNoConvergence as error:
            value, vector = error.eigenvalues, error.eigenvectors
        return np.asarray(value), np.asarray(vector)

    found = map_in_threads(solve, [(r, rng.random(size) - 0.5) for r in (radius, -radius)])
    values, vectors = np.concatenate([one[0] for one in found]), np.hstack([one[1] for one in found])
    return vectors[:, np.argsort(-values)[:blocks]]
