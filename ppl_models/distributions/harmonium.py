"""One layer of a binary harmonium, the other summed out: what makes a restricted Boltzmann machine a program.

    p(u, w) = exp(u'a + w'b + u'W w) / Z           u in {0, 1}^K, w in {0, 1}^D
    p(u)    = exp(u'a + sum_j softplus(b_j + (W'u)_j)) / Z = exp(-F(u)) / Z
    log Z   = logsumexp over the codes of the smaller layer of what the sum over the other leaves

Source 002, section 27.7 (eqs. 27.99-27.102; 27.114-27.117, whose printed form lacks the logarithm and the sign).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import softplus

from ppl_models.distributions.basic import all_codes


def log_weight(weight: Tensor, bias: Tensor, other_bias: Tensor, codes: Tensor) -> Tensor:
    """-F(u) = u'a + sum_j softplus(b_j + (W'u)_j), (...,), of codes u (..., K)."""
    return (codes * bias).sum(-1) + softplus(other_bias + codes @ weight).sum(-1)


def log_partition(weight: Tensor, bias: Tensor, other_bias: Tensor) -> Tensor:
    """log Z, by the 2^min(K, D) codes of the smaller layer. Raises CapacityError where these are too many."""
    if weight.shape[-1] < weight.shape[-2]:
        weight, bias, other_bias = weight.mT, other_bias, bias
    codes = all_codes(weight.shape[-2], dtype=weight.dtype, device=weight.device)
    return torch.logsumexp(log_weight(weight, bias, other_bias, codes), -1)


class Harmonium(TorchDistribution):
    """Codes u of one layer of a binary harmonium as ONE event, enumerable over its 2^K values; log Z is exact.

    Parameters
    ----------
    weight: W (K, D). bias: a (K,), of this layer. other_bias: b (D,), of the layer that is summed out.
    """

    arg_constraints: ClassVar[Any] = {}
    support: ClassVar[Any] = constraints.independent(constraints.boolean, 1)
    has_enumerate_support = True

    def __init__(self, weight: Tensor, bias: Tensor, other_bias: Tensor, *, batch_shape: Any = (), log_z: Any = None):
        self.weight, self.bias, self.other_bias = weight, bias, other_bias
        self.log_z = log_partition(weight, bias, other_bias) if log_z is None else log_z
        super().__init__(torch.Size(batch_shape), weight.shape[-2:-1], validate_args=False)

    def expand(self, batch_shape, _instance=None):
        del _instance
        return type(self)(self.weight, self.bias, self.other_bias, batch_shape=batch_shape, log_z=self.log_z)

    def log_prob(self, value: Tensor) -> Tensor:
        found = log_weight(self.weight, self.bias, self.other_bias, value) - self.log_z
        return found.expand(torch.broadcast_shapes(found.shape, self.batch_shape))

    def enumerate_support(self, expand: bool = True) -> Tensor:
        codes = all_codes(self.event_shape[0], dtype=self.weight.dtype, device=self.weight.device)
        codes = codes.view(-1, *[1] * len(self.batch_shape), self.event_shape[0])
        return codes.expand(-1, *self.batch_shape, -1) if expand else codes

    @property
    def mean(self) -> Tensor:
        codes = self.enumerate_support(expand=False).reshape(-1, *self.event_shape)
        return (self.log_prob_of(codes).exp() @ codes).expand(*self.batch_shape, -1)

    def log_prob_of(self, codes: Tensor) -> Tensor:
        """log p(u) of codes (M, K), without the batch."""
        return log_weight(self.weight, self.bias, self.other_bias, codes) - self.log_z

    def sample(self, sample_shape=torch.Size()) -> Tensor:  # noqa: B008
        """Exact: a code of the smaller layer by its probability; this layer given it, where that is the other."""
        with torch.no_grad():
            shape = self._extended_shape(sample_shape)
            weight, bias, other_bias = self.weight, self.bias, self.other_bias
            swapped = weight.shape[-1] < weight.shape[-2]
            if swapped:
                weight, bias, other_bias = weight.mT, other_bias, bias
            codes = all_codes(weight.shape[-2], dtype=weight.dtype, device=weight.device)
            chance = torch.softmax(log_weight(weight, bias, other_bias, codes), -1)
            drawn = codes[torch.multinomial(chance, max(1, shape[:-1].numel()), replacement=True)]
            if swapped:
                drawn = torch.bernoulli(torch.sigmoid(other_bias + drawn @ weight))
            return drawn[: shape[:-1].numel()].reshape(shape)
