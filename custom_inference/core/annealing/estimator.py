"""What estimates log p(x_n) of rows at given globals, and from both sides where the rows were drawn from the model."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from custom_inference.core.annealing.chains import Chains
from custom_inference.core.annealing.estimate import Budget, Estimated, Sandwich, estimate_log_evidence, prepare
from custom_inference.core.annealing.tempering import anneal, anneal_back, refine


class Estimator(abc.ABC):
    """Estimates of log p(x_n) of rows: by chains along paths of densities, or in a family's own way."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of rows."""

    @property
    @abc.abstractmethod
    def sizes(self) -> Tensor:
        """How many numbers a chain or particle of each row takes, (N,)."""

    @property
    def members(self) -> int:
        """How many rows of the data, whose codes stand beside each other, are one row here, as the nodes of a graph."""
        return 1

    @abc.abstractmethod
    def rows(self, index: Tensor) -> Self:
        """Give the estimator of some rows."""

    @abc.abstractmethod
    def estimate(self, budget: Budget, seed: int) -> Estimated:
        """Estimate log p(x_n) of every row, and draw from the posteriors."""

    @abc.abstractmethod
    def bound(self, code: Tensor, budget: Budget, steps: int, seed: int) -> Sandwich:
        """Estimate log p(x_n) from below and from above, given exact draws (N, W) from the posteriors; along paths of
        about ``steps`` steps, where there are paths."""


@dataclass(frozen=True)
class Annealed(Estimator):
    """Estimates by chains along paths of densities."""

    chains: Chains

    def __len__(self) -> int:
        return len(self.chains)

    @property
    def sizes(self) -> Tensor:
        return torch.full((len(self),), max(1, int(self.chains.options.sum()) + self.chains.num_reals))

    @property
    def members(self) -> int:
        return self.chains.members

    def rows(self, index: Tensor) -> Annealed:
        return Annealed(self.chains.rows(index))

    def estimate(self, budget: Budget, seed: int) -> Estimated:
        return estimate_log_evidence(self.chains, budget, seed=seed)

    def bound(self, code: Tensor, budget: Budget, steps: int, seed: int) -> Sandwich:
        generator = torch.Generator().manual_seed(seed)
        chains, path, budget = prepare(self.chains, budget, generator)
        powers, tunings = refine(path, max(1, math.ceil(steps / len(path.tunings))))
        _, forward = anneal(chains, powers, tunings, budget.chains, generator)
        start = chains.at(code.reshape(len(chains), -1).expand(budget.chains, len(chains), -1), generator)
        backward = anneal_back(chains, start, powers, tunings, generator)
        return Sandwich.of(forward, backward)._replace(members=chains.members)
