"""Sums over variables of a product of factors, by elimination in log space.

A factor is a table over the values of few variables, its scope, for every row or for all rows together. Variables are
summed out one after the other, each with the factors that it is in (Dechter, *Bucket elimination*, Artificial
Intelligence 113, 1999); the plan is made once, in the order in which tables stay smallest. Marginals of factors are the
gradients of the log of the sum with respect to their logarithms; draws and the most probable values go through the
steps backwards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

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
        if reduction == "sum" and len(step.gone) == 1:
            product = self._multiply(step, inputs)
            if product is not None:
                return product
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

    def _add(self, tables: Sequence[tuple[Tensor, tuple[int, ...]]], order: tuple[int, ...]) -> Tensor:
        """Add up tables, each with its scope, over the axes of ``order``."""
        first, *rest = [self._align(table, scope, order) for table, scope in tables]
        return sum(rest, first)

    def _align(self, table: Tensor, scope: tuple[int, ...], order: tuple[int, ...]) -> Tensor:
        """Bring a table to the axes of ``order``, of size 1 where it has none."""
        own = [v for v in order if v in scope]
        moved = table.permute(0, *(1 + scope.index(v) for v in own))
        return moved.reshape(len(table), *(self.sizes[v] if v in scope else 1 for v in order))

    def _multiply(self, step: Step, inputs: list[Tensor]) -> Tensor | None:
        """Sum a variable out by one product of matrices, where tables of rows and those of all rows share no other
        variable: of chains. None where they do, or where that would lose what is too small for it."""
        own = [(t, s) for t, s in zip(inputs, step.scopes, strict=True) if len(t) > 1]
        shared = [(t, s) for t, s in zip(inputs, step.scopes, strict=True) if len(t) == 1]
        gone = step.gone[0]
        left = tuple(sorted(set().union(*(s for _, s in own)) - {gone}))
        right = tuple(sorted(set().union(*(s for _, s in shared)) - {gone}))
        if not own or not right or set(left) & set(right) or not any(gone in s for _, s in own):
            return None
        a, b = (self._add(each, (*axes, gone)) for each, axes in ((own, left), (shared, right)))
        size = self.sizes[gone]
        a, b = a.reshape(-1, size), b[0].reshape(-1, size)
        top, level = a.detach().amax(-1, keepdim=True), b.detach().amax(-1)
        product = torch.exp(a - top) @ torch.exp(b - level.unsqueeze(-1)).T
        if not bool((product > 0).all()):
            return None
        found = torch.log(product) + top + level
        found = found.reshape(-1, *(self.sizes[v] for v in (*left, *right)))
        place = [1 + (*left, *right).index(v) for v in step.kept]
        return found.permute(0, *place)

    def marginals(self, tables: Sequence[Tensor], weights: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        """Return the total (N,), and of every factor the probabilities of the values of its scope, of its shape; those
        of all rows together are summed over these. weights: (N,), by which rows count in the probabilities."""
        if len(self.steps) == 1 and not self.steps[0].kept:
            return self._take_at_once(tables, weights)
        with torch.enable_grad():
            leaves = [table.detach().requires_grad_() for table in tables]
            total = self.total(leaves)
            value = total.sum() if weights is None else (total * weights).sum()
            found = torch.autograd.grad(value, leaves, allow_unused=True)
        filled = [torch.zeros_like(t) if g is None else g for t, g in zip(tables, found, strict=True)]
        return total.detach(), filled

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
        rest = [1 + place for place, v in enumerate(order) if v not in scope]
        found = share.sum(rest) if rest else share
        own = [v for v in order if v in scope]
        return found.permute(0, *(1 + own.index(v) for v in scope))

    def decode(
        self, tables: Sequence[Tensor], choose: Callable[[Tensor], Tensor], reduction: Reduction, times: int = 1
    ) -> Tensor:
        """Give every variable a value in every row, so many times, (times N, V), going backwards through the steps.

        choose: takes log weights (times N, C) and returns the numbers (times N,) of the chosen ones.
        """
        total, every = self.run(tables, reduction)
        rows = max([len(total), *(len(table) for table in tables)])
        values = torch.zeros(times * rows, len(self.sizes), dtype=torch.long, device=total.device)
        for step in reversed(self.steps):
            weight = self._condition(step, [every[one] for one in step.inputs], values, times)
            chosen = choose(weight.reshape(len(values), -1))
            for v, own in zip(step.gone, _unravel(chosen, [self.sizes[v] for v in step.gone]), strict=True):
                values[:, v] = own
        return values

    def _condition(self, step: Step, inputs: Sequence[Tensor], values: Tensor, times: int) -> Tensor:
        """Log weights (times N, *gone) of the variables of a step, given the values of those that it keeps."""
        total, rows = None, len(values)
        for table, scope in zip(inputs, step.scopes, strict=True):
            known = [v for v in scope if v not in step.gone]
            free = tuple(v for v in scope if v in step.gone)
            moved = table.permute(0, *(1 + scope.index(v) for v in (*known, *free)))
            row = torch.arange(len(table), device=table.device).repeat(rows // len(table))
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
