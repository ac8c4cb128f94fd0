"""The aspect Bernoulli model with the memberships integrated out exactly: evidence, posterior and EM.

Given s_n the draws of a row are independent, so with M draws, b_ik = a_kt for a 1 of feature t and 1 - a_kt for a 0
(001, eqs. 4 and 10-11),

    p(x_n | s) = prod_{i=1..M} sum_k s_k b_ik = sum_{|m| = M} [M! / prod_k m_k!] beta(m) prod_k s_k^m_k

a homogeneous polynomial in s with C(M + K - 1, K - 1) terms, here in Bernstein form. Multiplying by one more linear
form turns beta of degree d - 1 into that of degree d as a weighted mean of positive terms, which loses no digits:

    beta_d(m) = sum_k (m_k / d) b_dk beta_{d-1}(m - e_k)

A missing entry counts as a draw with b_k = 1 for all k, as sum_k s_k = 1. The integral of every term is that of a
Dirichlet, so that with w(m) the Dirichlet-multinomial probability of m under the prior Dirichlet(alpha)

    p(x_n) = sum_m w(m) beta(m),       p(s | x_n) = sum_m [w(m) beta(m) / p(x_n)] Dirichlet(s; alpha + m)

EXACTLY a mixture of Dirichlets. The adjoint of the recursion gives P(z_i = k | x_n) = b_ik dlog p(x_n) / db_ik of every
draw, which is what EM needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from custom_inference._capacity import allowed_bytes, require
from custom_inference.posterior import DirichletMixture
from custom_inference.steps._counts import CountRows
from custom_inference.steps._protocol import EStep, Params
from custom_inference.steps.aspect_marginal import AspectMarginal
from ppl_models import Model

#: Numbers held at once for a block of rows.
_BLOCK_ENTRIES = 2**22
#: Up to this many numbers a row the exact engine is a default.
_FEASIBLE = 20_000
#: Tables below this are made without asking for the free memory.
_NEGLIGIBLE_BYTES = 2**26


def num_terms(num_draws: int, num_components: int) -> int:
    """Terms of the polynomial, C(M + K - 1, K - 1)."""
    return math.comb(num_draws + num_components - 1, num_components - 1)


class _Terms(NamedTuple):
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


@dataclass(frozen=True, kw_only=True)
class AspectExact(AspectMarginal):
    """Exact E step by multiplying out the polynomial of every row.

    max_bytes: memory allowed; half of what is free by default.
    """

    max_bytes: float | None = None

    bound_name = "evidence"
    additive = True

    def feasible(self, model: Model) -> bool:
        """Up to ``_FEASIBLE`` numbers a row: 199 draws for two components, 47 for three, 23 for four."""
        num_components, num_features = model.shapes["aspect_probability"]
        draws = num_features * model.settings()["total_count"]
        return math.comb(draws + num_components, num_components) <= _FEASIBLE

    def check(self, model: Model, rows: CountRows) -> None:
        """Raises MethodError for priors without closed-form updates, CapacityError for polynomials that do not fit."""
        super().check(model, rows)
        num_components, num_features = model.shapes["aspect_probability"]
        self._require(num_components, num_features * rows.total_count, 1, rows.like.element_size())

    def _require(self, size: int, draws: int, num_rows: int, itemsize: int, *, only_last: bool = False) -> None:
        """Every degree's coefficients are kept for the adjoint; the posterior needs those of the last."""
        terms = num_terms(draws, size)
        needed = float(itemsize * num_rows * (terms if only_last else math.comb(draws + size, size) + 4 * terms))
        # The exponents, and where each term's neighbours are.
        needed += 8.0 * terms * 3 * size
        if self.max_bytes is None and needed <= _NEGLIGIBLE_BYTES:
            return
        what = f"the polynomial of {draws} draws in {size} memberships has {terms} terms a row, and"
        fits = 'use a bound instead, such as "dirichlet"'
        require(what, needed, allowed=allowed_bytes(self.max_bytes), fits=fits)

    def e_step(
        self,
        params: Params,
        rows: CountRows,
        locals_: dict[str, Tensor] | None = None,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:
        aspect = params["aspect_probability"]
        on, off, bounds = torch.zeros_like(aspect), torch.zeros_like(aspect), []
        for part in self._parts(params, rows):
            draws = _Draws(aspect, part, temperature)
            states, log_scale = _multiplied(draws, keep=True)
            weight = self._weight(params, part)
            bounds.append(log_scale + (weight @ states[-1]).log() + part.log_coefficient)
            for feature, is_one, share in _attributed(draws, states, weight):
                on[:, feature] += share @ is_one
                off[:, feature] += share @ (1 - is_one)
        return EStep({"on": on, "off": off}, {}, torch.cat(bounds))

    def _parts(self, params: Params, rows: CountRows, *, keep: bool = True) -> list[CountRows]:
        size, num_features = params["aspect_probability"].shape
        draws = num_features * rows.total_count
        each = math.comb(draws + size, size) if keep else 4 * num_terms(draws, size)
        block = max(1, min(len(rows), _BLOCK_ENTRIES // each))
        self._require(size, draws, block, rows.like.element_size())
        return [rows.select(slice(start, start + block)) for start in range(0, len(rows), block)]

    def _weight(self, params: Params, rows: CountRows) -> Tensor:
        """w(m), (S,): the Dirichlet-multinomial probabilities of the exponents."""
        alpha = self.alpha(params).to(torch.float64)
        count = _terms(rows.total_count * rows.like.shape[1], len(alpha), alpha.device).every.to(alpha)
        log_weight = (torch.lgamma(alpha + count) - torch.lgamma(alpha) - torch.lgamma(count + 1)).sum(-1)
        return log_weight.softmax(0).to(rows.like)

    def log_evidence(self, params: Params, rows: CountRows) -> Tensor:
        """log p(x_n | params), (N,)."""
        return torch.cat([self._log_terms(params, part)[1] for part in self._parts(params, rows, keep=False)])

    def _log_terms(self, params: Params, rows: CountRows) -> tuple[Tensor, Tensor]:
        """log [w(m) beta(m) / p(x_n)] (N, S), and log p(x_n) (N,)."""
        states, log_scale = _multiplied(_Draws(params["aspect_probability"], rows), keep=False)
        joint = (self._weight(params, rows)[:, None] * states[-1]).T
        total = joint.sum(-1)
        return (joint / total[:, None]).log(), log_scale + total.log() + rows.log_coefficient

    def posterior(self, params: Params, rows: CountRows, step: EStep | None = None) -> DirichletMixture:
        """The exact posterior of every membership: the same Dirichlets for all rows, in each row's own proportions."""
        size, num_features = params["aspect_probability"].shape
        draws = num_features * rows.total_count
        self._require(size, draws, len(rows), rows.like.element_size(), only_last=True)
        log_weight = torch.cat([self._log_terms(params, part)[0] for part in self._parts(params, rows, keep=False)])
        concentration = self.alpha(params) + _terms(draws, size, rows.like.device).every.to(rows.like)
        return DirichletMixture(log_weight, concentration)


class _Draws:
    """The linear forms of the rows' draws, in order: feature by feature, a feature's ones first."""

    def __init__(self, aspect: Tensor, rows: CountRows, temperature: float = 1.0):
        self.aspect, self.rows, self.temperature = aspect, rows, temperature
        ones = rows.ones.to_dense() if rows.is_sparse else rows.ones  # of a block of rows, never of all
        self.ones, self.size = ones.T.contiguous(), len(aspect)
        self.mask = None if rows.mask is None else rows.mask.T

    def __len__(self) -> int:
        return self.rows.total_count * self.aspect.shape[1]

    @property
    def terms(self) -> _Terms:
        return _terms(len(self), self.size, self.aspect.device)

    def form(self, draw: int) -> tuple[int, Tensor, Tensor]:
        """Feature, whether each row's draw came out 1 (B,), and b (K, B)."""
        feature, position = divmod(draw, self.rows.total_count)
        is_one = (self.ones[feature] > position).to(self.aspect)
        a = self.aspect[:, feature, None]
        b = (a * is_one + (1 - a) * (1 - is_one)).pow(self.temperature)
        return feature, is_one, b if self.mask is None else torch.where(self.mask[feature], b, torch.ones_like(b))

    def observed(self, feature: int) -> Tensor | None:
        return None if self.mask is None else self.mask[feature]


def _multiplied(draws: _Draws, *, keep: bool) -> tuple[list[Tensor], Tensor]:
    """beta of every degree (with ``keep``) or of the last one, each (S_d, B) up to a factor a row; log of it (B,)."""
    terms = draws.terms
    like, num_rows = draws.aspect, draws.ones.shape[1]
    state, log_scale = like.new_ones(1, num_rows), like.new_zeros(num_rows)
    states = [state]
    for degree in range(1, len(draws) + 1):
        _, _, b = draws.form(degree - 1)
        before, size = len(state), num_terms(degree, draws.size)
        last = (degree - terms.total[:before]).to(like) / degree
        new = like.new_zeros(size, num_rows)
        new[:before] = state * last[:, None] * b[-1]
        for k in range(draws.size - 1):
            share = terms.count[:size, k].to(like) / degree
            new.addcmul_(state.index_select(0, terms.less[k, :size]) * share[:, None], b[k])
        top = new.amax(0).clamp(min=torch.finfo(like.dtype).tiny)
        state, log_scale = new.div_(top), log_scale + top.log()
        if keep:
            states.append(state)
        else:
            states = [state]
    return states, log_scale


def _attributed(draws: _Draws, states: list[Tensor], weight: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Feature, is_one (B,) and P(z = k | x_n) (K, B), 0 where not observed, of every draw, the last one first."""
    terms, like = draws.terms, draws.aspect
    adjoint = weight[:, None].expand(-1, draws.ones.shape[1])
    for degree in range(len(draws), 0, -1):
        feature, is_one, b = draws.form(degree - 1)
        state = states[degree - 1]
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
        share = joint / joint.sum(0).clamp(min=torch.finfo(like.dtype).tiny)
        observed = draws.observed(feature)
        yield feature, is_one, share if observed is None else share * observed


@lru_cache(maxsize=8)
def _terms(num_draws: int, num_components: int, device: torch.device) -> _Terms:
    """Exponents in order of the sum of the first K - 1, so that a lower degree's are the first of a higher one's."""
    free = num_components - 1
    groups = {0: {total: np.zeros((int(total == 0), 0), dtype=np.int64) for total in range(num_draws + 1)}}
    for width in range(1, free + 1):
        groups[width] = {total: _compositions(groups[width - 1], total) for total in range(num_draws + 1)}
    count = np.concatenate([groups[free][total] for total in range(num_draws + 1)])
    power = (num_draws + 2) ** np.arange(free)
    key = count @ power
    order = np.argsort(key)
    found = key[order]
    lower = len(count) - len(groups[free][num_draws])
    less = [np.where(count[:, k] > 0, order[np.searchsorted(found, key - power[k]) % len(key)], 0) for k in range(free)]
    more = [order[np.searchsorted(found, key[:lower] + power[k])] for k in range(free)]
    shapes = ((less, (free, len(count))), (more, (free, lower)))
    neighbours = [np.array(each, dtype=np.int64).reshape(shape) for each, shape in shapes]
    return _Terms(*(torch.from_numpy(value).to(device) for value in (count, count.sum(1), *neighbours)))


def _compositions(shorter: dict[int, np.ndarray], total: int) -> np.ndarray:
    """All vectors of one more entry than ``shorter``'s with this sum."""
    parts = [np.insert(shorter[total - first], 0, first, axis=1) for first in range(total + 1)]
    return np.concatenate(parts)
