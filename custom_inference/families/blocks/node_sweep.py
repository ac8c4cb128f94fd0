"""Updates of the nodes one after the other, compiled: imported only where they are run."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True)
def sweep_nodes(meet, fixed, share, sweeps, tolerance):
    """phi_i in proportion to exp(fixed_i + sum_jb meet_iajb phi_jb), node after node, until nothing changes.

    meet: (N, K, N K), zero between a node and itself. fixed: (N, K). share: (N, K), changed in place.
    """
    size, blocks = share.shape
    flat = share.reshape(size * blocks)
    for _ in range(sweeps):
        most = 0.0
        for i in range(size):
            field = fixed[i] + np.dot(meet[i], flat)
            field = np.exp(field - field.max())
            field /= field.sum()
            for a in range(blocks):
                most = max(most, abs(field[a] - share[i, a]))
                share[i, a] = field[a]
        if most < tolerance:
            return
