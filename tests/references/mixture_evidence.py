"""log p(x) of mixtures with everything integrated out, by all K^N assignments of rows to classes; no project code.

    p(x) = sum_z p(z) prod_k m(rows of class k),    p(z) = G(A) / G(A + N) prod_k G(a_k + n_k) / G(a_k)

with m the marginal likelihood of the rows of a class under the conjugate prior of its component.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaln, gammaln, logsumexp

from tests.references._shared import Array

#: (rows of a class (M, D), observed (M, D)) -> log marginal likelihood, without what does not depend on the classes.
Marginal = Callable[[Array, Array], float]


def log_evidence(x: Array, concentration: Array, marginal: Marginal, mask: ArrayLike | None = None) -> float:
    """Sum over all assignments, one after the other."""
    size, classes = len(x), len(concentration)
    seen = np.ones(x.shape) if mask is None else np.asarray(mask, dtype=float)
    terms, known = [], {}
    for z in itertools.product(range(classes), repeat=size):
        labels = np.array(z)
        number = np.bincount(labels, minlength=classes)
        total = gammaln(concentration.sum()) - gammaln(concentration.sum() + size)
        total += (gammaln(concentration + number) - gammaln(concentration)).sum()
        for k in range(classes):
            rows = tuple(np.flatnonzero(labels == k))
            if rows not in known:
                known[rows] = marginal(x[list(rows)], seen[list(rows)])
            total += known[rows]
        terms.append(total)
    return float(np.asarray(logsumexp(terms)))


def of_poissons(shape: float, rate: float) -> Marginal:
    """Gamma(shape, rate) rates; with the factorials."""

    def marginal(x: Array, seen: Array) -> float:
        x = np.where(seen > 0, x, 0.0)
        events, exposure = x.sum(0), seen.sum(0)
        gain = gammaln(shape + events) - gammaln(shape) + shape * np.log(rate)
        return float((gain - (shape + events) * np.log(rate + exposure)).sum() - gammaln(x + 1).sum())

    return marginal


def of_bernoullis(on: float, off: float) -> Marginal:
    """Beta(on, off) probabilities."""

    def marginal(x: Array, seen: Array) -> float:
        ones, trials = np.where(seen > 0, x, 0.0).sum(0), seen.sum(0)
        return float((betaln(on + ones, off + trials - ones) - betaln(on, off)).sum())

    return marginal


def of_words(concentration: Array) -> Marginal:
    """Dirichlet topics; of tokens in their order, without the multinomial coefficient."""

    def marginal(x: Array, seen: Array) -> float:
        count, mass = x.sum(0), concentration.sum()
        gain = (gammaln(concentration + count) - gammaln(concentration)).sum()
        return float(gain + gammaln(mass) - gammaln(mass + count.sum()))

    return marginal
