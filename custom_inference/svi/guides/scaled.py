"""Coordinates of guides in the units of the data: steps of a size then are as long for any units.

A model says by ``site_units`` about which centre and in which unit values of its sites are. Guides search for
(value - centre) / unit, and of covariances S = D S' D, D diagonal with the units, for S'.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pyro.distributions import TorchDistribution
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import biject_to, constraints, transform_to
from torch.distributions.constraints import Constraint
from torch.distributions.transforms import ComposeTransform, Transform

from ppl_models import Model
from ppl_models.core.priors import support_of
from ppl_models.distributions.normals import InUnits
from ppl_models.distributions.positive_definite import LogCholesky


class _MatrixInUnits(constraints.Constraint):
    """Positive definite matrices (K, K) in units (K,) of their rows and columns."""

    event_dim = 2  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    def __init__(self, unit: Tensor):
        self.unit = unit
        super().__init__()

    def check(self, value: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return constraints.positive_definite.check(value)


class _Congruence(Transform):
    """S' -> D S' D."""

    domain = constraints.positive_definite
    codomain = constraints.positive_definite
    bijective = True

    def __init__(self, unit: Tensor):
        super().__init__()
        self.unit = unit

    def _call(self, x: Tensor) -> Tensor:
        return self.unit.unsqueeze(-1) * x * self.unit

    def _inverse(self, y: Tensor) -> Tensor:
        return y / self.unit / self.unit.unsqueeze(-1)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the log Jacobian determinant over the K (K + 1) / 2 free entries."""
        del y
        return ((len(self.unit) + 1) * self.unit.log().sum()).expand(x.shape[:-2])


for _registry in (biject_to, transform_to):
    _registry.register(_MatrixInUnits, lambda one: ComposeTransform([LogCholesky(), _Congruence(one.unit)]))


class _Seen(TorchDistribution):
    """A distribution with another constraint for its support, of the same values."""

    arg_constraints: ClassVar[Any] = {}

    def __init__(self, base: TorchDistribution, support: Constraint):
        self.base, self.coordinates = base, support
        super().__init__(base.batch_shape, base.event_shape, validate_args=False)

    @property
    def support(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.coordinates

    @property
    def has_rsample(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.base.has_rsample

    @property
    def mean(self) -> Tensor:
        return self.base.mean

    def expand(self, batch_shape: torch.Size, _instance: TorchDistribution | None = None) -> Any:
        return type(self)(self.base.expand(batch_shape), self.coordinates)

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        return self.base.sample(sample_shape)

    def rsample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        return self.base.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return self.base.log_prob(value)


class InUnitsOf(Messenger):
    """The program whose unobserved sites have the coordinates that the model's ``site_units`` say."""

    def __init__(self, model: Model, like: Tensor):
        super().__init__()
        self.units = {site: tuple(part.to(like) for part in parts) for site, parts in model.site_units.items()}

    def _pyro_sample(self, msg: Any) -> None:
        parts = self.units.get(msg["name"])
        if parts is None or msg["is_observed"]:
            return
        law, support = msg["fn"], support_of(msg["fn"])
        if support in (constraints.real, constraints.real_vector):
            msg["fn"] = _Seen(law, constraints.independent(InUnits(*parts), law.event_dim))
        elif support is constraints.positive_definite:
            msg["fn"] = _Seen(law, _MatrixInUnits(parts[1]))
