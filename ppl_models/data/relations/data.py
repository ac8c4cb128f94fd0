"""Several relations between entities of several types, as one table of cells."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ppl_models.core import displays
from ppl_models.core.errors import DataError, ModelError, require_room, warn_of_data
from ppl_models.data.files.tables import list_names
from ppl_models.data.held import Names
from ppl_models.data.matrix import Data

#: Cells of a relation that is made dense, at most.
_DENSE = 2**27


@dataclass(frozen=True, kw_only=True)
class Relations(Data):
    """C listed cells of R relations.

    x: (C, 2 + A): the number of the relation, those of the entities along its axes (-1 behind the last), and the value,
        NaN where it is missing. Each cell once.
    types: name -> number of entities. relations: name -> the types of its axes.
    others: ``unlisted`` (R,): what the cells of each relation are that are not listed, 0, or NaN: missing.
    symmetric: the relations of a type with itself in which (i, j) and (j, i) are one cell, listed with i <= j.
    self_loops: those in which (i, i) is a cell.
    coords: the labels of the entities by their types, where they have any.
    """

    types: Mapping[str, int]
    relations: Mapping[str, tuple[str, ...]]
    symmetric: tuple[str, ...] = ()
    self_loops: tuple[str, ...] = ()
    container: ClassVar[str] = "relations"

    def __repr__(self) -> str:
        sizes = ", ".join(f"{size} of type '{name}'" for name, size in self.types.items())
        cells = {
            f"{name} ({', '.join(types)})": f"{len(self.of(r))} listed cells{self._kind(name)}"
            for r, (name, types) in enumerate(self.relations.items())
        }
        labels = {f"labels of {axis}": displays.list_labels(names) for axis, names in self.coords.items()}
        return displays.lines(f"Relations between {sizes}", {**cells, **labels})

    def _kind(self, name: str) -> str:
        """What the cells of a relation of a type with itself are, in words."""
        if not of_one_type(self.relations[name]):
            return ""
        what = "symmetric, one a pair" if name in self.symmetric else "directed"
        return f", {what}{', self loops too' if name in self.self_loops else ''}"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"

    @classmethod
    def from_table(
        cls,
        data: Data,
        types: Mapping[str, int],
        relations: Mapping[str, Sequence[str]],
        unlisted: Sequence[float] | Tensor | None,
        symmetric: tuple[str, ...] = (),
        self_loops: tuple[str, ...] = (),
    ) -> Relations:
        """Rebuild relations from their table.

        Raises DataError for a table that is not one of these relations.
        """
        width, pairs = 2 + max(len(one) for one in relations.values()), {n: tuple(one) for n, one in relations.items()}
        if data.x.ndim != 2 or data.is_sparse or data.x.shape[1] != width or unlisted is None:
            raise DataError(f"a table of shape {tuple(data.x.shape)}", expected=f"(C, {width}), and unlisted=")
        unlisted = torch.as_tensor(unlisted).to(data.x)
        if unlisted.shape != (len(relations),) or not bool(((unlisted == 0) | torch.isnan(unlisted)).all()):
            raise DataError(f"unlisted of shape {tuple(unlisted.shape)}", expected="0 or NaN for every relation")
        coords = {t: names for t, names in data.coords.items() if t in types}
        x, others = without_loops(data.x, pairs, self_loops, coords), {"unlisted": unlisted}
        made = cls(
            x=x, types=dict(types), relations=pairs, coords=coords, others=others, symmetric=symmetric,
            self_loops=self_loops,
        )  # fmt: skip
        made._check()
        return made

    def _check(self) -> None:
        """Refuses numbers of relations and entities that there are not, and cells that are listed twice."""
        which = self.x[:, 0]
        if not bool(((which >= 0) & (which < len(self.relations)) & (which == which.round())).all()):
            raise DataError("cells of relations that there are not", axis="relation", expected="numbers of relations")
        for r, (name, types) in enumerate(self.relations.items()):
            rows = self.of(r)[:, 1:-1]
            for a in range(rows.shape[1]):
                size = self.types[types[a]] if a < len(types) else 0
                wrong = (rows[:, a] < 0) | (rows[:, a] >= size) | (rows[:, a] != rows[:, a].round())
                wrong = rows[:, a] != -1 if a >= len(types) else wrong
                if bool(wrong.any()):
                    first = float(rows[wrong][0, a])
                    expected = f"whole numbers from 0 to {size - 1}" if size else f"{len(types)} entities a cell"
                    raise DataError(f"{int(wrong.sum())} cells of entities out of range (the first: {first:g})",
                                    axis=name, expected=expected)  # fmt: skip
            place = self.place(r)
            if len(torch.unique(place)) < len(place):
                twice = len(place) - len(torch.unique(place))
                raise DataError(f"{twice} cells listed twice", axis=name, expected="each cell once")
            if of_one_type(types) and len(rows):
                one, other = rows[:, 0], rows[:, 1]
                if name in self.symmetric and bool((one > other).any()):
                    found = "cells (i, j) of a symmetric relation with i > j"
                    raise DataError(found, axis=name, expected="each pair once, i < j; IRM(symmetric=...)")
                if name not in self.self_loops and bool((one == other).any()):
                    found = f"{int((one == other).sum())} cells of entities with themselves"
                    raise DataError(found, axis=name, expected=f"none, or a model with self_loops=({name!r},)")

    def of(self, r: int) -> Tensor:
        """The cells of a relation, rows of x."""
        return self.x[self.x[:, 0] == r]

    def entities(self, r: int) -> Tensor:
        """(C_r, A_r), whole numbers."""
        return self.of(r)[:, 1 : 1 + len(list(self.relations.values())[r])].long()

    def place(self, r: int) -> Tensor:
        """(C_r,), the cells' numbers, the last axis running fastest."""
        entities = self.entities(r)
        place = torch.zeros_like(entities[:, 0])
        for a, t in enumerate(list(self.relations.values())[r]):
            place = place * self.types[t] + entities[:, a]
        return place

    def names(self, kind: str) -> Sequence[Any]:
        """The labels of the entities of a type; their numbers where they have none."""
        return self.coords.get(kind, range(self.types[kind]))

    def closed(self, r: int) -> bool:
        """Whether unlisted cells are 0."""
        return bool(self.others["unlisted"][r] == 0)

    def array(self, name: str) -> np.ndarray:
        """A relation as a dense array, NaN where missing. Raises CapacityError for one too large."""
        r = list(self.relations).index(name)
        shape = [self.types[t] for t in self.relations[name]]
        require_room(f"the cells of '{name}'", 8.0 * math.prod(shape), 8.0 * _DENSE, "read the listed cells")
        found = np.full(shape, 0.0 if self.closed(r) else np.nan)
        place, value = tuple(self.entities(r).cpu().numpy().T), self.of(r)[:, -1].cpu().numpy()
        found[place] = value
        if name in self.symmetric:
            found[place[::-1]] = value
        if of_one_type(self.relations[name]) and name not in self.self_loops:
            np.fill_diagonal(found, np.nan)
        return found

    def num_cells(self, r: int) -> int:
        """Cells of a relation, whatever they are: of a symmetric one the pairs."""
        name, types = list(self.relations.items())[r]
        every, size = math.prod(self.types[t] for t in types), self.types[types[0]]
        own = size if name in self.self_loops else -size
        if name in self.symmetric:
            return (every + own) // 2
        return every + min(own, 0) if of_one_type(types) else every

    def arrange(
        self, types: Mapping[str, int], relations: Mapping[str, tuple[str, ...]], **settled: Sequence[str]
    ) -> Relations:
        """Put types and relations into the order of a model. Raises DataError if they are not the model's.

        settled: its ``symmetric`` and ``self_loops``.
        """
        for option, said in settled.items():
            own = getattr(self, option)
            if {*own} != {*said} and dict(self.relations) == dict(relations):
                found = f"{option} of the data: {list(own)}, of the model: {list(said)}"
                expected = f"a model with {option}={list(own)}, as for_data makes it, or relations(..., {option}=)"
                raise DataError(found, axis=next(iter({*own} ^ {*said})), expected=expected)
        if dict(self.types) == dict(types) and list(self.relations.items()) == list(relations.items()):
            return self if list(self.types) == list(types) else replace(self, types=dict(types))
        for what, own, expected in (("types", self.types, types), ("relations", self.relations, relations)):
            if dict(own) != dict(expected):
                name = next(iter({*own.items()} ^ {*expected.items()}))[0]
                found = f"{what} with '{name}': {own.get(name)}"
                raise DataError(found, axis=str(name), expected=f"{expected.get(name)}, as the model has it")
        order = [list(relations).index(name) for name in self.relations]
        x = self.x.clone()
        x[:, 0] = torch.tensor(order).to(x)[self.x[:, 0].long()]
        others = {"unlisted": self.others["unlisted"][torch.tensor(np.argsort(order))]}
        return replace(self, x=x, types=dict(types), relations=dict(relations), others=others)

    def without(self, relation: str, chosen: Tensor) -> Relations:
        """Return the relations with some listed cells of one set to missing, (C_r,) bool: those to be predicted."""
        r = list(self.relations).index(relation)
        rows, x = (self.x[:, 0] == r).nonzero().flatten(), self.x.clone()
        x[rows[chosen], -1] = torch.nan
        return replace(self, x=x)

    def check_for_fitting(self) -> None:
        for r, name in enumerate(self.relations):
            seen = int((~torch.isnan(self.of(r)[:, -1])).sum())
            missing = len(self.of(r)) - seen
            if (self.num_cells(r) - missing if self.closed(r) else seen) == 0:
                raise DataError("no observed cell", axis=name, expected="at least one")
        for t, size in self.types.items():
            within = [r for r, types in enumerate(self.relations.values()) if t in types]
            if not within:
                raise DataError("a type that no relation has", axis=t, expected="a relation of every type")
            if any(self.closed(r) for r in within):
                continue
            met = torch.zeros(size, dtype=torch.bool, device=self.x.device)
            for r in within:
                seen = ~torch.isnan(self.of(r)[:, -1])
                for a in (a for a, one in enumerate(list(self.relations.values())[r]) if one == t):
                    met[self.entities(r)[seen, a]] = True
            if not bool(met.all()):
                first = self.names(t)[int((~met).nonzero()[0])]
                warn_of_data(
                    f"{int((~met).sum())} of {size} entities of type '{t}' without cells (the first: {first!r})"
                )


