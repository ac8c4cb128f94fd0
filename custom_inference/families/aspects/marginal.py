"""What the engines share that integrate the memberships of the aspect Bernoulli model out.

Given the expected numbers of ones and zeros that each aspect drew, on_kt and off_kt, the M step is the mode of a Beta:
a_kt = (on_kt + a - 1) / (on_kt + off_kt + a + b - 2). The Dirichlet prior of the memberships is any.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from custom_inference.core.capabilities import Accelerated, Checked
from custom_inference.core.engine import Engine, EStep, Params
from custom_inference.families.common.beta import FLOOR, beta_mode, beta_parameters
from custom_inference.families.common.counts import CountRows
from ppl_models import Data, MethodError, Model


@dataclass(frozen=True, kw_only=True)
class AspectMarginal(Checked, Accelerated, Engine):
    """``rows``, ``check``, ``initial`` and ``m_step`` of the engines."""

    accelerate = "squarem"

    def alpha(self, model: Model, like: Tensor) -> Tensor:
        """The concentration of the memberships' prior, (K,). Raises MethodError where that is not a Dirichlet."""
        prior = model.priors["membership"]
        if not isinstance(prior, torch.distributions.Dirichlet):
            name = type(prior).__name__
            raise MethodError(f"closed-form steps need a Dirichlet prior for 'membership', not {name}; use SVI or NUTS")
        return prior.concentration.to(like).expand(model.local_shape)

    def rows(self, model: Model, data: Data) -> CountRows:
        return CountRows.of(data, model.settings()["total_count"])

    def check(self, model: Model, rows: CountRows) -> None:
        """Raises MethodError for priors without a closed-form update."""
        self.alpha(model, rows.like)
        beta_parameters(model, "aspect_probability", torch.ones(1))

    def initial(self, model: Model, rows: CountRows, generator: torch.Generator) -> Params:
        """Aspects uniform in [0.25, 0.75]."""
        noise = torch.rand(model.shapes["aspect_probability"], generator=generator, dtype=torch.float64)
        return {"aspect_probability": (0.25 + 0.5 * noise).to(rows.like)}

    def m_step(self, model: Model, params: Params, step: EStep, rows: CountRows) -> Params:
        counts, prior = step.statistics, beta_parameters(model, "aspect_probability", params["aspect_probability"])
        return {"aspect_probability": beta_mode(counts["on"], counts["on"] + counts["off"], prior, floor=FLOOR)}
