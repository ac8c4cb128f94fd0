"""Products of linear forms in a point of the simplex, and their integrals under a Dirichlet: exact evidences.

Given proportions s, the M draws of a row are independent, each with a probability that is linear in s:

    p(x_n | s) = prod_{i=1..M} sum_k s_k b_ik = sum_{|m| = M} [M! / prod_k m_k!] beta(m) prod_k s_k^m_k

a homogeneous polynomial in s with C(M + K - 1, K - 1) terms, here in Bernstein form. Multiplying by one more linear
form turns beta of degree d - 1 into that of degree d as a weighted mean of positive terms, which loses no digits:

    beta_d(m) = sum_k (m_k / d) b_dk beta_{d-1}(m - e_k)

A draw that a row does not have counts as one with b_k = 1 for all k, as sum_k s_k = 1. The integral of every term is
that of a Dirichlet, so that with w(m) the Dirichlet-multinomial probability of m under the prior Dirichlet(alpha)

    p(x_n) = sum_m w(m) beta(m),       p(s | x_n) = sum_m [w(m) beta(m) / p(x_n)] Dirichlet(s; alpha + m)

EXACTLY a mixture of Dirichlets. The adjoint of the recursion gives P(z_i = k | x_n) = b_ik dlog p(x_n) / db_ik of every
draw, which is what EM needs.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.capacity import memory_limit, require

#: Numbers held at once for a block of rows.
BLOCK_ENTRIES = 2**22
#: Tables below this are made without asking for the free memory.
_NEGLIGIBLE_BYTES = 2**26


def num_terms(num_draws: int, num_components: int) -> int:
    """Count the terms of the polynomial, C(M + K - 1, K - 1)."""
    return math.comb(num_draws + num_components - 1, num_components - 1)


def num_states(num_draws: int, num_components: int) -> int:
    """Count the terms of all degrees up to M, C(M + K, K): what the adjoint keeps of a row."""
    return math.comb(num_draws + num_components, num_components)


def require_memory(
    num_draws: int,
    size: int,
    num_rows: int,
    itemsize: int,
    *,
    what: str,
    fits: str,
    limit: float | None = None,
    only_last: bool = False,
) -> None:
    """Raises CapacityError where the polynomials of ``num_rows`` rows would not fit.

    Every degree's coefficients are kept for the adjoint; the posterior needs those of the last (``only_last``).
    what: the draws in words; fits: what to do instead, "{most}" being the most draws whose polynomial would fit for a
    single row; limit: bytes allowed, by default half of what is free.
    """
    needed = _bytes(num_draws, size, num_rows, itemsize, only_last=only_last)
    if limit is None and needed <= _NEGLIGIBLE_BYTES:
        return
    allowed, terms = memory_limit(limit), num_terms(num_draws, size)
    if needed > allowed:
        terms_in_words = str(terms) if terms < 10**12 else f"{_float(terms):.3g}"
        most = bisect_right(range(1, 2**31), allowed, key=lambda draws: _bytes(draws, size, 1, itemsize))
        what = f"the polynomial of {what} has {terms_in_words} terms a row, and"
        require(what, needed, allowed=allowed, fits=fits.format(most=most))


def _bytes(num_draws: int, size: int, num_rows: int, itemsize: int, *, only_last: bool = False) -> float:
    """Return the bytes of the coefficients, and of each term's exponents and places of its neighbours."""
    terms = num_terms(num_draws, size)
    kept = terms if only_last else num_states(num_draws, size) + 4 * terms
    return _float(itemsize * num_rows * kept) + 24 * size * _float(terms)


def _float(number: int) -> float:
    """Convert a whole number to a float; binomials can be larger than any float."""
    return float(min(number, 10**300))


class Terms(NamedTuple):
    """The exponents m of every term, as the first K - 1 counts; those of degree d are the first C(d + K - 1, K - 1).

    count (S, K - 1), total (S,) their sum; less (K - 1, S): where m - e_k is (0 where m_k = 0, with factor 0);
    more (K - 1, S of degree M - 1): where m + e_k is.
    """

    count: Tensor
    total: Tensor
    less: Tensor
    more: Tensor

    @property
    def every(self) -> Tensor:
        """All K counts of the terms of the highest degree, (S, K)."""
        return torch.cat([self.count, (self.total.max() - self.total)[:, None]], 1)


class LinearForms(Protocol):
    """The linear forms of a block of B rows: ``len`` draws, ``size`` components; ``like`` is a tensor of their kind."""

    size: int
    num_rows: int
    like: Tensor

    def __len__(self) -> int: ...

    def form(self, draw: int) -> Tensor:
        """Return b (K, B) of one draw; 1 for rows that do not have it."""
        ...


