"""Mixtures of one's own whose rows are one number, a vector, or a table, with axes and sizes of their own names.

z_n ~ OneHotCategorical(share),    every entry of x_n | z_n = c  ~  Normal(centre_c, .5), or Poisson(rate_c)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from scipy.special import gammaln, logsumexp
from torch import Tensor
from torch.distributions import constraints

from ppl_models import Example, RowModel
from ppl_models.core.sites import Site
from ppl_models.likelihoods import Poisson


@dataclass(frozen=True, kw_only=True, eq=False)
class Mixture(RowModel):
    """What the three have in common."""

    num_classes: int

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        return pyro.sample("label", dist.OneHotCategorical(site["share"]))

    @classmethod
    def sites_with(cls, *axes: str, support: Any = constraints.real) -> dict[str, Site]:
        return {
            "share": Site("global", ("class",), support=constraints.simplex),
            "centre": Site("global", ("class", *axes), support=support),
            "label": Site("latent", ("class",), ("row",), constraints.one_hot),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Numbers(Mixture):
    """Rows that are one number each, x (N,)."""

    axes: ClassVar[Mapping[str, str]] = {"class": "num_classes"}
    sites: ClassVar[Mapping[str, Site]] = {
        **Mixture.sites_with(),
        "height": Site("observed", (), ("row",), constraints.real),
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "centre": dist.Normal(0.0, 3.0)}

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return dist.Normal(local @ site["centre"], 0.5)

    @classmethod
    def example(cls) -> Example:
        truth, label, rng = planted(np.array([-2.0, 2.0]))
        x = label @ truth["centre"] + 0.5 * rng.normal(size=40)
        return Example.of(cls(num_classes=2), x, truth)


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers(Mixture):
    """Rows that are vectors, x (N, J), over an axis of another name."""

    num_items: int

    axes: ClassVar[Mapping[str, str]] = {"class": "num_classes", "item": "num_items"}
    sites: ClassVar[Mapping[str, Site]] = {
        **Mixture.sites_with("item"),
        "answer": Site("observed", ("item",), ("row",), constraints.real_vector),
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "centre": dist.Normal(0.0, 3.0)}

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return dist.Normal(local @ site["centre"], 0.5)

    @classmethod
    def example(cls) -> Example:
        truth, label, rng = planted(np.array([[-1.0, 0.0, 1.0], [1.0, 1.0, -2.0]]))
        x = label @ truth["centre"] + 0.5 * rng.normal(size=(40, 3))
        return Example.of(cls(num_classes=2, num_items=3), x, truth)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tables(Mixture):
    """Rows that are tables of counts, x (N, A, B)."""

    num_days: int
    num_hours: int

    likelihood: ClassVar[Any] = Poisson()
    axes: ClassVar[Mapping[str, str]] = {"class": "num_classes", "day": "num_days", "hour": "num_hours"}
    sites: ClassVar[Mapping[str, Site]] = {
        **Mixture.sites_with("day", "hour", support=constraints.positive),
        "visits": Site("observed", ("day", "hour"), ("row",), constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "centre": dist.Gamma(2.0, 0.5)}

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return dist.Poisson(torch.tensordot(local, site["centre"], 1))

    @classmethod
    def example(cls) -> Example:
        rates = np.array([[[1.0, 2, 3, 1], [1, 1, 4, 4], [5, 1, 1, 1]], [[4.0, 1, 1, 3], [2, 2, 1, 1], [1, 3, 3, 1]]])
        truth, label, rng = planted(rates)
        x = rng.poisson(np.tensordot(label, truth["centre"], 1)).astype(float)
        return Example.of(cls(num_classes=2, num_days=3, num_hours=4), x, truth)


def planted(centre: np.ndarray) -> tuple[dict[str, Any], np.ndarray, np.random.Generator]:
    """Two classes of forty rows."""
    rng = np.random.default_rng(3)
    label = np.eye(2)[rng.integers(2, size=40)]
    return {"share": np.array([0.6, 0.4]), "centre": centre, "label": label}, label, rng


def log_joint(model: Any, params: Mapping[str, Tensor], x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """log p(x_n, z_n = c), (N, C), in NumPy, of the observed entries."""
    centre, share = params["centre"].numpy()[None], params["share"].numpy()
    values = x[:, None]
    if isinstance(model, Tables):
        each = values * np.log(centre) - centre - gammaln(values + 1)
    else:
        each = -0.5 * ((values - centre) / 0.5) ** 2 - np.log(0.5 * np.sqrt(2 * np.pi))
    each = np.where(mask[:, None], each, 0.0)
    return np.log(share) + each.reshape(len(x), len(share), -1).sum(-1)


def evidence(model: Any, params: Mapping[str, Tensor], x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """log p(x_n), (N,)."""
    return logsumexp(log_joint(model, params, x, mask), -1)
