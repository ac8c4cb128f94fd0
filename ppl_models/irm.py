"""The infinite relational model (IRM): entities of several types, clustered by all the relations that they are in.

Murphy (2012), section 27.6.1 (Kemp, Tenenbaum, Griffiths, Yamada
& Ueda, *Learning systems of concepts with an infinite relational model*, AAAI 2006; Xu, Tresp, Yu & Kriegel, *Infinite
hidden relational models*, UAI 2006). Types t, entities i, relations R:

    q^t ~ ChineseRestaurant(concentration_t)                 the clusters of the entities of type t, without a limit
    p(R(i, j, k) = 1 | q_i^1 = a, q_j^1 = b, q_k^2 = c, eta) = eta_abc                                 (eq. 27.82)
    p(R^1, R^2, ... | q, eta) = prod_r p(R^r | q of its types, eta^r)                                    (eq. 27.83)

A relation has any number of axes; several may be of one type. Of a relation of a type with itself the diagonal (i, i)
is no cell unless that is said (``self_loops``); a symmetric one is one observation a pair,

    R(i, j) = R(j, i),   i < j,       eta_ab = eta_ba,       eta_ab ~ Beta(1, 1) for a <= b.

Its cells may also be categories, counts, or real
numbers,

    p(R_ij = r | q_i^u = a, q_j^v = b) = Normal(r | mu_ab, 1 / lambda_ab)                                (eq. 27.85)

here with a precision of every block, so that the table of a block can be integrated out whatever its cells are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import ModelError, require_whole
from ppl_models.core.model import Example, Model
from ppl_models.core.priors import move_prior
from ppl_models.core.sites import Site
from ppl_models.core.units import centre_and_unit, require_units
from ppl_models.data.matrix import Data
from ppl_models.data.relations.data import of_one_type
from ppl_models.data.relations.door import relations
from ppl_models.distributions.labellings import Symmetric
from ppl_models.distributions.partitions import ChineseRestaurant, Relation, RelationCells
from ppl_models.kinds.relations import RelationModel, kinds_of_cells, require_known

#: What the cells of a relation may be -> the sites of its tables.
_TABLES = {
    "bernoulli": ("edge_probability",),
    "categorical": ("edge_probability",),
    "poisson": ("edge_rate",),
    "gaussian": ("edge_precision", "edge_mean"),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class IRM(RelationModel):
    """Infinite relational model: clusters of entities of several types, by relations of any arity.

    types: name -> number of entities. relations: name -> the types of its axes.
    cells: relation -> "bernoulli" (the default), "categorical", "poisson" or "gaussian": what its cells are.
    num_categories: relation -> C, of categorical ones: whole numbers below C.
    symmetric, self_loops: names of relations of a type with itself, or True for all of these: those in which (i, j) and
        (j, i) are one cell, and those in which (i, i) is one.
    centre, unit: relation -> c and s of real cells r, on whose scale (r - c) / s the default priors below hold; of
        relations that are not named the mean and the standard deviation of the cells that are fitted, or 0 and 1 where
        the program runs by itself. Values of sites, and priors that are given, are those of the cells as they are.
    num_clusters: None, as many as the data ask for; or type -> the number of its clusters, of those that are fixed.

    Sites
    -----
    concentration: (T,), of the partition of each type; Gamma(1, 1) by default. More is more clusters. Of types with a
        fixed number of clusters that of their proportions, Dirichlet(c, ..., c).
    cluster_TYPE: (N_t,), whole numbers.
    edge_probability_RELATION: eta, one for every tuple of clusters of its axes; Beta(1, 1) by default; of categories
        (..., C), Dirichlet(1, ..., 1).
    edge_rate_RELATION: of counts; Gamma(1, 1) by default.
    edge_precision_RELATION, edge_mean_RELATION: of real numbers; Gamma(1, s^2) and Normal(c, 3) by default, the latter
        in units of the cell's own standard deviation: mean ~ Normal(m, t / sqrt(precision)), which is conjugate.
    x: (C, 2 + A), observed, the listed cells; as ``relations(...)`` makes them.
    unlisted: (R,), given: what cells are that are not listed, 0 or NaN (missing).

    Raises ModelError for relations of unknown types, and settings of unknown relations.
    """

    num_clusters: Mapping[str, int] | None = None
    centre: Mapping[str, float] = field(default_factory=dict)
    unit: Mapping[str, float] = field(default_factory=dict)

    #: Its data are several arrays: the generic methods and scores of one matrix are not for it.
    listed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_clusters", dict(self.num_clusters or {}))
        super().__post_init__()

    def check_settings(self) -> None:
        super().check_settings()
        require_known("num_clusters", self._clusters, self.types)
        require_known("centre", self.centre, self.relations)
        require_known("unit", self.unit, self.relations)
        require_whole({f"num_clusters of {t}": k for t, k in self._clusters.items()})
        for name in {**self.centre, **self.unit}:
            if self.cells[name] != "gaussian":
                raise ModelError(f"a centre or unit of '{name}', expected real cells, not {self.cells[name]} ones")
            require_units(self.centre.get(name), self.unit.get(name), f" of '{name}'")

    @property
    def _clusters(self) -> Mapping[str, int]:
        return self.num_clusters or {}

    @property
    def sites(self) -> Mapping[str, Site]:  # pyright: ignore[reportIncompatibleVariableOverride]
        found = {"concentration": Site("global", ("type",), support=constraints.positive)}
        found |= {f"cluster_{t}": Site("latent", (), (t,), choice="component") for t in self.types}
        for name, types in self.relations.items():
            axes = [f"{t}_cluster" if t not in types[:a] else f"{t}_cluster_{a + 1}" for a, t in enumerate(types)]
            for table in self.tables(name):
                dims = (f"{name}_category",) if self.cells[name] == "categorical" else ()
                found[table] = Site("latent", dims, tuple(axes), support=self._support(table, name))
        found["x"] = Site("observed", ("column",), ("cell",))
        found["unlisted"] = Site("given", (), ("relation",))
        return found

    def tables(self, relation: str) -> tuple[str, ...]:
        """Return the sites of the tables of a relation."""
        return tuple(f"{table}_{relation}" for table in _TABLES[self.cells[relation]])

    def _support(self, table: str, relation: str) -> Any:
        if self.cells[relation] == "categorical":
            return constraints.simplex
        if self.cells[relation] == "bernoulli":
            return constraints.unit_interval
        return constraints.real if table.startswith("edge_mean") else constraints.positive

    @property
    def sizes(self) -> dict[str, int]:
        categories = {f"{name}_category": number for name, number in self.num_categories.items()}
        own = {"type": len(self.types), "relation": len(self.relations), "component": max(self.types.values())}
        return {**own, **self.types, **categories, "column": 2 + max(map(len, self.relations.values()))}

    def settings(self) -> dict[str, Any]:
        """Return the settings with lists in place of tuples, as JSON has them."""
        found = super().settings()
        named = {
            name: dict(found[name] or {})
            for name in ("types", "cells", "num_categories", "num_clusters", "centre", "unit")
        }
        named |= {"symmetric": list(self.symmetric), "self_loops": list(self.self_loops)}
        return {**named, "relations": {name: list(one) for name, one in self.relations.items()}}

    def default_priors(self) -> dict[str, Any]:
        found: dict[str, Any] = {"concentration": dist.Gamma(1.0, 1.0)}
        for name, kind in self.cells.items():
            if kind == "categorical":
                found[f"edge_probability_{name}"] = dist.Dirichlet(torch.ones(self.num_categories[name]))
            elif kind == "bernoulli":
                found[f"edge_probability_{name}"] = dist.Beta(1.0, 1.0)
            elif kind == "poisson":
                found[f"edge_rate_{name}"] = dist.Gamma(1.0, 1.0)
            else:
                centre, unit = self.centre.get(name, 0.0), self.unit.get(name, 1.0)
                found[f"edge_precision_{name}"] = dist.Gamma(1.0, unit**2)
                found[f"edge_mean_{name}"] = dist.Normal(centre, 3.0)
        return found

    def on_scale_of(self, data: Data | None, *, like: Model | None = None, weights: Tensor | None = None) -> Self:
        """Take the mean and the standard deviation of real cells for ``centre`` and ``unit``, where these are open."""
        centre, unit = dict(self.centre), dict(self.unit)
        for r, name in enumerate(self.relations):
            if self.cells[name] == "gaussian" and not (name in centre and name in unit):
                rows: Any = data
                found = (0.0, 1.0) if data is None else centre_and_unit(rows.of(r)[:, -1])
                centre.setdefault(name, found[0])
                unit.setdefault(name, found[1])
        return self if (centre, unit) == (self.centre, self.unit) else replace(self, centre=centre, unit=unit)

    def shape_of(self, site: str) -> tuple[int, ...]:
        """Return the shape of a global site, or of one element of a table."""
        return tuple(self.sizes[axis] for axis in self.sites[site].dims)

    def __call__(
        self, x: Tensor | None = None, *, mask: Tensor | None = None, batch_size: int | None = None,
        num_rows: int | None = None, unlisted: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Run the program. ``x`` (C, 2 + A), or ``None`` to generate all cells of all relations.

        Tables are of the clusters that have entities: their shapes depend on the partitions.
        """
        if mask is not None or batch_size is not None or num_rows is not None:
            raise ModelError("IRM takes no mask, batch_size or num_rows; a missing cell is listed as NaN")
        concentration = self.sample("concentration")
        cluster: dict[str, Tensor] = {}
        for t, (name, size) in enumerate(self.types.items()):
            partition: Any = ChineseRestaurant(concentration[t], size, self._clusters.get(name))
            cluster[name] = pyro.sample(f"cluster_{name}", partition).long()
        relations = []
        for r, (name, types) in enumerate(self.relations.items()):
            shape = [self._clusters.get(t) or int(cluster[t].max()) + 1 for t in types]
            symmetric, loops = name in self.symmetric, name in self.self_loops or not of_one_type(types)
            draw = functools.partial(self.draw_table, shape=shape, like=concentration, symmetric=symmetric)
            match self.cells[name]:
                case "gaussian":
                    precision = draw(f"edge_precision_{name}")
                    mean = draw(f"edge_mean_{name}", precision=precision)
                    law = _law_of_cells(dist.Normal, mean, precision.rsqrt())
                case "poisson":
                    law = _law_of_cells(dist.Poisson, draw(f"edge_rate_{name}"))
                case "categorical":
                    law = _law_of_cells(dist.Categorical, draw(f"edge_probability_{name}"))
                case _:
                    law = _law_of_cells(dist.Bernoulli, draw(f"edge_probability_{name}"))
            closed = unlisted is not None and bool(unlisted[r] == 0)
            relations.append(Relation([cluster[t] for t in types], law, closed, symmetric, loops))
        cells: Any = RelationCells(relations, concentration)
        return pyro.sample("x", cells, obs=x)

    def draw_table(
        self, site: str, *, shape: list[int], like: Tensor, symmetric: bool = False, precision: Tensor | None = None
    ) -> Tensor:
        """State a table of a relation: its elements are drawn from their prior, one for every tuple of clusters, of a
        ``symmetric`` one for every pair a <= b.

        precision: of the cells, in whose own standard deviations the scale of a Normal prior is stated.
        """
        prior: Any = move_prior(self.priors[site], like)
        if precision is not None:
            prior = dist.Normal(prior.loc, prior.scale / precision.sqrt())
        law: Any = Symmetric(prior.expand(shape)) if symmetric else prior.expand(shape).to_event(len(shape))
        return pyro.sample(site, law)

    @classmethod
    def for_data(cls, data: Data, num_components: int | None = None, **settings: Any) -> Self:
        """Return the model of the data's types and relations, whose cells are what their values look like.

        num_components: a fixed number of clusters of every type; None: as many as the data ask for. Real numbers have
        their own centre and unit.
        """
        read = relations(data)
        cells = {**kinds_of_cells(read), **settings.pop("cells", {})}
        fixed = None if num_components is None else {t: min(num_components, n) for t, n in read.types.items()}
        settings.setdefault("num_clusters", fixed)
        settings = {"symmetric": read.symmetric, "self_loops": read.self_loops, **settings}
        return cls(types=read.types, relations=read.relations, cells=cells, **settings).on_scale_of(data)

    def num_parameters(self, num_rows: int) -> int:
        """Count the concentrations where they are unknown: tables and clusters are integrated out."""
        return len(self.types) * ("concentration" in self.unknown_sites)

    @classmethod
    def example(cls) -> Example:
        """Sixteen people who like some of ten films and send each other messages, with two and three clusters."""
        rng = np.random.default_rng(5)
        person, film = np.repeat([0, 1], 8), np.repeat([0, 1, 2], [4, 3, 3])
        likes, sends = np.array([[0.95, 0.05, 0.9], [0.05, 0.95, 0.9]]), np.array([[0.7, 0.1], [0.3, 0.9]])
        x = {
            "likes": (rng.random((16, 10)) < likes[person][:, film]).astype(float),
            "sends": (rng.random((16, 16)) < sends[person][:, person]).astype(float),
        }
        np.fill_diagonal(x["sends"], 0.0)  # nobody sends to themselves
        model = cls(types={"person": 16, "film": 10}, relations={"likes": ("person", "film"), "sends": ("person",) * 2})
        truth = {"concentration": np.ones(2), "cluster_person": person, "cluster_film": film}
        truth |= {"edge_probability_likes": likes, "edge_probability_sends": sends}
        return Example.of(model, model.prepare(x, dtype=torch.get_default_dtype()), truth)


def _law_of_cells(law: Any, *tables: Tensor) -> Callable[[tuple[Tensor, ...]], Any]:
    """Return what gives the distribution of cells in blocks, at indices of these along every axis of the tables."""
    return lambda blocks: law(*(table[blocks] for table in tables), validate_args=False)
