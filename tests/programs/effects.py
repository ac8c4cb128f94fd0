"""A number of every row, of whatever support: spike and slab, random effects, frailties, skills, shares."""

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
from ppl_models.likelihoods import Poisson
from tests.programs._draw import drawn

FEATURES: Mapping[str, str] = {"feature": "num_features"}


@dataclass(frozen=True, kw_only=True, eq=False)
class SpikeAndSlab(RowModel):
    """A signal that a row has or not, of a strength of its own: x_nj ~ Normal(on_n amount_n shape_j, noise)."""

    num_features: int

    axes: ClassVar[Mapping[str, str]] = FEATURES
    sites: ClassVar[Mapping[str, Site]] = {
        "chance": Site("global", (), support=constraints.unit_interval),
        "shape": Site("global", ("feature",), support=constraints.real),
        "noise": Site("global", (), support=constraints.positive),
        "on": Site("latent", (), ("row",), constraints.boolean),
        "amount": Site("latent", (), ("row",), constraints.real),
        "x": Site("observed", ("feature",), ("row",), constraints.real),
    }

    def default_priors(self) -> dict[str, Any]:
        others = {"shape": dist.Normal(0.0, 1.0), "noise": dist.LogNormal(-0.5, 0.5)}
        return {**super().default_priors(), **others}

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        on = pyro.sample("on", dist.Bernoulli(site["chance"]))
        return on * pyro.sample("amount", dist.Normal(1.0, 1.5))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        mean = local.unsqueeze(-1) * site["shape"]
        return dist.Normal(mean, site["noise"].expand(mean.shape))

    @classmethod
    def example(cls) -> Example:
        truth = {"chance": 0.5, "shape": [1.0, -0.8, 0.5, 0.2], "noise": 0.6}
        return drawn(cls(num_features=4), truth, 60, seed=28, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class RandomEffects(RowModel):
    """Counts with the log rate bias_j + effect_n, effect_n ~ Normal(0, spread)."""

    num_features: int

    likelihood: ClassVar[Any] = Poisson()
    axes: ClassVar[Mapping[str, str]] = FEATURES
    sites: ClassVar[Mapping[str, Site]] = {
        "bias": Site("global", ("feature",), support=constraints.real),
        "spread": Site("global", (), support=constraints.positive),
        "effect": Site("latent", (), ("row",), constraints.real),
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"bias": dist.Normal(0.0, 2.0), "spread": dist.LogNormal(-0.5, 0.5)}

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        return pyro.sample("effect", dist.Normal(0.0, site["spread"]))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return dist.Poisson((site["bias"] + local.unsqueeze(-1)).exp())

    @classmethod
    def example(cls) -> Example:
        return drawn(cls(num_features=4), {"bias": [0.5, 1.0, 0.0, -0.5], "spread": 0.8}, 60, seed=29, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Frailty(RowModel):
    """Counts of rows that are all more or all less at risk: x_nj ~ Poisson(frailty_n rate_j), frailty ~ Gamma(a, a)."""

    num_features: int

    likelihood: ClassVar[Any] = Poisson()
    axes: ClassVar[Mapping[str, str]] = FEATURES
    sites: ClassVar[Mapping[str, Site]] = {
        "rate": Site("global", ("feature",), support=constraints.positive),
        "shape": Site("global", (), support=constraints.positive),
        "frailty": Site("latent", (), ("row",), constraints.positive),
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"rate": dist.Gamma(1.0, 0.3), "shape": dist.Gamma(3.0, 1.0)}

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        return pyro.sample("frailty", dist.Gamma(site["shape"], site["shape"]))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return dist.Poisson(local.unsqueeze(-1) * site["rate"])

    @classmethod
    def example(cls) -> Example:
        return drawn(cls(num_features=4), {"rate": [1.0, 2.0, 3.0, 0.5], "shape": 2.0}, 60, seed=30, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Speeds(ComponentModel):
    """Times that tasks take, each row at a speed of its own: x_nj ~ Exponential(speed_n pace_j); a vector of one."""

    sites: ClassVar[Mapping[str, Site]] = {
        "pace": Site("global", ("feature",), support=constraints.positive),
        "speed": Site("latent", ("component",), ("row",), constraints.positive),
        "x": Site("observed", ("feature",), ("row",), constraints.positive),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"pace": dist.LogNormal(0.0, 1.0), "speed": dist.LogNormal(0.0, 0.6)}

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return dist.Exponential(local * site["pace"])

    @classmethod
    def example(cls) -> Example:
        return drawn(cls(num_components=1, num_features=4), {"pace": [0.5, 1.0, 2.0, 1.5]}, 60, seed=31)


@dataclass(frozen=True, kw_only=True, eq=False)
class Skill(RowModel):
    """Answers of people who know, with a probability of their own, or guess among four."""

    num_features: int

    axes: ClassVar[Mapping[str, str]] = FEATURES
    sites: ClassVar[Mapping[str, Site]] = {
        "ease": Site("global", ("feature",), support=constraints.unit_interval),
        "skill": Site("latent", (), ("row",), constraints.unit_interval),
        "x": Site("observed", ("feature",), ("row",), constraints.boolean),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"ease": dist.Beta(2.0, 1.0), "skill": dist.Beta(2.0, 1.5)}

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        knows = local.unsqueeze(-1) * site["ease"]
        return dist.Bernoulli(knows + (1 - knows) * 0.25)

    @classmethod
    def example(cls) -> Example:
        return drawn(cls(num_features=6), {"ease": [0.95, 0.9, 0.8, 0.6, 0.5, 0.9]}, 60, seed=32, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Shares(ComponentModel):
    """Answers from a mixture of tables with shares of every row's own, a point of the simplex."""

    num_categories: int

    axes: ClassVar[Mapping[str, str]] = {**ComponentModel.axes, "category": "num_categories"}
    sites: ClassVar[Mapping[str, Site]] = {
        "table": Site("global", ("component", "feature", "category"), support=constraints.simplex),
        "share": Site("latent", ("component",), ("row",), constraints.simplex),
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "share": dist.Dirichlet(torch.tensor([1.2, 0.8, 1.0]))}

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return dist.Categorical(torch.tensordot(local, site["table"], 1))

    @classmethod
    def example(cls) -> Example:
        first, second, third = [0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]
        table = [[first, first, second, third], [second, third, first, second], [third, second, third, third]]
        return drawn(
            cls(num_components=3, num_features=4, num_categories=3), {"table": table}, 50, seed=33, missing=0.1
        )
