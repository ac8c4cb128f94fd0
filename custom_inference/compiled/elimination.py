"""Sums over variables of a product of factors, by elimination in log space.

A factor is a table over the values of few variables, its scope, for every row or for all rows together. Variables are
summed out one after the other, each with the factors that it is in (Dechter, *Bucket elimination*, Artificial
Intelligence 113, 1999); the plan is made once, in the order in which tables stay smallest. Marginals of factors are the
gradients of the log of the sum with respect to their logarithms; draws and the most probable values go through the
steps backwards.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from custom_inference.compiled.messages import Joint, Product, Sides, Step, align, join, margin
from ppl_models.core.likelihood import softmax_and_log_sum

#: How variables are taken out: by the logarithm of a sum of exponentials, or by the largest term.
Reduction = Literal["sum", "max"]


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
        if reduction == "sum":
            return self._solve(step, inputs).message
        joint = join(step, inputs, self.sizes)
        return joint.amax([*range(1 + len(step.kept), joint.ndim)])

    def _solve(self, step: Step, inputs: list[Tensor]) -> Product | Joint:
        """Sum the variables of a step out: by one product of matrices, where that is so and loses nothing."""
        key = step.inputs, tuple(len(table) > 1 for table in inputs)
        if key not in self._sides:
            self._sides[key] = Sides.find(step, key[1], self.sizes)
        sides = self._sides[key]
        product = None if sides is None else Product.of(step, sides, inputs)
        return Joint.of(step, inputs, self.sizes) if product is None else product

    @cached_property
    def _sides(self) -> dict[tuple[tuple[int, ...], tuple[bool, ...]], Sides | None]:
        """How steps are products of matrices, by which of their tables every row has its own of."""
        return {}

    def marginals(self, tables: Sequence[Tensor], weights: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        """Return the total (N,), and of every factor the probabilities of the values of its scope, of its shape; those
        of all rows together are summed over these. weights: (N,), by which rows count in the probabilities."""
        if len(self.steps) == 1 and not self.outside:
            return self._take_at_once(tables, weights)
        with torch.no_grad():
            return self._take_in_turn(tables, weights)

    def _take_in_turn(self, tables: Sequence[Tensor], weights: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """Return the same of a sum in several steps, by going back through them."""
        every, ways = list(tables), list[Product | Joint]()
        for step in self.steps:
            ways.append(self._solve(step, [every[one] for one in step.inputs]))
            every.append(ways[-1].message)
        ends = [*self.outside, *(len(tables) + n for n, step in enumerate(self.steps) if not step.kept)]
        total = functools.reduce(torch.add, [every[one] for one in ends])
        ones = total.new_ones(len(total)) if weights is None else weights
        slopes = {one: ones if len(every[one]) > 1 else ones.sum().reshape(1) for one in ends}
        for number, step in reversed([*enumerate(self.steps, len(tables))]):
            slopes.update(zip(step.inputs, ways[number - len(tables)].go_back(slopes[number]), strict=True))
        return total, [slopes[number] for number in range(len(tables))]

    def _take_at_once(self, tables: Sequence[Tensor], weights: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """Return the same of a sum in a single step, by the probabilities of all values of all variables together."""
        step = self.steps[0]
        joint = join(step, [tables[one] for one in step.inputs], self.sizes)
        flat = joint.reshape(len(joint), -1)
        share, log_sum = softmax_and_log_sum(flat)
        if weights is not None:
            share = share * (weights if len(share) > 1 else weights.sum()).reshape(-1, 1)
        share = share.reshape(joint.shape)
        order = [step.scopes[step.inputs.index(number)] for number in range(len(tables))]
        return log_sum, [
            margin(share, step.gone, scope, len(table) == 1) for scope, table in zip(order, tables, strict=True)
        ]

    def decode(
        self, tables: Sequence[Tensor], choose: Callable[[Tensor], Tensor], reduction: Reduction, copies: int = 1
    ) -> Tensor:
        """Give every variable a value in every row (N, V), going backwards through the steps; with so many ``copies``
        (copies N, V), all rows of one behind those of another.

        choose: takes log weights (copies N, C) and returns the numbers (copies N,) of the chosen ones.
        """
        return self.go_back(*self.run(tables, reduction), choose, copies)

    def go_back(
        self, total: Tensor, every: Sequence[Tensor], choose: Callable[[Tensor], Tensor], copies: int = 1
    ) -> Tensor:
        """Give every variable a value as ``decode`` does, from what ``run`` returned."""
        rows = max([len(total), *(len(table) for table in every[: self.num_factors])])
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
            part = align(part, free, step.gone, self.sizes)
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
