"""Slopes of a harmonium's log-likelihood by Markov chains, and steps along them (Murphy 2012, section 27.7.2).

The slope of the mean log-likelihood (27.112) is E[h t' | rows] - E[h t' | model] plus that of the prior, the second
term by the states of the chains. With centred units (Montavon & Mueller, *Deep Boltzmann machines and the centering
trick*, 2012) the products are those of h - lambda and t - mu, which turns the same steps into better conditioned ones.

Of machines of binary units, of one or of several side by side, by persistent chains:

    d/dtheta = sum_n s_n (1, E[h | v_n])' (1, v_n),    s = 1 / B of the B rows of a minibatch, -1 / S of the S chains

With W bordered by its biases an update is a few products of matrices in memory that is there, in less than two thirds
of the general way's time. Several machines cost less than one after the other: they share the minibatches and the
uniform numbers that their chains are drawn with. They differ by where they start, and each learns as it would alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from custom_inference.em.surrogate_priors import inside
from custom_inference.families.boltzmann.chains import Chains
from custom_inference.families.boltzmann.common import HarmoniumRows, MachineWeights
from custom_inference.families.boltzmann.exact import completions
from custom_inference.families.boltzmann.priors import multiply_last, priors_of
from ppl_models.core.hierarchy import is_function
from ppl_models.core.priors import is_bounded, support_of
from ppl_models.rbm import HarmoniumModel

#: Curvature of a log prior a row from which steps are damped.
_STIFF = 0.1


@dataclass
class WeightSlopes:
    """Slopes at ``weights``, of minibatches of ``rows``; ``chains`` stand for the unclamped phase.

    weight_decay: that of W, in place of the priors. centred: whether units are. number: of rows, of which these are
        some; None: these are all. level: the mean of the hidden units, where it is known.
    """

    model: HarmoniumModel
    rows: HarmoniumRows
    weights: MachineWeights
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
        self._coupled: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        self._prior = self._gaussian()
        ones = {site: torch.full_like(at[site], site == "weight") for site in at}
        self._of_weights = self.weights.join(ones)  # 1 of W, 0 of biases
        priors = {} if self.weight_decay is not None else {site: model.priors[site] for site in at}
        stated = {site: prior for site, prior in priors.items() if not is_function(prior)}
        self._bounds = {site: support_of(prior) for site, prior in stated.items() if is_bounded(prior)}
        self.confine()
        self._stiffness = self._stiff()
        self._stiffest = 0.0 if self._stiffness is None else float(self._stiffness.max())
        self.completed = rows.statistic
        if rows.missing is not None:
            self.completed = next(completions(model, at, rows, 1, self.generator))[0]

    def _gaussian(self) -> tuple[Tensor, Tensor] | None:
        """Precision times mean, and precision of the prior of every weight, a row; None where it is not Gaussian. The
        precisions that are matrices are kept with what they multiply."""
        weights, rows = self.weights, self._rows
        priors = priors_of(self.model, self.weight_decay, rows, weights.theta)
        if priors is None:
            return None
        slopes = weights.parts(self.slope)
        self._coupled = {site: (slopes[site], weights.at[site], one / rows) for site, one in priors.matrix.items()}
        shift = weights.join({site: priors.pull(site, mean) for site, mean in priors.mean.items()})
        return shift / rows, weights.join(priors.precision) / rows

    def _stiff(self) -> Tensor | None:
        """Minus the second derivative of the log prior a row in every weight."""
        if self._prior is not None:
            stiffness = self._prior[1].clone()
            for site, (_, _, matrix) in self._coupled.items():
                self.weights.parts(stiffness)[site].fill_(torch.linalg.matrix_norm(matrix, 2).max())
        else:
            with torch.enable_grad():
                at = self.weights.theta.clone().requires_grad_()
                slope = torch.autograd.grad(self.model.log_prior(self.weights.parts(at)), at, create_graph=True)[0]
                if not slope.requires_grad:
                    return None
                bend = torch.autograd.grad(slope.sum(), at, materialize_grads=True)[0]
            stiffness = (-bend / self._rows).clamp(min=0)
        return stiffness

    def confine(self) -> None:
        """Weights back within what their priors allow."""
        for site, support in self._bounds.items():
            self.weights.at[site].copy_(inside(self.weights.at[site], support))

    def of_posterior(self, index: Tensor, rate: float = 0.0, strength: float = 1.0) -> Tensor:
        """Compute the slope of the mean log-likelihood and the log prior per row, transformed where units are centred.
        The next call overwrites it.

        rate: of a step by it, which then does not go past the mode of a narrow prior: what the prior says is taken
            where the step ends (an implicit step, of Normal priors exactly).
        strength: what a Gaussian prior of W counts.
        """
        slope = self._add_prior(self.of_likelihood(index), strength)
        if self._stiffness is not None and rate and strength * self._stiffest > _STIFF:
            slope.div_(1 + rate * strength * self._stiffness)
        if self.centred:
            self._centre()
        return slope

    def _add_prior(self, slope: Tensor, strength: float) -> Tensor:
        theta = self.weights.theta
        if self._prior is not None:
            shift, precision = self._prior
            if strength != 1.0:
                factor = 1 + (strength - 1) * self._of_weights
                shift, precision = factor * shift, factor * precision
            slope.add_(shift).addcmul_(precision, theta, value=-1)
            for site, (part, value, matrix) in self._coupled.items():
                part.sub_(multiply_last(matrix, value), alpha=strength if site == "weight" else 1.0)
            return slope
        with torch.enable_grad():
            at = theta.clone().requires_grad_()
            return slope.add_(torch.autograd.grad(self.model.log_prior(self.weights.parts(at)), at)[0] / self._rows)

    def _centre(self) -> None:
        """Turn the slope in W, b and c, in place, into the step that ascent in the parameters of centred units makes: a
        symmetric map, so that both vanish at the same weights."""
        (weight, visible, bias), mu, level = self._parts, self._mu, self.level
        assert level is not None
        weight.addr_(level, visible, alpha=-1).addr_(bias, mu, alpha=-1)
        bias.addmv_(weight, mu, alpha=-1)
        visible.addmv_(weight.mT, level, alpha=-1)
        level.lerp_(self._expected, 0.01)

    def of_likelihood(self, index: Tensor) -> Tensor:
        """Compute the slope of the mean log-likelihood of a minibatch in all weights. The next call overwrites it."""
        data, times = self.completed[index], None
        if self.rows.missing is not None:
            *_, (data, _) = completions(self.model, self.weights.at, self.rows.select(index), 1, self.generator, data)
            self.completed[index] = data
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
        self._expected = expected / number
        self.slope /= number
        return self.slope


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
