"""Further engines of discriminative categorical PCA: Boehning's bound, Laplace's estimate, the evidence, points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.families.factors.discriminative import Discriminative, DiscriminativeVariational, InputRows
from custom_inference.families.factors.newton import FactorGaussian, FactorLaplace, FactorMap
from custom_inference.families.factors.quadrature import FactorQuadrature


@dataclass(frozen=True, kw_only=True)
class DiscriminativeGaussian(Discriminative, FactorGaussian):
    """Boehning's bound; of Gaussian outputs exact."""


@dataclass(frozen=True, kw_only=True)
class DiscriminativeLaplace(Discriminative, FactorLaplace):
    """Laplace's estimate of the evidence."""


@dataclass(frozen=True, kw_only=True)
class DiscriminativeExact(Discriminative, FactorQuadrature):
    """Gaussian outputs in closed form, with experts too; others by quadrature, with one or two components."""

    @property
    def _closed(self) -> DiscriminativeVariational:
        return DiscriminativeVariational()

    def feasible(self, model: Any) -> bool:
        return model.outputs == "gaussian" or (model.num_experts == 1 and super().feasible(model))

    def check(self, model: Any, rows: InputRows) -> None:
        """Check the model as the other engines do; raises CapacityError for quadrature over more than two
        components."""
        super().check(model, rows)
        if model.outputs != "gaussian":
            self.require_few(model.local_shape[0], rows)

    def e_step(
        self, model: Any, params: Params, rows: InputRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        engine: Any = self._closed if model.outputs == "gaussian" else super()
        return engine.e_step(model, params, rows, warm, temperature=temperature, generator=generator)

    def log_evidence(self, model: Any, params: Params, rows: InputRows) -> Tensor:
        return self.e_step(model, params, rows).bound

    def posterior(self, model: Any, params: Params, rows: InputRows, step: EStep | None = None) -> Any:
        if model.outputs != "gaussian":
            return super().posterior(model, params, rows, step)
        found = self._closed.e_step(model, params, rows) if step is None else step
        return self._closed.posterior(model, params, rows, found)


@dataclass(frozen=True, kw_only=True)
class DiscriminativeMap(Discriminative, FactorMap):
    """Point estimates of the scores beside those of the globals."""