def without_loops(
    x: Tensor, relations: Mapping[str, Sequence[str]], self_loops: Sequence[str], coords: Mapping[str, Sequence[Any]]
) -> Tensor:
    """The table without cells of entities with themselves, but of ``self_loops``; a DataWarning says where they are not
    0. Tables that earlier versions saved have some too."""
    for r, (name, types) in enumerate(relations.items()):
        loops = (x[:, 0] == r) & (x[:, 1] == x[:, 2])
        if not of_one_type(types) or name in self_loops:
            continue
        said = x[loops & (torch.nan_to_num(x[:, -1]) != 0), 1].long().tolist()
        if said:
            first = coords[types[0]][said[0]] if types[0] in coords else said[0]
            found = f"{len(said)} self loops of '{name}' were left out (the first: at {first!r})"
            warn_of_data(f"{found}; self_loops=True keeps them")
        x = x[~loops]
    return x


def of_one_type(types: Sequence[str]) -> bool:
    """Whether a relation is one of a type with itself: two axes of one type."""
    return len(types) == 2 and types[0] == types[1]


def those_named(
    option: str, names: Names | bool, relations: Mapping[str, Sequence[str]], error: type[ModelError | DataError]
) -> tuple[str, ...]:
    """The relations that an option names, or True: all that are of a type with itself. Raises the error for others."""
    fit = [name for name, types in relations.items() if of_one_type(types)]
    asked = fit if names is True else [] if names is False else list_names(names)
    wrong = next((name for name in asked if name not in fit), None)
    if wrong is not None or (names is True and not fit):
        problem = f"{option} of {'relations' if wrong is None else repr(wrong)}"
        raise error(f"{problem}; expected relations of a type with itself: {', '.join(fit) or 'there are none'}")
    return tuple(name for name in fit if name in asked)
