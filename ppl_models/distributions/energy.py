"""Exponential-family harmoniums: two layers of units, each independent given the other layer.

Welling, Rosen-Zvi & Hinton, *Exponential family harmoniums* (NIPS 2004); Murphy 2012, section 27.7.1. With statistics t
of the visible units, M of them (v_d itself, or its C indicators), base measures r and s, and natural parameters linear
in the other layer:

    p(v, h)    = r(v) s(h) exp(b't + c'h + h'W t) / Z
    p(v, h)    = prod_d p(v_d | eta_d) prod_k p(h_k | zeta_k),   given the other layer   eta = b + W'h,  zeta = c + W t
    -F(v)      = b't + sum_k A_h(zeta_k) + log r(v)                                           (27.117 as corrected)
    log w(h)   = c'h + sum_d n_d A_v(eta_d) + log s(h),         p(h) = w(h) / Z

A the log-normalisers of :mod:`ppl_models.likelihoods`; n_d says how often visible unit d is there: 1, 0 where a row
lacks it, L for a softmax unit that all L tokens of a document share (27.129, where also c is multiplied by L).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear as affine
from torch.nn.functional import one_hot, softplus
from torch.utils.checkpoint import checkpoint

from ppl_models.core.errors import CapacityError, ModelError
from ppl_models.distributions.basic import all_codes
from ppl_models.distributions.tokens import draw_counts
from ppl_models.likelihoods import Bernoulli, ExponentialFamily

#: Exact sums have at most 2^this terms; those of more than 2^14 are made in parts, which gradients make again.
MOST_BITS = 22
_PART = 2**14


@dataclass(frozen=True)
class Energy:
    """The exponent of a harmonium, and what is computed from it. Leading axes (...) of the parameters are batches.

    weight: W (..., K, M). visible_bias: b (..., M). hidden_bias: c (..., K), with ``times`` (..., N, K).
    visible: Bernoulli(), Gaussian() or Categorical(C), then M = DC. hidden: Bernoulli() or Gaussian().
    times: n (N, D), of every row; None: 1, and there are no rows.
    """

    weight: Tensor
    visible_bias: Tensor
    hidden_bias: Tensor
    visible: ExponentialFamily = Bernoulli()  # noqa: RUF009
    hidden: ExponentialFamily = Bernoulli()  # noqa: RUF009
    times: Tensor | None = None

    # ----- the two layers ---------------------------------------------------------------------------------------------

    def eta(self, hidden: Tensor) -> Tensor:
        """b + W'h of hidden layers (..., N, K), (..., N, M)."""
        if self.weight.ndim == 2:
            return affine(hidden, self.weight.mT, self.visible_bias)
        return self.visible_bias.unsqueeze(-2) + hidden @ self.weight

    def zeta(self, statistic: Tensor) -> Tensor:
        """c + W t of statistics (..., N, M), (..., N, K)."""
        if self.weight.ndim == 2 and self.times is None:
            return affine(statistic, self.weight, self.hidden_bias)
        return self._bias_of_rows() + statistic @ self.weight.mT

    def units(self, eta: Tensor) -> Tensor:
        """A_v of every visible unit, (..., D)."""
        return log_normaliser_of(self.visible, self._by_unit(eta))

    def _by_unit(self, eta: Tensor) -> Tensor:
        return eta.unflatten(-1, (-1, self.visible.num_categories)) if self.visible.is_vector else eta

    def statistic(self, x: Tensor) -> Tensor:
        """t of visible layers (..., D), (..., M)."""
        found = self.visible.statistic(x)
        return found.flatten(-2) if self.visible.is_vector else found

    def hidden_mean(self, statistic: Tensor) -> Tensor:
        """E[h | v] (eqs. 27.103, 27.107 and 27.111)."""
        zeta = self.zeta(statistic)
        return zeta.sigmoid_() if self.is_binary and not zeta.requires_grad else self.hidden.mean(zeta)

    @property
    def is_binary(self) -> bool:
        """Whether the hidden units are binary."""
        return self.hidden.kind == "binary"

    def visible_mean(self, hidden: Tensor) -> Tensor:
        """E[t | h] (eqs. 27.104, 27.106 and 27.110)."""
        return self._weigh_by_times(self.visible.mean(self._by_unit(self.eta(hidden))))

    def _weigh_by_times(self, each: Tensor) -> Tensor:
        """Statistics of units, (..., D) or (..., D, C), as often as the units are there; (..., M)."""
        if self.visible.is_vector:
            return (each if self.times is None else each * self.times.unsqueeze(-1)).flatten(-2)
        return each if self.times is None else each * self.times

    def draw_hidden(self, statistic: Tensor, generator: torch.Generator | None = None, scale: float = 1.0) -> Tensor:
        """h | v (27.125), natural parameters multiplied by ``scale``."""
        zeta = self.zeta(statistic) if scale == 1.0 else self.zeta(statistic) * scale
        return _draw_bits(zeta.sigmoid_(), generator) if self.is_binary else zeta + _noise(torch.randn, zeta, generator)

    def draw_visible(self, hidden: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """t of v | h (27.126), (..., N, M)."""
        return self.draw_statistic(self.eta(hidden), generator)

    def draw_statistic(self, eta: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """t of v at natural parameters eta (..., N, M)."""
        if self.visible.kind == "real":
            return self._weigh_by_times(eta + _noise(torch.randn, eta, generator))
        if self.visible.kind == "binary":
            return self._weigh_by_times(_draw_bits(torch.sigmoid(eta), generator))
        each, times = self._by_unit(eta), self.times
        if times is not None and each.shape[-2] == 1:
            chance, times = torch.softmax(each, -1).flatten(0, -2), times.expand(each.shape[:-1]).flatten()
            return draw_counts(chance, times.long(), generator).view(eta.shape)
        there = torch.ones_like(each[..., 0]) if times is None else times.expand(each.shape[:-1])
        drawn = torch.multinomial(torch.softmax(each[there > 0], -1), 1, generator=generator)
        found = torch.zeros_like(each)
        found[there > 0] = one_hot(drawn[:, 0], each.shape[-1]).to(eta)
        return found.flatten(-2)

    def gibbs(self, statistic: Tensor, steps: int, generator: torch.Generator | None = None) -> Tensor:
        """t after so many sweeps of block Gibbs sampling (27.7.2.3)."""
        for _ in range(steps):
            statistic = self.draw_visible(self.draw_hidden(statistic, generator), generator)
        return statistic

    # ----- one layer summed out ---------------------------------------------------------------------------------------

    def log_weight_of_visible(self, statistic: Tensor) -> Tensor:
        """b't + sum_k A_h(zeta_k): -F(v) without log r(v); (..., N)."""
        linear = (statistic @ self.visible_bias.unsqueeze(-1)).squeeze(-1)
        return linear + log_normaliser_of(self.hidden, self.zeta(statistic)).sum(-1)

    def log_weight_of_hidden(self, hidden: Tensor) -> Tensor:
        """log w of hidden layers (..., N, K), one of every row; (..., N)."""
        linear, units = (hidden * self._bias_of_rows()).sum(-1), self.units(self.eta(hidden))
        units = units if self.times is None else units * self.times
        return linear + units.sum(-1) + self.hidden.log_base(hidden).sum(-1)

    def _bias_of_rows(self) -> Tensor:
        return self.hidden_bias if self.times is not None else self.hidden_bias.unsqueeze(-2)

    def log_weights(self, codes: Tensor) -> Tensor:
        """log w of all codes (S, K) of a binary hidden layer, (..., S), of rows (..., N, S)."""
        if self.times is None:
            return (codes @ self.hidden_bias.unsqueeze(-1)).squeeze(-1) + self.units(self.eta(codes)).sum(-1)
        return self.hidden_bias @ codes.mT + self.times @ self.units(self.eta(codes)).mT

    # ----- the partition function -------------------------------------------------------------------------------------

    @property
    def bits(self) -> tuple[float, float]:
        """log2 of the number of states of the hidden and of the visible layer; infinite of Gaussian ones, and of
        visible ones that differ between rows."""
        units, kind = self.visible_bias.shape[-1], self.visible
        own = float(self.weight.shape[-2]) if self.is_binary else math.inf
        if self.times is not None or kind.kind == "real":
            return own, math.inf
        return own, units / kind.num_categories * math.log2(kind.num_categories) if kind.is_vector else float(units)

    @property
    def closed_form(self) -> bool:
        """Whether both layers are Gaussian, which integrals of closed form sum out."""
        return self.visible.kind == self.hidden.kind == "real"

    def require_feasible(self, most: float = MOST_BITS, rows: int = 1) -> None:
        """Raises CapacityError where no layer has few enough states for an exact sum."""
        fewest = min(self.bits)
        if self.closed_form or fewest <= most:
            return
        if math.isinf(fewest):
            what = "log Z has no finite sum over one layer: neither the hidden nor the visible one has few states"
            raise CapacityError(f"{what}; annealed importance sampling estimates it")
        width = self.weight.shape[-1] + (0 if self.times is None else rows)
        needed, allowed = (8.0 * 2.0**bits * width for bits in (fewest, most))
        layer = "hidden" if self.bits[0] <= self.bits[1] else "visible"
        message = (
            f"exact sums over 2^{fewest:.0f} states of the {layer} layer need about {needed / 2**30:.3g} GiB; at most "
            f"2^{most:.0f} states are summed over; annealed importance sampling estimates log Z at any size"
        )
        raise CapacityError(message, needed_bytes=needed, allowed_bytes=allowed)

    def log_partition(self) -> Tensor:
        """log Z, (...), of rows (..., N): by all states of the layer with fewer, or by integrals of closed form.

        Infinite where two Gaussian layers have no joint density: a singular value of W is 1 or more.
        """
        if self.closed_form:
            return self.gaussian()[0]
        self.require_feasible()
        hidden, visible = self.bits
        if hidden <= visible:
            states, weigh = self.codes, self.log_weights
        else:
            states, weigh = self.visible_states, self.log_weight_of_visible
        if len(states) <= _PART:
            return torch.logsumexp(weigh(states), -1)
        sums: list[Any] = [
            checkpoint(lambda part: torch.logsumexp(weigh(part), -1), part, use_reentrant=False)
            for part in states.split(_PART)
        ]
        return torch.logsumexp(torch.stack(sums), 0)

    @cached_property
    def codes(self) -> Tensor:
        """Every code of a binary hidden layer, (2^K, K)."""
        return all_codes(self.weight.shape[-2], dtype=self.weight.dtype, device=self.weight.device)

    @cached_property
    def visible_states(self) -> Tensor:
        """The statistics of every visible layer, (S, M)."""
        like = self.weight
        if not self.visible.is_vector:
            return all_codes(like.shape[-1], dtype=like.dtype, device=like.device)
        size = self.visible.num_categories
        units = like.shape[-1] // size
        numbers = torch.cartesian_prod(*[torch.arange(size, device=like.device)] * units).view(-1, units)
        return one_hot(numbers, size).flatten(1).to(like)

    def gaussian(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return log Z of two Gaussian layers, the mean m of h and the Cholesky factor of its precision P,

        P = I - W diag(n) W',  m = c + W diag(n) b,  log Z = (b' diag(n) b + m'P^-1 m - log |P|) / 2
        """
        weight, bias = self.weight, self.visible_bias
        if self.times is None:
            counted, square = weight, bias.square().sum(-1)
        else:
            counted, square = weight.unsqueeze(-3) * self.times.unsqueeze(-2), bias.square() @ self.times.mT
            weight, bias = weight.unsqueeze(-3), bias.unsqueeze(-2)
        inner = counted @ weight.mT
        eye = torch.eye(inner.shape[-1]).to(inner)
        shift = self.hidden_bias + (counted @ bias.unsqueeze(-1)).squeeze(-1)
        factor, problem = torch.linalg.cholesky_ex(eye - inner)
        proper = problem == 0
        factor = torch.where(proper[..., None, None], factor, eye)
        mean = torch.cholesky_solve(shift.unsqueeze(-1), factor).squeeze(-1)
        log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        value = 0.5 * (square + (shift * mean).sum(-1)) - log_det
        return torch.where(proper, value, torch.full_like(value, torch.inf)), mean, factor

    def sampled_hidden(self, rows: int, *, steps: int = 500, generator: torch.Generator | None = None) -> Tensor:
        """Draws of h, (rows, K): exact where log Z is, else after ``steps`` Gibbs sweeps from independent units."""
        if self.closed_form:
            log_z, mean, factor = self.gaussian()
            if bool(torch.isinf(log_z).any()):
                raise ModelError(
                    "singular values of the weight reach 1: two Gaussian layers then have no joint density"
                )
            noise = _noise(torch.randn, mean.expand(rows, -1), generator).unsqueeze(-1)
            return mean + torch.linalg.solve_triangular(factor.mT, noise, upper=True).squeeze(-1)
        hidden, visible = self.bits
        if min(hidden, visible) > MOST_BITS:
            eta = self.visible_bias.unsqueeze(-2).expand(rows, -1)
            return self.draw_hidden(self.gibbs(self.draw_statistic(eta, generator), steps, generator), generator)
        if hidden <= visible:
            chance = torch.softmax(self.log_weights(self.codes), -1)
            chance = chance.expand(rows, -1) if self.times is not None else chance
            many = 1 if self.times is not None else max(1, rows)
            return self.codes[torch.multinomial(chance, many, replacement=True, generator=generator).flatten()[:rows]]
        states = self.visible_states
        chance = torch.softmax(self.log_weight_of_visible(states), -1)
        drawn = torch.multinomial(chance, max(1, rows), replacement=True, generator=generator)[:rows]
        return self.draw_hidden(states[drawn], generator)

    def hidden_expectation(self) -> Tensor:
        """E[h] under the machine, (..., K), by all states of a layer."""
        self.require_feasible()
        if self.bits[0] <= self.bits[1]:
            return torch.softmax(self.log_weights(self.codes), -1) @ self.codes
        states = self.visible_states
        return torch.softmax(self.log_weight_of_visible(states), -1) @ self.hidden_mean(states)

    def of_rows(self, hidden_bias: Tensor, times: Tensor) -> Energy:
        """Return the energy of each row: hidden biases (..., N, K) and numbers of units (N, D), with these weights."""
        return replace(self, hidden_bias=hidden_bias, times=times)


def log_normaliser_of(kind: ExponentialFamily, eta: Tensor) -> Tensor:
    """A(eta) of a unit of this kind."""
    return softplus(eta) if kind.kind == "binary" else kind.log_normaliser(eta)  # twice as fast


def _noise(kind: Callable[..., Tensor], like: Tensor, generator: torch.Generator | None) -> Tensor:
    return kind(like.shape, generator=generator, dtype=like.dtype, device=(generator or like).device).to(like.device)


def _draw_bits(chance: Tensor, generator: torch.Generator | None) -> Tensor:
    """1 with these chances, else 0."""
    return torch.lt(_noise(torch.rand, chance, generator), chance.detach(), out=torch.empty_like(chance))
