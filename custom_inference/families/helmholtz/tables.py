"""Sums over all states of the hidden layers of a Helmholtz machine, layer by layer (Dayan et al. 1995).

With u the 2^n states of a layer of n units and A_l(u) = b_l + W_l'u the log odds of the units below it,

    log p(h_0 = u)        = b_0'u - sum softplus(b_0)
    log p(h_l = v | u)    = A_l(u)'v - sum softplus(A_l(u))
    log p(h_l = v)        = logsumexp_u [log p(h_{l-1} = u) + log p(h_l = v | u)]
    log p(x, h_{L-1} = u) = A_L(u)'x - sum_{j observed} softplus(A_L(u))_j + log p(h_{L-1} = u)

(the slides' log p(v | z) has a second logarithm too many). Of all rows x' A_L(u) = x'b_L + (W_L x)'u: two products with
n columns between, not one with D. Values of the globals may have axes in front (starts that climb side by side).
Binary rows of which many are alike are summed pattern by pattern.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import softplus

from custom_inference.core.engine import Params
from custom_inference.families.rows.matrix import BinaryRows
from ppl_models.distributions import all_codes


@dataclass(frozen=True)
class Patterns:
    """Rows (U, D) that all differ: ones, 0 where an entry is missing; seen, 1 where it is not (None: nowhere missing);
    count (U,): how often each occurs. place (N,): the pattern of every row."""

    ones: Tensor
    seen: Tensor | None
    count: Tensor
    place: Tensor

    def to(self, dtype: torch.dtype) -> Self:
        seen = None if self.seen is None else self.seen.to(dtype)
        return type(self)(self.ones.to(dtype), seen, self.count.to(dtype), self.place)


class PatternRows(BinaryRows):
    """Binary rows, and what is different among them: equal rows are computed once."""

    @cached_property
    def different(self) -> Patterns:
        size, ones = self.ones.shape[1], self.ones
        both = ones if self.observed is None else torch.cat([ones, self.observed], 1)
        found, place, count = torch.unique(both, dim=0, return_inverse=True, return_counts=True)
        seen = None if self.observed is None else found[:, size:]
        return Patterns(found[:, :size], seen, count.to(ones), place)

    def sample(self, most: int, generator: torch.Generator) -> Patterns:
        """The patterns; of more than ``most``, those of so many rows at random."""
        if len(self.different.ones) <= most:
            return self.different
        return self.select(torch.randperm(len(self), generator=generator)[:most].to(self.ones.device)).different


@dataclass(frozen=True)
class LayerTables:
    """The hidden layers of a machine at values of its globals.

    codes: of each layer, (2^n, n). marginal: log p(h_l), (..., 2^n). given: log p(h_l | h_{l-1}), (..., 2^m, 2^n), from
    the second layer on. odds: A_L of the states of the last hidden layer, (..., 2^n, D). bias, weight: b_L (..., D) and
    W_L (..., n, D).
    """

    codes: list[Tensor]
    marginal: list[Tensor]
    given: list[Tensor]
    odds: Tensor
    bias: Tensor
    weight: Tensor

    @classmethod
    def of(cls, params: Params, layers: tuple[int, ...]) -> LayerTables:
        """layers: as the model's, from the top to the visible one."""
        like = params["bias_0"]
        codes = [all_codes(size, dtype=like.dtype, device=like.device) for size in layers[:-1]]
        marginal, given = [like @ codes[0].T - softplus(like).sum(-1, keepdim=True)], []
        for number in range(1, len(layers) - 1):
            odds = log_odds(params, number, codes[number - 1])
            given.append(odds @ codes[number].T - softplus(odds).sum(-1, keepdim=True))
            marginal.append(torch.logsumexp(marginal[-1].unsqueeze(-1) + given[-1], -2))
        last = len(layers) - 1
        odds = log_odds(params, last, codes[-1])
        return cls(codes, marginal, given, odds, params[f"bias_{last}"], params[f"weight_{last}"])

    def log_joint(self, ones: Tensor, seen: Tensor | None = None, temperature: float = 1.0) -> Tensor:
        """log p(x_n observed, h_{L-1} = u), (..., N, 2^n), the likelihood raised to the temperature.

        ones (N, D): 0 where an entry is missing. seen (N, D): 1 where it is not.
        """
        off = softplus(self.odds)
        state = self.marginal[-1] if seen is not None else self.marginal[-1] - temperature * off.sum(-1)
        on = temperature * (ones @ torch.cat([self.weight, self.bias.unsqueeze(-2)], -2).mT)
        # What is of states alone as one more column of the product: its table is large, and gone through only once.
        left = torch.cat([on, torch.ones_like(on[..., :1])], -1)
        codes = self.codes[-1].expand(*state.shape, -1)
        right = torch.cat([codes, torch.ones_like(codes[..., :1]), state.unsqueeze(-1)], -1)
        found = left @ right.mT
        return found if seen is None else found - temperature * (seen @ off.mT)

    def above(self, number: int) -> Tensor:
        """log p(h_{l-1} = u | h_l = v) of the hidden layer l, (..., 2^m, 2^n)."""
        joint = self.marginal[number - 1].unsqueeze(-1) + self.given[number - 1]
        return joint - self.marginal[number].unsqueeze(-2)


def log_odds(params: Params, number: int, above: Tensor) -> Tensor:
    """Compute the log odds (..., C, n) of the units of a layer given values (..., C, m) of the one above."""
    return params[f"bias_{number}"].unsqueeze(-2) + above @ params[f"weight_{number}"]
