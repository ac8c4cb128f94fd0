"""Compiled sweeps of the Gibbs samplers of mixtures. Import inside functions only: it loads the compiler.

One class is drawn a row, with proportions and components integrated out. Without the row itself, class k has n_k rows
and counts S_kf of features, which lie side by side in groups of sums T_kg (one group of words; one for each
categorical response). The full conditional of the class of a row with counts x is

    p(z = k | rest) ~ (n_k + alpha_k) prod_f [prod_{t < x_f} (S_kf + a_f + t)]
                      / prod_g [prod_{t < x_g} (T_kg + A_g + t)]

(Dirichlet-multinomial; x_g and A_g are sums over the group), and of events under Gamma(a_f, b) priors

    p(z = k | rest) ~ (n_k + alpha_k) prod_f [prod_{t < x_f} (S_kf + a_f + t)] (M_kf + b_f)^(S_kf + a_f)
                      / (M_kf + b_f + m_f)^(S_kf + a_f + x_f)

with M_kf rows of the class in which f was observed, m_f whether it is in this row.
"""

from __future__ import annotations

import math

from custom_inference.families.common.compiled import Ints, Reals, Words, entry, inner
from custom_inference.families.common.intrinsics import allocate
from custom_inference.families.common.random import draw_class

#: Longer products are differences of log Gamma functions; shorter ones are multiplied out.
_MANY = 24


@inner
def _log_rise(start: float, steps: int):
    """Compute log prod_{t < steps} (start + t)."""
    if steps > _MANY:
        return math.lgamma(start + steps) - math.lgamma(start)
    product = 1.0
    for t in range(steps):
        product *= start + t
        if product > 1e250 or product < 1e-250:
            return math.lgamma(start + steps) - math.lgamma(start)
    return math.log(product)


@entry
def sweep_simplices(
    crow: Ints,
    column: Ints,
    count: Ints,
    group: Ints,
    assignment: Ints,
    alpha: Reals,
    prior: Reals,
    mass: Reals,
    rows: Ints,
    counts: Ints,
    totals: Ints,
    responsibility: Reals,
    rng: Words,
    step: int,
):
    """Draw a new class for every row, in place; -1 in ``assignment`` is a row without a class.

    crow (N + 1,), column, count: the rows in CSR. group (F,): of each feature. alpha (K,). prior a (F, K), mass A
    (G, K). rows n (K,), counts S (F, K), totals T (G, K): of the present classes. responsibility (N, K): the
    conditional probabilities. step: what a row adds to n; 0 where alpha are proportions that are given.
    """
    score, state = allocate(alpha.shape[0]), rng[0]
    for n in range(crow.shape[0] - 1):
        first, last, old = crow[n], crow[n + 1], assignment[n]
        if old >= 0:
            _move(column, count, group, first, last, old, -1, rows, counts, totals, step)
        for k in range(alpha.shape[0]):
            score[k] = math.log(rows[k] + alpha[k])
        i = first
        while i < last:
            here, together = group[column[i]], 0
            while i < last and group[column[i]] == here:
                f, steps = column[i], count[i]
                together += steps
                for k in range(alpha.shape[0]):
                    score[k] += _log_rise(counts[f, k] + prior[f, k], steps)
                i += 1
            for k in range(alpha.shape[0]):
                score[k] -= _log_rise(totals[here, k] + mass[here, k], together)
        assignment[n], state = draw_class(score, responsibility[n], score.shape[0], state)
        _move(column, count, group, first, last, assignment[n], 1, rows, counts, totals, step)
    rng[0] = state


@inner
def _move(
    column: Ints,
    count: Ints,
    group: Ints,
    first: int,
    last: int,
    k: int,
    sign: int,
    rows: Ints,
    counts: Ints,
    totals: Ints,
    step: int,
):
    """Add a row to a class, or take it away."""
    rows[k] += sign * step
    for i in range(first, last):
        counts[column[i], k] += sign * count[i]
        totals[group[column[i]], k] += sign * count[i]


@entry
def sweep_rates(
    x: Ints,
    observed: Ints,
    assignment: Ints,
    alpha: Reals,
    shape: Reals,
    rate: Reals,
    rows: Ints,
    events: Ints,
    exposure: Ints,
    responsibility: Reals,
    rng: Words,
    step: int,
):
    """Draw a new class for every row of events x (N, D), in place; -1 in ``assignment`` is a row without a class.

    observed m (N, D). alpha (K,). shape a, rate b (D, K). rows n (K,), events S, exposure M (D, K), responsibility
    (N, K), step as above.
    """
    score, state = allocate(alpha.shape[0]), rng[0]
    for n in range(x.shape[0]):
        old = assignment[n]
        if old >= 0:
            rows[old] -= step
            events[:, old] -= x[n]
            exposure[:, old] -= observed[n]
        for k in range(alpha.shape[0]):
            score[k] = math.log(rows[k] + alpha[k])
        for f in range(x.shape[1]):
            if not observed[n, f]:
                continue
            for k in range(alpha.shape[0]):
                total, time = events[f, k] + shape[f, k], exposure[f, k] + rate[f, k]
                score[k] += _log_rise(total, x[n, f]) + total * math.log(time) - (total + x[n, f]) * math.log(time + 1)
        assignment[n], state = draw_class(score, responsibility[n], score.shape[0], state)
        new = assignment[n]
        rows[new] += step
        events[:, new] += x[n]
        exposure[:, new] += observed[n]
    rng[0] = state


@entry
def sweep_given(table: Reals, assignment: Ints, alpha: Reals, rows: Ints, responsibility: Reals, rng: Words, step: int):
    """Draw a new class for every row at given components: p(z = k | rest) ~ (n_k + alpha_k) exp(table_nk), in place.

    table (N, K): log p(x_n | class k). The rest as above.
    """
    score, state = allocate(alpha.shape[0]), rng[0]
    for n in range(table.shape[0]):
        if assignment[n] >= 0:
            rows[assignment[n]] -= step
        for k in range(alpha.shape[0]):
            score[k] = math.log(rows[k] + alpha[k]) + table[n, k]
        assignment[n], state = draw_class(score, responsibility[n], score.shape[0], state)
        rows[assignment[n]] += step
    rng[0] = state
