"""What is observed of rows with Gaussian latents, element by element: values, which are seen, and how much they weigh.

Bits have log-odds that are affine in the latents, and where these are inferred normal values in their place (``bits``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

_LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class Read:
    """What a block reads of N rows: values (N, G, U), which of them are seen (None: all), and of parameters that differ
    between rows the cells (N, U).

    trials: (N, G, U) of bits, of which the values are the successes. rate, beside: (N, G, U) of bits that are bounded:
    the precisions of the normal values that stand in for them, and what their bounds have beside -rate (x - m)^2 / 2.
    """

    x: Tensor
    seen: Tensor | None = None
    cells: Tensor | None = None
    trials: Tensor | None = None
    rate: Tensor | None = None
    beside: Tensor | None = None

    def select(self, index: Tensor | slice) -> Read:
        """Return some of the rows."""
        parts = (self.x, self.seen, self.cells, self.trials, self.rate, self.beside)
        return Read(*(None if one is None else one[index] for one in parts))  # type: ignore[arg-type]

    @property
    def heavy(self) -> Tensor | None:
        """How much the values count beside their scales, (N, G, U); None: all by 1."""
        if self.rate is None or self.seen is None:
            return self.seen if self.rate is None else self.rate
        return self.rate * self.seen

    def log_prob(self, mean: Tensor, scale: Tensor) -> Tensor:
        """Return log p of the values at means (C, N, G, U), or the bound on it; of bits at log-odds."""
        if self.rate is not None and self.beside is not None:
            found = self.beside - 0.5 * self.rate * (self.x - mean).square()
        elif self.trials is not None:
            found = self.x * mean + self.trials * torch.nn.functional.logsigmoid(-mean)
            found = found + count_orders(self.x, self.trials)
        else:
            found = -0.5 * (((self.x - mean) / scale).square() + _LOG_2PI) - torch.log(scale)
        return found if self.seen is None else found * self.seen


class Terms(NamedTuple):
    """The coefficients of a block in rows at every value of the finite latents: intercept and scale (C, N or 1, G, U),
    slope (C, N or 1, G, U, R)."""

    intercept: Tensor
    slope: Tensor
    scale: Tensor

    def rows(self, index: Tensor) -> Terms:
        """Return those of some rows."""
        return self if self.scale.shape[1] == 1 else Terms(*(one[:, index] for one in self))

    def find_means(self, latents: Tensor) -> Tensor:
        """Return the means (C, N, G, U) at latents (C, N, G, R); of what is drawn less itself."""
        if self.scale.shape[1] == 1:
            return self.intercept + torch.einsum("cgur,cngr->cngu", self.slope[:, 0], latents)
        return self.intercept + (self.slope * latents.unsqueeze(-2)).sum(-1)

    def pull(self, apart: Tensor) -> Tensor:
        """Return the sums (C, N, G, R) over elements of numbers (C, N, G, U) times slopes."""
        if self.scale.shape[1] == 1:
            return torch.einsum("cgur,cngu->cngr", self.slope[:, 0], apart)
        return (apart.unsqueeze(-2) @ self.slope).squeeze(-2)

    def find_variances(self, spread: Tensor) -> Tensor:
        """Return the variances (C, N, G, U) of the means where latents have covariances (C, N, G, R, R)."""
        if self.scale.shape[1] == 1:
            pair = self.slope[:, 0].unsqueeze(-1) * self.slope[:, 0].unsqueeze(-2)
            return torch.einsum("cgux,cngx->cngu", pair.flatten(-2), spread.flatten(-2)).clamp(min=0)
        return ((self.slope @ spread) * self.slope).sum(-1).clamp(min=0)


def count_orders(successes: Tensor, trials: Tensor) -> Tensor:
    """Return the logarithms of in how many orders the successes may come."""
    return torch.lgamma(trials + 1) - torch.lgamma(successes + 1) - torch.lgamma(trials - successes + 1)
