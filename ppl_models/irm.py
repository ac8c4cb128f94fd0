"""The infinite relational model (IRM): entities of several types, clustered by all the relations that they are in.

Source 002: Murphy, *Machine Learning: a Probabilistic Perspective*, section 27.6.1 (Kemp, Tenenbaum, Griffiths, Yamada
& Ueda, *Learning systems of concepts with an infinite relational model*, AAAI 2006; Xu, Tresp, Yu & Kriegel, *Infinite
hidden relational models*, UAI 2006). Types t, entities i, relations R:

    q^t ~ ChineseRestaurant(concentration_t)                 the clusters of the entities of type t, without a limit
    p(R(i, j, k) = 1 | q_i^1 = a, q_j^1 = b, q_k^2 = c, eta) = eta_abc                                 (eq. 27.82)
    p(R^1, R^2, ... | q, eta) = prod_r p(R^r | q of its types, eta^r)                                    (eq. 27.83)

A relation has any number of axes; several may be of one type. Its cells may also be categories, counts, or real
numbers,

    p(R_ij = r | q_i^u = a, q_j^v = b) = Normal(r | mu_ab, 1 / lambda_ab)                                (eq. 27.85)

here with a precision of every block, so that the table of a block can be integrated out whatever its cells are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import DataError, ModelError, about
from ppl_models.core.model import Example, Model
from ppl_models.core.sites import Site
from ppl_models.core.units import centre_and_unit, require_units
from ppl_models.data.matrix import Data
from ppl_models.data.relations.data import Relations
from ppl_models.data.relations.door import relations as as_relations
from ppl_models.distributions.partitions import ChineseRestaurant, Relation, RelationCells
from ppl_models.likelihoods import Bernoulli, Categorical, Gaussian, Poisson

#: What the cells of a relation may be -> the sites of its tables.
_TABLES = {
    "bernoulli": ("edge_probability",),
    "categorical": ("edge_probability",),
    "poisson": ("edge_rate",),
    "gaussian": ("edge_precision", "edge_mean"),
}
#: Names of axes that a type cannot have.
_TAKEN = ("cell", "column", "relation", "type", "row", "component", "value")


@dataclass(frozen=True, kw_only=True, eq=False)
class IRM(Model):
    """Infinite relational model: clusters of entities of several types, by relations of any arity.

    types: name -> number of entities. relations: name -> the types of its axes.
    cells: relation -> "bernoulli" (the default), "categorical", "poisson" or "gaussian": what its cells are.
    num_categories: relation -> C, of categorical ones: whole numbers below C.
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

    types: Mapping[str, int]
    relations: Mapping[str, tuple[str, ...]]
    cells: Mapping[str, str] = field(default_factory=dict)
    num_categories: Mapping[str, int] = field(default_factory=dict)
    num_clusters: Mapping[str, int] | None = None
    centre: Mapping[str, float] = field(default_factory=dict)
    unit: Mapping[str, float] = field(default_factory=dict)

    #: Its data are several arrays: the generic methods and scores of one matrix are not for it.
    listed: ClassVar[bool] = False
    axes: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        pairs = {name: (one,) if isinstance(one, str) else tuple(one) for name, one in self.relations.items()}
        object.__setattr__(self, "relations", pairs)
        object.__setattr__(
            self, "cells", {name: self.cells.get(name, "bernoulli") for name in pairs} | dict(self.cells)
        )
        object.__setattr__(self, "num_clusters", dict(self.num_clusters or {}))
        self._check_names()
        sizes = {**self.types, **{f"num_clusters of {t}": k for t, k in self._clusters.items()}}
        for name, value in sizes.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ModelError(f"{name} = {value!r}, expected a whole number of at least 1")
        for name in {**self.centre, **self.unit}:
            if self.cells[name] != "gaussian":
                raise ModelError(f"a centre or unit of '{name}', expected real cells, not {self.cells[name]} ones")
            require_units(self.centre.get(name), self.unit.get(name), f" of '{name}'")
        for name, kind in self.cells.items():
            number = self.num_categories.get(name)
            if (kind == "categorical") != (number is not None) or (number is not None and number < 2):
                raise ModelError(f"num_categories of '{name}' = {number!r} with {kind} cells; "
                                 "expected at least 2 for each categorical relation, and no other")  # fmt: skip
        super().__post_init__()

    def _check_names(self) -> None:
        if not self.relations or not self.types:
            raise ModelError("no relations, expected at least one type and one relation")
        for name in (*self.types, *self.relations):
            if not isinstance(name, str) or not name or name in _TAKEN:
                raise ModelError(f"a type or relation named {name!r}; expected a name other than {', '.join(_TAKEN)}")
        for name, types in self.relations.items():
            unknown = [one for one in types if one not in self.types]
            if unknown or not types:
                found = f"of the unknown type {unknown[0]!r}" if unknown else "without axes"
                raise ModelError(f"relation '{name}' {found}; expected types among {', '.join(self.types)}")
        given = (("cells", self.cells, self.relations), ("num_categories", self.num_categories, self.relations),
                 ("num_clusters", self._clusters, self.types), ("centre", self.centre, self.relations),
                 ("unit", self.unit, self.relations))  # fmt: skip
        for what, values, known in given:
            for name in values:
                if name not in known:
                    raise ModelError(f"{what} of the unknown '{name}'; expected some of {', '.join(known)}")
        for name, kind in self.cells.items():
            if kind not in _TABLES:
                raise ModelError(f"cells of '{name}' = {kind!r}, expected {', '.join(_TABLES)}")

    # ----- sites ------------------------------------------------------------------------------------------

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
        """The sites of the tables of a relation."""
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

    @property
    def rows_are_independent(self) -> bool:
        return False

    @property
    def data_kind(self) -> str:
        return "relations"

    def settings(self) -> dict[str, Any]:
        """With lists in place of tuples, as JSON has them."""
        found = super().settings()
        named = {
            name: dict(found[name] or {})
            for name in ("types", "cells", "num_categories", "num_clusters", "centre", "unit")
        }
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
        """With the mean and the standard deviation of real cells for ``centre`` and ``unit``, where these are open."""
        centre, unit = dict(self.centre), dict(self.unit)
        for r, name in enumerate(self.relations):
            if self.cells[name] == "gaussian" and not (name in centre and name in unit):
                rows: Any = data
                found = (0.0, 1.0) if data is None else centre_and_unit(rows.of(r)[:, -1])
                centre.setdefault(name, found[0])
                unit.setdefault(name, found[1])
        return self if (centre, unit) == (self.centre, self.unit) else replace(self, centre=centre, unit=unit)

    def shape_of(self, site: str) -> tuple[int, ...]:
        """Of a table the shape of one element."""
        return tuple(self.sizes[axis] for axis in self.sites[site].dims)

    def cell_values(self, relation: str) -> Any:
        """The likelihood that says which values the cells of a relation may have."""
        kinds: dict[str, Callable[[], Any]] = {"bernoulli": Bernoulli, "poisson": Poisson, "gaussian": Gaussian}
        kind = self.cells[relation]
        return Categorical(self.num_categories[relation]) if kind == "categorical" else kinds[kind]()

    # ----- the program ------------------------------------------------------------------------------------

    def __call__(
        self, x: Tensor | None = None, *, mask: Tensor | None = None, batch_size: int | None = None,
        num_rows: int | None = None, unlisted: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """The Pyro program. ``x`` (C, 2 + A), or ``None`` to generate all cells of all relations.

        Tables are of the clusters that have entities: their shapes depend on the partitions.
        """
        if mask is not None or batch_size is not None or num_rows is not None:
            raise ModelError("IRM takes no mask, batch_size or num_rows; a missing cell is listed as NaN")
        site = self.sample_globals(like=x)
        like, clusters = site["concentration"], {}
        for t, (name, size) in enumerate(self.types.items()):
            partition: Any = ChineseRestaurant(like[t], size, self._clusters.get(name))
            clusters[name] = pyro.sample(f"cluster_{name}", partition).long()
        parts = []
        for r, (name, types) in enumerate(self.relations.items()):
            closed = unlisted is not None and bool(unlisted[r] == 0)
            tables = self._draw_tables(name, [self._number(t, clusters[t]) for t in types], like)
            parts.append(Relation([clusters[t] for t in types], self._cell(name, tables), closed))
        cells: Any = RelationCells(parts, like)
        return pyro.sample("x", cells, obs=x)

    def rows_of(self, given: Mapping[str, Any]) -> dict[str, int]:
        """None: all cells are generated."""
        return {}

    def _number(self, name: str, cluster: Tensor) -> int:
        return self._clusters.get(name) or int(cluster.max()) + 1

    def _draw_tables(self, relation: str, shape: list[int], like: Tensor) -> list[Tensor]:
        found: list[Tensor] = []
        for table in self.tables(relation):
            prior: Any = self.table_prior(table, like)
            if table.startswith("edge_mean"):
                prior = dist.Normal(prior.loc, prior.scale / found[0].sqrt())
            elements: Any = prior.expand(shape).to_event(len(shape))
            found.append(pyro.sample(table, elements))
        return found

    def table_prior(self, table: str, like: Tensor) -> Any:
        """The prior of one element of a table, with the dtype and device of ``like``."""
        from ppl_models.core.priors import move_prior

        return move_prior(self.priors[table], like)

    def _cell(self, relation: str, tables: list[Tensor]) -> Callable[[tuple[Tensor, ...]], Any]:
        kind = self.cells[relation]

        def cell(blocks: tuple[Tensor, ...]) -> Any:
            values = [table[blocks] for table in tables]
            if kind == "gaussian":
                return dist.Normal(values[1], values[0].rsqrt(), validate_args=False)
            made = {"bernoulli": dist.Bernoulli, "categorical": dist.Categorical, "poisson": dist.Poisson}[kind]
            return made(values[0], validate_args=False)

        return cell

    # ----- data -------------------------------------------------------------------------------------------

    def prepare(self, data: Any, *, mask: Any = None, dtype=None, device=None, unlisted: Any = None) -> Relations:
        """What :func:`ppl_models.relations` makes, or takes: a mapping of relations to arrays, a long table, ...

        Raises DataError for other types and sizes than the model's, and cells that have no probability.
        """
        with about("x"):
            if mask is not None:
                raise DataError("a mask beside relations", expected="missing cells as NaN")
            if isinstance(data, Data) and not isinstance(data, Relations):
                given = unlisted if unlisted is not None else data.others.get("unlisted")
                data = Relations.from_table(data, self.types, self.relations, given)
            elif not isinstance(data, Relations):
                data = as_relations(data, self.relations, types=self.types)
            made: Any = data.arrange(self.types, self.relations).to(dtype=dtype, device=device)
            for r, name in enumerate(self.relations):
                self._check_cells(name, made.of(r), made)
            return made

    def _check_cells(self, name: str, rows: Tensor, data: Relations) -> None:
        value, likelihood = rows[:, -1], self.cell_values(name)
        wrong = ~likelihood.valid(torch.nan_to_num(value)) | torch.isinf(value)
        if bool(wrong.any()):
            what, expected = likelihood.refusal
            first = rows[wrong][0]
            where = ", ".join(
                str(data.names(t)[int(e)]) for t, e in zip(self.relations[name], first[1:-1].tolist(), strict=False)
            )
            found = f"{int(wrong.sum())} cells of '{name}' {what} (the first: {float(first[-1]):g} at {where})"
            raise DataError(found, axis=name, expected=expected)

    def check_for_fitting(self, data: Data) -> None:
        """Refuses relations without an observed cell; warns of entities that no cell says anything of."""
        assert isinstance(data, Relations)
        data.check_for_fitting()

    @classmethod
    def for_data(cls, data: Data, num_components: int | None = None, **settings: Any) -> Self:
        """The model of the data's types and relations: cells by what values they have, 0/1, whole or real numbers.

        num_components: a fixed number of clusters of every type; None: as many as the data ask for. Real numbers have
        their own centre and unit.
        """
        assert isinstance(data, Relations)
        cells = dict(settings.pop("cells", {}))
        for r, name in enumerate(data.relations):
            value = data.of(r)[:, -1]
            value = value[~torch.isnan(value)]
            whole = bool((value == value.round()).all() and (value >= 0).all())
            small = "bernoulli" if bool((value <= 1).all()) else "poisson"
            cells.setdefault(name, small if whole else "gaussian")
        fixed = None if num_components is None else {t: min(num_components, n) for t, n in data.types.items()}
        settings.setdefault("num_clusters", fixed)
        return cls(types=data.types, relations=data.relations, cells=cells, **settings).on_scale_of(data)

    def num_parameters(self, num_rows: int) -> int:
        """The concentrations: tables and clusters are integrated out."""
        return len(self.types)

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
        model = cls(types={"person": 16, "film": 10}, relations={"likes": ("person", "film"), "sends": ("person",) * 2})
        truth = {"concentration": np.ones(2), "cluster_person": person, "cluster_film": film}
        truth |= {"edge_probability_likes": likes, "edge_probability_sends": sends}
        return Example.of(model, model.prepare(x, dtype=torch.get_default_dtype()), truth)
