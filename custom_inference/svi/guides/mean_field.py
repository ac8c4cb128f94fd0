"""Mean field: the coordinates of each row's latent independent, each row with parameters of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import constraints

from custom_inference.core.guide import Globals, Guide
from custom_inference.svi.guides.continuous import continuous_family
from custom_inference.svi.guides.graphs import LabellingGuide, MembershipGuide
from custom_inference.svi.guides.protocol import LocalGuide
from ppl_models import Data, Model
from ppl_models.distributions import BernoulliVector


@dataclass(frozen=True, kw_only=True)
class MeanField(Guide):
    """Of a binary code, Q(s_n) = prod_i Bernoulli(lambda_ni).

    In VariationalEM by coordinate ascent, with E[log(1 - e^{-a})] of NOCA evaluated to a known accuracy; in SVI with
    lambda as constrained per-row parameters. Continuous latents get, in SVI, a Dirichlet (memberships) or independent
    normals (scores) a row.

    Of a graph's nodes, in SVI: blocks independent, Q = prod_i Cat(phi_i), or a Dirichlet a membership.
    """

    name: ClassVar[str] = "mean_field"

    def bind(
        self, model: Model, data: Data, *, globals_: Globals = "delta", init: dict[str, Tensor] | None = None
    ) -> LocalGuide:
        if not model.rows_are_independent:
            kind = MembershipGuide if model.has_continuous_locals else LabellingGuide
            graph: Any = model
            return kind(graph, data, globals_, init)
        kind = ContinuousMeanFieldGuide if model.has_continuous_locals else MeanFieldGuide
        return kind(model, data, globals_, init)


class MeanFieldGuide(LocalGuide):
    """lambda (N, K) as a Pyro parameter; starts at 1/2 give no direction, so at slightly spread values."""

    def __init__(self, model: Model, data: Data, globals_: Globals, init: dict[str, Tensor] | None):
        super().__init__(model, data, globals_, init)
        start = 0.2 + 0.1 * torch.rand(len(data), self.num_bits).to(data.x)
        self.source_mean: Any = PyroParam(start, constraint=constraints.unit_interval)

    def local_distribution(self, x: Tensor, mask: Tensor | None, index: Tensor, params: dict[str, Tensor]) -> Any:
        return BernoulliVector(self.source_mean[index])


class ContinuousMeanFieldGuide(LocalGuide):
    """The family's unconstrained parameters of every row, (N, P), as a Pyro parameter.

    With ``sparse_gradient`` the gradient of a minibatch is a sparse tensor of its rows.
    """

    def __init__(self, model: Model, data: Data, globals_: Globals, init: dict[str, Tensor] | None):
        super().__init__(model, data, globals_, init)
        size, self.distribution, start, analytic = continuous_family(model, data)
        self.analytic = self.analytic or analytic
        self.local_parameters: Any = PyroParam(start + 0.1 * torch.randn(len(data), size).to(start))

    def local_distribution(self, x: Tensor, mask: Tensor | None, index: Tensor, params: dict[str, Tensor]) -> Any:
        if self.sparse_gradient:
            return self.distribution(torch.nn.functional.embedding(index, self.local_parameters, sparse=True))
        return self.distribution(self.local_parameters[index])
