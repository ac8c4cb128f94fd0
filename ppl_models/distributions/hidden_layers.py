"""Hidden layers as one event: the one of a harmonium, and all of a sigmoid belief network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import softplus

from ppl_models.distributions.basic import Law, Shape, all_codes
from ppl_models.distributions.energy import Energy


class Harmonium(Law):
    """The hidden layer h of a harmonium as ONE event; the visible one is summed out: p(h) = w(h) / Z.

    energy: its parameters; with rows of their own (``times``) the batch shape is (N,). log_z: log Z, where it is known.
    Enumerable where h is binary. Draws are exact where log Z is; elsewhere those of a Gibbs sampler.
    """

    def __init__(self, energy: Energy, *, log_z: Tensor | None = None):
        self.energy, self._log_z = energy, log_z
        super().__init__(energy.hidden_bias.shape[:-1], energy.weight.shape[-2:-1], validate_args=False)

    @property
    def support(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return constraints.independent(constraints.boolean if self.energy.is_binary else constraints.real, 1)

    @property
    def has_enumerate_support(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.energy.is_binary

    @property
    def log_z(self) -> Tensor:
        if self._log_z is None:
            self._log_z = self.energy.log_partition()
        return self._log_z

    def log_prob(self, value: Tensor) -> Tensor:
        flat = value.ndim == 1
        log_z = self.log_z if self.energy.times is not None else self.log_z.unsqueeze(-1)
        found = self.energy.log_weight_of_hidden(value.unsqueeze(0) if flat else value) - log_z
        found = found.squeeze(-1) if flat else found
        return found.expand(np.broadcast_shapes(found.shape, self.batch_shape))

    def enumerate_support(self, expand: bool = True) -> Tensor:
        codes = self.energy.codes.view(-1, *[1] * len(self.batch_shape), self.event_shape[0])
        return codes.expand(-1, *self.batch_shape, -1) if expand else codes

    @property
    def mean(self) -> Tensor:
        if self.energy.closed_form:
            found = self.energy.gaussian()[1]
        else:
            found = self.energy.hidden_expectation()
        return found.expand(*self.batch_shape, -1)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with torch.no_grad():
            shape = self._extended_shape(sample_shape)
            if self.energy.times is None:
                return self.energy.sampled_hidden(shape[:-1].numel()).reshape(shape)
            many = torch.Size(sample_shape).numel()
            drawn = [self.energy.sampled_hidden(len(self.energy.times)) for _ in range(many)]
            return torch.stack(drawn).reshape(shape)


class SigmoidBelief(Law):
    """Binary layers h_0, ..., h_M, each given the one above, as ONE event of all their units, enumerable:

        p(h_0) = prod Bernoulli(sigmoid(b_0)),    p(h_l | h_{l-1}) = prod Bernoulli(sigmoid(b_l + W_l'h_{l-1}))

    biases: b_l (n_l,), from the top. weights: W_l (n_{l-1}, n_l), from the second layer on: one less.
    """

    support: ClassVar[Any] = constraints.independent(constraints.boolean, 1)
    has_enumerate_support = True

    def __init__(self, biases: Sequence[Tensor], weights: Sequence[Tensor], *, batch_shape: Shape = ()):
        self.biases, self.weights = tuple(biases), tuple(weights)
        size = sum(bias.shape[-1] for bias in self.biases)
        super().__init__(torch.Size(batch_shape), torch.Size([size]), validate_args=False)

    def layers(self, value: Tensor) -> tuple[Tensor, ...]:
        """The parts (..., n_l) of values (..., sum of n_l)."""
        return value.split([bias.shape[-1] for bias in self.biases], -1)

    def log_prob(self, value: Tensor) -> Tensor:
        layers = self.layers(value)
        found = _log_bernoulli(self.biases[0], layers[0])
        for bias, weight, above, own in zip(self.biases[1:], self.weights, layers[:-1], layers[1:], strict=True):
            found = found + _log_bernoulli(bias + above @ weight, own)
        return found.expand(np.broadcast_shapes(found.shape, self.batch_shape))

    def enumerate_support(self, expand: bool = True) -> Tensor:
        like = self.biases[0]
        codes = all_codes(self.event_shape[0], dtype=like.dtype, device=like.device)
        codes = codes.view(-1, *[1] * len(self.batch_shape), self.event_shape[0])
        return codes.expand(-1, *self.batch_shape, -1) if expand else codes

    @property
    def mean(self) -> Tensor:
        """The mean, by summing over all values."""
        codes = self.enumerate_support(expand=False).reshape(-1, *self.event_shape)
        chance = type(self)(self.biases, self.weights).log_prob(codes).exp()
        return (chance @ codes).expand(*self.batch_shape, -1)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with torch.no_grad():
            shape = self._extended_shape(sample_shape)[:-1]
            layers = [torch.bernoulli(torch.sigmoid(self.biases[0]).expand(*shape, -1))]
            for bias, weight in zip(self.biases[1:], self.weights, strict=True):
                layers.append(torch.bernoulli(torch.sigmoid(bias + layers[-1] @ weight)))
            return torch.cat(layers, -1)


def _log_bernoulli(odds: Tensor, value: Tensor) -> Tensor:
    return (value * odds - softplus(odds)).sum(-1)
