"""Factors of rows: two real numbers behind probits, and behind ordered answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models import ComponentModel, Example
from ppl_models.core.row_models import RowModel
from ppl_models.core.sites import Site
from ppl_models.likelihoods import Bernoulli
from tests.programs._draw import drawn


@dataclass(frozen=True, kw_only=True, eq=False)
class ProbitFactors(ComponentModel):
    """P(x_nj = 1) = Phi(bias_j + z_n . weight_j); the factors z have a prior that can be exchanged."""

    likelihood: ClassVar[Any] = Bernoulli()
    sites: ClassVar[Mapping[str, Site]] = {
        "weight": Site("global", ("component", "feature"), support=constraints.real),
        "bias": Site("global", ("feature",), support=constraints.real),
        "factor": Site("latent", ("component",), ("row",), constraints.real_vector),
        "x": Site("observed", ("feature",), ("row",), constraints.boolean),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"weight": dist.Normal(0.0, 1.0), "bias": dist.Normal(0.0, 1.0), "factor": dist.Normal(0.0, 1.0)}

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return dist.Bernoulli(torch.special.ndtr(site["bias"] + local @ site["weight"]))

    @classmethod
    def example(cls) -> Example:
        weight = [[1.2, 0.9, 0.7, 0.0, 0.0, -0.5], [0.0, 0.3, -0.6, 1.1, 0.8, 0.6]]
        truth = {"weight": weight, "bias": [0.2, -0.3, 0.0, 0.4, -0.2, 0.1]}
        return drawn(cls(num_components=2, num_features=6), truth, 50, seed=21, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class OrdinalFactors(RowModel):
    """Ordered answers by known steps on two scales, each number a site of its own: a first and a second factor."""

    num_features: int
    cutpoints: tuple[float, ...] = (-1.0, 0.5)

    axes: ClassVar[Mapping[str, str]] = {"feature": "num_features"}
    sites: ClassVar[Mapping[str, Site]] = {
        "loading": Site("global", ("feature",), support=constraints.positive),
        "twist": Site("global", ("feature",), support=constraints.real),
        "first": Site("latent", (), ("row",), constraints.real),
        "second": Site("latent", (), ("row",), constraints.real),
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"loading": dist.LogNormal(0.0, 0.5), "twist": dist.Normal(0.0, 1.0)}

    def draw_locals(self, site: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        first = pyro.sample("first", dist.Normal(0.0, 1.0))
        return first, pyro.sample("second", dist.Normal(0.5 * first, 0.8))

    def entries(self, site: Mapping[str, Tensor], local: tuple[Tensor, Tensor]) -> Any:
        first, second = (one.unsqueeze(-1) for one in local)
        predictor = site["loading"] * first + site["twist"] * second
        return dist.OrderedLogistic(predictor, torch.tensor(self.cutpoints).to(predictor))

    @classmethod
    def example(cls) -> Example:
        truth = {"loading": [1.5, 1.0, 0.8, 1.2, 0.6], "twist": [0.0, 1.0, -0.8, 1.5, -1.2]}
        return drawn(cls(num_features=5), truth, 50, seed=22, missing=0.1)