def multiply_forms(draws: LinearForms, *, keep: bool) -> tuple[list[Tensor], Tensor]:
    """Compute beta of every degree (with ``keep``) or of the last one, each (S_d, B) up to a factor a row; and the log
    of it (B,)."""
    terms = terms_of(len(draws), draws.size, draws.like.device)
    state, log_scale = draws.like.new_ones(1, draws.num_rows), draws.like.new_zeros(draws.num_rows)
    states = [state]
    for degree in range(1, len(draws) + 1):
        b = draws.form(degree - 1)
        before, size = len(state), num_terms(degree, draws.size)
        last = (degree - terms.total[:before]).to(state) / degree
        new = state.new_zeros(size, draws.num_rows)
        new[:before] = state * last[:, None] * b[-1]
        for k in range(draws.size - 1):
            share = terms.count[:size, k].to(state) / degree
            new.add_(state.index_select(0, terms.less[k, :size]) * share[:, None] * b[k])  # as torch.vmap can
        # The scale cancels in what is returned, and so in its derivatives.
        top = new.detach().amax(0).clamp(min=torch.finfo(state.dtype).tiny)
        state, log_scale = new.div_(top), log_scale + top.log()
        if not keep:
            states.clear()
        states.append(state)
    return states, log_scale


def attribute_draws(draws: LinearForms, states: list[Tensor], weight: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield every draw with its P(z = k | x_n) (K, B), the last one first; states from :func:`multiply_forms`. For a
    draw that a row does not have this is the posterior mean of s_n."""
    terms, like = terms_of(len(draws), draws.size, draws.like.device), draws.like
    adjoint = weight[:, None].expand(-1, draws.num_rows)
    for degree in range(len(draws), 0, -1):
        b, state = draws.form(degree - 1), states[degree - 1]
        size = len(state)
        last = (degree - terms.total[:size]).to(like) / degree
        slope = adjoint[:size] * last[:, None]
        gain = [(state * slope).sum(0)]
        new = slope * b[-1]
        for k in range(draws.size - 1):
            share = (terms.count[:size, k] + 1).to(like) / degree
            slope = adjoint.index_select(0, terms.more[k, :size]) * share[:, None]
            gain.insert(k, (state * slope).sum(0))
            new.addcmul_(slope, b[k])
        adjoint = new / new.amax(0).clamp(min=torch.finfo(like.dtype).tiny)
        joint = torch.stack(gain) * b
        yield degree - 1, joint / joint.sum(0).clamp(min=torch.finfo(like.dtype).tiny)


def prior_weight(num_draws: int, alpha: Tensor) -> Tensor:
    """Compute w(m), (S,): the Dirichlet-multinomial probabilities of the exponents."""
    alpha = alpha.to(torch.float64)
    count = terms_of(num_draws, len(alpha), alpha.device).every.to(alpha)
    log_weight = (torch.lgamma(alpha + count) - torch.lgamma(alpha) - torch.lgamma(count + 1)).sum(-1)
    return log_weight.softmax(0)


def log_terms(draws: LinearForms, alpha: Tensor) -> tuple[Tensor, Tensor]:
    """Compute log [w(m) beta(m) / p(x_n)] (B, S), and log p(x_n) (B,)."""
    states, log_scale = multiply_forms(draws, keep=False)
    joint = (prior_weight(len(draws), alpha).to(draws.like)[:, None] * states[-1]).T
    total = joint.sum(-1)
    return (joint / total[:, None]).log(), log_scale + total.log()


@lru_cache(maxsize=8)
def terms_of(num_draws: int, num_components: int, device: torch.device) -> Terms:
    """List the exponents in order of the sum of the first K - 1, so that a lower degree's are the first of a higher
    one's."""
    free = num_components - 1
    # Of every sum of the first counts, all vectors with that sum; one count more in every round.
    groups = {total: np.zeros((int(total == 0), 0), dtype=np.int64) for total in range(num_draws + 1)}
    for _ in range(free):
        groups = {
            total: np.concatenate([np.insert(groups[total - own], 0, own, axis=1) for own in range(total + 1)])
            for total in groups
        }
    count = np.concatenate(list(groups.values()))
    # Exponents are looked up by their products with random numbers modulo 2^64: digits of a number would not fit.
    power = np.random.default_rng(0).integers(2**62, size=free, dtype=np.int64) * 2 + 1
    key = count @ power
    order = np.argsort(key)
    found = key[order]
    lower = len(count) - len(groups[num_draws])
    less = [np.where(count[:, k] > 0, order[np.searchsorted(found, key - power[k]) % len(key)], 0) for k in range(free)]
    more = [order[np.searchsorted(found, key[:lower] + power[k])] for k in range(free)]
    shapes = ((less, (free, len(count))), (more, (free, lower)))
    neighbours = [np.array(each, dtype=np.int64).reshape(shape) for each, shape in shapes]
    return Terms(*(torch.from_numpy(value).to(device) for value in (count, count.sum(1), *neighbours)))
