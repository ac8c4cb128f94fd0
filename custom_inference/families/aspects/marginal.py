"""What the engines share that integrate the memberships of the aspect Bernoulli model out.

Given the expected numbers of ones and zeros that each aspect drew, on_kt and off_kt, the M step is the mode of a Beta:
a_kt = (on_kt + a - 1) / (on_kt + off_kt + a + b - 2). The Dirichlet prior of the memberships is any.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from custom_inference.core.engine import Engine, EStep, Params
from custom_inference.families.common.beta import FLOOR, beta_mode, beta_parameters
from custom_inference.families.common.counts import CountRows
from ppl_models import Data, MethodError, Model


@dataclass(frozen=True, kw_only=True)
class AspectMarginal(Engine):
    """total_count and the prior's concentration (one number a component; empty: all 1) are set by ``for_model``."""

    total_count: int = 1
    concentration: tuple[float, ...] = ()

    accelerate = "squarem"

    def for_model(self, model: Model) -> Self:
        """Raises MethodError where the membership's prior is not a Dirichlet."""
        prior = model.priors["membership"]
        if not isinstance(prior, torch.distributions.Dirichlet):
            name = type(prior).__name__
            raise MethodError(f"closed-form steps need a Dirichlet prior for 'membership', not {name}; use SVI or NUTS")
        concentration = tuple(prior.concentration.flatten().tolist())
        return replace(self, total_count=model.settings()["total_count"], concentration=concentration)

    def alpha(self, params: Params) -> Tensor:
        """The concentration, (K,)."""
        aspect = params["aspect_probability"]
        return aspect.new_tensor(self.concentration or [1.0] * len(aspect))

    def rows(self, data: Data) -> CountRows:
        return CountRows.of(data, self.total_count)

    def check(self, model: Model, rows: CountRows) -> None:
        """Raises MethodError for priors without a closed-form update."""
        self.for_model(model)
        del rows
        beta_parameters(model, "aspect_probability", torch.ones(1))

    def initial(self, model: Model, rows: CountRows, generator: torch.Generator) -> Params:
        """Aspects uniform in [0.25, 0.75]."""
        noise = torch.rand(model.shapes["aspect_probability"], generator=generator, dtype=torch.float64)
        return {"aspect_probability": (0.25 + 0.5 * noise).to(rows.like)}

    def m_step(self, model: Model, params: Params, step: EStep, rows: CountRows) -> Params:
        counts, prior = step.statistics, beta_parameters(model, "aspect_probability", params["aspect_probability"])
        return {"aspect_probability": beta_mode(counts["on"], counts["on"] + counts["off"], prior, floor=FLOOR)}
