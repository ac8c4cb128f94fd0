"""Responsibilities phi (N, K) of a graph's nodes at given globals: coordinate ascent, the bound, and names of blocks.

bound = sum over dyads of sum_ab phi_ia phi_jb log p(x_ij | a, b) + sum_i sum_a phi_ia (log p(a) - log phi_ia)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy
from torch import Tensor

from custom_inference.compiled.graphs.rows import DyadRows, Floats

#: Sweeps end when no responsibility moves by more.
_TOLERANCE = 1e-10
#: Up to so many labels all ways of naming the blocks of a division are tried.
_ALL_ORDERS = 6


@dataclass(frozen=True)
class DyadTables:
    """Laws at given globals: natural parameters (F, K, K) of features at labels a, b, log p (U, K) of labels, and the
    weights (2, N) of the nodes in exposures, as first and as second. constant: what these add by themselves."""

    natural: Floats
    labels: Floats
    weight: Floats
    constant: float = 0.0

    @classmethod
    def at(cls, rows: DyadRows, values: Mapping[str, Tensor]) -> DyadTables:
        """Evaluate the laws at values of the globals."""
        structure = rows.structure
        natural, labels = structure.look_up({s: value.detach().cpu().double() for s, value in values.items()})
        weight = structure.propensities.weights(values, len(rows))
        constant = float(xlogy(rows.degrees, weight).sum()) if structure.propensities.ends else 0.0
        return cls(natural.permute(2, 0, 1).numpy().copy(), labels.numpy().copy(), weight, constant)


def draw_labels(at: DyadTables, rows: DyadRows, share: Floats, generator: np.random.Generator) -> None:
    """Draw the label of one node after the other given all others, changing ``share`` (N, K), 0 or 1, in place."""
    sweep(at, rows, share, 1, uniform=generator.random(len(rows)))


def sweep(
    at: DyadTables, rows: DyadRows, phi: Floats, sweeps: int, temperature: float = 1.0, uniform: Floats | None = None
) -> None:
    """Run coordinate ascent over the nodes, changing ``phi`` in place. uniform: (N,) numbers by which labels are drawn
    instead."""
    from custom_inference.compiled.graphs.kernel import sweep_dyads

    size = phi.shape[1]
    natural = temperature * at.natural
    base = np.tensordot(rows.zero, natural, 1)
    own = np.broadcast_to(at.labels, phi.shape) + rows.loops @ natural.diagonal(0, 1, 2)
    own = own + (rows.loop_seen * at.weight[0] * at.weight[1])[:, None] * base.diagonal()
    moving = natural[rows.moving]
    both = np.ascontiguousarray(np.stack([moving.transpose(0, 2, 1), moving]))
    bases = np.ascontiguousarray(np.stack([base.T, base]))
    work, ahead, behind = np.empty((2 + len(moving), size)), np.empty(size), np.empty(size)
    own, draws = np.ascontiguousarray(own), np.empty(0) if uniform is None else uniform
    sweep_dyads(rows.links, at.weight, own, both, bases, phi, ahead, behind, work, draws, sweeps, _TOLERANCE)


def bound_at(at: DyadTables, rows: DyadRows, phi: Floats, counted: Floats, temperature: float = 1.0) -> float:
    """Compute the bound from the expected features (K, K, F); the likelihood raised to the temperature."""
    likelihood = float((counted * at.natural.transpose(1, 2, 0)).sum()) + rows.offset + at.constant
    return temperature * likelihood + float((phi * at.labels).sum()) - float(xlogy(phi, phi).sum())


def name_blocks(at: DyadTables, rows: DyadRows, phi: Floats) -> Floats:
    """Reorder the blocks of a division so that they match the globals: exactly for few, by swaps for many."""
    counted, size = rows.count(phi, at.weight), phi.shape[1]
    fit = phi.T @ np.broadcast_to(at.labels, phi.shape)

    def score(orders: NDArray[np.int64]) -> Floats:
        pair = orders[:, :, None], orders[:, None, :]
        dyads = sum(((counted[:, :, f] * one[pair]).sum((1, 2)) for f, one in enumerate(at.natural)), 0.0)
        return dyads + fit[np.arange(size), orders].sum(1)

    if size <= _ALL_ORDERS:
        orders = np.array(list(permutations(range(size))))
        order = orders[score(orders).argmax()]
    else:
        order, value = np.arange(size), -np.inf
        while True:
            swaps = [order]
            for a in range(size):
                for b in range(a):
                    other = order.copy()
                    other[[a, b]] = order[[b, a]]
                    swaps.append(other)
            scores = score(np.array(swaps))
            order, before, value = swaps[int(scores.argmax())], value, float(scores.max())
            if value <= before + 1e-9 * abs(value):
                break
    return phi[:, np.argsort(order)]
