"""Several finite latents a row: a class and a flag, a class and a subclass, a group and a kind within it."""

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


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoFlags(ComponentModel):
    """Poisson classes, a flag of every row that makes all counts four times as large, and one that adds three."""

    likelihood: ClassVar[Any] = Poisson()
    sites: ClassVar[Mapping[str, Site]] = {
        "weight": Site("global", ("component",), support=constraints.simplex),
        "odd": Site("global", ("component",), support=constraints.unit_interval),
        "rate": Site("global", ("component", "feature"), support=constraints.positive),
        "label": Site("latent", ("component",), ("row",), constraints.one_hot),
        "flag": Site("latent", (), ("row",), constraints.boolean),
        "raised": Site("latent", (), ("row",), constraints.boolean),
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "odd": dist.Beta(1.0, 4.0), "rate": dist.Gamma(2.0, 0.7)}

    def draw_locals(self, site: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        label = pyro.sample("label", dist.OneHotCategorical(site["weight"]))
        flag = pyro.sample("flag", dist.Bernoulli(label @ site["odd"]))
        return label, flag, pyro.sample("raised", dist.Bernoulli(0.3))

    def entries(self, site: Mapping[str, Tensor], local: tuple[Tensor, Tensor, Tensor]) -> Any:
        label, flag, raised = local
        return dist.Poisson(label @ site["rate"] * (1 + 3 * flag.unsqueeze(-1)) + 3 * raised.unsqueeze(-1))

    @classmethod
    def example(cls) -> Example:
        truth = {"weight": [0.6, 0.4], "odd": [0.15, 0.4], "rate": [[3.0, 2.0, 1.0, 0.5], [0.5, 1.0, 2.0, 4.0]]}
        return drawn(cls(num_components=2, num_features=4), truth, 60, seed=18, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class MixtureOfMixtures(RowModel):
    """Classes that are themselves mixtures of Poissons: class k has subclass s with probability table_ks."""

    num_classes: int
    num_subclasses: int
    num_features: int

    axes: ClassVar[Mapping[str, str]] = {
        "class": "num_classes", "feature": "num_features", "subclass": "num_subclasses"
    }  # fmt: skip
    sites: ClassVar[Mapping[str, Site]] = {
        "weight": Site("global", ("class",), support=constraints.simplex),
        "table": Site("global", ("class", "subclass"), support=constraints.simplex),
        "rate": Site("global", ("class", "subclass", "feature"), support=constraints.positive),
        "class": Site("latent", ("class",), ("row",), constraints.one_hot),
        "subclass": Site("latent", ("subclass",), ("row",), constraints.one_hot),
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "rate": dist.Gamma(1.0, 0.2)}

    def draw_locals(self, site: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        of = pyro.sample("class", dist.OneHotCategorical(site["weight"]))
        return of, pyro.sample("subclass", dist.OneHotCategorical(of @ site["table"]))

    def entries(self, site: Mapping[str, Tensor], local: tuple[Tensor, Tensor]) -> Any:
        return dist.Poisson(torch.einsum("...k,...s,ksd->...d", *local, site["rate"]))

    @classmethod
    def example(cls) -> Example:
        truth = {
            "weight": [0.6, 0.4],
            "table": [[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]],
            "rate": [
                [[6.0, 1.0, 1.0, 1.0], [6.0, 4.0, 1.0, 1.0], [6.0, 1.0, 4.0, 1.0]],
                [[1.0, 1.0, 1.0, 7.0], [1.0, 5.0, 1.0, 7.0], [1.0, 1.0, 5.0, 7.0]],
            ],
        }
        return drawn(cls(num_classes=2, num_subclasses=3, num_features=4), truth, 70, seed=19, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class HierarchicalClasses(RowModel):
    """A group of every row, and a kind that groups share in unlike proportions; answers depend on the kind alone."""

    num_groups: int
    num_components: int
    num_features: int
    num_categories: int

    axes: ClassVar[Mapping[str, str]] = {
        "component": "num_components",
        "feature": "num_features",
        "group": "num_groups",
        "category": "num_categories",
    }
    sites: ClassVar[Mapping[str, Site]] = {
        "share": Site("global", ("group",), support=constraints.simplex),
        "table": Site("global", ("group", "component"), support=constraints.simplex),
        "response": Site("global", ("component", "feature", "category"), support=constraints.simplex),
        "kind": Site("latent", (), ("row",), choice="component"),
        "group": Site("latent", (), ("row",), choice="group"),
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "table": dist.Dirichlet(2 * torch.ones(self.num_components))}

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        group = pyro.sample("group", dist.Categorical(site["share"]))
        return pyro.sample("kind", dist.Categorical(site["table"][group]))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return dist.Categorical(site["response"][local])

    @classmethod
    def example(cls) -> Example:
        strong, weak = torch.tensor([0.8, 0.1, 0.1]), torch.tensor([0.3, 0.4, 0.3])
        kinds = [[strong, strong, weak, weak], [strong.flip(0), weak, strong.flip(0), weak], [weak, weak, weak, strong]]
        truth = {
            "share": [0.55, 0.45],
            "table": [[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]],
            "response": torch.stack([torch.stack(kind) for kind in kinds]),
        }
        model = cls(num_groups=2, num_components=3, num_features=4, num_categories=3)
        return drawn(model, truth, 70, seed=20, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassTree(RowModel):
    """A tree of latent classes: of the row, of each of its themes given that, and the answers of a theme given its own.

    The items of a theme follow each other.
    """

    num_groups: int
    num_components: int
    num_themes: int
    num_items: int

    axes: ClassVar[Mapping[str, str]] = {
        "component": "num_components", "group": "num_groups", "theme": "num_themes", "item": "num_items"
    }  # fmt: skip

    @property
    def sites(self) -> Mapping[str, Site]:
        themes = {f"theme_{j}": Site("latent", (), ("row",), choice="component") for j in range(self.num_themes)}
        return {
            "share": Site("global", ("group",), support=constraints.simplex),
            "table": Site("global", ("theme", "group", "component"), support=constraints.simplex),
            "yes": Site("global", ("theme", "component", "item"), support=constraints.unit_interval),
            "group": Site("latent", (), ("row",), choice="group"),
            **themes,
            "x": Site("observed", ("feature",), ("row",), constraints.boolean),
        }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "yes": dist.Beta(1.5, 1.5)}

    def draw_locals(self, site: Mapping[str, Tensor]) -> list[Tensor]:
        group = pyro.sample("group", dist.Categorical(site["share"]))
        themes = range(self.num_themes)
        return [pyro.sample(f"theme_{j}", dist.Categorical(site["table"][j][group])) for j in themes]

    def entries(self, site: Mapping[str, Tensor], local: list[Tensor]) -> Any:
        parts = torch.broadcast_tensors(*(site["yes"][j][one] for j, one in enumerate(local)))
        return dist.Bernoulli(torch.cat(parts, -1))

    @classmethod
    def example(cls) -> Example:
        one, other = [[0.8, 0.2], [0.3, 0.7]], [[0.9, 0.1], [0.2, 0.8]]
        high, low = [0.9, 0.8, 0.9], [0.1, 0.3, 0.2]
        truth = {"share": [0.55, 0.45], "table": [one, other, one], "yes": [[high, low], [low, high], [high, low]]}
        model = cls(num_groups=2, num_components=2, num_themes=3, num_items=3)
        return drawn(model, truth, 70, seed=37, missing=0.1)
