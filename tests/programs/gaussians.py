"""Rows with Gaussian latents: a Kalman chain, intercepts and slopes of each row, factors; classes of such rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models import ComponentModel, Data, Example
from ppl_models.core.row_models import RowModel
from ppl_models.core.sites import Site
from tests.programs._draw import drawn

REAL, POSITIVE = constraints.real, constraints.positive


@dataclass(frozen=True, kw_only=True, eq=False)
class KalmanChain(RowModel):
    """A level that moves from step to step, u_t ~ Normal(keep u_{t-1}, move), and what is measured of it."""

    num_steps: int

    axes: ClassVar[Mapping[str, str]] = {"step": "num_steps"}

    @property
    def sites(self) -> Mapping[str, Site]:
        return {
            "start": Site("global", (), support=REAL),
            "keep": Site("global", (), support=REAL),
            "move": Site("global", (), support=POSITIVE),
            "noise": Site("global", (), support=POSITIVE),
            **{f"u{t}": Site("latent", (), ("row",), REAL) for t in range(self.num_steps)},
            "x": Site("observed", ("step",), ("row",), REAL),
        }

    def default_priors(self) -> dict[str, Any]:
        scales = dict.fromkeys(("move", "noise"), dist.LogNormal(-0.5, 0.7))
        return {"start": dist.Normal(0.0, 3.0), "keep": dist.Normal(0.8, 0.5), **scales}

    def __call__(
        self, x: Tensor | None = None, *, mask: Tensor | None = None, batch_size: int | None = None, num_rows: int = 1
    ) -> Tensor:
        start, keep, move, noise = (self.sample(site) for site in ("start", "keep", "move", "noise"))
        with self.rows(x, mask, batch_size, num_rows) as rows:
            level = [pyro.sample("u0", dist.Normal(start, 1.0))]
            for t in range(1, self.num_steps):
                level.append(pyro.sample(f"u{t}", dist.Normal(keep * level[-1], move)))
            return rows.observe("x", dist.Normal(torch.stack(level, -1), noise))

    @classmethod
    def example(cls) -> Example:
        truth = {"start": 1.0, "keep": 0.9, "move": 0.5, "noise": 0.4}
        return drawn(cls(num_steps=2), truth, 40, seed=41, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class RandomSlopes(RowModel):
    """Growth by given times: x_nj ~ Normal(base_n + slope_n t_nj, noise), with an intercept and a slope of each row."""

    num_times: int

    axes: ClassVar[Mapping[str, str]] = {"time": "num_times"}
    sites: ClassVar[Mapping[str, Site]] = {
        "base": Site("global", (), support=REAL),
        "growth": Site("global", (), support=REAL),
        "base_spread": Site("global", (), support=POSITIVE),
        "growth_spread": Site("global", (), support=POSITIVE),
        "noise": Site("global", (), support=POSITIVE),
        "t": Site("given", ("time",), ("row",), REAL),
        "intercept": Site("latent", (), ("row",), REAL),
        "slope": Site("latent", (), ("row",), REAL),
        "x": Site("observed", ("time",), ("row",), REAL),
    }

    def default_priors(self) -> dict[str, Any]:
        scales = dict.fromkeys(("base_spread", "growth_spread", "noise"), dist.LogNormal(-0.5, 0.7))
        return {"base": dist.Normal(0.0, 3.0), "growth": dist.Normal(0.0, 2.0), **scales}

    def __call__(
        self, x: Tensor | None = None, *, t: Tensor | None = None, mask: Tensor | None = None,
        batch_size: int | None = None, num_rows: int = 1,
    ) -> Tensor:  # fmt: skip
        values = self.sample_globals()
        with self.rows(x, mask, batch_size, num_rows) as rows:
            time = torch.arange(self.num_times).to(values["base"]) if t is None else rows.of(t)
            intercept = pyro.sample("intercept", dist.Normal(0.0, values["base_spread"])).unsqueeze(-1)
            slope = pyro.sample("slope", dist.Normal(values["growth"], values["growth_spread"])).unsqueeze(-1)
            return rows.observe("x", dist.Normal(values["base"] + intercept + slope * time, values["noise"]))

    def prepare(self, data: Any, *, t: Any = None, **settings: Any) -> Data:
        """Take whole times where none are given."""
        if t is None and not (isinstance(data, Data) and "t" in data.others):
            t = np.tile(np.arange(float(self.num_times)), (len(data), 1))
        return super().prepare(data, **settings, **({} if t is None else {"t": t}))

    @classmethod
    def example(cls) -> Example:
        truth = {"base": 1.0, "growth": 0.5, "base_spread": 0.8, "growth_spread": 0.4, "noise": 0.3}
        times = torch.rand(40, 4, generator=torch.Generator().manual_seed(1)) * 3
        return drawn(cls(num_times=4), truth, 40, seed=42, missing=0.1, t=times)


@dataclass(frozen=True, kw_only=True, eq=False)
class Factors(ComponentModel):
    """Factor analysis as one writes it: x_n ~ Normal(z_n loading + mean, scale)."""

    shared: bool = False

    @property
    def sites(self) -> Mapping[str, Site]:
        return {
            "loading": Site("global", ("component", "feature"), support=REAL),
            "mean": Site("global", ("feature",), support=REAL),
            "scale": Site("global", () if self.shared else ("feature",), support=POSITIVE),
            "z": Site("latent", ("component",), ("row",), REAL),
            "x": Site("observed", ("feature",), ("row",), REAL),
        }

    def default_priors(self) -> dict[str, Any]:
        return {"loading": dist.Normal(0.0, 1.0), "mean": dist.Normal(0.0, 10.0), "scale": dist.LogNormal(0.0, 1.0)}

    def __call__(
        self, x: Tensor | None = None, *, mask: Tensor | None = None, batch_size: int | None = None, num_rows: int = 1
    ) -> Tensor:
        loading, mean, scale = (self.sample(site) for site in ("loading", "mean", "scale"))
        with self.rows(x, mask, batch_size, num_rows) as rows:
            z = pyro.sample("z", dist.Normal(torch.zeros(self.num_components).to(mean), 1.0).to_event(1))
            return rows.observe("x", dist.Normal(z @ loading + mean, scale))

    @classmethod
    def example(cls) -> Example:
        generator = torch.Generator().manual_seed(2)
        loading = torch.randn(2, 5, generator=generator)
        truth = {"loading": loading, "mean": torch.arange(5.0), "scale": torch.full((5,), 0.5)}
        return drawn(cls(num_components=2, num_features=5), truth, 40, seed=43, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class InterceptMixture(RowModel):
    """Classes of growth with a random intercept: x_nj ~ Normal(level_z + slope_z t_nj + b_n, noise) and b_n ~ Normal(0,
    spread_z)."""

    num_classes: int
    num_times: int

    axes: ClassVar[Mapping[str, str]] = {"class": "num_classes", "time": "num_times"}
    sites: ClassVar[Mapping[str, Site]] = {
        "size": Site("global", ("class",), support=constraints.simplex),
        "level": Site("global", ("class",), support=REAL),
        "slope": Site("global", ("class",), support=REAL),
        "spread": Site("global", ("class",), support=POSITIVE),
        "noise": Site("global", (), support=POSITIVE),
        "t": Site("given", ("time",), ("row",), REAL),
        "z": Site("latent", (), ("row",), choice="class"),
        "b": Site("latent", (), ("row",), REAL),
        "x": Site("observed", ("time",), ("row",), REAL),
    }

    def default_priors(self) -> dict[str, Any]:
        scales = dict.fromkeys(("spread", "noise"), dist.LogNormal(-0.5, 0.7))
        return {**super().default_priors(), "level": dist.Normal(0.0, 5.0), "slope": dist.Normal(0.0, 2.0), **scales}

    def __call__(
        self, x: Tensor | None = None, *, t: Tensor | None = None, mask: Tensor | None = None,
        batch_size: int | None = None, num_rows: int = 1,
    ) -> Tensor:  # fmt: skip
        of = self.sample_globals()
        with self.rows(x, mask, batch_size, num_rows) as rows:
            time = torch.arange(self.num_times).to(of["level"]) if t is None else rows.of(t)
            z = pyro.sample("z", dist.Categorical(of["size"]))
            b = pyro.sample("b", dist.Normal(0.0, of["spread"][z]))
            mean = (of["level"][z] + b).unsqueeze(-1) + of["slope"][z].unsqueeze(-1) * time
            return rows.observe("x", dist.Normal(mean, of["noise"]))

    def prepare(self, data: Any, *, t: Any = None, **settings: Any) -> Data:
        """Take whole times where none are given."""
        if t is None and not (isinstance(data, Data) and "t" in data.others):
            t = np.tile(np.arange(float(self.num_times)), (len(data), 1))
        return super().prepare(data, **settings, **({} if t is None else {"t": t}))

    @classmethod
    def example(cls) -> Example:
        truth = {"size": [0.6, 0.4], "level": [1.0, -0.5], "slope": [0.1, 0.9], "spread": [0.5, 1.0], "noise": 0.3}
        times = torch.rand(50, 4, generator=torch.Generator().manual_seed(1)) * 3
        return drawn(cls(num_classes=2, num_times=4), truth, 50, seed=44, missing=0.1, t=times)


@dataclass(frozen=True, kw_only=True, eq=False)
class FactorMixture(ComponentModel):
    """Factor analysers, one a class: x_n ~ Normal(mean_z + f_n loading_z, scale)."""

    num_factors: int = 1

    axes: ClassVar[Mapping[str, str]] = {**ComponentModel.axes, "factor": "num_factors"}
    sites: ClassVar[Mapping[str, Site]] = {
        "size": Site("global", ("component",), support=constraints.simplex),
        "loading": Site("global", ("component", "factor", "feature"), support=REAL),
        "mean": Site("global", ("component", "feature"), support=REAL),
        "scale": Site("global", ("feature",), support=POSITIVE),
        "z": Site("latent", (), ("row",), choice="component"),
        "f": Site("latent", ("factor",), ("row",), REAL),
        "x": Site("observed", ("feature",), ("row",), REAL),
    }

    def default_priors(self) -> dict[str, Any]:
        wide = {"loading": dist.Normal(0.0, 1.0), "mean": dist.Normal(0.0, 10.0), "scale": dist.LogNormal(0.0, 1.0)}
        return {**super().default_priors(), **wide}

    def __call__(
        self, x: Tensor | None = None, *, mask: Tensor | None = None, batch_size: int | None = None, num_rows: int = 1
    ) -> Tensor:
        size, loading, mean, scale = (self.sample(site) for site in ("size", "loading", "mean", "scale"))
        with self.rows(x, mask, batch_size, num_rows) as rows:
            z = pyro.sample("z", dist.Categorical(size))
            f = pyro.sample("f", dist.Normal(torch.zeros(self.num_factors).to(mean), 1.0).to_event(1))
            return rows.observe("x", dist.Normal(mean[z] + (f.unsqueeze(-1) * loading[z]).sum(-2), scale))

    @classmethod
    def example(cls) -> Example:
        generator = torch.Generator().manual_seed(3)
        truth = {
            "size": [0.5, 0.5], "loading": torch.randn(2, 1, 5, generator=generator),
            "mean": torch.randn(2, 5, generator=generator), "scale": torch.full((5,), 0.5),
        }  # fmt: skip
        return drawn(cls(num_components=2, num_features=5), truth, 60, seed=45, missing=0.1)
