"""Moves of chains along what the ratings do not tell apart. Predictions do not change where

    v_i + delta, a_u - delta'v_u in place of v_i, a_u;   C^-1 v_i, C v_u in place of v_i, v_u, C diagonal;
    mean + delta, c_i - delta in place of the overall mean, c_i;

m, beta and L moved alike, nothing but the priors of m and L changes, and delta and C are drawn given all else: it is
not left to small steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from custom_inference.families.ratings.incidence import Array
from custom_inference.families.ratings.sides import Side


def exchange(chain: Any, generator: np.random.Generator) -> None:
    """Draws of delta, of either side, and of C, given everything that does not depend on them."""
    for side, other in ((chain.user, chain.item), (chain.item, chain.user)):
        _shifted(side, other, generator)
    _scaled(chain, generator)
    _centred(chain, generator)
    for side in (chain.user, chain.item):
        side.lend()


def _shifted(side: Side, other: Side, generator: np.random.Generator) -> None:
    """delta is added to the factors of ``side``: Normal, as the other side has tr(s L) + 2 s L_0'delta +
    s L_00 |delta|^2 in place of tr(s L) in the exponent of its Wishart."""
    one, two, d = side.prior, other.prior, side.mean.shape[1]
    assert one is not None and two is not None
    strength, spread = side.settings.strength, other.settings.spread * (other.settings.degrees + d - 1)
    precision = strength * one.precision[1:, 1:] + spread * two.precision[0, 0] * np.eye(d - 1)
    slope = strength * (one.precision @ one.coefficient[0])[1:] + spread * two.precision[1:, 0]
    root = np.linalg.cholesky(precision)
    delta = np.linalg.solve(root.T, generator.standard_normal(d - 1) - np.linalg.solve(root, slope))
    moved = one.coefficient.copy()
    moved[0, 1:] += delta
    side.mean[:, 1:] += delta
    side.set_prior(replace(one, coefficient=moved))
    shear = np.eye(d)
    shear[1:, 0] = -delta  # of rows, from the right
    _turned(other, shear)


def _turned(side: Side, turn: Array) -> None:
    """Rows w' become w' T, and their prior that of such rows."""
    prior, back = side.prior, np.linalg.inv(turn)
    assert prior is not None
    side.mean[...] = side.mean @ turn
    side.set_prior(replace(prior, precision=back @ prior.precision @ back.T, coefficient=prior.coefficient @ turn))


def _scaled(chain: Any, generator: np.random.Generator) -> None:
    """With x = c_k^2 of users: x^p exp(-(a / x + b x) / 2) d log x, a and b from the Wishart priors. Metropolis with
    the Normal that log x has at its centre as a proposal."""
    scale, d = [], chain.user.mean.shape[1]
    for side in (chain.user, chain.item):
        assert side.prior is not None
        scale.append(side.settings.spread * (side.settings.degrees + d - 1) * np.diag(side.prior.precision)[1:])
    power = 0.5 * (chain.item.settings.degrees - chain.user.settings.degrees)
    size, centre = np.sqrt(scale[0] * scale[1]), 0.5 * np.log(scale[0] / scale[1])

    def excess(shift: Array) -> Array:
        return power * shift - size * (np.cosh(shift) - 1 - 0.5 * shift**2)

    there = generator.standard_normal(d - 1) / np.sqrt(size)
    accepted = np.log(generator.random(d - 1)) < excess(there) - excess(-centre)
    root = np.exp(0.5 * np.where(accepted, there + centre, 0.0))
    for side, each in ((chain.user, root), (chain.item, 1 / root)):
        _turned(side, np.diag(np.concatenate([np.ones(1), each])))


def _centred(chain: Any, generator: np.random.Generator) -> None:
    """delta is added to the overall mean and taken from all c_i, and nothing but the priors of both means changes."""
    if chain.settings.centre is None:
        return
    (mean, precision), side = chain.settings.centre, chain.item
    prior, strength, here = side.prior, side.settings.strength, chain.ratings.centre
    assert prior is not None
    curvature = precision + strength * prior.precision[0, 0]
    pull = precision * (mean - here) + strength * (prior.precision @ prior.coefficient[0])[0]
    delta = float(pull / curvature + generator.standard_normal() / np.sqrt(curvature))
    moved = prior.coefficient.copy()
    moved[0, 0] -= delta
    side.mean[:, 0] -= delta
    side.set_prior(replace(prior, coefficient=moved))
    chain.ratings = replace(chain.ratings, centre=here + delta)
    if chain.outcomes is not None:
        chain.outcomes.bound -= delta
    for one in (chain.user, chain.item):
        one.ratings.value[...] -= delta
