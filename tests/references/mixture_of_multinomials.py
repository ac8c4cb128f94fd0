"""Brute-force references for the mixture of multinomials (source 002, eqs. 27.1-27.4). No project code.

    c_n ~ Categorical(pi), one-hot               params["mixing_proportion"]  (K,)
    every token of n is v with probability b_kv  params["topic"]              (K, V)

Token by token, in their order: no multinomial coefficient unless asked for. ``mask`` (N, V) is True where a count was
observed; the tokens of the others are left out.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from tests.references import _mixture
from tests.references._shared import Array, Maybe, Params, observed


def log_joint_table(params: Params, x: ArrayLike, mask: Maybe = None, coefficient: bool = False) -> Array:
    """log pi_k + sum_l log b_k,y_nl, (N, K)."""
    seen, counts = observed(x, mask), np.asarray(x)
    proportion, topic = params["mixing_proportion"], params["topic"]
    table = np.zeros((len(counts), len(proportion)))
    for n, row in enumerate(counts):
        kept = {v: int(c) for v, c in enumerate(row) if seen[n, v] and c}
        tokens = [v for v, c in kept.items() for _ in range(c)]
        orders = math.factorial(len(tokens)) // math.prod(math.factorial(c) for c in kept.values())
        for k, p in enumerate(proportion):
            table[n, k] = math.log(p) + sum(math.log(topic[k, v]) for v in tokens)
            table[n, k] += math.log(orders) if coefficient else 0.0
    return table


log_joint, log_evidence, posterior = _mixture.of(log_joint_table)


def m_step(
    x: ArrayLike, weights: ArrayLike, mask: Maybe = None, concentration: ArrayLike = 1.0, added: float = 0.0
) -> dict[str, Array]:
    """Maximiser of the expected log joint: b_kv proportional to ``added`` + sum_n r_nk n_nv, ``added`` the prior's."""
    seen, r = observed(x, mask), np.asarray(weights, dtype=np.float64)
    counts = np.zeros((r.shape[1], seen.shape[1]))
    for (n, v), is_seen in np.ndenumerate(seen):
        if is_seen:
            counts[:, v] += r[n] * float(np.asarray(x)[n, v])
    counts += added
    return {"mixing_proportion": _mixture.proportions(r, concentration), "topic": counts / counts.sum(1)[:, None]}
