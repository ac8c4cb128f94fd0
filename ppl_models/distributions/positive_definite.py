"""Positive definite matrices: inverse Wishart, scaled correlations, and coordinates for any prior over them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, LKJCholesky, LogNormal, biject_to, constraints
from torch.distributions.transforms import Transform

from ppl_models.distributions.basic import Law, Shape, UnexpandedLaw


class LogCholesky(Transform):
    """R^{K (K + 1) / 2} -> S = L L', L lower triangular with a positive diagonal, whose logarithms are coordinates.

        log |dS / dz| = K log 2 + sum_i (K - i + 2) log L_ii,    i = 1..K

    torch has no bijection onto positive definite matrices: with this one NUTS and automatic guides take such sites.
    """

    domain = constraints.independent(constraints.real, 1)
    codomain = constraints.positive_definite
    bijective = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogCholesky)

    def __hash__(self) -> int:
        return hash(LogCholesky)

    def _call(self, x: Tensor) -> Tensor:
        size = _size(x.shape[-1])
        i, j = torch.tril_indices(size, size, device=x.device)
        # One product with a fixed 0/1 tensor puts the coordinates at their places, whatever the batch.
        place = x.new_zeros(x.shape[-1], size * size)
        place[torch.arange(x.shape[-1]), i * size + j] = 1.0
        factor = (torch.where(i == j, x.exp(), x) @ place).unflatten(-1, (size, size))
        return factor @ factor.mT

    def _inverse(self, y: Tensor) -> Tensor:
        i, j = torch.tril_indices(y.shape[-1], y.shape[-1], device=y.device)
        flat = torch.linalg.cholesky(y)[..., i, j]
        return torch.where(i == j, flat.clamp_min(torch.finfo(y.dtype).tiny).log(), flat)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        size = y.shape[-1]
        i, j = torch.tril_indices(size, size, device=x.device)
        power = size - torch.arange(size, dtype=y.dtype, device=y.device) + 1.0
        return size * math.log(2.0) + (power * x[..., i == j]).sum(-1)

    def forward_shape(self, shape: Shape) -> torch.Size:
        return torch.Size((*shape[:-1], *[_size(shape[-1])] * 2))

    def inverse_shape(self, shape: Shape) -> torch.Size:
        return torch.Size((*shape[:-2], shape[-1] * (shape[-1] + 1) // 2))


def _size(coordinates: int) -> int:
    return (math.isqrt(8 * coordinates + 1) - 1) // 2


biject_to.register(type(constraints.positive_definite), lambda constraint: LogCholesky())


class InverseWishart(Law):
    """Over positive definite matrices S (K, K): density proportional to |S|^-(df + K + 1)/2 exp(-tr(scale S^-1) / 2).

    The conjugate prior of a Gaussian's covariance. Mode scale / (df + K + 1); mean scale / (df - K - 1), df > K + 1.

    df: degrees of freedom, above K - 1, a number or (...,). scale: (..., K, K), positive definite.
    """

    arg_constraints: ClassVar[Any] = {"df": constraints.positive, "scale": constraints.positive_definite}
    support: ClassVar[Any] = constraints.positive_definite
    own_axes: ClassVar[Mapping[str, int]] = {"df": 0, "scale": 2}
    has_rsample = True

    def __init__(self, df: float | Tensor, scale: Tensor, validate_args: bool | None = None):
        self.scale = scale
        self.df = torch.as_tensor(df, dtype=scale.dtype, device=scale.device).expand(scale.shape[:-2])
        super().__init__(scale.shape[:-2], scale.shape[-2:], validate_args=validate_args)
        if bool((self.df <= scale.shape[-1] - 1).any()):
            raise ValueError(f"df = {float(self.df.min()):g}, expected more than K - 1 = {scale.shape[-1] - 1}")

    @property
    def mode(self) -> Tensor:
        return self.scale / (self.df + self.event_shape[-1] + 1)[..., None, None]

    @property
    def mean(self) -> Tensor:
        """NaN where df is not above K + 1."""
        below = self.df - self.event_shape[-1] - 1
        return self.scale / torch.where(below > 0, below, torch.nan)[..., None, None]

    def log_prob(self, value: Tensor) -> Tensor:
        size, half = self.event_shape[-1], self.df / 2
        factor, own = torch.linalg.cholesky(value), torch.linalg.cholesky(self.scale)
        trace = torch.linalg.solve_triangular(factor, own, upper=False).square().sum((-2, -1))
        constant = half * (_log_det(own) - size * math.log(2.0)) - torch.mvlgamma(half, size)
        return constant - (half + (size + 1) / 2) * _log_det(factor) - trace / 2

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw S = C (A A')^-1 C' by Bartlett's decomposition: scale = C C', A A' ~ Wishart(df, I), A upper."""
        shape = self._extended_shape(sample_shape)
        degrees = self.df[..., None] - torch.arange(shape[-1] - 1, -1, -1).to(self.scale)
        diagonal = torch.distributions.Chi2(degrees.expand(shape[:-1])).rsample().sqrt()
        noise = torch.randn(shape, dtype=self.scale.dtype, device=self.scale.device)
        upper = noise.triu(1) + torch.diag_embed(diagonal)
        own = torch.linalg.cholesky(self.scale).expand(shape)
        factor = torch.linalg.solve_triangular(upper.mT, own, upper=False, left=False)
        return factor @ factor.mT


class ScaledCorrelation(UnexpandedLaw):
    """Covariances S = diag(s) R diag(s) (K, K) of independent standard deviations s and correlations R ~ LKJ.

        log p(S) = log p(R) + sum_k log p(s_k) - K sum_k log s_k - K log 2

    size: K, at least 2. concentration: of the LKJ distribution; 1: flat over correlation matrices, more: closer to I.
    scale: the distribution of every s_k, of positive numbers; LogNormal(0, 1) by default. Point estimates need one
        that vanishes at 0 faster than s^K; half-Cauchy and others are for samplers, as their mode is a singular S.
    """

    support: ClassVar[Any] = constraints.positive_definite

    def __init__(
        self,
        size: int,
        concentration: float = 1.0,
        scale: Distribution | None = None,
        validate_args: bool | None = None,
    ):
        if size < 2:
            raise ValueError(f"size = {size}, expected at least 2")
        self.concentration, self.scale = concentration, LogNormal(0.0, 1.0) if scale is None else scale
        super().__init__(torch.Size(), torch.Size((size, size)), validate_args=validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        size = self.event_shape[-1]
        own = value.diagonal(dim1=-2, dim2=-1).sqrt()
        factor = torch.linalg.cholesky(value / own.unsqueeze(-1) / own.unsqueeze(-2))
        lkj = LKJCholesky(size, torch.as_tensor(self.concentration).to(value), validate_args=False)
        # LKJ's density is of the factor: that of R has the volume of R = L L' divided out.
        power = size - 1 - torch.arange(1, size, dtype=value.dtype, device=value.device)
        correlation = lkj.log_prob(factor) - factor.diagonal(dim1=-2, dim2=-1)[..., 1:].log() @ power
        return correlation + self.scale.log_prob(own).sum(-1) - size * (own.log().sum(-1) + math.log(2.0))

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        size = self.event_shape[-1]
        factor = LKJCholesky(size, torch.as_tensor(float(self.concentration))).sample(torch.Size(sample_shape))
        own: Any = self.scale.sample(torch.Size((*sample_shape, size)))
        scaled = own.unsqueeze(-1) * factor
        return scaled @ scaled.mT


def _log_det(factor: Tensor) -> Tensor:
    """Return log |L L'|."""
    return 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
