"""Relations and clusters as the compiled kernels read them."""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

Floats = NDArray[np.float64]
Wholes = NDArray[np.int64]

#: What the cells of a relation are.
CATEGORIES, COUNTS, REALS = 0, 1, 2
#: How entities get clusters, see ``kernels.run``.
DRAW, BEST, PAIR, PUT = 0, 1, 2, 3
#: Entries of the table of log G(a + n); larger n are computed.
_LENGTH = 2**20


class Cells(NamedTuple):
    """The relations. Entities are numbered through, type by type; lists are padded with -1.

    arity, kind, closed, width, constant (R,): closed is 1 where unlisted cells are 0, and 0 where they are missing;
    width the number of sums that a block holds; constant what f adds. types (R, A). hyper (R, H). first (T + 1,):
    where the entities of a type begin; type_of (E,).
    entity (C, A), value (C,), relation (C,): the listed cells, NaN where missing. count (C,): what each adds to the
    observed cells of its block, beside all of them in a closed relation. symmetric (R,): 1 where every cell is listed
    in both directions, so that blocks off the diagonal are there twice, and those on it hold every cell twice. begin
    (R, A), pointer, cells: those of every entity at every axis. within (T, R), num_within: the relations of a
    type; own (T, R, A), num_own: the axes that it fills in them. table, place (R, H), length: of log G(a + n), see
    ``kernels.lookup``. fast (R,): 0/1 cells, all of whose numbers are in the table.
    """

    arity: Wholes
    kind: Wholes
    closed: Wholes
    width: Wholes
    constant: Floats
    types: Wholes
    hyper: Floats
    first: Wholes
    type_of: Wholes
    entity: Wholes
    value: Floats
    relation: Wholes
    count: Floats
    symmetric: Wholes
    begin: Wholes
    pointer: Wholes
    cells: Wholes
    within: Wholes
    num_within: Wholes
    own: Wholes
    num_own: Wholes
    table: Floats
    place: Wholes
    length: int
    fast: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        sizes: list[int],
        types: list[list[int]],
        kinds: list[int],
        hypers: list[list[float]],
        closed: list[bool],
        relation: Wholes,
        entity: Wholes,
        value: Floats,
        count: Floats,
        symmetric: list[bool],
    ) -> Self:
        """entity (C, A): numbers within the type of each axis. hypers: Dirichlet parameters of the categories; shape
        and rate of a Gamma; mean, strength, shape and rate of a normal-gamma."""
        arity = np.array([len(one) for one in types])
        padded = np.full((len(types), max(arity)), -1)
        for r, one in enumerate(types):
            padded[r, : len(one)] = one
        first = np.concatenate([[0], np.cumsum(sizes)])
        there = padded[relation]
        whole = np.where(there >= 0, entity[:, : padded.shape[1]] + first[:-1][there], -1)
        begin, pointer, cells = _lists(padded, first, relation, whole)
        within, num_within, own, num_own = _axes(padded, len(sizes))
        observed = [
            math.prod(float(sizes[t]) for t in one) if closed[r] else float((relation == r).sum())
            for r, one in enumerate(types)
        ]
        width = [{CATEGORIES: len(one) - 1, COUNTS: 1, REALS: 2}[kind] for kind, one in zip(kinds, hypers, strict=True)]
        hyper, place, table, length = _tables(kinds, hypers, observed)
        return cls(
            arity, np.array(kinds), np.array(closed, dtype=np.int64), np.array(width),
            np.array([_constant(*one) for one in zip(kinds, hypers, strict=True)]), padded,
            hyper, first, np.repeat(np.arange(len(sizes)), sizes), whole, value.astype(np.float64), relation,
            count, np.array(symmetric, dtype=np.int64), begin, pointer, cells, within, num_within, own, num_own, table,
            place, length,
            np.array([kind == CATEGORIES and len(hyper) == 2 for kind, hyper in zip(kinds, hypers, strict=True)])
            & (np.array(observed) < length),
        )  # fmt: skip


def _constant(kind: int, hyper: list[float]) -> float:
    if kind == CATEGORIES:
        return float(gammaln(sum(hyper)) - gammaln(hyper).sum())
    shape, rate = hyper[-2:]
    return float(shape * np.log(rate) - gammaln(shape))


def _tables(kinds: list[int], hypers: list[list[float]], observed: list[float]) -> tuple[Floats, Wholes, Floats, int]:
    """Hyper-parameters, of categories with their sum, and log G(a + n) of each."""
    length = int(min(max(observed, default=0) + 2, _LENGTH))
    rows = [[*one, sum(one)] if kind == CATEGORIES else one for kind, one in zip(kinds, hypers, strict=True)]
    hyper = np.zeros((len(rows), max(map(len, rows))))
    place, tables = np.zeros(hyper.shape, dtype=np.int64), []
    found: dict[float, int] = {}
    for r, row in enumerate(rows):
        hyper[r, : len(row)] = row
        for h, shift in enumerate(row if kinds[r] == CATEGORIES else ()):
            if shift not in found:
                found[shift] = len(tables) * length
                tables.append(gammaln(shift + np.arange(length)))
            place[r, h] = found[shift]
    return hyper, place, np.concatenate(tables) if tables else np.zeros(1), length


