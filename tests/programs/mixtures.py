"""Mixtures whose entries have distributions that no supplied model has."""

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
from ppl_models.likelihoods import Poisson
from tests.programs._draw import drawn

ROW = ("row",)


@dataclass(frozen=True, kw_only=True, eq=False)
class ZeroInflated(ComponentModel):
    """Counts that are 0 with probability gate_j, else Poisson."""

    likelihood: ClassVar[Any] = Poisson()
    sites: ClassVar[Mapping[str, Site]] = {
        "weight": Site("global", ("component",), support=constraints.simplex),
        "rate": Site("global", ("component", "feature"), support=constraints.positive),
        "gate": Site("global", ("feature",), support=constraints.unit_interval),
        "membership": Site("latent", ("component",), plates=ROW, support=constraints.one_hot),
        "x": Site("observed", ("feature",), plates=ROW, support=constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "rate": dist.Gamma(1.0, 0.1)}

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        return pyro.sample("membership", dist.OneHotCategorical(site["weight"]))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        rate = local @ site["rate"]
        return dist.ZeroInflatedPoisson(rate, gate=site["gate"].expand(rate.shape))

    @classmethod
    def example(cls) -> Example:
        truth = {
            "weight": [0.6, 0.4],
            "gate": [1 / 3] * 5,
            "rate": [[5.0, 4.0, 6.0, 1.0, 0.5], [1.0, 0.5, 2.0, 4.0, 7.0]],
        }
        return drawn(cls(num_components=2, num_features=5), truth, 70, seed=10, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class StudentMixture(ComponentModel):
    """Real rows with outliers: Student's t of four degrees of freedom about the class's place."""

    sites: ClassVar[Mapping[str, Site]] = {
        "weight": Site("global", ("component",), support=constraints.simplex),
        "place": Site("global", ("component", "feature"), support=constraints.real),
        "width": Site("global", ("component", "feature"), support=constraints.positive),
        "kind": Site("latent", (), plates=ROW, choice="component"),
        "x": Site("observed", ("feature",), plates=ROW, support=constraints.real),
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "place": dist.Normal(0.0, 5.0), "width": dist.LogNormal(0.0, 1.0)}

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        return pyro.sample("kind", dist.Categorical(site["weight"]))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return dist.StudentT(4.0, site["place"][local], site["width"][local])

    @classmethod
    def example(cls) -> Example:
        truth = {
            "weight": [0.5, 0.3, 0.2],
            "place": [[0.0, 0.0, 0.0], [3.0, -2.0, 1.0], [-3.0, 2.0, 2.0]],
            "width": [[0.5, 0.7, 0.5], [1.0, 0.5, 0.6], [0.7, 0.8, 0.4]],
        }
        return drawn(cls(num_components=3, num_features=3), truth, 80, seed=11, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class VonMisesMixture(ComponentModel):
    """Directions, as angles: von Mises about the class's direction."""

    sites: ClassVar[Mapping[str, Site]] = {
        "weight": Site("global", ("component",), support=constraints.simplex),
        "direction": Site("global", ("component", "feature"), support=constraints.real),
        "concentration": Site("global", ("component",), support=constraints.positive),
        "kind": Site("latent", ("component",), plates=ROW, support=constraints.one_hot),
        "x": Site("observed", ("feature",), plates=ROW, support=constraints.real),
    }

    def default_priors(self) -> dict[str, Any]:
        others = {"direction": dist.Normal(0.0, 2.0), "concentration": dist.Gamma(2.0, 0.5)}
        return {**super().default_priors(), **others}

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        return pyro.sample("kind", dist.OneHotCategorical(site["weight"]))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return dist.VonMises(local @ site["direction"], (local @ site["concentration"]).unsqueeze(-1))

    @classmethod
    def example(cls) -> Example:
        truth = {"weight": [0.6, 0.4], "direction": [[0.0, 1.0, -1.5], [1.5, -1.0, 0.5]], "concentration": [4.0, 2.0]}
        return drawn(cls(num_components=2, num_features=3), truth, 70, seed=12, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class BetaBinomialMixture(ComponentModel):
    """Numbers of successes in ten draws that vary more than a binomial's."""

    sites: ClassVar[Mapping[str, Site]] = {
        "weight": Site("global", ("component",), support=constraints.simplex),
        "mean": Site("global", ("component", "feature"), support=constraints.unit_interval),
        "precision": Site("global", (), support=constraints.positive),
        "kind": Site("latent", ("component",), plates=ROW, support=constraints.one_hot),
        "x": Site("observed", ("feature",), plates=ROW, support=constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "precision": dist.Gamma(2.0, 0.2)}

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        return pyro.sample("kind", dist.OneHotCategorical(site["weight"]))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        mean = local @ site["mean"]
        return dist.BetaBinomial(mean * site["precision"], (1 - mean) * site["precision"], total_count=10)

    @classmethod
    def example(cls) -> Example:
        truth = {"weight": [0.6, 0.4], "precision": 8.0, "mean": [[0.2, 0.3, 0.7, 0.8], [0.7, 0.6, 0.3, 0.5]]}
        return drawn(cls(num_components=2, num_features=4), truth, 70, seed=13, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class NegativeBinomialMixture(ComponentModel):
    """Counts that vary more than a Poisson's, each class with a shape of its own."""

    likelihood: ClassVar[Any] = Poisson()
    sites: ClassVar[Mapping[str, Site]] = {
        "weight": Site("global", ("component",), support=constraints.simplex),
        "mean": Site("global", ("component", "feature"), support=constraints.positive),
        "shape": Site("global", ("component",), support=constraints.positive),
        "kind": Site("latent", (), plates=ROW, choice="component"),
        "x": Site("observed", ("feature",), plates=ROW, support=constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "mean": dist.Gamma(1.0, 0.1), "shape": dist.LogNormal(1.0, 1.0)}

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        return pyro.sample("kind", dist.Categorical(site["weight"]))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        mean, shape = site["mean"][local], site["shape"][local].unsqueeze(-1)
        return dist.GammaPoisson(shape, shape / mean)

    @classmethod
    def example(cls) -> Example:
        truth = {"weight": [0.6, 0.4], "shape": [3.0, 6.0], "mean": [[8.0, 2.0, 1.0, 3.0], [1.0, 4.0, 9.0, 2.0]]}
        return drawn(cls(num_components=2, num_features=4), truth, 70, seed=14, missing=0.1)


class Clipped(dist.TorchDistribution):
    """A normal that no instrument shows beyond ``limit``: min(y, limit), y ~ Normal(loc, scale)."""

    arg_constraints: ClassVar[Any] = {"loc": constraints.real, "scale": constraints.positive}
    support: ClassVar[Any] = constraints.real

    def __init__(self, loc: Tensor, scale: Tensor, limit: float, validate_args: bool | None = None):
        self.normal, self.limit = dist.Normal(loc, scale, validate_args=False), limit
        super().__init__(self.normal.batch_shape, validate_args=validate_args)

    @property
    def loc(self) -> Tensor:
        return self.normal.loc

    @property
    def scale(self) -> Tensor:
        return self.normal.scale

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        return Clipped(self.loc.expand(batch_shape), self.scale.expand(batch_shape), self.limit, validate_args=False)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        return self.normal.sample(sample_shape).clamp(max=self.limit)

    def log_prob(self, value: Tensor) -> Tensor:
        beyond = torch.special.log_ndtr((self.loc - self.limit) / self.scale)
        return torch.where(value < self.limit, self.normal.log_prob(value), beyond)


@dataclass(frozen=True, kw_only=True, eq=False)
class CensoredMixture(ComponentModel):
    """Log times of two classes of rows, none of which is followed beyond ``limit``."""

    limit: float = 2.0

    sites: ClassVar[Mapping[str, Site]] = {
        "weight": Site("global", ("component",), support=constraints.simplex),
        "place": Site("global", ("component", "feature"), support=constraints.real),
        "width": Site("global", ("component",), support=constraints.positive),
        "kind": Site("latent", ("component",), plates=ROW, support=constraints.one_hot),
        "x": Site("observed", ("feature",), plates=ROW, support=constraints.real),
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "place": dist.Normal(0.0, 3.0), "width": dist.LogNormal(0.0, 0.5)}

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        return pyro.sample("kind", dist.OneHotCategorical(site["weight"]))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        place = local @ site["place"]
        return Clipped(place, (local @ site["width"]).unsqueeze(-1).expand(place.shape), self.limit)

    @classmethod
    def example(cls) -> Example:
        truth = {"weight": [0.6, 0.4], "place": [[0.0, 1.0, -1.0], [2.5, 1.8, 1.2]], "width": [0.7, 1.0]}
        return drawn(cls(num_components=2, num_features=3), truth, 70, seed=15, missing=0.1)
