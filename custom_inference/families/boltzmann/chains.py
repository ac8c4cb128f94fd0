"""The states that stand for the unclamped phase: Markov chains that go on where the last update left them, or not.

    CD-k    from the rows of the minibatch, k sweeps                                       (Murphy 2012, algorithm 27.3)
    PCD-k   chains that are never restarted, k sweeps an update                            (Murphy 2012, algorithm 27.4)
    PT      persistent chains at several temperatures, which exchange their states (Desjardins et al. 2010)

Rows whose units are their own (documents' lengths, absent entries) have persistent chains of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from custom_inference.families.boltzmann.common import HarmoniumRows
from ppl_models.distributions import Energy


@dataclass
class Chains:
    """States whose expectation is the unclamped phase's. kind: "cd", "pcd" or "pt"; sweeps: k of an update.

    state: (T, S, M) statistics, S chains at each of T temperatures, the machine's own last; of rows with units of their
    own (T, N, M). base: natural parameters of the independent units at temperature 0.
    """

    kind: str
    sweeps: int
    base: Tensor
    generator: torch.Generator
    betas: Tensor
    state: Tensor
    _parity: int = 1

    @classmethod
    def of(
        cls, kind: str, sweeps: int, chains: int, temperatures: int, energy: Energy, base: Tensor, rows: HarmoniumRows,
        generator: torch.Generator,
    ) -> Chains:  # fmt: skip
        betas = torch.linspace(0, 1, temperatures).to(base) if kind == "pt" else base.new_ones(1)
        number = 0 if kind == "cd" else chains if rows.times is None else len(rows)
        of_rows = energy if rows.times is None else replace(energy, times=rows.times)
        state = base.new_zeros(len(betas), 0, len(base))
        if number:
            eta = base.expand(len(betas), number, -1)
            state = of_rows.draw_statistic(eta, generator)
        return cls(kind, sweeps, base, generator, betas, state)

    def negative(self, energy: Energy, statistic: Tensor, index: Tensor) -> Tensor:
        """t of the states after an update's sweeps, (S, M). statistic: t of the minibatch (B, M), which rows it has."""
        if self.kind == "cd":
            return energy.gibbs(statistic, self.sweeps, self.generator)
        own = energy.times is not None
        state = self.state[:, index] if own else self.state
        if self.kind == "pcd":
            state = energy.gibbs(state[0], self.sweeps, self.generator)[None]
        else:
            tempered = self._temper(energy)
            for _ in range(self.sweeps):
                self._parity = 1 - self._parity
                state = self._exchange(tempered, tempered.gibbs(state, 1, self.generator), self._parity)
        if own:
            self.state[:, index] = state
        else:
            self.state = state
        return state[-1]

    def _temper(self, energy: Energy) -> Energy:
        """Return the energy at every temperature, with leading axis T."""
        beta = self.betas
        bias = energy.hidden_bias * beta.view(-1, *[1] * energy.hidden_bias.ndim)
        visible = (1 - beta)[:, None] * self.base + beta[:, None] * energy.visible_bias
        return replace(energy, weight=beta[:, None, None] * energy.weight, visible_bias=visible, hidden_bias=bias)

    def _exchange(self, tempered: Energy, state: Tensor, parity: int) -> Tensor:
        """Let neighbours of one parity exchange states with probability min(1, f_i(v_j) f_j(v_i) / (f_i(v_i)
        f_j(v_j)))."""
        low = torch.tensor(range(parity, len(self.betas) - 1, 2), dtype=torch.long, device=state.device)
        if not len(low):
            return state
        pair = torch.stack([low, low + 1], 1).flatten()
        other = torch.stack([low + 1, low], 1).flatten()
        parts: Any = (tempered.weight[pair], tempered.visible_bias[pair], tempered.hidden_bias[pair])
        two = replace(tempered, weight=parts[0], visible_bias=parts[1], hidden_bias=parts[2])
        gain = two.log_weight_of_visible(state[other]) - two.log_weight_of_visible(state[pair])
        gain = gain.view(len(low), 2, -1).sum(1)
        drawn = torch.rand(gain.shape, generator=self.generator, dtype=gain.dtype).to(gain)
        accepted = (drawn.log() < gain).repeat_interleave(2, 0)
        exchanged = state.clone()
        exchanged[pair] = torch.where(accepted.unsqueeze(-1), state[other], state[pair])
        return exchanged
