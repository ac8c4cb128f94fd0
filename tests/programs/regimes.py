"""Rows in time order: one change of level, or a hidden chain of two states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models import Example
from ppl_models.core.row_models import RowModel
from ppl_models.core.sites import Site
from ppl_models.likelihoods import Poisson
from tests.programs._draw import drawn


@dataclass(frozen=True, kw_only=True, eq=False)
class ChangePoint(RowModel):
    """Normal columns about one level until the row's change, about another from there on."""

    num_times: int

    axes: ClassVar[Mapping[str, str]] = {"time": "num_times"}
    sites: ClassVar[Mapping[str, Site]] = {
        "weight": Site("global", ("time",), support=constraints.simplex),
        "before": Site("global", (), support=constraints.real),
        "after": Site("global", (), support=constraints.real),
        "noise": Site("global", (), support=constraints.positive),
        "change": Site("latent", (), ("row",), choice="time"),
        "x": Site("observed", ("time",), ("row",), constraints.real),
    }

    def default_priors(self) -> dict[str, Any]:
        level = dist.Normal(0.0, 3.0)
        smooth = dist.Dirichlet(2 * torch.ones(self.num_times))
        return {"weight": smooth, "before": level, "after": level, "noise": dist.LogNormal(0.0, 0.5)}

    def __call__(
        self, x: Tensor | None = None, *, mask: Tensor | None = None, batch_size: int | None = None, num_rows: int = 1
    ) -> Tensor:
        site = self.sample_globals(like=x)
        with pyro.plate("data", num_rows if x is None else len(x), subsample_size=batch_size) as index:
            change = pyro.sample("change", dist.Categorical(site["weight"]))
            late = torch.arange(self.num_times) >= change.unsqueeze(-1)
            level = torch.where(late, site["after"], site["before"])
            column = dist.Normal(level, site["noise"])
            if mask is not None:
                column = column.mask(mask[index])
            return pyro.sample("x", column.to_event(1), obs=None if x is None else x[index])

    @classmethod
    def example(cls) -> Example:
        weight = [0.1, 0.1, 0.15, 0.25, 0.2, 0.2]
        truth = {"weight": weight, "before": -0.5, "after": 1.0, "noise": 0.8}
        return drawn(cls(num_times=6), truth, 60, seed=26, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoStateChain(RowModel):
    """Counts of every time in one of two states, each a site: state_0, state_1, ... with state_t given the one before.

    switch: P(state_t = 1) after state 0, after state 1.
    """

    num_times: int
    num_states: int = 2

    likelihood: ClassVar[Any] = Poisson()
    axes: ClassVar[Mapping[str, str]] = {"feature": "num_times", "state": "num_states"}

    @property
    def sites(self) -> Mapping[str, Site]:
        states = {f"state_{t}": Site("latent", (), ("row",), constraints.boolean) for t in range(self.num_times)}
        return {
            "start": Site("global", (), support=constraints.unit_interval),
            "switch": Site("global", ("state",), support=constraints.unit_interval),
            "rate": Site("global", ("state",), support=constraints.positive),
            **states,
            "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
        }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "rate": dist.Gamma(2.0, 0.5)}

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        chance, states = site["start"], []
        for t in range(self.num_times):
            state = pyro.sample(f"state_{t}", dist.Bernoulli(chance))
            states.append(state)
            chance = site["switch"][0] + state * (site["switch"][1] - site["switch"][0])
        return torch.stack(torch.broadcast_tensors(*states), -1)

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return dist.Poisson(site["rate"][local.long()])

    @classmethod
    def example(cls) -> Example:
        truth = {"start": 0.4, "switch": [0.25, 0.7], "rate": [1.0, 5.0]}
        return drawn(cls(num_times=5), truth, 60, seed=27, missing=0.1)
