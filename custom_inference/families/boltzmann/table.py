"""All hidden states of one machine of binary units, by two halves of its hidden layer: log Z and what follows from it.

    log w(h) = c'h + sum_d log(1 + exp(b_d + (W'h)_d)),   p(h) = w(h) / Z              (Murphy 2012, eqs. 27.114-27.117)

In single precision, some 30 times as fast as products of matrices: 2^16 states of 64 visible units in a millisecond;
where weak priors let odds grow beyond it, in double precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from torch import Tensor

from ppl_models.distributions.basic import all_codes

Array = np.ndarray[Any, Any]
#: log2 of the states from which on the halves are worth a compilation, log odds up to which two of their odds have a
#: product in single precision, those up to which tables have halves, and the logarithm of the largest product in double
#: precision, to which one more factor may be added.
_HALVED, _SINGLE, _LARGEST, _PRODUCT = 10, 40.0, 100.0, 600.0
#: States that are less likely are left out of covariances.
_RARE = 1e-7


@dataclass(frozen=True)
class Table:
    """``log_z``, and ``chance`` p(h) of all hidden states, (n1, n2), whose bits are ``codes``: (n1, K1) and (n2, K2).

    first, second: b + W'h of the first half and W'h of the other, (n1, D) and (n2, D).
    odds: their exponentials, (n1, D) and (D, n2), of tables with two halves.
    """

    log_z: float
    chance: Array
    codes: tuple[Array, Array]
    first: Array
    second: Array
    odds: tuple[Array, Array] | None = None

    @classmethod
    def of(cls, weight: Tensor, visible_bias: Tensor, hidden_bias: Tensor) -> Table:
        """Tabulate the machine with W (K, D), b (D,) and c (K,)."""
        w, b, c = (value.detach().cpu().float().numpy() for value in (weight, visible_bias, hidden_bias))
        half = len(c) // 2 if len(c) >= _HALVED else len(c)
        table = cls._split_in_halves(w, b, c, half)
        return table if table is not None else cls._whole(w, b, c)

    @classmethod
    def _split_in_halves(cls, w: Array, b: Array, c: Array, half: int) -> Table | None:
        """Tabulate by two halves of the hidden units; None where there is one half, or odds are too large."""
        if half == len(c):
            return None
        codes = _codes(half), _codes(len(c) - half)
        first, second = codes[0] @ w[:half] + b, codes[1] @ w[half:]
        largest = first.max(0) + second.max(0)
        most = max(first.max(), second.max(), largest.max())
        if most > _LARGEST:
            return None
        kind = np.float32 if most <= _SINGLE else np.float64
        from custom_inference.families.boltzmann.table_kernels import products

        odds = np.exp(first, dtype=kind), np.exp(np.ascontiguousarray(second.T), dtype=kind)
        log_w = np.add.outer(codes[0] @ c[:half], codes[1] @ c[half:], dtype=np.float64)
        parts = np.logaddexp(0, largest).cumsum() // _PRODUCT
        for part in np.unique(parts):
            chosen, found = parts == part, np.empty_like(log_w)
            products(np.ascontiguousarray(odds[0][:, chosen]), odds[1][chosen], found)
            log_w += np.log(found, out=found)
        return cls(*_normalise(log_w), codes, first, second, odds)

    @classmethod
    def _whole(cls, w: Array, b: Array, c: Array) -> Table:
        codes = _codes(len(c)), np.zeros((1, 0), np.float32)
        eta = codes[0] @ w + b
        log_w = codes[0] @ c.astype(float) + np.logaddexp(0, eta).sum(1, dtype=float)
        return cls(*_normalise(log_w[:, None]), codes, eta, np.zeros((1, len(b)), np.float32))

    def moments(self) -> tuple[Array, Array, Array]:
        """E[h v'] (K, D), E[v] (D,) and E[h] (K,)."""
        if self.odds is not None:
            from custom_inference.families.boltzmann.table_kernels import expectations

            of_first, of_second = np.empty_like(self.odds[0]), np.zeros_like(self.odds[1])
            expectations(*self.odds, self.chance, of_first, of_second)
        else:
            of_first = self.chance * _sigmoid(self.first)
            of_second = of_first.sum(0)[:, None]
        product = np.concatenate([self.codes[0].T @ of_first, (of_second @ self.codes[1]).T])
        return product, of_first.sum(0), self.hidden_mean

    @cached_property
    def hidden_mean(self) -> Array:
        """E[h]."""
        return np.concatenate([self.chance.sum(1) @ self.codes[0], self.chance.sum(0) @ self.codes[1]])

    def visible_covariance(self) -> Array:
        """Cov[v], (D, D)."""
        one, other = np.nonzero(self.chance > min(_RARE, self.chance.max() / 2))
        chance = self.chance[one, other]
        mean = _sigmoid(self.first[one] + self.second[other])
        chance = chance / chance.sum()
        centre = chance @ mean
        found = (mean * chance[:, None]).T @ mean - np.outer(centre, centre)
        found[np.diag_indices_from(found)] += chance @ (mean * (1 - mean))
        return found


@lru_cache(8)
def _codes(bits: int) -> Array:
    return all_codes(bits).float().numpy()


def _normalise(log_w: Array) -> tuple[float, Array]:
    top = log_w.max()
    chance = np.exp((log_w - top).astype(np.float32))
    total = chance.sum(dtype=np.float64)
    chance *= np.float32(1 / total)
    return float(top + np.log(total)), chance


def _sigmoid(eta: Array) -> Array:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-eta))
