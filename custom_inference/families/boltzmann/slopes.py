"""Slopes of a harmonium's log-likelihood by Markov chains, and steps along them (002, section 27.7.2).

The slope of the mean log-likelihood (27.112) is E[h t' | rows] - E[h t' | model] plus that of the prior, the second
term by the states of the chains. With centred units (Montavon & Mueller, *Deep Boltzmann machines and the centering
trick*, 2012) the products are those of h - lambda and t - mu, which turns the same steps into better conditioned ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from custom_inference.core.engine import Params
from custom_inference.families.boltzmann.chains import Chains
from custom_inference.families.boltzmann.common import SITES, HarmoniumRows
from custom_inference.families.boltzmann.exact import completions
from custom_inference.families.common.priors import normal_parameters
from ppl_models.rbm import HarmoniumModel


class Weights:
    """W, b and c as one vector ``theta``, which steps change in place; ``at`` are views of it by site."""

    def __init__(self, start: Params):
        self.shapes = {site: start[site].shape for site in SITES}
        self.theta = torch.cat([start[site].flatten() for site in SITES])
        self.at = self.parts(self.theta)
        self._first, self._second, self._steps = torch.zeros_like(self.theta), torch.zeros_like(self.theta), 0

    def parts(self, vector: Tensor) -> Params:
        """A vector of this kind by site, as views."""
        parts = vector.split([shape.numel() for shape in self.shapes.values()])
        return {site: part.view(self.shapes[site]) for site, part in zip(SITES, parts, strict=True)}

    def climb(self, slope: Tensor, rate: float, momentum: float) -> None:
        self.theta += self._first.mul_(momentum).add_(slope, alpha=rate)

    def climb_adam(self, slope: Tensor, rate: float) -> None:
        self._steps += 1
        self._first.lerp_(slope, 0.1)
        self._second.lerp_(slope.square(), 0.001)
        scale = (self._second / (1 - 0.999**self._steps)).sqrt_().add_(1e-8)
        self.theta.addcdiv_(self._first, scale, value=rate / (1 - 0.9**self._steps))


@dataclass
class Slopes:
    """Slopes at ``weights``, of minibatches of ``rows``; ``chains`` stand for the unclamped phase.

    weight_decay: that of W, in place of the priors. centred: whether units are.
    """

    model: HarmoniumModel
    rows: HarmoniumRows
    weights: Weights
    chains: Chains
    generator: torch.Generator
    weight_decay: float | None
    centred: bool
    completed: Tensor = field(init=False)

    def __post_init__(self) -> None:
        model, rows, at = self.model, self.rows, self.weights.at
        self.of_documents = bool(model.sites[model.observed_site].sparse)
        self.energy = None if rows.times is not None else model.energy(at)
        self.slope = torch.zeros_like(self.weights.theta)
        self._parts = {site: part.flatten(int(site == "weight")) for site, part in self.weights.parts(self.slope).items()}
        self._mu = rows.statistic.mean(0)
        self._level = torch.full_like(at["hidden_bias"], 0.5 if model.code_bits else 0.0)
        self._prior = self._normal(at)
        self.completed = rows.statistic
        if rows.missing is not None:
            self.completed = next(completions(model, at, rows, 1, self.generator))[0]

    def _normal(self, at: Mapping[str, Tensor]) -> tuple[Tensor, Tensor] | None:
        """Precision times mean, and precision of the prior of every weight, a row; None where it is not Normal."""
        shifts, precisions = [], []
        for site in SITES:
            prior = self.model.priors[site]
            if self.weight_decay is not None:
                precision = torch.full_like(at[site], self.weight_decay if site == "weight" else 0.0)
                mean = torch.zeros_like(precision)
            elif isinstance(prior, torch.distributions.Normal) or hasattr(prior, "proposal"):
                mean, precision = normal_parameters(self.model, site, tuple(at[site].shape), at[site])
                precision = precision / len(self.rows)
            else:
                return None
            shifts.append((mean * precision).flatten())
            precisions.append(precision.flatten())
        return torch.cat(shifts), torch.cat(precisions)

    def of_posterior(self, index: Tensor) -> Tensor:
        """That of the mean log-likelihood and the log prior a row. The next call overwrites it."""
        slope, theta = self.of_likelihood(index), self.weights.theta
        if self._prior is not None:
            shift, precision = self._prior
            return slope.add_(shift).addcmul_(precision, theta, value=-1)
        with torch.enable_grad():
            at = theta.clone().requires_grad_()
            return slope.add_(torch.autograd.grad(self.model.log_prior(self.weights.parts(at)), at)[0] / len(self.rows))

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
        up, down = (clamped, free) if not self.of_documents else (clamped * times, free * times)
        weight, visible, bias = self._parts.values()
        number, alike = len(data), len(data) / len(fantasy)
        torch.addmm(clamped.mT @ data, free.mT, fantasy, alpha=-alike, out=weight)
        torch.sub(data.sum(0), fantasy.sum(0), alpha=alike, out=visible)
        expected = up.sum(0)
        torch.sub(expected, down.sum(0), alpha=alike, out=bias)
        if self.centred:
            mu, level = self._mu, self._level
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
