"""Points of simplexes of different sizes side by side, padded to the largest: what a point has beyond its own is 0."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Dirichlet, Transform, biject_to, constraints, transform_to
from torch.distributions.kl import register_kl
from torch.nn.functional import logsigmoid, pad

from ppl_models.distributions.basic import Law, Shape
from ppl_models.distributions.simplex import powers_of


class PaddedSimplex(constraints.Constraint):
    """Vectors (..., C) whose first ``sizes`` (...) entries are a point of a simplex, and whose others are 0."""

    event_dim = 1

    def __init__(self, sizes: Tensor, most: int):
        self.sizes, self.most = sizes, most
        super().__init__()

    @property
    def present(self) -> Tensor:
        """Which entries are no padding, bool (..., C)."""
        return present_of(self.sizes, self.most)

    def check(self, value: Tensor) -> Tensor:
        outside = torch.where(self.present, torch.zeros_like(value), value.abs()).sum(-1)
        return constraints.simplex.check(value) & (outside == 0)


def present_of(sizes: Tensor, most: int) -> Tensor:
    """Which of ``most`` places the first ``sizes`` (...) are, bool (..., most)."""
    return torch.arange(most, device=sizes.device) < sizes.unsqueeze(-1)


class PaddedStickBreaking(Transform):
    """Real vectors (..., C - 1) to a padded simplex: the first ``sizes`` - 1 are broken off a stick, as torch's
    ``StickBreakingTransform`` has it, the others have no influence.

    The logarithm of the Jacobian has the density of Normal(0, 1) of these others: as they say nothing, whatever a
    density has beside would be improper, and no sampler nor guide would stay anywhere.
    """

    domain = constraints.real_vector
    bijective = True

    def __init__(self, support: PaddedSimplex, cache_size: int = 0):
        super().__init__(cache_size=cache_size)
        self.support = support

    @property
    def codomain(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.support

    def with_cache(self, cache_size: int = 1) -> PaddedStickBreaking:
        return self if self._cache_size == cache_size else PaddedStickBreaking(self.support, cache_size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PaddedStickBreaking) and torch.equal(self.support.sizes, other.support.sizes)

    def _layout(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Which of the C - 1 sticks are broken, which is the last place (which takes what is left), and log(1 / odds)
        of even shares."""
        sizes, place = self.support.sizes.to(like.device).unsqueeze(-1), torch.arange(self.support.most - 1).to(like)
        return place < sizes - 1, place == sizes - 1, (sizes - 1 - place).clamp(min=1).to(like).log()

    def _call(self, x: Tensor) -> Tensor:
        broken, last, offset = self._layout(x)
        share = torch.where(broken, torch.sigmoid(x - offset), last.to(x))
        left = (1 - share).cumprod(-1)
        return pad(share, [0, 1], value=1) * pad(left, [1, 0], value=1)

    def _inverse(self, y: Tensor) -> Tensor:
        broken, _, offset = self._layout(y)
        tiny = torch.finfo(y.dtype).tiny
        left = (1 - y[..., :-1].cumsum(-1)).clamp(min=torch.finfo(y.dtype).tiny)
        return torch.where(broken, y[..., :-1].clamp(min=tiny).log() - left.log() + offset, 0.0)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        broken, _, offset = self._layout(x)
        moved = x - offset
        own = -moved + logsigmoid(moved) + torch.where(broken, y[..., :-1], 1.0).log()
        return torch.where(broken, own, -0.5 * x.square() - 0.5 * math.log(2 * math.pi)).sum(-1)

    def forward_shape(self, shape: Shape) -> Shape:
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: Shape) -> Shape:
        return (*shape[:-1], shape[-1] - 1)


biject_to.register(PaddedSimplex, PaddedStickBreaking)
transform_to.register(PaddedSimplex, PaddedStickBreaking)


class PaddedDirichlet(Law):
    """Dirichlets of the first ``sizes`` places of C; the others are 0.

    It is the law of these places of a Dirichlet of all, divided by their sum, so that draws are differentiable.

    concentration: (..., C), positive; what it is beyond a row's places has no influence. sizes: (...), whole numbers.
    powers: further powers of the entries in the density: 1 has it in the softmax basis.
    """

    arg_constraints: ClassVar[Any] = {"concentration": constraints.independent(constraints.positive, 1)}
    own_axes: ClassVar[Mapping[str, int]] = {"concentration": 1, "sizes": 0, "present": 1}
    has_rsample = True

    def __init__(self, concentration: Tensor, sizes: Tensor, powers: float = 0.0, validate_args: bool | None = None):
        batch = torch.broadcast_shapes(concentration.shape[:-1], sizes.shape)
        most = concentration.shape[-1]
        self.concentration, self.sizes = concentration.expand(*batch, most), sizes.expand(batch)
        self.powers, self.present = powers, present_of(self.sizes, most)
        super().__init__(batch, torch.Size([most]), validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> PaddedSimplex:  # pyright: ignore[reportIncompatibleMethodOverride]
        return PaddedSimplex(self.sizes, self.concentration.shape[-1])

    @property
    def own(self) -> Tensor:
        """The concentrations, with 0 for the padding."""
        return torch.where(self.present, self.concentration, 0.0)

    @property
    def mean(self) -> Tensor:
        return self.own / self.own.sum(-1, keepdim=True)

    @property
    def variance(self) -> Tensor:
        return self.mean * (1 - self.mean) / (self.own.sum(-1, keepdim=True) + 1)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        whole = torch.where(self.present, self.concentration, 1.0)
        drawn = Dirichlet(whole, validate_args=False).rsample(sample_shape)
        drawn = torch.where(self.present, drawn, 0.0)
        return drawn / drawn.sum(-1, keepdim=True)

    def log_prob(self, value: Tensor) -> Tensor:
        powers, normaliser = powers_of(self.own)
        powers = torch.where(self.present, powers + self.powers, 0.0)
        return normaliser + torch.xlogy(powers, torch.where(self.present, value, 1.0)).sum(-1)


@register_kl(PaddedDirichlet, PaddedDirichlet)
def _divergence(q: PaddedDirichlet, p: PaddedDirichlet) -> Tensor:
    """A place of concentration 1 in both, alone in the padding, would add something: each size by itself."""
    a, b, zero = q.own, p.own, torch.zeros(()).to(q.concentration)
    one, other = (torch.where(q.present, part, 1.0) for part in (a, b))
    total, prior = a.sum(-1), b.sum(-1)
    each = torch.lgamma(other) - torch.lgamma(one)
    each = each + torch.where(q.present, (a - b) * (torch.digamma(one) - torch.digamma(total).unsqueeze(-1)), zero)
    return torch.lgamma(total) - torch.lgamma(prior) + each.sum(-1)
