"""Sums over variables of a product of factors, by elimination in log space.

A factor is a table over the values of few variables, its scope, for every row or for all rows together. Variables are
summed out one after the other, each with the factors that it is in (Dechter, *Bucket elimination*, Artificial
Intelligence 113, 1999); the plan is made once, in the order in which tables stay smallest. Marginals of factors are the
gradients of the log of the sum with respect to their logarithms; draws and the most probable values go through the
steps backwards.

Of z = log sum_g exp(t_1 + ... + t_n), with the gradient G of the total in z, the gradient in t_i is the sum of
G exp(t_1 + ... + t_n - z) over what t_i has no axis of. Where tables of rows, a(n, l, g), and those of all rows,
b(r, g), share the variable g alone, z = log(e^a e^b') and the gradients are e^a (H e^b) and e^b (H' e^a), where H is
G / e^z.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ppl_models.core.likelihood import softmax_and_log_sum

#: How variables are taken out: by the logarithm of a sum of exponentials, or by the largest term.
Reduction = Literal["sum", "max"]


class Step(NamedTuple):
    """One step: the variables ``gone`` are taken out of the product of some tables, ``inputs``, factors by number and
    then messages of earlier steps; the message has the scope ``kept``. aligned: of each input the order of its axes and
    their sizes among those of (kept, gone)."""

    inputs: tuple[int, ...]
    kept: tuple[int, ...]
    gone: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]


class Aligned(NamedTuple):
    """How a table is brought to axes in another order, of size 1 where it has none: input number so-and-so of a step,
    its axes in their order, and their sizes."""

    number: int
    axes: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, number: int, scope: tuple[int, ...], order: tuple[int, ...], sizes: Sequence[int]) -> Aligned:
        axes = tuple(1 + scope.index(v) for v in order if v in scope)
        return cls(number, (0, *axes), tuple(sizes[v] if v in scope else 1 for v in order))

    def of_table(self, table: Tensor) -> Tensor:
        return table.permute(self.axes).reshape(-1, *self.sizes)


class Sides(NamedTuple):
    """How a step is one product of matrices, of the tables of rows and of those of all rows together.

    tables, axes: of either, the axes without the variable ``gone``. sizes: of all axes of the product; outward, inward:
    their order in the message, and back.
    """

    tables: tuple[tuple[Aligned, ...], ...]
    axes: list[tuple[int, ...]]
    gone: int
    sizes: tuple[int, ...]
    outward: tuple[int, ...]
    inward: tuple[int, ...]


class Product(NamedTuple):
    """A step that was one product of matrices, of exponentials that have 1 as their largest number each."""

    a: Tensor
    b: Tensor
    product: Tensor
    sides: Sides
    message: Tensor


@dataclass(frozen=True)
class Plan:
    """The steps in which all variables are summed out. sizes: of the variables. num_factors: how many tables there are.
    width: the largest number of entries of a row that a step takes at once."""

    sizes: tuple[int, ...]
    num_factors: int
    steps: tuple[Step, ...]
    outside: tuple[int, ...]
    width: float

    @classmethod
    def of(cls, scopes: Sequence[tuple[int, ...]], sizes: Sequence[int]) -> Plan:
        """Plan the sum over the product of tables with these scopes."""
        tables = {number: tuple(scope) for number, scope in enumerate(scopes)}
        outside = tuple(number for number, scope in tables.items() if not scope)
        users: dict[int, set[int]] = {v: set() for scope in scopes for v in scope}
        for number, scope in tables.items():
            for v in scope:
                users[v].add(number)
        steps, width, number = [], 1.0, len(scopes)
        near = {v: _scope_of(v, users, tables) for v in users}
        costs = {v: _size(near[v], sizes) for v in users}
        while users:
            first = min(users, key=lambda v: (costs[v], v))
            whole = near[first]
            gone = tuple(v for v in whole if near[v] <= whole)
            inputs = tuple(sorted(set().union(*(users[v] for v in gone))))
            kept = tuple(sorted(whole - set(gone)))
            width = max(width, costs[first])
            steps.append(Step(inputs, kept, gone, tuple(tables[one] for one in inputs)))
            for one in inputs:
                for v in tables.pop(one):
                    users[v].discard(one)
            for v in gone:
                del users[v], near[v], costs[v]
            tables[number] = kept
            for v in kept:
                users[v].add(number)
            for v in kept:
                near[v] = _scope_of(v, users, tables)
                costs[v] = _size(near[v], sizes)
            number += 1
        return cls(tuple(sizes), len(scopes), tuple(steps), outside, width)

    def total(self, tables: Sequence[Tensor], reduction: Reduction = "sum") -> Tensor:
        """Sum over all variables: the logarithms (N,), or (1,) of factors of all rows alone."""
        return self.run(tables, reduction)[0]

    def run(self, tables: Sequence[Tensor], reduction: Reduction = "sum") -> tuple[Tensor, list[Tensor]]:
        """Return the total, and all tables with the messages behind them.

        tables: of each factor (N or 1, *sizes of its scope).
        """
        every, found = list(tables), sum((tables[one] for one in self.outside), tables[0].new_zeros(1))
        for step in self.steps:
            message = self._reduce(step, [every[one] for one in step.inputs], reduction)
            every.append(message)
            if not step.kept:
                found = found + message
        return found, every

    def _reduce(self, step: Step, inputs: list[Tensor], reduction: Reduction) -> Tensor:
        if reduction == "sum" and (product := self._multiply(step, inputs)) is not None:
            return product.message
        joint = self.join(step, inputs)
        axes = [*range(1 + len(step.kept), joint.ndim)]
        return joint.logsumexp(axes) if reduction == "sum" else joint.amax(axes)

    def join(self, step: Step, inputs: Sequence[Tensor]) -> Tensor:
        """Add up tables over the scope of a step, (N or 1, *kept, *gone); those of all rows together first."""
        order = (*step.kept, *step.gone)
        shared = [self._align(t, s, order) for t, s in zip(inputs, step.scopes, strict=True) if len(t) == 1]
        own = [self._align(t, s, order) for t, s in zip(inputs, step.scopes, strict=True) if len(t) > 1]
        total = None
        for part in itertools.chain([sum(shared[1:], shared[0])] if shared else [], own):
            total = part if total is None else total + part
        assert total is not None
        return total.expand(-1, *(self.sizes[v] for v in order))

    def _align(self, table: Tensor, scope: tuple[int, ...], order: tuple[int, ...]) -> Tensor:
        """Bring a table to the axes of ``order``, of size 1 where it has none."""
        own = [v for v in order if v in scope]
        moved = table.permute(0, *(1 + scope.index(v) for v in own))
        return moved.reshape(len(table), *(self.sizes[v] if v in scope else 1 for v in order))

    def _multiply(self, step: Step, inputs: Sequence[Tensor]) -> Product | None:
        """Sum a variable out by one product of matrices, where tables of rows and those of all rows share no other
        variable: of chains. None where they do, or where that would lose what is too small for it."""
        sides = self._sides(step, tuple(len(table) > 1 for table in inputs))
        if sides is None:
            return None
        each = [[one.of_table(inputs[one.number]) for one in side] for side in sides.tables]
        a, b = (functools.reduce(torch.add, one) for one in each)
        a, b = a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1])
        top, level = a.detach().amax(-1, keepdim=True), b.detach().amax(-1, keepdim=True)
        a, b = torch.exp(a - top), torch.exp(b - level)
        product = a @ b.mT
        finite = torch.finfo(product.dtype)
        try:  # below, digits are lost, or all of it
            if not float(product.detach().amin()) > finite.tiny / finite.eps:
                return None
        except RuntimeError:  # within torch.vmap, where values cannot be asked
            return None
        message = torch.log(product).add_(top).add_(level.mT) if not product.requires_grad else None
        message = torch.log(product) + top + level.mT if message is None else message
        return Product(a, b, product, sides, message.reshape(-1, *sides.sizes).permute(sides.outward))

    def _sides(self, step: Step, of_rows: tuple[bool, ...]) -> Sides | None:
        """How a step is one product of matrices, if it is; ``of_rows`` tells which tables every row has its own of."""
        key = step.inputs, of_rows
        if key not in self._known:
            self._known[key] = self._find_sides(step, of_rows)
        return self._known[key]

    def _find_sides(self, step: Step, of_rows: tuple[bool, ...]) -> Sides | None:
        if len(step.gone) != 1:
            return None
        gone, every = step.gone[0], [*enumerate(step.scopes)]
        each = [[(n, scope) for n, scope in every if of_rows[n] is own] for own in (True, False)]
        axes = [tuple(sorted(set().union(*(scope for _, scope in one)) - {gone})) for one in each]
        (own, shared), (left, right) = each, axes
        if not own or not shared or not right or set(left) & set(right) or not any(gone in scope for _, scope in own):
            return None
        tables = tuple(
            tuple(Aligned.of(number, scope, (*order, gone), self.sizes) for number, scope in one)
            for one, order in zip(each, axes, strict=True)
        )
        order = (*left, *right)
        outward, inward = tuple(order.index(v) for v in step.kept), tuple(step.kept.index(v) for v in order)
        sizes = tuple(self.sizes[v] for v in order)
        return Sides(tables, axes, gone, sizes, (0, *(1 + n for n in outward)), (0, *(1 + n for n in inward)))

    @cached_property
    def _known(self) -> dict[tuple[object, ...], Sides | None]:
        return {}

    def marginals(self, tables: Sequence[Tensor], weights: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        """Return the total (N,), and of every factor the probabilities of the values of its scope, of its shape; those
        of all rows together are summed over these. weights: (N,), by which rows count in the probabilities."""
        if len(self.steps) == 1 and not self.steps[0].kept:
            return self._take_at_once(tables, weights)
        with torch.no_grad():
            return self._take_in_turn(tables, weights)

    def _take_in_turn(self, tables: Sequence[Tensor], weights: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """Return the same of a sum in several steps, by going back through them."""
        every, found, ways = list(tables), [tables[one] for one in self.outside], list[Product | Tensor]()
        for step in self.steps:
            inputs = [every[one] for one in step.inputs]
            way = self._multiply(step, inputs)
            if way is None:
                joint = self.join(step, inputs)
                message = joint.logsumexp([*range(1 + len(step.kept), joint.ndim)])
                finite = message.clamp(min=torch.finfo(message.dtype).min)  # what cannot be stays impossible, not nan
                way = joint - finite.reshape(*message.shape, *[1] * len(step.gone))
            else:
                message = way.message
            ways.append(way)
            every.append(message)
            if not step.kept:
                found.append(message)
        total = sum(found[1:], found[0])
        ones = total.new_ones(len(total)) if weights is None else weights
        ends = {True: ones, False: ones.sum().reshape(1)}
        slopes: list[Any] = [None] * len(every)
        for number in self.outside:
            slopes[number] = ends[len(tables[number]) > 1]
        for number in range(len(self.steps) - 1, -1, -1):
            step, way, place = self.steps[number], ways[number], len(tables) + number
            slope = slopes[place] if step.kept else ends[len(every[place]) > 1]
            if isinstance(way, Product):
                own = self._back(step, way, slope)
            else:
                share = way.exp_().mul_(slope.reshape(*slope.shape, *[1] * len(step.gone)))
                order = (*step.kept, *step.gone)
                own = [
                    self._margin(share, order, scope, len(every[one]) == 1)
                    for one, scope in zip(step.inputs, step.scopes, strict=True)
                ]
            for one, part in zip(step.inputs, own, strict=True):
                slopes[one] = part
        return total, slopes[: len(tables)]

    def _back(self, step: Step, way: Product, slope: Tensor) -> list[Tensor]:
        """Return the gradients in the inputs of a product of matrices, from that in its message."""
        sides, found = way.sides, [slope] * len(step.inputs)
        weight = slope.permute(sides.inward).reshape(way.product.shape) / way.product
        each = way.a * (weight @ way.b), way.b * (weight.mT @ way.a)
        for share, tables, axes in zip(each, sides.tables, sides.axes, strict=True):
            order = (*axes, sides.gone)
            share = share.reshape(-1, *(self.sizes[v] for v in order))
            for one in tables:
                found[one.number] = self._margin(share, order, step.scopes[one.number], False)
        return found

    def _take_at_once(self, tables: Sequence[Tensor], weights: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """Return the same of a sum in a single step, by the probabilities of all values of all variables together."""
        step = self.steps[0]
        joint = self.join(step, [tables[one] for one in step.inputs])
        flat = joint.reshape(len(joint), -1)
        share, log_sum = softmax_and_log_sum(flat)
        if weights is not None:
            share = share * (weights if len(share) > 1 else weights.sum()).reshape(-1, 1)
        share = share.reshape(joint.shape)
        total, found = log_sum, list[Tensor]()
        for number, table in enumerate(tables):
            if number in self.outside:
                total = total + table
                own = torch.ones_like(log_sum) if weights is None else weights
                found.append(own if len(table) > 1 else own.sum().reshape(1))
                continue
            scope = step.scopes[step.inputs.index(number)]
            found.append(self._margin(share, step.gone, scope, len(table) == 1))
        return total, found

    def _margin(self, share: Tensor, order: tuple[int, ...], scope: tuple[int, ...], summed: bool) -> Tensor:
        """Sum probabilities (N, *order) over all but a scope, and over rows where ``summed``."""
        share = share.sum(0, keepdim=True) if summed else share
        if order == scope:
            return share
        rest = [1 + place for place, v in enumerate(order) if v not in scope]
        found = share.sum(rest) if rest else share
        own = [v for v in order if v in scope]
        return found.permute(0, *(1 + own.index(v) for v in scope))

    def decode(
        self, tables: Sequence[Tensor], choose: Callable[[Tensor], Tensor], reduction: Reduction, copies: int = 1
    ) -> Tensor:
        """Give every variable a value in every row (N, V), going backwards through the steps; with so many ``copies``
        (copies N, V), all rows of one behind those of another.

        choose: takes log weights (copies N, C) and returns the numbers (copies N,) of the chosen ones.
        """
        total, every = self.run(tables, reduction)
        rows = max([len(total), *(len(table) for table in tables)])
        values = torch.zeros(copies * rows, len(self.sizes), dtype=torch.long, device=total.device)
        for step in reversed(self.steps):
            weight = self._condition(step, [every[one] for one in step.inputs], values)
            chosen = choose(weight.reshape(len(values), -1))
            for v, own in zip(step.gone, _unravel(chosen, [self.sizes[v] for v in step.gone]), strict=True):
                values[:, v] = own
        return values

    def _condition(self, step: Step, inputs: Sequence[Tensor], values: Tensor) -> Tensor:
        """Log weights (copies N, *gone) of the variables of a step, given the values of those that it keeps."""
        total, rows = None, len(values)
        for table, scope in zip(inputs, step.scopes, strict=True):
            known = [v for v in scope if v not in step.gone]
            free = tuple(v for v in scope if v in step.gone)
            moved = table.permute(0, *(1 + scope.index(v) for v in (*known, *free)))
            row = torch.arange(rows, device=table.device) % len(table)
            part = moved[(row, *(values[:, v] for v in known))]
            part = self._align(part, free, step.gone)
            total = part if total is None else total + part
        assert total is not None
        return total.expand(rows, *(self.sizes[v] for v in step.gone))


def _scope_of(variable: int, users: dict[int, set[int]], tables: dict[int, tuple[int, ...]]) -> frozenset[int]:
    """The variables that share a table with one, itself among them."""
    return frozenset(v for number in users[variable] for v in tables[number])


def _size(scope: frozenset[int], sizes: Sequence[int]) -> float:
    return math.prod(float(sizes[v]) for v in scope)


def _unravel(place: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Split places in a flattened table into those along its axes."""
    found = []
    for size in reversed(sizes):
        found.append(place % size)
        place = place // size
    return found[::-1]
