"""Stochastic learning that is told its rows one part after the other, as ``partial_fit`` is."""

from __future__ import annotations

import torch

from custom_inference.core.ended import Ended
from custom_inference.core.fit import Fit
from custom_inference.families.boltzmann.common import HarmoniumRows
from custom_inference.families.boltzmann.slopes import WeightSlopes
from custom_inference.families.boltzmann.stochastic import ContrastiveDivergence
from custom_inference.families.boltzmann.training import Training
from ppl_models import Data, MethodError

#: The rate, where the method does not say it, beside that with which a fit of all rows begins: it does not fall here.
_SLOWER = 0.2


class Online(Training):
    """A fit without an end: one pass over the minibatches of each part, at one learning rate.

    ``data`` are the latest rows. The prior, and chains, are those of all rows that were seen.
    """

    method: ContrastiveDivergence

    whole = False

    def _start(self) -> None:
        super()._start()
        init = self.call.init
        self.held, self.seen = None, len(init.data) if isinstance(init, Fit) else 0
        self.rate = self.method.learning_rate or _SLOWER * self.rate
        if self.rows.times is not None and self.method.kind != "cd":
            problem = f"{self.method.name} on one part of the rows after the other, whose units are their own"
            raise MethodError(f"{problem}; expected CD, whose chains begin at the rows")

    def learn(self, data: Data) -> Fit:
        """What was learned so far, with one pass over these rows."""
        rows = HarmoniumRows.of(self.model, data).to(self.weights.theta.dtype)
        self.data, self.rows, self.seen = data, rows, self.seen + len(rows)
        before, method = self.slopes, self.method
        self.slopes = WeightSlopes(
            self.model, rows, self.weights, before.chains, self.generator, method.weight_decay, before.centred,
            number=self.seen, level=before.level,
        )  # fmt: skip
        for part in torch.arange(len(rows), device=rows.like.device).tensor_split(-(-len(rows) // method.batch_size)):
            self._update(part, 0.0)
        self._watch()
        return method.conclude(self, f"learned from {self.seen} rows; Fit.data are the latest", Ended.LIMIT)
