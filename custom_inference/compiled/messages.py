"""Steps of a sum over variables, there and back: the message of a step, and the gradients in its tables.

Of z = log sum_g exp(t_1 + ... + t_n), with the gradient G of the total in z, the gradient in t_i is the sum of
G exp(t_1 + ... + t_n - z) over what t_i has no axis of. Where tables of rows, a(n, l, g), and those of all rows,
b(r, g), share the variable g alone, z = log(e^a e^b') and the gradients are e^a (H e^b) and e^b (H' e^a), where H is
G / e^z.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Step(NamedTuple):
    """One step: the variables ``gone`` are taken out of the product of some tables, ``inputs``, factors by number and
    then messages of earlier steps; the message has the scope ``kept``. scopes: of the inputs."""

    inputs: tuple[int, ...]
    kept: tuple[int, ...]
    gone: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]


def align(table: Tensor, scope: tuple[int, ...], order: tuple[int, ...], sizes: Sequence[int]) -> Tensor:
    """Bring a table to the axes of ``order``, of size 1 where it has none."""
    own = [v for v in order if v in scope]
    moved = table.permute(0, *(1 + scope.index(v) for v in own))
    return moved.reshape(len(table), *(sizes[v] if v in scope else 1 for v in order))


def join(step: Step, inputs: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Add up tables over the scope of a step, (N or 1, *kept, *gone); those of all rows together first."""
    order = (*step.kept, *step.gone)
    every = [*zip(inputs, step.scopes, strict=True)]
    shared = [align(table, scope, order, sizes) for table, scope in every if len(table) == 1]
    own = [align(table, scope, order, sizes) for table, scope in every if len(table) > 1]
    first = [functools.reduce(torch.add, shared)] if shared else []
    return functools.reduce(torch.add, itertools.chain(first, own)).expand(-1, *(sizes[v] for v in order))


def margin(share: Tensor, order: tuple[int, ...], scope: tuple[int, ...], summed: bool) -> Tensor:
    """Sum probabilities (N, *order) over all but a scope, and over rows where ``summed``."""
    share = share.sum(0, keepdim=True) if summed else share
    if order == scope:
        return share
    rest = [1 + place for place, v in enumerate(order) if v not in scope]
    found = share.sum(rest) if rest else share
    own = [v for v in order if v in scope]
    return found.permute(0, *(1 + own.index(v) for v in scope))


@dataclass(frozen=True)
class Joint:
    """A step by the sum of all of its tables, over the values of all of its variables together.

    rest: (N or 1, *kept, *gone) that sum less the message. of_rows: which tables every row has its own of.
    """

    step: Step
    message: Tensor
    rest: Tensor
    of_rows: tuple[bool, ...]

    @classmethod
    def of(cls, step: Step, inputs: Sequence[Tensor], sizes: Sequence[int]) -> Joint:
        joint = join(step, inputs, sizes)
        message = joint.logsumexp([*range(1 + len(step.kept), joint.ndim)])
        finite = message.clamp(min=torch.finfo(message.dtype).min)  # what cannot be stays impossible, not NaN
        rest = joint - finite.reshape(*message.shape, *[1] * len(step.gone))
        return cls(step, message, rest, tuple(len(table) > 1 for table in inputs))

    def go_back(self, slope: Tensor) -> list[Tensor]:
        """Return the gradients in the tables, from that in the message."""
        step = self.step
        share, order = self.rest.exp() * slope.reshape(*slope.shape, *[1] * len(step.gone)), (*step.kept, *step.gone)
        return [margin(share, order, scope, not own) for scope, own in zip(step.scopes, self.of_rows, strict=True)]


class Aligned(NamedTuple):
    """How an input of a step, by its number there, is brought to axes in another order."""

    number: int
    axes: tuple[int, ...]
    sizes: tuple[int, ...]

    def apply(self, inputs: Sequence[Tensor]) -> Tensor:
        return inputs[self.number].permute(self.axes).reshape(-1, *self.sizes)


class Sides(NamedTuple):
    """How a step is one product of matrices, of the tables of rows and of those of all rows together.

    tables, axes: of either, the axes without the variable that goes. sizes: of all axes of the product; outward,
    inward: their order in the message, and back.
    """

    tables: tuple[tuple[Aligned, ...], ...]
    axes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    outward: tuple[int, ...]
    inward: tuple[int, ...]

    @classmethod
    def find(cls, step: Step, of_rows: tuple[bool, ...], sizes: Sequence[int]) -> Sides | None:
        """Find the sides of a step in which tables of rows and those of all rows share no variable but the one that
        goes, as along chains; None where they do. of_rows: which tables every row has its own of."""
        if len(step.gone) != 1:
            return None
        gone, every = step.gone[0], [*enumerate(step.scopes)]
        own, shared = ([one for one in every if of_rows[one[0]] is wanted] for wanted in (True, False))
        left, right = (tuple(sorted({v for _, scope in one for v in scope} - {gone})) for one in (own, shared))
        if not own or not shared or not right or set(left) & set(right) or not any(gone in scope for _, scope in own):
            return None

        def place(number: int, scope: tuple[int, ...], order: tuple[int, ...]) -> Aligned:
            axes = tuple(1 + scope.index(v) for v in order if v in scope)
            return Aligned(number, (0, *axes), tuple(sizes[v] if v in scope else 1 for v in order))

        tables = tuple(
            tuple(place(number, scope, (*axes, gone)) for number, scope in side)
            for side, axes in ((own, left), (shared, right))
        )
        order = (*left, *right)
        outward = tuple(1 + order.index(v) for v in step.kept)
        inward = tuple(1 + step.kept.index(v) for v in order)
        return cls(tables, (left, right), tuple(sizes[v] for v in order), (0, *outward), (0, *inward))


@dataclass(frozen=True)
class Product:
    """A step that is one product of matrices, a b', of exponentials of which the largest of each line is 1."""

    step: Step
    sides: Sides
    message: Tensor
    a: Tensor
    b: Tensor
    product: Tensor

    @classmethod
    def of(cls, step: Step, sides: Sides, inputs: Sequence[Tensor]) -> Product | None:
        """Return the step; None where digits are lost of what is too small for it."""
        a, b = (functools.reduce(torch.add, [one.apply(inputs) for one in side]) for side in sides.tables)
        a, b = a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1])
        top, level = a.detach().amax(-1, keepdim=True), b.detach().amax(-1, keepdim=True)
        a, b = torch.exp(a - top), torch.exp(b - level)
        product = a @ b.mT
        finite = torch.finfo(product.dtype)
        try:
            if not float(product.detach().amin()) > finite.tiny / finite.eps:
                return None
        except RuntimeError:  # within torch.vmap, where values cannot be asked
            return None
        message = (torch.log(product) + top + level.mT).reshape(-1, *sides.sizes).permute(sides.outward)
        return cls(step, sides, message, a, b, product)

    def go_back(self, slope: Tensor) -> list[Tensor]:
        """Return the gradients in the tables, from that in the message."""
        sides, found = self.sides, [slope] * len(self.step.inputs)
        weight = slope.permute(sides.inward).reshape(self.product.shape) / self.product
        left, right = sides.sizes[: len(sides.axes[0])], sides.sizes[len(sides.axes[0]) :]
        each = (self.a * (weight @ self.b), left), (self.b * (weight.mT @ self.a), right)
        for (share, own), tables, axes in zip(each, sides.tables, sides.axes, strict=True):
            share = share.reshape(-1, *own, share.shape[-1])
            for one in tables:
                found[one.number] = margin(share, (*axes, *self.step.gone), self.step.scopes[one.number], False)
        return found
