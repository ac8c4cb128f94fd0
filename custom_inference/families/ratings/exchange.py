"""Moves of chains along which single draws are slow, exact: what they move has its posterior before and after.

Along what the ratings do not tell apart predictions do not change,

    v_i + delta, a_u - delta'v_u in place of v_i, a_u;   C^-1 v_i, C v_u in place of v_i, v_u, C diagonal;
    mean + delta, c_i - delta in place of the overall mean, c_i;

m, beta and L moved alike, nothing but the priors of m and L changes, and delta and C are drawn given all else.

Rows of one side and their prior go together otherwise: where there are many rows, their spread hardly moves given the
rows, nor the rows given their spread. ``rescale`` draws c in c * w_n, c * m, c * beta, L / c c' in place of w_n, m,
beta, L, entry by entry. Of the prior all but that of L cancels, and predictions are linear in c:

    p(log c) ~ prod_k c_k^-nu exp(-s_k L_kk / 2 c_k^2) exp(-tau (c, -1)' P (c, -1) / 2),

P the products that ``draw_kernel`` collects, L ~ Wishart(nu, diag(1 / s)) (the scale group with its invariant measure:
Liu & Wu, JASA 94, 1999; Yu & Meng, JCGS 20, 2011, have it as interweaving).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from custom_inference.families.ratings.incidence import Array
from custom_inference.families.ratings.outcomes import Outcomes, slice_sample
from custom_inference.families.ratings.sides import Factorisation, FactorSide, apply_turn


class RatingChain(Factorisation, Protocol):
    """A factorisation that holds draws."""

    outcomes: Outcomes | None


class Moves:
    """Moves of a side one after the other, which its prior makes at once and its rows all together in the end."""

    def __init__(self, side: FactorSide):
        self.side, self.size = side, side.mean.shape[1]
        self.turn, self.shift = np.eye(self.size), np.zeros(self.size)

    def move(self, turn: Array, shift: Array) -> None:
        self.side.move_prior(turn, shift)
        self.turn, self.shift = apply_turn(self.turn, turn), apply_turn(self.shift, turn) + shift

    def end(self) -> None:
        side = self.side
        side.mean, side.prior_mean = side.mean @ self.turn + self.shift, side.prior_mean @ self.turn + self.shift


def rescale(side: FactorSide, tau: float, generator: np.random.Generator) -> None:
    """Rescale one side after a draw of its rows: each entry of c is drawn given the others by slice sampling."""
    d, each = side.mean.shape[1], np.append(np.ones(side.mean.shape[1]), -1.0)
    for k in range(d):
        score, width = scale_density(side, tau, each, k)
        each[k] = math.exp(slice_sample(score, 0.0, generator, width))
    side.move(each[:d], np.zeros(d))
    ends = np.append(each[:d], 1.0)
    side.products = side.products * np.outer(ends, ends)


def scale_density(side: FactorSide, tau: float, each: Array, k: int) -> tuple[Callable[[float], float], float]:
    """Return log p(log c_k) up to a constant, given the others in ``each``, (c, -1), and about its width."""
    assert side.prior is not None
    degrees = side.settings.degrees + side.mean.shape[1] - 1
    size = float(side.settings.scale(side.mean.shape[1])[k] * side.prior.precision[k, k])
    curvature = tau * float(side.products[k, k])
    slope = curvature * float(each[k]) - tau * float(side.products[k] @ each)

    def score(log: float) -> float:
        c = math.exp(log)
        return slope * c - 0.5 * curvature * c * c - degrees * log - 0.5 * size / (c * c)

    return score, 2 / math.sqrt(2 * curvature + 2 * size + 1)


def exchange(chain: RatingChain, generator: np.random.Generator) -> None:
    """Draw delta, of either side, and C, given everything that does not depend on them."""
    both = user, item = Moves(chain.user), Moves(chain.item)
    _shift_factors(user, item, generator)
    _shift_factors(item, user, generator)
    _rescale_factors(both, chain, generator)
    _shift_centre(item, chain, generator)
    for moves in both:
        moves.end()


def _shift_factors(moves: Moves, beside: Moves, generator: np.random.Generator) -> None:
    """Draw delta and add it to the factors of ``side``: it is Normal, as the other side has tr(S L) + 2 L_0'S delta +
    L_00 delta'S delta in place of tr(S L) in the exponent of its Wishart, S = diag(s)."""
    side, other, d = moves.side, beside.side, moves.size
    one, two = side.prior, other.prior
    assert one is not None and two is not None
    strength, spread = side.settings.strength, other.settings.scale(d)[1:]
    precision = strength * one.precision[1:, 1:] + np.diag(spread * two.precision[0, 0])
    slope = strength * (one.precision @ one.coefficient[0])[1:] + spread * two.precision[1:, 0]
    root = np.linalg.cholesky(precision)
    delta = np.linalg.solve(root.T, generator.standard_normal(d - 1) - np.linalg.solve(root, slope))
    moves.move(np.ones(d), np.append(0.0, delta))
    shear = np.eye(d)
    shear[1:, 0] = -delta  # of rows, from the right
    beside.move(shear, np.zeros(d))


def _rescale_factors(both: tuple[Moves, Moves], chain: RatingChain, generator: np.random.Generator) -> None:
    """Rescale the factors of users by c_k and those of items by 1 / c_k. With x = c_k^2 of users the density is x^p
    exp(-(a / x + b x) / 2) d log x, a and b from the Wishart priors; a Metropolis step proposes from the Normal that
    log x has at its centre."""
    scale, d = [], chain.user.mean.shape[1]
    for side in (chain.user, chain.item):
        assert side.prior is not None
        scale.append((side.settings.scale(d) * np.diag(side.prior.precision))[1:])
    power = 0.5 * (chain.item.settings.degrees - chain.user.settings.degrees)
    size, centre = np.sqrt(scale[0] * scale[1]), 0.5 * np.log(scale[0] / scale[1])

    def excess(shift: np.ndarray) -> np.ndarray:
        return power * shift - size * (np.cosh(shift) - 1 - 0.5 * shift**2)

    there = generator.standard_normal(d - 1) / np.sqrt(size)
    accepted = np.log(generator.random(d - 1)) < excess(there) - excess(-centre)
    root = np.exp(0.5 * np.where(accepted, there + centre, 0.0))
    for moves, each in zip(both, (root, 1 / root), strict=True):
        moves.move(np.append(1.0, each), np.zeros(d))


def _shift_centre(moves: Moves, chain: RatingChain, generator: np.random.Generator) -> None:
    """Draw delta, add it to the overall mean and take it from all c_i; nothing but the priors of both means changes."""
    if chain.settings.centre is None:
        return
    (mean, precision), side = chain.settings.centre, moves.side
    prior, strength, here = side.prior, side.settings.strength, chain.ratings.centre
    assert prior is not None
    curvature = precision + strength * prior.precision[0, 0]
    pull = precision * (mean - here) + strength * (prior.precision @ prior.coefficient[0])[0]
    delta = float(pull / curvature + generator.standard_normal() / np.sqrt(curvature))
    ones = np.ones(moves.size)
    moves.move(ones, -delta * (np.arange(moves.size) == 0))
    chain.ratings = replace(chain.ratings, centre=here + delta)
    if chain.outcomes is not None:
        chain.outcomes.bound -= delta
    for one in (chain.user, chain.item):
        one.ratings.value[...] -= delta
