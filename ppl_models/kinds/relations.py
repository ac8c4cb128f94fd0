"""Models of relations: cells whose indices are entities of several types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from ppl_models.core.errors import DataError, ModelError, about, require_whole
from ppl_models.core.model import Model
from ppl_models.data.covariates import given_or_own, read_before
from ppl_models.data.held import MatrixLike, Reading, Source, is_string
from ppl_models.data.matrix import Data
from ppl_models.data.relations.data import Relations, those_named
from ppl_models.data.relations.door import relations as as_relations
from ppl_models.likelihoods import Bernoulli, Categorical, Gaussian, Poisson

#: What the cells of a relation may be.
CELLS = ("bernoulli", "categorical", "poisson", "gaussian")
#: Names of axes that a type cannot have.
_TAKEN = ("cell", "column", "relation", "type", "row", "component", "value")


@dataclass(frozen=True, kw_only=True, eq=False)
class RelationModel(Model):
    """A model of relations of any arity between entities of several types: the door for their cells.

    types: name -> number of entities. relations: name -> the types of its axes.
    cells: relation -> "bernoulli" (the default), "categorical", "poisson" or "gaussian": what its cells are.
    num_categories: relation -> C, of categorical ones: whole numbers below C.
    symmetric, self_loops: names of relations of a type with itself, or True for all of these: those in which (i, j) and
        (j, i) are one cell, and those in which (i, i) is one.

    Raises ModelError for relations of unknown types, and settings of unknown relations.
    """

    types: Mapping[str, int]
    relations: Mapping[str, tuple[str, ...]]
    cells: Mapping[str, str] = field(default_factory=dict)
    num_categories: Mapping[str, int] = field(default_factory=dict)
    symmetric: Any = ()
    self_loops: Any = ()

    axes: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        pairs = {name: (one,) if is_string(one) else tuple(one) for name, one in self.relations.items()}
        cells = {name: self.cells.get(name, "bernoulli") for name in pairs} | dict(self.cells)
        object.__setattr__(self, "relations", pairs)
        object.__setattr__(self, "cells", cells)
        for option in ("symmetric", "self_loops"):
            named = those_named(option, getattr(self, option), pairs, ModelError)
            object.__setattr__(self, option, named)
        self.check_settings()
        super().__post_init__()

    def check_settings(self) -> None:
        """Refuse names that do not fit each other, and sizes that are none."""
        if not self.relations or not self.types:
            raise ModelError("no relations, expected at least one type and one relation")
        for name in (*self.types, *self.relations):
            if not is_string(name) or not name or name in _TAKEN:
                raise ModelError(f"a type or relation named {name!r}; expected a name other than {', '.join(_TAKEN)}")
        for name, types in self.relations.items():
            unknown = [one for one in types if one not in self.types]
            if unknown or not types:
                found = f"of the unknown type {unknown[0]!r}" if unknown else "without axes"
                raise ModelError(f"relation '{name}' {found}; expected types among {', '.join(self.types)}")
        require_known("cells", self.cells, self.relations)
        require_known("num_categories", self.num_categories, self.relations)
        for name, kind in self.cells.items():
            if kind not in CELLS:
                raise ModelError(f"cells of '{name}' = {kind!r}, expected {', '.join(CELLS)}")
            number = self.num_categories.get(name)
            if (kind == "categorical") != (number is not None) or (number is not None and number < 2):
                raise ModelError(f"num_categories of '{name}' = {number!r} with {kind} cells; "
                                 "expected at least 2 for each categorical relation, and no other")  # fmt: skip
        require_whole(self.types)

    @property
    def rows_are_independent(self) -> bool:
        return False

    @property
    def data_kind(self) -> str:
        return "relations"

    def rows_of(self, given: Mapping[str, Any]) -> dict[str, int]:
        """Return nothing: all cells are generated."""
        return {}

    def prepare(self, data: Source, *, unlisted: MatrixLike | None = None, **reading: Unpack[Reading]) -> Relations:
        """Read what :func:`ppl_models.relations` makes, or takes: a mapping of relations to arrays, a long table, ...

        Raises DataError for other types and sizes than the model's, and cells that have no probability.
        """
        settled = {"symmetric": self.symmetric, "self_loops": self.self_loops}
        with about("x"):
            if reading.get("mask") is not None:
                raise DataError("a mask beside relations", expected="missing cells as NaN")
            table = read_before(data)
            if table is not None and not isinstance(table, Relations):
                listed = given_or_own(unlisted, data, "unlisted")
                data = Relations.from_table(table, self.types, self.relations, listed, **settled)
            found = as_relations(data, self.relations, types=self.types, **settled)
            made = found.arrange(self.types, self.relations, **settled)
            made = made.to(dtype=reading.get("dtype"), device=reading.get("device"))
            for r, name in enumerate(self.relations):
                self._check_cells(name, made.of(r), made)
            return made

    def _check_cells(self, name: str, rows: Tensor, data: Relations) -> None:
        value, kinds = rows[:, -1], {"bernoulli": Bernoulli(), "poisson": Poisson(), "gaussian": Gaussian()}
        likelihood = kinds.get(self.cells[name]) or Categorical(self.num_categories[name])
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
        """Refuse relations without an observed cell; warn of entities that no cell says anything of."""
        as_relations(data).check_for_fitting()


def require_known(what: str, values: Iterable[str], known: Iterable[str]) -> None:
    """Refuse settings of relations or types that a model does not have."""
    for name in values:
        if name not in known:
            raise ModelError(f"{what} of the unknown '{name}'; expected some of {', '.join(known)}")


def kinds_of_cells(data: Relations) -> dict[str, str]:
    """Return what the cells of every relation are by the values that they have: 0/1, whole or real numbers."""
    found = {}
    for r, name in enumerate(data.relations):
        value = data.of(r)[:, -1]
        value = value[~torch.isnan(value)]
        whole = bool((value == value.round()).all() and (value >= 0).all())
        small = "bernoulli" if bool((value <= 1).all()) else "poisson"
        found[name] = small if whole else "gaussian"
    return found
