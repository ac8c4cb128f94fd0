"""log p(x) and the posterior of a Helmholtz machine too large to sum over, by annealed importance sampling.

Neal, *Annealed importance sampling* (2001). Chains of every row go from the prior of the hidden layers to their
posterior through p(h) p(x | h)^beta, 0 = beta_0 < ... < beta_T = 1, by Gibbs sweeps over the units:

    log odds of h_li = A_li(h_{l-1}) + sum_j [log p(h_{l+1,j} | h_li = 1) - log p(h_{l+1,j} | h_li = 0)]

with the power beta where the units below are the visible ones. A chain's weight is prod_t p(x | h_t)^(beta_{t+1} -
beta_t): the mean of the weights is p(x) on average, its logarithm tends to lie below log p(x), and the last states with
these weights are draws from p(h | x).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from custom_inference.core.engine import Params
from custom_inference.core.local_inference import Local
from custom_inference.core.posteriors import CodePosterior
from custom_inference.families.helmholtz.recognition import bernoulli, fantasies
from custom_inference.families.helmholtz.tables import log_odds
from custom_inference.families.rows.matrix import BinaryRows
from ppl_models import Data, HelmholtzMachine

#: Entries (chain, row, unit) of a block.
_BLOCK = 2**22


@dataclass(frozen=True)
class AnnealedBelief:
    """chains: of every row. temperatures: T, with a Gibbs sweep at each."""

    chains: int = 20
    temperatures: int = 50

    def __call__(self, model: HelmholtzMachine, params: Params, data: Data, *, seed: int = 0) -> Local:
        """The posterior of the rows, draws with weights, and the estimate of log p(x_n) with its standard error."""
        rows, generator = BinaryRows.of(data), torch.Generator().manual_seed(seed)
        size = max(1, _BLOCK // (self.chains * max(model.layers)))
        parts = [
            self._block(model, params, rows.select(slice(at, at + size)), generator) for at in range(0, len(rows), size)
        ]
        codes, weight = torch.cat([part[0] for part in parts], 1).movedim(0, 1), torch.cat([p[1] for p in parts], 1).T
        scaled = (weight - weight.amax(1, keepdim=True)).exp()
        error = scaled.std(1) / scaled.mean(1) / math.sqrt(self.chains)
        value = torch.logsumexp(weight, 1) - math.log(self.chains)
        return Local(CodePosterior(codes, torch.log_softmax(weight, 1)), value, error, "estimate", "ais")

    def _block(
        self, model: HelmholtzMachine, params: Params, rows: BinaryRows, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """States (chains, N, H) and log weights (chains, N)."""
        ones, seen, last = rows.ones, rows.observed, len(model.layers) - 1
        drawn = fantasies(params, model.layers, self.chains * len(rows), generator)[:-1]
        layers = [layer.view(self.chains, len(rows), -1) for layer in drawn]
        weight = torch.zeros(self.chains, len(rows)).to(ones)
        for step in range(1, self.temperatures + 1):
            odds = log_odds(params, last, layers[-1])
            off = softplus(odds) if seen is None else seen * softplus(odds)
            weight += ((ones * odds).sum(-1) - off.sum(-1)) / self.temperatures
            for layer in range(last):
                _sweep(params, layers, ones, seen, layer, step / self.temperatures, generator)
        return torch.cat(layers, -1), weight


def _sweep(
    params: Params, layers: list[Tensor], ones: Tensor, seen: Tensor | None, layer: int, beta: float,
    generator: torch.Generator,
) -> None:  # fmt: skip
    """Draw the units of a hidden layer in turn given all others; ``layers`` changes in place."""
    own, visible = layers[layer], layer + 1 == len(layers)
    above = params["bias_0"].expand(own.shape) if layer == 0 else log_odds(params, layer, layers[layer - 1])
    child, weight = ones if visible else layers[layer + 1], params[f"weight_{layer + 1}"]
    power, odds = beta if visible else 1.0, log_odds(params, layer + 1, own)
    for unit, pull in enumerate(weight):
        without = odds - own[..., unit, None] * pull
        gain = softplus(without + pull) - softplus(without)
        gain = gain.sum(-1) if seen is None or not visible else (seen * gain).sum(-1)
        new = bernoulli(above[..., unit] + power * (child @ pull - gain), generator)
        odds, own[..., unit] = without + new.unsqueeze(-1) * pull, new
