"""Binary causes of what is seen: noisy AND, noisy MAX, and a network of two layers."""

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
from ppl_models.distributions import BernoulliVector
from ppl_models.likelihoods import Bernoulli
from tests.programs._draw import drawn


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisyAnd(ComponentModel):
    """An entry is on unless a cause that is present forbids it: P(x_nj = 1) = base_j prod_k (1 - s_nk veto_kj)."""

    likelihood: ClassVar[Any] = Bernoulli()
    sites: ClassVar[Mapping[str, Site]] = {
        "presence": Site("global", ("component",), support=constraints.unit_interval),
        "veto": Site("global", ("component", "feature"), support=constraints.unit_interval),
        "base": Site("global", ("feature",), support=constraints.unit_interval),
        "source": Site("latent", ("component",), ("row",), constraints.boolean),
        "x": Site("observed", ("feature",), ("row",), constraints.boolean),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"presence": dist.Beta(2.0, 2.0), "veto": dist.Beta(1.0, 1.0), "base": dist.Beta(9.0, 1.0)}

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        return pyro.sample("source", BernoulliVector(site["presence"]))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return dist.Bernoulli(site["base"] * (1 - local.unsqueeze(-1) * site["veto"]).prod(-2))

    @classmethod
    def example(cls) -> Example:
        veto = [[0.9, 0.8, 0.1, 0.1, 0.1, 0.1], [0.1, 0.1, 0.9, 0.8, 0.1, 0.1], [0.1, 0.4, 0.1, 0.1, 0.9, 0.8]]
        truth = {"presence": [0.4, 0.3, 0.5], "veto": veto, "base": [0.95, 0.9, 0.95, 0.9, 0.95, 0.9]}
        return drawn(cls(num_components=3, num_features=6), truth, 60, seed=23, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisyMax(ComponentModel):
    """The grade of an entry is the largest of what the causes that are present contribute, and of a leak.

    P(x_nj <= c | s_n) = P(leak_j <= c) prod_k P(contribution_kj <= c)^s_nk. The causes are a Bernoulli event.
    """

    num_grades: int

    axes: ClassVar[Mapping[str, str]] = {**ComponentModel.axes, "grade": "num_grades"}
    sites: ClassVar[Mapping[str, Site]] = {
        "presence": Site("global", ("component",), support=constraints.unit_interval),
        "contribution": Site("global", ("component", "feature", "grade"), support=constraints.simplex),
        "leak": Site("global", ("feature", "grade"), support=constraints.simplex),
        "cause": Site("latent", ("component",), ("row",), constraints.boolean),
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        falling = torch.linspace(4.0, 1.0, self.num_grades)
        return {**super().default_priors(), "presence": dist.Beta(2.0, 2.0), "leak": dist.Dirichlet(falling)}

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        return pyro.sample("cause", dist.Bernoulli(site["presence"]).to_event(1))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        cause = local.unsqueeze(-1).unsqueeze(-1)
        below = site["leak"].cumsum(-1) * (site["contribution"].cumsum(-1) ** cause).prod(-3)
        zero = torch.zeros_like(below[..., :1])
        return dist.Categorical(below - torch.cat([zero, below[..., :-1]], -1))

    @classmethod
    def example(cls) -> Example:
        low, middle, high = [0.9, 0.07, 0.03], [0.2, 0.6, 0.2], [0.1, 0.2, 0.7]
        truth = {
            "presence": [0.4, 0.5],
            "contribution": [[high, high, low, middle, low], [low, middle, high, low, high]],
            "leak": [low] * 5,
        }
        return drawn(cls(num_components=2, num_features=5, num_grades=3), truth, 60, seed=24, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoLayers(RowModel):
    """A sigmoid belief network whose layers are two sites, the causes of causes first."""

    num_top: int
    num_middle: int
    num_features: int

    likelihood: ClassVar[Any] = Bernoulli()
    axes: ClassVar[Mapping[str, str]] = {"top": "num_top", "middle": "num_middle", "feature": "num_features"}
    sites: ClassVar[Mapping[str, Site]] = {
        "chance": Site("global", ("top",), support=constraints.unit_interval),
        "upper": Site("global", ("top", "middle"), support=constraints.real),
        "lower": Site("global", ("middle", "feature"), support=constraints.real),
        "bias": Site("global", ("feature",), support=constraints.real),
        "top": Site("latent", ("top",), ("row",), constraints.boolean),
        "middle": Site("latent", ("middle",), ("row",), constraints.boolean),
        "x": Site("observed", ("feature",), ("row",), constraints.boolean),
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), **{site: dist.Normal(0.0, 3.0) for site in ("upper", "lower", "bias")}}

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        top = pyro.sample("top", BernoulliVector(site["chance"]))
        return pyro.sample("middle", BernoulliVector(torch.sigmoid(top @ site["upper"] - 1.0)))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return dist.Bernoulli(logits=site["bias"] + local @ site["lower"])

    @classmethod
    def example(cls) -> Example:
        truth = {
            "chance": [0.5, 0.4],
            "upper": [[3.0, 2.0, -1.0], [-1.0, 1.0, 3.0]],
            "lower": [[3.0, 3.0, 0.0, 0.0, -1.0], [0.0, 2.0, 3.0, 0.0, 0.0], [-1.0, 0.0, 0.0, 3.0, 3.0]],
            "bias": [-1.0, -2.0, -1.5, -1.0, -1.0],
        }
        return drawn(cls(num_top=2, num_middle=3, num_features=5), truth, 60, seed=25, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class CausesOfCauses(RowModel):
    """Noisy ORs in two layers: P(m_nk = 1) = 1 - (1 - spark_k) prod_l (1 - t_nl upper_lk), and of x by m alike."""

    num_top: int
    num_middle: int
    num_features: int

    likelihood: ClassVar[Any] = Bernoulli()
    axes: ClassVar[Mapping[str, str]] = {"top": "num_top", "middle": "num_middle", "feature": "num_features"}
    sites: ClassVar[Mapping[str, Site]] = {
        "chance": Site("global", ("top",), support=constraints.unit_interval),
        "upper": Site("global", ("top", "middle"), support=constraints.unit_interval),
        "spark": Site("global", ("middle",), support=constraints.unit_interval),
        "lower": Site("global", ("middle", "feature"), support=constraints.unit_interval),
        "leak": Site("global", ("feature",), support=constraints.unit_interval),
        "top": Site("latent", ("top",), ("row",), constraints.boolean),
        "middle": Site("latent", ("middle",), ("row",), constraints.boolean),
        "x": Site("observed", ("feature",), ("row",), constraints.boolean),
    }

    def default_priors(self) -> dict[str, Any]:
        rare = dist.Beta(1.0, 5.0)
        return {**super().default_priors(), "spark": rare, "leak": rare, "lower": dist.Beta(2.0, 2.0)}

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        top = pyro.sample("top", BernoulliVector(site["chance"]))
        off = (1 - site["spark"]) * (1 - top.unsqueeze(-1) * site["upper"]).prod(-2)
        return pyro.sample("middle", BernoulliVector(1 - off))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return dist.Bernoulli(1 - (1 - site["leak"]) * (1 - local.unsqueeze(-1) * site["lower"]).prod(-2))

    @classmethod
    def example(cls) -> Example:
        truth = {
            "chance": [0.5, 0.4],
            "upper": [[0.9, 0.6, 0.1], [0.1, 0.5, 0.9]],
            "spark": [0.1, 0.05, 0.1],
            "lower": [[0.9, 0.8, 0.1, 0.1, 0.1], [0.1, 0.7, 0.9, 0.1, 0.1], [0.1, 0.1, 0.1, 0.9, 0.8]],
            "leak": [0.05, 0.1, 0.05, 0.1, 0.05],
        }
        return drawn(cls(num_top=2, num_middle=3, num_features=5), truth, 60, seed=38, missing=0.1)
