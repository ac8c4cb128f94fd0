"""Animals that are there or not, many or few, and are seen at some of the visits alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models import ComponentModel, Data, Example
from ppl_models.core.row_models import RowModel
from ppl_models.core.sites import Site
from ppl_models.data.covariates import covariates_of
from ppl_models.data.matrix import as_values_of
from ppl_models.likelihoods import Bernoulli, Poisson
from tests.programs._draw import drawn


@dataclass(frozen=True, kw_only=True, eq=False)
class Occupancy(RowModel):
    """Sites are occupied with the log-odds base + slope elevation; what is there is detected at visit j with p_j.

    The visits are a plate on the left of that of the rows, so that the program's x is (visits, rows).
    """

    num_visits: int

    likelihood: ClassVar[Any] = Bernoulli()
    axes: ClassVar[Mapping[str, str]] = {"feature": "num_visits"}
    sites: ClassVar[Mapping[str, Site]] = {
        "base": Site("global", support=constraints.real),
        "slope": Site("global", support=constraints.real),
        "detection": Site("global", ("feature",), support=constraints.unit_interval),
        "occupied": Site("latent", (), ("row",), constraints.boolean),
        "elevation": Site("given", (), ("row",), constraints.real),
        "x": Site("observed", ("feature",), ("row",), constraints.boolean),
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "base": dist.Normal(0.0, 2.0), "slope": dist.Normal(0.0, 2.0)}

    def __call__(
        self,
        x: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        batch_size: int | None = None,
        num_rows: int = 1,
        elevation: Tensor | None = None,
    ) -> Tensor:
        site = self.sample_globals(like=x)
        total = num_rows if x is None else len(x)
        if elevation is None:
            elevation = torch.zeros(total).to(site["base"])
        with pyro.plate("data", total, subsample_size=batch_size, dim=-1) as index:
            occupied = pyro.sample("occupied", dist.Bernoulli(logits=site["base"] + site["slope"] * elevation[index]))
            with pyro.plate("visits", self.num_visits, dim=-2):
                detected = dist.Bernoulli(occupied * site["detection"].unsqueeze(-1))
                if mask is not None:
                    detected = detected.mask(mask[index].T)
                return pyro.sample("x", detected, obs=None if x is None else x[index].T)

    def as_data(self, value: Tensor) -> Tensor:
        """(N, visits) from (visits, N)."""
        return value.mT

    def prepare(self, data: Any, *, mask: Any = None, dtype=None, device=None, elevation: Any = None) -> Data:
        found = data.others.get("elevation") if isinstance(data, Data) and elevation is None else elevation
        checked = as_values_of(self.likelihood, data, mask=mask, dtype=dtype, device=device, site="x")
        if found is None:
            found = torch.zeros(len(checked))
        column = covariates_of(torch.as_tensor(found).reshape(-1, 1), checked, 1)
        return Data(x=checked.x, mask=checked.mask, coords=checked.coords, others={"elevation": column[:, 0]})

    @classmethod
    def example(cls) -> Example:
        truth = {"base": 1.0, "slope": 1.2, "detection": [0.4, 0.6, 0.5, 0.7]}
        return drawn(cls(num_visits=4), truth, 70, seed=7, missing=0.15, elevation=torch.linspace(-1.5, 1.5, 70))


@dataclass(frozen=True, kw_only=True, eq=False)
class Abundance(RowModel):
    """Counts of repeated visits: of at most ``largest`` animals N_n ~ Binomial(largest, present) are there, and each
    is caught at visit j with probability catch_j, x_nj ~ Binomial(N_n, catch_j)."""

    num_visits: int
    largest: int = 9

    likelihood: ClassVar[Any] = Poisson()
    axes: ClassVar[Mapping[str, str]] = {"feature": "num_visits"}

    @property
    def sites(self) -> Mapping[str, Site]:
        return {
            "present": Site("global", (), support=constraints.unit_interval),
            "catch": Site("global", ("feature",), support=constraints.unit_interval),
            "abundance": Site("latent", (), ("row",), constraints.integer_interval(0, self.largest)),
            "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
        }

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        return pyro.sample("abundance", dist.Binomial(self.largest, site["present"]))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return dist.Binomial(local.unsqueeze(-1), site["catch"], validate_args=False)

    @classmethod
    def example(cls) -> Example:
        return drawn(cls(num_visits=4), {"present": 0.5, "catch": [0.3, 0.5, 0.6, 0.4]}, 50, seed=8, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class TruncatedAbundance(ComponentModel):
    """The same of a Poisson number of animals, cut off where it is improbable, with signs that are no animals too:
    x_nj ~ Poisson(N_n sign_j + noise), N_n = 0..K-1."""

    sites: ClassVar[Mapping[str, Site]] = {
        "expected": Site("global", (), support=constraints.positive),
        "sign": Site("global", ("feature",), support=constraints.positive),
        "abundance": Site("latent", (), plates=("row",), choice="component"),
        "x": Site("observed", ("feature",), plates=("row",), support=constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"expected": dist.Gamma(2.0, 1.0), "sign": dist.Gamma(2.0, 2.0)}

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        number = torch.arange(self.num_components).to(site["expected"])
        logits = number * site["expected"].log() - torch.lgamma(number + 1)
        return pyro.sample("abundance", dist.Categorical(logits=logits))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return dist.Poisson(local.unsqueeze(-1) * site["sign"] + 0.1)

    @classmethod
    def example(cls) -> Example:
        truth = {"expected": 1.8, "sign": [1.5, 0.7, 1.0, 2.0]}
        return drawn(cls(num_components=8, num_features=4), truth, 50, seed=9)


@dataclass(frozen=True, kw_only=True, eq=False)
class Seasons(RowModel):
    """Sites that are occupied or not in every season, occupied_0, occupied_1, ...: what is there persists, what is
    empty is colonised; visit j of a season, of which the columns follow each other, detects with p_j what is there."""

    num_seasons: int
    num_visits: int

    likelihood: ClassVar[Any] = Bernoulli()
    axes: ClassVar[Mapping[str, str]] = {"visit": "num_visits"}

    @property
    def sites(self) -> Mapping[str, Site]:
        seasons = range(self.num_seasons)
        return {
            "first": Site("global", support=constraints.unit_interval),
            "colonised": Site("global", support=constraints.unit_interval),
            "extinct": Site("global", support=constraints.unit_interval),
            "detection": Site("global", ("visit",), support=constraints.unit_interval),
            **{f"occupied_{t}": Site("latent", (), ("row",), constraints.boolean) for t in seasons},
            "x": Site("observed", ("feature",), ("row",), constraints.boolean),
        }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "detection": dist.Beta(2.0, 2.0)}

    def draw_locals(self, site: Mapping[str, Tensor]) -> list[Tensor]:
        chance, found = site["first"], []
        for t in range(self.num_seasons):
            found.append(pyro.sample(f"occupied_{t}", dist.Bernoulli(chance)))
            chance = found[-1] * (1 - site["extinct"]) + (1 - found[-1]) * site["colonised"]
        return found

    def entries(self, site: Mapping[str, Tensor], local: list[Tensor]) -> Any:
        occupied = torch.stack(torch.broadcast_tensors(*local), -1).unsqueeze(-1)
        return dist.Bernoulli((occupied * site["detection"]).flatten(-2))

    @classmethod
    def example(cls) -> Example:
        truth = {"first": 0.6, "colonised": 0.2, "extinct": 0.3, "detection": [0.5, 0.7, 0.4]}
        return drawn(cls(num_seasons=5, num_visits=3), truth, 80, seed=39, missing=0.15)
