"""Amortised inference: one network reads a row and returns the probabilities of its bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from custom_inference.guides._families import continuous_family
from custom_inference.guides._protocol import Globals, Guide, LocalGuide
from custom_inference.steps import Steps
from ppl_models import Data, MethodError, Model, _sparse
from ppl_models.distributions import BernoulliVector


@dataclass(frozen=True, kw_only=True)
class Amortized(Guide):
    """Q(s_n) = prod_i Bernoulli(encoder_i(x_n)): an encoder with one hidden layer, for SVI.

    Of continuous latents the encoder gives the parameters of a Dirichlet (memberships) or of normals (scores).

    Missing entries reach the encoder as zeros beside an indicator of what was observed.
    """

    hidden: int = 64
    bound_name: ClassVar[str] = "amortized"

    def steps(self, model: Model) -> Steps:
        raise MethodError("the amortised guide has no closed-form steps; use it in SVI")

    def bind(
        self, model: Model, data: Data, *, globals_: Globals = "delta", init: dict[str, Tensor] | None = None
    ) -> LocalGuide:
        return AmortizedGuide(model, data, globals_, init, self.hidden)


class AmortizedGuide(LocalGuide):
    """(x * observed, observed) -> hidden -> probabilities."""

    def __init__(
        self, model: Model, data: Data, globals_: Globals, init: dict[str, Tensor] | None, hidden: int
    ):
        super().__init__(model, data, globals_, init)
        self.family = continuous_family(model, data) if model.has_continuous_locals else None
        outputs = self.family.num_outputs(model.local_shape[0]) if self.family else self.num_bits
        first, last = torch.nn.Linear(2 * data.num_features, hidden), torch.nn.Linear(hidden, outputs)
        inner = first, torch.nn.Softplus(), last
        self.encoder = torch.nn.Sequential(*inner).to(data.x)

    def local_distribution(self, x: Tensor, mask: Tensor | None, index: Tensor, params: dict[str, Tensor]) -> Any:
        rows = _sparse.dense(_sparse.select_rows(x, index))
        observed = torch.ones_like(rows) if mask is None else mask[index].to(rows)
        logits = self.encoder(torch.cat([rows * observed, observed], -1))
        if self.family is not None:
            return self.family.distribution(logits)
        # Kept off 0 and 1 so that no code has probability zero under the guide.
        return BernoulliVector(torch.sigmoid(logits).clamp(1e-6, 1 - 1e-6))