def _lists(types: Wholes, first: Wholes, relation: Wholes, entity: Wholes) -> tuple[Wholes, Wholes, Wholes]:
    begin, counts, cells, at = np.zeros(types.shape, dtype=np.int64), [], [], 0
    for r in range(len(types)):
        chosen = np.flatnonzero(relation == r)
        for axis in np.flatnonzero(types[r] >= 0):
            t = types[r, axis]
            number, own = first[t + 1] - first[t], entity[chosen, axis] - first[t]
            begin[r, axis] = at
            counts.append(np.bincount(own, minlength=number))
            cells.append(chosen[np.argsort(own, kind="stable")])
            at += number
    return begin, np.concatenate([[0], np.cumsum(np.concatenate(counts))]), np.concatenate(cells)


def _axes(types: Wholes, number: int) -> tuple[Wholes, Wholes, Wholes, Wholes]:
    size, most = types.shape
    within, own = np.full((number, size), -1), np.full((number, size, most), -1)
    num_within, num_own = np.zeros(number, dtype=np.int64), np.zeros((number, size), dtype=np.int64)
    for t in range(number):
        for r in range(size):
            axes = np.flatnonzero(types[r] == t)
            if len(axes):
                j = num_within[t]
                within[t, j], num_own[t, j], own[t, j, : len(axes)] = r, len(axes), axes
                num_within[t] += 1
    return within, num_within, own, num_own


class Work(NamedTuple):
    """The clusters, and what their blocks hold.

    label (E,): -1 without one. size, active (T, K), number, room (T,): entities of every label; the labels in use
    as a list, how many, and how many there are. fixed, alpha (T,): whether the number of clusters is, and then the
    concentration of each. opening (T, N + 2): what the prior adds with so many clusters. stride (R, A), base (R + 1,),
    sums_at (R,): where blocks are. sums, listed, score: of every block; new_sums, new_listed: of one entity.
    candidate, weight: clusters to choose among. target, chance: of a division. total (1,): sum of the scores. rng (1,):
    SplitMix64.
    """

    label: Wholes
    size: Wholes
    active: Wholes
    number: Wholes
    room: Wholes
    fixed: NDArray[np.bool_]
    alpha: Floats
    opening: Floats
    stride: Wholes
    base: Wholes
    sums_at: Wholes
    sums: Floats
    listed: Floats
    score: Floats
    new_sums: Floats
    new_listed: Floats
    offset: Wholes
    product: Floats
    now: Floats
    candidate: Wholes
    weight: Floats
    target: Wholes
    chance: Floats
    total: Floats
    rng: NDArray[np.uint64]

    @classmethod
    def of(
        cls, cells: Cells, room: Wholes, prior: tuple[NDArray[np.bool_], Floats, Floats], rng: NDArray[np.uint64]
    ) -> Self:
        """Empty, with room for so many clusters of every type. prior: ``fixed``, ``alpha`` and ``opening``."""
        most, types = int(room.max()), len(room)
        stride, blocks, sums, fills = np.zeros(cells.types.shape, dtype=np.int64), [], [], []
        for r, row in enumerate(cells.types):
            at = 1
            for axis in range(cells.arity[r] - 1, -1, -1):
                stride[r, axis] = at
                at *= int(room[row[axis]])
            blocks.append(at)
            sums.append(at * int(cells.width[r]))
            fills.append(1 << int(np.bincount(row[row >= 0]).max()))
        base, sums_at = np.concatenate([[0], np.cumsum(blocks)]), np.concatenate([[0], np.cumsum(sums)])
        scratch = max(one * many for one, many in zip(blocks, fills, strict=True))
        wide = max(one * many for one, many in zip(sums, fills, strict=True))
        largest = max(blocks)
        return cls(
            np.full(len(cells.type_of), -1), np.zeros((types, most), np.int64),
            np.zeros((types, most), np.int64), np.zeros(types, np.int64), room, *prior,
            stride, base, sums_at[:-1], np.zeros(sums_at[-1]), np.zeros(base[-1]), np.zeros(base[-1]), np.zeros(wide),
            np.zeros(scratch), np.zeros(largest, np.int64), np.zeros(largest), np.zeros(int(cells.width.max())),
            np.zeros(most + 1, np.int64), np.zeros(most + 1), np.zeros(2, np.int64), np.zeros(1),
            np.zeros(1), rng,
        )  # fmt: skip
