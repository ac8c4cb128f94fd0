"""Slopes of a harmonium's log-likelihood by Markov chains, and steps along them (002, section 27.7.2).

The slope of the mean log-likelihood (27.112) is E[h t' | rows] - E[h t' | model] plus that of the prior, the second
term by the states of the chains. With centred units (Montavon & Mueller, *Deep Boltzmann machines and the centering
trick*, 2012) the products are those of h - lambda and t - mu, which turns the same steps into better conditioned ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from custom_inference.families.boltzmann.chains import Chains
from custom_inference.families.boltzmann.common import HarmoniumRows
from custom_inference.families.boltzmann.exact import completions
from custom_inference.families.boltzmann.search import normal_priors
from custom_inference.families.boltzmann.weights import Weights
from ppl_models.rbm import HarmoniumModel


@dataclass
class Slopes:
    """Slopes at ``weights``, of minibatches of ``rows``; ``chains`` stand for the unclamped phase.

    weight_decay: that of W, in place of the priors. centred: whether units are. number: of rows, of which these are
        some; None: these are all. level: the mean of the hidden units, where it is known.
    """

    model: HarmoniumModel
    rows: HarmoniumRows
    weights: Weights
    chains: Chains
    generator: torch.Generator
    weight_decay: float | None
    centred: bool
    number: int | None = None
    level: Tensor | None = None
    completed: Tensor = field(init=False)

    def __post_init__(self) -> None:
        model, rows, at = self.model, self.rows, self.weights.at
        self.of_documents = bool(model.sites[model.observed_site].sparse)
        self.energy = None if rows.times is not None else model.energy(at)
        self.slope = torch.zeros_like(self.weights.theta)
        parts = self.weights.parts(self.slope)
        self._parts = parts["weight"].flatten(1), parts["visible_bias"].flatten(), parts["hidden_bias"]
        self._mu = rows.statistic.mean(0)
        if self.level is None:
            self.level = torch.full_like(at["hidden_bias"], 0.5 if model.code_bits else 0.0)
        self._rows = self.number or len(rows)
        self._prior = self._normal()
        self.completed = rows.statistic
        if rows.missing is not None:
            self.completed = next(completions(model, at, rows, 1, self.generator))[0]

    def _normal(self) -> tuple[Tensor, Tensor] | None:
        """Precision times mean, and precision of the prior of every weight, a row; None where it is not Normal."""
        if self.weight_decay is not None:
            decays = {site: torch.zeros_like(value) for site, value in self.weights.at.items()}
            decays["weight"] += self.weight_decay
            precision = self.weights.joined(decays)
            return torch.zeros_like(precision), precision
        normal = normal_priors(self.model, self.weights.theta)
        if normal is None:
            return None
        mean, precision = (self.weights.joined({site: pair[part] for site, pair in normal.items()}) for part in (0, 1))
        return mean * precision / self._rows, precision / self._rows

    def of_posterior(self, index: Tensor) -> Tensor:
        """That of the mean log-likelihood and the log prior a row. The next call overwrites it."""
        slope, theta = self.of_likelihood(index), self.weights.theta
        if self._prior is not None:
            shift, precision = self._prior
            return slope.add_(shift).addcmul_(precision, theta, value=-1)
        with torch.enable_grad():
            at = theta.clone().requires_grad_()
            return slope.add_(torch.autograd.grad(self.model.log_prior(self.weights.parts(at)), at)[0] / self._rows)

    def of_likelihood(self, index: Tensor) -> Tensor:
        """That of the mean log-likelihood in all weights, of a minibatch. The next call overwrites it."""
        data, times = self.completed[index], None
        if self.rows.missing is not None:
            data = self._moved(index, data)
        energy = self.energy
        if energy is None:
            times = self.rows.select(index).times
            energy = self.model.energy_of_rows(self.weights.at, times)
        clamped = energy.hidden_mean(data)
        fantasy = self.chains.negative(energy, data, index)
        free = energy.hidden_mean(fantasy)
        up, down = clamped, free
        if self.of_documents and times is not None:
            up, down = clamped * times, free * times
        weight, visible, bias = self._parts
        number, alike = len(data), len(data) / len(fantasy)
        torch.addmm(clamped.mT @ data, free.mT, fantasy, alpha=-alike, out=weight)
        torch.sub(data.sum(0), fantasy.sum(0), alpha=alike, out=visible)
        expected = up.sum(0)
        torch.sub(expected, down.sum(0), alpha=alike, out=bias)
        if self.centred:
            mu, level = self._mu, self.level
            assert level is not None
            weight.addr_(level, visible, alpha=-1).addr_(bias, mu, alpha=-1)
            bias.addmv_(weight, mu, alpha=-1)
            visible.addmv_(weight.mT, level, alpha=-1)
            level.lerp_(expected / number, 0.01)
        self.slope /= number
        return self.slope

    def _moved(self, index: Tensor, data: Tensor) -> Tensor:
        """A sweep over what was not observed."""
        *_, (data, _) = completions(self.model, self.weights.at, self.rows.select(index), 1, self.generator, data)
        self.completed[index] = data
        return data
