"""Sums over the subsets of one row's ones in logarithms, for rows whose probability is next to nothing.

The recursion of ``subset_kernels`` with log f and log h, in NumPy: tens of times slower, and exact however small p(x).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Numbers in double precision.
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class LogSubsets:
    """log a (K,), log b (K,), p (K, M) and p_0 (M,) of the M ones of one row."""

    absent: Reals
    present: Reals
    chance: Reals
    leak: Reals

    def forward(self) -> Reals:
        """Compute log f_i(T), (K + 1, 2^M)."""
        start = np.zeros(1)
        with np.errstate(divide="ignore"):
            for p in self.leak:  # the last one is the highest bit
                start = np.concatenate([start + np.log1p(-p), start + np.log(p)])
        found = [start]
        for absent, present, chance in zip(self.absent, self.present, self.chance, strict=True):
            found.append(np.logaddexp(absent + found[-1], present + self._transmit(found[-1], chance)))
        return np.stack(found)

    def backward(self) -> tuple[Reals, list[Reals]]:
        """Compute log h_i(T), (K + 1, 2^M), and of every source the stages (M + 1, 2^M) of log A' h_i: of the ones
        from j on, as ``subset_kernels`` has them."""
        last = np.full(1 << len(self.leak), -np.inf)
        last[-1] = 0.0
        found, stages = [last], []
        for absent, present, chance in zip(self.absent[::-1], self.present[::-1], self.chance[::-1], strict=True):
            stages.append(self._collect(found[-1], chance))
            found.append(np.logaddexp(absent + found[-1], present + stages[-1][0]))
        return np.stack(found[::-1]), stages[::-1]

    def expect(self) -> tuple[float, Reals, Reals, Reals]:
        """Compute log f_K(J), E[s_i | x] (K,), E[s_i z_ij | x] (K, M) and E[z_0j | x] (M,)."""
        forward, (backward, stages) = self.forward(), self.backward()
        evidence = float(forward[-1, -1])
        if evidence == -np.inf:
            nothing = np.full_like(self.chance, np.nan)
            return evidence, nothing.sum(1) + np.full(len(nothing), np.nan), nothing, np.full_like(self.leak, np.nan)
        weight = [self.present[i] + stages[i][0] - evidence for i in range(len(stages))]
        mean = np.array([np.exp(v + f).sum() for v, f in zip(weight, forward, strict=False)])
        sent = np.zeros_like(self.chance)
        for i, v in enumerate(weight):
            for j in range(len(self.leak)):
                without, inside = self._halves(forward[i], j)
                sent[i, j] = self.chance[i, j] * np.exp(self._halves(v, j)[1] + np.logaddexp(without, inside)).sum()
        first = forward[0] + backward[0] - evidence
        return evidence, mean, sent, np.array([np.exp(self._halves(first, j)[1]).sum() for j in range(len(self.leak))])

    def draw(self, number: int, rng: np.random.Generator) -> Reals:
        """Draw codes (S, K) from p(s | x), as ``subset_kernels.draw_sources`` does."""
        backward, stages = self.backward()
        joint = self.forward()[0] + backward[0]
        chance = np.exp(joint - joint.max())
        on = rng.choice(len(chance), size=number, p=chance / chance.sum())
        drawn = np.zeros((number, len(self.absent)))
        for i, stage in enumerate(stages):
            present = np.log(rng.random(number)) < self.present[i] + stage[0][on] - backward[i][on]
            drawn[:, i] = present
            for j, p in enumerate(self.chance[i]):
                with_j = on | (1 << j)
                fires = np.log(rng.random(number)) < np.log(max(p, 1e-300)) + stage[j + 1][with_j] - stage[j][on]
                on = np.where(present & fires, with_j, on)
        return drawn

    @staticmethod
    def _halves(values: Reals, j: int) -> tuple[Reals, Reals]:
        """Return views of what is without j and with j."""
        cut = values.reshape(-1, 2, 1 << j)
        return cut[:, 0], cut[:, 1]

    def _transmit(self, values: Reals, chance: Reals) -> Reals:
        values = values.copy()
        with np.errstate(divide="ignore"):
            for j, p in enumerate(chance):
                without, inside = self._halves(values, j)
                np.logaddexp(inside, np.log(p) + without, out=inside)
                without += np.log1p(-p)
        return values

    def _collect(self, values: Reals, chance: Reals) -> Reals:
        found = [values]
        with np.errstate(divide="ignore"):
            for j in range(len(chance) - 1, -1, -1):
                values = values.copy()
                without, inside = self._halves(values, j)
                without[:] = np.logaddexp(np.log1p(-chance[j]) + without, np.log(chance[j]) + inside)
                found.append(values)
        return np.stack(found[::-1])
