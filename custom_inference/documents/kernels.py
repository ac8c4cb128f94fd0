"""Compiled samplers of log p(n | topics). Import inside functions only: it loads the compiler.

Both draw the topics z of a document's tokens, with the proportions integrated out: without token l,

    p(z_l = k | z_-l, w)  ~  b_{k, w_l} (alpha_k + n_k),        n_k the tokens of topic k among z_-l
"""

from __future__ import annotations

import numpy as np

from custom_inference.families.common.compiled import Ints, Reals, Words, entry, part
from custom_inference.families.common.random import draw_next, draw_place


@part
def _masses(seen: Reals, counts: Reals, alpha: Reals, mass: Reals):
    """b_k (alpha_k + n_k) of every topic, and their sum."""
    total = 0.0
    for k in range(len(alpha)):
        mass[k] = seen[k] * (alpha[k] + counts[k])
        total += mass[k]
    return total


@part
def _sweep(seen: Reals, z: Ints, counts: Reals, alpha: Reals, mass: Reals, length: int, state: Words):
    """Gibbs: every one of the first ``length`` tokens again, in place."""
    for t in range(length):
        counts[z[t]] -= 1
        total = _masses(seen[t], counts, alpha, mass)
        if total > 0:  # a token that no topic could have written keeps its topic; the weight is 0 anyway
            z[t] = draw_place(mass, len(mass), total, state)
        counts[z[t]] += 1


@part
def _filter_particles(seen: Reals, alpha: Reals, particles: int, sweeps: int, state: Words):
    """log of an unbiased estimate of p(w_1 .. w_L) by a particle filter; see ``samplers.left_to_right``."""
    length, size = seen.shape
    z, counts, mass = np.zeros((particles, length), np.int64), np.zeros((particles, size)), np.zeros(size)
    weight, total = np.full(particles, 1.0 / particles), 0.0
    for t in range(length):
        mean = 0.0
        for r in range(particles):
            for _ in range(sweeps):
                _sweep(seen, z[r], counts[r], alpha, mass, t, state)
            likely = _masses(seen[t], counts[r], alpha, mass)
            z[r, t] = draw_place(mass, len(mass), likely, state)
            counts[r, z[r, t]] += 1
            weight[r] *= likely / (alpha.sum() + t)
            mean += weight[r]
        if mean == 0:
            return -np.inf
        total += np.log(mean)
        weight /= mean
        if (weight**2).sum() * particles > 2:  # fewer than half of the particles count
            _resample(z, counts, weight, t + 1, state)
    return total


@part
def _resample(z: Ints, counts: Reals, weight: Reals, length: int, state: Words):
    """Systematic resampling: every particle is copied as often as its weight says, up to rounding, in the mean."""
    particles = len(weight)
    old_z, old_counts = z[:, :length].copy(), counts.copy()
    at, source, cumulative = draw_next(state), 0, weight[0]
    for r in range(particles):
        while cumulative * particles < r + at and source < particles - 1:
            source += 1
            cumulative += weight[source]
        for t in range(length):  # assigning arrays to slices compiles the message of its error: a second
            z[r, t] = old_z[source, t]
        for k in range(counts.shape[1]):
            counts[r, k] = old_counts[source, k]
    weight[:] = 1.0 / particles


@entry
def filter_documents(seen: Reals, start: Ints, alpha: Reals, particles: int, sweeps: int, seeds: Words):
    """Estimates (N,) of log p(w) of documents whose tokens ``start[i] : start[i + 1]`` have b_k w in ``seen`` (P, K);
    alpha (N, K), seeds (N,)."""
    found, state = np.zeros(len(start) - 1), np.zeros(1, np.uint64)
    for i in range(len(found)):
        state[0] = seeds[i]
        found[i] = _filter_particles(seen[start[i] : start[i + 1]], alpha[i], particles, sweeps, state)
    return found
