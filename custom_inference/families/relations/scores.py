"""The log marginal likelihood f(s, n) of a block of cells, compiled. Import inside functions only.

sum_c [log G(a_c + m_c) - log G(a_c)] - log G(a + n) + log G(a)         categories c, counts m_c; 0/1 is two of them
a log b - log G(a) + log G(a + s) - (a + s) log(b + n)                  counts, up to - sum log x!
log G(a_n) - log G(a) + a log b - a_n log b_n + log(k / k_n) / 2 - n log(2 pi) / 2,    normal-gamma:
k_n = k + n,   a_n = a + n / 2,   b_n = b + (q - 2 m s + n m^2 - (s - n m)^2 / k_n) / 2,    s, q: sums of x, x^2
"""

from __future__ import annotations

import math

from custom_inference.families.common.compiled import Reals, inlined, inner
from custom_inference.families.common.intrinsics import larger
from custom_inference.families.common.random import log_gamma
from custom_inference.families.relations.arrays import CATEGORIES, COUNTS, Cells

_PI = math.log(2 * math.pi)


@inner
def lookup(table: Reals, length: int, at: int, n: float, shift: float):
    """log G(shift + n), from the table that begins at ``at``."""
    return table[at + int(n)] if n < length else log_gamma(shift + n)


@inlined
def block_score(g: Cells, r: int, s: Reals, n: float):
    """f of a block of relation r with sums s."""
    kind, found = g.kind[r], 0.0
    if n > 0 and kind == CATEGORIES:
        width, left, found = g.width[r], n, g.constant[r]
        for d in range(width + 2):  # the counts of categories 1, 2, ...; of all; of category 0
            h = (d + 1) % (width + 2)
            value = s[d] if d < width else n if h else left
            score = lookup(g.table, g.length, g.place[r, h], value, g.hyper[r, h])
            found += -score if d == width else score
            left -= value if d < width else 0.0
    elif n > 0 and kind == COUNTS:
        shape = g.hyper[r, 0] + s[0]
        found = g.constant[r] + log_gamma(shape) - shape * math.log(g.hyper[r, 1] + n)
    elif n > 0:
        mean, strength = g.hyper[r, 0], g.hyper[r, 1]
        k, a, off = strength + n, g.hyper[r, 2] + n / 2, s[0] - n * mean
        b = g.hyper[r, 3] + (s[1] - 2 * mean * s[0] + n * mean * mean - off * off / k) / 2
        found = log_gamma(a) - a * math.log(larger(b, 1e-300)) + math.log(strength / k) / 2 - n * _PI / 2
        found += g.constant[r]
    return found
