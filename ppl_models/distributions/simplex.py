"""Distributions over the simplex: Dirichlets on a face of it, sticks that are broken one after the other, points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.distributions.basic import Law, Shape


class FaceDirichlet(Law):
    """A Dirichlet whose concentrations may be 0: these coordinates are 0, the others have the Dirichlet of theirs.

        log p(s) = log Gamma(a.) + sum over a_k > 0 of (a_k - 1) log s_k - log Gamma(a_k)

    It is the law of the other coordinates of a Dirichlet of all, divided by their sum.

    concentration: a (..., K), at least 0, one of a row above 0.
    """

    arg_constraints: ClassVar[Any] = {"concentration": constraints.independent(constraints.nonnegative, 1)}
    support: ClassVar[Any] = constraints.simplex
    own_axes: ClassVar[Mapping[str, int]] = {"concentration": 1}

    def __init__(self, concentration: Tensor, validate_args: bool | None = None):
        self.concentration = concentration
        super().__init__(concentration.shape[:-1], concentration.shape[-1:], validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    @property
    def variance(self) -> Tensor:
        mean, total = self.mean, self.concentration.sum(-1, keepdim=True)
        return mean * (1 - mean) / (total + 1)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with torch.no_grad():
            allowed = self.concentration > 0
            if bool(allowed.all()):
                return dist.Dirichlet(self.concentration, validate_args=False).sample(sample_shape)
            drawn = dist.Dirichlet(self.concentration.clamp_min(_TINY), validate_args=False).sample(sample_shape)
            drawn = torch.where(allowed, drawn.clamp_min(torch.finfo(drawn.dtype).tiny), 0.0)
            return drawn / drawn.sum(-1, keepdim=True)

    def log_prob(self, value: Tensor) -> Tensor:
        powers, normaliser = powers_of(self.concentration)
        return normaliser + torch.xlogy(powers, torch.where(self.concentration > 0, value, 1.0)).sum(-1)


def powers_of(concentration: Tensor) -> tuple[Tensor, Tensor]:
    """What the density of a Dirichlet (..., K) on the face of the places whose a_k is above 0 consists of:
    log p(s) = sum_k powers_k log s_k + normaliser, powers (..., K) and normaliser (...)."""
    allowed = concentration > 0
    normaliser = torch.lgamma(concentration.sum(-1)) - torch.lgamma(torch.where(allowed, concentration, 1.0)).sum(-1)
    return torch.where(allowed, concentration - 1, 0.0), normaliser


#: Concentrations from which next to nothing is drawn.
_TINY = 1e-30


class StickBreaking(Law):
    """Weights of K places from a unit stick of which every place breaks off a share of what is left:

        v_k ~ Beta(1, c),  k < K,   v_K = 1,   b_k = v_k prod_{j<k} (1 - v_j)

    As K grows it is the law of the weights of a Dirichlet process, GEM(c) (Sethuraman 1994; Ishwaran & James 2001).
    With r_k = b_k + ... + b_K, what is left before place k, its density on the simplex is

        c^(K-1) b_K^(c-1) prod_{1<k<K} 1 / r_k

    concentration: c (...). size: K.
    """

    arg_constraints: ClassVar[Any] = {"concentration": constraints.positive, "size": constraints.dependent}
    support: ClassVar[Any] = constraints.simplex
    own_axes: ClassVar[Mapping[str, int]] = {"concentration": 0}

    def __init__(self, concentration: float | Tensor, size: int, validate_args: bool | None = None):
        self.concentration, self.size = torch.as_tensor(concentration), int(size)
        super().__init__(self.concentration.shape, torch.Size([self.size]), validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        kept = (self.concentration / (1 + self.concentration)).unsqueeze(-1)
        place = torch.arange(self.size, device=kept.device)
        share = kept**place
        return torch.where(place < self.size - 1, share * (1 - kept), share)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        c = self.concentration.unsqueeze(-1).expand(*shape[:-1], self.size - 1)
        left = dist.Beta(c, torch.ones_like(c)).rsample().clamp(_EDGE, 1 - _EDGE)  # 1 - v
        rest = torch.cat([torch.ones_like(c[..., :1]), left.cumprod(-1)], -1) if self.size > 1 else c.new_ones(shape)
        return torch.cat([rest[..., :-1] * (1 - left), rest[..., -1:]], -1) if self.size > 1 else rest

    has_rsample = True

    def log_prob(self, value: Tensor) -> Tensor:
        value = value.clamp_min(torch.finfo(value.dtype).tiny)
        left = value.flip(-1).cumsum(-1).flip(-1)[..., 1:-1]
        last = (self.concentration - 1) * value[..., -1].log() if self.size > 1 else 0.0
        return (self.size - 1) * self.concentration.log() + last - left.log().sum(-1)


#: Sticks are kept this far from 0 and 1.
_EDGE = 1e-7


class PointMass(Law):
    """All mass on one point of the simplex: log p is 0 there (with respect to the mass, up to rounding), else -inf.

    value: (..., K).
    """

    support: ClassVar[Any] = constraints.simplex
    own_axes: ClassVar[Mapping[str, int]] = {"value": 1}

    def __init__(self, value: Tensor):
        self.value = value
        super().__init__(value.shape[:-1], value.shape[-1:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        return self.value

    @property
    def variance(self) -> Tensor:
        return torch.zeros_like(self.value)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        return self.value.detach().expand(self._extended_shape(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        near = (value - self.value).abs() <= torch.finfo(self.value.dtype).eps ** 0.5
        return torch.where(near.all(-1), 0.0, -torch.inf).to(self.value)
