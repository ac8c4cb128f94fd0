"""Programs of one's own whose statements have Python's numbers in them: these are of torch's default type, which need
not be that of the data."""

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
from ppl_models.core.sites import Site
from ppl_models.distributions import BernoulliVector


@dataclass(frozen=True, kw_only=True, eq=False)
class Flags(ComponentModel):
    """Counts of rows with two kinds of events, each of which happens or does not.

    f_nk ~ Bernoulli(.5),    x_nj | f_n ~ Poisson(.5 + sum_k f_nk rate_kj)
    """

    sites: ClassVar[Mapping[str, Site]] = {
        "rate": Site("global", ("component", "feature"), support=constraints.independent(constraints.positive, 2)),
        "flag": Site("latent", ("component",), plates=("row",), support=constraints.boolean),
        "x": Site("observed", ("feature",), plates=("row",), support=constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"rate": dist.Gamma(2.0, 0.5)}

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        chance = dist.Bernoulli(0.5).probs
        return pyro.sample("flag", BernoulliVector(chance.expand(self.num_components)))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return dist.Poisson(0.5 + local @ site["rate"])

    @classmethod
    def example(cls) -> Example:
        generator = torch.Generator().manual_seed(0)
        rate = torch.tensor([[5.0, 4.0, 0.1, 0.1], [0.1, 0.1, 6.0, 3.0]])
        flag = torch.randint(2, (30, 2), generator=generator).to(rate)
        x = torch.poisson(0.5 + flag @ rate, generator=generator)
        return Example.of(cls(num_components=2, num_features=4), x, {"rate": rate, "flag": flag})


@dataclass(frozen=True, kw_only=True, eq=False)
class Ability(ComponentModel):
    """Item response: a person n with the ability t_n answers item j rightly or not.

    t_n ~ N(0, 1),    p(x_nj = 1 | t_n) = 1 / (1 + exp(-(slope_j t_n + offset_j)))
    """

    sites: ClassVar[Mapping[str, Site]] = {
        "slope": Site("global", ("feature",), support=constraints.greater_than(0)),
        "offset": Site("global", ("feature",), support=constraints.real_vector),
        "score": Site("latent", ("component",), plates=("row",), support=constraints.real_vector),
        "x": Site("observed", ("feature",), plates=("row",), support=constraints.boolean),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"slope": dist.LogNormal(0.0, 0.5), "offset": dist.Normal(0.0, 1.0)}

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        return pyro.sample("score", dist.Normal(0.0, 1.0).expand([self.num_components]).to_event(1))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return dist.Bernoulli(logits=local.sum(-1, keepdim=True) * site["slope"] + site["offset"])

    @classmethod
    def example(cls) -> Example:
        generator = torch.Generator().manual_seed(0)
        score, offset = torch.randn(40, 1, generator=generator), torch.linspace(-1, 1, 5)
        x = torch.rand(40, 5, generator=generator) < torch.sigmoid(score + offset)
        truth = {"slope": torch.ones(5), "offset": offset, "score": score}
        return Example.of(cls(num_components=1, num_features=5), x, truth)
