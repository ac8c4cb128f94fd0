"""Slopes of machines of binary units by persistent chains, of one machine or of several side by side.

    d/dtheta = sum_n s_n (1, E[h | v_n])' (1, v_n),    s = 1 / B of the B rows of a minibatch, -1 / S of the S chains

With W bordered by its biases an update is a few products of matrices in memory that is there, in less than two thirds
of the general way's time. Several machines cost less than one after the other: they share the minibatches and the
uniform numbers that their chains are drawn with. They differ by where they start, and each learns as it would alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from custom_inference.families.boltzmann.slopes import WeightSlopes


@dataclass
class BinarySlopes(WeightSlopes):
    """Slopes at ``Bordered`` weights. size: rows of every minibatch. The states of ``chains`` are moved in place, and
    have an axis of machines where the weights have one."""

    size: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        theta, state = self.weights.theta, self.chains.state[0]
        *lead, hidden, visible = theta.shape
        number = len(state)
        self._minibatch = theta.new_ones(self.size, visible)  # a 1 first in each, which the biases multiply
        self._chains, self._drawn = theta.new_ones(*lead, number, visible), theta.new_ones(*lead, number, hidden)
        self._hidden, self._visible = self._drawn[..., 1:], self._chains[..., 1:]
        self._visible[:] = state
        self.chains.state = self._visible[None]
        self._up, self._down = theta[..., 1:, :].mT, theta[..., 1:]  # to the hidden units, and to the visible ones
        self._outer, self._inner = self.slope[..., 0, :], self.slope[..., 1:, :]
        sizes = [number * (hidden - 1), number * (visible - 1)]
        self._uniform = UniformNumbers(sum(sizes), theta, self.generator)
        self._to_hidden, self._to_visible = (part.view(number, -1) for part in self._uniform.values.split(sizes))
        self._several = bool(lead)

    def of_likelihood(self, index: Tensor) -> Tensor:
        rows, chains, inner = self._minibatch, self._chains, self._inner
        torch.index_select(self.completed, 0, index, out=rows[:, 1:])
        for _ in range(self.chains.sweeps):
            self._move()
        seen, free = torch.matmul(rows, self._up).sigmoid_().mT, (chains @ self._up).sigmoid_().mT
        alike = rows.shape[0] / chains.shape[-2]
        if inner.ndim == 2:
            torch.mm(seen, rows, out=inner).addmm_(free, chains, alpha=-alike)
        else:
            torch.bmm(seen, rows.expand(inner.shape[0], -1, -1), out=inner).baddbmm_(free, chains, alpha=-alike)
        torch.sub(rows.sum(0), chains.sum(-2), alpha=alike, out=self._outer)
        return self.slope.mul_(1 / rows.shape[0])

    def _move(self) -> None:
        """A sweep of the chains: units are on where u < sigmoid(eta), or log(u / (1 - u)) < eta: with the same u for
        several machines that takes one logarithm a unit in place of an exponential for each of them."""
        values = self._uniform.draw()
        if self._several:
            values.logit_()
        zeta = self._chains @ self._up
        torch.lt(self._to_hidden, zeta if self._several else zeta.sigmoid_(), out=self._hidden)
        eta = self._drawn @ self._down
        torch.lt(self._to_visible, eta if self._several else eta.sigmoid_(), out=self._visible)


class UniformNumbers:
    """``values`` on the 2^16 midpoints of (0, 1), four from each word of random bits: half the price of single
    precision, and chances are met up to 2^-17."""

    def __init__(self, number: int, like: Tensor, generator: torch.Generator):
        self._generator = generator
        self._words = torch.empty(-(-number // 4), dtype=torch.int64, device=generator.device)
        self._shorts = self._words.view(torch.int16)[:number]
        self.values = like.new_empty(number)

    def draw(self) -> Tensor:
        """New ones in the same place."""
        self._words.random_(-(2**63), None, generator=self._generator)
        return self.values.copy_(self._shorts).add_(2.0**15 + 0.5).mul_(2.0**-16)
